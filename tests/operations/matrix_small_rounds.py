"""`make matrix`: many statements at random with small rounds beside foreign commits, against the
job alone. `test_small_rounds.py` has a few of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from operations.small_cases import case

OF_ONE = 50


@pytest.mark.parametrize("first", range(1_000, 1_600, OF_ONE))
def test_small_rounds_end_as_the_job_does(tmp_path: Path, first: int) -> None:
    answered = 0
    for seed in range(first, first + OF_ONE):
        found = case(tmp_path / f"{seed}", seed)
        assert found.here == found.serial, seed
        answered += found.answered
    assert answered > OF_ONE
