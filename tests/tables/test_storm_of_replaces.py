"""Replaces beside everything on real tables, by random histories: I-5, I-12, I-53, I-54, I-57."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.some import few
from tables.storm_of_replaces import Storm

EACH = 3


@pytest.mark.part(4)
@pytest.mark.parametrize("first", range(0, EACH * few(4, 500), EACH))
def test_I53_I54_rows_are_those_of_the_commits_in_their_order(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + EACH):
        storm = Storm(seed, tmp_path / str(seed))
        try:
            storm.run(14)
        except BaseException as error:
            error.add_note(f"history {seed}:\n" + "\n".join(storm.events))
            raise
