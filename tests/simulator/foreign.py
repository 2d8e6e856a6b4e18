"""Other systems' commits: what Spark + Delta and delta-rs write to a table, in miniature.

Each is one function that commits at once on the latest version (they keep their own rules
among themselves), and says what it means as an `Intent` for the checker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from simulator import rows
from simulator.rows import Row
from simulator.statements import DELETES, UPDATES, Statement
from simulator.world import World
from tandem.delta import dv
from tandem.delta.actions import Action, AddFile
from tandem.delta.checkpoint_write import write_checkpoint
from tandem.delta.commit import remove_of
from tandem.delta.names import commit_path, parse
from tandem.errors import TandemError

SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
DELTA_RS = "delta-rs:py-1.6.6"


@dataclass(frozen=True)
class Intent:
    """What a foreign commit means. Exactly one is set, or none: no change of rows."""

    statement: Statement | None = None
    appended: tuple[Row, ...] = ()
    restored: int | None = None
    is_change: bool = True  # an update, delete, rewrite or restore, even of nothing


def append(world: World) -> tuple[int, Intent]:
    found = world.new_rows(world.rng.randrange(1, 7))
    version = world.commit([_new_file(world, found)], "WRITE", SPARK, mode="Append")
    return version, Intent(appended=tuple(found), is_change=False)


def delete_with_vectors(world: World) -> tuple[int, Intent] | None:
    return _with_vectors(world, world.rng.choice(DELETES[:2]))


def update_with_vectors(world: World) -> tuple[int, Intent] | None:
    return _with_vectors(world, world.rng.choice(UPDATES))


def delete_by_rewrite(world: World) -> tuple[int, Intent]:
    return _by_rewrite(world, world.rng.choice(DELETES))


def update_by_rewrite(world: World) -> tuple[int, Intent]:
    return _by_rewrite(world, world.rng.choice(UPDATES))


def optimize(world: World) -> tuple[int, Intent] | None:
    """delta-rs compacts some files: tags are lost, and there is no row map."""
    snapshot = world.log.snapshot()
    adds = sorted(snapshot.adds(), key=lambda add: add.logged_path)
    if len(adds) < 2:
        return None
    chosen = world.rng.sample(adds, world.rng.randrange(2, len(adds) + 1))
    found = [row for add in chosen for _, row in _live(world, add)]
    actions: list[Action] = [
        remove_of(add, deletion_ms=world.clock.now_ms(), data_change=False) for add in chosen
    ]
    if found:
        actions.append(_new_file(world, found, data_change=False))
    return world.commit(actions, "OPTIMIZE", DELTA_RS), Intent()


def restore(world: World) -> tuple[int, Intent] | None:
    """Back to an earlier version, files and deletion vectors as they were."""
    latest = world.log.snapshot()
    version = world.rng.randrange(0, latest.version + 1)
    try:
        target = world.log.snapshot(version)
    except TandemError:
        return None
    here = {add.key: add for add in latest.adds()}
    there = {add.key: add for add in target.adds()}
    existing = set(world.store.paths())
    if not existing >= {add.path for add in there.values()}:
        return None  # vacuumed
    now = world.clock.now_ms()
    actions: list[Action] = [
        remove_of(add, deletion_ms=now, data_change=True)
        for key, add in here.items()
        if key not in there
    ]
    actions += [add for key, add in there.items() if key not in here]
    committed = world.commit(actions, "RESTORE", DELTA_RS, version=str(version))
    return committed, Intent(restored=version)


def vacuum(world: World) -> None:
    """Without retention: all that the latest version does not name goes, but `_`-folders."""
    named = {add.path for add in world.log.snapshot().adds()}
    gone = [p for p in world.store.paths() if not p.startswith("_") and p not in named]
    world.store.delete(gone)
    world.say(f"  foreign vacuum without retention takes {len(gone)} files")


def clean_log(world: World) -> None:
    """A checkpoint of the latest version; all commits below it are deleted."""
    snapshot = world.log.snapshot()
    write_checkpoint(world.log, snapshot, now_ms=world.clock.now_ms())
    for path in world.store.paths():
        if not path.startswith("_delta_log/"):
            continue
        file = parse(path.rsplit("/", 1)[-1])
        if (
            file is not None
            and path == commit_path(file.version)
            and file.version < snapshot.version
        ):
            world.store.delete([path])
    world.say(f"  foreign checkpoint {snapshot.version}, log cleaned")


COMMITS: tuple[tuple[int, Callable[[World], tuple[int, Intent] | None]], ...] = (
    (6, append),
    (4, delete_with_vectors),
    (3, update_with_vectors),
    (2, delete_by_rewrite),
    (2, update_by_rewrite),
    (2, optimize),
    (2, restore),
)
"""With weights."""


def _with_vectors(world: World, statement: Statement) -> tuple[int, Intent] | None:
    if not world.deletion_vectors:
        return None
    snapshot = world.log.snapshot()
    actions: list[Action] = []
    written: list[Row] = []
    now = world.clock.now_ms()
    for add in snapshot.adds():
        live = _live(world, add)
        hit = [position for position, row in live if statement.matches(row)]
        if not hit:
            continue
        written += [r for _, row in live if statement.matches(row) and (r := statement.apply(row))]
        actions.append(remove_of(add, deletion_ms=now, data_change=True))
        if len(hit) < len(live):
            dead = _dead(world, add) | BitMap64(hit)
            actions.append(replace(add, deletion_vector=dv.encode_inline(dead), data_change=True))
    if written:
        actions.append(_new_file(world, written))
    operation = "UPDATE" if statement.new else "DELETE"
    version = world.commit(actions, operation, SPARK)
    return version, Intent(statement=statement, is_change=bool(actions))


def _by_rewrite(world: World, statement: Statement) -> tuple[int, Intent]:
    snapshot = world.log.snapshot()
    actions: list[Action] = []
    now = world.clock.now_ms()
    for add in snapshot.adds():
        live = _live(world, add)
        if not any(statement.matches(row) for _, row in live):
            continue
        actions.append(remove_of(add, deletion_ms=now, data_change=True))
        kept = [r for _, row in live if (r := statement.apply(row)) is not None]
        if kept:
            actions.append(_new_file(world, kept))
    operation = "UPDATE" if statement.new else "DELETE"
    version = world.commit(actions, operation, DELTA_RS)
    return version, Intent(statement=statement, is_change=bool(actions))


def _new_file(world: World, found: list[Row], *, data_change: bool = True) -> AddFile:
    path = world.new_path()
    size = rows.write(world.store, path, found)
    return AddFile(
        logged_path=path,
        partition_values={},
        size=size,
        modified_ms=world.clock.now_ms(),
        data_change=data_change,
        stats=rows.stats(len(found)),
    )


def _dead(world: World, add: AddFile) -> BitMap64:
    return dv.load(world.store, add.deletion_vector) if add.deletion_vector else BitMap64()


def _live(world: World, add: AddFile) -> list[tuple[int, Row]]:
    dead = _dead(world, add)
    found = rows.read(world.store, add.path)
    return [(position, row) for position, row in enumerate(found) if position not in dead]
