"""Replaces in `reconcile.world`: of the rows whose x lies in an interval."""

from __future__ import annotations

from dataclasses import dataclass

from pyroaring import BitMap64

from reconcile.world import Entry, Row, Rows, Serial, World
from tandem.reconcile.model import ChangeKind
from tandem.reconcile.outcomes import StatementConflict
from tandem.reconcile.replace.rule import Removal
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
    first_file: bool = False
    vectors: bool = True

    def holds(self, x: int) -> bool:
        return self.first_file or self.low <= x < self.high


@dataclass(frozen=True)
class Replacing:
    """A replace in flight. `old`: the identities of the rows that it may remove."""

    replace: Replace
    cutoff: int
    rows: tuple[Row, ...]
    old: frozenset[int]
    named: frozenset[str] | None = None


def start_replace(world: World, replace: Replace) -> Replacing:
    cutoff = max(0, world.latest - replace.back)
    rows = tuple((world.next_id + i, x) for i, x in enumerate(replace.sources))
    world.next_id += len(rows)
    named = frozenset(sorted(world.views[cutoff])[:1]) if replace.first_file else None
    old = frozenset(
        world.files[path][p][0]
        for path in (world.views[cutoff] if named is None else named)
        for p in world.live(path, cutoff)
    )
    return Replacing(replace, cutoff, rows, old, named)


def removal(world: World, running: Replacing) -> Removal | None:
    """What the rules remove from the latest version; None for a conflict."""
    replace = running.replace
    ages = None
    if replace.scope is Scope.AT_START:
        cutoff = world.view(running.cutoff)
        if cutoff is None:
            return None  # its process has kept it; a later one ends in a conflict
        ages = world.rules.ages(cutoff, running.named).after(
            world.summaries(running.cutoff), world.view, world.maps
        )
    now = world.view(world.latest)
    assert now is not None
    found = world.rules.replace(
        replace.scope,
        world.views[-1],
        now,
        lambda path: BitMap64(p for p, (_, x) in enumerate(world.files[path]) if replace.holds(x)),
        ages,
        in_part=replace.vectors,
    )
    if isinstance(found, StatementConflict):
        return None
    assert isinstance(found, Removal)
    return found


def finish_replace(world: World, running: Replacing) -> Removal | None:
    found = removal(world, running)
    if found is None:
        return None
    view = dict(world.views[-1])
    for path, deleted in found.deletes.items():
        if deleted.is_whole:
            del view[path]
        else:
            view[path] = deleted.dead
    files = set(found.deletes)
    added = set()
    if running.rows:
        written = world.write(running.rows, "r")
        view[written] = BitMap64()
        added.add(written)
    added |= set(found.deletes) & set(view)

    def effect(rows: Rows) -> Rows:
        at_commit = running.replace.scope is Scope.AT_COMMIT
        kept = [
            (identity, x)
            for identity, x in rows
            if not (running.replace.holds(x) and (at_commit or identity in running.old))
        ]
        return [*kept, *running.rows]

    entry = Entry(
        ChangeKind.CHANGE,
        frozenset(files | added),
        Serial(running.replace.name, effect),
    )
    world.commit(entry, view)
    return found
