"""Edits, where deletion vectors are off: struck while some of them are made and others are not,
made by two processes at once, and wanted or not wanted any more since vectors were switched.

Every kind that makes edits is also among those of `test_crash_points.py`, `test_two_drivers.py` and
`test_zombies.py`.
"""

from __future__ import annotations

from functools import cache

import pytest

from simulator.actor import operation
from simulator.crashing import (
    REWRITES_OFF,
    Beside,
    Crowd,
    crash,
    happened_once,
    nothing_is_left,
)
from simulator.edits import StrikeInEdits
from simulator.single import BATCHES, CUT, EDITING, OFF, Single
from simulator.world import Vectors
from support.lake.faults import Call, Fault
from support.lake.memory_store import Call as StoreCall
from support.some import in_turn
from tandem.delta.actions import Commit
from tandem.errors import Reason
from tandem.operations import attempt_files
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.session import Session
from tandem.reconcile.classify import classify
from tandem.reconcile.model import ChangeKind
from tandem.rowmap import binary_format
from tandem.spec.status import Phase

UPDATE = {"where": "v < 40", "set": {"v": "v + 7"}}
ALWAYS_COMMIT = tuple(kind for kind in EDITING if not kind.startswith(BATCHES))


def beside(kind: str) -> Beside:
    """What makes an operation of this kind edit files; others do so in any case."""
    return Beside.DELETE if kind in REWRITES_OFF else Beside.NOTHING


@cache
def edits_of(kind: str) -> int:
    """How many edits an undisturbed run makes."""
    single = Single(kind)
    single.end(Crowd(single, beside(kind)))
    return len(single.world.edits.made)


# Some edits are there, others are not --------------------------------------------------------


@pytest.mark.part(3)
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "fails"])
@pytest.mark.parametrize("kind", ALWAYS_COMMIT)
def test_N15_struck_with_some_edits_of_a_round(kind: str, dies: bool) -> None:
    """The process, or the job that makes them, dies; or the store does not answer. They are made
    again, and those that no commit names are cleaned."""
    assert edits_of(kind) > 0
    for after in in_turn(range(edits_of(kind)), EDITING.index(kind) + dies):
        single = Single(kind)
        strike = single.world.edits.strike = StrikeInEdits(after, dies)
        ending = single.run(Crowd(single, beside(kind)), jobs_live_on=True)
        assert strike.struck
        if ending is None:
            ending = single.run(jobs_live_on=True)
        assert ending is not None
        happened_once(single, ending)


@pytest.mark.parametrize("fault", [Fault.REPEAT, Fault.LOSE_ANSWER])
@pytest.mark.parametrize("kind", [f"{kind}{OFF}" for kind in ("compaction", "sort")])
def test_a_round_of_edits_that_is_carried_out_twice_publishes_one_row_map(
    kind: str, fault: Fault
) -> None:
    """The answer is lost when files and map are there: what is done again must not take the edits
    for files that the job wrote."""
    single = crash(kind, Beside.DELETE, (Point.WRITE_SIDECARS, 1), fault)
    commit = single.checker.commits[single.operation_id]
    assert commit_kind(single, commit) is ChangeKind.MAPPED_REWRITE


def commit_kind(single: Single, commit: Commit) -> ChangeKind:
    return classify(commit, single.checker.evidence.row_maps()).kind


# Two processes make edits of one attempt ------------------------------------------------------

EDITED_MEANWHILE = tuple(f"{kind}{OFF}" for kind in ("compaction", "sort", "update", "merge"))


class TwoAtOnce:
    """Two processes that make edits of one attempt, and an update that has been evaluated before
    and commits when they have ended: it follows the files by the row map, if that knows them."""

    def __init__(self, kind: str) -> None:
        self.single = single = Single(kind)
        update = operation("TableUpdate", "other", {"update": UPDATE})
        self.update = single.session(resource=update)
        self.first = single.session()
        single.until(self.first, Point.START_JOB)
        single.until(self.update, Point.RECONCILE)
        single.foreign("delete_some_by_rewrite")
        single.world.store.fault = None

    @property
    def map_path(self) -> str:
        return attempt_files.row_map(self.single.operation_id, 1)

    def another(self) -> Session:
        """The first one is taken for dead."""
        self.single.world.living.clear()
        return self.single.session()

    def end(self, *sessions: Session) -> None:
        single = self.single
        for session in sessions:
            ending = session.ending or single.drive(session)
            assert ending.reason is Reason.COMMITTED or ending.elsewhere, ending
        assert single.commits == 1
        single.drive(self.update)
        assert self.update.ending is not None
        assert self.update.ending.reason is Reason.COMMITTED
        nothing_is_left(single)


@pytest.mark.parametrize("kind", EDITED_MEANWHILE)
def test_Z1_the_row_map_of_the_one_that_does_not_commit_is_there_at_the_commit(kind: str) -> None:
    """It does not know the files of the commit, and so counts as lost."""
    both = TwoAtOnce(kind)
    single = both.single
    single.until(both.first, Point.PUT_COMMIT)
    mine = set(single.world.edits.made)
    second = both.another()
    single.until(second, Point.PUT_COMMIT)
    theirs = set(single.world.edits.made) - mine
    assert len(theirs) == len(mine) > 0
    both.first.advance()
    single.checker.catch_up()
    named = {add.path for add in single.checker.commits[single.operation_id].adds}
    assert named & mine
    assert not named & theirs
    assert commit_kind(single, single.checker.commits[single.operation_id]) is ChangeKind.CHANGE
    both.end(both.first, second)


@pytest.mark.parametrize("kind", EDITED_MEANWHILE)
def test_Z1_a_row_map_is_overwritten_after_the_commit(kind: str) -> None:
    """The first process has made its edits, and is about to put its map; the second one makes its
    own meanwhile, and commits."""
    both = TwoAtOnce(kind)
    single = both.single
    single.until(both.first, Point.WRITE_SIDECARS)
    second: list[Session] = []

    def meanwhile(call: StoreCall) -> None:
        if (call.name, call.path, call.when) == ("put", both.map_path, "before") and not second:
            second.append(both.another())
            single.drive(second[0])

    single.world.store.fault = meanwhile
    both.first.advance()
    single.world.store.fault = None
    assert second
    commit = single.checker.commits[single.operation_id]
    assert not {add.path for add in commit.adds} <= row_map_outputs(single, both.map_path)
    assert commit_kind(single, commit) is ChangeKind.CHANGE
    both.end(second[0], both.first)


def row_map_outputs(single: Single, path: str) -> set[str]:
    return set(binary_format.from_bytes(single.world.store.get(path)).output_paths)


@pytest.mark.parametrize("how", ["cut off", "gone"])
def test_R10_a_statement_follows_no_rows_by_a_map_that_is_lost(how: str) -> None:
    both = TwoAtOnce(f"compaction{OFF}")
    single = both.single
    single.drive(both.first)
    store, left = single.world.store, b""
    if how == "gone":
        store.delete([both.map_path])
    else:
        left = store.get(both.map_path)[:-9]
        store.put(both.map_path, left)
    single.world.lost_maps[both.map_path] = left
    both.end(both.first)
    assert single.checker.invariants.checked["R-10"] == 1


# Vectors are switched -------------------------------------------------------------------------

SWITCHED = tuple(kind.removesuffix(OFF) for kind in ALWAYS_COMMIT if kind.endswith(OFF))


class Switching:
    """An `interceptor` that lets others delete rows when the job starts, and switches vectors
    before the steps of these numbers."""

    def __init__(self, single: Single, *steps: int) -> None:
        self._single = single
        self._steps = steps
        self.count = 0

    def __call__(self, effect: Effect, call: Call) -> Event:
        if self.count in self._steps:
            self._single.foreign("switch_vectors")
        self.count += 1
        event = call()
        if effect.point is Point.PERSIST_PLAN and self._single.commits == 0:
            self._single.foreign("delete_some_by_rewrite")
        return event


@cache
def steps_of_switched(kind: str, seed: int) -> int:
    single = Single(kind, seed=seed, vectors=Vectors.SWITCHED)
    switching = Switching(single)
    single.end(switching)
    return switching.count


@pytest.mark.part(3)
@pytest.mark.parametrize("seed", [7, 8], ids=["from on", "from off"])
@pytest.mark.parametrize("kind", SWITCHED)
def test_N6_vectors_are_switched_before_any_step_and_back_before_a_later_one(
    kind: str, seed: int
) -> None:
    """No commit adds a vector where they are off (R-2), and each is that of a serial order."""
    count = steps_of_switched(kind, seed)
    for step in in_turn(range(count), SWITCHED.index(kind) + seed, every=9):
        for back in ([], [step + 1 + (step + seed) % 3]):
            single = Single(kind, seed=seed, vectors=Vectors.SWITCHED)
            begins_on = single.checker.vectors
            ending = single.end(Switching(single, step, *back))
            if ending.phase is Phase.SUPERSEDED:
                # With vectors on, files of other writers are no heirs of its inputs.
                assert kind == CUT or f"{kind}{OFF}" in REWRITES_OFF
                assert begins_on or single.checker.vectors or back
                nothing_is_left(single)
            else:
                happened_once(single, ending)
