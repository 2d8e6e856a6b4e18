"""A history as a table with a small picture, newest first, similar to `git log --graph`.

45 ●─╮   a compaction of ours, which read version 41
44 ◆─▶   another writer deleted rows: replayed
43 ○ │   another writer appended: does not affect it
41 ○─╯   the version that it read
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandem.cli.history import phrases
from tandem.cli.history.model import EntryKind, HistoryEntry
from tandem.cli.output import natural_width, people_time, table_of

if TYPE_CHECKING:
    from rich.table import Table

MOST_LANES = 4
MARKS = {EntryKind.APPEND: "○", EntryKind.CHANGE: "◆", EntryKind.REWRITE: "■", EntryKind.OTHER: "·"}
OUR_MARK = "●"


def table(entries: Sequence[HistoryEntry], width: int) -> Table:
    """`entries` oldest first. In less than its `width` in characters, author and notes of a commit
    are below its operation."""
    drawn = [*zip(reversed(entries), reversed(picture(entries)), strict=True)]
    wide = table_of(
        ["version", "", "time (UTC)", "operation", "by", "files", "rows", "met"],
        [
            [
                entry.version,
                lines,
                people_time(entry.time_ms),
                phrases.operation(entry),
                phrases.author_name(entry),
                phrases.files(entry),
                phrases.rows(entry),
                "; ".join(phrases.notes(entry)),
            ]
            for entry, lines in drawn
        ],
    )
    if natural_width(wide) <= width:
        return wide
    return table_of(
        ["version", "", "time (UTC)", "operation, by", "files", "rows"],
        [
            [
                entry.version,
                lines,
                people_time(entry.time_ms).replace(" ", "\n"),
                "\n".join(
                    [
                        phrases.operation(entry),
                        entry.by.rpartition("/")[2] or phrases.author_name(entry),
                        *phrases.notes(entry),
                    ]
                ),
                phrases.files(entry),
                phrases.rows(entry),
            ]
            for entry, lines in drawn
        ],
    )


def picture(entries: Sequence[HistoryEntry]) -> list[str]:
    """One drawing per entry: its mark, and the operations of ours that ran at that time."""
    lanes = _lanes(entries)
    width = 1 + max((lane for _, lane in lanes), default=0)
    drawn = []
    for entry in entries:
        mark = OUR_MARK if entry.ours and entry.kind is not EntryKind.OTHER else MARKS[entry.kind]
        if not lanes:
            drawn.append(mark)
            continue
        line = [" "] * (2 * width + 1)
        line[0] = mark
        for work, lane in lanes:
            assert work.read_version is not None
            if work.read_version < entry.version < work.version:
                line[2 * lane] = "│"
        for work, lane in lanes:
            end = {work.version: "╮", work.read_version: "╯"}.get(entry.version)
            if end is None and any(met.version == entry.version for met in work.meetings):
                end = "▶"
            if end is not None:
                for at in range(1, 2 * lane):
                    line[at] = {" ": "─", "│": "┼"}.get(line[at], line[at])
                line[2 * lane] = end
        drawn.append("".join(line))
    return drawn


def _lanes(entries: Sequence[HistoryEntry]) -> list[tuple[HistoryEntry, int]]:
    """A lane for each operation during which others committed; those that reconciled with a commit
    come first, and those for which there is no space are not drawn."""
    first = entries[0].version if entries else 0
    working = [e for e in entries if e.read_version is not None and e.version - e.read_version > 1]
    taken: list[list[tuple[int, int]]] = [[] for _ in range(MOST_LANES)]
    found: list[tuple[HistoryEntry, int]] = []
    for work in sorted(working, key=lambda e: (not e.meetings, -e.version)):
        assert work.read_version is not None
        span = (max(first, work.read_version), work.version)
        for lane, spans in enumerate(taken):
            if all(span[1] < begin or end < span[0] for begin, end in spans):
                spans.append(span)
                found.append((work, lane + 1))
                break
    return found
