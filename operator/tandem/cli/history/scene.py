"""The layout of a history's picture: columns, lanes and rows. Pure, no drawing.

Time runs from left to right, with one column per version; versions of no interest are folded. At
the top is a lane for each other engine; in the middle are our operations, from the version that
they read to the one that they committed; at the bottom are the segments. Everything is bounded,
however long the history is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from tandem.cli.history.model import EntryKind, HistoryEntry, SegmentLifetime, lanes_of
from tandem.text import clean

MOST_COLUMNS = 48
MOST_ENGINES = 3
MOST_LANES = 6
MOST_ROWS = 28
MOST_TOGETHER = 8
"""The segments of a commit that creates more than these are drawn as one band; `tandem table
segments` has their names."""
MOST_QUIET = 6
"""The most rows for segments that did not change."""
MOST_PARENTS = 64
LEFT, RIGHT = 136, 56  # pixels beside the columns
WIDEST, NARROWEST, FULL = 260, 46, 1176
GLYPH = 6.1
"""The approximate width of a character at 11 px, in pixels."""
LONGEST_LABEL = 40
FOLDED = 5
"""So many consecutive versions of no interest are folded into one column."""
OTHERS = "others"
NO_ENGINE = "unknown engine"


@dataclass(slots=True)
class VersionColumn:
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


class LabelPosition(Enum):
    """Where an operation's name is written: where there is space for it."""

    INSIDE = "in its bar"
    RIGHT = "after it"
    LEFT = "before it"


@dataclass(frozen=True, slots=True)
class OperationSpan:
    """An operation of ours: the columns from the version that it read to its own."""

    entry: HistoryEntry
    start: int
    end: int
    label: str
    place: LabelPosition
    lane: int = -1

    def room(self, pitch: float) -> tuple[float, float]:
        """The columns that it needs, including its name."""
        wide = (len(self.label) * GLYPH + 24) / pitch
        before = wide if self.place is LabelPosition.LEFT else 0.3
        after = wide if self.place is LabelPosition.RIGHT else 0.3
        return self.start - before, self.end + after


@dataclass(slots=True)
class SegmentBand:
    """Segments that were created, removed and rewritten together: from column to column (None:
    from before, to the end), and the bands that they flow into."""

    names: list[str]
    foreign: bool
    level: int
    start: int | None
    end: int | None
    rows: int = 0
    row: int = -1
    deletes: Counter[int] = field(default_factory=Counter)
    into: list[SegmentBand] = field(default_factory=list)
    eventful: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    columns: tuple[VersionColumn, ...]
    engines: tuple[str, ...]
    spans: tuple[OperationSpan, ...]
    bands: tuple[SegmentBand, ...]
    hidden_spans: int
    hidden_segments: int
    column_of: dict[int, int]

    @property
    def lanes(self) -> int:
        return 1 + max((span.lane for span in self.spans), default=-1)

    @property
    def rows(self) -> int:
        return 1 + max((band.row for band in self.bands), default=-1)

    def engine_lane(self, entry: HistoryEntry) -> int:
        name = entry.engine or NO_ENGINE
        return self.engines.index(name if name in self.engines else OTHERS)


def scene(entries: Sequence[HistoryEntry], lives: Sequence[SegmentLifetime]) -> Scene:
    """The layout of a history. `entries` oldest first, at least one."""
    columns = _columns(entries)
    column_of = {e.version: at for at, column in enumerate(columns) for e in column.entries}
    spans, hidden_spans = _spans(entries, columns, column_of)
    bands, hidden_segments = _bands(lives, column_of, columns)
    return Scene(
        tuple(columns),
        _engines(entries),
        tuple(spans),
        tuple(bands),
        hidden_spans,
        hidden_segments,
        column_of,
    )


def is_work(entry: HistoryEntry) -> bool:
    """Whether the entry is an operation of ours that read a version and changed files."""
    if not entry.ours or entry.read_version is None:
        return False
    return entry.kind not in {EntryKind.APPEND, EntryKind.OTHER}


def _columns(entries: Sequence[HistoryEntry]) -> list[VersionColumn]:
    single = {entries[-1].version}
    for entry in entries:
        if is_work(entry) and entry.read_version is not None:
            single |= {entry.version, entry.read_version, *(m.version for m in entry.meetings)}
    columns: list[VersionColumn] = []
    run: list[HistoryEntry] = []

    def close() -> None:
        if len(run) >= FOLDED:
            columns.append(VersionColumn(list(run)))
        else:
            columns.extend(VersionColumn([entry]) for entry in run)
        run.clear()

    for entry in entries:
        if entry.version in single:
            close()
            columns.append(VersionColumn([entry]))
        else:
            run.append(entry)  # commits of others that concern no operation
    close()
    if len(columns) <= MOST_COLUMNS:
        return columns
    early, late = columns[: -MOST_COLUMNS + 1], columns[-MOST_COLUMNS + 1 :]
    return [VersionColumn([e for column in early for e in column.entries], earlier=True), *late]


def _engines(entries: Sequence[HistoryEntry]) -> tuple[str, ...]:
    """The engines with a lane of their own, the busiest first."""
    counts = Counter(entry.engine or NO_ENGINE for entry in entries if not entry.ours)
    names = [name for name, _ in counts.most_common()]
    if len(names) <= MOST_ENGINES:
        return tuple(names)
    return (*[name for name in names if name != OTHERS][: MOST_ENGINES - 1], OTHERS)


def _spans(
    entries: Sequence[HistoryEntry], columns: Sequence[VersionColumn], column_of: dict[int, int]
) -> tuple[list[OperationSpan], int]:
    """Lanes of operations; those that met commits get one first. Operations in the column of the
    earlier versions are left out."""
    works = [entry for entry in entries if is_work(entry)]
    spans: dict[int, OperationSpan] = {}
    for entry in works:
        assert entry.read_version is not None
        start, end = column_of.get(entry.read_version, 0), column_of[entry.version]
        if not columns[end].earlier:
            spans[entry.version] = _span(entry, start, end, len(columns))
    pitch = pitch_of(len(columns))
    lanes = lanes_of(((span.entry, span.room(pitch)) for span in spans.values()), MOST_LANES)
    found = [replace(spans[entry.version], lane=lane) for entry, lane in lanes]
    return sorted(found, key=lambda span: span.entry.version), len(works) - len(found)


def _span(entry: HistoryEntry, start: int, end: int, columns: int) -> OperationSpan:
    pitch = pitch_of(columns)
    label = clean(entry.author, LONGEST_LABEL)
    long = (len(label) * GLYPH + 26) / pitch
    if long <= end - start:
        return OperationSpan(entry, start, end, label, LabelPosition.INSIDE)
    place = LabelPosition.RIGHT if end + long <= columns or start < long else LabelPosition.LEFT
    return OperationSpan(entry, start, end, label, place)


def pitch_of(columns: int) -> float:
    """The width of a column, in pixels."""
    return max(NARROWEST, min(WIDEST, (FULL - LEFT - RIGHT) / max(1, columns)))


def _bands(
    lives: Sequence[SegmentLifetime], column_of: dict[int, int], columns: Sequence[VersionColumn]
) -> tuple[list[SegmentBand], int]:
    """Segments with the same history are joined; those that changed are shown first."""
    born = Counter(life.born for life in lives if life.parents)
    branch = {
        life.name: str(life.born) if born[life.born] > MOST_TOGETHER else life.name
        for life in lives
        if life.parents
    }
    children: dict[str, list[str]] = {}
    for name, parents in _seen_parents(lives, column_of).items():
        for parent in parents:
            children.setdefault(parent, []).append(name)
    groups: dict[tuple[object, ...], SegmentBand] = {}
    of: dict[str, SegmentBand] = {}
    for life in lives:
        start = None if life.born is None else column_of[life.born]
        end = None if life.ended is None else column_of[life.ended]
        if end is not None and (columns[end].earlier or end == start):
            continue  # not visible
        old = start is None or columns[start].earlier
        becomes = tuple(dict.fromkeys(branch[kid] for kid in children.get(life.name, ())))
        key = (start, end, becomes, life.foreign, "" if old else branch.get(life.name, ""))
        _, _, level = life.name.partition(".")
        band = groups.setdefault(
            key, SegmentBand([], life.foreign, int(level) if level.isdigit() else 0, start, end)
        )
        band.names.append(life.name)
        band.rows += life.rows or 0
        band.eventful |= bool(life.parents) and not old
        band.eventful |= any(not columns[column_of[v]].earlier for v in life.deletes)
        for version, rows in life.deletes.items():
            band.deletes[column_of[version]] += rows
        of[life.name] = band
    for name, kids in children.items():
        if name in of:
            of[name].into = list({id(of[k]): of[k] for k in kids if k in of}.values())
            of[name].eventful = True
    return _rows(list(groups.values()))


def _seen_parents(
    lives: Sequence[SegmentLifetime], column_of: dict[int, int]
) -> dict[str, tuple[str, ...]]:
    """The parents of each segment, without those that were created and removed within one
    column."""
    found: dict[str, tuple[str, ...]] = {}
    unseen = {
        life.name
        for life in lives
        if life.born is not None
        and life.ended is not None
        and column_of[life.born] == column_of[life.ended]
    }
    for life in lives:  # parents are made before their children
        parents: dict[str, None] = {}
        for parent in life.parents:
            parents |= dict.fromkeys(found.get(parent, ()) if parent in unseen else (parent,))
        found[life.name] = tuple(parents)[:MOST_PARENTS]
    return found


def _rows(bands: list[SegmentBand]) -> tuple[list[SegmentBand], int]:
    """Assign a row to each band while there are rows: a child gets the row of its largest parent.
    Rivers that changed come first, above the others."""
    free: list[float] = []  # by row: from which column on it is
    bands.sort(key=lambda r: (not r.eventful, -1 if r.start is None else r.start))
    quiet = 0
    heir: dict[int, tuple[int, int]] = {}  # by child: rows of its largest parent, and its row
    shown: list[SegmentBand] = []
    for band in bands:
        start = -1.0 if band.start is None else float(band.start)
        row = heir.get(id(band), (0, -1))[1]
        if row < 0 or free[row] > start:
            row = next((at for at, since in enumerate(free) if since < start), len(free))
        quiet += not band.eventful
        if row == MOST_ROWS or quiet > MOST_QUIET:
            continue
        if row == len(free):
            free.append(0.0)
        free[row] = float("inf") if band.end is None else float(band.end)
        band.row = row
        shown.append(band)
        for child in band.into:
            if band.rows > heir.get(id(child), (-1, 0))[0]:
                heir[id(child)] = (band.rows, row)
    hidden = sum(len(band.names) for band in bands if band.row < 0)
    for band in shown:
        band.into = [child for child in band.into if child.row >= 0]
    return shown, hidden
