"""The picture of a history as SVG: marks, spans, arrows and bands.

All text from the log is escaped by `esc`. Colours are CSS variables, so that the same drawing
supports light and dark mode; shapes differ, too, for colour-blind readers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from tandem.cli.history.model import CommitEffect, ConcurrentCommit, EntryKind, HistoryEntry
from tandem.cli.history.scene import (
    GLYPH,
    LEFT,
    RIGHT,
    LabelPosition,
    OperationSpan,
    Scene,
    SegmentBand,
    pitch_of,
)
from tandem.text import clean

TOP = 52
ENGINE_PITCH, LANE_PITCH, ROW_PITCH = 34, 48, 24

STYLE = """
.tandem-history{--paper:#fff;--ink:#1c2530;--soft:#5c6b7a;--line:#e3e8ee;--band:#f6f8fa;
--other:#8a5a00;--change:#b3261e;--append:#2e7d4f;--rewrite:#6b4fa0;--ours:#0b63c5;
--bar:#d6e6fa;--f:#9aa7b4;--s0:#3f9c8f;--s1:#3d7fc9;--s2:#7a5cc0;--s3:#b0518f}
@media (prefers-color-scheme:dark){.tandem-history{--paper:#12171d;--ink:#e6ebf0;--soft:#9caab8;
--line:#27313b;--band:#182028;--other:#e0b15a;--change:#ff8a80;--append:#6fcf97;--rewrite:#b9a2ea;
--ours:#6cb0ff;--bar:#1d3855;--f:#6c7a88;--s0:#4fb8a9;--s1:#5a9be6;--s2:#9a7fe0;--s3:#d67fb6}}
svg.tandem-history{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
background:var(--paper)}
.tandem-history text{fill:var(--ink)}
.tandem-history .soft{fill:var(--soft)}
.tandem-history .small{font-size:10px}
.tandem-history .bold{font-weight:600}
.tandem-history .halo{paint-order:stroke;stroke:var(--paper);stroke-width:3.5px;
stroke-linejoin:round}
.tandem-history .guide{stroke:var(--line)}
.tandem-history .band{fill:var(--band)}
.tandem-history .append{fill:var(--append);stroke:var(--append)}
.tandem-history .change{fill:var(--change);stroke:var(--change)}
.tandem-history .rewrite{fill:var(--rewrite);stroke:var(--rewrite)}
.tandem-history .other{fill:var(--soft);stroke:var(--soft)}
.tandem-history .bar{fill:var(--bar);stroke:var(--ours);stroke-width:1.5}
.tandem-history .ours{fill:var(--ours);stroke:var(--ours)}
.tandem-history .hollow{fill:var(--paper);stroke-width:2}
.tandem-history .arrow{fill:none;stroke:var(--change);stroke-width:1.6}
.tandem-history .head{fill:var(--change)}
.tandem-history .count{fill:var(--change);font-weight:600}
.tandem-history .birth{stroke:var(--ours);stroke-width:1.4;stroke-dasharray:2 3;fill:none}
.tandem-history .river{fill:none;stroke-linecap:round;opacity:.85}
.tandem-history .f{stroke:var(--f)}.tandem-history .s0{stroke:var(--s0)}
.tandem-history .s1{stroke:var(--s1)}.tandem-history .s2{stroke:var(--s2)}
.tandem-history .s3{stroke:var(--s3)}
.tandem-history .cut{stroke:var(--change);stroke-width:2.5;stroke-linecap:round}
"""

esc = escape


def short(number: int) -> str:
    """`2,113`, `80k`, `1.2M`: a number short enough for the picture."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= 10 * size or (number >= size and unit != "k"):
            value = number / size
            return f"{value:.0f}{unit}" if value >= 10 else f"{value:.1f}{unit}"
    return f"{number:,}"


class Drawing:
    """One scene on a sheet."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        count = len(scene.columns)
        self.pitch = pitch_of(count)
        self.width = int(LEFT + count * self.pitch + RIGHT)
        self.engines_y = TOP + 26
        self.lanes_y = self.engines_y + ENGINE_PITCH * len(scene.engines) + 26
        self.bands_y = self.lanes_y + 34 + LANE_PITCH * scene.lanes + 14
        self.height = self.bands_y + ROW_PITCH * scene.rows + 12
        self.parts: list[str] = []

    def x(self, column: int) -> float:
        return LEFT + (column + 0.5) * self.pitch

    def engine_y(self, lane: int) -> float:
        return self.engines_y + lane * ENGINE_PITCH

    def lane_y(self, lane: int) -> float:
        """The y of a lane of our operations; lane -1 is for those without a span."""
        return self.lanes_y + (34 + lane * LANE_PITCH if lane >= 0 else 0)

    def row_y(self, row: int) -> float:
        return self.bands_y + row * ROW_PITCH + 14

    # Pieces

    def add(self, text: str) -> None:
        self.parts.append(text)

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "middle") -> None:
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">'
                 f"{esc(text)}</text>")  # fmt: skip

    def mark(self, x: float, y: float, entry: HistoryEntry, title: str) -> None:
        """Draw the shape for the kind of a commit."""
        style, s = str(entry.kind), 6.5
        if entry.ours:
            style = "ours"
        shape = {
            EntryKind.APPEND: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="{style} hollow"/>',
            EntryKind.CHANGE: f'<path d="M{x - s:.1f} {y:.1f}L{x:.1f} {y - s:.1f}'
                              f'L{x + s:.1f} {y:.1f}L{x:.1f} {y + s:.1f}Z" class="{style}"/>',
            EntryKind.REWRITE: f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" '
                               f'rx="1.5" class="{style}"/>',
            EntryKind.OTHER: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" class="{style}"/>',
        }[entry.kind]  # fmt: skip
        self.add(f"<g><title>{esc(title)}</title>{shape}</g>")

    # Layers

    def axis(self) -> None:
        bottom = self.height - 6
        for at in range(1, len(self.scene.columns), 2):
            self.add(f'<rect x="{self.x(at) - self.pitch / 2:.1f}" y="8" class="band" '
                     f'width="{self.pitch:.1f}" height="{bottom - 8:.1f}"/>')  # fmt: skip
        day_before = time_before = ""
        for at, column in enumerate(self.scene.columns):
            x = self.x(at)
            self.add(f'<path class="guide" d="M{x:.1f} {TOP}V{bottom:.1f}"/>')
            first, last = column.first, column.last
            name = f"≤ {last}" if column.earlier else str(last)
            if first != last and not column.earlier:
                name = f"{first}–{last}" if self.pitch >= 80 else f"…{last}"
            self.text(x, TOP - 26, name, "bold")
            moment = datetime.fromtimestamp(column.entries[-1].time_ms / 1000, UTC)
            day = moment.strftime("%Y-%m-%d")
            time = moment.strftime("%H:%M:%S" if self.pitch >= 60 else "%H:%M")
            if day != day_before:
                self.text(x, TOP - 38, day, "soft small")
            if time != time_before:
                self.text(x, TOP - 12, time, "soft small")
            day_before, time_before = day, time
        self.text(LEFT - 12, TOP - 26, "version", "soft", "end")
        self.text(LEFT - 12, TOP - 12, "UTC", "soft small", "end")

    def others(self) -> None:
        for lane, engine in enumerate(self.scene.engines):
            y = self.engine_y(lane)
            self.add(f'<path class="guide" d="M{LEFT} {y:.1f}H{self.width - RIGHT / 2:.1f}"/>')
            self.add(f"<g><title>{esc(engine)}</title>")
            label = clean(engine)
            label = label if len(label) <= 18 else f"{label[:17]}…"
            self.text(LEFT - 12, y + 4, label, "soft", "end")
            self.add("</g>")
        for at, column in enumerate(self.scene.columns):
            by_lane: dict[int, list[HistoryEntry]] = {}
            for entry in column.entries:
                if not entry.ours:
                    by_lane.setdefault(self.scene.engine_lane(entry), []).append(entry)
            for lane, entries in by_lane.items():
                y = self.engine_y(lane)
                loudest = max(entries, key=lambda e: _LOUD.index(e.kind))
                self.mark(self.x(at), y, loudest, _title(entries))
                label = f"{len(entries):,}×" if len(entries) > 1 else _rows(entries[0])
                if label:
                    self.text(self.x(at) + 10, y - 6, label, "soft small halo", "start")

    def ours(self) -> None:
        scene = self.scene
        y = self.lane_y(-1)
        if not scene.spans and not any(e.ours for column in scene.columns for e in column.entries):
            return
        self.add(f'<path class="guide" d="M{LEFT} {y:.1f}H{self.width - RIGHT / 2:.1f}"/>')
        self.text(LEFT - 12, y + 4, "Tandem", "bold", "end")
        spans = {span.entry.version for span in scene.spans}
        for at, column in enumerate(scene.columns):
            rest = [e for e in column.entries if e.ours and e.version not in spans]
            if rest:
                loudest = max(rest, key=lambda e: _LOUD.index(e.kind))
                self.mark(self.x(at), y, loudest, _title(rest))
                label = f"{len(rest):,}×" if len(rest) > 1 else _rows(rest[0])
                if label:
                    self.text(self.x(at) + 10, y - 6, label, "soft small halo", "start")
        for span in scene.spans:
            self.span(span)

    def span(self, span: OperationSpan) -> None:
        y, start, end = self.lane_y(span.lane), self.x(span.start), self.x(span.end)
        title = "\n".join([_title([span.entry]), f"read version {span.entry.read_version}",
                           *span.entry.summary])  # fmt: skip
        self.add(f"<g><title>{esc(title)}</title>"
                 f'<rect x="{start:.1f}" y="{y - 9:.1f}" width="{end - start:.1f}" height="18" '
                 f'rx="9" class="bar"/>'
                 f'<circle cx="{end:.1f}" cy="{y:.1f}" r="9" class="ours"/></g>')  # fmt: skip
        at, anchor, style = {
            LabelPosition.INSIDE: (start + 10, "start", ""),
            LabelPosition.RIGHT: (end + 14, "start", "halo"),
            LabelPosition.LEFT: (start - 6, "end", "halo"),
        }[span.place]
        self.text(at, y + 4, span.label, style, anchor)

    def arrows(self) -> None:
        """Draw arrows from commits to the operations that reconciled with them."""
        for span in self.scene.spans:
            by_column: dict[int, list[ConcurrentCommit]] = {}
            for met in span.entry.meetings:
                at = self.scene.column_of.get(met.version)
                if at is not None:
                    by_column.setdefault(at, []).append(met)
            written = [0.0, 0.0]
            for at, mets in sorted(by_column.items()):
                self.arrow(span, at, mets)
                label = ", ".join(_effect_text(met) for met in mets[:2])
                wide = len(label) * 1.1 * GLYPH + 6  # bold
                # The label of an arrow from below is beside it, so as not to hide it.
                below = self.source_y(mets[0].version) > self.lane_y(span.lane)
                left = self.x(at) + 6 if below else self.x(at) - wide / 2
                # One line lower if it would touch the previous label.
                line = 0 if left > written[0] else 1
                written[line] = left + wide + 4
                self.text(left if below else self.x(at), self.lane_y(span.lane) + 21 + 12 * line,
                          label, "count small halo", "start" if below else "middle")  # fmt: skip

    def arrow(self, span: OperationSpan, at: int, mets: list[ConcurrentCommit]) -> None:
        x, y = self.x(at), self.lane_y(span.lane)
        top = self.source_y(mets[0].version) + 8
        title = "\n".join(met.phrase for met in mets)
        down = top < y
        tip = y - 10 if down else y + 10
        if not down:
            top -= 16
        head = f"M{x - 4:.1f} {tip - (6 if down else -6):.1f}L{x:.1f} {tip:.1f}" \
               f"L{x + 4:.1f} {tip - (6 if down else -6):.1f}Z"  # fmt: skip
        self.add(f"<g><title>{esc(title)}</title>"
                 f'<path class="arrow" d="M{x:.1f} {top:.1f}V{tip:.1f}"/>'
                 f'<path class="head" d="{head}"/></g>')  # fmt: skip

    def source_y(self, version: int) -> float:
        """The y of a version's mark."""
        for span in self.scene.spans:
            if span.entry.version == version:
                return self.lane_y(span.lane)
        for entry in self.scene.columns[self.scene.column_of[version]].entries:
            if entry.version == version and not entry.ours:
                return self.engine_y(self.scene.engine_lane(entry))
        return self.lane_y(-1)

    def bands(self) -> None:
        scene = self.scene
        if scene.bands:
            self.text(LEFT - 12, self.row_y(0) + 4, "segments", "bold", "end")
        for band in scene.bands:
            self.flow(band)
        for span in scene.spans:
            made = [r for r in scene.bands if set(r.names) & set(span.entry.segments)]
            rows = [r.row for r in made if r.start == span.end]
            if rows:
                x = self.x(span.end)
                self.add(f'<path class="birth" d="M{x:.1f} {self.lane_y(span.lane) + 10:.1f}'
                         f'V{self.row_y(max(rows)) - 5:.1f}"/>')  # fmt: skip
        for band in scene.bands:
            self.name(band)

    def bounds(self, band: SegmentBand) -> tuple[float, float]:
        start = LEFT - 4 if band.start is None else self.x(band.start)
        end = self.width - RIGHT / 2 if band.end is None else self.x(band.end)
        return start, end

    def flow(self, band: SegmentBand) -> None:
        y, (start, end) = self.row_y(band.row), self.bounds(band)
        style = "f" if band.foreign else f"s{min(3, band.level)}"
        wide = 3.0 + min(9.0, 1.4 * max(0, len(str(band.rows)) - 1))
        bend = min(self.pitch * 0.7, max(4.0, end - start))
        paths = []
        for child in band.into:
            to = self.row_y(child.row)
            paths.append(f"M{start:.1f} {y:.1f}H{end - bend:.1f}"
                         f"C{end - bend / 3:.1f} {y:.1f} {end - bend / 1.5:.1f} {to:.1f} "
                         f"{end:.1f} {to:.1f}")  # fmt: skip
        if not paths:
            paths.append(f"M{start:.1f} {y:.1f}H{end:.1f}")
        drawn = "".join(
            f'<path class="river {style}" stroke-width="{wide:.1f}" d="{d}"/>' for d in paths
        )
        self.add(f"<g><title>{esc(_band_title(band))}</title>{drawn}</g>")
        if band.end is not None and not band.into:
            self.add(f'<path class="cut" d="M{end - 3:.1f} {y - 4:.1f}l6 8m0 -8l-6 8"/>')

    def name(self, band: SegmentBand) -> None:
        y, (start, end) = self.row_y(band.row), self.bounds(band)
        many = len(band.names)
        what = "files" if band.foreign else "segments"
        name = band.names[0] if many == 1 else f"{many:,} {what}"
        room = int((end - start - 12) / GLYPH)
        label = clean(name, max(4, room)) if room >= min(len(name), 6) else ""
        if label:
            self.text(start + 7, y - 5, label, "small halo", "start")
        for column, rows in sorted(band.deletes.items()):
            if rows > 0:
                x = self.x(column)
                after = x + 4
                if column == band.start:
                    x += 6
                    after = start + 7 + (len(label) + 1) * GLYPH
                self.add(f'<path class="cut" d="M{x:.1f} {y - 5:.1f}v10"/>')
                self.text(after, y - 6, f"−{short(rows)}", "count small halo", "start")

    def draw(self) -> str:
        for layer in (self.axis, self.bands, self.arrows, self.others, self.ours):
            layer()
        return "".join(self.parts)


_LOUD = (EntryKind.OTHER, EntryKind.APPEND, EntryKind.REWRITE, EntryKind.CHANGE)
_VERBS = {
    CommitEffect.REPLAYED: "replayed",
    CommitEffect.MASKED: "masked",
    CommitEffect.FOLLOWED: "followed",
    CommitEffect.EVALUATED: "evaluated",
    CommitEffect.LOST: "deleted or rewritten",
    CommitEffect.AGAIN: "executed again",
}


def svg(scene: Scene, title: str, description: str, *, standalone: bool = False) -> str:
    """The picture; `standalone`: as a file of its own, with its style sheet."""
    drawing = Drawing(scene)
    body = drawing.draw()
    style = f"<style>{STYLE}</style>" if standalone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tandem-history" role="img" '
        f'aria-labelledby="history-title history-text" width="{drawing.width}" '
        f'height="{drawing.height:.0f}" viewBox="0 0 {drawing.width} {drawing.height:.0f}">'
        f'<title id="history-title">{esc(title)}</title>'
        f'<desc id="history-text">{esc(description)}</desc>{style}{body}</svg>'
    )


def _rows(entry: HistoryEntry) -> str:
    """The label of a mark: `+3,000`, `−12`."""
    if entry.kind is EntryKind.APPEND and entry.rows_added:
        return f"+{short(entry.rows_added)}"
    if entry.rows_deleted > 0 and not entry.files_added:
        return f"−{short(entry.rows_deleted)}"
    return ""


def _effect_text(met: ConcurrentCommit) -> str:
    """`2,113 replayed`"""
    return f"{short(met.rows)} {_VERBS[met.effect]}" if met.rows else _VERBS[met.effect]


def _title(entries: list[HistoryEntry]) -> str:
    if len(entries) > 1:
        return f"{len(entries):,} commits, versions {entries[0].version} to {entries[-1].version}"
    entry = entries[0]
    author = entry.author
    label = f"version {entry.version}: {entry.operation or 'no operation'} by {author}"
    return "\n".join(filter(None, [label, entry.rows_text, entry.files_text]))


def _band_title(band: SegmentBand) -> str:
    names = ", ".join(band.names[:12]) + (", …" if len(band.names) > 12 else "")
    into = ", ".join(name for child in band.into[:4] for name in child.names[:4])
    return names + (f" → {into}" if into else "") + (f"\n{band.rows:,} rows" if band.rows else "")
