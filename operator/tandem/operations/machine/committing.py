"""Reconciles with what was committed meanwhile, commits, and ends if no commit is possible.

Pure, a part of `step`.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import Reason
from tandem.operations.machine.events import (
    AbandonRefused,
    CommitPut,
    CommitRefused,
    Decided,
    Ending,
    Point,
    RecordedBefore,
    Verdict,
)
from tandem.operations.machine.state import Closing, OperationState, with_batches
from tandem.operations.machine.transitions import (
    Transition,
    close,
    do,
    fail,
    give_up,
    succeed,
    unlock,
)
from tandem.spec.status import Phase


def decided(state: OperationState, event: Decided) -> Transition:
    """Commit, evaluate more rows, or give up, as reconciliation has decided."""
    if event.verdict is Verdict.COMMIT:
        return do(state, Point.WRITE_SIDECARS)
    if event.verdict is Verdict.EVALUATE:
        job = replace(state.job, round=state.job.round + 1)
        return do(replace(state, job=job), Point.REQUEST_ROUND)
    if event.verdict is Verdict.SUPERSEDED:
        why = with_batches(event.why, state.log.batches)
        return give_up(state, Phase.SUPERSEDED, Reason.SUPERSEDED, why)
    if event.verdict is Verdict.REPLAN:
        return give_up(state, Phase.FAILED, Reason.RETRYING, event.why, again=True, counted=False)
    return fail(state, event.reason, event.why, fresh=False)


def commit_refused(state: OperationState, event: CommitRefused) -> Transition:
    """Give up if a higher priority revoked the locks; acquire them again if they were lost."""
    if event.revoked:
        message = "an operation of higher priority took the locks"
        return give_up(
            state, Phase.FAILED, Reason.WAITING_FOR_LOCK, message, again=True, counted=False
        )
    locks = replace(state.locks, lost=True, waited=False)
    return do(replace(state, locks=locks), Point.ACQUIRE_LOCKS)


def commit_put(state: OperationState, event: CommitPut) -> Transition:
    """The commit is in the log."""
    log = replace(state.log, succeeded=state.attempt.number)
    return succeed(replace(state, log=log), event.result)


def commit_lost(state: OperationState) -> Transition:
    """Another writer has the version: reconcile with it."""
    if state.attempt.unknown_puts > state.request.limits.effect_retries:
        return fail(
            state, Reason.STORAGE_ERROR, "every attempt to write the commit failed", fresh=True
        )
    return do(state, Point.READ_TABLE)


def commit_unknown(state: OperationState) -> Transition:
    """Look up, after a pause, whose commit it is."""
    attempt = state.attempt
    delay = state.request.limits.retry_delay_ms * 2**attempt.unknown_puts // 4
    attempt = replace(attempt, unknown_puts=attempt.unknown_puts + 1)
    return do(replace(state, attempt=attempt), Point.LOOK_UP_COMMIT, delay_ms=delay)


def abandon_refused(state: OperationState, event: AbandonRefused) -> Transition:
    """An attempt has committed: report that instead of the ending that was meant."""
    state = replace(state, outcome=replace(state.outcome, closing=None))
    if event.attempt != state.attempt.number:
        # Files that we wrote after another session cleaned are ours to delete.
        return do(state, Point.READ_TABLE)
    log = replace(state.log, succeeded=event.attempt)
    return do(replace(state, log=log), Point.FIND_COMMIT)


def abandoned_before(state: OperationState) -> Transition:
    """Another session goes on with the operation, and reports how it ends."""
    attempt = state.attempt
    message = f"attempt {attempt.number} was declared dead and ended by another session"
    ending = Ending(Phase.FAILED, Reason.ABANDONED, message, attempt.number, plan=attempt.plan)
    wrote = () if state.outcome.ended_before_start is not None else (Point.CLEAN_ATTEMPT,)
    return close(state, Closing((*wrote, Point.RELEASE_LOCKS), ending))


def ended_before_start(state: OperationState) -> Transition:
    """Another process has ended the operation: start over to find out how."""
    message = "another process has ended the operation"
    ending = Ending(Phase.FAILED, Reason.ABANDONED, message, state.attempt.number)
    return close(state, Closing(unlock(state), ending, again=True))


def recorded_before(state: OperationState, event: RecordedBefore) -> Transition:
    """That ending may have been reported: report the same."""
    closing = state.outcome.closing
    assert closing is not None
    return close(state, replace(closing, ending=event.ending))
