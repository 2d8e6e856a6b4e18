"""Where one operation stands: everything that `step` decides by.

Small and serializable. It is never trusted after a crash: a restart begins with `Started` and
finds out from the log and the files under `_tandem` (docs/decisions/0030).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.errors import Reason
from tandem.operations.machine.effects import Effect, Point
from tandem.operations.machine.events import Ask, Ending
from tandem.spec.status import Phase, Plan, Progress

_SHORTEST_PAUSE_MS = 20
"""Between two looks for the result of a round."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the spec allows. `backoff_limit` is how many failed attempts are tried again."""

    backoff_limit: int = 3
    dry_run: bool = False
    suspended: bool = False
    retry_delay_ms: int = 1_000
    poll_ms: int = 300
    effect_retries: int = 6


@dataclass(frozen=True, slots=True)
class Closing:
    """The way out: effects still to perform, then the ending, or another attempt.

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
class OperationState:
    """`attempt` is the one that we claimed or adopted (0: none yet; if it is not our `own`, an
    earlier session left it), `earlier` the highest that anybody claimed; `succeeded`,
    `abandoned`, `closed` are the stops that `version` shows. `persisted`: the attempt's plan is
    written, so its inputs are frozen. `waited`: locks came late, so the plan may be stale.
    `lost`: locks were ours until the commit was ready. `unsure` counts puts whose answer did not
    come, `round` is the last round of evaluation asked for, `adopting` whether the job of an
    attempt that we took over is at work on that, `waiting` the effect whose answer is awaited,
    `awaited_ms` how long we have waited for that round between looks for its result, and
    `blockers` are those for whom we wait, since `waiting_since_ms` (0: we do not). `asked` is
    what somebody asked for before it could be done; it is done as soon as it can be. `hindrance`
    is what is in the way and may go away by itself: why, and a sentence. `unbegun` is how it ends
    before it is begun, once its attempt is claimed: there is nothing to do, it is refused, or its
    deadline passed. `unreadable` are versions that could not be planned on, since a file that
    they name is gone."""

    limits: Limits = Limits()
    phase: Phase = Phase.PENDING
    attempt: int = 0
    earlier: int = 0
    failures: int = 0
    version: int = -1
    succeeded: int = 0
    abandoned: int = 0
    closed: bool = False
    round: int = 0
    awaited_ms: int = 0
    own: bool = False
    adopting: bool = False
    persisted: bool = False
    waited: bool = False
    lost: bool = False
    retries: int = 0
    unsure: int = 0
    asked: Ask | None = None
    hindrance: tuple[Reason, str] | None = None
    token: int = 0
    waiting: Effect | None = None
    closing: Closing | None = None
    unbegun: Ending | None = None
    unreadable: tuple[int, ...] = ()
    ended: Ending | None = None
    plan: Plan | None = None
    progress: Progress | None = None
    blockers: tuple[tuple[str, str], ...] = ()
    waiting_since_ms: int = 0
    message: str = ""

    @property
    def pause_ms(self) -> int:
        """Before the next look for the job's result. After the first round others may commit
        until we do: what takes half a second is not looked for every half second."""
        if not self.round:
            return self.limits.poll_ms
        return min(self.limits.poll_ms, max(_SHORTEST_PAUSE_MS, self.awaited_ms // 8))

    def at(self, **changes: object) -> OperationState:
        """This state with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]
