"""What earlier runs of an operation left below `_tandem`, and whether it can be used.

The operation id of a resource, and which of its runs (`--again`) it stands for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import ManifestInvalid, Reason
from tandem.jobs.formats import JobSpec, RoundRequest
from tandem.jobs.port import JobKey, Jobs
from tandem.jobs.results import JobResult
from tandem.operations import attempt_files
from tandem.operations.attempt_files import (
    AttemptRecord,
    EndedRecord,
    OperationRecord,
    PlanRecord,
    ResultRecord,
)
from tandem.operations.machine.events import EarlierFound, Ending, Yields
from tandem.operations.machine.transitions import YIELDED_TO
from tandem.operations.model import Identity, Table, Work
from tandem.operations.ports import Processes, ProcessId
from tandem.operations.session import commit_actions
from tandem.operations.session.commit_actions import TxnMarkers
from tandem.spec.resources import Operation, canonical_spec, spec_hash
from tandem.spec.status import Phase
from tandem.storage.store import ObjectInfo, Store, exists, side_by_side

_FROZEN = frozenset({"plan.json", "job.json"})


def find_earlier(
    store: Store,
    operation_id: str,
    markers: TxnMarkers,
    processes: Processes,
    jobs: Jobs,
    claimed_here: Callable[[int], bool],
    now_ms: int = 0,
    *,
    parallel: int = 1,
) -> EarlierFound:
    """Read the records of all attempts; one listing, and a read or two per attempt.
    `claimed_here` says whether another session of this process works on an attempt. When an
    attempt ended is when its record was written, by the store's clock. `parallel`: so many
    requests are made at once.

    Raises: ManifestInvalid if a record is damaged, StorageError.
    """
    path = attempt_files.result(operation_id)
    recorded: list[ResultRecord | None] = []
    listed: list[ObjectInfo] = []
    side_by_side(
        [
            lambda: recorded.append(
                attempt_files.load(store, path, ResultRecord, operation_id=operation_id)
            ),
            lambda: listed.extend(store.list(attempt_files.attempts(operation_id))),
        ],
        parallel,
    )
    files: dict[int, set[str]] = defaultdict(set)
    ended_ms: dict[int, int] = {}
    for meta in listed:
        split = attempt_files.split_attempt(meta.path)
        if split is not None:
            files[split[0]].add(split[1])
            if split[1] == "ended.json":
                ended_ms[split[0]] = meta.modified_ms
    claimed = [attempt for attempt, names in files.items() if "attempt.json" in names]
    last = max(claimed, default=0)
    if recorded[0] is not None:
        return EarlierFound(recorded=ending_of(recorded[0]), attempt=last)
    if markers.closed:
        path = attempt_files.ending(operation_id)
        ending = attempt_files.load(store, path, ResultRecord, operation_id=operation_id)
        if ending is not None:
            return EarlierFound(closing=ending_of(ending), attempt=last)
    if (
        "ended.json" in files[last]
        and (ending_before := ending_before_start(store, operation_id, last)) is not None
    ):
        return EarlierFound(closing=ending_before, attempt=last)
    abandoned = markers.abandoned
    dead = sorted(n for n in claimed if n <= abandoned or "ended.json" in files[n])
    ends = {attempt: _ended(store, operation_id, attempt, files[attempt]) for attempt in dead}
    failures = sum(1 for end in ends.values() if end is None or end.counted)
    yields = Yields()
    for attempt, end in ends.items():
        if end is not None and end.reason == Reason.YIELDED:
            by = end.message.removeprefix(YIELDED_TO)
            yields = Yields(yields.count + 1, by, ended_ms[attempt])
    alive = ""
    over = last <= abandoned or "ended.json" in files[last]
    if not over:
        me = f"another session of {processes.me()}"
        alive = me if claimed_here(last) else _alive(store, operation_id, last, processes)
    frozen = files[last] >= _FROZEN and "ended.json" not in files[last]
    complete = frozen and "rounds/0/result.json" in files[last]
    going_on = frozen and not complete and not alive and not over
    return EarlierFound(
        attempt=last,
        begun="plan.json" in files[last],
        ended="ended.json" in files[last],
        complete=complete,
        running=going_on and jobs.knows(job_key(store, operation_id, last)),
        alive=alive,
        failures=failures,
        yields=yields,
        now_ms=now_ms,
    )


def ending_before_start(store: Store, operation_id: str, attempt: int) -> Ending | None:
    """How the operation ended, if it did so with this attempt before starting it. The log does
    not show such an ending. Raises: ManifestInvalid, StorageError."""
    path = attempt_files.ended(operation_id, attempt)
    ended = attempt_files.load(store, path, EndedRecord, operation_id=operation_id)
    if ended is None or not ended.phase:
        return None
    return Ending(Phase(ended.phase), Reason(ended.reason), ended.message, attempt)


def last_ending_before_start(store: Store, operation_id: str) -> Ending | None:
    """`ending_before_start` of the highest attempt that any session has claimed."""
    last = highest_claim(store, operation_id)
    return ending_before_start(store, operation_id, last) if last else None


def has_live_plan(store: Store, operation_id: str, markers: TxnMarkers) -> bool:
    """Whether an attempt has a plan, and may yet commit."""
    splits = (
        attempt_files.split_attempt(m.path)
        for m in store.list(attempt_files.attempts(operation_id))
    )
    plans = {s[0] for s in splits if s is not None and s[1] == "plan.json"}
    return any(not markers.forbid(attempt) for attempt in plans)


def job_key(store: Store, operation_id: str, attempt: int) -> JobKey:
    """The job of an attempt."""
    return JobKey(attempt_files.job_name(operation_id, attempt), operation_id, attempt, store)


def highest_claim(store: Store, operation_id: str) -> int:
    """The highest attempt that any session has claimed; 0 for none."""
    splits = (
        attempt_files.split_attempt(m.path)
        for m in store.list(attempt_files.attempts(operation_id))
    )
    return max((s[0] for s in splits if s is not None), default=0)


def ending_of(record: ResultRecord) -> Ending:
    """The ending that a result record holds."""
    return Ending(
        Phase(record.phase),
        Reason(record.reason),
        record.message,
        record.attempt,
        result=record.result,
        plan=record.plan,
        started_ms=record.started_ms,
        ended_ms=record.ended_ms,
    )


def _ended(store: Store, operation_id: str, attempt: int, names: set[str]) -> EndedRecord | None:
    """How an attempt ended; None if it died without a record."""
    if "ended.json" not in names:
        return None
    path = attempt_files.ended(operation_id, attempt)
    return attempt_files.load(store, path, EndedRecord, operation_id=operation_id)


def _alive(store: Store, operation_id: str, attempt: int, processes: Processes) -> str:
    path = attempt_files.claim(operation_id, attempt)
    claim = attempt_files.load(store, path, AttemptRecord, operation_id=operation_id)
    if claim is None:
        return ""
    process = ProcessId(claim.host, claim.pid, claim.started)
    if process == processes.me() or not processes.alive(process):
        return ""
    return str(process)


def load_frozen(store: Store, operation_id: str, attempt: int) -> tuple[PlanRecord, JobSpec]:
    """plan.json and job.json of an attempt. Raises: ManifestInvalid, StorageError."""
    expected = {"operation_id": operation_id, "attempt": attempt}
    plan_path = attempt_files.plan(operation_id, attempt)
    job_path = attempt_files.job(operation_id, attempt)
    plan = attempt_files.load(store, plan_path, PlanRecord, **expected)
    job = attempt_files.load(store, job_path, JobSpec, **expected)
    for path, record in ((plan_path, plan), (job_path, job)):
        if record is None:
            raise ManifestInvalid("this file is absent", resource=path, expected="the frozen plan")
    assert plan is not None
    assert job is not None
    return plan, job


def load_rounds(store: Store, work: Work, attempt: int) -> int:
    """Load requests and results of all rounds that are complete. Returns the last one's number,
    -1 if there is none.

    Raises: ManifestInvalid, StorageError.
    """
    operation_id = work.identity.operation_id
    expected = {"operation_id": operation_id, "attempt": attempt}
    round_ = 0
    while True:
        path = attempt_files.round_file(operation_id, attempt, round_, "result.json")
        result = attempt_files.load(store, path, JobResult, **expected, round=round_)
        if result is None:
            break
        if round_:
            path = attempt_files.round_file(operation_id, attempt, round_, "request.json")
            request = attempt_files.load(store, path, RoundRequest, **expected, round=round_)
            if request is None:
                raise ManifestInvalid("this file is absent", resource=path)
            work.requests[round_] = request
        work.results[round_] = result
        round_ += 1
    return round_ - 1


def awaited(store: Store, work: Work, attempt: int, jobs: Jobs) -> int | None:
    """The round that the attempt's job works on, whose request is loaded; None if no round is
    requested or the runner does not know the job. To be called after `load_rounds`.

    Raises: ManifestInvalid, StorageError.
    """
    operation_id = work.identity.operation_id
    round_ = len(work.results)
    if not jobs.knows(job_key(store, operation_id, attempt)):
        return None
    if round_:  # job.json requests the first
        path = attempt_files.round_file(operation_id, attempt, round_, "request.json")
        expected = {"operation_id": operation_id, "attempt": attempt, "round": round_}
        request = attempt_files.load(store, path, RoundRequest, **expected)
        if request is None:
            return None
        work.requests[round_] = request
    return round_


def identify(
    resource: Operation,
    table: Table,
    snapshot: Snapshot,
    *,
    again: bool,
    only_failed: bool = False,
) -> Identity:
    """The latest run of a resource; with `again` a new one, unless the latest is unfinished, which
    is then continued: a killed `--again` is not lost. With `only_failed`, `again` starts no new
    run after a success.

    A run on another table that was at this location before does not count: a new one is started
    in any case (docs/decisions/0089).

    Raises: ManifestInvalid, StorageError.
    """
    hash_ = spec_hash(resource)

    def at(run: int) -> Identity:
        return Identity(
            operation_id=attempt_files.operation_id(
                resource.namespace, resource.kind_name, resource.name, hash_, run
            ),
            kind=resource.kind_name,
            namespace=resource.namespace,
            name=resource.name,
            spec_hash=hash_,
            spec=canonical_spec(resource),
            run=run,
        )

    run = 1
    while has_begun(table, snapshot, at(run + 1).operation_id):
        run += 1
    latest = at(run)
    if _of_another_table(table, snapshot, latest.operation_id):
        return at(run + 1)
    over = _failed if only_failed else has_ended
    if again and over(table, snapshot, latest.operation_id):
        return at(run + 1)
    return latest


def has_begun(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has begun. The log shows it for longer than its record is kept."""
    in_log = commit_actions.txn_markers(snapshot, operation_id) != commit_actions.TxnMarkers()
    return in_log or exists(table.store, attempt_files.identity(operation_id))


def may_count(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has ended, or has an attempt with a plan that may yet commit."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    return has_ended(table, snapshot, operation_id) or has_live_plan(
        table.store, operation_id, markers
    )


def is_recorded(table: Table, operation_id: str) -> bool:
    """Whether the end of the run is recorded: nothing of it is left to do."""
    return exists(table.store, attempt_files.result(operation_id))


def has_ended(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has ended: it is not continued."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    if markers.succeeded > 0 or markers.closed or is_recorded(table, operation_id):
        return True
    return last_ending_before_start(table.store, operation_id) is not None


def _failed(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run has failed. Without a record, that the log shows the operation as closed
    means only that it did not succeed."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    if markers.succeeded:
        return False
    path = attempt_files.result(operation_id)
    record = attempt_files.load(table.store, path, ResultRecord, operation_id=operation_id)
    if record is not None:
        return record.phase == Phase.FAILED
    ending = last_ending_before_start(table.store, operation_id)
    return markers.closed if ending is None else ending.phase is Phase.FAILED


def _of_another_table(table: Table, snapshot: Snapshot, operation_id: str) -> bool:
    """Whether the run was on another table. One that this log shows was on this table, even if
    the table's id has changed."""
    if commit_actions.txn_markers(snapshot, operation_id) != commit_actions.TxnMarkers():
        return False
    path = attempt_files.identity(operation_id)
    record = attempt_files.load(table.store, path, OperationRecord, operation_id=operation_id)
    return record is not None and record.table_id not in ("", snapshot.metadata.id)
