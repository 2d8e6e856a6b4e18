"""Other systems move rows to other files, replace them, or bring old files back."""

from __future__ import annotations

from collections.abc import Callable

from simulator.foreign import (
    DELTA_RS,
    SPARK,
    Committed,
    Intent,
    Model,
    live_in,
    new_files,
    unchanged,
)
from simulator.rows import Row
from simulator.world import World
from tandem.delta.actions import Action, AddFile
from tandem.delta.log.snapshot import remove_of
from tandem.errors import TandemError

# --- W3, W7: optimize, z-order, purge -----------------------------------------------------------


def optimize(world: World) -> Committed | None:
    """delta-rs compacts some files: tags are lost, and there is no row map."""
    chosen = _some(world, 2)
    return _moved(world, chosen, DELTA_RS, "OPTIMIZE") if chosen else None


def z_order(world: World) -> Committed | None:
    """All files, in another order of rows."""
    chosen = _some(world, 1)
    if not chosen:
        return None
    return _moved(world, chosen, SPARK, "OPTIMIZE", key=lambda row: (row.v % 7, row.k), split=5)


def purge(world: World) -> Committed | None:
    """REORG TABLE … APPLY (PURGE): each file with deleted rows becomes one without."""
    chosen = [add for add in _all(world) if add.deletion_vector]
    return _moved(world, chosen, SPARK, "REORG", each=True) if chosen else None


def _all(world: World) -> list[AddFile]:
    return sorted(world.log.snapshot().adds(), key=lambda add: add.logged_path)


def _some(world: World, least: int) -> list[AddFile]:
    adds = _all(world)
    if len(adds) < least:
        return []
    return world.rng.sample(adds, world.rng.randrange(least, len(adds) + 1))


def _moved(
    world: World,
    chosen: list[AddFile],
    engine: str,
    operation: str,
    *,
    key: Callable[[Row], tuple[int, int]] | None = None,
    split: int = 99,
    each: bool = False,
) -> Committed:
    actions: list[Action] = [
        remove_of(add, deletion_ms=world.clock.now_ms(), data_change=False) for add in chosen
    ]
    for part in [[add] for add in chosen] if each else [chosen]:
        found = [row for add in part for _, row in live_in(world, add)]
        if key is not None:
            found.sort(key=key)
        for begin in range(0, len(found), split):
            actions += new_files(world, found[begin : begin + split], data_change=False)
    return world.commit(actions, operation, engine), Intent()


# --- W4: overwrite, replaceWhere, restore -------------------------------------------------------


def overwrite(world: World) -> Committed:
    found = world.new_rows(world.rng.randrange(2, 6))
    actions = _replaced(world, list(world.log.snapshot().adds()), found)
    version = world.commit(actions, "WRITE", SPARK, blind=False, mode="Overwrite")
    return version, Intent(lambda _: {row.rid: row for row in found})


def replace_where(world: World) -> Committed:
    """`replaceWhere k = 1`: what else is in the files is copied."""
    new = [row._replace(k=1) for row in world.new_rows(2)]

    def effect(before: Model) -> Model:
        kept = {rid: row for rid, row in before.items() if row.k != 1}
        return kept | {row.rid: row for row in new}

    hit = [add for add in _all(world) if any(row.k == 1 for _, row in live_in(world, add))]
    kept = [row for add in hit for _, row in live_in(world, add) if row.k != 1]
    version = world.commit(
        _replaced(world, hit, [*kept, *new]),
        "WRITE",
        DELTA_RS,
        mode="Overwrite",
        predicate="k = 1",
    )
    return version, Intent(effect)


def _replaced(world: World, gone: list[AddFile], found: list[Row]) -> list[Action]:
    now = world.clock.now_ms()
    return [
        *(remove_of(add, deletion_ms=now, data_change=True) for add in gone),
        *new_files(world, found),
    ]


def restore(world: World) -> Committed | None:
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
    if not existing >= {path for add in there.values() for path in world.needed(add)}:
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


def rewrite_in_vain(world: World) -> Committed | None:
    """A MERGE that matched nothing and wrote its files all the same (older engines do)."""
    chosen = _some(world, 1)[:1]
    if not chosen:
        return None
    found = [row for add in chosen for _, row in live_in(world, add)]
    version = world.commit(_replaced(world, chosen, found), "MERGE", DELTA_RS)
    return version, Intent(unchanged)
