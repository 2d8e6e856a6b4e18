"""Who was declared dead, and comes back: operators and jobs, at every step of theirs.

The first process stands still. Meanwhile others take it for dead: a cleaning abandons its attempt
and takes its files, a successor does the work, or both, in either order. Then it goes on where it
stood. Whatever it does, the operation happens once.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from simulator.crashing import (
    ALL_KINDS,
    LAST_BATCH_GONE,
    Beside,
    Crowd,
    happens_no_more,
    nothing_is_left,
)
from simulator.jobs import Driver
from simulator.single import (
    CUT,
    EDITING,
    EXCLUSIVE,
    MOST_STEPS,
    SERIALIZABLE,
    STRADDLING,
    Single,
)
from simulator.two_drivers import Pair
from support.cases import APPENDS
from support.present import present
from tandem.errors import Reason
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.clean_log import clean_with_log
from tandem.operations.machine.events import Ending
from tandem.planning.cleaning import CleaningRules
from tandem.spec.status import Phase

KINDS = (*ALL_KINDS, CUT, *STRADDLING, *APPENDS, *EDITING)
MOST_JOB_STEPS = 60
"""No job here takes as many, except one that waits for another round."""
SHORT_MS = 500
RULES = CleaningRules(SHORT_MS, SHORT_MS, SHORT_MS, SHORT_MS)
"""Nothing is kept that is not needed."""
LATER_MS = 2 * 86_400_000
"""A log keeps unknown files for a day."""


class Takeover(StrEnum):
    """What the others do before the first one comes back."""

    CLEANED = "cleaned"
    CLEANED_REPLACED = "cleaned, then replaced"
    REPLACED_CLEANED = "replaced, then cleaned"


def clean_as_if_dead(single: Single) -> tuple[tuple[str, int], ...]:
    """Much later, a cleaning that takes every process for dead. Returns what it abandoned."""
    single.world.living.clear()
    single.world.locks.expire(single.table.location, single.operation_id)
    single.world.clock.now += LATER_MS
    ports = single.world.ports()
    cleaned = clean_with_log(
        single.base, RULES, CleaningDependencies(ports.clock, ports.processes, ports.nonces)
    )
    assert not cleaned.problem, cleaned.problem
    single.checker.catch_up()
    return cleaned.abandoned


def operator_resumes(kind: str, begun: int, takeover: Takeover) -> None:
    """The operator stood still after `begun` steps."""
    pair = Pair(kind)
    single = pair.single
    pair.take(pair.first, begun)
    if takeover is not Takeover.REPLACED_CLEANED:
        clean_as_if_dead(single)
    if takeover is not Takeover.CLEANED:
        second = pair.session()
        pair.run(second)
        assert second.ending is not None
        assert second.ending.reason is Reason.COMMITTED, second.ending
    if takeover is Takeover.REPLACED_CLEANED:
        clean_as_if_dead(single)
    version = single.version
    pair.run(pair.first)
    ending = present(pair.first.ending)
    if takeover is not Takeover.CLEANED:
        assert ending.reason is Reason.COMMITTED or ending.elsewhere, ending
        assert single.version == version, "it put something after the takeover"
    _settled(single, ending)


def _settled(single: Single, ending: Ending) -> None:
    """Done at last, once; what zombies left is taken by a cleaning, and nothing else."""
    if ending.reason is not Reason.COMMITTED:
        found = single.end(jobs_live_on=True)
        ending = found
    if ending.phase is Phase.SUPERSEDED:
        assert (single.kind, Beside.DELETE) in LAST_BATCH_GONE, ending
        assert single.commits == 0
    else:
        assert ending.reason is Reason.COMMITTED, ending
        assert single.commits == 1
    for driver in single.world.jobs.running():
        single.world.jobs.die(driver)
    clean_as_if_dead(single)
    nothing_is_left(single)
    present = set(single.world.store.paths())
    assert {path for path in single.checker.files if path not in present} == set()
    happens_no_more(single, ending)


class _Doomed:
    """An operation whose first job stops after some steps of it, and may come back."""

    def __init__(self, kind: str, begun: int) -> None:
        self.single = Single(kind)
        self.begun = begun
        self.done = 0
        self.driver: Driver | None = None
        # One that yields stops its job by itself.
        more_rounds = dict.fromkeys((SERIALIZABLE, *STRADDLING), Beside.APPEND)
        special = {**more_rounds, EXCLUSIVE: Beside.NOTHING}
        beside = special.get(kind, Beside.DELETE)
        self.session = self.single.session(Crowd(self.single, beside))

    def advance(self) -> bool:
        """A step of the session, and one of each job."""
        going = self.session.advance()
        self.single.checker.catch_up()
        for driver in self.single.world.jobs.running():
            if self.driver is None and self.done == self.begun:
                self.driver = driver
                self.single.world.jobs.die(driver)
            else:
                self.single.world.jobs.advance(driver)
                self.done += 1
        return going

    def ended(self) -> Ending:
        for _ in range(MOST_STEPS):
            if not self.advance():
                break
        assert self.session.ending is not None, f"it hangs at {self.session.next_effect}"
        return self.session.ending


@cache
def job_steps(kind: str) -> int:
    """How many steps the job of an undisturbed run takes."""
    doomed = _Doomed(kind, -1)
    doomed.ended()
    return doomed.done


def job_resumes(kind: str, begun: int, *, cleaned: bool) -> None:
    """The job's driver was given up after `begun` steps; it goes on beside its successor, or
    when that is over and everything has been cleaned."""
    doomed = _Doomed(kind, begun)
    single = doomed.single
    if not cleaned:
        while len(single.world.jobs.drivers) < 2 and doomed.advance():
            pass
        assert doomed.driver is not None
        doomed.driver.alive = True
    ending = doomed.ended()
    driver = present(doomed.driver)
    if cleaned:
        clean_as_if_dead(single)
    version = single.version
    driver.alive = True
    for _ in range(MOST_JOB_STEPS):
        if driver.alive:
            single.world.jobs.advance(driver)
    single.checker.catch_up()
    assert single.version == version
    _settled(single, ending)
