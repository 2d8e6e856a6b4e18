"""Which files cannot hold one of the keys of a merge's source."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruning.file_ranges import ColumnRange, FileRange, known
from tandem.pruning.selection import Keys
from tandem.statements.types import SqlType

LONG, STRING = SqlType("long"), SqlType("string")
COLUMN = "id"


def may_occur(keys: Keys, file: FileRange) -> bool:
    field = {"name": COLUMN, "type": keys.type.name, "nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    return bool(keys.may_occur(known([file], schema, {COLUMN: keys.type}))[0])


def keys(values: list[Any], type_: SqlType = LONG, *, complete: bool = True) -> Keys:
    return Keys(COLUMN, type_, tuple(sorted(values)), complete)


def file(low: Any, high: Any, nulls: int | None = 0, rows: int | None = 10) -> FileRange:
    return FileRange({COLUMN: ColumnRange(low, high, nulls)}, rows)


@given(
    st.lists(st.integers(-50, 50), min_size=1, max_size=8),
    st.lists(st.integers(-50, 50), max_size=8, unique=True),
)
def test_a_file_is_left_out_only_if_no_key_lies_within_its_bounds(
    rows: list[int], wanted: list[int]
) -> None:
    found = file(min(rows), max(rows))
    assert may_occur(keys(wanted), found) == any(min(rows) <= key <= max(rows) for key in wanted)
    ends = [min(wanted), max(wanted)] if wanted else []
    bounds = may_occur(keys(ends, complete=False), found)
    assert bounds == bool(wanted and min(wanted) <= max(rows) and max(wanted) >= min(rows))


@given(
    st.lists(st.text(max_size=40), min_size=1, max_size=6),
    st.lists(st.text(max_size=40), min_size=1, max_size=6, unique=True),
)
def test_strings_that_occur_are_never_ruled_out(rows: list[str], wanted: list[str]) -> None:
    """Bounds as a writer may cut them: a prefix below, anything longer than the cut above."""
    low = min(rows, key=str.encode)[:32]
    high = max(rows, key=str.encode)
    found = file(low, high[:32] if len(high) > 32 else high)
    if set(rows) & set(wanted):
        assert may_occur(keys([text.encode() for text in wanted], STRING), found)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (FileRange(), True),
        (file(None, None), True),
        (file(None, 4), False),
        (file(6, None), False),
        (file(None, None, nulls=10), False),  # NULL equals nothing
        (file(None, None, nulls=9), True),
        (file(None, None, nulls=None), True),
        (file(None, None, nulls=10, rows=None), True),
        (file("5", "5"), True),  # odd statistics say nothing
    ],
)
def test_unknown_bounds_rule_out_nothing(found: FileRange, expected: bool) -> None:
    assert may_occur(keys([5]), found) is expected
    assert not may_occur(keys([]), found)


def test_times_are_cut_to_milliseconds() -> None:
    moment = dt.datetime(2013, 1, 1, 12, 0, 0, 1_999, tzinfo=dt.UTC)
    cut = moment.replace(microsecond=1_000)
    assert may_occur(keys([moment], SqlType("timestamp")), file(cut, cut))
