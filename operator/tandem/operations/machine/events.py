"""What the machine learns: one small frozen class per kind of answer, and stop requests.

Events carry facts that decide control flow, and summaries for the status; never data. Snapshots,
plans and change sets stay with the performer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tandem.errors import Reason
from tandem.operations.machine.effects import Effect, Point
from tandem.spec.status import OperationResult, Phase, Plan, Progress


@dataclass(frozen=True, slots=True)
class Started:
    """Start, or start again after a crash: what there is already is looked up, not assumed."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """The latest version and what in it stops us: the attempt that succeeded, the highest
    abandoned one (0 for none), and whether the operation is closed."""

    version: int
    succeeded: int = 0
    abandoned: int = 0
    closed: bool = False


@dataclass(frozen=True, slots=True)
class EarlierFound:
    """What earlier runs left. `attempt` is the highest claimed (0: none), `begun` whether its
    plan was frozen, without which it cannot have done anything to fail at, `complete` whether
    its results are there whole, `running` whether its frozen plan is there and its job is known
    to the job runner, `alive` names a live process that works on it, `failures`
    counts attempts that failed (also those that died without a record, not those that were
    interrupted). `recorded` is the result. `closing` is the ending of an operation that was
    closed, or ended before its start, and whose result is not recorded yet."""

    recorded: Ending | None = None
    closing: Ending | None = None
    attempt: int = 0
    begun: bool = True
    complete: bool = False
    running: bool = False
    alive: str = ""
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Ending:
    """How an operation ended, for a status; if `elsewhere`, only how this session of it ended."""

    phase: Phase
    reason: Reason
    message: str
    attempt: int = 0
    result: OperationResult | None = None
    plan: Plan | None = None

    @property
    def elsewhere(self) -> bool:
        """Another process or session has the operation; a later look shows how that one ends.
        Nothing is recorded."""
        return self.reason in (Reason.ALREADY_RUNNING, Reason.ABANDONED)


@dataclass(frozen=True, slots=True)
class CommitFound:
    """The committed result, rebuilt from the log (only its version where that is all there is)."""

    result: OperationResult


@dataclass(frozen=True, slots=True)
class PlanMade:
    """`superseded`: there is nothing to do since what an earlier plan took is gone."""

    plan: Plan
    nothing_to_do: str = ""
    superseded: bool = False


@dataclass(frozen=True, slots=True)
class EndedBeforeStart:
    """The attempt that was taken for dead has ended the operation meanwhile, without a commit."""


@dataclass(frozen=True, slots=True)
class RecordedBefore:
    """Another process has recorded, and perhaps reported, how the operation ended."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class ClaimLost:
    """Another process claimed the attempt first."""


@dataclass(frozen=True, slots=True)
class AttemptAdopted:
    """`round` is the last one whose result is there or, if it is `awaited`, the one that its
    job is at work on."""

    plan: Plan
    round: int
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class AdoptionRefused:
    """What the attempt left cannot be used; it has to be done again."""

    why: str


@dataclass(frozen=True, slots=True)
class LocksGranted:
    token: int


@dataclass(frozen=True, slots=True)
class LocksWaiting:
    """`now_ms` is when that was so."""

    blockers: tuple[tuple[str, str], ...]
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class JobRunning:
    """`waiting_reason`: why it makes no progress, and a sentence, where that may change by itself
    (no node has room for it)."""

    progress: Progress | None = None
    waiting_reason: tuple[Reason, str] | None = None


@dataclass(frozen=True, slots=True)
class JobLost:
    """The job ended without a result; `transient` says whether another attempt may help."""

    reason: Reason
    message: str
    transient: bool = True


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
class CommitRefused:
    """The locks are gone: `revoked` for a higher priority, else lost."""

    revoked: bool


@dataclass(frozen=True, slots=True)
class CommitPut:
    result: OperationResult


@dataclass(frozen=True, slots=True)
class CommitLost:
    """Another writer has that version: reconcile with it."""


@dataclass(frozen=True, slots=True)
class CommitUnknown:
    """The put may or may not have happened."""


@dataclass(frozen=True, slots=True)
class AbandonRefused:
    """The log shows a success: nothing of the operation may be deleted as unused."""

    attempt: int


@dataclass(frozen=True, slots=True)
class AbandonedBefore:
    """Our own attempt was declared dead by another session, which goes on instead of us."""


@dataclass(frozen=True, slots=True)
class EffectDone:
    """The effect of this point is done, without an answer."""

    point: Point


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """An effect raised. `retryable`: the same effect may work when done again (the store did
    not answer); `fresh`: another attempt may help (a file vanished); `patient`: it is not a
    failure, however long it takes (the lock store or the API server is away)."""

    effect: Effect
    reason: Reason
    message: str
    retryable: bool = False
    fresh: bool = False
    patient: bool = False


class StopRequest(StrEnum):
    """What users, deadlines and controllers request of an operation under way."""

    INTERRUPT = "Interrupt"
    CANCEL = "Cancel"  # the resource is being deleted
    SUSPEND = "Suspend"
    DEADLINE = "Deadline"


Event = (
    Started
    | TableRead
    | EarlierFound
    | CommitFound
    | PlanMade
    | EndedBeforeStart
    | RecordedBefore
    | ClaimLost
    | AttemptAdopted
    | AdoptionRefused
    | LocksGranted
    | LocksWaiting
    | JobRunning
    | JobLost
    | RoundDone
    | Decided
    | CommitRefused
    | CommitPut
    | CommitLost
    | CommitUnknown
    | AbandonRefused
    | AbandonedBefore
    | EffectDone
    | EffectFailed
    | StopRequest
)
