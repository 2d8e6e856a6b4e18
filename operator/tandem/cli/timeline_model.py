"""Segments over time, and versions as changes of segments: data from the log. Pure.

Everything here comes from the log, which any writer may fill with anything; `cli.timeline`
prints or draws it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.text import counted
from tandem.timeline.working_set import ChangeSet, LiveFile, TimelineIndex, WorkingSet, replay

# Versions in the notation of the Druid analysis.
#
#     v44: (-0.1[2013-03-02/2013-03-05) +12) [0.1, 12]
#
# In parentheses what the version took and added, in brackets its working set: the segments that a
# reader of it sees.


MOST_NAMES = 12
"""Segments named of one working set, and of each half of a change set."""


def version_text(line: VersionLine) -> str:
    """One line for one version."""
    parts = [f"v{line.version}:"]
    if line.changes is not None:
        took = [_took(each) for each in line.changes if each.took]
        gave = [_gave(each) for each in line.changes if each.gave]
        parts.append(f"({' '.join([*_few(took), *_few(gave)])})")
    parts.append(f"[{', '.join(_few(line.working_set))}]")
    return " ".join(parts)


def short(interval: TimeInterval) -> str:
    """An interval without the parts of its times that are zero: `2013-03-02/2013-03-05`."""
    if interval == ALWAYS:
        return "all"
    return "/".join(
        re.sub(r"T00:00:00Z$|:00Z$", lambda part: "" if "T" in part[0] else "Z", end)
        for end in str(interval).split("/")
    )


def _took(change: SegmentChange) -> str:
    if change.whole:
        return f"-{change.name}"
    details = []
    if change.files_removed:
        details.append(f"{change.files_removed} of {counted(change.files_before, 'file')}")
    if change.masked:
        details.append(_intervals(change.masked))
    elif change.rows_masked:
        details.append(counted(change.rows_masked, "row"))
    return f"-{change.name}[{', '.join(details)}{')' if change.masked else ']'}"


def _gave(change: SegmentChange) -> str:
    if change.files_before == change.files_removed:
        return f"+{change.name}"
    details = []
    if change.files_added:
        details.append(counted(change.files_added, "file"))
    if change.rows_restored:
        details.append(counted(change.rows_restored, "row"))
    return f"+{change.name}[{', '.join(details)}]"


def _intervals(intervals: IntervalSet) -> str:
    return ", ".join(_few([short(each) for each in intervals]))


def _few(texts: Sequence[str]) -> list[str]:
    if len(texts) <= MOST_NAMES:
        return list(texts)
    return [*texts[: MOST_NAMES - 1], f"… {len(texts) - MOST_NAMES + 1} more"]


class PieceState(StrEnum):
    """What a segment shows in an interval: its rows, nothing since all of its rows there are
    masked, or nothing since its files were removed."""

    VISIBLE = "visible"
    MASKED = "masked"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """`files`: so many files of the segment are in this state in this interval."""

    interval: TimeInterval
    state: PieceState
    files: int = 1


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A segment of the picture. `added` and `removed`: the versions that added its first file and
    removed its last one, None if that is not known or did not happen."""

    name: str
    pieces: tuple[SegmentPiece, ...]
    added: int | None = None
    removed: int | None = None

    @property
    def live(self) -> bool:
        return any(piece.state is not PieceState.HIDDEN for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Picture:
    """Segments, newest first, and the holes between the first and the last moment of the table."""

    lines: tuple[SegmentLine, ...]
    holes: tuple[TimeInterval, ...]

    @property
    def cells(self) -> tuple[TimeInterval, ...]:
        """The fewest intervals of which every piece and every hole consists, ascending. Files
        without a known time are in a last one, `ALWAYS`."""
        spans = {piece.interval for line in self.lines for piece in line.pieces} | set(self.holes)
        borders = sorted({at for each in spans - {ALWAYS} for at in (each.start_ms, each.end_ms)})
        cells = [TimeInterval(*pair) for pair in pairwise(borders)]
        return (*cells, *({ALWAYS} & spans))


def newest(shown: Picture, most: int) -> Picture:
    """The part of a picture with its newest segments, and the time that these cover."""
    if len(shown.lines) <= most:
        return shown
    lines = shown.lines[:most]
    covered = IntervalSet(
        piece.interval for line in lines for piece in line.pieces if piece.interval != ALWAYS
    )
    holes = IntervalSet(shown.holes) & IntervalSet([covered.hull] if covered.hull else [])
    return Picture(lines, holes.pieces)


def picture(
    files: Mapping[str, LiveFile],
    gone: Collection[str],
    changes: Sequence[ChangeSet],
    window: TimeInterval = ALWAYS,
) -> Picture:
    """What a version shows.

    Args:
        files: its live files by path, with those of which nothing is visible, and removed ones, in
            the order of their segments.
        gone: the paths of the removed ones.
        changes: recent versions, ascending; they tell which one added or removed a segment.
        window: only pieces that meet it, cut to it. Files without a known time always do.
    """
    index = TimelineIndex()
    index.apply({path: file.visible for path, file in files.items() if path not in gone})
    found: dict[str, dict[tuple[TimeInterval, PieceState], int]] = {}
    for path, file in files.items():
        pieces = found.setdefault(file.segment, {})
        for key in _pieces(file, path in gone, window):
            pieces[key] = pieces.get(key, 0) + 1
    added, removed = _versions(files, changes)
    lines = []
    for name, pieces in found.items():
        if not pieces:
            continue
        line = SegmentLine(
            name,
            tuple(SegmentPiece(*key, count) for key, count in sorted(pieces.items())),
            added.get(name),
        )
        ended = None if line.live else removed.get(name)
        lines.append(SegmentLine(name, line.pieces, line.added, ended))
    holes = IntervalSet(index.holes()) & IntervalSet([window])
    return Picture(tuple(reversed(lines)), holes.pieces)


def _pieces(
    file: LiveFile, gone: bool, window: TimeInterval
) -> Iterable[tuple[TimeInterval, PieceState]]:
    whole = {
        PieceState.HIDDEN: file.covers if gone else IntervalSet(),
        PieceState.VISIBLE: IntervalSet() if gone else file.visible,
        PieceState.MASKED: IntervalSet() if gone else file.covers - file.visible,
    }
    for state, intervals in whole.items():
        for each in intervals:
            if each == ALWAYS:
                yield each, state
            elif each.overlaps(window):
                start, end = (
                    max(each.start_ms, window.start_ms),
                    min(each.end_ms, window.end_ms),
                )
                yield TimeInterval(start, end), state


def _versions(
    files: Mapping[str, LiveFile], changes: Sequence[ChangeSet]
) -> tuple[dict[str, int], dict[str, int]]:
    """For each segment the version that added its first file, and the last that removed one."""
    added: dict[str, int] = {}
    removed: dict[str, int] = {}
    for change in changes:
        for path in change.adds:
            if path in files:
                added.setdefault(files[path].segment, change.version)
        for path in change.removes:
            if path in files:
                removed[files[path].segment] = change.version
    # If a segment has older files, the version that added the first one is not known.
    new = {path for change in changes for path in change.adds}
    for path, file in files.items():
        if path not in new:
            added.pop(file.segment, None)
    return added, removed


@dataclass(frozen=True, slots=True)
class SegmentChange:
    """What a version did to a segment.

    `files_before`: live files before it; `files_removed` of these are gone. `files_added`: new
    ones. `masked`: intervals in which it masked all rows. `rows_masked`, `rows_restored`: rows of
    files that stayed.
    """

    name: str
    files_before: int = 0
    files_removed: int = 0
    files_added: int = 0
    masked: IntervalSet = field(default_factory=IntervalSet)
    rows_masked: int = 0
    rows_restored: int = 0

    @property
    def took(self) -> bool:
        return bool(self.files_removed or self.rows_masked or self.masked)

    @property
    def gave(self) -> bool:
        return bool(self.files_added or self.rows_restored)

    @property
    def whole(self) -> bool:
        """Whether all that it had before is gone."""
        return 0 < self.files_before == self.files_removed


@dataclass(frozen=True, slots=True)
class VersionLine:
    """A version: what it changed, None of the oldest one whose commit the log has no more; and the
    segments of its working set, in their order."""

    version: int
    changes: tuple[SegmentChange, ...] | None
    working_set: tuple[str, ...]


def version_lines(
    changes: Iterable[ChangeSet],
    start: WorkingSet,
    window: TimeInterval = ALWAYS,
) -> list[VersionLine]:
    """Consecutive versions, ascending.

    Args:
        start: the working set before the first of them.
        window: only files with a moment in it.
    """
    before = {path: file for path, file in start.items() if _meets(file, window)}
    lines = []
    for change, live in replay(changes, before):
        after = {path: file for path, file in live.items() if _meets(file, window)}
        names = tuple(dict.fromkeys(file.segment for file in after.values()))
        lines.append(VersionLine(change.version, _segment_changes(before, after, change), names))
        before = after
    return lines


_BeforeAfter = tuple[LiveFile | None, LiveFile | None]


def _meets(file: LiveFile, window: TimeInterval) -> bool:
    return window == ALWAYS or file.covers.overlaps(window)


def _segment_changes(
    before: WorkingSet, after: WorkingSet, change: ChangeSet
) -> tuple[SegmentChange, ...]:
    concerned = change.files
    files: dict[str, list[_BeforeAfter]] = {}
    # In the order of segments, former ones first.
    for path in [*before, *(path for path in after if path not in before)]:
        if path not in concerned:
            continue
        old, new = before.get(path), after.get(path)
        if old is not None and new is not None and old.segment != new.segment:
            files.setdefault(old.segment, []).append((old, None))
            old = None
        file = new or old
        assert file is not None
        files.setdefault(file.segment, []).append((old, new))
    counts: dict[str, int] = {}
    for file in before.values():
        counts[file.segment] = counts.get(file.segment, 0) + 1
    found = [_segment_change(name, each, counts.get(name, 0)) for name, each in files.items()]
    return tuple(each for each in found if each.took or each.gave)


def _segment_change(name: str, files: Sequence[_BeforeAfter], count: int) -> SegmentChange:
    stayed = [(old, new) for old, new in files if old is not None and new is not None]
    masked = [each for old, new in stayed for each in new.masked.intervals - old.masked.intervals]
    grown = [new.masked.rows - old.masked.rows for old, new in stayed]
    return SegmentChange(
        name,
        files_before=count,
        files_removed=sum(new is None for _, new in files),
        files_added=sum(old is None for old, _ in files),
        masked=IntervalSet(masked),
        rows_masked=sum(rows for rows in grown if rows > 0),
        rows_restored=-sum(rows for rows in grown if rows < 0),
    )
