"""The driver's side of the persisted formats: reads the job, answers exactly once.

Shared by all applications. A driver may be started twice, or killed and restarted: everything that
it writes has a unique name, and only the first `result.json` of a round counts (put-if-absent).
Credentials come from the environment only; arguments and formats contain no secrets.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import pyarrow as pa
from pydantic import ValidationError

from tandem import errors
from tandem.delta import schema as delta_schema
from tandem.delta.datafiles.reader import RowOrigin, TableFormat
from tandem.delta.datafiles.writer import WrittenFile
from tandem.errors import (
    AlreadyExists,
    ManifestInvalid,
    ObjectNotFound,
    OutcomeUnknown,
    Reason,
    TandemError,
)
from tandem.jobs.formats import Format, InputFile, JobSpec, JobTable, RoundRequest
from tandem.jobs.port import read_side_file
from tandem.jobs.results import JobFailure, JobProgress, JobResult, OutputFile, SideFileRef
from tandem.jobs.runner import OUT_OF_MEMORY
from tandem.spark.runtime.session import watch_parent
from tandem.storage import Store, open_store
from tandem.storage.allowed_locations import require as require_allowed
from tandem.storage.paths import canonical_location

F = TypeVar("F", bound=Format)

TRANSIENT = frozenset(
    {
        Reason.STORAGE_ERROR,
        Reason.OUTPUT_MISSING,
        Reason.DATA_FILE_MISSING,
        Reason.JOB_FAILED,
        Reason.OUT_OF_MEMORY,
    }
)
"""Reasons after which another attempt with a new plan may succeed (another writer may have
compacted and vacuumed an input that is missing)."""


@dataclass(frozen=True)
class Control:
    """An opened job: its spec and the table's store."""

    spec: JobSpec
    store: Store

    @property
    def table(self) -> TableFormat:
        return job_table_format(self.spec.table)

    @property
    def scratch(self) -> Store:
        """Where a driver and its tasks leave files for each other, below the same paths."""
        return self.store

    def path(self, name: str) -> str:
        return f"{self.spec.control_prefix}/{name}"

    def round_path(self, round_: int, name: str) -> str:
        return self.path(f"rounds/{round_}/{name}")

    def side_file(self, round_: int, name: str, data: bytes) -> SideFileRef:
        """Write a file that belongs to a result, under a name unique to this driver."""
        path = self.round_path(round_, f"{name}-{uuid.uuid4()}")
        self.store.put(path, data)
        return SideFileRef(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())

    def read_side_file(self, ref: SideFileRef) -> bytes:
        """The content of a file that `side_file` wrote.

        Raises: ManifestInvalid if another writer put another file in its place; StorageError.
        """
        return read_side_file(self.store, ref)

    def publish(self, result: JobResult) -> bool:
        """Put `result.json` if there is none; False if another driver was first."""
        return self._put_once(self.round_path(result.round, "result.json"), result)

    def fail(self, error: TandemError, round_: int = 0) -> None:
        """Record a failure, unless one is recorded already."""
        self._put_once(self.round_path(round_, "failure.json"), self.failure_of(error, round_))

    def failure_of(self, error: TandemError, round_: int) -> JobFailure:
        return JobFailure(
            operation_id=self.spec.operation_id,
            attempt=self.spec.attempt,
            round=round_,
            reason=error.reason.value,
            message=str(error)[:4000],
            transient=error.reason in TRANSIENT,
        )

    def counters(self, round_: int) -> Counters:
        """Where the tasks of a round count."""
        return StoredCounters(self.scratch, self.round_path(round_, "counters"))

    def progress(self, progress: JobProgress) -> None:
        """Record progress, for display; the last write wins."""
        self.store.put(self.path("progress.json"), encode(progress))

    def request(self, round_: int) -> RoundRequest | None:
        """Round `round_` of a statement, None until the engine requests it."""
        try:
            data = self.store.get(self.round_path(round_, "request.json"))
        except ObjectNotFound:
            return None
        request = _parse(RoundRequest, data, self.round_path(round_, "request.json"))
        self._check_identity(request.operation_id, request.attempt, "request.json")
        return request

    def result(self, round_: int) -> JobResult:
        """The published result of a round. Raises: ObjectNotFound, ManifestInvalid."""
        path = self.round_path(round_, "result.json")
        return _parse(JobResult, self.store.get(path), path)

    def wait(self, ended: threading.Event, seconds: float) -> None:
        """Wait for a request, at most for some seconds, and at most until the job is to end."""
        ended.wait(seconds)

    def is_done(self) -> bool:
        """Whether the engine has announced that no more rounds follow."""
        try:
            self.store.head(self.path("done.json"))
        except ObjectNotFound:
            return False
        return True

    def _check_identity(self, operation_id: str, attempt: int, name: str) -> None:
        if (operation_id, attempt) != (self.spec.operation_id, self.spec.attempt):
            raise ManifestInvalid(
                "a control file belongs to another attempt",
                resource=self.path(name),
                found=f"operation {operation_id}, attempt {attempt}",
                expected=f"operation {self.spec.operation_id}, attempt {self.spec.attempt}",
            )

    def _put_once(self, path: str, content: Format) -> bool:
        data = encode(content)
        try:
            self.store.put_if_absent(path, data)
        except AlreadyExists:
            return False
        except OutcomeUnknown:
            # Z20: check, never assume. If the object is absent, the put did not take effect.
            try:
                return self.store.get(path) == data
            except ObjectNotFound:
                return self._put_once(path, content)
        return True


def encode(content: Format) -> bytes:
    return content.model_dump_json(by_alias=True).encode()


def job_table_format(table: JobTable) -> TableFormat:
    """The format for reading and writing a table's data files. Raises: CorruptLog."""
    schema = delta_schema.parse(table.schema_string, resource=table.location)
    of_table = TableFormat(
        schema,
        table.partition_columns,
        table.configuration,
        table.bloom_filters,
        repeats_partitions=table.repeats_partitions,
    )
    return of_table.with_row_ids(table.row_ids or ())


def origin_of(input_: InputFile, table: TableFormat) -> RowOrigin | None:
    """Where the ids of the rows of an input come from; None if the table tracks no rows. Raises:
    ManifestInvalid if the plan does not say so."""
    if not table.row_ids:
        return None
    first, version = input_.base_row_id, input_.row_commit_version
    if first is None or version is None or not 0 <= first <= (1 << 63) - max(1, input_.rows):
        raise ManifestInvalid(
            "an input of a table that tracks rows has no base id or version, or one too high",
            resource=input_.logged_path,
            field="baseRowId",
            found=f"{first}, version {version}",
        )
    return RowOrigin(first, version)


def open_job(
    location: str, spec_path: str, options: dict[str, str], allowed: tuple[str, ...] = ()
) -> Control:
    """Read `job.json`. With `allowed`, which the job's creator passes as an argument, locations
    are checked against it: any process that can write the table's folder may have changed the file.

    Raises: ManifestInvalid if it is truncated or of another job, LocationNotAllowed, StorageError.
    """
    data = open_store(location, options).get(spec_path)
    spec = _parse(JobSpec, data, spec_path)
    return open_spec(spec, location, spec_path, options, allowed)


def open_spec(
    spec: JobSpec,
    location: str,
    spec_path: str,
    options: dict[str, str],
    allowed: tuple[str, ...],
    *,
    ceiling_s: float | None = None,
) -> Control:
    """As `open_job`, of a `job.json` that was read. `ceiling_s`: as of `open_store`."""
    if allowed:
        _require_as_started(spec, location, spec_path, options, allowed)
    store = open_store(
        location,
        {**spec.table.storage_options, **options},
        allowed_prefixes=spec.table.allowed_prefixes,
        ceiling_s=ceiling_s,
    )
    return Control(spec, store)


def _require_as_started(
    spec: JobSpec, location: str, path: str, options: dict[str, str], allowed: tuple[str, ...]
) -> None:
    require_allowed(location, allowed, resource=path, field="table.location")
    for source in spec.job.sources:
        require_allowed(source, allowed, resource=path, field="job.sourceLocation")
    root = canonical_location(location)
    compared = {
        "table.location": (spec.table.location, root),
        "table.storageOptions": (spec.table.storage_options, options),
        "table.allowedPrefixes": (spec.table.allowed_prefixes, allowed),
    }
    for name, (found, expected) in compared.items():
        if found != expected:
            raise ManifestInvalid(
                "the job's file is not the one that the job was started with",
                resource=path,
                field=name,
                found=str(found)[:300],
                expected=str(expected)[:300],
                remedy="Find out what else writes to the table's _tandem folder",
            )


def _parse(format_: type[F], data: bytes, path: str) -> F:
    try:
        return format_.model_validate_json(data)
    except ValidationError as error:
        raise ManifestInvalid(
            f"{format_.__name__} cannot be read",
            resource=path,
            found=str(error.errors(include_url=False)[:3])[:500],
            expected=f"a whole {format_.__name__} of format version 1",
            remedy="Was it written by another version of Tandem?",
        ) from error


def output_file(file: WrittenFile, *, run: int = 0, round_: int = 0) -> OutputFile:
    return OutputFile(
        path=file.path,
        size=file.size,
        rows=file.rows,
        modified_ms=file.modified_ms,
        stats=file.stats,
        partition_values=dict(file.partition_values),
        run=run,
        round=round_,
    )


_ERROR_IN_WORKER = re.compile(r"tandem\.errors\.(\w+): (.*)")
_CONDITION = re.compile(
    r"\[([A-Z][A-Z0-9_]*(?:\.[A-Z0-9_]+)*)\] (.*?)\s*SQLSTATE: (\w{5})", re.DOTALL
)
_ERROR_IN_JAVA = re.compile(
    r"java\.(?:lang\.(?:Arithmetic|NumberFormat)|time\.(?:\w+\.)?(?:DateTime|DateTimeParse)"
    r"|util\.regex\.PatternSyntax)Exception: ([^\n]+)"
)
"""Errors that Spark's own code raises on a row without an error condition (`long overflow`)."""


_ADVICE = re.compile(
    r'If necessary set "[^"]+" to "[^"]+" to bypass this error\.?'
    r'|If you want to remove the duplicated keys, you can set "[^"]+" to "[^"]+" so that [^.]*\.?'
)
"""Spark's advice to change a setting that jobs pin, so that statements have one meaning."""


TOO_LONG = "a string is too long for its column"
"""Of a CHAR or VARCHAR."""


def translate(error: BaseException) -> TandemError:
    """Translate an error of Spark.

    The result is an error of our own code in a worker; StatementFailed for a row on which the
    statement fails (SQLSTATE class 22 or 23, 42 for a value that does not fit, P0 for an error
    raised by an expression, or an error of Java's arithmetic and times); else `JobFailed`. Spark's
    errors are `PySparkException`, or a bare `Py4JJavaError`; the text of both contains the whole
    chain of causes.
    """
    if isinstance(error, TandemError):
        return error
    text = str(error) or type(error).__name__  # a MemoryError has no message
    ours = _ERROR_IN_WORKER.search(text)
    if ours is not None:
        kind = getattr(errors, ours[1], None)
        if isinstance(kind, type) and issubclass(kind, TandemError):
            return kind(ours[2].strip())
    for condition, message, state in _CONDITION.findall(text):
        if state[:2] in ("22", "23", "42", "P0"):
            plain = re.sub(r"\s+", " ", message.split("== SQL")[0])
            plain = _ADVICE.sub("", plain).strip().rstrip(".")
            if condition == "USER_RAISED_EXCEPTION":  # by an expression of ours, in full
                broken = TOO_LONG in plain.split("(found: ")[0]
                kind_ = errors.ConstraintViolated if broken else errors.StatementFailed
                return kind_(
                    plain, remedy="Correct the statement or the source, or leave such rows out"
                )
            on_a_row = state[:2] in ("22", "23")
            return errors.StatementFailed(
                plain,
                found=f"[{condition}]",
                expected="a value for every row"
                if on_a_row
                else "an operation that Spark supports",
                remedy="Change the statement or the source, or leave such rows out"
                if on_a_row
                else "Correct the statement or the source",
            )
    java = _ERROR_IN_JAVA.search(text)
    if java is not None:
        return errors.StatementFailed(
            "the statement fails on some row",
            found=java[1].strip()[:300],
            expected="a value for every row",
            remedy="Change the statement or the source, or leave such rows out",
        )
    short = isinstance(error, MemoryError)
    if short or OUT_OF_MEMORY.search(text):
        return errors.OutOfMemory(
            "the job ran out of memory",
            found=text[:300] if short else _around(OUT_OF_MEMORY, text),
            remedy="Give its driver or executors more memory in sparkTemplate (Python workers use "
            "`memoryOverhead`), or set a smaller target file size",
        )
    return errors.JobFailed(
        "the job failed",
        found=f"{type(error).__name__}: {text[:1500]}",
        remedy="See the job's log",
    )


def _around(pattern: re.Pattern[str], text: str) -> str:
    """The line of `text` that contains the match of `pattern`."""
    found = pattern.search(text)
    assert found is not None
    begin = text.rfind("\n", 0, found.start()) + 1
    end = text.find("\n", found.end())
    return text[begin : end if end >= 0 else len(text)].strip()[:300]


def main(run: Callable[[Control], None], arguments: Sequence[str] | None = None) -> int:
    """The main function of every script of `spark_apps/`: parse, run, record a failure.

    Exit codes: 0 answered (also if another driver was first), 1 failed with a recorded failure.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--location", required=True, help="the table's root")
    parser.add_argument("--spec", required=True, help="path of job.json below it")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--allowed", action="append", default=[], metavar="PREFIX")
    found = parser.parse_args(arguments)
    watch_parent()
    options = dict(option.split("=", 1) for option in found.option)
    try:
        control = open_job(found.location, found.spec, options, tuple(found.allowed))
    except TandemError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    say(control, f"{control.spec.job.kind} of version {control.spec.table.version} begins")
    code = answer(run, control)
    if code == 0:
        say(control, "answered")
    return code


def say(control: Control, text: str) -> None:
    """Print a line to the driver's log that names its resource, as the operator's lines do."""
    spec = control.spec
    whose = f"operation={spec.operation_id} attempt={spec.attempt}"
    sys.stderr.write(f"tandem {whose}: {text}\n")


def answer(run: Callable[[Control], None], control: Control) -> int:
    """Run a job; a failure is written to `failure.json` of round 0 and to stderr."""
    failure = recorded(run, control)
    if failure is not None:
        say(control, str(failure))
    return 1 if failure is not None else 0


def recorded(run: Callable[[Control], None], control: Control) -> TandemError | None:
    """Run a job; a failure is written to `failure.json` of round 0, and returned."""
    try:
        run(control)
    except Exception as error:  # noqa: BLE001 - the boundary of a job: recorded, not lost
        described = translate(error)
        control.fail(described)
        return described
    return None


# Progress of a running job: counters that tasks advance and the driver adds up.
#
# Spark sends a task's accumulators to the driver when the task ends, which for a large bin is the
# end of the job. So a task writes an object whose *length* is its count: one small put at most
# every `EVERY_SECONDS`, and one listing returns the counts of all tasks. For display only: no
# decision depends on them, and a counter that cannot be written fails no task.


EVERY_SECONDS = 0.5

ProgressFromCounts = Callable[[Mapping[int, int]], tuple[int, int]]
"""Counts of tasks by their number → (files done, bytes done)."""


class Counters(Protocol):
    """Where the tasks of a round count."""

    def show(self, number: int, count: int) -> None:
        """Record the count of a task."""
        ...

    def counts(self) -> Mapping[int, int]:
        """The counts of all tasks by number. Raises: StorageError."""
        ...


@dataclass(frozen=True)
class StoredCounters:
    """Counts as objects of a store, for tasks in other processes."""

    store: Store
    prefix: str

    def show(self, number: int, count: int) -> None:
        with contextlib.suppress(TandemError):  # a counter fails no task
            self.store.put(f"{self.prefix}/{number}", b"." * count)

    def counts(self) -> Mapping[int, int]:
        return {int(m.path.rpartition("/")[2]): m.size for m in self.store.list(self.prefix)}


@dataclass(frozen=True)
class HeldCounters:
    """Counts in memory, for tasks in the driver's own process."""

    held: dict[int, int] = field(default_factory=dict)

    def show(self, number: int, count: int) -> None:
        self.held[number] = count

    def counts(self) -> Mapping[int, int]:
        return dict(self.held)


class Counter:
    """The count of task `number`; counts nothing without `counters`. Not thread-safe."""

    def __init__(self, counters: Counters | None, number: int) -> None:
        self._counters = counters
        self._number = number
        self._count = 0
        self._shown = 0
        self._shown_at = time.monotonic()

    def add(self) -> None:
        """Count one more; shown now, with a later one, or by `show`."""
        self._count += 1
        if time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self.show()

    def show(self) -> None:
        """Show the current count: a task ends with it, since there is no later call."""
        if self._counters is None or self._shown == self._count:
            return
        self._shown, self._shown_at = self._count, time.monotonic()
        self._counters.show(self._number, self._count)


@contextlib.contextmanager
def reported(
    control: Control, stage: str, total: tuple[int, int], done: ProgressFromCounts, round_: int = 0
) -> Iterator[None]:
    """Report progress while the block runs: from zero to all of `total`, (files, bytes), or to the
    state at which the block failed."""
    ended = threading.Event()
    counters = control.counters(round_)

    def report(files: int, size: int) -> None:
        control.progress(
            JobProgress(
                files_done=files,
                files_total=total[0],
                bytes_done=size,
                bytes_total=total[1],
                stage=stage,
            )
        )

    def watch() -> None:
        shown = (0, 0)
        while not ended.wait(EVERY_SECONDS):
            with contextlib.suppress(TandemError):  # a counter fails no job
                found = done(counters.counts())
                if found > shown:
                    shown = found
                    report(*found)

    report(0, 0)
    thread = threading.Thread(target=watch, name="tandem-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    report(*total)


# Arrow tables as bytes: what tasks send to the driver, and what results refer to.


def to_stream(table: pa.Table) -> bytes:
    """An Arrow IPC stream, compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def to_file(table: pa.Table) -> bytes:
    """An Arrow IPC file, compressed: positions compress well."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())
