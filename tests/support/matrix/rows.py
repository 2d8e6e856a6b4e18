"""Rows of the W matrix, and the slow obvious model of what statements do to them.

A row is a dict with an `id`, so that lost, doubled and resurrected rows are distinct; `k` is
what statements choose by, `v` what they change, `ts` what replaces choose by. Some actions add
columns.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]
Rows = list[Row]
Model = Callable[[Rows], Rows]
"""What an operation does to the rows of a table."""

Test = Callable[[Row], bool]


COLUMNS = ("id", "k", "v", "ts")
HOURS = 40
"""`ts` is the hour `id % HOURS` of a March."""

_FIRST = dt.datetime(2013, 3, 1, tzinfo=dt.UTC)


def moment(hour: int) -> dt.datetime:
    return _FIRST + dt.timedelta(hours=hour)


def hour(row: Row) -> int:
    """Of its `ts`."""
    return int((row["ts"] - _FIRST) / dt.timedelta(hours=1))


def new(id_: int, k: int, v: int) -> Row:
    return {"id": id_, "k": k, "v": v, "ts": moment(id_ % HOURS)}


SQL_MOMENT = f"timestamp_seconds({int(_FIRST.timestamp())} + 3600 * (id % {HOURS}))"
"""`ts` of an id, for Spark."""


def rows(ids: Iterable[int]) -> Rows:
    """New rows: `k` cycles through 0 to 4, `v` is a hundred times the id."""
    return [new(n, n % 5, n * 100) for n in ids]


def same(of: Rows) -> Rows:
    return of


def appended(more: Rows) -> Model:
    return lambda of: [*of, *more]


def deleted(test: Test) -> Model:
    return lambda of: [row for row in of if not test(row)]


def updated(test: Test, **set_: Callable[[Row], Any]) -> Model:
    def change(row: Row) -> Row:
        return {**row, **{name: value(row) for name, value in set_.items()}} if test(row) else row

    return lambda of: [change(row) for row in of]


def with_column(name: str, value: Any = None) -> Model:
    return lambda of: [{**row, name: row.get(name, value)} for row in of]


def renamed(old: str, new: str) -> Model:
    return lambda of: [{(new if n == old else n): v for n, v in row.items()} for row in of]


def after(*models: Model) -> Model:
    """One after the other."""

    def all_of(of: Rows) -> Rows:
        for model in models:
            of = model(of)
        return of

    return all_of


def id_in(ids: Iterable[int]) -> Test:
    wanted = frozenset(ids)
    return lambda row: row["id"] in wanted


def columns_of(of: Rows) -> list[str]:
    """Of all rows, sorted."""
    return sorted({name for row in of for name in row})


def canonical(of: Rows, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """A multiset in an order: two are equal if they have the same rows."""
    return sorted((tuple(row.get(c) for c in columns) for row in of), key=repr)


def difference(found: Rows, expected: Rows) -> str:
    """ "" if they are the same rows; else a few of what is lost, doubled or changed."""
    columns = columns_of(expected) or ["id"]
    have, want = canonical(found, columns), canonical(expected, columns)
    if have == want:
        return ""
    ids = [row["id"] for row in found]
    wanted = {row["id"] for row in expected}
    return "; ".join(
        f"{what}: {which[:12]}"
        for what, which in (
            ("lost", sorted(wanted - set(ids))),
            ("too many", sorted(set(ids) - wanted)),
            ("doubled", sorted({n for n in ids if ids.count(n) > 1})),
            ("found", [row for row in have if row not in want]),
            ("expected", [row for row in want if row not in have]),
        )
        if which
    )
