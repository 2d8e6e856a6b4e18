"""Real tables with a log: the base is written by `deltalake`, the log by `LogWriter`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from support.lake.faults import ProcessDied
from support.lake.memory_store import Call, FaultHook, MemoryStore
from tandem.delta.actions import Action, Metadata, Protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import commit_info
from tandem.delta.schema import Field, PrimitiveType, StructType, to_delta_json
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import Appended, LogWriter
from tandem.storage import Store, open_store

DELETION_VECTORS = {"delta.enableDeletionVectors": "true"}
COLUMNS = pa.schema([("k", pa.int64()), ("v", pa.string()), ("p", pa.string())])

BASE_SCHEMA = StructType(
    (
        Field("k", PrimitiveType("long")),
        Field("v", PrimitiveType("string")),
        Field("p", PrimitiveType("string")),
    )
)

Row = tuple[int, str | None, str | None]


def table(*rows: Row) -> pa.Table:
    """Rows of the columns k, v and p."""
    return pa.Table.from_pylist([dict(zip("kvp", row, strict=True)) for row in rows], COLUMNS)


def keys(*found: int) -> pa.Table:
    return pa.table({"k": pa.array(found, pa.int64())})


def date_back(path: Path, version: int, minutes: int) -> None:
    """Make a commit of the base table some minutes old, so that versions have different times."""
    file = path / "_delta_log" / f"{version:020}.json"
    moment = file.stat().st_mtime_ns - minutes * 60 * 10**9
    os.utime(file, ns=(moment, moment))


@dataclass
class Merged:
    """A table with a log, and one writer of it that numbers its batches."""

    store: Store
    keys: tuple[str, ...] = ("k",)
    ordering: str = ""
    batches: int = 0
    log: MergeLog = field(init=False)
    writer: LogWriter = field(init=False)

    def __post_init__(self) -> None:
        self.log = MergeLog(DeltaLog(self.store))
        settings = LogSettings(self.keys, self.ordering)
        ensure_log(self.log, settings, now_ms=0, nonce=self.store.location)
        self.writer = self.new_writer("w")

    def new_writer(self, name: str) -> LogWriter:
        return LogWriter(self.log, name, pause=lambda _: None)

    def append(self, rows: Any = None, deletes: Any = None) -> Appended:
        self.batches += 1
        return self.writer.append(rows, deletes, batch=self.batches)

    def open(self, version: int | None = None) -> MergedView:
        return MergedView.open(self.log, version)

    def view(self, version: int | None = None) -> pa.Table:
        return self.open(version).scan().read_all()

    def rows(self, version: int | None = None) -> list[tuple[Any, ...]]:
        found = self.view(version).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)


def made(
    path: Path,
    rows: pa.Table,
    *,
    keys: tuple[str, ...] = ("k",),
    ordering: str = "",
    partition_by: Sequence[str] = (),
) -> Merged:
    """A base table of one commit, with an empty log."""
    write_deltalake(
        str(path),
        rows,
        configuration=DELETION_VECTORS,
        partition_by=list(partition_by) or None,
        mode="error",
    )
    return Merged(open_store(path.as_uri()), keys, ordering)


def in_memory(
    *,
    schema: StructType = BASE_SCHEMA,
    partition_columns: tuple[str, ...] = (),
    configuration: Mapping[str, str] = DELETION_VECTORS,
    features: Collection[str] = ("deletionVectors",),
    fault: FaultHook | None = None,
    clock: Callable[[], int] | None = None,
) -> MemoryStore:
    """A base table without rows, in a store that can fail."""
    store = MemoryStore(fault=fault, clock=clock)
    of_readers = frozenset({"deletionVectors"}.intersection(features))
    actions: list[Action] = [
        commit_info("CREATE TABLE", {}, now_ms=0, previous=None, blind_append=True),
        Protocol(3, 7, of_readers, frozenset(features)),
        Metadata("base", to_delta_json(schema), partition_columns, configuration),
    ]
    DeltaLog(store).put_commit(0, actions, token="made")
    return store


def dies_at(nth: int, when: str) -> FaultHook:
    """A fault by which the process dies at the n-th call, counted from 0, and at all after it.
    `when`: "before" or "after" the call takes effect."""
    calls = itertools.count()

    def kill(call: Call) -> None:
        if call.when == when and next(calls) >= nth:
            raise ProcessDied

    return kill
