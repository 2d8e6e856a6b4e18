"""A statement of another engine on a base table with unmerged records, and what the view must be,
row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from mergelog.lake import Merged, date_back, keys, made, table
from tandem.delta.scan import scan


class Effect(Enum):
    """On the records that two appends have left in the log."""

    UNDER = "the statement takes effect, under the log"
    VOID = "the records are void"


@dataclass(frozen=True)
class Restores:
    version: int


View = list[tuple[Any, ...]]


@dataclass
class Stage:
    """A base table of two versions; an append that has seen the first, one that has seen both."""

    path: Path
    merged: Merged
    before: dict[int, View] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path, *, partitioned: bool = False) -> Stage:
        first = table((1, "a", "x"), (2, "b", "x"), (3, "c", "y"))
        merged = made(path, first, partition_by=["p"] if partitioned else [])
        merged.append(table((1, "A", "x")), keys(2))
        date_back(path, 0, minutes=10)
        write_deltalake(str(path), table((4, "d", "y")), mode="append")
        merged.append(table((3, "C", "y"), (5, "E", "x")))
        date_back(path, 1, minutes=5)
        return cls(path, merged, {version: merged.rows(version) for version in (0, 1)})

    def time_of(self, version: int) -> int:
        return self.merged.log.base.snapshot(version).timestamp_ms

    def base_rows(self) -> dict[int, tuple[Any, ...]]:
        snapshot = self.merged.log.base.snapshot()
        found = scan(snapshot, self.merged.store).read_all().to_pylist()
        return {row["k"]: tuple(row.values()) for row in found}

    def expected(self, effect: Effect | Restores) -> View:
        match effect:
            case Restores(version):
                return self.before[version]
            case Effect.VOID:
                rows = self.base_rows()
            case Effect.UNDER:
                upserts = {1: (1, "A", "x"), 3: (3, "C", "y"), 5: (5, "E", "x")}
                rows = self.base_rows() | upserts
                rows.pop(2, None)
        return sorted(rows.values(), key=repr)

    def check(self, statement: Callable[[Stage], object], effect: Effect | Restores) -> None:
        """The view right after the statement, after another append, and of each version."""
        assert (self.before[0], self.before[1]) == (
            [(1, "A", "x"), (3, "c", "y")],
            [(1, "A", "x"), (3, "C", "y"), (4, "d", "y"), (5, "E", "x")],
        )
        version = self.merged.log.base.latest_version()
        statement(self)
        assert self.merged.log.base.latest_version() > version
        expected = self.expected(effect)
        assert self.merged.rows() == expected
        last = self.merged.log.base.latest_version()
        self.merged.append(table((6, "F", "y")))
        assert self.merged.rows() == sorted([*expected, (6, "F", "y")], key=repr)
        assert self.merged.rows(last) == self.merged.rows()
        assert {number: self.merged.rows(number) for number in (0, 1)} == self.before
