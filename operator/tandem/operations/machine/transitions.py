"""Building blocks of transitions: request an effect, end, give up an attempt, succeed. Pure.

`step` decides which one applies. The end of an operation is a list of effects still to perform
(`Closing`); only a failure to end or to abandon the attempt changes it.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.attempt_files import MOST_ATTEMPTS
from tandem.operations.machine.events import Effect, EffectFailed, Ending, Point, StopRequest
from tandem.operations.machine.state import (
    AttemptState,
    Closing,
    OperationState,
    PendingEffect,
    committed_in_words,
    with_batches,
)
from tandem.spec.status import OperationResult, Phase

Transition = tuple[OperationState, tuple[Effect, ...]]

AFTER_SUCCESS = (
    Point.FINISH_JOB,
    Point.STOP_JOB,
    Point.RELEASE_LOCKS,  # only now: the commit is visible (I-29)
    Point.CLEAN_UNUSED,
    Point.RECORD_RESULT,  # last of what must be done: who finds it need not look further
    Point.MAINTAIN,
)
"""The effects after a success is visible. No failure of theirs turns success into failure."""

GIVE_UP = (Point.STOP_JOB, Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT)
"""How the last attempt ends without a commit: files are deleted only after the log shows that it
and the attempts before it are abandoned."""

START_OVER = (Point.STOP_JOB, Point.END_ATTEMPT)
"""How an attempt ends that another one follows. The log learns nothing of it: the operation's
success will keep it from committing, or its abandonment; until then its files stay."""

YIELDED_TO = "yielded to "
"""How the message of an attempt that yielded begins."""

UNRECORDED = frozenset(
    {
        Reason.INTERRUPTED,
        Reason.CANCELLED,
        Reason.ALREADY_RUNNING,
        Reason.ABANDONED,
        Reason.SPARK_MISSING,
        Reason.ACCESS_DENIED,
        Reason.CATALOG_FORBIDS,
        Reason.STORAGE_FULL,
        Reason.STORAGE_ERROR,
        Reason.INTERNAL_ERROR,
    }
)
"""Failures of the environment: the next run tries again instead of reporting them."""


def do(state: OperationState, point: Point, *, delay_ms: int = 0) -> Transition:
    """Request one effect, with the attempt, round and version of `state`."""
    version = state.log.version + 1 if point in (Point.PUT_COMMIT, Point.LOOK_UP_COMMIT) else -1
    return perform(state, Effect(point, state.attempt.number, state.job.round, version, delay_ms))


def perform(state: OperationState, effect: Effect) -> Transition:
    """Request exactly this effect, for the first time."""
    return replace(state, pending=PendingEffect(effect)), (effect,)


def end(state: OperationState, ending: Ending) -> Transition:
    """Nothing is left to perform: the operation has ended."""
    return replace(
        state,
        pending=PendingEffect(),
        outcome=replace(state.outcome, closing=None, ended=ending),
        phase=ending.phase,
        message=ending.message,
    ), ()


def claim(state: OperationState) -> Transition:
    """Claim the attempt with the next free number."""
    attempt = max(state.attempt.last_claimed, state.log.abandoned) + 1
    if attempt > MOST_ATTEMPTS:
        return attempts_exhausted(state, attempt - 1)
    return perform(state, Effect(Point.CLAIM_ATTEMPT, attempt))


def attempts_exhausted(state: OperationState, attempts: int) -> Transition:
    """The number of attempts is implausibly high: stop without further effects."""
    message = f"the log or `_tandem` say that there were {attempts} attempts; no more than "
    message += f"{MOST_ATTEMPTS} are made"
    return end(state, Ending(Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message))


def end_before_start(state: OperationState, ending: Ending) -> Transition:
    """End before a job was started. The claim keeps out a session that planned before us and was
    suspended since: it could start after the ending was reported (Z1).

    Earlier attempts may still commit, unless the log shows that they are dead."""
    outcome = replace(state.outcome, ended_before_start=ending)
    if not state.attempt.number:
        return claim(replace(state, outcome=outcome))
    if state.log.abandoned < state.attempt.number - 1:
        state = replace(state, outcome=replace(outcome, ended_before_start=None))
        todo = (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, *unlock(state), Point.RECORD_RESULT)
        return close(state, Closing(todo, ending, closes=True))
    todo = (Point.RECORD_RESULT, *unlock(state))
    return close(replace(state, outcome=outcome), Closing(todo, ending))


def unlock(state: OperationState) -> tuple[Point, ...]:
    """The effects that release the locks; none if there are none, and none are waited for."""
    return (Point.RELEASE_LOCKS,) if state.locks.token or state.locks.waited else ()


def close(state: OperationState, closing: Closing) -> Transition:
    """Perform the remaining effects of the closing, then end or start over."""
    if closing.todo:
        point, rest = closing.todo[0], closing.todo[1:]
        outcome = replace(state.outcome, closing=replace(closing, todo=rest))
        return do(replace(state, outcome=outcome), point)
    if closing.again:
        ending = closing.ending
        # It is read while the next attempt runs, and must not be taken for its problem.
        message = (
            f"attempt {ending.attempt}: {ending.message}" if ending.attempt else ending.message
        )
        delay = 0 if state.request.stop is not None else closing.delay_ms
        attempt = state.attempt
        fresh = OperationState(
            state.request,
            attempt=AttemptState(given_up=attempt.number if attempt.owned else attempt.given_up),
            yields=state.yields,
            refusal=state.refusal,
            message=message,
        )
        return do(fresh, Point.READ_TABLE, delay_ms=delay)
    return end(state, closing.ending)


def give_up(
    state: OperationState,
    phase: Phase,
    reason: Reason,
    message: str,
    *,
    again: bool = False,
    counted: bool = True,
    closes: bool = True,
    delay_ms: int = 0,
) -> Transition:
    """End this attempt without a commit; then end the operation, or try `again`. Without `closes`
    the next run of the operation starts over, whatever the reason."""
    attempt = state.attempt
    todo: tuple[Point, ...] = ()
    resumable = again or not closes or phase is Phase.SUSPENDED or reason in UNRECORDED
    closes = attempt.number > 0 and not resumable
    # A failure of the environment (Spark was missing) does not use up later runs' retries.
    counted = counted and (again or reason not in UNRECORDED)
    ending = Ending(phase, reason, message, attempt.number, plan=attempt.plan)
    if closes and attempt.owned and not _may_have_plan(state):
        return end_before_start(replace(state, message=message), ending)
    if attempt.number:
        # An attempt without a persisted plan has written nothing to clean or to commit.
        todo += GIVE_UP if closes or (attempt.persisted and not again) else ()
        todo += START_OVER if attempt.persisted and again else ()
        todo += (Point.RELEASE_LOCKS,)
        todo += (Point.RECORD_RESULT,) if closes else ()
    closing = Closing(todo, ending, again, counted, closes, delay_ms)
    return close(replace(state, message=message), closing)


def _may_have_plan(state: OperationState) -> bool:
    """Whether a plan of our attempt may exist. It may if its put was not answered."""
    effect = state.pending.effect
    return state.attempt.persisted or (effect is not None and effect.point is Point.PERSIST_PLAN)


def give_way(state: OperationState, by: str) -> Transition:
    """End this exclusive attempt for another writer. It does not count as a failure: how often
    that happens is bounded by itself."""
    message = YIELDED_TO + by
    return give_up(state, Phase.FAILED, Reason.YIELDED, message, again=True, counted=False)


def fail(state: OperationState, reason: Reason, message: str, *, fresh: bool) -> Transition:
    """The attempt failed; `fresh` says whether another one may help."""
    if not fresh or not state.attempt.number:
        return give_up(state, Phase.FAILED, reason, with_batches(message, state.log.batches))
    limits, failures = state.request.limits, state.attempt.failures + 1
    if failures > limits.backoff_limit:
        if failures > 1:
            message = f"{message} (attempt {failures} of {failures}: backoffLimit)"
        message = with_batches(message, state.log.batches)
        return give_up(state, Phase.FAILED, reason, message)
    delay = limits.retry_delay_ms * 2 ** min(failures - 1, 8)
    return give_up(state, Phase.FAILED, reason, message, again=True, delay_ms=delay)


def succeed(state: OperationState, result: OperationResult, *, earlier_ms: int = 0) -> Transition:
    """The commit is in the log: the remaining effects cannot change that. `earlier_ms` is when an
    earlier session made it, in Unix milliseconds; 0: this one did."""
    version = "" if result.version is None else f" as version {result.version}"
    # Only what is noteworthy: the first sentence counts other commits, and is left out if none was
    # met.
    met = result.reconciled is not None and result.reconciled.commits_seen > 0
    story = "; ".join((result.summary or ())[0 if met else 1 :])
    ending = Ending(
        Phase.SUCCEEDED,
        Reason.COMMITTED,
        f"committed{version}" + (f": {story}" if story else ""),
        state.attempt.number,
        result=result,
        plan=state.attempt.plan,
        ended_ms=earlier_ms,
    )
    return close(replace(state, message=ending.message), Closing(AFTER_SUCCESS, ending))


# What follows when an effect failed: waiting, a retry, another attempt, or the end.
#
# Pure, a part of `step`. A final ending is recorded before it is reported; if that fails, the
# message says so.


LONGEST_PATIENCE_MS = 10_000
"""The longest pause before calling a service again that did not answer."""


def failed(state: OperationState, event: EffectFailed) -> Transition:
    """Retry the effect as long as that may help; then fail, unless it is too late for that."""
    # No service is waited for while closing: leases expire by themselves, and jobs have an owner
    # reference.
    limits, pending, outcome = state.request.limits, state.pending, state.outcome
    patient = event.patient and outcome.closing is None
    if patient or (event.retryable and pending.retries < limits.effect_retries):
        delay = limits.retry_delay_ms * 2 ** min(pending.retries, 16) // 4
        waiting_reason = pending.waiting_reason
        if patient:
            delay = min(delay, LONGEST_PATIENCE_MS)
            waiting_reason = (event.reason, f"waiting, nothing is lost: {event.message}")
        effect = replace(event.effect, delay_ms=delay)
        pending = PendingEffect(effect, pending.retries + 1, waiting_reason)
        return replace(state, pending=pending), (effect,)
    if outcome.ended_before_start is not None and event.effect.point is not Point.RELEASE_LOCKS:
        return _unrecorded(state, outcome.ended_before_start, event)
    if outcome.closing is not None:
        return _closing_failed(state, outcome.closing, event)
    if event.effect.point is Point.LOOK_UP_COMMIT:
        return _unknown(state, event, f"whether version {event.effect.version} is ours is unknown")
    if event.effect.point is Point.FIND_COMMIT:
        what = f"attempt {state.attempt.number} has committed, but its result cannot be read"
        return _unknown(state, event, what)
    if event.effect.point is Point.PLAN:
        return _plan_failed(state, event)
    return fail(state, event.reason, event.message, fresh=event.fresh)


def _unknown(state: OperationState, event: EffectFailed, what: str) -> Transition:
    """The operation has committed, or may have: nothing may be deleted or claimed, and the message
    must not advise to repeat it (Z20)."""
    message = f"{what}: {event.message}. Run it again to find out"
    ending = Ending(Phase.FAILED, Reason.STORAGE_ERROR, message, state.attempt.number)
    return close(state, Closing((Point.STOP_JOB, Point.RELEASE_LOCKS), ending))


def _plan_failed(state: OperationState, event: EffectFailed) -> Transition:
    log, attempt = state.log, state.attempt
    if event.fresh and _may_be_outdated(state):
        # A vacuum may have deleted a file of this version: see whether there is a later version.
        log = replace(log, unreadable=(*log.unreadable, log.version))
        return do(replace(state, log=log), Point.READ_TABLE)
    again = event.reason in UNRECORDED or (event.fresh and attempt.number)
    if again or state.request.limits.dry_run:
        return fail(state, event.reason, event.message, fresh=event.fresh)
    message = with_batches(event.message, log.batches)
    return end_before_start(
        state, Ending(Phase.FAILED, event.reason, message, attempt.number, plan=attempt.plan)
    )


def _may_be_outdated(state: OperationState) -> bool:
    known, tries = state.log.unreadable, state.request.limits.effect_retries
    return state.log.version not in known and len(known) < tries


def _unrecorded(state: OperationState, ending: Ending, event: EffectFailed) -> Transition:
    """Recording an ending without a job failed: it may be reported only once no session can start
    the operation."""
    message = f"{ending.message}; this could not be recorded: {event.message}"
    attempt = state.attempt
    reported = Ending(Phase.FAILED, event.reason, message, attempt.number, plan=attempt.plan)
    return close(state, Closing(unlock(state), reported))


def _closing_failed(state: OperationState, closing: Closing, event: EffectFailed) -> Transition:
    """An effect of the closing failed. Only the end of the attempt matters: without it, files must
    stay, and no other attempt may follow."""
    if event.effect.point not in (Point.END_ATTEMPT, Point.ABANDON_ATTEMPT):
        return close(state, closing)
    meant = closing.ending
    message = f"{meant.message}; the attempt could not be closed: {event.message}. A later run "
    message += "may resume it"
    resumes = meant.phase is Phase.SUSPENDED or meant.reason in UNRECORDED
    ending = (
        replace(meant, message=message)
        if resumes and not closing.again
        else Ending(
            Phase.FAILED, event.reason, message, state.attempt.number, plan=state.attempt.plan
        )
    )
    return close(state, Closing((Point.RELEASE_LOCKS,), ending))


# Stop requests to a running operation, and when each is met.
#
# Pure, a part of `step`. No request is lost: one that cannot be met at once, since it is not known
# yet whether the operation has committed, is met as soon as possible.


_ENDINGS = {
    StopRequest.INTERRUPT: (Phase.FAILED, Reason.INTERRUPTED, "interrupted; {committed}"),
    StopRequest.CANCEL: (
        Phase.FAILED,
        Reason.CANCELLED,
        "the resource was deleted; {committed}",
    ),
    StopRequest.SUSPEND: (Phase.SUSPENDED, Reason.SUSPENDED, "suspended; {committed}"),
    StopRequest.DEADLINE: (
        Phase.FAILED,
        Reason.DEADLINE_EXCEEDED,
        "activeDeadlineSeconds passed before the commit",
    ),
    StopRequest.TABLE_MOVED: (
        Phase.FAILED,
        Reason.TABLE_REPLACED,
        "the LakeTable was deleted and made again at another location; {committed}",
    ),
}

_FINDING_OUT = frozenset({Point.READ_TABLE, Point.CHECK_EARLIER_OUTCOME})


def requested(state: OperationState, request: StopRequest) -> Transition:
    """Meet the request: now, later, or not at all if it is too late."""
    closing = state.outcome.closing
    if state.log.succeeded or (closing is not None and not closing.again):
        # Too late: a visible commit is reported, and an ending stays as it is.
        return _again(state)
    if closing is not None or _must_look_first(state, request):
        return _again(replace(state, request=replace(state.request, stop=request)))
    if state.outcome.ended_before_start is not None and request is StopRequest.DEADLINE:
        return _again(state)  # it ends as it is
    return stop(state, request)


def _must_look_first(state: OperationState, request: StopRequest) -> bool:
    point = state.pending.effect.point if state.pending.effect is not None else None
    if point is Point.LOOK_UP_COMMIT:
        return True  # perhaps it has committed
    # It is not known yet whether it has committed and whether a job runs. An interrupt does not
    # wait for that: the next run finds out.
    waits = request is not StopRequest.INTERRUPT
    return waits and not state.attempt.number and point in _FINDING_OUT


def _again(state: OperationState) -> Transition:
    """Request the pending effect again, which the stop request preempted; without a delay if the
    request waits for it."""
    pending = state.pending
    if pending.effect is None:
        return state, ()
    delay = pending.effect.delay_ms if state.request.stop is None else 0
    effect = replace(pending.effect, delay_ms=delay)
    return replace(state, pending=replace(pending, effect=effect)), (effect,)


def stop(state: OperationState, request: StopRequest) -> Transition:
    """Give up the current work. The state of the operation is known by now."""
    phase, reason, text = _ENDINGS[request]
    message = text.format(committed=committed_in_words(state.log.batches))
    is_deadline = request is StopRequest.DEADLINE
    if is_deadline:
        message = with_batches(message, state.log.batches)
    state = replace(state, request=replace(state.request, stop=None))
    attempt, dry_run = state.attempt, state.request.limits.dry_run
    if not (attempt.number or dry_run) and attempt.last_claimed > state.log.abandoned:
        # Earlier attempts may have a job that runs, and files; and may yet be committed.
        attempt = replace(attempt, number=attempt.last_claimed, persisted=True)
        state = replace(state, attempt=attempt)
    if is_deadline and not attempt.number and not dry_run:
        return end_before_start(state, Ending(phase, reason, message))
    if state.refusal is not None and is_deadline:
        # No job has run: the log keeps nothing of it, and another run starts over.
        message = f"{message}: {state.refusal.message}"
        return give_up(state, phase, reason, message, closes=False)
    return give_up(state, phase, reason, message, counted=is_deadline)
