"""Determines the state of the operation: from the log, and from what earlier sessions left.

Pure, a part of `step`.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.attempt.paths import MOST_ATTEMPTS
from tandem.operations.machine.events import (
    AdoptionRefused,
    AttemptAdopted,
    CommitFound,
    EarlierFound,
    Effect,
    Ending,
    Point,
    StopRequest,
    TableRead,
)
from tandem.operations.machine.state import Closing, OperationState, YieldState
from tandem.operations.machine.transitions import (
    START_OVER,
    Transition,
    attempts_exhausted,
    close,
    do,
    end,
    perform,
    stop,
    succeed,
)
from tandem.spec.status import Phase


def started(state: OperationState) -> Transition:
    """Read the table first. A job of an earlier session may still run, so a suspension is met only
    after that."""
    if state.request.limits.suspended:
        state = replace(state, request=replace(state.request, stop=StopRequest.SUSPEND))
    return do(state, Point.READ_TABLE)


def table_read(state: OperationState, event: TableRead) -> Transition:
    """Stop if the log says so; otherwise continue with the rest of this attempt."""
    log = replace(
        state.log,
        version=event.version,
        succeeded=event.succeeded,
        abandoned=event.abandoned,
        closed=event.closed,
        batches=event.batches,
    )
    state, attempt = replace(state, log=log), state.attempt
    if not attempt.number:
        if event.abandoned > MOST_ATTEMPTS and not (event.succeeded or event.closed):
            return attempts_exhausted(state, event.abandoned)
        return do(state, Point.CHECK_EARLIER_OUTCOME)
    if event.succeeded not in (0, attempt.number):
        # What ours wrote after (or without) the other's cleaning is ours to delete.
        todo = (Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
        message = f"attempt {event.succeeded} succeeded instead"
        ending = Ending(Phase.FAILED, Reason.ABANDONED, message, attempt.number)
        return close(state, Closing(todo, ending, again=True))
    if event.succeeded:
        return do(state, Point.FIND_COMMIT)
    if event.closed or event.abandoned >= attempt.number:
        # This session is the zombie. Its files can never be committed.
        message = f"attempt {attempt.number} was abandoned by a later run; it publishes nothing"
        ending = Ending(Phase.FAILED, Reason.ABANDONED, message, attempt.number)
        todo = (Point.STOP_JOB, Point.CLEAN_ATTEMPT, Point.RELEASE_LOCKS)
        return close(state, Closing(todo, ending))
    if state.request.stop is not None:
        return stop(state, state.request.stop)
    if attempt.persisted:
        return do(replace(state, phase=Phase.RECONCILING), Point.RECONCILE)
    return do(state, Point.PLAN)


def earlier_found(state: OperationState, event: EarlierFound) -> Transition:
    """Report an ending that is known; otherwise close, adopt or clean what earlier sessions
    left."""
    log, limits = state.log, state.request.limits
    if event.recorded is not None and not (
        log.succeeded and event.recorded.reason is not Reason.COMMITTED
    ):
        return _end_recorded(state, event.recorded, event.attempt)
    attempt = replace(state.attempt, last_claimed=event.attempt, failures=event.failures)
    state = _with_yields(replace(state, attempt=attempt), event)
    if log.succeeded:
        return do(_work_on(state, log.succeeded), Point.FIND_COMMIT)
    if event.closing is not None:
        if limits.dry_run:
            return end(state, event.closing)
        cleaning = (Point.CLEAN_ATTEMPT,) if log.closed else ()
        todo = (*cleaning, Point.RECORD_RESULT)
        return close(_work_on(state, event.attempt), Closing(todo, event.closing))
    if not event.attempt or limits.dry_run:
        return (
            do(state, Point.PLAN) if state.request.stop is None else stop(state, state.request.stop)
        )
    if event.alive:
        message = f"attempt {event.attempt} is being run by {event.alive}"
        return end(state, Ending(Phase.FAILED, Reason.ALREADY_RUNNING, message, event.attempt))
    if event.attempt > log.abandoned and state.request.stop is not None:
        return stop(state, state.request.stop)
    if event.attempt > log.abandoned and not event.ended:
        return _take_over(_work_on(state, event.attempt), event)
    if event.failures > limits.backoff_limit:
        message = f"{event.failures} attempts failed, and backoffLimit is {limits.backoff_limit}"
        ending = Ending(
            Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, message, event.attempt, plan=attempt.plan
        )
        todo = (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT, Point.RECORD_RESULT)
        return close(_work_on(state, event.attempt), Closing(todo, ending, closes=True))
    if state.request.stop is not None:
        return stop(state, state.request.stop)
    # The cleaning after an abandonment may have been interrupted. None of these attempts is ours,
    # so the effect names them. Later ones may still commit.
    delay_ms = _wait_ms(state, event)
    if delay_ms:
        yields = replace(state.yields, next_try_ms=event.now_ms + delay_ms)
        state = replace(state, yields=yields)
    return perform(state, Effect(Point.CLEAN_ATTEMPT, log.abandoned, delay_ms=delay_ms))


def _end_recorded(state: OperationState, recorded: Ending, last: int) -> Transition:
    """Report an ending that is known; first delete what came too late for the one that recorded it.

    That session cannot know of an attempt that was claimed since it was taken for dead, and has
    cleaned up before this one wrote the last files of an attempt that it gave up.
    """
    log, given_up = state.log, state.attempt.given_up
    if state.request.limits.dry_run:
        return end(state, recorded)
    if log.succeeded and log.succeeded == given_up:
        closing = Closing((Point.CLEAN_UNUSED,), recorded)
        return close(_work_on(state, given_up), closing)
    if given_up or 0 < log.succeeded < last:
        closing = Closing((Point.CLEAN_ATTEMPT,), recorded)
        return close(_work_on(state, max(last, given_up)), closing)
    return end(state, recorded)


def _with_yields(state: OperationState, event: EarlierFound) -> OperationState:
    """The state with the yields of earlier attempts, in any process."""
    found, limit = event.yields, state.request.limits.exclusive
    if limit is None or not found.count:
        return state
    state = replace(state, yields=YieldState(found.count, found.by))
    if state.exclusive:
        return state
    message = f"yields: {found.count}, the last one to {found.by}; goes on as Concurrent"
    return replace(state, message=message)


def _wait_ms(state: OperationState, event: EarlierFound) -> int:
    """What is left of the time between the last yield and the next attempt."""
    found, limit = event.yields, state.request.limits.exclusive
    if limit is None or not found.count or not state.exclusive:
        return 0
    # The store's clock may be ahead of ours.
    waited_ms = max(0, event.now_ms - found.last_ms)
    return max(0, limit.backoff_ms(found.count) - waited_ms)


def _work_on(state: OperationState, number: int) -> OperationState:
    return replace(state, attempt=replace(state.attempt, number=number))


def _take_over(state: OperationState, event: EarlierFound) -> Transition:
    """Continue an attempt whose session is gone, or start over."""
    if event.complete or event.running:
        return do(state, Point.ADOPT_ATTEMPT)
    why = f"attempt {event.attempt} ended without a result"
    return _end_earlier(state, why, counted=event.begun)


def _end_earlier(state: OperationState, why: str, *, counted: bool = True) -> Transition:
    ending = Ending(Phase.FAILED, Reason.ABANDONED, why, state.attempt.number)
    todo = (*START_OVER, Point.RELEASE_LOCKS)
    return close(state, Closing(todo, ending, again=True, counted=counted))


def commit_found(state: OperationState, event: CommitFound) -> Transition:
    """The commit is there already: report it. It is an earlier session's unless this one has
    worked on the attempt."""
    earlier_ms = 0 if state.attempt.owned else event.committed_ms
    return succeed(_work_on(state, state.log.succeeded), event.result, earlier_ms=earlier_ms)


def attempt_adopted(state: OperationState, event: AttemptAdopted) -> Transition:
    """Continue with the results of an earlier session, or with its job that still runs."""
    state = replace(
        state,
        attempt=replace(state.attempt, owned=True, plan=event.plan, persisted=True),
        job=replace(state.job, round=event.round, adopted=event.awaited),
        phase=Phase.RUNNING if event.awaited else Phase.PLANNED,
    )
    return do(state, Point.ACQUIRE_LOCKS)


def adoption_refused(state: OperationState, event: AdoptionRefused) -> Transition:
    """What is left of the attempt cannot be used: start over."""
    return _end_earlier(state, event.why)
