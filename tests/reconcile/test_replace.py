"""The rule for replaces, line by line: ages of rows, and what becomes of rows of an age."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from pyroaring import BitMap64

from reconcile.alphabet import UPDATE, UPSERT, by_value
from reconcile.replaces import Replace, finish_replace, removal, start_replace
from reconcile.rewrites import finish_rewrite, start_rewrite
from reconcile.statements import finish_statement, start_statement
from reconcile.theirs import (
    FOREIGN_DELETE,
    FOREIGN_UPDATE,
    append,
    clean_log,
    clean_versions,
    foreign,
    foreign_insert_only_merge,
    foreign_optimize,
    lose_row_maps,
    nothing_of_note,
    overwrite,
    purge,
    replace_where,
    restore,
)
from reconcile.world import World, initial, problem
from support.present import present
from tandem.errors import Reason
from tandem.reconcile.model import ChangeKind, FileState
from tandem.reconcile.outcomes import StatementConflict
from tandem.reconcile.replace import ReadFiles, Removal, RowAges, decide
from tandem.reconcile.rules import REPLACE, Age, ReplaceFate
from tandem.spec.replace import Scope

ALL_ROWS = Replace("all rows", Scope.AT_START, (3,), low=0, high=1_000)
Step = Callable[[World, object], object]


def optimize_all(world: World, _: object) -> object:
    return finish_rewrite(world, start_rewrite(world, sorted(world.views[-1]), 99))


def sort_all(world: World, _: object) -> object:
    paths = sorted(world.views[-1])
    return finish_rewrite(world, start_rewrite(world, paths, 2, layout=by_value))


def optimize_but(kept: str) -> Step:
    """A foreign compaction of all files but one."""

    def step(world: World, _: object) -> object:
        rest = world.views[-1].pop(kept)
        foreign_optimize(99)(world, None)
        world.views[-2][kept] = world.views[-1][kept] = rest
        return None

    return step


def update_all(world: World, _: object) -> object:
    return finish_statement(world, start_statement(world, UPDATE))


def upsert(world: World, _: object) -> object:
    return finish_statement(world, start_statement(world, UPSERT))


# Late rows are in the table when the step is done: two of them, or those that the step brings.
KNOWN: Mapping[str, tuple[tuple[Step, ...], int]] = {
    "nothing": ((), 0),
    "a commit without rows": ((nothing_of_note,), 0),
    "an append": ((append(3, 8),), 2),
    "a merge that took nothing away": ((foreign_insert_only_merge,), 1),
    "a compaction of old and late rows": ((append(3, 8), optimize_all), 2),
    "a sort behind a compaction": ((append(3, 8), optimize_all, sort_all), 2),
    "a foreign compaction of old rows": ((foreign_optimize(99), append(3, 8)), 2),
    "a lost map of old rows": ((optimize_all, lose_row_maps, append(3, 8)), 2),
    "an update of old rows": ((update_all, append(3, 8)), 2),
    "a foreign update of old rows": ((foreign(FOREIGN_UPDATE, vectors=False), append(3)), 1),
    "a purge": ((purge, append(3, 8)), 2),
    "a restore of files of the cutoff": ((foreign(FOREIGN_DELETE, vectors=True), restore(None)), 0),
    "a restore of late rows": (
        (append(3, 8), foreign(FOREIGN_DELETE, vectors=True), restore(1)),
        2,
    ),
}
MIXED: Mapping[str, tuple[Step, ...]] = {
    "a foreign compaction": (append(3, 8), foreign_optimize(99)),
    "a foreign update": (append(3, 8), foreign(FOREIGN_UPDATE, vectors=False)),
    "a lost map": (append(3, 8), optimize_all, lose_row_maps),
    "a merge that changed rows": (upsert,),
    "an overwrite": (overwrite,),
    "replaceWhere": (replace_where,),
    "a gap with a foreign compaction": (foreign_optimize(99), clean_log),
    "a version that cannot be read": (foreign_optimize(99), clean_versions, append(3)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_old_rows_go_and_late_ones_stay(name: str) -> None:
    steps, late = KNOWN[name]
    world = initial()
    running = start_replace(world, ALL_ROWS)
    for step in steps:
        step(world, None)
    before = len(world.rows_at(world.latest))
    found = present(finish_replace(world, running))
    assert found.late == late
    assert found.rows == before - late
    assert len(world.rows_at(world.latest)) == late + 1
    assert problem(world) == ""


@pytest.mark.parametrize("name", MIXED)
def test_rows_of_unknown_age_end_it(name: str) -> None:
    world = initial()
    running = start_replace(world, ALL_ROWS)
    for step in MIXED[name]:
        step(world, None)
    versions = world.latest
    assert finish_replace(world, running) is None
    assert world.latest == versions


@pytest.mark.parametrize("name", [*KNOWN, *MIXED])
def test_at_commit_all_rows_in_scope_go(name: str) -> None:
    world = initial()
    running = start_replace(world, Replace("x", Scope.AT_COMMIT, (3,), low=0, high=1_000))
    for step in KNOWN[name][0] if name in KNOWN else MIXED[name]:
        step(world, None)
    before = len(world.rows_at(world.latest))
    found = present(finish_replace(world, running))
    assert (found.rows, found.late) == (before, 0)
    assert len(world.rows_at(world.latest)) == 1


def test_rows_that_a_restore_brings_back_from_before_the_cutoff_are_unknown() -> None:
    """They were dead at the cutoff, and did not come after it."""
    world = initial()
    foreign(FOREIGN_DELETE, vectors=True)(world, None)
    running = start_replace(world, ALL_ROWS)
    restore(None)(world, None)
    assert removal(world, running) is None


def test_rows_outside_the_scope_do_not_matter_however_old_they_are() -> None:
    world = initial()
    running = start_replace(world, Replace("x", Scope.AT_START, low=0, high=2))
    append(3, 8)(world, None)
    foreign_optimize(99)(world, None)
    # The foreign compaction mixed ages, also of the one row in scope.
    assert removal(world, running) is None
    elsewhere = start_replace(world, Replace("y", Scope.AT_START, low=500, high=501))
    overwrite(world, None)
    assert removal(world, elsewhere) == Removal()


def test_an_update_moves_a_row_out_of_the_scope_or_into_it() -> None:
    world = initial()
    running = start_replace(world, Replace("x", Scope.AT_START, low=5, high=6))
    foreign(FOREIGN_UPDATE, vectors=True)(world, None)  # 4 becomes 15, 2 becomes 9, 6 becomes 21
    update_all(world, None)  # 5 becomes 11
    found = present(finish_replace(world, running))
    assert found.rows == 0
    into = start_replace(world, Replace("y", Scope.AT_START, low=23, high=24))
    update_all(world, None)  # 11 becomes 23
    found = present(finish_replace(world, into))
    assert found.rows == 1
    assert problem(world) == ""


def test_a_named_segment_goes_whole_and_its_rows_are_followed() -> None:
    world = initial()
    running = start_replace(world, Replace("repair", Scope.AT_START, (1,), first_file=True))
    append(3, 8)(world, None)
    optimize_all(world, None)
    found = present(finish_replace(world, running))
    assert (found.rows, found.late) == (3, 2)
    assert problem(world) == ""


def test_other_rows_and_late_ones_together_stay_if_a_segment_is_replaced() -> None:
    """A foreign compaction of all files but the named one mixes them."""
    world = initial()
    running = start_replace(world, Replace("repair", Scope.AT_START, (1,), first_file=True))
    assert running.named is not None
    (named,) = running.named
    append(3, 8)(world, None)
    append(4)(world, None)
    optimize_but(named)(world, None)
    found = present(finish_replace(world, running))
    assert (found.rows, found.late) == (3, 6)
    assert problem(world) == ""


class OneFile:
    def __init__(self, rows: int, dead: tuple[int, ...] = ()) -> None:
        self.state = FileState("a", rows, BitMap64(dead))

    def get(self, path: str) -> FileState | None:
        return self.state if path == "a" else None


def test_a_file_whose_rows_in_scope_are_not_known_is_read_first() -> None:
    found = decide(Scope.AT_COMMIT, ["a", "b"], OneFile(3), lambda _: None)
    assert found == ReadFiles(("a",))


def test_where_vectors_are_off_and_edits_forbidden_only_whole_files_go() -> None:
    rows = BitMap64([0, 1])
    found = decide(Scope.AT_COMMIT, ["a"], OneFile(3), lambda _: rows, in_part=False)
    assert isinstance(found, StatementConflict)
    assert found.reason is Reason.DELETION_VECTORS_DISABLED
    assert found.files == ("a",)
    whole = decide(Scope.AT_COMMIT, ["a"], OneFile(3, (2,)), lambda _: rows, in_part=False)
    assert isinstance(whole, Removal)
    assert whole.deletes["a"].is_whole


def test_a_file_without_a_live_row_in_scope_stays_as_it_is() -> None:
    found = decide(Scope.AT_COMMIT, ["a"], OneFile(3, (1,)), lambda _: BitMap64([1]))
    assert found == Removal()


def test_a_conflict_names_commit_files_and_remedy() -> None:
    world = initial()
    cutoff = present(world.view(0))
    append(3)(world, None)
    who = "WRITE by someone (version 2, 2026-01-01T00:00:00Z)"
    world.log[-1] = world.log[-1].__class__(
        ChangeKind.CHANGE, world.log[-1].files, world.log[-1].serial, who=who
    )
    ages = RowAges(cutoff).after(world.summaries(0), world.view, {})
    now = present(world.view(1))
    found = decide(Scope.AT_START, world.views[-1], now, lambda _: BitMap64([0]), ages)
    assert isinstance(found, StatementConflict)
    assert found.cause is not None
    assert found.cause.version == 1
    assert who in found.why
    assert "AtCommit" in found.why
    assert all(path in found.why for path in found.files)


def test_each_age_has_a_fate_in_each_scope() -> None:
    assert set(REPLACE) == set(Scope)
    for scope in Scope:
        assert set(REPLACE[scope]) == set(Age)
    assert set(REPLACE[Scope.AT_COMMIT].values()) == {ReplaceFate.REMOVED}
