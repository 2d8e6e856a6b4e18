"""The picture of a history as SVG: a row for each version, the newest first.

All text from the log is escaped by `esc`. Colours are CSS variables, so that the same drawing
supports light and dark mode; shapes differ, too, for colour-blind readers.

Its layout is rows, lanes and bands, computed apart from the drawing. As on the terminal, a row is a
version and a lane an operation of ours, from the version that it read to the one that it committed;
beside them are the segments. Versions of no interest are folded. Everything is bounded, however
long the history is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from tandem.cli.history_model import (
    ConcurrentCommit,
    EntryKind,
    HistoryEntry,
    SegmentLifetime,
    lanes_of,
)
from tandem.cli.output import people_time
from tandem.text import clean, counted

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


ROW, LANE, BAND = 22, 18, 11  # pixels from one to the next
LEFT, TOP = 16, 34
MARKS = 8
"""From a mark to where a line to it ends."""
GLYPH = 7.2
"""The most that a character takes on average, in pixels."""
TEXTS = (
    *(("version", 96, "bold"), ("time (UTC)", 136, "soft"), ("operation, by", 310, "")),
    *(("rows", 140, ""), ("segments", 110, ""), ("met", 40, "")),
)
"""What stands beside the graph: names of columns, their widths in pixels, and styles."""
LONGEST_NAME = 44

STYLE = """
.tandem-history{--paper:#fff;--ink:#1c2530;--soft:#5c6b7a;--line:#e3e8ee;--band:#f6f8fa;
--other:#8a5a00;--change:#b3261e;--append:#2e7d4f;--rewrite:#6b4fa0;--ours:#0b63c5;
--f:#9aa7b4;--s0:#3f9c8f;--s1:#3d7fc9;--s2:#7a5cc0;--s3:#b0518f}
@media (prefers-color-scheme:dark){.tandem-history{--paper:#12171d;--ink:#e6ebf0;--soft:#9caab8;
--line:#27313b;--band:#182028;--other:#e0b15a;--change:#ff8a80;--append:#6fcf97;--rewrite:#b9a2ea;
--ours:#6cb0ff;--f:#6c7a88;--s0:#4fb8a9;--s1:#5a9be6;--s2:#9a7fe0;--s3:#d67fb6}}
svg.tandem-history{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
background:var(--paper)}
.tandem-history text{fill:var(--ink)}
.tandem-history .soft{fill:var(--soft)}
.tandem-history .bold{font-weight:600}
.tandem-history .band{fill:var(--band)}
.tandem-history .append{fill:var(--append);stroke:var(--append)}
.tandem-history .change{fill:var(--change);stroke:var(--change)}
.tandem-history .rewrite{fill:var(--rewrite);stroke:var(--rewrite)}
.tandem-history .other{fill:var(--soft);stroke:var(--soft)}
.tandem-history .bar{fill:none;stroke:var(--ours);stroke-width:2.5;stroke-linejoin:round}
.tandem-history .ours{fill:var(--ours);stroke:var(--ours)}
.tandem-history .hollow{fill:var(--paper);stroke-width:2}
.tandem-history .arrow{fill:none;stroke:var(--change);stroke-width:1.6}
.tandem-history .head{fill:var(--change)}
.tandem-history .birth{stroke:var(--ours);stroke-width:1.4;stroke-dasharray:2 3;fill:none}
.tandem-history .river{fill:none;stroke-linecap:round;opacity:.85}
.tandem-history .f{stroke:var(--f)}.tandem-history .s0{stroke:var(--s0)}
.tandem-history .s1{stroke:var(--s1)}.tandem-history .s2{stroke:var(--s2)}
.tandem-history .s3{stroke:var(--s3)}
.tandem-history .cut{stroke:var(--change);stroke-width:2.5;stroke-linecap:round}
"""

esc = escape


def shape(kind: EntryKind, x: float, y: float, style: str) -> str:
    """The mark of a commit."""
    match kind:
        case EntryKind.APPEND:
            return f'<circle cx="{x}" cy="{y}" r="5.5" class="{style} hollow"/>'
        case EntryKind.CHANGE:
            path = f"M{x - 6} {y}L{x} {y - 6}L{x + 6} {y}L{x} {y + 6}Z"
            return f'<path d="{path}" class="{style}"/>'
        case EntryKind.REWRITE:
            return f'<rect x="{x - 5}" y="{y - 5}" width="10" height="10" class="{style}"/>'
        case _:
            return f'<circle cx="{x}" cy="{y}" r="2.5" class="{style}"/>'


def arrow(x: float, y: float, tip: float) -> str:
    """From a commit to an operation that reconciled with it."""
    head = f"M{tip - 6} {y - 4}L{tip} {y}L{tip - 6} {y + 4}Z"
    return f'<path class="arrow" d="M{x} {y}H{tip}"/><path class="head" d="{head}"/>'


def river(style: str, wide: float, path: str) -> str:
    return f'<path class="river {style}" stroke-width="{wide:.1f}" d="{path}"/>'


def cut(x: float, y: float) -> str:
    """Rows that were deleted in a segment."""
    return f'<path class="cut" d="M{x - 5} {y}h10"/>'


class Drawing:
    """One scene on a sheet."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.bands_x = LEFT + LANE * (scene.lanes + 1) + BAND
        self.texts_x = self.bands_x + BAND * scene.places + 12
        self.height = TOP + ROW * len(scene.rows)
        self.width = self.texts_x + sum(wide for _, wide, _ in TEXTS)
        self.parts: list[str] = []

    def y(self, row: int) -> float:
        return self.height - ROW * (row + 0.5)

    def x(self, lane: int) -> float:
        return LEFT + LANE * (lane + 1)

    def band_x(self, band: SegmentBand) -> float:
        return self.bands_x + BAND * (band.place + 0.5)

    def add(self, drawn: str, title: str = "") -> None:
        self.parts.append(f"<g><title>{esc(title)}</title>{drawn}</g>" if title else drawn)

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        self.width = max(self.width, int(x + len(text) * GLYPH) + 12)
        self.add(f'<text x="{x}" y="{y + 4}" class="{style}">{esc(text)}</text>')

    def rows(self) -> None:
        for at in range(1, len(self.scene.rows), 2):
            top = self.y(at) - ROW / 2
            self.add(f'<rect x="0" y="{top}" width="100%" height="{ROW}" class="band"/>')
        lines = [(self.y(at), _texts(row)) for at, row in enumerate(self.scene.rows)]
        x = self.texts_x
        for number, (name, wide, style) in enumerate(TEXTS):
            self.text(x, TOP / 2, name, "soft")
            for y, texts in lines:
                if texts[number]:
                    self.text(x, y, texts[number], style)
            x += wide

    def marks(self) -> None:
        for at, row in enumerate(self.scene.rows):
            loudest = max(row.entries, key=lambda entry: _LOUD.index(entry.kind))
            style = "ours" if loudest.ours else str(loudest.kind)
            self.add(shape(loudest.kind, LEFT, self.y(at), style), _title(row.entries))

    def span(self, span: OperationSpan) -> None:
        """Draw an operation, and arrows from the commits that it reconciled with."""
        x, read = self.x(span.lane), f"read version {span.entry.read_version}"
        path = f"M{LEFT} {self.y(span.end)}H{x}V{self.y(span.start)}H{LEFT + MARKS}"
        title = "\n".join([_title([span.entry]), read, *span.entry.summary])
        self.add(f'<path class="bar" d="{path}"/>', title)
        by_row: dict[int, list[ConcurrentCommit]] = {}
        for met in span.entry.meetings:
            if (at := self.scene.row_of.get(met.version)) is not None:
                by_row.setdefault(at, []).append(met)
        for at, mets in by_row.items():
            drawn = arrow(LEFT + MARKS, self.y(at), x - 2)
            self.add(drawn, "\n".join(met.phrase for met in mets))

    def band(self, band: SegmentBand) -> None:
        """Draw segments, from the row that made them to those that they flow into."""
        x = self.band_x(band)
        start = self.height if band.start is None else self.y(band.start)
        end = TOP - 4 if band.end is None else self.y(band.end)
        style = "f" if band.foreign else f"s{min(3, band.level)}"
        wide = 2.0 + min(6.0, 0.9 * max(0, len(str(band.rows)) - 1))
        bend = end + ROW
        paths = [
            f"M{x} {start}V{bend}C{x} {end} {self.band_x(child)} {bend} {self.band_x(child)} {end}"
            for child in band.into
        ]
        drawn = "".join(river(style, wide, path) for path in paths or [f"M{x} {start}V{end}"])
        self.add(drawn, _band_title(band))
        for at, rows in sorted(band.deletes.items()):
            if rows > 0:
                self.add(cut(x, self.y(at)), f"{rows:,} rows deleted")
        if band.end is not None and not band.into:
            self.add(f'<path class="cut" d="M{x - 4} {end - 3}l8 6m0 -6l-8 6"/>')

    def births(self) -> None:
        for span in self.scene.spans:
            made = [b for b in self.scene.bands if set(b.names) & set(span.entry.segments)]
            places = [self.band_x(band) for band in made if band.start == span.end]
            if places:
                y = self.y(span.end)
                self.add(f'<path class="birth" d="M{self.x(span.lane)} {y}H{max(places)}"/>')

    def draw(self) -> str:
        self.rows()
        for band in self.scene.bands:
            self.band(band)
        self.births()
        for span in self.scene.spans:
            self.span(span)
        self.marks()
        return "".join(self.parts)


_LOUD = (EntryKind.OTHER, EntryKind.APPEND, EntryKind.REWRITE, EntryKind.CHANGE)


def svg(scene: Scene, title: str, description: str, *, standalone: bool = False) -> str:
    """The picture; `standalone`: as a file of its own, with its style sheet."""
    drawing = Drawing(scene)
    body = drawing.draw()
    style = f"<style>{STYLE}</style>" if standalone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tandem-history" role="img" '
        f'aria-labelledby="history-title history-text" width="{drawing.width}" '
        f'height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}">'
        f'<title id="history-title">{esc(title)}</title>'
        f'<desc id="history-text">{esc(description)}</desc>{style}{body}</svg>'
    )


def _texts(row: VersionRow) -> tuple[str, ...]:
    """What stands beside the graph, as `TEXTS`."""
    entry = row.entries[-1]
    time = people_time(entry.time_ms)
    if len(row.entries) > 1:
        [(author, _), *others] = Counter(each.author for each in row.entries).most_common()
        versions = f"≤ {row.last}" if row.earlier else f"{row.first}–{row.last}"
        commits = f"{counted(len(row.entries), 'commit')}, {clean(author, LONGEST_NAME)}"
        return (versions, time, commits + (" and others" if others else ""), "", "", "")
    return (
        str(row.last),
        time,
        f"{clean(entry.operation_text, 20)}, {clean(entry.author, LONGEST_NAME)}",
        entry.rows_text,
        clean(", ".join(entry.segments[:3]), 20),
        clean("; ".join(entry.notes), 3 * LONGEST_NAME),
    )


def _title(entries: list[HistoryEntry]) -> str:
    if len(entries) > 1:
        return f"{len(entries):,} commits, versions {entries[0].version} to {entries[-1].version}"
    entry = entries[0]
    label = f"version {entry.version}: {entry.operation or 'no operation'} by {entry.author}"
    return "\n".join(filter(None, [label, entry.rows_text, entry.files_text]))


def _band_title(band: SegmentBand) -> str:
    names = ", ".join(band.names[:12]) + (", …" if len(band.names) > 12 else "")
    into = ", ".join(name for child in band.into[:4] for name in child.names[:4])
    return names + (f" → {into}" if into else "") + (f"\n{band.rows:,} rows" if band.rows else "")
