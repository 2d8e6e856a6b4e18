"""Crashes of single simulated operations: where they can be, and what must hold after each.

A case is an operation, what happens beside it (`Beside`), and a strike at the n-th passage of a
named point. The checker compares every version with its model as soon as it exists, so what is
asserted here is the rest: the operation happened once, nothing is left, nothing happens again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from simulator.single import BATCHES, EDITING, EXCLUSIVE, OFF, SERIALIZABLE, Single
from support.cases import OTHERS, PLAIN, REWRITES
from support.lake.faults import Call, Fault, StrikeOnce
from support.some import in_turn
from tandem.errors import OutcomeUnknown, Reason
from tandem.locks.rules import WHOLE_TABLE, LockRequest, Mode
from tandem.operations.machine.events import Effect, Ending, Event, Point
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.status import Phase

ALL_KINDS = (*PLAIN, *OTHERS, SERIALIZABLE, EXCLUSIVE)
ROUNDS = ("update", "delete", "merge", SERIALIZABLE)
"""Kinds whose jobs can be asked for more than one round."""
OTHER = "another-owner"
NAMED_SEGMENTS_GONE = {
    ("segment rewrite", action) for action in ("update_by_rewrite", "an update and a delete")
}
"""Where segments that an operation names may be gone, when it is planned again."""
REWRITES_OFF = frozenset(each for each in EDITING if each.partition(",")[0] in (*REWRITES, BATCHES))
"""Rewrites of tables without deletion vectors."""
LAST_BATCH_GONE = {
    (BATCHES, "update_by_rewrite"),
    (BATCHES, "an update and a delete"),
    (BATCHES + OFF, "delete_with_vectors"),
    (BATCHES + OFF, "an update and a delete"),
    *((kind, "update_by_rewrite") for kind in REWRITES_OFF),
}
"""Where a compaction in batches may find that others have done without its last one, and where a
rewrite leaves its bin alone, since others have rewritten all of its files but one."""
MOST_PASSAGES = 3
"""Of one point: later ones are polls of the same job, or rounds like the one before."""


class Beside(StrEnum):
    """What happens while the operation runs. TWICE: the delete takes the version that it is about
    to put; before it, the files of a rewrite that makes edits lose rows only."""

    NOTHING = ""
    APPEND = "append"
    DELETE = "delete_with_vectors"
    UPDATE = "update_by_rewrite"
    TWICE = "an update and a delete"
    BLOCKED = "another owner holds the table at first"
    LOST = "the answer of its put is lost"
    UNSENT = "its put is lost"


Passage = tuple[Point, int]
"""A point, and the number of the passage (from 1) at which an operation reaches it."""


@dataclass
class Counted:
    """An `interceptor` that only counts."""

    passages: list[Passage] = field(default_factory=list)
    _counts: Counter[Point] = field(default_factory=Counter)

    def __call__(self, effect: Effect, call: Call) -> Event:
        self._counts[effect.point] += 1
        if self._counts[effect.point] <= MOST_PASSAGES:
            self.passages.append((effect.point, self._counts[effect.point]))
        return call()


@dataclass
class Crowd:
    """An `interceptor` that lets others act. `inner` is what the test itself does at points."""

    single: Single
    beside: Beside
    inner: Interceptor = passthrough
    acted: int = 0

    def __post_init__(self) -> None:
        if self.beside is Beside.BLOCKED:
            table = self.single.table.location
            everything = LockRequest(table, OTHER, Mode.EXCLUSIVE, WHOLE_TABLE, OTHER, 100)
            self.single.world.locks.acquire(everything)

    def __call__(self, effect: Effect, call: Call) -> Event:
        event = self.inner(effect, lambda: self._perform(effect, call))
        if self.beside is Beside.BLOCKED and effect.point is Point.AWAIT_LOCKS:
            self.leave()
        return event

    def leave(self) -> None:
        """The other owner releases the table."""
        self.single.world.locks.release(self.single.table.location, OTHER, OTHER)

    def _perform(self, effect: Effect, call: Call) -> Event:
        is_put = effect.point is Point.PUT_COMMIT and not self.acted
        if is_put and self.beside is Beside.UNSENT:
            self.acted += 1
            raise OutcomeUnknown("the request was lost")
        event = call()
        if is_put and self.beside is Beside.LOST:
            self.acted += 1
            raise OutcomeUnknown("the answer was lost on its way")
        # When the job has been started, or could have been.
        begun = Point.START_JOB if self.single.job_count else Point.PERSIST_PLAN
        if effect.point is begun and not self.acted:
            self._commit(1)
        elif effect.point is Point.ENTER_COMMIT and self.acted == 1:
            self._commit(2)
        return event

    def _commit(self, number: int) -> None:
        match self.beside:
            case Beside.APPEND | Beside.DELETE | Beside.UPDATE if number == 1:
                self._foreign(str(self.beside))
            case Beside.TWICE:
                deletes = number == 2 or self.single.kind in REWRITES_OFF
                self._foreign("delete_with_vectors" if deletes else "update_by_rewrite")
            case _:
                return
        self.acted = number

    def _foreign(self, name: str) -> None:
        """Until it has changed a row: some statements match none. Where none ever does, since
        there is nothing left to delete, an append changes the table."""
        checker = self.single.checker
        before = checker.models[-1], checker.log_version
        for each in (*[name] * 20, "append"):
            self.single.beside(each)
            if (checker.models[-1], checker.log_version) != before:
                return
        raise AssertionError(f"nothing changed a row: {name}")


@cache
def passages(kind: str, beside: Beside) -> tuple[Passage, ...]:
    """The points that an undisturbed operation reaches."""
    single, counted = Single(kind), Counted()
    single.end(Crowd(single, beside, counted))
    return tuple(counted.passages)


def crash(kind: str, beside: Beside, passage: Passage, fault: Fault, **more: Any) -> Single:
    """See `_crash`; what fails says where it was struck."""
    try:
        return _crash(kind, beside, passage, fault, **more)
    except BaseException as error:
        error.add_note(f"{kind}, beside {beside.name}: {fault} at {passage}, {more}")
        raise


def _crash(
    kind: str,
    beside: Beside,
    passage: Passage,
    fault: Fault,
    *,
    again: tuple[Passage, Fault] | None = None,
    jobs_live_on: bool = False,
    suspended: bool = False,
) -> Single:
    """Strike, restart if it died, and look at all that must hold. `again` strikes the restart,
    too; `suspended`: it only stops what was begun, and another one does the work."""
    single = Single(kind)
    strike = StrikeOnce(passage[0], fault, passage[1])
    crowd = Crowd(single, beside, strike)
    ending = single.run(crowd, jobs_live_on=jobs_live_on)
    assert strike.struck, f"{passage} was not reached"
    crowd.leave()
    if again is not None:
        assert ending is None
        second = StrikeOnce(again[0][0], again[1], again[0][1])
        single.limit(suspend=suspended)
        ending = single.run(second, jobs_live_on=jobs_live_on)
        single.limit(suspend=False)
        assert second.struck, f"the restart did not reach {again}"
        if ending is not None and ending.phase is Phase.SUSPENDED:
            ending = None
    if ending is None:
        ending = single.run(jobs_live_on=jobs_live_on)
    assert ending is not None
    if ending.reason is Reason.UNKNOWN_SEGMENT:
        # What it was to rewrite was replaced before it could be planned again.
        assert (kind, beside) in NAMED_SEGMENTS_GONE
        did_not_happen(single, ending)
    elif ending.phase is Phase.SUPERSEDED:
        # The other one has rewritten the files of the last batch before it was planned, or those
        # of the bin.
        assert (kind, beside) in LAST_BATCH_GONE
        nothing_is_left(single)
        happens_no_more(single, ending)
    else:
        happened_once(single, ending)
    return single


@cache
def restart_passages(
    kind: str, passage: Passage, *, jobs_live_on: bool, suspended: bool = False
) -> tuple[Passage, ...]:
    """The passages of a restart whose predecessor died after a passage."""
    single = Single(kind)
    strike = StrikeOnce(passage[0], Fault.DIE_AFTER, passage[1])
    single.die(strike, jobs_live_on=jobs_live_on)
    counted = Counted()
    single.limit(suspend=suspended)
    single.end(counted, jobs_live_on=jobs_live_on)
    return tuple(counted.passages)


def did_not_happen(single: Single, ending: Ending) -> None:
    """It ended otherwise, no version shows it, and nothing is left of it."""
    assert ending.phase is Phase.FAILED, ending
    assert single.commits == 0
    nothing_is_left(single)
    happens_no_more(single, ending)


def happened_once(single: Single, ending: Ending) -> None:
    """It committed, its result says so, nothing is left of it, and it does not happen again."""
    assert ending.phase is Phase.SUCCEEDED, ending
    assert ending.reason is Reason.COMMITTED, ending
    assert single.commits == 1
    assert ending.result is not None
    assert ending.result.version == single.checker.succeeded[single.operation_id]
    nothing_is_left(single)
    happens_no_more(single, ending)


def nothing_is_left(single: Single) -> None:
    """No file that no version names, no lock, no job."""
    assert single.files_left() == []
    assert single.world.locks.entries(single.table.location) == ()
    assert single.world.jobs.running() == []


def happens_no_more(single: Single, ending: Ending) -> None:
    """Run again, it reports the same result, starts no job and commits nothing."""
    version, jobs = single.version, len(single.world.jobs.drivers)
    again = single.end()
    assert (again.phase, again.result) == (ending.phase, ending.result)
    assert (single.version, len(single.world.jobs.drivers)) == (version, jobs)


def sample(kind: str, turn: int) -> Iterator[tuple[Beside, Passage, Fault]]:
    """Half of the points of a kind, the other half for the next `turn`, with faults and others'
    actions in turn; all points with `TANDEM_EVERY_CASE`. Runs the kind once beside each action:
    not while tests are collected."""
    faults, actions = tuple(Fault), tuple(Beside)
    found = {action: passages(kind, action) for action in actions}
    points = list(dict.fromkeys(point for passed in found.values() for point, _ in passed))
    for number, point in in_turn([*enumerate(points)], turn):
        able = [action for action in actions if (point, 1) in found[action]]
        action = able[(number + turn) % len(able)]
        nth = max(n for passed, n in found[action] if passed is point)
        yield action, (point, nth), faults[(number + number // 4 + turn) % len(faults)]
