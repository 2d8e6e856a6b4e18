"""The engine's side of a job: freezes its plan, starts it, polls it, verifies its result.

Jobs in processes of their own (`FileJobs`) speak with the engine through files of the attempt. The
truth about success is the result file, never the state that the runner reports: that only says
when to stop waiting. `tandem.jobs.formats` says which files there are, and who writes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tandem.delta.datafiles.bloom_filters import usable_filters
from tandem.delta.protocol import repeats_partitions, row_id_columns
from tandem.errors import AlreadyExists, ManifestInvalid, OutputMissing, Reason
from tandem.jobs.formats import (
    FileJob,
    IdentityValues,
    Job,
    JobSpec,
    JobTable,
    ReplaceJob,
    RoundRequest,
)
from tandem.jobs.port import JobKey, JobPlace, Jobs, RoundState, read_side_file
from tandem.jobs.results import JobFailure, JobProgress, JobResult, SideFileRef
from tandem.jobs.runner import LOST, JobPhase, JobRequest, JobRunner, RenewingRunner
from tandem.operations import attempt_files
from tandem.operations.attempt_files import PlanRecord, ProtocolRecord
from tandem.operations.machine.events import Event, JobLost, JobRunning, RoundDone
from tandem.operations.model import ProgressBaseline, Work
from tandem.operations.session import carry_out
from tandem.operations.session.recovery import job_key
from tandem.operations.status import duration_in_words
from tandem.spec.status import Progress
from tandem.storage.renewable import Vended, vended_for
from tandem.storage.store import Store, exists, side_by_side

LOOK_EVERY = 20
"""One of so many polls checks whether another session has ended the attempt."""
_TELLING = 20
"""An ETA is given once the twentieth part of the work is done."""


def persist(work: Work, attempt: int, identity: Mapping[str, IdentityValues]) -> None:
    """Write plan.json and job.json. From then on the inputs are frozen, and pinned. `identity` are
    the values that new rows get."""
    planned = work.planned
    assert planned is not None
    assert planned.job is not None
    operation_id = work.identity.operation_id
    snapshot = work.snapshot
    plan = PlanRecord.model_validate(
        {
            "operation_id": operation_id,
            "attempt": attempt,
            "kind": work.identity.kind,
            "read_version": snapshot.version,
            "table_id": snapshot.metadata.id,
            "protocol": ProtocolRecord(
                min_reader=snapshot.protocol.min_reader,
                min_writer=snapshot.protocol.min_writer,
                reader_features=tuple(sorted(snapshot.protocol.reader_features)),
                writer_features=tuple(sorted(snapshot.protocol.writer_features)),
            ),
            "summary": planned.summary,
            "started_ms": work.now_ms,
            "locks": attempt_files.LocksRecord.of(planned.locks),
            **planned.record,
        }
    )
    job = JobSpec(
        operation_id=operation_id,
        attempt=attempt,
        table=JobTable(
            location=work.table.location,
            version=snapshot.version,
            table_id=snapshot.metadata.id,
            schema_string=snapshot.metadata.schema_string,
            partition_columns=snapshot.metadata.partition_columns,
            configuration=dict(snapshot.metadata.configuration),
            storage_options=dict(work.table.storage_options),
            allowed_prefixes=work.table.readable_prefixes,
            bloom_filters={**_filters(work), **planned.bloom_filters},
            row_ids=row_id_columns(snapshot.protocol, snapshot.metadata)
            if isinstance(planned.job, FileJob | ReplaceJob)
            else None,
            repeats_partitions=repeats_partitions(snapshot.protocol, snapshot.metadata),
            identity=dict(identity),
        ),
        data_prefix=attempt_files.data(operation_id, attempt),
        control_prefix=attempt_files.attempt(operation_id, attempt),
        job=planned.job,
    )
    # Repeated after a lost answer, both are the same bytes. One alone is no frozen plan.
    put, parallel = work.table.store.put, work.table.log.parallel_requests
    side_by_side(
        [
            lambda: put(attempt_files.plan(operation_id, attempt), attempt_files.encode(plan)),
            lambda: put(attempt_files.job(operation_id, attempt), attempt_files.encode(job)),
        ],
        parallel,
    )
    if not job.job.needs_spark:
        # The result of a job that has nothing to do, so that any process can go on from here.
        empty = JobResult(operation_id=operation_id, attempt=attempt)
        path = attempt_files.round_file(operation_id, attempt, 0, "result.json")
        attempt_files.put_once(work.table.store, path, empty)
    work.plan, work.job = plan, job


def withdraw(work: Work, attempt: int) -> None:
    """Delete what `persist` wrote, and forget the attempt's plan. Only while it is certain that the
    job does not exist: it would read another plan. Raises: StorageError."""
    operation_id = work.identity.operation_id
    stored = [attempt_files.plan(operation_id, attempt), attempt_files.job(operation_id, attempt)]
    work.table.store.delete(stored)
    work.forget_attempt()


def _filters(work: Work) -> dict[str, float]:
    """The bloom filters that new files of the table get. Blocks of a log get none: they are short
    of life, and the index does not read them."""
    lake = work.table.spec
    index = None if lake is None or work.table.base is not None else lake.spec.index
    if index is None or index.bloom_filters is None:
        return {}
    snapshot = work.snapshot
    return usable_filters(
        index.bloom_filters.columns,
        index.bloom_filters.false_positives,
        snapshot.schema,
        snapshot.partition_columns,
    )


def request(work: Work, attempt: int) -> JobRequest:
    """The job to start. Raises: StorageError if its credentials cannot be had."""
    operation_id = work.identity.operation_id
    plan, spec = work.frozen
    vended = vended_for(work.table.store)
    # Of an attempt that another session planned, the size of a source is not known.
    source = work.planned.source_bytes if work.planned else None if spec.job.sources else 0
    return JobRequest(
        name=attempt_files.job_name(operation_id, attempt),
        app=spec.job.app,
        location=work.table.location,
        spec_path=attempt_files.job(operation_id, attempt),
        storage_options=tuple(sorted(work.table.storage_options.items())),
        input_bytes=plan.summary.input_bytes + (source or 0),
        size_known=source is not None,
        tasks=spec.job.tasks,
        operation_id=operation_id,
        attempt=attempt,
        allowed_locations=work.table.allowed_prefixes,
        environ=() if vended is None else tuple(sorted(vended.environ.items())),
        expires_ms=None if vended is None else vended.expires_ms,
    )


def planned_job(work: Work) -> tuple[Job, int]:
    """The job of the attempt, frozen or about to be, and how many bytes it reads, of a source as
    far as that is known."""
    if work.plan is not None and work.job is not None:
        job, read = work.job.job, work.plan.summary.input_bytes
    else:
        assert work.planned is not None
        assert work.planned.job is not None
        job, read = work.planned.job, work.planned.summary.input_bytes
    source = work.planned.source_bytes if work.planned else 0
    return job, read + (source or 0)


def key(work: Work, attempt: int) -> JobKey:
    """The job of an attempt."""
    return job_key(work.table.store, work.identity.operation_id, attempt)


def poll(work: Work, jobs: Jobs, attempt: int, round_: int, now_ms: int) -> Event:
    """Whether the round's result is there, may still come, or will never come."""
    store, operation_id = work.table.store, work.identity.operation_id
    found = jobs.poll(key(work, attempt), round_)
    if found.has_result:
        return RoundDone(round_)
    status, failure = found.status, found.failure
    if failure is not None:
        # The job does not know for which resource it works.
        message = f"{work.identity.display}: {failure.message}"
        return JobLost(_reason(failure.reason), message, failure.transient)
    if status.phase in LOST:
        where = f" (log: {status.log})" if status.log else ""
        message = status.message or "the job ended without a result"
        return JobLost(status.reason or Reason.JOB_FAILED, f"{message}{where}", status.transient)
    work.polls += 1
    if work.polls % LOOK_EVERY == 0 and _is_over(store, operation_id, attempt):
        # Its result has been cleaned away, or will be, and its driver waits for more rounds.
        message = f"attempt {attempt} was declared dead and ended by another session"
        return JobLost(Reason.ABANDONED, message)
    # A job that only waits is not lost: its image may still be pushed, a node be added.
    waiting_reason = None if status.reason is None else (status.reason, status.message)
    return JobRunning(_progress(work, found.progress, round_, now_ms), waiting_reason)


def read_result(work: Work, jobs: Jobs, attempt: int, round_: int) -> None:
    """Read the round's manifest into `work`. Raises: ManifestInvalid, StorageError."""
    operation_id = work.identity.operation_id
    path = attempt_files.round_file(operation_id, attempt, round_, "result.json")
    _, spec = work.frozen
    if spec.job.needs_spark:
        result = jobs.result(key(work, attempt), round_)
    else:
        result = JobResult(operation_id=operation_id, attempt=attempt)
    if result is None:
        raise ManifestInvalid(
            "the result no longer exists",
            resource=path,
            found="no such object",
            expected="the result that existed a moment ago",
            remedy="Check that no other process removes files below _tandem",
        )
    request = work.requests.get(round_)
    edits = None if request is None else request.edits
    changes = (None if edits is None else edits.changes) or ()
    for number, output in enumerate(result.outputs):
        is_change = number < len(changes) and changes[number] is not None
        of = attempt_files.change_files if is_change else attempt_files.data
        folder = of(operation_id, attempt) + "/"
        if not output.path.startswith(folder):
            raise ManifestInvalid(
                "the result names a file outside its attempt's folder",
                resource=path,
                field="outputs.path",
                found=output.path,
                expected=f"{folder}…",
            )
    work.results[round_] = result


def outputs(work: Work, attempt: int) -> Mapping[str, int]:
    """The sizes of the attempt's data files, and of change files if its commit names any, that
    exist, by path. Raises: StorageError."""
    assert work.change is not None
    of = [attempt_files.data, *([attempt_files.change_files] if work.change.changes else [])]
    folders = [each(work.identity.operation_id, attempt) for each in of]
    return {m.path: m.size for folder in folders for m in work.table.store.list(folder)}


def check_outputs(there: Mapping[str, int], work: Work) -> None:
    """Check that our files still exist: a vacuum without retention deletes files that no commit
    refers to. `there` are `outputs`.

    Raises: OutputMissing.
    """
    assert work.change is not None
    files = [(output.add.path, output.add.size) for output in work.change.outputs]
    files += [(f.path, f.size) for f in carry_out.change_files(work, work.change)]
    for path, size in files:
        if there.get(path) != size:
            raise OutputMissing(
                "a file that the job wrote was deleted before the commit",
                resource=path,
                found=f"{there.get(path, 'no')} bytes",
                expected=f"{size} bytes",
                remedy="Is this table vacuumed with a retention of zero?",
            )


def _is_over(store: Store, operation_id: str, attempt: int) -> bool:
    """Whether another session has ended the attempt or the operation. Cleaning later deletes even
    the record of that, together with the plan, which is older than the job."""
    ended, plan = (
        attempt_files.ended(operation_id, attempt),
        attempt_files.plan(operation_id, attempt),
    )
    result = attempt_files.result(operation_id)
    return exists(store, ended) or exists(store, result) or not exists(store, plan)


def _reason(text: str) -> Reason:
    return Reason(text) if text in set(Reason) else Reason.JOB_FAILED


def _progress(work: Work, found: JobProgress | None, round_: int, now_ms: int) -> Progress | None:
    if found is None:
        return None
    total = found.bytes_total or found.files_total
    done = min(total, found.bytes_done if found.bytes_total else found.files_done)
    pace = work.progress_baseline
    if pace is None or (pace.round, pace.total) != (round_, total) or done < pace.done:
        pace = work.progress_baseline = ProgressBaseline(round_, total, done, now_ms)
    eta = eta_seconds(pace, done, now_ms)
    left = "" if eta is None else f", {duration_in_words(eta)} left"
    return Progress(
        percent=100 * done // total if total else 0,
        files_done=found.files_done,
        files_total=found.files_total,
        bytes_done=found.bytes_done,
        bytes_total=found.bytes_total,
        eta_seconds=eta,
        summary=f"{found.files_done}/{found.files_total} files{left}",
    )


def eta_seconds(pace: ProgressBaseline, done: int, now_ms: int) -> int | None:
    """Seconds that the rest takes at the same pace; None while there is no estimate.

    The first files are not representative: Python's workers are still starting.
    """
    gained, elapsed_ms = done - pace.done, now_ms - pace.since_ms
    if gained * _TELLING < pace.total or elapsed_ms <= 0 or done >= pace.total:
        return None
    return math.ceil((pace.total - done) * elapsed_ms / gained / 1000)


class FileJobs:
    """The jobs that `runner` starts. `job.json` is there before the start: it is a part of the
    attempt's plan."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner
        self._given: dict[str, Vended] = {}
        """The credentials that jobs have from this process, by their names."""

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:  # noqa: ARG002
        return JobPlace.ELSEWHERE

    def place_of(self, key: JobKey) -> JobPlace:  # noqa: ARG002
        return JobPlace.ELSEWHERE

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:  # noqa: ARG002
        self._runner.start(request)
        self._given[key.name] = request.vended

    def knows(self, key: JobKey) -> bool:
        return self._runner.status(key.name).phase is not JobPhase.UNKNOWN

    def poll(self, key: JobKey, round_: int) -> RoundState:
        # Asked before looking for the result, so that one written in between is not missed.
        status = self._runner.status(key.name)
        if exists(key.store, _of_round(key, round_, "result.json")):
            return RoundState(status, has_result=True)
        failure = _failure(key, round_)
        if failure is not None or status.phase in LOST:
            return RoundState(status, failure=failure)
        self._renew(key)
        return RoundState(status, progress=_job_progress(key))

    def _renew(self, key: JobKey) -> None:
        """Give a running job the credentials that its table's store has by now. What an earlier
        process has given is not known: they are given again."""
        vended = vended_for(key.store)
        if vended is None or vended == self._given.get(key.name):
            return
        if isinstance(self._runner, RenewingRunner):
            self._runner.renew(key.name, vended)
        self._given[key.name] = vended

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        path = _of_round(key, round_, "result.json")
        expected = {"operation_id": key.operation_id, "attempt": key.attempt, "round": round_}
        return attempt_files.load(key.store, path, JobResult, **expected)

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        return read_side_file(store, ref)

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        path = _of_round(key, request.round, "request.json")
        try:
            key.store.put_if_absent(path, attempt_files.encode(request))
        except AlreadyExists:
            # A duplicate of this process, or our first try, made a request before, which stands.
            there = attempt_files.load(key.store, path, RoundRequest, round=request.round)
            if there is None:
                raise
            return there
        return request

    def finish(self, key: JobKey) -> None:
        key.store.put(attempt_files.done(key.operation_id, key.attempt), b"{}")

    def stop(self, key: JobKey) -> None:
        self._runner.stop(key.name)


def _of_round(key: JobKey, round_: int, name: str) -> str:
    return attempt_files.round_file(key.operation_id, key.attempt, round_, name)


def _failure(key: JobKey, round_: int) -> JobFailure | None:
    # One driver serves all rounds: it may have reported its failure in the round it began with.
    expected = {"operation_id": key.operation_id, "attempt": key.attempt}
    for reported_in in sorted({round_, 0}, reverse=True):
        path = _of_round(key, reported_in, "failure.json")
        found = attempt_files.load(key.store, path, JobFailure, **expected)
        if found is not None:
            return found
    return None


def _job_progress(key: JobKey) -> JobProgress | None:
    path = attempt_files.progress(key.operation_id, key.attempt)
    try:
        return attempt_files.load(key.store, path, JobProgress)
    except ManifestInvalid:
        return None  # only for display, and overwritten while we read
