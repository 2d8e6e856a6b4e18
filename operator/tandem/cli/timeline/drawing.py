"""A picture of segments over time, in the style of the Druid analysis.

|----------|nnnnnnnnnn|----------| 12 (v44)       `-` visible, `n` masked
|xxxxxxxxxx|xxxxxxxxxx|xxxxxxxxxx| 3 (v2 to v44)  `x` hidden: its files were removed
|..........|..........|..........|
2013-03-02 2013-03-03 2013-03-04

Each column is a chunk, a hole, or a part of a chunk if masks or shorter chunks divide it. Where a
file covers several columns there is no border between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.cli.timeline.model import Picture, PieceState, SegmentLine, newest
from tandem.intervals import ALWAYS, TimeInterval

MOST_LINES = 40
"""Segments that are drawn, the newest ones."""
WIDEST_CELL = 20
_MARKS = {PieceState.VISIBLE: "-", PieceState.MASKED: "n", PieceState.HIDDEN: "x"}


def draw(shown: Picture, width: int, label: Callable[[TimeInterval], str]) -> list[str]:
    """The lines of the picture, each at most so wide unless there is no room for names.

    Args:
        label: the name of a column.
    """
    shown = newest(shown, MOST_LINES)
    lines = shown.lines
    if not lines:
        return []
    names = [_name(line) for line in lines]
    cells = shown.cells
    room = max(8, width - max(map(len, names)) - 2)
    columns = _columns(cells, (room - 1) // 2)
    labels = [label(each) for each in columns]
    fit = (room - 1) // len(columns) - 1
    cell = max(1, min(fit, WIDEST_CELL, max(map(len, labels))))
    drawn = [f"{_bar(line, columns, cell)} {name}" for line, name in zip(lines, names, strict=True)]
    return [*drawn, *_axis(shown, columns, labels, cell)]


def _name(line: SegmentLine) -> str:
    if line.removed is not None:
        began = "" if line.added is None else f"v{line.added} "
        return f"{line.name} ({began}to v{line.removed})"
    return line.name if line.added is None else f"{line.name} (v{line.added})"


def _columns(cells: Sequence[TimeInterval], most: int) -> list[TimeInterval]:
    """The cells, or where they are too many, some of them together."""
    timed = [cell for cell in cells if cell != ALWAYS]
    rest = [cell for cell in cells if cell == ALWAYS]
    size = -(-len(timed) // max(1, most - len(rest))) or 1
    together = [timed[at : at + size] for at in range(0, len(timed), size)]
    return [TimeInterval(part[0].start_ms, part[-1].end_ms) for part in together] + rest


def _bar(line: SegmentLine, columns: Sequence[TimeInterval], cell: int) -> str:
    marks = [_mark(line, column) for column in columns]
    text = [" " if marks[0] == " " else "|"]
    for at, mark in enumerate(marks):
        text.append(mark * cell)
        after = marks[at + 1] if at + 1 < len(marks) else " "
        if mark == after and mark != " " and _joined(line, columns[at], columns[at + 1], mark):
            text.append(mark)
        else:
            text.append(" " if mark == after == " " else "|")
    return "".join(text)


def _mark(line: SegmentLine, column: TimeInterval) -> str:
    states = {piece.state for piece in line.pieces if _in(piece.interval, column)}
    return next((_MARKS[state] for state in PieceState if state in states), " ")


def _joined(line: SegmentLine, one: TimeInterval, next_: TimeInterval, mark: str) -> bool:
    """Whether one piece covers both columns."""
    return any(
        _in(piece.interval, one) and _in(piece.interval, next_)
        for piece in line.pieces
        if _MARKS[piece.state] == mark
    )


def _in(interval: TimeInterval, column: TimeInterval) -> bool:
    if ALWAYS in (interval, column):
        return interval == column
    return interval.overlaps(column)


def _axis(
    shown: Picture, columns: Sequence[TimeInterval], labels: Sequence[str], cell: int
) -> list[str]:
    """The line of cells, with gaps for holes, and the labels below for which there is room."""
    dots = [" " if _is_hole(shown, column) else "." for column in columns]
    text, end = "", 0
    for at, each in enumerate(labels):
        start = at * (cell + 1)
        if start >= end:
            text = text.ljust(start) + each
            end = len(text) + 1
    return ["|" + "|".join(dot * cell for dot in dots) + "|", text]


def _is_hole(shown: Picture, column: TimeInterval) -> bool:
    return any(
        hole.start_ms <= column.start_ms and column.end_ms <= hole.end_ms for hole in shown.holes
    )
