"""The rows of Apache Hudi for the same traces, as `make hudi` recorded them.

Hudi itself runs in `make hudi` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from mergelog.hudi.ours import answers
from mergelog.hudi.record import recorded
from mergelog.hudi.trace import DIFFERENCES, SAME, Trace
from mergelog.orders import Rows

BASE, OTHER = (1, 5, "base"), (2, 5, "other")
OURS: Final[dict[str, Rows]] = {
    "delete-by-operation": [BASE, OTHER],
    "event-older-than-a-merged-delete": [OTHER],
    "event-older-than-a-delete-of-an-absent-key": [BASE, OTHER],
    "delete-without-ordering": [BASE, OTHER],
    "upsert-without-ordering": [BASE, OTHER],
    "delete-and-upsert-of-one-ordering-in-one-batch": [],
}
"""The rows at the end of each of `DIFFERENCES`."""


@pytest.mark.part(2)
@pytest.mark.parametrize("trace", SAME, ids=lambda trace: trace.name)
def test_rows_are_those_of_hudi_after_each_step(tmp_path: Path, trace: Trace) -> None:
    theirs = [[tuple(row) for row in rows] for rows in recorded()[trace.name]]
    assert answers(tmp_path / "table", trace) == theirs


@pytest.mark.parametrize("trace", DIFFERENCES, ids=lambda trace: trace.name)
def test_an_intended_difference_is_as_documented(tmp_path: Path, trace: Trace) -> None:
    ours = answers(tmp_path / "table", trace)[-1]
    assert ours == OURS[trace.name]
    # One that is gone leaves the documentation.
    assert recorded()[trace.name][-1] != [list(row) for row in ours]
