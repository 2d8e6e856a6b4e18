"""The statements that histories use, each as SQL and as what it means in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.rows import Row


@dataclass(frozen=True)
class Statement:
    """`new` None deletes; else it gives the new value of `column`."""

    where: str
    matches: Callable[[Row], bool]
    set_to: str = ""
    new: Callable[[Row], int] | None = None
    column: str = "v"

    def apply(self, row: Row) -> Row | None:
        """What becomes of a row."""
        if not self.matches(row):
            return row
        return None if self.new is None else row._replace(**{self.column: self.new(row)})

    def effect(self, before: dict[int, Row]) -> dict[int, Row]:
        """What becomes of all rows."""
        after = {rid: self.apply(row) for rid, row in before.items()}
        return {rid: row for rid, row in after.items() if row is not None}

    def body(self, *, timed: bool) -> dict[str, Any]:
        """As a resource says it. `timed`: the table has the time of each row, which follows from
        its `k`."""
        if not self.set_to:
            return {"delete": {"where": self.where}}
        moves = {"t": "t + INTERVAL 1 DAY"} if timed and self.column == "k" else {}
        return {"update": {"where": self.where, "set": {self.column: self.set_to, **moves}}}

    @property
    def operation(self) -> str:
        """Delta's name for it."""
        return "UPDATE" if self.set_to else "DELETE"

    def __str__(self) -> str:
        verb = f"UPDATE {self.column} = {self.set_to}" if self.set_to else "DELETE"
        return f"{verb} WHERE {self.where}"


UPDATES = (
    Statement("k = 1", lambda r: r.k == 1, "v + 15", lambda r: r.v + 15),
    # Rows that it changes may match it again (C2c): doing it twice shows.
    Statement("v < 40", lambda r: r.v < 40, "v + 7", lambda r: r.v + 7),
    Statement("k >= 2", lambda r: r.k >= 2, "k + 1", lambda r: r.k + 1),
    Statement("k = 9", lambda r: r.k == 9, "0", lambda _: 0),  # matches nothing
    # Moves rows to other partitions, where the table has some.
    Statement("v > 50", lambda r: r.v > 50, "k + 1", lambda r: r.k + 1, "k"),
)

DELETES = (
    Statement("k = 2", lambda r: r.k == 2),
    Statement("v > 60", lambda r: r.v > 60),
    Statement("k = 9", lambda r: r.k == 9),
    Statement("v >= 0", lambda r: r.v >= 0),  # everything
)

RANDOM = Statement("v < 50", lambda r: r.v < 50, "CAST(rand() * 100 AS BIGINT)")
"""What it makes of a row is known from what an execution drew (`drawing`)."""


def drawing(statement: Statement, drawn: Mapping[int, int]) -> Statement:
    """The statement as one execution saw it: the value of each row that it met, by identity.
    What it would have made of other rows is unknown."""
    return replace(statement, new=lambda row: drawn.get(row.rid, -1_000_000))


@dataclass(frozen=True)
class Merge(Statement):
    """`ON t.k = s.k`: a target row is matched if its k is one of the source's.

    `matches` says which rows are acted on, matched or not; `source` rows whose k no target row
    has are inserted, if it `inserts`. `clauses` say the same as a resource does, in texts over
    t and s.
    """

    name: str = ""
    keys: tuple[int, ...] = ()
    clauses: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    source: tuple[Row, ...] = ()
    inserts: bool = True

    def sourced(self, found: list[Row]) -> Merge:
        """With these rows as source, one for each key."""
        source = tuple(row._replace(k=k) for row, k in zip(found, self.keys, strict=True))
        return replace(self, source=source)

    def missing(self, rows: Iterable[Row]) -> list[Row]:
        """What it inserts into these."""
        return self.missing_but({row.k for row in rows})

    def missing_but(self, known: set[int]) -> list[Row]:
        """What it inserts where these keys match some row."""
        return [row for row in self.source if row.k not in known] if self.inserts else []

    def apply(self, row: Row) -> Row | None:
        if not self.matches(row):
            return row
        return None if self.new is None or row.v % 5 == 0 else row._replace(v=self.new(row))

    def effect(self, before: dict[int, Row]) -> dict[int, Row]:
        after = super().effect(before)
        return after | {row.rid: row for row in self.missing(before.values())}

    @property
    def operation(self) -> str:
        return "MERGE"

    def __str__(self) -> str:
        return f"MERGE {self.name} of {[tuple(row) for row in self.source]}"


INSERT: Mapping[str, object] = {"insertAll": {}}

# Keys 4 and 5 are those of few rows or none: most of the time they are inserted.
MERGES = (
    Merge(
        "",
        lambda r: r.k in (1, 4),
        "t.v + 2",
        lambda r: r.v + 2,
        name="upsert",
        keys=(1, 4),
        clauses={
            "whenMatched": [
                {"where": "t.v % 5 = 0", "delete": {}},
                {"update": {"set": {"v": "t.v + 2"}}},
            ],
            "whenNotMatched": [INSERT],
        },
    ),
    Merge(
        "",
        lambda r: r.k in (0, 5),
        name="delete or insert",
        keys=(0, 5),
        clauses={"whenMatched": [{"delete": {}}], "whenNotMatched": [INSERT]},
    ),
    Merge(
        "",
        lambda _: False,
        name="insert only",
        keys=(3, 5),
        clauses={"whenNotMatched": [INSERT]},
    ),
    Merge(
        "",
        lambda r: r.k not in (1, 2) and r.v < 30,
        name="by source",
        keys=(1, 2),
        clauses={
            "whenNotMatched": [INSERT],
            "whenNotMatchedBySource": [{"where": "t.v < 30", "delete": {}}],
        },
    ),
    Merge(
        "",
        lambda r: r.k in (0, 2),
        "t.v + 3",
        lambda r: r.v + 3,
        name="without inserts",
        keys=(0, 2),
        clauses={
            "whenMatched": [
                {"where": "t.v % 5 = 0", "delete": {}},
                {"update": {"set": {"v": "t.v + 3"}}},
            ],
        },
        inserts=False,
    ),
)
