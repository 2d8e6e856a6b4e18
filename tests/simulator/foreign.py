"""Other systems' commits: what Spark + Delta and delta-rs write to a table, in miniature.

Each is one function that commits at once on the latest version (they keep their own rules
among themselves), and says what it means as an `Intent` for the checker. Here is what changes
rows; `foreign_files` moves and restores them, `foreign_table` changes the table around them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from simulator import rows
from simulator.rows import Row
from simulator.statements import DELETES, MERGES, UPDATES, Merge, Statement
from simulator.world import World
from support.lake.vectors import encode_inline
from tandem.delta import dv
from tandem.delta.actions import Action, AddFile
from tandem.delta.log.snapshot import remove_of

SPARK = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
DELTA_RS = "delta-rs:py-1.6.6"

Model = dict[int, Row]


def unchanged(before: Model) -> Model:
    return before


@dataclass(frozen=True)
class Intent:
    """What a foreign commit means: `appended` of a blind append, the version `restored`, or
    the `effect` on all rows. `is_change`: an update, delete, rewrite or restore of something."""

    effect: Callable[[Model], Model] = unchanged
    appended: tuple[Row, ...] = ()
    restored: int | None = None
    is_change: bool = True


Committed = tuple[int, Intent]


# --- W1: appends --------------------------------------------------------------------------------


def append(world: World) -> Committed:
    found = world.new_rows(world.rng.randrange(1, 7))
    actions: list[Action] = list(new_files(world, found))
    version = world.commit(actions, "WRITE", SPARK, blind=True, mode="Append")
    return version, Intent(appended=tuple(found), is_change=False)


def append_by_delta_rs(world: World) -> Committed:
    """It does not say `isBlindAppend`."""
    found = world.new_rows(world.rng.randrange(1, 4))
    actions: list[Action] = list(new_files(world, found))
    version = world.commit(actions, "WRITE", DELTA_RS, mode="Append")
    return version, Intent(appended=tuple(found), is_change=False)


def append_stream(world: World) -> Committed:
    """A micro-batch of a stream: several small files."""
    found = world.new_rows(3)
    actions: list[Action] = [add for row in found for add in new_files(world, [row])]
    version = world.commit(actions, "STREAMING UPDATE", SPARK, blind=True, outputMode="Append")
    return version, Intent(appended=tuple(found), is_change=False)


def append_with_schema_merge(world: World) -> Committed:
    """Another nullable column comes with the rows."""
    found = world.new_rows(2)
    actions: list[Action] = [world.with_column(), *new_files(world, found)]
    version = world.commit(actions, "WRITE", SPARK, blind=True, mode="Append")
    return version, Intent(appended=tuple(found), is_change=False)


def insert_select(world: World) -> Committed:
    """A row that says how many there are: it read them all, and is no blind append."""
    (base,) = world.new_rows(1)

    def effect(before: Model) -> Model:
        return before | {base.rid: base._replace(v=len(before))}

    now = effect(live_rows(world))
    version = world.commit(
        list(new_files(world, [now[base.rid]])), "WRITE", SPARK, blind=False, mode="Append"
    )
    return version, Intent(effect)


# --- W2, W6: delete, update, merge --------------------------------------------------------------


def delete_with_vectors(world: World) -> Committed | None:
    return _with_vectors(world, world.rng.choice(DELETES[:2]))


def update_with_vectors(world: World) -> Committed | None:
    return _with_vectors(world, world.rng.choice(UPDATES))


def merge_with_vectors(world: World) -> Committed | None:
    return _with_vectors(world, _merge(world))


def delete_by_rewrite(world: World) -> Committed:
    return _by_rewrite(world, world.rng.choice(DELETES))


def delete_some_by_rewrite(world: World) -> Committed:
    """What `delete_with_vectors` deletes."""
    return _by_rewrite(world, world.rng.choice(DELETES[:2]))


def update_by_rewrite(world: World) -> Committed:
    return _by_rewrite(world, world.rng.choice(UPDATES))


def merge_by_rewrite(world: World) -> Committed:
    return _by_rewrite(world, _merge(world))


def _merge(world: World) -> Merge:
    """One of the merges, with identities for the rows that it may insert."""
    return world.rng.choice(MERGES).sourced(world.new_rows(2))


def _with_vectors(world: World, statement: Statement) -> Committed | None:
    """Spark: vectors in files of its own, statistics kept; removes before adds."""
    if not world.writes_vectors:
        return None
    actions: list[Action] = []
    marked: list[tuple[AddFile, BitMap64]] = []
    written: list[Row] = []
    now = world.clock.now_ms()
    for add in world.log.snapshot().adds():
        live = live_in(world, add)
        hit = [position for position, row in live if statement.matches(row)]
        if not hit:
            continue
        written += [r for _, row in live if statement.matches(row) and (r := statement.apply(row))]
        actions.append(remove_of(add, deletion_ms=now, data_change=True))
        if len(hit) < len(live):
            marked.append((add, dead_in(world, add) | BitMap64(hit)))

    if world.rng.random() < 0.5:
        file_id = uuid.UUID(int=world.rng.getrandbits(128))
        vectors = dv.write_file(world.store, "", [d for _, d in marked], file_id=file_id)
    else:
        vectors = [encode_inline(dead) for _, dead in marked]
    actions += (
        replace(add, deletion_vector=vector, data_change=True)
        for (add, _), vector in zip(marked, vectors, strict=True)
    )
    return _commit(world, statement, actions, written, SPARK)


def _by_rewrite(world: World, statement: Statement) -> Committed:
    """delta-rs: every file with a match is rewritten."""
    actions: list[Action] = []
    now = world.clock.now_ms()
    written: list[Row] = []
    for add in world.log.snapshot().adds():
        live = live_in(world, add)
        if not any(statement.matches(row) for _, row in live):
            continue
        actions.append(remove_of(add, deletion_ms=now, data_change=True))
        kept = [r for _, row in live if (r := statement.apply(row)) is not None]
        actions += new_files(world, kept)
    return _commit(world, statement, actions, written, DELTA_RS)


def _commit(
    world: World, statement: Statement, actions: list[Action], written: list[Row], engine: str
) -> Committed:
    if isinstance(statement, Merge):
        written = written + statement.missing(live_rows(world).values())
    actions = [*actions, *new_files(world, written)]
    version = world.commit(actions, statement.operation, engine, predicate=statement.where)
    is_change = bool(actions) or isinstance(statement, Merge)
    return version, Intent(statement.effect, is_change=is_change)


# --- Small things -------------------------------------------------------------------------------


def new_files(world: World, found: list[Row], *, data_change: bool = True) -> list[AddFile]:
    """Write rows: one file, or one for each partition."""
    added = []
    for values, part in world.partitions(found):
        path = world.new_path(values)
        size = rows.write(world.store, path, part)
        added.append(
            AddFile(
                logged_path=path,
                partition_values=values,
                size=size,
                modified_ms=world.clock.now_ms(),
                data_change=data_change,
                stats=rows.stats(len(part)),
            )
        )
    return added


def dead_in(world: World, add: AddFile) -> BitMap64:
    return dv.load(world.store, add.deletion_vector) if add.deletion_vector else BitMap64()


def live_in(world: World, add: AddFile) -> list[tuple[int, Row]]:
    dead = dead_in(world, add)
    found = rows.read(world.store, add.path, add.partition_values)
    return [(position, row) for position, row in enumerate(found) if position not in dead]


def live_rows(world: World) -> Model:
    """All rows of the latest version."""
    return {row.rid: row for add in world.log.snapshot().adds() for _, row in live_in(world, add)}
