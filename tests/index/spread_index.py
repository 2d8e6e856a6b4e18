"""An index server with executors over real Flight, in the threads of this process or in processes
of their own, and a table whose files only their footers tell apart."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.waiting import await_that
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_action
from tandem.index import Query, TableIndex, open_index
from tandem.index.facts.cache import FactsCache
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import RemoteIndex
from tandem.index.server.coordinator import Coordinator
from tandem.index.server.executor import ExecutorService, MakeFacts
from tandem.index.server.messages import CacheAnswer, HeldShard
from tandem.index.server.registration import (
    RegistryService,
    SlotSettings,
    TlsFolder,
    new_key,
    run_executor,
)
from tandem.index.server.service import IndexService
from tandem.index.server.shards import Executor
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store
from tandem.timeline.segments import TAG_SEGMENT, TAG_SEQUENCE

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string())])
ROWS, GROUP = 500, 100
PATIENCE_S = 120.0
BEAT_S = 0.1

eager = partial(FactsCache, worth_bytes=0)
"""Facts of small files, too."""


def until(true: Callable[[], Any], what: str) -> None:
    """Wait for a condition."""
    await_that(lambda: bool(true()), lambda: what, limit_s=PATIENCE_S)


class Lake:
    """Files of five row groups, of whose values the log says nothing.

    Args:
        files: of each segment.
    """

    def __init__(self, folder: Path, files: Sequence[int], *, counted: bool = True) -> None:
        self.lake: QuickLake = quick_lake.make(folder, 0, schema=SCHEMA)
        self.location = self.lake.location
        self.next = 0
        self.counted = counted
        for number, count in enumerate(files):
            self.add(str(number), count)

    def add(self, segment: str, count: int) -> None:
        """A commit of a new segment."""
        tags = {TAG_SEGMENT: segment, TAG_SEQUENCE: segment}
        adds = []
        for _ in range(count):
            path = self.lake.path / f"{segment}-{self.next}.parquet"
            ids = np.arange(self.next * ROWS, (self.next + 1) * ROWS)
            table = pa.table([ids, [f"k{each}" for each in ids]], schema=SCHEMA)
            pq.write_table(table, path, row_group_size=GROUP)
            stats = f'{{"numRecords":{ROWS}}}' if self.counted else None
            adds.append(AddFile(path.name, {}, path.stat().st_size, 1, True, stats, tags))
            self.next += 1
        self.lake.log_raw(*(encode_action(add) for add in adds))

    def expected(self, where: str) -> int:
        return open_index(self.location, row_groups=False).count(Query(where))


class Spread:
    """A server with executors.

    Args:
        tables: locations by name.
        local: one executor in the server's process.
    """

    def __init__(
        self,
        tables: Mapping[str, str],
        *,
        local: bool = False,
        limit_bytes: int | None = None,
        shard_size: int = 1,
        facts: MakeFacts = eager,
        deadline_s: float = 60.0,
        budget_s: float = 30.0,
        left_out_s: float = 0.5,
        tls: TlsFolder | None = None,
        pre_prime: bool = True,
    ) -> None:
        self.tables = tables
        self.key = new_key()
        stores = {name: partial(open_store, location) for name, location in tables.items()}
        here = ExecutorService(stores, limit_bytes=limit_bytes, facts=facts) if local else None
        self.coordinator = Coordinator(
            local=here,
            shard_size=shard_size,
            deadline_s=deadline_s,
            budget_s=budget_s,
            left_out_s=left_out_s,
            pre_prime=pre_prime,
        )
        self.registry = FlightServer(
            RegistryService(self.coordinator.registry, self.key, tls=tls),
            "127.0.0.1",
            0,
            token=self.key,
            tls=None if tls is None else tls.server,
        )
        openers: dict[str, Callable[[], TableIndex]] = {
            name: partial(open_index, location) for name, location in tables.items()
        }
        self.service = IndexService(openers, AnswerFiles(None), coordinator=self.coordinator)
        self.server = FlightServer(self.service, "127.0.0.1", 0)
        scheme = "grpc" if tls is None else "grpc+tls"
        endpoint = f"{scheme}://127.0.0.1:{self.registry.port}"
        self.settings = SlotSettings(endpoint, self.key, stores, limit_bytes, facts, tls)
        self.threads: dict[int, tuple[threading.Thread, threading.Event]] = {}
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *slots: int) -> None:
        """Executors in threads; returns when they have joined."""
        for slot in slots:
            stop = threading.Event()
            thread = threading.Thread(
                target=run_executor, args=(self.settings, slot, stop), kwargs={"beat_s": BEAT_S}
            )
            thread.start()
            self.threads[slot] = thread, stop
        self.wait_for(*slots)

    def start_processes(self, folder: Path, *slots: int) -> None:
        """Executors in processes of their own; returns when they have joined."""
        for slot in slots:
            path = folder / f"{slot}.settings"
            path.write_bytes(pickle.dumps((self.settings, slot, BEAT_S)))
            self.processes[slot] = subprocess.Popen(
                [sys.executable, "-m", "index.executor_process", str(path)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self.wait_for(*slots)

    def wait_for(self, *slots: int) -> None:
        until(lambda: set(slots) <= self.live, f"executors {slots} do not join")

    def stop(self, slot: int) -> None:
        thread, stop = self.threads.pop(slot)
        stop.set()
        thread.join()

    @property
    def live(self) -> set[int]:
        return {executor.slot for executor in self.coordinator.registry.live}

    @property
    def owners(self) -> dict[str, int]:
        """Slot by key of its shards."""
        now = dict(self.coordinator.registry.mapping.owners)
        return {shard.key: executor.slot for shard, executor in now.items()}

    def executor(self, slot: int) -> Executor:
        return next(each for each in self.coordinator.registry.live if each.slot == slot)

    def index(self, name: str = "lake", *, timeout_s: float = PATIENCE_S) -> RemoteIndex:
        connection = Connection(f"grpc://127.0.0.1:{self.server.port}", timeout_s=timeout_s)
        return RemoteIndex(connection, name, open_store(self.tables[name]))

    def files(self, where: str = "id = 7", name: str = "lake", **more: Any) -> int:
        """Files that a condition needs: one if they are narrowed, all if they are not."""
        return len(self.index(name).splits(Query(where, **more)))

    def shown(self) -> dict[str, HeldShard]:
        """What executors hold, by key."""
        answer = self.service.ask("ShowCache", b"{}").message
        assert isinstance(answer, CacheAnswer)
        return {shard.shard: shard for each in answer.executors for shard in each.shards}

    def wait_for_sizes(self) -> None:
        """Wait until the coordinator knows what every shard needs."""

        def known() -> bool:
            now = self.coordinator.registry.mapping
            sizes = {shard.key: now.sizes[shard] for shard in now.reported.copy()}
            return sizes == {key: each.bytes for key, each in self.shown().items()}

        until(known, "sizes are not reported")

    def close(self) -> None:
        for slot in list(self.threads):
            self.stop(slot)
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.server.shutdown()
        self.registry.shutdown()
        self.coordinator.close()


@contextmanager
def spread(tables: Mapping[str, str], executors: int = 0, **options: Any) -> Iterator[Spread]:
    found = Spread(tables, **options)
    try:
        found.start(*range(executors))
        yield found
    finally:
        found.close()
