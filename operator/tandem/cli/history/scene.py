"""The layout of a history's picture: rows, lanes and bands. Pure, no drawing.

As on the terminal, a row is a version and a lane an operation of ours, from the version that it
read to the one that it committed; beside them are the segments. Versions of no interest are folded.
Everything is bounded, however long the history is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.cli.history.model import EntryKind, HistoryEntry, SegmentLifetime, lanes_of

MOST_ROWS = 48
MOST_LANES = 6
MOST_BANDS = 28
MOST_TOGETHER = 8
"""The segments of a commit that creates more than these are drawn as one band; `tandem table
segments` has their names."""
MOST_QUIET = 6
"""The most bands for segments that did not change."""
MOST_PARENTS = 64
FOLDED = 5
"""So many consecutive versions of no interest are folded into one row."""


@dataclass(slots=True)
class VersionRow:
    """One version, or several of no interest that are folded; `earlier` stands for all versions
    before those for which there is space."""

    entries: list[HistoryEntry]
    earlier: bool = False

    @property
    def first(self) -> int:
        return self.entries[0].version

    @property
    def last(self) -> int:
        return self.entries[-1].version


@dataclass(frozen=True, slots=True)
class OperationSpan:
    """An operation of ours: the rows from the version that it read to its own."""

    entry: HistoryEntry
    start: int
    end: int
    lane: int


@dataclass(slots=True)
class SegmentBand:
    """Segments that were created, removed and rewritten together: from row to row (None: from
    before, to the end), and the bands that they flow into."""

    names: list[str]
    foreign: bool
    level: int
    start: int | None
    end: int | None
    rows: int = 0
    place: int = -1
    deletes: Counter[int] = field(default_factory=Counter)
    into: list[SegmentBand] = field(default_factory=list)
    eventful: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Rows are numbered from the oldest."""

    rows: tuple[VersionRow, ...]
    spans: tuple[OperationSpan, ...]
    bands: tuple[SegmentBand, ...]
    hidden_spans: int
    hidden_segments: int
    row_of: dict[int, int]

    @property
    def lanes(self) -> int:
        return 1 + max((span.lane for span in self.spans), default=-1)

    @property
    def places(self) -> int:
        return 1 + max((band.place for band in self.bands), default=-1)


def scene(entries: Sequence[HistoryEntry], lives: Sequence[SegmentLifetime]) -> Scene:
    """The layout of a history. `entries` oldest first, at least one."""
    rows = _rows(entries)
    row_of = {e.version: at for at, row in enumerate(rows) for e in row.entries}
    spans, hidden_spans = _spans(entries, rows, row_of)
    bands, hidden_segments = _bands(lives, row_of, rows)
    return Scene(tuple(rows), tuple(spans), tuple(bands), hidden_spans, hidden_segments, row_of)


def is_work(entry: HistoryEntry) -> bool:
    """Whether the entry is an operation of ours that read a version and changed files."""
    if not entry.ours or entry.read_version is None:
        return False
    return entry.kind not in {EntryKind.APPEND, EntryKind.OTHER}


def _rows(entries: Sequence[HistoryEntry]) -> list[VersionRow]:
    single = {entries[-1].version}
    for entry in entries:
        if is_work(entry) and entry.read_version is not None:
            single |= {entry.version, entry.read_version, *(m.version for m in entry.meetings)}
    rows: list[VersionRow] = []
    run: list[HistoryEntry] = []

    def close() -> None:
        if len(run) >= FOLDED:
            rows.append(VersionRow(list(run)))
        else:
            rows.extend(VersionRow([entry]) for entry in run)
        run.clear()

    for entry in entries:
        if entry.version in single:
            close()
            rows.append(VersionRow([entry]))
        else:
            run.append(entry)  # commits of others that concern no operation
    close()
    if len(rows) <= MOST_ROWS:
        return rows
    early, late = rows[: -MOST_ROWS + 1], rows[-MOST_ROWS + 1 :]
    return [VersionRow([e for row in early for e in row.entries], earlier=True), *late]


def _spans(
    entries: Sequence[HistoryEntry], rows: Sequence[VersionRow], row_of: dict[int, int]
) -> tuple[list[OperationSpan], int]:
    """Lanes of operations; those that met commits get one first. Operations in the row of the
    earlier versions are left out."""
    works = [entry for entry in entries if is_work(entry)]
    spans = [
        (entry, (row_of.get(entry.read_version or 0, 0), row_of[entry.version]))
        for entry in works
        if not rows[row_of[entry.version]].earlier
    ]
    at = {entry.version: ends for entry, ends in spans}
    # Neither may begin in the row in which another one ends.
    lanes = lanes_of(((entry, (start, end + 1)) for entry, (start, end) in spans), MOST_LANES)
    found = [OperationSpan(entry, *at[entry.version], lane) for entry, lane in lanes]
    return sorted(found, key=lambda span: span.entry.version), len(works) - len(found)


def _bands(
    lives: Sequence[SegmentLifetime], row_of: dict[int, int], rows: Sequence[VersionRow]
) -> tuple[list[SegmentBand], int]:
    """Segments with the same history are joined; those that changed are shown first."""
    born = Counter(life.born for life in lives if life.parents)
    branch = {
        life.name: str(life.born) if born[life.born] > MOST_TOGETHER else life.name
        for life in lives
        if life.parents
    }
    children: dict[str, list[str]] = {}
    for name, parents in _seen_parents(lives, row_of).items():
        for parent in parents:
            children.setdefault(parent, []).append(name)
    groups: dict[tuple[object, ...], SegmentBand] = {}
    of: dict[str, SegmentBand] = {}
    for life in lives:
        start = None if life.born is None else row_of[life.born]
        end = None if life.ended is None else row_of[life.ended]
        if end is not None and (rows[end].earlier or end == start):
            continue  # not visible
        old = start is None or rows[start].earlier
        becomes = tuple(dict.fromkeys(branch[kid] for kid in children.get(life.name, ())))
        key = (start, end, becomes, life.foreign, "" if old else branch.get(life.name, ""))
        _, _, level = life.name.partition(".")
        band = groups.setdefault(
            key, SegmentBand([], life.foreign, int(level) if level.isdigit() else 0, start, end)
        )
        band.names.append(life.name)
        band.rows += life.rows or 0
        band.eventful |= bool(life.parents) and not old
        band.eventful |= any(not rows[row_of[v]].earlier for v in life.deletes)
        for version, count in life.deletes.items():
            band.deletes[row_of[version]] += count
        of[life.name] = band
    for name, kids in children.items():
        if name in of:
            of[name].into = list({id(of[k]): of[k] for k in kids if k in of}.values())
            of[name].eventful = True
    return _placed(list(groups.values()))


def _seen_parents(
    lives: Sequence[SegmentLifetime], row_of: dict[int, int]
) -> dict[str, tuple[str, ...]]:
    """The parents of each segment, without those that were created and removed within one row."""
    found: dict[str, tuple[str, ...]] = {}
    unseen = {
        life.name
        for life in lives
        if life.born is not None
        and life.ended is not None
        and row_of[life.born] == row_of[life.ended]
    }
    for life in lives:  # parents are made before their children
        parents: dict[str, None] = {}
        for parent in life.parents:
            parents |= dict.fromkeys(found.get(parent, ()) if parent in unseen else (parent,))
        found[life.name] = tuple(parents)[:MOST_PARENTS]
    return found


def _placed(bands: list[SegmentBand]) -> tuple[list[SegmentBand], int]:
    """Assign a place to each band while there are places: a child gets that of its largest parent.
    Bands that changed come first, before the others."""
    free: list[float] = []  # by place: from which row on it is
    bands.sort(key=lambda r: (not r.eventful, -1 if r.start is None else r.start))
    quiet = 0
    heir: dict[int, tuple[int, int]] = {}  # by child: rows of its largest parent, and its place
    shown: list[SegmentBand] = []
    for band in bands:
        start = -1.0 if band.start is None else float(band.start)
        place = heir.get(id(band), (0, -1))[1]
        if place < 0 or free[place] > start:
            place = next((at for at, since in enumerate(free) if since < start), len(free))
        quiet += not band.eventful
        if place == MOST_BANDS or quiet > MOST_QUIET:
            continue
        if place == len(free):
            free.append(0.0)
        free[place] = float("inf") if band.end is None else float(band.end)
        band.place = place
        shown.append(band)
        for child in band.into:
            if band.rows > heir.get(id(child), (-1, 0))[0]:
                heir[id(child)] = (band.rows, place)
    hidden = sum(len(band.names) for band in bands if band.place < 0)
    for band in shown:
        band.into = [child for child in band.into if child.place >= 0]
    return shown, hidden
