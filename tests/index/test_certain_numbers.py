"""What is called certain is: counts and bounds of random files, whose rows the test knows."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.some import few
from tandem.delta.actions import AddFile, DeletionVector, Metadata, Protocol
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.index.answers import CertainBounds, certain_bounds, certain_count, splits
from tandem.index.window import View, Window
from tandem.statements import parse_where

TYPES = {"i": "long", "s": "string", "f": "double", "d": "date", "t": "timestamp", "p": "string"}
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in TYPES.items()
        ],
    }
)
Row = dict[str, Any]

DAY = dt.date(2026, 1, 1)
MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
VALUES: dict[str, list[Any]] = {
    "i": [None, -(2**63), -1, 0, 1, 2, 3, 2**63 - 1],
    "s": [None, "", "a", "abcdefgh", "abcdefghi", "abcdefgh\0", "b", "é", "z" * 31, "z" * 40],
    "f": [None, math.nan, -math.inf, -1.5, 0.0, 1.5, math.inf],
    "d": [None, DAY, DAY + dt.timedelta(1), DAY + dt.timedelta(400)],
    "t": [None, MOMENT, MOMENT + dt.timedelta(microseconds=7), MOMENT + dt.timedelta(days=1)],
}
PARTITIONS = [None, "x", "y", "z" * 40]

Truth = Callable[[Row], bool]


def compares(name: str, test: Callable[[Any], bool]) -> Truth:
    return lambda row: row[name] is not None and test(row[name])


def floats(test: Callable[[float], bool], of_nan: bool) -> Truth:
    """NaN is greater than every other value."""
    return compares("f", lambda value: of_nan if math.isnan(value) else test(value))


CONDITIONS: dict[str, Truth] = {
    "i < 2": compares("i", lambda v: v < 2),
    "i >= -1": compares("i", lambda v: v >= -1),
    "i != 3": compares("i", lambda v: v != 3),
    "i IS NULL": lambda row: row["i"] is None,
    "i IS NOT NULL": lambda row: row["i"] is not None,
    "i <=> NULL": lambda row: row["i"] is None,
    "s >= 'abcdefgh'": compares("s", lambda v: v >= "abcdefgh"),
    "s < 'abcdefghi'": compares("s", lambda v: v < "abcdefghi"),
    "s LIKE 'abcdefgh%'": compares("s", lambda v: v.startswith("abcdefgh")),
    "s LIKE 'a%'": compares("s", lambda v: v.startswith("a")),
    "f > 0": floats(lambda v: v > 0, True),
    "f <= 0": floats(lambda v: v <= 0, False),
    "f < 100": floats(lambda v: v < 100, False),
    "d >= DATE '2026-01-02'": compares("d", lambda v: v >= DAY + dt.timedelta(1)),
    "t > TIMESTAMP '2026-01-01 00:00:00'": compares("t", lambda v: v > MOMENT),
    "t >= TIMESTAMP '2026-01-01 00:00:00'": compares("t", lambda v: v >= MOMENT),
    "p = 'x'": compares("p", lambda v: v == "x"),
    "p IS NULL": lambda row: row["p"] is None,
    "p != 'x' OR i = 0": lambda row: (
        (row["p"] is not None and row["p"] != "x") or row["i"] == 0
    ),
    "p = 'x' AND i < 2": lambda row: row["p"] == "x" and row["i"] is not None and row["i"] < 2,
    "NOT (i < 2)": compares("i", lambda v: v >= 2),
    "TRUE": lambda _: True,
    "FALSE": lambda _: False,
}  # fmt: skip


@dataclass(frozen=True)
class DataFile:
    """The rows of a file, which of them are deleted, and its `add`."""

    rows: list[Row]
    deleted: frozenset[int]
    add: AddFile

    @property
    def live(self) -> list[Row]:
        return [row for at, row in enumerate(self.rows) if at not in self.deleted]


def logged(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        # Cut to milliseconds, as Spark does.
        whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
        return whole.strftime("%Y-%m-%dT%H:%M:%S.") + f"{whole.microsecond // 1000:03d}Z"
    return value.isoformat() if isinstance(value, dt.date) else value


def statistics(rows: list[Row], names: list[str], *, counted: bool, tight: bool) -> str | None:
    body: dict[str, Any] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    if counted:
        body["numRecords"] = len(rows)
    if not tight:
        body["tightBounds"] = False
    for name in names:
        values = [row[name] for row in rows if row[name] is not None]
        finite = [v for v in values if not isinstance(v, float) or math.isfinite(v)]
        if finite and (name != "f" or len(finite) == len([v for v in values if v == v])):
            least, most = min(finite), max(finite)
            if name == "s":
                least, most = least[:32], most[:32]  # not raised, as some writers cut
            body["minValues"][name], body["maxValues"][name] = logged(least), logged(most)
        body["nullCount"][name] = sum(row[name] is None for row in rows)
    return json.dumps(body)


@st.composite
def data_file(draw: st.DrawFn) -> DataFile:
    partition = draw(st.sampled_from(PARTITIONS))
    row = st.fixed_dictionaries({n: st.sampled_from(v) for n, v in VALUES.items()})
    rows = [{**each, "p": partition} for each in draw(st.lists(row, max_size=4))]
    places = st.sets(st.integers(0, max(len(rows) - 1, 0)), max_size=len(rows))
    deleted = frozenset(draw(places))
    deleted = deleted if draw(st.booleans()) else frozenset()
    names = [name for name in VALUES if draw(st.integers(0, 4))]
    counted = bool(draw(st.integers(0, 5)))
    wide = not draw(st.integers(0, 3))  # some writers leave it out, whatever was deleted
    stats = statistics(rows, names, counted=counted, tight=not wide)
    vector = DeletionVector("i", "x", 1, len(deleted)) if deleted else None
    number = draw(st.integers(0, 10**9))
    add = AddFile(f"{number}", {"p": partition}, 1, 0, True, stats, deletion_vector=vector)
    return DataFile(rows, deleted, add)


FILES = st.lists(data_file(), max_size=8, unique_by=lambda file: file.add.logged_path)


def view_of(files: list[DataFile]) -> View:
    metadata = Metadata("t", SCHEMA, ("p",), {})
    protocol = Protocol(3, 7, frozenset({"deletionVectors"}), frozenset({"deletionVectors"}))
    adds = files_.from_adds([file.add for file in files])
    return Window(Snapshot("t", 0, 0, metadata, protocol, {}, {}, adds)).view()


def by_path(files: list[DataFile]) -> dict[str, list[Row]]:
    return {file.add.logged_path: file.live for file in files}


@settings(deadline=None, max_examples=few(50, 3_000))
@given(FILES, st.sampled_from(list(CONDITIONS)))
def test_Xd_certain_rows_and_those_of_the_rest_are_all(files: list[DataFile], text: str) -> None:
    holds, view = CONDITIONS[text], view_of(files)
    where = parse_where(text, SCHEMA)
    rows = by_path(files)

    found = certain_count(view, where)

    rest = [row for path in found.rest.files["path"].to_pylist() for row in rows[path]]
    expected = sum(holds(row) for file in files for row in file.live)
    assert found.rows + sum(map(holds, rest)) == expected
    chosen = splits(view, where)
    for path, certain in zip(chosen.files["path"].to_pylist(), chosen.certain, strict=True):
        assert not certain or all(map(holds, rows[path])), path
    left_out = rows.keys() - set(chosen.files["path"].to_pylist())
    assert not any(holds(row) for path in left_out for row in rows[path])


@settings(deadline=None, max_examples=few(50, 3_000))
@given(FILES, st.sampled_from(["", *CONDITIONS]), st.sampled_from(list(TYPES)))
def test_Xd_bounds_are_those_of_the_rows(files: list[DataFile], text: str, column: str) -> None:
    holds = CONDITIONS[text or "TRUE"]
    view, rows = view_of(files), by_path(files)
    where = parse_where(text, SCHEMA) if text else None

    (found,) = certain_bounds(view, [column], where)

    values = [row[column] for file in files for row in file.live if holds(row)]
    for least in (True, False):
        assert key(finished(found, rows, holds, column, least)) == key(best(values, least)), least


def finished(
    found: CertainBounds, rows: dict[str, list[Row]], holds: Truth, column: str, least: bool
) -> Any:
    """As `rows.bounds` does it: file by file, until none can beat what was found."""
    value = found.low if least else found.high
    limits = found.lows if least else found.highs
    paths = (found.below if least else found.above).files["path"].to_pylist()
    for path, limit in zip(paths, limits, strict=True):
        beaten = limit is not None and value is not None and best([value, limit], least) == value
        if beaten:
            break
        value = best([value, *(row[column] for row in rows[path] if holds(row))], least)
    return value


def best(values: list[Any], least: bool) -> Any:
    """NaN is the greatest value; NULL is none."""
    present = [value for value in values if value is not None]
    numbers = [value for value in present if value == value]
    if least:
        return min(numbers, default=present[0] if present else None)
    return math.nan if len(numbers) < len(present) else max(present, default=None)


def key(value: Any) -> Any:
    return "NaN" if value != value else value


def test_the_bound_of_a_deleted_row_is_not_certain() -> None:
    """Also if a writer calls it tight, as Delta's protocol does not allow."""
    empty: Row = dict.fromkeys(TYPES)
    rows = [{**empty, "i": number} for number in (1, 2, 3)]
    vector = DeletionVector("i", "x", 1, 1)
    stats = statistics(rows, ["i"], counted=True, tight=True)
    add = AddFile("a", {"p": None}, 1, 0, True, stats, deletion_vector=vector)
    (found,) = certain_bounds(view_of([DataFile(rows, frozenset({0}), add)]), ["i"])
    assert (found.low, found.high) == (None, None)
    assert (list(found.lows), list(found.highs)) == ([1], [3])


def test_Xd_a_greatest_float_may_be_a_nan_that_statistics_leave_out() -> None:
    empty: Row = dict.fromkeys(TYPES)
    files = []
    for name, values in (("a", [1.5, math.nan]), ("b", [3.5])):
        rows = [{**empty, "f": value} for value in values]
        stats = json.dumps({"numRecords": len(rows), "maxValues": {"f": max(values)}})
        add = AddFile(name, {"p": None}, 1, 0, True, stats)
        files.append(DataFile(rows, frozenset(), add))
    (found,) = certain_bounds(view_of(files), ["f"])
    assert found.high is None
    assert math.isnan(finished(found, by_path(files), CONDITIONS["TRUE"], "f", least=False))


def test_the_partition_value_of_a_file_that_may_be_empty_is_not_certain() -> None:
    add = AddFile("a", {"p": "x"}, 1, 0, True, None)
    (found,) = certain_bounds(view_of([DataFile([], frozenset(), add)]), ["p"])
    assert (found.low, found.high) == (None, None)
    assert list(found.lows) == ["x"]


def test_numbers_of_rows_are_added_up_beyond_64_bits() -> None:
    most = 10**18 - 1
    adds = [AddFile(str(n), {}, 1, 0, True, json.dumps({"numRecords": most})) for n in range(12)]
    view = view_of([DataFile([], frozenset(), add) for add in adds])
    assert certain_count(view).rows == view.total == 12 * most
    assert certain_count(view, parse_where("TRUE", SCHEMA)).rows == 12 * most
