"""The picture of a history as SVG: a row for each version, the newest first.

All text from the log is escaped by `esc`. Colours are CSS variables, so that the same drawing
supports light and dark mode; shapes differ, too, for colour-blind readers.
"""

from __future__ import annotations

from collections import Counter
from html import escape

from tandem.cli.history.model import ConcurrentCommit, EntryKind, HistoryEntry
from tandem.cli.history.scene import OperationSpan, Scene, SegmentBand, VersionRow
from tandem.cli.output import people_time
from tandem.text import clean, counted

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
