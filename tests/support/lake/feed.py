"""The change data feed of a table: as `deltalake` reads it, against the difference of versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from support.lake.lake import Lake
from tandem.delta.change_feed import ChangeType
from tandem.delta.scan import scan

FEED = {"delta.enableChangeDataFeed": "true"}

Row = tuple[Any, ...]
Changes = dict[ChangeType, Counter[Row]]


def rows_of(found: pa.Table, names: Sequence[str]) -> list[Row]:
    return list(zip(*(found[name].to_pylist() for name in names), strict=True))


def changes_in(found: pa.Table, names: Sequence[str]) -> Changes:
    """The rows of a feed by type, with these columns."""
    changes: Changes = {change: Counter() for change in ChangeType}
    types = found["_change_type"].to_pylist()
    for type_, row in zip(types, rows_of(found, names), strict=True):
        changes[ChangeType(type_)][row] += 1
    return changes


def changes_of(lake: Lake, version: int) -> Changes:
    """What `deltalake` reads of one version."""
    table = lake.foreign()
    found = table.load_cdf(starting_version=version, ending_version=version)
    return changes_in(pa.table(found.read_all()), lake.log.snapshot().schema.names)


def assert_is_difference(lake: Lake, version: int, changes: Changes) -> None:
    """R-14: the changes lead from the version before to this one, no row of another type than those
    of updates is in both, and both images of an update are of one row (its first column)."""
    names = lake.log.snapshot().schema.names
    before, after = (
        Counter(rows_of(pa.table(scan(lake.log.snapshot(v), lake.store)), names))
        for v in (version - 1, version)
    )
    gone = changes[ChangeType.DELETE] + changes[ChangeType.BEFORE]
    new = changes[ChangeType.INSERT] + changes[ChangeType.AFTER]
    assert not gone - before, f"version {version}: rows that were not there"
    assert before - gone + new == after, f"version {version}"
    both = changes[ChangeType.DELETE] & changes[ChangeType.INSERT]
    assert not both, f"version {version}: rows that did not change"
    keys = [
        sorted(row[0] for row in changes[type_].elements())
        for type_ in (ChangeType.BEFORE, ChangeType.AFTER)
    ]
    assert keys[0] == keys[1], f"version {version}: images"


def assert_feed(lake: Lake) -> list[Changes]:
    """The feed of each version since the scenario began is its difference; returned in order. No
    file is left that no version names."""
    found = []
    for version in range(lake.first_version + 1, lake.version + 1):
        found.append(changes_of(lake, version))
        assert_is_difference(lake, version, found[-1])
    lake.assert_clean()
    return found


def counts(changes: Changes) -> dict[str, int]:
    """How many rows of each type, without those of which there are none."""
    return {type_.value: rows.total() for type_, rows in changes.items() if rows}
