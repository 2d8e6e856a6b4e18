"""A job runner that plays Spark: reads job.json, does what it says to tiny data files.

A job advances only when the scheduler says so, a little at a time: it may be slow, die, be
started twice (a twin writes other files and loses the race for result.json), and live on after
the process that started it has died. It reads and writes through the store alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap64

from mergelog.oracle import Event
from simulator import rows
from simulator.evaluate import Evaluator
from simulator.held_jobs import HeldFiles
from simulator.job_rows import (
    FILE_ROWS,
    Matched,
    by_day,
    dead_rows,
    is_in_scope,
    is_taken,
    layout_key,
    map_bin,
    map_parts,
    matches_file,
    placed,
    recorded,
    side_file,
)
from simulator.log_jobs import log_job
from simulator.statements import Merge
from support.lake.faults import ProcessDied
from support.lake.memory_store import MemoryStore
from tandem.errors import AlreadyExists, ObjectNotFound, TandemError
from tandem.jobs.formats import (
    IngestJob,
    InputFile,
    JobBin,
    JobSpec,
    LogMergeJob,
    MergeJob,
    ReplaceJob,
    RewriteJob,
    RoundRequest,
    StatementJob,
    StitchJob,
    UpsertJob,
)
from tandem.jobs.results import JobFailure, JobResult, OutputFile
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.operations.rounds import SmallRoundResult
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.edits import edit_round, maker_of
from tandem.spark.runtime.control import Control, translate
from tandem.spark.runtime.row_files import MATCHES
from tandem.storage.paths import LOG_FOLDER
from tandem.storage.rooted import Subfolder
from tandem.storage.store import Store

INGEST_ROWS = 6


@dataclass
class Found:
    """What an evaluation came to: rows that were read, how many matched, files and matches."""

    seen: list[rows.Row] = field(default_factory=list)
    rows: int = 0
    outputs: list[OutputFile] = field(default_factory=list)
    columns: dict[str, list[int | None]] = field(default_factory=dict)


@dataclass
class Driver:
    """One running driver of a job: `steps` does a bit of work each time it is advanced."""

    name: str
    steps: Iterator[None]
    alive: bool = True
    failed: bool = False
    speed: float = 10.0


@dataclass
class SimulatedJobs:
    """A `JobRunner`. `batches` holds what sources of ingests contain, by location, `upserts`
    those of appends to a log; `merges` what a merge of the source at a location means. `drawn`: by
    operation, the values that each execution of a random statement gave to rows, by identity.
    `edits` is entered where a driver makes edits."""

    store: MemoryStore
    rng: random.Random
    say: Callable[[str], None]
    edits: Callable[[], AbstractContextManager[None]] = nullcontext
    batches: dict[str, list[rows.Row]] = field(default_factory=dict)
    merges: dict[str, Merge] = field(default_factory=dict)
    upserts: dict[str, tuple[Event, ...]] = field(default_factory=dict)
    drivers: dict[str, list[Driver]] = field(default_factory=dict)
    drawn: dict[str, list[dict[int, int]]] = field(default_factory=dict)
    files: int = 0
    on_start: Callable[[JobRequest], None] = lambda _: None
    control: HeldFiles = field(init=False)
    """The files by which engines and jobs speak."""
    _specs: dict[str, tuple[Store, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.control = HeldFiles(self.store)

    # The port

    def start(self, request: JobRequest) -> None:
        if request.name not in self.drivers:
            self.drivers[request.name] = []
            self.on_start(request)
            store: Store = self.store
            if request.location != self.store.location:
                store = Subfolder(self.store, LOG_FOLDER)
            self._specs[request.name] = store, request.spec_path
            self._launch(request.name)

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
        except ProcessDied:
            self.die(driver)

    def die(self, driver: Driver) -> None:
        driver.alive, driver.failed = False, True

    def duplicate(self, name: str) -> None:
        """The same application is started a second time (Z6)."""
        self._launch(name)

    def _launch(self, name: str) -> None:
        store, spec_path = self._specs[name]
        try:
            spec = JobSpec.model_validate_json(store.get(spec_path))
        except ObjectNotFound:
            # Of an attempt that ended long ago, and was cleaned.
            self.say(f"    job {name} finds nothing to do")
            self.drivers[name].append(Driver(name, iter(()), alive=False, failed=True))
            return
        speed = self.rng.choice((1.0, 10.0, 10.0, 40.0))
        self.drivers[name].append(Driver(name, self._run(spec, store), speed=speed))

    # The work

    def _run(self, spec: JobSpec, store: Store) -> Iterator[None]:
        yield
        job = spec.job
        try:
            if isinstance(job, RewriteJob):
                yield from self._rewrite(spec, job)
            elif isinstance(job, IngestJob):
                yield from self._ingest(spec, job)
            elif isinstance(job, ReplaceJob):
                yield from self._replace(spec, job)
            elif isinstance(job, StitchJob | LogMergeJob | UpsertJob):
                yield from log_job(Control(spec, store), self.upserts)
            else:
                yield from self._rounds(spec, job)
        except ObjectNotFound as error:
            path = f"{spec.control_prefix}/rounds/0/failure.json"
            failure = JobFailure(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                reason="DataFileMissing",
                message=str(error),
                transient=True,
            )
            self.control.put(path, failure.model_dump_json(by_alias=True).encode())

    def _rewrite(self, spec: JobSpec, job: RewriteJob) -> Iterator[None]:
        identity = RowMapIdentity(
            spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version
        )
        builder = RowMapBuilder(identity)
        outputs: list[OutputFile] = []
        read = 0
        for each in job.bins:
            yield
            found: list[tuple[int, int, rows.Row]] = []
            members = [job.inputs[index] for index in each.inputs]
            for number, file in enumerate(members):
                dead, content = (
                    dead_rows(file),
                    rows.read(self.store, file.logged_path, file.partition_values),
                )
                stays = BitMap64(p for p, row in enumerate(content) if not is_taken(job, row))
                dead |= stays
                builder.add_input(file.logged_path, len(content), dead)
                found += [(number, p, row) for p, row in enumerate(content) if p not in dead]
            read += len(found)
            if job.borders is not None:
                outputs += self._divided(spec, job, each, builder, found)
                continue
            key = layout_key(job)
            if key is not None:
                found.sort(key=lambda at: key(at[2]))
            size = FILE_ROWS if job.target_file_size else max(len(found), 1)
            paths = [self._path(spec) for _ in range(0, len(found), size)]
            for begin, path in zip(range(0, len(found), size), paths, strict=True):
                written = [row for _, _, row in found[begin : begin + size]]
                values = dict(each.partition_values)
                outputs.append(self._output(path, written, run=each.run, partition_values=values))
            names = [file.logged_path for file in members]
            map_bin(builder, names, found, paths, size, permuted=key is not None)
        data = binary_format.to_bytes(builder.build())
        map_path = f"{spec.control_prefix}/rounds/0/{self._name()}.rowmap"
        self.control.put(map_path, data)
        yield
        self._publish(
            spec,
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                outputs=tuple(outputs),
                row_map=side_file(map_path, data),
                rows_read=read,
                rows_written=sum(o.rows for o in outputs),
            ),
        )
        if job.serves_rounds:
            yield from self._requested(spec, 1)

    def _divided(
        self,
        spec: JobSpec,
        job: RewriteJob,
        each: JobBin,
        builder: RowMapBuilder,
        found: list[tuple[int, int, rows.Row]],
    ) -> list[OutputFile]:
        """Files of their own for the rows of each day."""
        parts = [
            (self._path(spec), part[begin : begin + FILE_ROWS])
            for part in by_day(found)
            for begin in range(0, len(part), FILE_ROWS)
        ]
        map_parts(builder, [job.inputs[index].logged_path for index in each.inputs], parts)
        values = dict(each.partition_values)
        return [
            self._output(path, [row for _, _, row in part], run=each.run, partition_values=values)
            for path, part in parts
        ]

    def _ingest(self, spec: JobSpec, job: IngestJob) -> Iterator[None]:
        result = yield from self._written(spec, self.batches[job.source_location])
        self._publish(spec, result)

    def _written(self, spec: JobSpec, found: list[rows.Row]) -> Generator[None, None, JobResult]:
        """Write the rows of a source, in two halves."""
        half = len(found) // 2
        outputs = []
        for part in (found[:half], found[half:]):
            yield
            outputs += self._outputs(spec, part)
        return JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            outputs=tuple(outputs),
            rows_read=len(found),
            rows_written=len(found),
        )

    def _replace(self, spec: JobSpec, job: ReplaceJob) -> Iterator[None]:
        source = self.batches[job.source_location] if job.has_source else []
        result = yield from self._written(spec, source)
        inputs: tuple[InputFile, ...] = job.inputs
        while True:
            if inputs:
                result = yield from self._with_scope(spec, job, result, inputs)
            self._publish(spec, result)
            if not job.serves_rounds:
                return
            request = yield from self._requested(spec, result.round + 1)
            if request is None:
                return
            inputs = request.inputs
            result = JobResult(
                operation_id=spec.operation_id, attempt=spec.attempt, round=request.round
            )

    def _with_scope(
        self, spec: JobSpec, job: ReplaceJob, result: JobResult, inputs: Sequence[InputFile]
    ) -> Generator[None, None, JobResult]:
        """A result with the rows of files that are in the scope of a replace."""
        found = Found()
        yield from self._evaluate(
            spec, lambda row: is_in_scope(job, row), lambda _: None, inputs, None, found
        )
        data = matches_file(found.columns)
        path = f"{spec.control_prefix}/rounds/{result.round}/{self._name()}.arrow"
        self.control.put(path, data)
        yield
        return result.model_copy(
            update={"matches": side_file(path, data), "rows_matched": found.rows}
        )

    def _requested(self, spec: JobSpec, round_: int) -> Generator[None, None, RoundRequest | None]:
        """Wait for the request of a round; None if the engine ends the job instead. Rounds of edits
        before it are served."""
        control = Control(spec, self.control)
        maker = maker_of(control)
        while True:
            path = f"{spec.control_prefix}/rounds/{round_}/request.json"
            while not self._exists(path):
                if self._exists(f"{spec.control_prefix}/done.json"):
                    return None
                yield
            request = RoundRequest.model_validate_json(self.control.get(path))
            if request.edits is None:
                return request
            yield
            try:
                with self.edits():
                    edit_round(control, request, maker)
            except TandemError as error:
                control.fail(translate(error), round_)
            round_ += 1

    def _rounds(self, spec: JobSpec, job: StatementJob | MergeJob) -> Iterator[None]:
        merge: Merge | None = None
        if isinstance(job, MergeJob):
            merge = self.merges[job.source_location]
            change: Callable[[rows.Row], rows.Row | None] = merge.apply
            matches: Callable[[rows.Row], bool] = merge.matches
        else:
            evaluator = Evaluator(job.where, job.set, self.rng)
            change, matches = evaluator.changed, evaluator.matches
        round_, part = 0, False
        inputs = job.inputs
        while True:
            if merge is None and evaluator.is_random:
                change = self._recorded(spec.operation_id, evaluator)
            yield from self._round(spec, matches, change, round_, inputs, merge, part=part)
            request = yield from self._requested(spec, round_ + 1)
            if request is None:
                return
            round_, inputs, part = request.round, request.inputs, request.part

    def _recorded(
        self, operation_id: str, evaluator: Evaluator
    ) -> Callable[[rows.Row], rows.Row | None]:
        """An execution of a random statement, whose draws are remembered."""
        drawn: dict[int, int] = {}
        self.drawn.setdefault(operation_id, []).append(drawn)

        def change(row: rows.Row) -> rows.Row | None:
            new = evaluator.changed(row)
            assert new is not None
            drawn[row.rid] = new.v
            return new

        return change

    def _round(
        self,
        spec: JobSpec,
        matches: Callable[[rows.Row], bool],
        change: Callable[[rows.Row], rows.Row | None],
        round_: int,
        inputs: tuple[InputFile, ...],
        merge: Merge | None,
        *,
        part: bool,
    ) -> Iterator[None]:
        found = Found()
        yield from self._evaluate(spec, matches, change, inputs, merge, found)
        outputs = found.outputs
        if merge is not None and not part:
            fresh = self._outputs(spec, merge.missing(found.seen), round_=round_)
            outputs += [file.model_copy(update={"fresh": True}) for file in fresh]
        data = matches_file(found.columns)
        matches_path = f"{spec.control_prefix}/rounds/{round_}/{self._name()}.arrow"
        self.control.put(matches_path, data)
        yield
        self._publish(
            spec,
            JobResult(
                operation_id=spec.operation_id,
                attempt=spec.attempt,
                round=round_,
                outputs=tuple(outputs),
                matches=side_file(matches_path, data),
                rows_read=len(found.seen),
                rows_written=sum(output.rows for output in outputs),
                rows_matched=found.rows,
            ),
        )

    def _evaluate(
        self,
        spec: JobSpec,
        matches: Callable[[rows.Row], bool],
        change: Callable[[rows.Row], rows.Row | None],
        inputs: Sequence[InputFile],
        merge: Merge | None,
        answer: Found,
    ) -> Iterator[None]:
        found: list[tuple[int, int, rows.Row | None]] = []
        matched: list[Matched] = []
        for index, file in enumerate(inputs):
            yield
            dead = dead_rows(file)
            for position, row in enumerate(
                rows.read(self.store, file.logged_path, file.partition_values)
            ):
                if position in dead:
                    continue
                answer.seen.append(row)
                if merge is not None and (row.k in merge.keys or matches(row)):
                    key = row.k if row.k in merge.keys else None
                    matched.append(Matched(index, position, key, stays=not matches(row)))
                if matches(row):
                    found.append((index, position, change(row)))
        answer.rows = len(found)
        answer.outputs = self._outputs(spec, [new for _, _, new in found if new is not None])
        places = placed([new for _, _, new in found], spec.table.partition_columns)
        answer.columns = {
            "input": [index for index, _, _ in found],
            "position": [position for _, position, _ in found],
            "output": [output for output, _ in places],
            "output_position": [place for _, place in places],
        }
        if merge is not None and merge.inserts:
            answer.columns = recorded(answer.columns, matched)

    # Small rounds: what the engine evaluates by itself, at once

    def small_rows(self, spec: JobSpec, inputs: Sequence[InputFile]) -> SmallRoundResult | None:
        """What a round comes to; None where the job is to be asked."""
        job = spec.job
        found = Found()
        if isinstance(job, MergeJob):
            merge = self.merges[job.source_location]
            steps = self._evaluate(spec, merge.matches, merge.apply, inputs, merge, found)
        else:
            assert isinstance(job, StatementJob)
            evaluator = Evaluator(job.where, job.set, self.rng)
            steps = self._evaluate(spec, evaluator.matches, evaluator.changed, inputs, None, found)
        for _ in steps:
            pass
        with pa.ipc.open_file(pa.BufferReader(matches_file(found.columns))) as reader:
            return SmallRoundResult(reader.read_all(), tuple(found.outputs))

    def small_inserts(self, spec: JobSpec, matched: set[int]) -> SmallRoundResult:
        """What a merge inserts for the keys that match no row."""
        assert isinstance(spec.job, MergeJob)
        merge = self.merges[spec.job.source_location]
        fresh = self._outputs(spec, merge.missing_but(matched))
        outputs = tuple(file.model_copy(update={"fresh": True}) for file in fresh)
        return SmallRoundResult(MATCHES.empty_table(), outputs)

    # Small things

    def _publish(self, spec: JobSpec, result: JobResult) -> None:
        path = f"{spec.control_prefix}/rounds/{result.round}/result.json"
        try:
            self.control.put_if_absent(path, result.model_dump_json(by_alias=True).encode())
        except AlreadyExists:
            self.say(f"    a twin of job {spec.operation_id}-{spec.attempt} was faster")
            return
        held = spec.control_prefix in self.control.held
        if held and result.round == 0 and self.rng.random() < 0.3:
            self.control.keep(spec.control_prefix)

    def _outputs(
        self, spec: JobSpec, written: list[rows.Row], *, round_: int = 0
    ) -> list[OutputFile]:
        """A file for each partition; none for no rows."""
        return [
            self._output(self._path(spec), part, round_=round_, partition_values=values)
            for values, part in rows.by_partition(written, spec.table.partition_columns)
        ]

    def _output(
        self,
        path: str,
        written: list[rows.Row],
        *,
        run: int = 0,
        round_: int = 0,
        partition_values: rows.PartitionValues,
    ) -> OutputFile:
        size = rows.write(self.store, path, written)
        return OutputFile(
            path=path,
            size=size,
            rows=len(written),
            modified_ms=self.store.head(path).modified_ms,
            stats=rows.stats(len(written)),
            partition_values=partition_values,
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
            self.control.head(path)
        except ObjectNotFound:
            return False
        return True
