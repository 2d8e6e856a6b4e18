"""The state of one operation: everything that `step` depends on, in groups.

Small and serializable. It is never reused after a crash: a restart begins with `Started` and
rebuilds it from the log and the files under `_tandem` (docs/decisions/0030).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.errors import Reason
from tandem.operations.machine.events import Effect, Ending, Point, StopRequest
from tandem.spec.common import Exclusive
from tandem.spec.status import Phase, Plan, Progress

# The place of a batch in the work of its operation, and what the status shows of it. Pure.
#
# Decides nothing: the machine knows no batches (docs/decisions/0177).


@dataclass(frozen=True, slots=True)
class PartOfWork:
    """The place of a batch in the work of its operation: its number, from 1, and how many there
    are; the input of the batches before it, and of all of them."""

    number: int
    of: int
    files_before: int
    bytes_before: int
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"batch {self.number} of {self.of}"

    def in_whole(self, progress: Progress) -> Progress:
        """The progress of the batch as that of its operation."""
        files = min(self.files, self.files_before + progress.files_done)
        done = min(self.bytes, self.bytes_before + progress.bytes_done)
        left = progress.bytes_total - progress.bytes_done
        eta = progress.eta_seconds
        if eta is not None:
            eta = eta * (self.bytes - done) // left if left > 0 else None
        return Progress(
            percent=100 * done // self.bytes if self.bytes else 0,
            files_done=files,
            files_total=self.files,
            bytes_done=done,
            bytes_total=self.bytes,
            eta_seconds=eta,
            summary=f"{files}/{self.files} files, {self}",
        )


def committed_in_words(batches: int) -> str:
    """What an operation has committed whose last committed batch has this number; 0: none."""
    if not batches:
        return "nothing was committed"
    return "batch 1 is committed" if batches == 1 else f"batches up to {batches} are committed"


def with_batches(message: str, batches: int) -> str:
    """A message about an end without a commit, with what was committed before."""
    return f"{message}; {committed_in_words(batches)}" if batches else message


_SHORTEST_PAUSE_MS = 20
"""Between two checks for the result of a round."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the spec. `backoff_limit` is how many failed attempts are retried.

    `exclusive` says how often it yields, and for how long; None: it locks nothing exclusively.
    """

    backoff_limit: int = 3
    dry_run: bool = False
    suspended: bool = False
    retry_delay_ms: int = 1_000
    poll_ms: int = 300
    effect_retries: int = 6
    exclusive: Exclusive | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What was requested: by the spec, and by a stop request that cannot be met yet, since it is
    not known whether the operation has committed. Kept for the next attempt."""

    limits: Limits = Limits()
    stop: StopRequest | None = None


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log shows as of `version`, the version that was read last (-1: none yet).

    `succeeded` is the attempt that committed and `abandoned` the highest one declared dead (0:
    none); if `closed`, no further attempt may commit. `batches` is the number of the last batch
    that is committed. `unreadable` are versions that refer to a data file that is gone, so that no
    plan can be made on them.
    """

    version: int = -1
    succeeded: int = 0
    abandoned: int = 0
    closed: bool = False
    batches: int = 0
    unreadable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptState:
    """The attempt that this session works on; `number` is 0 before there is one.

    `owned`: this session claimed or adopted it; otherwise an earlier session left it. The inputs
    of its `plan` are frozen once it is `persisted`. `last_claimed` is the highest attempt that
    any session claimed, `failures` counts attempts that failed, and `unknown_puts` counts the
    puts of this attempt's commit whose answer did not arrive. `without_job`: its result is there
    as soon as its plan is. `given_up` is the last attempt that this session worked on before (0:
    none): another one may have finished it.
    """

    number: int = 0
    owned: bool = False
    plan: Plan | None = None
    persisted: bool = False
    last_claimed: int = 0
    failures: int = 0
    unknown_puts: int = 0
    without_job: bool = False
    given_up: int = 0


@dataclass(frozen=True, slots=True)
class LockState:
    """Our locks, or what we wait for. `token` is 0 without locks.

    `blockers` are pairs of a holder and its resource; we wait for them since `waiting_since_ms`
    (Unix milliseconds; 0: not waiting). `waited`: the locks were granted late, so the plan may be
    stale. `lost`: the locks were lost when the commit was ready.
    """

    token: int = 0
    blockers: tuple[tuple[str, str], ...] = ()
    waiting_since_ms: int = 0
    waited: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class YieldState:
    """How often attempts of this operation have yielded, in any process; the last time to `by`.
    `next_try_ms` is when the next attempt begins (Unix milliseconds; 0: it does not wait)."""

    count: int = 0
    by: str = ""
    next_try_ms: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the cluster does not take the job, since when, how often it was asked, and when it will
    be asked again, `delay_ms` after it was asked last (all in Unix milliseconds)."""

    reason: Reason
    message: str
    since_ms: int
    tries: int
    next_try_ms: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class JobState:
    """The Spark job. `round` is the last round of evaluation that was requested.

    `awaited_ms` is the sum of the pauses between checks for the round's result. `adopted`: an
    earlier session started the job, which works on `round`, but we have no locks yet.
    """

    round: int = 0
    awaited_ms: int = 0
    progress: Progress | None = None
    adopted: bool = False

    def pause_ms(self, poll_ms: int) -> int:
        """The pause before the next check for the job's result. After the first round, other
        writers may commit before us, so a short round is checked more often than every
        `poll_ms`."""
        if not self.round:
            return poll_ms
        return min(poll_ms, max(_SHORTEST_PAUSE_MS, self.awaited_ms // 8))


@dataclass(frozen=True, slots=True)
class PendingEffect:
    """The effect whose answer is awaited, and how often it was retried. `waiting_reason` is the
    reason and the message of a lack of progress that may end by itself."""

    effect: Effect | None = None
    retries: int = 0
    waiting_reason: tuple[Reason, str] | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of an attempt: effects still to perform, then the ending, or another attempt.

    `again` starts over (after `delay_ms`) instead of ending. `counted` says whether the attempt
    counts towards the backoff limit: an interruption does not. `closes`: the operation ends
    without success, for good, so that no other attempt may commit either.
    """

    todo: tuple[Point, ...]
    ending: Ending
    again: bool = False
    counted: bool = True
    closes: bool = False
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class OutcomeState:
    """How it ends: `closing` while effects are left to perform, then `ended`.

    `ended_before_start` is an ending without a job, which is recorded once the attempt is
    claimed: there is nothing to do, the operation is refused, or its deadline passed.
    """

    closing: Closing | None = None
    ended_before_start: Ending | None = None
    ended: Ending | None = None


@dataclass(frozen=True, slots=True)
class OperationState:
    """All groups; `phase` and `message` are what the status shows. A `refusal` lasts until the
    cluster takes the job."""

    request: Request = Request()
    log: LogState = LogState()
    attempt: AttemptState = AttemptState()
    locks: LockState = LockState()
    job: JobState = JobState()
    pending: PendingEffect = PendingEffect()
    outcome: OutcomeState = OutcomeState()
    yields: YieldState = YieldState()
    refusal: Refusal | None = None
    phase: Phase = Phase.PENDING
    message: str = ""

    @property
    def exclusive(self) -> bool:
        """Whether the attempt locks its chunks exclusively, and yields to others. After the last
        yield that is allowed it runs beside them."""
        limit = self.request.limits.exclusive
        return limit is not None and self.yields.count < limit.max_yields
