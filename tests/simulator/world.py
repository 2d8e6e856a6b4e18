"""A world in one thread: a store in memory, a virtual clock, locks, jobs, and who lives.

Nothing in it depends on real time, real randomness or threads: a seed gives one history.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from simulator import rows
from simulator.catalog import FEATURES, SimulatedCatalog
from simulator.edits import SimulatedEdits
from simulator.held_jobs import HeldJobs
from simulator.jobs import SimulatedJobs
from simulator.merge_log import SimulatedLog
from simulator.small_rounds import SimulatedRounds
from support.lake.memory_store import MemoryStore
from tandem.delta import dv
from tandem.delta.actions import AddFile, CommitInfo, DomainMetadata, Metadata, Protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import commit_path
from tandem.delta.log.snapshot import IN_COMMIT_TIMESTAMPS
from tandem.delta.protocol import writes_deletion_vectors
from tandem.jobs.port import Jobs
from tandem.locks.store import InProcessLocks
from tandem.operations.ports import LocalClaims, Ports, ProcessId
from tandem.operations.session.job_control import FileJobs

LOCATION = "file:///simulated"
START_MS = 1_700_000_000_000


@dataclass
class VirtualClock:
    """Every look takes a millisecond; sleeping takes no time but the clock's."""

    now: int = START_MS

    def now_ms(self) -> int:
        self.now += 1
        return self.now

    def sleep(self, ms: int, _wake: threading.Event) -> None:
        self.now += ms


@dataclass
class SimulatedProcesses:
    """One process per run of an operation; the world says which of them live."""

    current: ProcessId
    living: set[int]

    def me(self) -> ProcessId:
        return self.current

    def alive(self, process: ProcessId) -> bool:
        return process.host == self.current.host and process.pid in self.living


@dataclass
class CountingNonces:
    prefix: str
    count: int = 0

    def nonce(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count:06d}"


class Vectors(StrEnum):
    """Whether the table has deletion vectors: always, never, or others switch them on and off."""

    ON = "on"
    OFF = "off"
    SWITCHED = "switched"


ROW_IDS, MARK = "delta.rowTracking", "rowIdHighWaterMark"
VECTORS_ON = {"delta.enableDeletionVectors": "true"}


@dataclass
class World:
    """`trace` is the readable history, a line per event. `living` are the processes that
    are not taken for dead, `departed` those that ended by themselves."""

    seed: int
    vectors: Vectors = Vectors.ON
    partitioned: bool = False  # by k
    merge_on_read: bool = False
    managed: bool = False  # by a catalog
    rng: random.Random = field(init=False)
    clock: VirtualClock = field(default_factory=VirtualClock)
    store: MemoryStore = field(init=False)
    log: DeltaLog = field(init=False)
    locks: InProcessLocks = field(default_factory=InProcessLocks)
    jobs: SimulatedJobs = field(init=False)
    living: set[int] = field(default_factory=set)
    departed: set[int] = field(default_factory=set)
    trace: list[str] = field(default_factory=list)
    local_claims: LocalClaims = field(default_factory=LocalClaims)
    next_rid: int = 0
    next_pid: int = 1
    next_file: int = 0
    merge_log: SimulatedLog | None = None
    catalog: SimulatedCatalog | None = None
    edits: SimulatedEdits = field(init=False)
    reserved: set[int] = field(default_factory=set)
    """Identities of rows that a merge of ours may yet insert: no upsert makes rows of them."""
    lost_maps: dict[str, bytes] = field(default_factory=dict)
    """Row maps that were removed (b"") or damaged, by path, with what is left of them."""
    holds_jobs: bool = False
    """Whether processes do their jobs themselves."""
    held: dict[int, HeldJobs] = field(default_factory=dict)
    """By process."""
    sessions: Counter[str] = field(default_factory=Counter)
    """How many processes each operation has had."""

    def is_lost(self, map_path: str) -> bool:
        """Whether a row map was removed or damaged, and not written again since."""
        left = self.lost_maps.get(map_path)
        there = self.store.get(map_path) if map_path in self.store.paths() else b""
        return left == there

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.edits = SimulatedEdits(self)
        self.store = self._new_store()
        self._create()
        commits = None
        if self.managed:
            self.catalog = SimulatedCatalog(self, random.Random(self.seed + 3))
            commits = self.catalog.log()
        self.log = DeltaLog(self.store, commits=commits, parallel_reads=1)
        self.jobs = SimulatedJobs(
            self.store, random.Random(self.seed + 1), self.say, edits=self.edits.here
        )
        if self.merge_on_read:
            self.merge_log = SimulatedLog(self, ordered=self.rng.random() < 0.5)

    def _new_store(self) -> MemoryStore:
        if self.vectors is Vectors.ON and not self.merge_on_read:
            return MemoryStore(LOCATION, clock=self.clock.now_ms)
        store = rows.ParquetStore(LOCATION, clock=self.clock.now_ms)
        columns = ("rid", "k", "v") if self.merge_on_read else ("rid", "k", "v", "t")
        store.columns = tuple(n for n in columns if not (self.partitioned and n == "k"))
        return store

    @property
    def file_bytes(self) -> int:
        """About the size of a file."""
        return 2_200 if isinstance(self.store, rows.ParquetStore) else 60

    @property
    def timed(self) -> bool:
        """Whether the table has the column `t`."""
        return not self.merge_on_read

    @property
    def writes_vectors(self) -> bool:
        """Whether a commit may add deletion vectors now."""
        snapshot = self.log.snapshot()
        return writes_deletion_vectors(snapshot.protocol, snapshot.metadata)

    def has_rivals(self, operation_id: str) -> bool:
        """Whether an operation, or the one that it is a batch of, had more than one process."""
        found = self.sessions.get(operation_id) or max(self.sessions.values(), default=0)
        return found > 1

    def say(self, line: str) -> None:
        if not self.trace or self.trace[-1] != line:
            self.trace.append(line)

    def new_rows(self, count: int, *, rng: random.Random | None = None) -> list[rows.Row]:
        rng = rng or self.rng
        first, self.next_rid = self.next_rid, self.next_rid + count
        return [
            rows.Row(rid, rng.randrange(4), rng.randrange(100))
            for rid in range(first, first + count)
        ]

    def new_path(self, partition: rows.PartitionValues) -> str:
        self.next_file += 1
        folder = "".join(f"{column}={value}/" for column, value in partition.items())
        return f"{folder}part-{self.next_file:05d}.parquet"

    def partitions(
        self, found: list[rows.Row]
    ) -> list[tuple[rows.PartitionValues, list[rows.Row]]]:
        """The rows by partition; none for no rows."""
        return rows.by_partition(found, ("k",) if self.partitioned else ())

    def needed(self, add: AddFile) -> list[str]:
        """The objects that a live file consists of: itself, and its vector's file."""
        vector = add.deletion_vector
        in_file = vector is not None and vector.storage != "i"
        return [add.path, dv.file_path(vector)] if vector is not None and in_file else [add.path]

    def with_column(self) -> Metadata:
        """The table's metadata with another nullable column, which no row has."""
        metadata = self.log.snapshot().metadata
        schema = json.loads(metadata.schema_string)
        name = f"c{len(schema['fields'])}"
        schema["fields"].append({"name": name, "type": "long", "nullable": True, "metadata": {}})
        return replace(metadata, schema_string=json.dumps(schema))

    def _jobs_of(self, pid: int) -> Jobs:
        if not self.holds_jobs:
            return FileJobs(self.jobs)
        return self.held.setdefault(pid, HeldJobs(self.jobs, self.jobs.control))

    def lose(self, pid: int) -> None:
        """A process has ended, and with it the jobs that it holds. What they have said is only left
        for the checker: no other process looks where it is."""
        jobs = self.held.pop(pid, None)
        for name in () if jobs is None else jobs.names:
            for driver in self.jobs.drivers[name]:
                self.jobs.die(driver)

    def ports(self) -> Ports:
        """The ports of a new process."""
        pid, self.next_pid = self.next_pid, self.next_pid + 1
        self.living.add(pid)
        return Ports(
            jobs=self._jobs_of(pid),
            locks=self.locks,
            clock=self.clock,
            processes=SimulatedProcesses(ProcessId("here", pid, "0"), self.living),
            nonces=CountingNonces(f"{pid}-"),
            local_claims=self.local_claims,
            small_rounds=lambda: SimulatedRounds(self.jobs),
        )

    def commit(
        self,
        actions: list[Any],
        operation: str,
        engine: str,
        *,
        blind: bool | None = None,
        **parameters: str,
    ) -> int:
        """A foreign commit on the latest version; its version. `blind` as logged, if at all."""
        version = self.log.latest_version() + 1
        info: dict[str, Any] = {
            "timestamp": self.clock.now_ms(),
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": engine,
        }
        if blind is not None:
            info["isBlindAppend"] = blind
        found = [CommitInfo(info), *self._with_row_ids(version, actions)]
        if self.catalog is not None:
            self.catalog.commit(version, found)
        else:
            self.log.put_commit(version, found, token=f"foreign-{version}")
        return version

    def content(self, version: int) -> bytes | None:
        """The commit of a version as readers must find it, None if there is none."""
        if self.catalog is not None:
            return self.catalog.content(version)
        path = commit_path(version)
        return self.store.get(path) if path in self.store.paths() else None

    @property
    def tracked(self) -> bool:
        """Whether the table supports row tracking; of those with features, every other one."""
        return self.vectors is not Vectors.OFF and self.seed % 2 == 0

    def _with_row_ids(self, version: int, actions: list[Any]) -> Iterator[Any]:
        """As Spark assigns them: files that bring their ids with them keep them."""
        before = self.log.snapshot().domains.get(ROW_IDS) if self.tracked else None
        first = mark = -1 if before is None else json.loads(before.configuration)[MARK]
        for action in actions:
            if self.tracked and isinstance(action, AddFile) and "baseRowId" not in action.extra:
                ids = {"baseRowId": mark + 1, "defaultRowCommitVersion": version}
                mark += json.loads(action.stats or "")["numRecords"]
                action = replace(action, extra={**action.extra, **ids})
            yield action
        if mark > first:
            yield DomainMetadata(ROW_IDS, json.dumps({MARK: mark}), removed=False)

    def _create(self) -> None:
        has = self.vectors is not Vectors.OFF
        features = frozenset({"deletionVectors"} if has else set())
        of_writers = features | ({"rowTracking", "domainMetadata"} if self.tracked else set())
        if self.managed:
            features |= FEATURES
            of_writers |= FEATURES | {"inCommitTimestamp"}
        protocol = Protocol(3, 7, features, of_writers) if features else Protocol(1, 2)
        is_on = has and (self.vectors is Vectors.ON or self.rng.random() < 0.5)
        configuration = {
            **(VECTORS_ON if is_on else {}),
            **({IN_COMMIT_TIMESTAMPS: "true"} if self.managed else {}),
        }
        by = ("k",) if self.partitioned else ()
        schema = rows.TIMED_SCHEMA_STRING if self.timed else rows.SCHEMA_STRING
        metadata = Metadata("simulated", schema, by, configuration, created_ms=START_MS)
        time = {"inCommitTimestamp": START_MS} if self.managed else {}
        info = CommitInfo(
            {**time, "timestamp": START_MS, "operation": "CREATE TABLE", "engineInfo": "test"}
        )
        by_location = DeltaLog(self.store, parallel_reads=1)
        by_location.put_commit(0, [info, protocol, metadata], token="create")
