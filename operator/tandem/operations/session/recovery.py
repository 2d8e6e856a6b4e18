"""What earlier runs of an operation left below `_tandem`, and whether it can be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tandem.errors import ManifestInvalid, Reason
from tandem.jobs.formats import JobSpec, RoundRequest
from tandem.jobs.port import JobKey, Jobs
from tandem.jobs.results import JobResult
from tandem.operations.attempt import paths, records
from tandem.operations.attempt.records import AttemptRecord, EndedRecord, PlanRecord, ResultRecord
from tandem.operations.machine.events import EarlierFound, Ending, Yields
from tandem.operations.machine.transitions import YIELDED_TO
from tandem.operations.model import Work
from tandem.operations.ports import Processes, ProcessId
from tandem.operations.session.commit_actions import TxnMarkers
from tandem.spec.status import Phase
from tandem.storage.store import ObjectInfo, Store, side_by_side

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
    path = paths.result(operation_id)
    recorded: list[ResultRecord | None] = []
    listed: list[ObjectInfo] = []
    side_by_side(
        [
            lambda: recorded.append(
                records.load(store, path, ResultRecord, operation_id=operation_id)
            ),
            lambda: listed.extend(store.list(paths.attempts(operation_id))),
        ],
        parallel,
    )
    files: dict[int, set[str]] = defaultdict(set)
    ended_ms: dict[int, int] = {}
    for meta in listed:
        split = paths.split_attempt(meta.path)
        if split is not None:
            files[split[0]].add(split[1])
            if split[1] == "ended.json":
                ended_ms[split[0]] = meta.modified_ms
    claimed = [attempt for attempt, names in files.items() if "attempt.json" in names]
    last = max(claimed, default=0)
    if recorded[0] is not None:
        return EarlierFound(recorded=ending_of(recorded[0]), attempt=last)
    if markers.closed:
        path = paths.ending(operation_id)
        ending = records.load(store, path, ResultRecord, operation_id=operation_id)
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
    path = paths.ended(operation_id, attempt)
    ended = records.load(store, path, EndedRecord, operation_id=operation_id)
    if ended is None or not ended.phase:
        return None
    return Ending(Phase(ended.phase), Reason(ended.reason), ended.message, attempt)


def last_ending_before_start(store: Store, operation_id: str) -> Ending | None:
    """`ending_before_start` of the highest attempt that any session has claimed."""
    last = highest_claim(store, operation_id)
    return ending_before_start(store, operation_id, last) if last else None


def has_live_plan(store: Store, operation_id: str, markers: TxnMarkers) -> bool:
    """Whether an attempt has a plan, and may yet commit."""
    splits = (paths.split_attempt(m.path) for m in store.list(paths.attempts(operation_id)))
    plans = {s[0] for s in splits if s is not None and s[1] == "plan.json"}
    return any(not markers.forbid(attempt) for attempt in plans)


def job_key(store: Store, operation_id: str, attempt: int) -> JobKey:
    """The job of an attempt."""
    return JobKey(paths.job_name(operation_id, attempt), operation_id, attempt, store)


def highest_claim(store: Store, operation_id: str) -> int:
    """The highest attempt that any session has claimed; 0 for none."""
    splits = (paths.split_attempt(m.path) for m in store.list(paths.attempts(operation_id)))
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
    path = paths.ended(operation_id, attempt)
    return records.load(store, path, EndedRecord, operation_id=operation_id)


def _alive(store: Store, operation_id: str, attempt: int, processes: Processes) -> str:
    path = paths.claim(operation_id, attempt)
    claim = records.load(store, path, AttemptRecord, operation_id=operation_id)
    if claim is None:
        return ""
    process = ProcessId(claim.host, claim.pid, claim.started)
    if process == processes.me() or not processes.alive(process):
        return ""
    return str(process)


def load_frozen(store: Store, operation_id: str, attempt: int) -> tuple[PlanRecord, JobSpec]:
    """plan.json and job.json of an attempt. Raises: ManifestInvalid, StorageError."""
    expected = {"operation_id": operation_id, "attempt": attempt}
    plan_path = paths.plan(operation_id, attempt)
    job_path = paths.job(operation_id, attempt)
    plan = records.load(store, plan_path, PlanRecord, **expected)
    job = records.load(store, job_path, JobSpec, **expected)
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
        path = paths.round_file(operation_id, attempt, round_, "result.json")
        result = records.load(store, path, JobResult, **expected, round=round_)
        if result is None:
            break
        if round_:
            path = paths.round_file(operation_id, attempt, round_, "request.json")
            request = records.load(store, path, RoundRequest, **expected, round=round_)
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
        path = paths.round_file(operation_id, attempt, round_, "request.json")
        expected = {"operation_id": operation_id, "attempt": attempt, "round": round_}
        request = records.load(store, path, RoundRequest, **expected)
        if request is None:
            return None
        work.requests[round_] = request
    return round_
