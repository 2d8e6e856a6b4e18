"""What others do to a table of `reconcile.world`, each in one step, and what befalls its log.

Other engines keep their own rules among themselves: they look at the latest version and commit
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyroaring import BitMap64

from reconcile.statements import Statement
from reconcile.world import Entry, Row, Rows, Serial, World
from tandem.reconcile.model import ChangeKind, NewRows

# A step of an operation: changes the world, and returns what the next step needs.
Step = Callable[[World, object], object]

FOREIGN_DELETE = Statement("foreign delete", lambda x: x % 5 in (0, 3))
FOREIGN_UPDATE = Statement("foreign update", lambda x: x % 2 == 0, lambda x, _: 3 * x + 3)
FOREIGN_MERGE = Statement(
    "foreign merge", lambda x: x % 3 != 1, lambda x, _: None if x % 3 else x + 2
)
FOREIGN_DELETE_ALL = Statement("foreign delete of all", lambda _: True)


def append(*values: int) -> Step:
    def step(world: World, _: object) -> object:
        rows: list[Row] = []
        for x in values:
            rows.append((world.next_id, x))
            world.next_id += 1
        path = world.write(rows)
        world.commit(
            Entry(
                ChangeKind.BLIND_APPEND,
                frozenset([path]),
                Serial("append", lambda before: [*before, *rows], append=True),
            ),
            {**world.views[-1], path: BitMap64()},
        )
        return None

    return step


def foreign_insert_only_merge(world: World, _: object) -> object:
    """Insert a row with x = 7 unless there is one: the same actions as an append, or none."""
    row = (world.next_id, 7)
    world.next_id += 1

    def effect(before: Rows) -> Rows:
        return before if any(x == 7 for _, x in before) else [*before, row]

    view = dict(world.views[-1])
    files: frozenset[str] = frozenset()
    if len(effect(world.rows_at(world.latest))) > sum(1 for _ in world.rows_at(world.latest)):
        path = world.write([row])
        view[path] = BitMap64()
        files = frozenset([path])
    world.commit(
        Entry(ChangeKind.CHANGE, files, Serial("merge", effect), new_rows=NewRows.ARRIVED), view
    )
    return None


def foreign(statement: Statement, *, vectors: bool, inserts: Sequence[int] = ()) -> Step:
    """Another engine's update, delete or merge, with deletion vectors, if the table has them on, or
    by copying files.

    `inserts` are keys of a merge's source: a row is inserted for each that no row has.
    """

    def step(world: World, _: object) -> object:
        known = {x for _, x in world.rows_at(world.latest)}
        source = [(world.next_id + i, key) for i, key in enumerate(inserts)]
        world.next_id += len(source)
        view: dict[str, BitMap64] = {}
        files: set[str] = set()
        hits = 0
        updated: list[Row] = [row for row in source if row[1] not in known]
        for path, dead in world.views[-1].items():
            rows = world.files[path]
            hit = [p for p in world.live(path) if statement.matches(rows[p][1])]
            if not hit:
                view[path] = dead
                continue
            files.add(path)
            hits += 1
            changed = statement.apply([rows[p] for p in hit], 0)
            left = [rows[p] for p in world.live(path) if p not in hit]
            if vectors and world.vectors:
                updated += changed
                now = dead | BitMap64(hit)
                if len(now) < len(rows):
                    view[path] = now
            elif changed or left:
                copied = world.write([*left, *changed])
                view[copied] = BitMap64()
                files.add(copied)
        if updated:
            path = world.write(updated)
            view[path] = BitMap64()
            files.add(path)

        def effect(rows: Rows) -> Rows:
            there = {x for _, x in rows}
            return statement.apply(rows, 0) + [row for row in source if row[1] not in there]

        nothing = not files and not inserts
        world.commit(
            Entry(
                ChangeKind.NEUTRAL if nothing else ChangeKind.CHANGE,
                frozenset(files),
                # Matched nothing: it would not match fewer rows either.
                Serial(statement.name, effect, passable_from=-1 if nothing else None),
                new_rows=(
                    NewRows.TAKEN if not inserts else NewRows.UNKNOWN if hits else NewRows.ARRIVED
                ),
            ),
            view,
        )
        return None

    return step


def foreign_optimize(count: int) -> Step:
    """A compaction by a foreign writer: no row map."""

    def step(world: World, _: object) -> object:
        view = dict(world.views[-1])
        chosen = sorted(view)[:count]
        rows = [world.files[path][p] for path in chosen for p in world.live(path)]
        for path in chosen:
            del view[path]
        written = world.write(rows)
        if rows:
            view[written] = BitMap64()
        world.commit(
            Entry(
                ChangeKind.CHANGE,
                frozenset([*chosen, written]),
                Serial("optimize", lambda before: before),
                new_rows=NewRows.TAKEN,
            ),
            view,
        )
        return None

    return step


def purge(world: World, _: object) -> object:
    """Each file with deleted rows becomes one without (REORG TABLE … APPLY (PURGE))."""
    view = dict(world.views[-1])
    files: set[str] = set()
    for path in [path for path, dead in view.items() if dead]:
        rows = [world.files[path][p] for p in world.live(path)]
        del view[path]
        written = world.write(rows)
        view[written] = BitMap64()
        files |= {path, written}
    serial = Serial("purge", lambda before: before, passable_from=None if files else -1)
    kind = ChangeKind.CHANGE if files else ChangeKind.NEUTRAL
    entry = Entry(kind, frozenset(files), serial, new_rows=NewRows.TAKEN)
    world.commit(entry, view)
    return None


def restore(back: int | None) -> Step:
    """To `back` versions before the latest, or to the first one."""

    def step(world: World, _: object) -> object:
        version = 0 if back is None else max(0, world.latest - back)
        target, now = world.views[version], world.views[-1]
        rows = world.rows_at(version)
        files = frozenset(p for p in {*target, *now} if target.get(p) != now.get(p))
        world.commit(
            Entry(ChangeKind.CHANGE, files, Serial("restore", lambda _: list(rows))), dict(target)
        )
        return None

    return step


def overwrite(world: World, _: object) -> object:
    rows = [(world.next_id, 3), (world.next_id + 1, 4)]
    world.next_id += 2
    path = world.write(rows)
    files = frozenset([path, *world.views[-1]])
    serial = Serial("overwrite", lambda _: list(rows))
    world.commit(Entry(ChangeKind.CHANGE, files, serial), {path: BitMap64()})
    return None


def replace_where(world: World, _: object) -> object:
    """`replaceWhere x % 2 = 0`: files that hold other rows too are copied."""
    row = (world.next_id, 4)
    world.next_id += 1
    written = world.write([row])
    view, files = {written: BitMap64()}, {written}
    for path, dead in world.views[-1].items():
        rows = [world.files[path][p] for p in world.live(path)]
        odd = [row for row in rows if row[1] % 2]
        if len(odd) == len(rows):
            view[path] = dead
            continue
        files.add(path)
        if odd:
            copied = world.write(odd)
            view[copied] = BitMap64()
            files.add(copied)

    def effect(rows: Rows) -> Rows:
        return [*(r for r in rows if r[1] % 2), row]

    world.commit(Entry(ChangeKind.CHANGE, frozenset(files), Serial("replaceWhere", effect)), view)
    return None


def nothing_of_note(world: World, _: object) -> object:
    """An abandonment, a property, a check constraint: a commit that changes no row."""
    serial = Serial("nothing", lambda rows: rows, passable_from=-1)
    world.commit(Entry(ChangeKind.NEUTRAL, frozenset(), serial), dict(world.views[-1]))
    return None


def switch_vectors(world: World, _: object) -> object:
    """Set delta.enableDeletionVectors to the other value."""
    nothing_of_note(world, None)
    world.vectors = not world.vectors
    return None


def clean_log(world: World, _: object) -> object:
    """The commits so far can no longer be read; only the versions' files can."""
    world.first_in_log = world.latest + 1
    return None


def clean_versions(world: World, _: object) -> object:
    """Not even older versions can be read."""
    world.first_in_log = world.latest + 1
    world.lost = world.lost | frozenset(range(world.latest))
    return None


def lose_row_maps(world: World, _: object) -> object:
    world.maps = {}
    return None
