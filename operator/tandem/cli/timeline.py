"""`tandem timeline`: what a table shows when, as the pictures of the Druid analysis draw it.

Reads the log, and prints a picture, versions, or JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tandem.cli.commands.arguments import moment_of
from tandem.cli.errors import Exit, say
from tandem.cli.output import Output, print_data, terminal_width, write
from tandem.cli.timeline_model import Picture, PieceState, SegmentLine, newest
from tandem.errors import InvalidSpec
from tandem.intervals import ALWAYS, TimeInterval

if TYPE_CHECKING:
    from tandem.cli.commands.target import Target
    from tandem.cli.timeline_model import Picture, SegmentChange, VersionLine
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.snapshot import Snapshot
    from tandem.spec.table import Granularity
    from tandem.timeline.chunks import TimeColumn
    from tandem.timeline.working_set import ChangeSet, LiveFile

COMMITS = 20
"""How many of the last commits are read by default."""
MOST_HOLES = 8
"""Holes that are named below a picture."""


@dataclass(frozen=True, slots=True)
class TimelineOptions:
    """The options, as typed."""

    version: int | None = None
    first: str | None = None
    before: str | None = None
    time_column: str | None = None
    granularity: Granularity | None = None
    limit: int | None = None


def timeline(table: Target, options: TimelineOptions, *, changes: bool, output: Output) -> Exit:
    """Print what a version shows, or how versions came about.

    Raises: InvalidSpec for a window or time column that is none.
    """
    window = _window(options)
    log = table.log()
    snapshot = log.snapshot(options.version)
    time = _time_column(table, snapshot, options)
    recent = _Recent(log, snapshot, time, options.limit or COMMITS)
    if changes:
        _print_changes(recent, window, output)
    else:
        _print_picture(recent, window, output)
    return Exit.OK


class _Recent:
    """A version and the last commits up to it."""

    def __init__(
        self, log: DeltaLog, snapshot: Snapshot, time: TimeColumn | None, limit: int
    ) -> None:
        from tandem.timeline.working_set import change_of

        self._log, self.snapshot, self.time = log, snapshot, time
        self.oldest, _ = log.versions()
        # Of the oldest version, only a checkpoint may be left.
        self.first = max(self.oldest + 1 if self.oldest else 0, snapshot.version - limit + 1)
        self.commits = log.commits(self.first, snapshot.version)
        self.changes: list[ChangeSet] = [change_of(commit, time) for commit in self.commits]

    def base(self) -> Snapshot | None:
        """The version before the commits, None if they begin with the first."""
        return self._log.snapshot(self.first - 1) if self.first else None

    def files(self) -> tuple[dict[str, LiveFile], set[str]]:
        """The live files, and those that the commits removed; and the paths of these."""
        from tandem.delta.log import files as files_
        from tandem.timeline.working_set import read_files

        live = set(self.snapshot.files["path"].to_pylist())
        added = {add.logged_path: add for commit in self.commits for add in commit.adds}
        gone = {path for change in self.changes for path in change.removes} - live
        tables = [self.snapshot.files]
        tables.append(files_.from_adds([added[path] for path in sorted(gone & added.keys())]))
        if gone - added.keys():
            base = self.base()
            if base is not None:
                tables.append(files_.with_paths(base.files, gone - added.keys()))
        return read_files(files_.combine(tables), self.time), gone


def _window(options: TimelineOptions) -> TimeInterval:
    first, before = options.first, options.before
    start = ALWAYS.start_ms if first is None else moment_of(first, "--from")
    end = ALWAYS.end_ms if before is None else moment_of(before, "--to")
    if start >= end:
        raise InvalidSpec(
            "the interval is empty",
            resource="--to",
            found=before,
            expected=f"a moment after {first}",
        )
    return TimeInterval(start, end)


def _time_column(table: Target, snapshot: Snapshot, options: TimelineOptions) -> TimeColumn | None:
    """The column of the options, or else of the LakeTable."""
    from tandem.operations.kinds.time_column import find_time_column
    from tandem.spec.table import Granularity

    granularity = options.granularity
    if options.time_column is not None:
        return find_time_column(
            options.time_column,
            granularity or Granularity.DAY,
            snapshot,
            resource=table.location,
            field="--time-column",
        )
    adopted = table.time_column(snapshot)
    if granularity is None:
        return adopted
    if adopted is None:
        raise InvalidSpec(
            "a granularity without a time column",
            resource="--granularity",
            found=granularity,
            expected="--time-column, or a LakeTable with spec.time",
        )
    return replace(adopted, granularity=granularity)


def _print_picture(recent: _Recent, window: TimeInterval, output: Output) -> None:
    from tandem.cli.timeline_model import picture
    from tandem.text import counted

    files, gone = recent.files()
    shown = picture(files, gone, recent.changes, window)
    if output is not Output.TABLE:
        print_data(_picture_data(recent, shown), output)
        return
    for line in draw(shown, terminal_width(), lambda cell: _column_label(recent.time, cell)):
        write(line.rstrip() + "\n")
    if shown.holes:
        named = [_label(recent.time, hole) for hole in shown.holes[:MOST_HOLES]]
        more = len(shown.holes) - len(named)
        write(f"Holes: {', '.join(named)}{f' and {more} more' if more else ''}\n")
    visible = sum(line.live for line in shown.lines)
    hidden = len(shown.lines) - visible
    text = f"Version {recent.snapshot.version}: {counted(visible, 'live segment')}"
    if hidden:
        text += f", {hidden:,} that the last {counted(len(recent.commits), 'commit')} removed"
    say(f"{text}. - visible, x hidden, n masked")
    if len(shown.lines) > MOST_LINES:
        say(f"The {len(shown.lines) - MOST_LINES:,} oldest are not drawn: -o json lists them")


def _print_changes(recent: _Recent, window: TimeInterval, output: Output) -> None:
    from tandem.cli.timeline_model import VersionLine, version_lines, version_text
    from tandem.timeline.working_set import live_files

    base = recent.base()
    start = live_files(base.files, recent.time) if base is not None else {}
    lines = version_lines(recent.changes, start, window)
    if base is not None and base.version == recent.oldest:
        names = dict.fromkeys(file.segment for file in start.values())
        lines.insert(0, VersionLine(base.version, None, tuple(names)))
    if output is not Output.TABLE:
        print_data([_version_data(line) for line in reversed(lines)], output)
        return
    for line in reversed(lines):
        write(version_text(line) + "\n")


def _label(time: TimeColumn | None, interval: TimeInterval) -> str:
    from tandem.cli.timeline_model import short
    from tandem.timeline.chunks import is_one_chunk, label

    if interval == ALWAYS:
        return "all"
    if time is not None and is_one_chunk(interval, time.granularity):
        return label(interval, time.granularity)
    return short(interval)


def _column_label(time: TimeColumn | None, column: TimeInterval) -> str:
    """The name of the chunk, or else where the column begins; `?` for files of unknown time."""
    if column == ALWAYS and _interval(time, column) is None:
        return "?"
    return _label(time, column).partition("/")[0]


def _picture_data(recent: _Recent, shown: Picture) -> dict[str, Any]:
    time = recent.time
    return {
        "version": recent.snapshot.version,
        "granularity": str(time.granularity) if time is not None else None,
        "segments": [
            {
                "name": line.name,
                "addedIn": line.added,
                "removedIn": line.removed,
                "pieces": [
                    {
                        "interval": _interval(time, piece.interval),
                        "state": str(piece.state),
                        "files": piece.files,
                    }
                    for piece in line.pieces
                ],
            }
            for line in shown.lines
        ],
        "holes": [str(hole) for hole in shown.holes],
    }


def _interval(time: TimeColumn | None, interval: TimeInterval) -> str | None:
    """None if it is not known."""
    if interval != ALWAYS:
        return str(interval)
    from tandem.spec.table import Granularity

    return "all" if time is None or time.granularity is Granularity.ALL else None


def _version_data(line: VersionLine) -> dict[str, Any]:
    return {
        "version": line.version,
        "changes": None if line.changes is None else [_change_data(each) for each in line.changes],
        "workingSet": list(line.working_set),
    }


def _change_data(change: SegmentChange) -> dict[str, Any]:
    return {
        "segment": change.name,
        "filesBefore": change.files_before,
        "filesRemoved": change.files_removed,
        "filesAdded": change.files_added,
        "masked": [str(each) for each in change.masked],
        "rowsMasked": change.rows_masked,
        "rowsRestored": change.rows_restored,
    }


# A picture of segments over time, in the style of the Druid analysis.
#
# |----------|nnnnnnnnnn|----------| 12 (v44)       `-` visible, `n` masked
# |xxxxxxxxxx|xxxxxxxxxx|xxxxxxxxxx| 3 (v2 to v44)  `x` hidden: its files were removed
# |..........|..........|..........|
# 2013-03-02 2013-03-03 2013-03-04
#
# Each column is a chunk, a hole, or a part of a chunk if masks or shorter chunks divide it. Where a
# file covers several columns there is no border between them.


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
