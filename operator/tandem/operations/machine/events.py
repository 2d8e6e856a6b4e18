"""The machine's outputs, named points with their arguments, and its inputs: one small frozen class
per kind of answer, and stop requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    DataFileMissing,
    ManifestInvalid,
    ObjectNotFound,
    OutputMissing,
    Reason,
    RowMapInvalid,
    StorageError,
    StorageFull,
    TandemError,
    TooLarge,
    Unreachable,
)
from tandem.spec.status import OperationResult, Phase, Plan, Progress

# The machine's outputs: named points, and one small value that carries their arguments.
#
# Every effect is idempotent: performing it twice, or performing it and losing the answer, has the
# same result as performing it once. Tests intercept effects by `Point`.


class Point(StrEnum):
    """The named points, roughly in the order in which an operation reaches them."""

    READ_TABLE = "ReadTable"  # the latest version, and the markers that it shows
    CHECK_EARLIER_OUTCOME = "CheckEarlierOutcome"  # what earlier runs left under _tandem
    FIND_COMMIT = "FindCommit"  # the commit of a success that the log shows
    PLAN = "Plan"
    CLAIM_ATTEMPT = "ClaimAttempt"  # attempt.json, put if absent
    ADOPT_ATTEMPT = "AdoptAttempt"  # load the plan and results that an earlier run left
    ACQUIRE_LOCKS = "AcquireLocks"
    AWAIT_LOCKS = "AwaitLocks"
    PERSIST_PLAN = "PersistPlan"  # plan.json and job.json: from here the inputs are pinned
    START_JOB = "StartJob"
    POLL_JOB = "PollJob"
    READ_RESULT = "ReadResult"  # of one round, verified
    RECONCILE = "Reconcile"  # decide against the version last read
    REQUEST_ROUND = "RequestRound"
    WRITE_SIDECARS = "WriteSidecars"  # deletion vectors and the row map; not of a checkpoint
    ENTER_COMMIT = "EnterCommit"  # are our locks still ours?
    PUT_COMMIT = "PutCommit"  # after a look whether our files are still there
    LOOK_UP_COMMIT = "LookUpCommit"  # whose commit is it that we could not be sure of?
    RECORD_RESULT = "RecordResult"  # result.json
    FINISH_JOB = "FinishJob"  # done.json: the job's driver may end
    STOP_JOB = "StopJob"
    END_ATTEMPT = "EndAttempt"  # ended.json: no session continues it, another attempt follows
    ABANDON_ATTEMPT = "AbandonAttempt"  # commit that it and the attempts before it are dead
    CLEAN_ATTEMPT = "CleanAttempt"  # delete what attempts wrote that can never commit
    CLEAN_UNUSED = "CleanUnused"  # delete all that the operation wrote and its commit does not use
    RELEASE_LOCKS = "ReleaseLocks"
    MAINTAIN = "Maintain"  # checkpoint and log clean-up, as the table's properties ask


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect to perform. `delay_ms` is how long to wait before; `version` is the version to
    put or look up. Fields that a point does not use keep their defaults."""

    point: Point
    attempt: int = 0
    round: int = 0
    version: int = -1
    delay_ms: int = 0

    def __str__(self) -> str:
        parts = [
            f"{name}={value}"
            for name, value, default in (
                ("attempt", self.attempt, 0),
                ("round", self.round, 0),
                ("version", self.version, -1),
            )
            if value != default
        ]
        return f"{self.point}({', '.join(parts)})" if parts else str(self.point)


# The machine's inputs: one small frozen class per kind of answer, and stop requests.
#
# Events carry facts that decide control flow, and summaries for the status; never data. Snapshots,
# plans and change sets stay with the performer.


@dataclass(frozen=True, slots=True)
class Started:
    """Start, or start again after a crash: the existing state is looked up, not assumed."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """The latest version and the markers that it shows: the attempt that succeeded, the highest
    abandoned one (0 for none), and whether the operation is closed. `batches` is the number of the
    last batch that is committed (0: none)."""

    version: int
    succeeded: int = 0
    abandoned: int = 0
    closed: bool = False
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Yields:
    """How often attempts of an operation have yielded; the last time to `by`, at `last_ms` (Unix
    milliseconds)."""

    count: int = 0
    by: str = ""
    last_ms: int = 0


@dataclass(frozen=True, slots=True)
class EarlierFound:
    """What earlier runs left.

    `attempt` is the highest claimed one (0: none). `begun`: its plan was frozen; an attempt
    without a plan does not count as failed. `ended`: its record says that it ended, and another
    attempt follows. `complete`: all of its results are there. `running`:
    its frozen plan is there and the job runner knows its job. `alive` names a live process that
    works on it. `failures` counts attempts that failed, including those that died without a
    record, but not those that were interrupted. `recorded` is the result. `closing` is the ending
    of an operation that was closed, or ended before its start, and whose result is not recorded
    yet. `now_ms` is the time of the answer."""

    recorded: Ending | None = None
    closing: Ending | None = None
    attempt: int = 0
    begun: bool = True
    ended: bool = False
    complete: bool = False
    running: bool = False
    alive: str = ""
    failures: int = 0
    yields: Yields = Yields()
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class PrerequisiteFound:
    """Another operation has to end before this one can plan. The session performs that one, and
    passes the event on once it has ended well: `batches` is then the number of the batch that it
    has committed (0: none)."""

    batches: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How an operation ended, for its status; if `elsewhere`, only how this session ended.

    Of an operation that an earlier session ended, `ended_ms` is when (Unix milliseconds), and
    `started_ms` when it began, if that is known; else 0. Endings at different times are equal.
    """

    phase: Phase
    reason: Reason
    message: str
    attempt: int = 0
    result: OperationResult | None = None
    plan: Plan | None = None
    started_ms: int = field(default=0, compare=False)
    ended_ms: int = field(default=0, compare=False)

    @property
    def elsewhere(self) -> bool:
        """Another process or session runs the operation and will report how it ends. Nothing is
        recorded."""
        return self.reason in (Reason.ALREADY_RUNNING, Reason.ABANDONED)


@dataclass(frozen=True, slots=True)
class CommitFound:
    """The committed result, rebuilt from the log (only its version if no more is left), and when
    it was committed, in Unix milliseconds; 0 if that is unknown."""

    result: OperationResult
    committed_ms: int = 0


@dataclass(frozen=True, slots=True)
class PlanMade:
    """`superseded`: there is nothing to do since the inputs of an earlier plan are gone.
    `without_job`: the commit needs no rows that a job would write."""

    plan: Plan
    nothing_to_do: str = ""
    superseded: bool = False
    without_job: bool = False


@dataclass(frozen=True, slots=True)
class EndedBeforeStart:
    """The attempt that seemed dead has ended the operation meanwhile, without a commit."""


@dataclass(frozen=True, slots=True)
class RecordedBefore:
    """Another process has recorded, and perhaps reported, how the operation ended."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """Another process claimed the attempt first."""


@dataclass(frozen=True, slots=True)
class AttemptAdopted:
    """`round` is the last one whose result is there or, if `awaited`, the one that the attempt's
    job is working on."""

    plan: Plan
    round: int
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class AdoptionRefused:
    """What the attempt left cannot be used; the work has to be done again."""

    why: str


@dataclass(frozen=True, slots=True)
class LocksGranted:
    token: int


@dataclass(frozen=True, slots=True)
class LocksWaiting:
    """The locks are held by others. `now_ms` is the time of the answer."""

    blockers: tuple[tuple[str, str], ...]
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class StartRefused:
    """The cluster did not take the job. The plan was withdrawn if it is `certain` that there is no
    job; otherwise an earlier try may have made one. `passing`: it may take it later. `spread`, from
    0 to 1, keeps operations that were refused together from coming back together. `now_ms` is the
    time of the answer."""

    reason: Reason
    message: str
    passing: bool = True
    certain: bool = True
    spread: float = 0.5
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobRunning:
    """`waiting_reason`: the reason and the message of a lack of progress that may end by itself
    (no node has room for a pod)."""

    progress: Progress | None = None
    waiting_reason: tuple[Reason, str] | None = None


@dataclass(frozen=True, slots=True)
class JobLost:
    """The job ended without a result; `transient` says whether another attempt may help."""

    reason: Reason
    message: str
    transient: bool = True


class YieldCause(StrEnum):
    """What an exclusive attempt yields to: a commit that changed a file in its chunks, or a writer
    that waits for its locks or has taken them."""

    COMMIT = "Commit"
    LOCKS = "Locks"


@dataclass(frozen=True, slots=True)
class YieldRequired:
    """Another writer, `by`, is at work in the chunks that an exclusive attempt holds."""

    by: str
    cause: YieldCause


@dataclass(frozen=True, slots=True)
class RoundDone:
    round: int


class Verdict(StrEnum):
    COMMIT = "Commit"
    EVALUATE = "Evaluate"
    SUPERSEDED = "Superseded"
    REPLAN = "Replan"  # the table changed: plan and run again
    CONFLICT = "Conflict"


@dataclass(frozen=True, slots=True)
class Decided:
    """The result of reconciliation with `version`; `why` for the status, `reason` of a conflict."""

    version: int
    verdict: Verdict
    why: str = ""
    reason: Reason = Reason.CONFLICT


@dataclass(frozen=True, slots=True)
class LocksGone:
    """The locks are gone: `revoked` for a higher priority, otherwise lost."""

    revoked: bool


@dataclass(frozen=True, slots=True)
class CommitPut:
    result: OperationResult


@dataclass(frozen=True, slots=True)
class CommitLost:
    """No commit of ours is visible: read the log and decide again.

    `raced`: another writer has committed the version first, as the put has shown, or a look before
    `WRITE_SIDECARS`. Otherwise the decision is older than the version last read, that version is no
    longer in the log, the put has not arrived, or no reader sees it, since it lies below a
    checkpoint."""

    raced: bool = False


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The put may or may not have happened."""


@dataclass(frozen=True, slots=True)
class AbandonRefused:
    """The log shows a success: no file of the operation may be deleted as abandoned."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonedBefore:
    """Our own attempt was ended by another session, which goes on instead of us."""


@dataclass(frozen=True, slots=True)
class EffectDone:
    """The effect of this point is done and has no answer."""

    point: Point


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """An effect raised. `retryable`: the same effect may succeed when repeated (the store did not
    answer); `fresh`: another attempt may succeed (a file vanished); `patient`: it never counts as
    a failure, however long it takes (the lock store or the API server is unavailable)."""

    effect: Effect
    reason: Reason
    message: str
    retryable: bool = False
    fresh: bool = False
    patient: bool = False


class StopRequest(StrEnum):
    """What users, deadlines and controllers request of a running operation."""

    INTERRUPT = "Interrupt"
    CANCEL = "Cancel"  # the resource is being deleted
    SUSPEND = "Suspend"
    DEADLINE = "Deadline"
    TABLE_MOVED = "TableMoved"  # its LakeTable is another one now, elsewhere


Event = (
    Started
    | TableRead
    | EarlierFound
    | CommitFound
    | PrerequisiteFound
    | PlanMade
    | EndedBeforeStart
    | RecordedBefore
    | ClaimLost
    | AttemptAdopted
    | AdoptionRefused
    | LocksGranted
    | LocksWaiting
    | StartRefused
    | JobRunning
    | JobLost
    | YieldRequired
    | RoundDone
    | Decided
    | LocksGone
    | CommitPut
    | CommitLost
    | CommitUnknown
    | AbandonRefused
    | AbandonedBefore
    | EffectDone
    | EffectFailed
    | StopRequest
)


# The event that an exception of an effect becomes. Pure.


_FRESH = (ManifestInvalid, RowMapInvalid, OutputMissing, DataFileMissing)
"""Failures that another attempt, with a plan of its own, may not meet."""


def failure_of(effect: Effect, error: TandemError) -> Event:
    """What an error of an effect means to the machine."""
    # A table that is too large waits until it is smaller, or may be larger.
    if isinstance(error, Unreachable | TooLarge):
        return EffectFailed(effect, error.reason, str(error), retryable=True, patient=True)
    lasting = isinstance(error, AccessDenied | StorageFull | ObjectNotFound | AlreadyExists)
    passing = isinstance(error, StorageError) and not lasting
    # The outcome of a put is never assumed: it is looked up first.
    if effect.point is Point.PUT_COMMIT and passing:
        return CommitUnknown()
    fresh = isinstance(error, (*_FRESH, ObjectNotFound))
    return EffectFailed(effect, error.reason, str(error), retryable=passing, fresh=fresh)
