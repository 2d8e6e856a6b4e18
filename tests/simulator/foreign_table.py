"""Other systems change the table around its rows: properties, columns, constraints, the log,
and the files that no version needs any more (W5, W8)."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

from simulator.foreign import DELTA_RS, SPARK, Committed, Intent
from simulator.world import VECTORS_ON, Vectors, World
from tandem.delta.actions import RemoveFile
from tandem.delta.log.listing import LogFileKind, commit_path, parse
from tandem.delta.log.maintenance import write_checkpoint

NO_CHANGE = Intent(is_change=False)

# --- W8: the table itself -----------------------------------------------------------------------


def set_property(world: World) -> Committed:
    metadata = world.log.snapshot().metadata
    found = {**metadata.configuration, "owner": f"owner-{world.clock.now_ms()}"}
    action = replace(metadata, configuration=found)
    return world.commit([action], "SET TBLPROPERTIES", SPARK), NO_CHANGE


def switch_vectors(world: World) -> Committed | None:
    """Deletion vectors off, or on: in some tables only."""
    if world.vectors is not Vectors.SWITCHED:
        return None
    metadata = world.log.snapshot().metadata
    found = dict(metadata.configuration)
    (name,) = VECTORS_ON
    found[name] = "false" if found.get(name) == "true" else "true"
    action = replace(metadata, configuration=found)
    return world.commit([action], "SET TBLPROPERTIES", SPARK), NO_CHANGE


def add_column(world: World) -> Committed:
    return world.commit([world.with_column()], "ADD COLUMNS", SPARK), NO_CHANGE


def add_constraint(world: World) -> Committed:
    """One that every row keeps. Statements that give new values are refused from then on."""
    snapshot = world.log.snapshot()
    found = {**snapshot.metadata.configuration, "delta.constraints.positive": "v >= -1000000"}
    protocol = snapshot.protocol
    if protocol.min_writer < 7:
        protocol = replace(protocol, min_writer=max(protocol.min_writer, 3))
    else:
        features = protocol.writer_features | {"checkConstraints"}
        protocol = replace(protocol, writer_features=features)
    actions = [protocol, replace(snapshot.metadata, configuration=found)]
    return world.commit(actions, "ADD CONSTRAINT", SPARK), NO_CHANGE


# --- W5: checkpoints, log clean-up, vacuum ------------------------------------------------------


def checkpoint(world: World) -> None:
    snapshot = world.log.snapshot()
    write_checkpoint(world.log, snapshot, now_ms=world.clock.now_ms())
    world.say(f"  foreign checkpoint {snapshot.version}")


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
            and file.kind is LogFileKind.COMMIT
            and path == commit_path(file.version)
            and file.version < snapshot.version
        ):
            world.store.delete([path])
    world.say(f"  foreign checkpoint {snapshot.version}, log cleaned")


def lose_row_map(world: World) -> None:
    """A row map of ours is removed, or damaged."""
    found = [path for path in world.store.paths() if path.startswith("_tandem/rowmaps/")]
    if not found:
        return
    path, left = world.rng.choice(found), b""
    if world.rng.random() < 0.5:
        world.store.delete([path])
    else:
        left = world.store.get(path)[:-7]
        world.store.put(path, left)
    world.lost_maps[path] = left
    world.say(f"  the row map {path} is lost")


def vacuum(world: World) -> None:
    """Without retention: all that the latest version does not name goes, but `_`-folders."""
    _vacuum(world, 0)


def vacuum_with_retention(world: World) -> Committed:
    """Spark's: removed lately stays, and so does what was written lately; it says so."""
    _vacuum(world, world.rng.choice((300, 1_000, 5_000)))
    return world.commit([], "VACUUM START", SPARK), NO_CHANGE


def _vacuum(world: World, keep_ms: int) -> None:
    snapshot = world.log.snapshot()
    named = {path for add in snapshot.adds() for path in world.needed(add)}
    since = world.clock.now_ms() - keep_ms
    removed = {
        unquote(action.logged_path): action.deletion_ms or 0
        for version in range(snapshot.version + 1)
        if (commit := world.log.commit(version)) is not None
        for action in commit.actions
        if isinstance(action, RemoveFile)
    }
    gone = [
        path
        for path in world.store.paths()
        if not path.startswith("_")
        and path not in named
        and removed.get(path, world.store.head(path).modified_ms) <= since
    ]
    world.store.delete(gone)
    kept = f"a retention of {keep_ms} ms" if keep_ms else "no retention"
    world.say(f"  foreign vacuum with {kept} takes {len(gone)} files")


def vacuum_by_delta_rs(world: World) -> Committed:
    """As soon as possible, and logged."""
    _vacuum(world, 300)
    return world.commit([], "VACUUM END", DELTA_RS), NO_CHANGE
