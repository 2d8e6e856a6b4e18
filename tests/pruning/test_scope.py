"""Files that a scope, or keys, may affect."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pruning.file_ranges import ColumnRange, FileRange, known
from tandem.delta.schema import PrimitiveType
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.pruning import scope
from tandem.pruning.scope import Coverage, TimeScope, partition_codes, parts_in_scope
from tandem.pruning.selection import Keys
from tandem.statements.types import SqlType

# Which files lie in intervals and partitions, compared with their rows.


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MOMENTS = st.integers(-6_000, 6_000)
"""Microseconds, so that statistics cut them."""
BORDERS = st.integers(-7, 7)
ROWS = st.lists(st.none() | MOMENTS, min_size=1, max_size=4)
INTERVALS = st.lists(st.builds(TimeInterval, BORDERS, BORDERS), max_size=3).map(IntervalSet)


def text(micros: int) -> str:
    """As statistics have it: cut to milliseconds."""
    moment = EPOCH + dt.timedelta(milliseconds=micros // 1_000)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def statistics(rows: Sequence[int | None], *, nulls: bool) -> str:
    known = [row for row in rows if row is not None]
    found: dict[str, Any] = {"numRecords": len(rows)}
    if known:
        found |= {"minValues": {"t": text(min(known))}, "maxValues": {"t": text(max(known))}}
    if nulls:
        found["nullCount"] = {"t": len(rows) - len(known)}
    return json.dumps(found)


def files(stats: Sequence[str | None], partitions: Sequence[Mapping[str, str | None]]) -> pa.Table:
    pairs = [list(values.items()) for values in partitions]
    return pa.table(
        {
            "path": [f"f{number}" for number in range(len(stats))],
            "stats": pa.array(stats, pa.string()),
            "partition_values": pa.array(pairs, pa.map_(pa.string(), pa.string())),
        }
    )


@given(st.lists(st.tuples(ROWS, st.booleans()), min_size=1, max_size=4), INTERVALS)
def test_a_file_is_in_scope_as_a_whole_only_if_each_of_its_rows_is(
    contents: list[tuple[list[int | None], bool]], intervals: IntervalSet
) -> None:
    table = files([statistics(rows, nulls=nulls) for rows, nulls in contents], [{}] * len(contents))
    found = parts_in_scope(table, TimeScope(intervals, ("t",), "timestamp"))
    for (rows, nulls), part in zip(contents, found.tolist(), strict=True):
        inside = [
            row is not None and intervals.overlaps(TimeInterval(row // 1_000, row // 1_000 + 1))
            for row in rows
        ]
        assert part != Coverage.ALL or all(inside)
        assert part != Coverage.NONE or not any(inside)
        # What statistics say without a doubt is not read.
        if nulls and None not in rows:
            hull = TimeInterval(min(rows) // 1_000, max(rows) // 1_000 + 1)  # type: ignore[operator, type-var]
            assert (part == Coverage.ALL) == intervals.covers(hull)
            assert (part == Coverage.NONE) == (not intervals.overlaps(hull))


def test_all_of_time_has_rows_without_a_time() -> None:
    table = files([statistics([None, 1], nulls=True), None], [{}, {}])
    scope = TimeScope(IntervalSet([ALWAYS]), ("t",), "timestamp")
    assert parts_in_scope(table, scope).tolist() == [Coverage.ALL, Coverage.ALL]
    assert parts_in_scope(table, None).tolist() == [Coverage.ALL, Coverage.ALL]


def test_no_interval_has_no_row() -> None:
    table = files([statistics([1], nulls=True), None], [{}, {}])
    scope = TimeScope(IntervalSet(), ("t",), "timestamp")
    assert parts_in_scope(table, scope).tolist() == [Coverage.NONE, Coverage.NONE]


@pytest.mark.parametrize("stats", [None, "", "{", "{}", '{"minValues": {"t": "x"}}', "[1]"])
def test_a_file_whose_statistics_say_nothing_is_read(stats: str | None) -> None:
    scope = TimeScope(IntervalSet([TimeInterval(0, 5)]), ("t",), "timestamp")
    assert parts_in_scope(files([stats], [{}]), scope).tolist() == [Coverage.SOME]


def test_a_time_that_is_a_partition_decides_alone() -> None:
    day = 86_400_000
    table = files([None] * 4, [{"d": "1970-01-01"}, {"d": "1970-01-02"}, {"d": None}, {}])
    scope = TimeScope(IntervalSet([TimeInterval(0, day)]), ("d",), "date", partition=True)
    assert parts_in_scope(table, scope).tolist() == [
        Coverage.ALL,
        Coverage.NONE,
        Coverage.NONE,
        Coverage.NONE,
    ]


def test_partitions_are_compared_by_value_and_each_of_them_counts() -> None:
    integer, string = PrimitiveType("integer"), PrimitiveType("string")
    values: list[Mapping[str, str | None]] = [
        {"n": "7", "s": "a"},
        {"n": "07", "s": "b"},
        {"n": "8", "s": "a"},
        {"n": None},
        {},
    ]
    table = files([None] * 5, values)
    seven = {"n": (integer, "7")}
    both: dict[str, tuple[PrimitiveType, str | None]] = {**seven, "s": (string, "a")}
    null: dict[str, tuple[PrimitiveType, str | None]] = {"n": (integer, None)}

    def chosen(*partitions: Mapping[str, tuple[PrimitiveType, str | None]]) -> list[int]:
        return [n for n, part in enumerate(parts_in_scope(table, None, partitions)) if part]

    assert chosen(seven) == [0, 1]
    assert chosen(both) == [0]
    assert chosen(both, {"n": (integer, "8")}) == [0, 2]
    assert chosen(null) == [3, 4]


def chosen(type_: str, wanted: str | None, *logged: str | None) -> list[int]:
    """Which of these files, each of a partition with this text, are of a partition."""
    table = files([None] * len(logged), [{"p": text} for text in logged])
    parts = parts_in_scope(table, None, [{"p": (PrimitiveType(type_), wanted)}])
    return [number for number, part in enumerate(parts) if part]


def test_nan_is_a_partition_like_any_other() -> None:
    """Spark compares the rows of a source so: they replace what is there, and double nothing."""
    for type_ in ("float", "double"):
        assert chosen(type_, "NaN", "NaN", "nan", "1.0", None) == [0, 1]
        assert chosen(type_, "1", "NaN", "1.0", None) == [1]


def test_texts_that_only_python_takes_for_numbers_are_none() -> None:
    for type_ in ("integer", "double", "decimal(4,0)"):
        assert chosen(type_, "10", "1_0", "\u0661\u0660", "10") == [2]


@pytest.mark.parametrize("text", ["1000000-01-01", "+262142-12-31", "-262143-01-01"])
def test_a_day_far_from_now_is_read_from_its_file(text: str) -> None:
    """In microseconds it is more than 64 bits hold, or near to it."""
    scope = TimeScope(IntervalSet([TimeInterval(0, 5)]), ("d",), "date", partition=True)
    assert parts_in_scope(files([None], [{"d": text}]), scope).tolist() == [Coverage.SOME]


def test_a_partition_column_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each partition, 1,000 of them took 23 s of CPU in a table of 100,000 files."""
    read: list[str] = []

    def counted(column: pa.ChunkedArray, physical: str) -> Any:
        read.append(physical)
        return partition_codes(column, physical)

    monkeypatch.setattr(scope, "partition_codes", counted)
    table = files([None] * 20, [{"n": str(number), "s": "a"} for number in range(20)])
    integer, string = PrimitiveType("integer"), PrimitiveType("string")
    wanted = [{"n": (integer, str(number)), "s": (string, "a")} for number in range(0, 20, 2)]
    assert parts_in_scope(table, None, wanted).tolist() == [Coverage.ALL, Coverage.NONE] * 10
    assert read == ["n", "s"]


# Which files cannot hold one of the keys of a merge's source.


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
