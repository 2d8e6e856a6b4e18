"""A job runner that plays Spark: reads job.json, does what it says to tiny data files.

A job advances only when the scheduler says so, a little at a time: it may be slow, die, be
started twice (a twin writes other files and loses the race for result.json), and live on after
the process that started it has died. It reads and writes through the store alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap64

from simulator import rows
from simulator.evaluate import Evaluator
from tandem.delta import dv
from tandem.errors import AlreadyExists, ObjectNotFound
from tandem.reconcile import rowmap_format
from tandem.reconcile.rowmap import RowMapBuilder, RowMapIdentity
from tandem.spark.job import (
    IngestJob,
    InputFile,
    JobFailure,
    JobResult,
    JobSpec,
    OutputFile,
    RewriteJob,
    RoundRequest,
    SidecarRef,
    StatementJob,
)
from tandem.spark.port import JobPhase, JobRequest, JobStatus
from tandem.storage.memory import MemoryStore

INGEST_ROWS = 6


@dataclass
class Driver:
    """One running driver of a job: `steps` does a bit of work each time it is advanced."""

    name: str
    steps: Iterator[None]
    alive: bool = True
    failed: bool = False


@dataclass
class SimulatedJobs:
    """A `JobRunner`. `batches` holds what sources contain, by location."""

    store: MemoryStore
    rng: random.Random
    say: Callable[[str], None]
    batches: dict[str, list[rows.Row]] = field(default_factory=dict)
    drivers: dict[str, list[Driver]] = field(default_factory=dict)
    files: int = 0
    _paths: dict[str, str] = field(default_factory=dict)

    # The port

    def start(self, request: JobRequest) -> None:
        if request.name not in self.drivers:
            self.drivers[request.name] = []
            self._launch(request.name, request.spec_path)

    def status(self, name: str) -> JobStatus:
        drivers = self.drivers.get(name)
        if not drivers:
            return JobStatus(JobPhase.UNKNOWN)
        if any(driver.alive for driver in drivers):
            return JobStatus(JobPhase.RUNNING)
        failed = any(driver.failed for driver in drivers)
        return JobStatus(JobPhase.FAILED if failed else JobPhase.ENDED, "the driver died")

    def stop(self, name: str) -> None:
        for driver in self.drivers.get(name, []):
            driver.alive = False

    # The scheduler's side

    def running(self) -> list[Driver]:
        return [d for drivers in self.drivers.values() for d in drivers if d.alive]

    def advance(self, driver: Driver) -> None:
        try:
            next(driver.steps)
        except StopIteration:
            driver.alive = False

    def die(self, driver: Driver) -> None:
        driver.alive, driver.failed = False, True

    def duplicate(self, name: str) -> None:
        """The same application is started a second time (Z6)."""
        self._launch(name, self._paths[name])

    def _launch(self, name: str, spec_path: str) -> None:
        self._paths[name] = spec_path
        spec = JobSpec.model_validate_json(self.store.get(spec_path))
        self.drivers[name].append(Driver(name, self._run(spec)))

    # The work

    def _run(self, spec: JobSpec) -> Iterator[None]:
        yield
        job = spec.job
        try:
            if isinstance(job, RewriteJob):
                yield from self._rewrite(spec, job)
            elif isinstance(job, IngestJob):
                yield from self._ingest(spec, job)
            else:
                yield from self._statement(spec, job)
        except ObjectNotFound as error:
            path = f"{spec.control_prefix}/rounds/0/failure.json"
            failure = JobFailure(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                reason="DataFileMissing",
                message=str(error),
                transient=True,
            )
            self.store.put(path, failure.model_dump_json(by_alias=True).encode())

    def _rewrite(self, spec: JobSpec, job: RewriteJob) -> Iterator[None]:
        identity = RowMapIdentity(
            spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version
        )
        builder = RowMapBuilder(identity)
        outputs: list[OutputFile] = []
        read = 0
        for each in job.bins:
            yield
            path = self._path(spec)
            written: list[rows.Row] = []
            for index in each.inputs:
                file = job.inputs[index]
                dead = _dead(file)
                found = rows.read(self.store, file.logged_path)
                builder.add_input(file.logged_path, len(found), dead)
                live = [row for position, row in enumerate(found) if position not in dead]
                if live:
                    builder.add_run(file.logged_path, 0, len(found), path)
                read += len(live)
                written += live
            if written:
                outputs.append(self._output(path, written, run=each.run))
        data = rowmap_format.to_bytes(builder.build())
        map_path = f"{spec.control_prefix}/rounds/0/{self._name()}.rowmap"
        self.store.put(map_path, data)
        yield
        self._publish(
            spec,
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                outputs=tuple(outputs),
                row_map=_ref(map_path, data),
                rows_read=read,
                rows_written=sum(o.rows for o in outputs),
            ),
        )

    def _ingest(self, spec: JobSpec, job: IngestJob) -> Iterator[None]:
        found = self.batches[job.source_location]
        half = len(found) // 2
        outputs = []
        for part in (found[:half], found[half:]):
            yield
            if part:
                outputs.append(self._output(self._path(spec), part))
        self._publish(
            spec,
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                outputs=tuple(outputs),
                rows_read=len(found),
                rows_written=len(found),
            ),
        )

    def _statement(self, spec: JobSpec, job: StatementJob) -> Iterator[None]:
        evaluator = Evaluator(job.where, job.set)
        round_ = 0
        inputs = job.inputs
        while True:
            yield from self._round(spec, evaluator, round_, inputs)
            round_ += 1
            request_path = f"{spec.control_prefix}/rounds/{round_}/request.json"
            while not self._exists(request_path):
                if self._exists(f"{spec.control_prefix}/done.json"):
                    return
                yield
            request = RoundRequest.model_validate_json(self.store.get(request_path))
            inputs = request.inputs

    def _round(
        self, spec: JobSpec, evaluator: Evaluator, round_: int, inputs: tuple[InputFile, ...]
    ) -> Iterator[None]:
        path = self._path(spec)
        written: list[rows.Row] = []
        columns: dict[str, list[int | None]] = {
            "input": [], "position": [], "output": [], "output_position": [],
        }  # fmt: skip
        read = 0
        for index, file in enumerate(inputs):
            yield
            dead = _dead(file)
            for position, row in enumerate(rows.read(self.store, file.logged_path)):
                if position in dead:
                    continue
                read += 1
                if not evaluator.matches(row):
                    continue
                columns["input"].append(index)
                columns["position"].append(position)
                deletes = evaluator.deletes
                columns["output"].append(None if deletes else 0)
                columns["output_position"].append(None if deletes else len(written))
                if not deletes:
                    written.append(evaluator.changed(row))
        outputs = (self._output(path, written, round_=round_),) if written else ()
        data = _matches(columns)
        matches_path = f"{spec.control_prefix}/rounds/{round_}/{self._name()}.arrow"
        self.store.put(matches_path, data)
        yield
        self._publish(
            spec,
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                round=round_,
                outputs=outputs,
                matches=_ref(matches_path, data),
                rows_read=read,
                rows_written=len(written),
                rows_matched=len(columns["input"]),
            ),
        )

    # Small things

    def _publish(self, spec: JobSpec, result: JobResult) -> None:
        path = f"{spec.control_prefix}/rounds/{result.round}/result.json"
        try:
            self.store.put_if_absent(path, result.model_dump_json(by_alias=True).encode())
        except AlreadyExists:
            self.say(f"    a twin of job {spec.operation_id}-{spec.attempt} was faster")

    def _output(
        self, path: str, written: list[rows.Row], *, run: int = 0, round_: int = 0
    ) -> OutputFile:
        size = rows.write(self.store, path, written)
        return OutputFile(
            path=path,
            size=size,
            rows=len(written),
            modified_ms=self.store.head(path).modified_ms,
            stats=rows.stats(len(written)),
            run=run,
            round=round_,
        )

    def _path(self, spec: JobSpec) -> str:
        return f"{spec.data_prefix}/part-00000-{self._name()}.parquet"

    def _name(self) -> str:
        self.files += 1
        return f"{self.files:08d}"

    def _exists(self, path: str) -> bool:
        try:
            self.store.head(path)
        except ObjectNotFound:
            return False
        return True


def _dead(file: InputFile) -> BitMap64:
    return dv.from_base64(file.dv) if file.dv else BitMap64()


def _ref(path: str, data: bytes) -> SidecarRef:
    return SidecarRef(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _matches(columns: dict[str, list[int | None]]) -> bytes:
    types = {
        "input": pa.int32(),
        "position": pa.int64(),
        "output": pa.int32(),
        "output_position": pa.int64(),
    }
    table = pa.table({name: pa.array(columns[name], type_) for name, type_ in types.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
