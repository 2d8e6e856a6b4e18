"""What the writers of a storm append, and the rows that must be there: a replay of the batches in
the order of their instants. Shares no code with `tandem.mergelog`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tandem.storage import Store

OWNED = 10_000_000
"""The keys from its number times this belong to a writer."""
SHARED = 5
"""So many keys are written by all of them."""
ROWS = 3
OLD = 3
"""A batch deletes a row of the batch so many before it."""

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.int64()), ("value", pa.string())])
BASE = [(-1_000 - number, 0, "base") for number in range(4)]

Row = tuple[int, int, str]


@dataclass(frozen=True)
class Batch:
    """The n-th batch of a writer: always the same rows and deletes."""

    writer: int
    number: int

    @property
    def at(self) -> int:
        """The value of the ordering column: also lesser ones than before."""
        return (self.writer * 31 + self.number * 17) % 101

    @property
    def rows(self) -> list[Row]:
        """Rows of its own, one that each batch of the writer replaces, and one that all write."""
        name = f"{self.writer}/{self.number}"
        return [
            *((self._own(self.number, n), self.at, f"{name}/{n}") for n in range(ROWS)),
            (-1 - self.writer, self.at, name),
            (-100 - (self.number * 7 + self.writer) % SHARED, self.at, name),
        ]

    @property
    def deletes(self) -> list[tuple[int, int]]:
        """Greater than each row."""
        return [(self._own(self.number - OLD, 0), 1_000)] if self.number >= OLD else []

    def _own(self, batch: int, row: int) -> int:
        return self.writer * OWNED + batch * 10 + row

    def tables(self, ordering: str) -> tuple[pa.Table, pa.Table | None]:
        """Upserts and deletes, as `LogWriter.append` takes them."""
        columns = [*zip(*self.rows, strict=True)]
        upserts = pa.table([pa.array(c) for c in columns], schema=SCHEMA)
        if not self.deletes:
            return upserts, None
        keys = ["id", ordering] if ordering else ["id"]
        found = pa.table([pa.array(c, pa.int64()) for c in zip(*self.deletes, strict=True)],
                         names=["id", "at"])  # fmt: skip
        return upserts, found.select(keys)


def name_of(writer: int) -> str:
    return f"writer-{writer}"


@dataclass(frozen=True)
class Instant:
    """A version of the log, and the base version that it names."""

    version: int
    base: int
    batch: Batch


def instants(log: Store) -> list[Instant]:
    """All batches that the log's commits name, in order."""
    found, base = [], -1
    for commit in sorted(log.list("_delta_log/"), key=lambda each: each.path):
        if not commit.path.endswith(".json"):
            continue
        version = int(commit.path.rpartition("/")[2].removesuffix(".json"))
        lines = [json.loads(line) for line in log.get(commit.path).splitlines() if line.strip()]
        txns = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
        base = txns.get("tandem.log.base", base)
        found += [
            Instant(version, base, Batch(int(app.rpartition("-")[2]), number))
            for app, number in txns.items()
            if app.startswith("tandem.writer:writer-")
        ]
    return found


def view(batches: Iterable[Batch], *, ordered: bool) -> list[Row]:
    """The rows after these batches, in order."""
    rows: dict[int, tuple[int, str | None]] = {key: (at, value) for key, at, value in BASE}
    for batch in batches:
        events: Sequence[tuple[int, int, str | None]] = [
            *batch.rows,
            *((key, at, None) for key, at in batch.deletes),
        ]
        for key, at, value in events:
            if not ordered or key not in rows or rows[key][0] <= at:
                rows[key] = at, value
    return sorted((key, at, value) for key, (at, value) in rows.items() if value is not None)
