"""A table small enough to understand: rows with an identity, and a log of who did what.

The files, deletion vectors and row maps are real values of `tandem`, and our operations go
through its rules (`rewrites`, `statements`, `replaces`) and its code that carries decisions out
(`attempt`); what rows *should* be there is worked out separately, by executing the same operations
one after the other on plain lists (`allowed_states`). A row is (identity, x): an update changes x
and keeps the identity, so lost, doubled and resurrected rows are distinguishable, and cannot cancel
out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.reconcile.classify import gap
from tandem.reconcile.model import (
    ChangeKind,
    CommitSummary,
    FileState,
    NewRows,
    RowMapLike,
)

Row = tuple[int, int]
Rows = list[Row]


@dataclass(frozen=True)
class Serial:
    """A commit as a serial execution sees it.

    `effect` on all rows; `append` marks a blind append; `passable_from`: a blind append of a
    later version than this may be put behind it (None: none may).
    """

    name: str
    effect: Callable[[Rows], Rows]
    append: bool = False
    passable_from: int | None = None


@dataclass(frozen=True)
class Entry:
    kind: ChangeKind
    files: frozenset[str]
    serial: Serial
    outputs: tuple[str, ...] = ()  # of a mapped rewrite
    who: str = ""
    new_rows: NewRows = NewRows.UNKNOWN  # of its kind, for appends and rewrites


View = dict[str, BitMap64]
NEW_ROWS = {
    ChangeKind.BLIND_APPEND: NewRows.ARRIVED,
    ChangeKind.MAPPED_REWRITE: NewRows.MAPPED,
}


@dataclass(frozen=True)
class Working:
    """A `FileView` of one version."""

    files: Mapping[str, Sequence[Row]]
    dead: View

    def get(self, path: str) -> FileState | None:
        dead = self.dead.get(path)
        return None if dead is None else FileState(path, len(self.files[path]), dead)

    def add(self, path: str) -> AddFile | None:
        """The live action, as far as the carrying out of a change looks at it."""
        if path not in self.dead:
            return None
        return AddFile(path, {}, len(self.files[path]), 0, data_change=True)

    def prefetch(self, paths: Iterable[str]) -> None:
        """Nothing to do; but an `isinstance` check for a view that has it is fast."""


@dataclass
class World:
    files: dict[str, tuple[Row, ...]] = field(default_factory=dict)
    views: list[View] = field(default_factory=list)
    log: list[Entry] = field(default_factory=list)  # log[v] made views[v]; log[0] the table
    maps: dict[str, RowMapLike] = field(default_factory=dict)
    first_in_log: int = 0
    lost: frozenset[int] = frozenset()  # versions that can no longer be read
    next_id: int = 100
    next_file: int = 0
    broken: str = ""  # a commit that no table allows
    vectors: bool = True  # whether the table has deletion vectors on
    edited: dict[str, str] = field(default_factory=dict)  # file → what our statement edited it from

    def copy(self) -> World:
        return World(
            dict(self.files),
            list(self.views),
            list(self.log),
            dict(self.maps),
            self.first_in_log,
            self.lost,
            self.next_id,
            self.next_file,
            self.broken,
            self.vectors,
            dict(self.edited),
        )

    # The log.

    @property
    def latest(self) -> int:
        return len(self.views) - 1

    def view(self, version: int) -> Working | None:
        return None if version in self.lost else Working(self.files, self.views[version])

    def commit(self, entry: Entry, view: View) -> None:
        self.views.append(view)
        self.log.append(entry)

    def break_with(self, what: str) -> None:
        """Note what the latest commit did wrong; the first such commit is kept."""
        self.broken = self.broken or f"version {self.latest}: {what}"

    def rows_at(self, version: int) -> Rows:
        return sorted(
            row
            for path, dead in self.views[version].items()
            for position, row in enumerate(self.files[path])
            if position not in dead
        )

    def write(self, rows: Sequence[Row], prefix: str = "f") -> str:
        self.next_file += 1
        path = f"{prefix}{self.next_file}"
        self.files[path] = tuple(rows)
        return path

    def live(self, path: str, version: int = -1) -> list[int]:
        dead = self.views[version][path]
        return [p for p in range(len(self.files[path])) if p not in dead]

    def summaries(self, since: int) -> list[CommitSummary]:
        found = []
        version = since + 1
        if version < self.first_in_log:
            last = self.first_in_log - 1
            old, new = self.views[since], self.views[last]
            found.append(gap(last, frozenset(p for p in {*old, *new} if old.get(p) != new.get(p))))
            version = last + 1
        for number in range(version, self.latest + 1):
            entry = self.log[number]
            kind = entry.kind
            new_rows = NEW_ROWS.get(kind, entry.new_rows)
            if kind is ChangeKind.MAPPED_REWRITE and any(o not in self.maps for o in entry.outputs):
                kind, new_rows = ChangeKind.CHANGE, NewRows.TAKEN
            added = frozenset(path for path in entry.files if path in self.views[number])
            found.append(
                CommitSummary(number, kind, entry.files, entry.who, new_rows=new_rows, added=added)
            )
        return found


def initial(*, vectors: bool = True) -> World:
    """Three files, six live rows, one row deleted already: by a deletion vector, which may be of
    an earlier time if the table has them off, without `vectors`."""
    world = World(vectors=vectors)
    a = world.write([(0, 1), (1, 2), (2, 3)])
    b = world.write([(3, 5), (4, 9), (5, 4)])
    c = world.write([(6, 6)])
    view = {a: BitMap64(), b: BitMap64([1]), c: BitMap64()}
    rows = [(0, 1), (1, 2), (2, 3), (3, 5), (5, 4), (6, 6)]
    world.commit(
        Entry(ChangeKind.CHANGE, frozenset(), Serial("create", lambda _: list(rows))), view
    )
    return world


# --- The reference ---------------------------------------------------------------------------


def allowed_states(log: Sequence[Entry]) -> list[Rows]:
    """Final rows of every allowed serial order.

    Non-appends in commit order; a blind append may move later, never earlier, and never past
    an operation that read it, a Serializable one, or a restore. (A statement that matched
    nothing reads nothing observable, at any isolation level.)
    """
    orders: list[list[Serial]] = [[]]
    # Built from the end: an append may be put before or behind each operation that it may pass.
    for version in range(len(log) - 1, -1, -1):
        serial = log[version].serial
        extended: list[list[Serial]] = []
        for order in orders:
            extended.append([serial, *order])
            if not serial.append:
                continue
            for place, other in enumerate(order):
                if other.append:
                    continue
                if other.passable_from is None or other.passable_from >= version:
                    break
                extended.append([*order[: place + 1], serial, *order[place + 1 :]])
        orders = extended
    states = []
    for order in orders:
        rows: Rows = []
        for serial in order:
            rows = serial.effect(rows)
        states.append(sorted(rows))
    return states


def problem(world: World) -> str:
    """ "" if the table's rows are those of an allowed serial order, else what is wrong."""
    found = world.rows_at(world.latest)
    states = allowed_states(world.log)
    if world.broken or found in states:
        return world.broken
    ids = [identity for identity, _ in found]
    wanted = [identity for identity, _ in states[0]]
    doubled = sorted({i for i in ids if ids.count(i) > 1})
    missing = sorted(set(wanted) - set(ids))
    extra = sorted(set(ids) - set(wanted))
    return (
        f"rows {found} are of no serial order, such as {states[0]}; "
        f"doubled {doubled}, lost {missing}, resurrected {extra}"
    )
