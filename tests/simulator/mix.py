"""The operations of ours that histories are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulator.actor import cut, day, in_batches, operation
from simulator.checker import Checker
from simulator.jobs import INGEST_ROWS
from simulator.merge_log import log_event, some_keys
from simulator.rows import Row
from simulator.statements import DELETES, MERGES, RANDOM, UPDATES, Statement
from simulator.world import World
from tandem.operations import attempt_files
from tandem.spec.common import OPERATIONS
from tandem.spec.resources import Operation, spec_hash
from tandem.timeline.segments import segment_name

COMPACTIONS: Sequence[dict[str, Any]] = (
    {"type": "Minor", "minor": {"thresholds": [2, 2]}},
    {"type": "Minor", "minor": {"thresholds": [3, 2]}},
    {"type": "Major"},
    {"type": "SemiMajor"},
    {"type": "Major", "layout": {"strategy": "Sort", "columns": ["v", "k"]}},
    {"type": "SemiMajor", "layout": {"strategy": "ZOrder", "columns": ["v", "rid"]}},
    {
        "type": "Minor",
        "minor": {"thresholds": [2, 2]},
        "layout": {"strategy": "Sort", "columns": ["v"]},
    },
)
EXCLUSIVE: dict[str, Any] = {
    "lockMode": "Exclusive",
    "exclusive": {"maxYields": 2, "backoff": "100ms"},
}
LOG_COMPACTIONS: Sequence[dict[str, Any]] = (
    {"strategy": "AllBlocks"},
    {"strategy": "AllBlocks", "maxBlockBytes": "1Ki"},
    {"strategy": "SmallRuns", "minBlocks": 2},
)
MANY_MERGES = 12
REWRITES: Sequence[dict[str, Any]] = (
    {"purgeDeleted": True},
    {"recompress": {"codec": "zstd"}},
    {"sortBy": ["v", "rid"]},
)


class Mix:
    """Makes operations, and gives the checker their meaning."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world = world
        self._rng = world.rng
        self._checker = checker
        # Merges follow others only where several commits meet one: some histories have many.
        self._merges = MANY_MERGES if self._rng.random() < 0.25 else 1

    def next(self, number: int) -> Operation:
        updates = [self._update, self._delete, *[self._merge] * self._merges]
        world = self._world
        if world.merge_on_read:
            updates += [self._upsert, self._delete_keys] * 2
        by_kind: Mapping[str, Sequence[Callable[[int], Operation]]] = {
            "LogCompaction": [self._log_compaction] * 3 if world.merge_on_read else [],
            "TableCompaction": [
                *[self._compaction] * 2,
                *[self._log_merge] * (3 if world.merge_on_read else 0),
            ],
            "SegmentRewrite": [self._segment_rewrite],
            "TableIngest": [self._ingest_by_key if world.merge_on_read else self._ingest],
            "TableUpdate": updates,
            "TableReplace": [] if world.merge_on_read else [self._replace],
        }
        assert by_kind.keys() == OPERATIONS.keys(), "a kind that no history has"
        return self._rng.choice([make for makes in by_kind.values() for make in makes])(number)

    def _compaction(self, number: int) -> Operation:
        world, spec = self._world, self._rng.choice(COMPACTIONS)
        if not world.merge_on_read and self._rng.random() < 0.3:
            return cut(f"cut-{number}", self._rng.randrange(4))
        if self._rng.random() < 0.2:
            return self._exclusive("TableCompaction", f"compact-{number}", spec)
        if number % 2 and not world.merge_on_read:
            return in_batches(operation("TableCompaction", f"compact-{number}", spec), world)
        return operation("TableCompaction", f"compact-{number}", spec)

    def _exclusive(self, kind: str, name: str, spec: dict[str, Any]) -> Operation:
        found = operation(kind, name, {**spec, **EXCLUSIVE})
        self._checker.exclusive[operation_id(found)] = EXCLUSIVE["exclusive"]["maxYields"]
        return found

    def _log_merge(self, number: int) -> Operation:
        return operation("TableCompaction", f"log-merge-{number}", {"type": "LogMerge"})

    def _log_compaction(self, number: int) -> Operation:
        return operation("LogCompaction", f"stitch-{number}", self._rng.choice(LOG_COMPACTIONS))

    def _segment_rewrite(self, number: int) -> Operation:
        """Of one or two segments that are there now; by the time that it plans they may not be."""
        names = sorted({segment_name(add) for add in self._world.log.snapshot().adds()}) or ["0"]
        chosen = self._rng.sample(names, min(len(names), self._rng.randint(1, 2)))
        rewrite = self._rng.choice(REWRITES)
        spec = {"segments": chosen, "rewrite": rewrite}
        if self._rng.random() < 0.2:
            return self._exclusive("SegmentRewrite", f"rewrite-{number}", spec)
        return operation("SegmentRewrite", f"rewrite-{number}", spec)

    def _update(self, number: int) -> Operation:
        return self._statement(number, self._rng.choice((*UPDATES, RANDOM)))

    def _delete(self, number: int) -> Operation:
        return self._statement(number, self._rng.choice(DELETES))

    def _statement(self, number: int, statement: Statement) -> Operation:
        what = statement.body(timed=self._world.timed)
        return self._table_update(
            f"{'update' if statement.set_to else 'delete'}-{number}", what, statement
        )

    def _merge(self, number: int) -> Operation:
        """Its source never changes, and says which rows it inserts."""
        merge = self._rng.choice(MERGES).sourced(self._world.new_rows(2))
        self._world.reserved |= {row.rid for row in merge.source}
        location = f"file:///sources/{number}.csv"
        self._world.jobs.merges[location] = merge
        source = {"format": "Csv", "location": location}
        what = {"merge": {"source": source, "on": "t.k = s.k", **merge.clauses}}
        found = self._table_update(f"merge-{number}", what, merge)
        self._checker.merges[operation_id(found)] = merge
        return found

    def _table_update(self, name: str, what: dict[str, Any], statement: Statement) -> Operation:
        serializable = self._rng.random() < 0.2
        isolation = "Serializable" if serializable else "WriteSerializable"
        spec = {**what, "isolation": isolation, "conflict": {"maxAttempts": 20}}
        found = operation("TableUpdate", name, spec)
        self._world.say(f"{found.id}: {statement}, {isolation}")
        if serializable:
            self._checker.serializable.add(operation_id(found))
        return found

    def _ingest(self, number: int) -> Operation:
        location = f"file:///batches/{number}.csv"
        source = {"format": "Csv", "location": location}
        found = operation("TableIngest", f"ingest-{number}", {"source": source})
        batch = self._world.new_rows(INGEST_ROWS)
        self._world.jobs.batches[location] = batch
        self._checker.batches[operation_id(found)] = batch
        return found

    def _replace(self, number: int) -> Operation:
        """Of segments that are there now, of a day, or of everything; with rows or without."""
        names = sorted({segment_name(add) for add in self._world.log.snapshot().adds()})
        spec: dict[str, Any] = {"replace": {"intervals": ["all"]}}
        if names and self._rng.random() < 0.7:
            named = self._rng.sample(names, min(len(names), self._rng.randint(1, 2)))
            spec["replace"] = {"segments": named}
        else:
            named = None
            spec["scope"] = self._rng.choice(("AtStart", "AtCommit"))
        key = self._rng.choice((None, *range(4))) if named is None else None
        if key is not None:
            spec["replace"] = {"intervals": [day(key)]}
        batch: list[Row] = []
        if self._rng.random() < 0.7:
            location = f"file:///replaces/{number}.csv"
            spec["source"] = {"format": "Csv", "location": location}
            batch = self._world.jobs.batches[location] = self._world.new_rows(INGEST_ROWS)
        found = operation("TableReplace", f"replace-{number}", spec)
        self._checker.batches[operation_id(found)] = batch
        if key is not None:
            self._checker.days[operation_id(found)] = key
        if named is not None:
            self._checker.named_segments[operation_id(found)] = frozenset(named)
        return found

    # On a log

    def _upsert(self, number: int) -> Operation:
        source = self._records(number, deletes=False)
        return self._appends("TableUpdate", f"upsert-{number}", {"upsert": {"source": source}})

    def _delete_keys(self, number: int) -> Operation:
        source = self._records(number, deletes=True)
        what = {"deleteKeys": {"source": source}}
        return self._appends("TableUpdate", f"delete-keys-{number}", what)

    def _ingest_by_key(self, number: int) -> Operation:
        source = self._records(number, deletes=False)
        return self._appends("TableIngest", f"ingest-{number}", {"source": source})

    def _records(self, number: int, *, deletes: bool) -> dict[str, str]:
        """A source of records for the log."""
        log = self._world.merge_log
        assert log is not None
        location = f"file:///records/{number}.csv"
        keys = some_keys(self._world)
        events = tuple(log_event(log, key, deletes=deletes) for key in keys)
        self._world.jobs.upserts[location] = events
        return {"format": "Csv", "location": location}

    def _appends(self, kind: str, name: str, what: dict[str, Any]) -> Operation:
        found = operation(kind, name, what)
        spec = what.get("upsert") or what.get("deleteKeys") or what
        self._checker.upserts[operation_id(found)] = self._world.jobs.upserts[
            spec["source"]["location"]
        ]
        return found


def operation_id(resource: Operation) -> str:
    """That of its first run."""
    return attempt_files.operation_id(
        resource.namespace, resource.kind_name, resource.name, spec_hash(resource)
    )
