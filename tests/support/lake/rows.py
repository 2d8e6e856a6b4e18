"""Rows with an identity, and the slow obvious model of what statements do to them.

`id` identifies a row, so that lost, doubled and resurrected rows are distinguished; `k` is what
statements choose by, `v` what they change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

Row = tuple[int, int, int]
"""(id, k, v)"""

Rows = tuple[Row, ...]
"""A multiset, kept sorted."""

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
Test = Callable[[Row], bool]


def rows(ids: Iterable[int]) -> Rows:
    """New rows: `k` cycles through 0 to 4, `v` starts as a hundred times the id."""
    return tuple(sorted((n, n % 5, n * 100) for n in ids))


def table(of: Rows) -> pa.Table:
    columns = [[row[n] for row in of] for n in range(3)]
    return pa.table(columns, schema=SCHEMA)


def join(*parts: Rows) -> Rows:
    return tuple(sorted(row for part in parts for row in part))


def without(of: Rows, test: Test) -> Rows:
    """After DELETE WHERE test."""
    return tuple(row for row in of if not test(row))


def plus(of: Rows, test: Test, amount: int) -> Rows:
    """After UPDATE SET v = v + amount WHERE test."""
    return tuple(sorted((i, k, v + amount) if test((i, k, v)) else (i, k, v) for i, k, v in of))


def k_is(*values: int) -> Test:
    return lambda row: row[1] in values


def id_in(ids: Iterable[int]) -> Test:
    wanted = frozenset(ids)
    return lambda row: row[0] in wanted
