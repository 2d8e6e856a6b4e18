"""Sixteen processes append to one log and are killed at random moments, while this process stitches
and merges it in two threads. Jobs are not Spark's here, so that it costs little.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mergelog.storm.batches import BASE, SCHEMA, Batch, Instant, Row, instants, view
from mergelog.storm.writers import Message, WriterProcesses
from support.documents import document
from support.jobs.quick_jobs import QuickJobs
from support.lake.s3 import S3Server
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.spec.compaction import TableCompaction
from tandem.spec.log_compaction import LogCompaction
from tandem.spec.status import OperationStatus, Phase
from tandem.storage import open_store

WRITERS = 16
KILLED = -9
REST_S = 0.05
"""Between two operations of one kind."""
LIMIT_S = 120.0

MERGE: Mapping[str, Any] = {"type": "LogMerge"}
STITCHES: tuple[Mapping[str, Any], ...] = (
    {"strategy": "SmallRuns", "minBlocks": 3},
    {"strategy": "AllBlocks"},
    {"strategy": "AllBlocks", "maxBlockBytes": "8Ki"},
)


@dataclass(frozen=True)
class Enough:
    """When the storm is over: after so many seconds, and not before so much has happened. Writers
    rest for up to `rest_s` between two appends."""

    appends: int
    kills: int
    merges: int = 1
    compactions: int = 1
    seconds: float = 0.0
    rest_s: float = 0.0


@dataclass
class Storm:
    """A table, and what became of the batches and operations on it."""

    location: str
    ordering: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    acknowledged: dict[Batch, int | None] = field(default_factory=dict)
    began: dict[int, int] = field(default_factory=dict)
    restarted: Counter[int] = field(default_factory=Counter)
    repeated: list[Batch] = field(default_factory=list)
    wrong: list[Message] = field(default_factory=list)
    merges: list[OperationStatus] = field(default_factory=list)
    compactions: list[OperationStatus] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    took: float = 0.0

    def __post_init__(self) -> None:
        self.store = open_store(self.location, self.options)
        self.log = mergelog.MergeLog(DeltaLog(self.store))

    def make(self, storage_options: Mapping[str, str] | None = None) -> None:
        """The table, and its log. `storage_options` are those of `deltalake`."""
        write_deltalake(
            self.location,
            pa.table([pa.array(c) for c in zip(*BASE, strict=True)], schema=SCHEMA),
            configuration={"delta.enableDeletionVectors": "true"},
            storage_options=dict(storage_options or {}),
        )
        settings = mergelog.LogSettings(("id",), self.ordering)
        mergelog.ensure_log(self.log, settings, now_ms=0, nonce="storm")

    # What happens

    def run(self, enough: Enough, seed: int) -> None:
        stop = threading.Event()
        loops = [
            threading.Thread(target=self._repeat, args=(self._merge, self.merges, stop)),
            threading.Thread(target=self._repeat, args=(self._stitch, self.compactions, stop)),
        ]
        writers = WriterProcesses(self.location, self.options, enough.rest_s)
        began = time.monotonic()
        try:
            for number in range(WRITERS):
                writers.start(number, 0)
            for loop in loops:
                loop.start()
            self._storm(writers, enough, random.Random(seed))
            writers.stop()
            while writers.running:
                self._receive(writers)
            self.took = time.monotonic() - began
        finally:
            stop.set()
            writers.close()
            for loop in loops:
                if loop.ident is not None:
                    loop.join(LIMIT_S)

    def _storm(self, writers: WriterProcesses, enough: Enough, chance: random.Random) -> None:
        """Kill a writer each time that so many lines, a random number, have been heard."""
        end = time.monotonic() + enough.seconds
        until = chance.randrange(WRITERS, 3 * WRITERS)
        while time.monotonic() < end or not self._happened(enough):
            assert time.monotonic() < end + LIMIT_S, "the storm never ends"
            if self.wrong or self.errors:
                return
            heard = self._receive(writers)
            if heard.get("ended") == KILLED:
                number = heard["writer"]
                self.restarted[number] += 1
                # The last batch that was acknowledged, and the one that may have been committed.
                writers.start(number, max(0, self.began.get(number, 0) - 1))
            until -= 1
            if until <= 0 and self.restarted.total() < 2 * enough.kills and writers.living:
                until = chance.randrange(1, 10)
                begun = [number for number in writers.living if self.began.get(number)]
                writers.kill(chance.choice(sorted(begun or writers.living)))

    def _happened(self, enough: Enough) -> bool:
        return (
            len(self.acknowledged) >= enough.appends
            and self.restarted.total() >= enough.kills
            and len(committed(self.merges)) >= enough.merges
            and len(committed(self.compactions)) >= enough.compactions
        )

    def _receive(self, writers: WriterProcesses) -> Message:
        message = writers.heard()
        if "begins" in message:
            self.began[message["writer"]] = message["begins"]
        elif "batch" in message:
            batch = Batch(message["writer"], message["batch"])
            before = self.acknowledged.setdefault(batch, message["instant"])
            if before != message["instant"]:
                self.wrong.append(message)
            if message["repeated"]:
                self.repeated.append(batch)
        elif message.get("ended", 0) not in (0, KILLED):
            self.wrong.append(message)
        return message

    def _repeat(
        self,
        once: Callable[[int], OperationStatus],
        ends: list[OperationStatus],
        stop: threading.Event,
    ) -> None:
        try:
            while not stop.wait(REST_S):
                ends.append(once(len(ends)))
        except BaseException as error:  # noqa: BLE001 - seen by `check`
            self.errors.append(error)

    def _merge(self, number: int) -> OperationStatus:
        return self.operate(TableCompaction, f"merge-{number}", MERGE)

    def _stitch(self, number: int) -> OperationStatus:
        return self.operate(LogCompaction, f"stitch-{number}", STITCHES[number % len(STITCHES)])

    def operate(
        self,
        model: type[TableCompaction | LogCompaction],
        name: str,
        spec: Mapping[str, Any],
    ) -> OperationStatus:
        operation = model.model_validate(
            document(
                model.kind_name, name, {"tableRef": {"name": "storm"}, "backoffLimit": 0, **spec}
            )
        )
        log = DeltaLog(self.store)
        table = Table(self.store, log, "LakeTable/storm", storage_options=self.options)
        ports = Ports(jobs=FileJobs(QuickJobs()))
        session = open_session(operation, table, ports, ExecutionOptions(poll_ms=1))
        return finish(session, operation, ports)

    # What must be true

    def check(self) -> list[Instant]:
        """The instants of the log. Raises: AssertionError."""
        assert self.errors == []
        assert self.wrong == []
        assert self.repeated, f"no batch came twice{self.figures}"
        found = instants(self.log.store)
        numbers = [instant.batch for instant in found]
        assert len(set(numbers)) == len(numbers), "a batch is in the log twice"
        at = {instant.batch: instant.version for instant in found}
        for batch, version in self.acknowledged.items():
            assert at.get(batch) == version, f"{batch} was acknowledged as {version}"
        for number in range(WRITERS):
            own = [batch.number for batch in numbers if batch.writer == number]
            assert own == list(range(len(own))), f"writer {number}: {own}"
        ordered = bool(self.ordering)
        expected = view(numbers, ordered=ordered)
        assert self.rows() == expected
        for version in range(1, self.log.base.latest_version() + 1):
            seen = [i.batch for i in found if i.base <= version]
            assert self.rows(version) == view(seen, ordered=ordered), version
        # Once more, when nothing is beside it: the base table alone has all rows.
        self.merges.append(self._merge(len(self.merges)))
        base = scan(self.log.base.snapshot(), self.store).read_all()
        assert _sorted(base) == self.rows() == expected
        for ended in (*self.merges, *self.compactions):
            assert ended.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), ended
            assert ended.attempt <= 1, ended
        return found

    def rows(self, version: int | None = None) -> list[Row]:
        return _sorted(mergelog.MergedView.open(self.log, version).scan().read_all())

    @property
    def figures(self) -> str:
        """For people."""
        stitched = sum(
            end.result.blocks_in or 0 for end in committed(self.compactions) if end.result
        )
        return (
            f"\n{len(self.acknowledged)} batches of {WRITERS} writers acknowledged in "
            f"{self.took:.1f} s, {self.restarted.total()} killed, {len(self.repeated)} repeated; "
            f"{len(committed(self.merges))} of {len(self.merges)} merges committed, "
            f"{len(committed(self.compactions))} of {len(self.compactions)} log compactions, "
            f"of {stitched} blocks"
        )


def on_s3(server: S3Server, monkeypatch: pytest.MonkeyPatch, ordering: str = "") -> Storm:
    """A storm on a table of the S3 server. Jobs take credentials from the environment."""
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    storm = Storm(server.fresh_location(), ordering, server.options)
    storm.make(server.storage_options)
    return storm


def committed(ends: list[OperationStatus]) -> list[OperationStatus]:
    """Those that changed something."""
    return [end for end in ends if end.result is not None and end.result.version is not None]


def _sorted(found: pa.Table) -> list[Row]:
    return sorted(zip(*(found[name].to_pylist() for name in SCHEMA.names), strict=True))
