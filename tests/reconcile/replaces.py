"""Replaces in `reconcile.world`: of the rows whose x lies in an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyroaring import BitMap64

from reconcile.attempt import Attempt, carry, put
from reconcile.world import Entry, Row, Rows, Serial, Working, World
from tandem.delta.actions import AddFile
from tandem.operations.kinds.job_files import changes_of
from tandem.operations.model import CommitContent, OutputFileChange
from tandem.reconcile.model import ChangeKind
from tandem.reconcile.outcomes import StatementConflict
from tandem.reconcile.replace import Removal, RowAges, decide
from tandem.spec.replace import Scope


@dataclass(frozen=True)
class Replace:
    """`sources`: the x of the rows that it adds; none for a drop. `back`: how many versions before
    the latest one its cutoff is. `paths`: it replaces the rows of these files at the cutoff,
    whatever their x."""

    name: str
    scope: Scope
    sources: tuple[int, ...] = ()
    back: int = 0
    low: int = 2
    high: int = 6
    key_of: Callable[[int], int] = lambda x: x
    first_file: bool = False

    def holds(self, x: int) -> bool:
        return self.first_file or self.low <= self.key_of(x) < self.high


@dataclass(frozen=True)
class Replacing:
    """A replace in flight. `old`: the identities of the rows that it may remove."""

    replace: Replace
    cutoff: int
    rows: tuple[Row, ...]
    old: frozenset[int]
    named: frozenset[str] | None = None
    attempt: Attempt = field(default_factory=lambda: Attempt(0))
    found: Removal | None = None
    written: str = ""
    is_done: bool = False


def start_replace(world: World, asked: Replace) -> Replacing:
    cutoff = max(0, world.latest - asked.back)
    rows = tuple((world.next_id + i, x) for i, x in enumerate(asked.sources))
    world.next_id += len(rows)
    named = frozenset(sorted(world.views[cutoff])[:1]) if asked.first_file else None
    old = frozenset(
        world.files[path][p][0]
        for path in (world.views[cutoff] if named is None else named)
        for p in world.live(path, cutoff)
    )
    return Replacing(asked, cutoff, rows, old, named, Attempt(world.next_file))


def removal(world: World, running: Replacing) -> Removal | None:
    """What the rules remove from the latest version; None for a conflict."""
    asked = running.replace
    ages = None
    if asked.scope is Scope.AT_START:
        cutoff = world.view(running.cutoff)
        if cutoff is None:
            return None  # its process has kept it; a later one ends in a conflict
        since = world.summaries(running.cutoff)
        ages = RowAges(cutoff, running.named).after(since, world.view, world.maps)
    now = world.view(world.latest)
    assert now is not None
    found = decide(
        asked.scope,
        world.views[-1],
        now,
        lambda path: BitMap64(p for p, (_, x) in enumerate(world.files[path]) if asked.holds(x)),
        ages,
    )
    if isinstance(found, StatementConflict):
        return None
    assert isinstance(found, Removal)
    return found


def step_replace(world: World, running: Replacing) -> Replacing:
    """Put what was decided, if no commit has been made since; else decide again."""
    if running.is_done:
        return running
    if running.attempt.may_put(world):
        return _put_replace(world, running)
    found = removal(world, running)
    if found is None:
        return replace(running, found=None, is_done=True)
    written = running.written
    if running.rows and not written:
        written = world.write(running.rows, "r")
    view = Working(world.files, world.views[-1])
    changed = changes_of(cast(Any, view), found.deletes)
    adds = [AddFile(path, {}, 1, 0, data_change=True) for path in (written,) if path]
    outputs = tuple(OutputFileChange(add, len(running.rows)) for add in adds)
    content = CommitContent("WRITE", {}, outputs, changed.removes, changed.marked)
    attempt = carry(world, running.attempt, content)
    return replace(running, found=found, written=written, attempt=attempt)


def finish_replace(world: World, running: Replacing) -> Removal | None:
    """What is left to do, without a commit in between: two steps at most."""
    for _ in range(2):
        running = step_replace(world, running)
    if not running.is_done:
        world.break_with("a replace does not end")
    return running.found


def _put_replace(world: World, running: Replacing) -> Replacing:
    def effect(rows: Rows) -> Rows:
        at_commit = running.replace.scope is Scope.AT_COMMIT
        kept = [
            (identity, x)
            for identity, x in rows
            if not (running.replace.holds(x) and (at_commit or identity in running.old))
        ]
        return [*kept, *running.rows]

    entry = Entry(ChangeKind.CHANGE, frozenset(), Serial(running.replace.name, effect))
    put(world, running.attempt, entry)
    return replace(running, is_done=True)
