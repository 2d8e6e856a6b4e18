"""`tandem history`: reads the log, and prints a table with a small picture, JSON, or a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tandem.cli.errors import Exit, say
from tandem.cli.history_model import EntryKind, HistoryEntry, entries, lanes_of
from tandem.cli.output import (
    Output,
    natural_width,
    people_time,
    print_data,
    print_table,
    table_of,
    terminal_width,
    utc,
    write,
)
from tandem.errors import InvalidSpec

if TYPE_CHECKING:
    from rich.table import Table

    from tandem.cli.commands.target import Target
    from tandem.cli.history_model import HistoryEntry
    from tandem.delta.actions import Commit

TERMINAL_COMMITS = 20
PAGE_COMMITS = 2_000
"""How many of the last commits are read by default."""


def history(table: Target, *, output: Output, limit: int | None, html: str | None = None) -> Exit:
    """The newest commits that the log still holds, newest first.

    Args:
        html: write a page there instead; `-` is standard output.
    """
    log = table.log()
    first, last = log.versions()
    most = limit or (TERMINAL_COMMITS if html is None else PAGE_COMMITS)
    commits = log.commits(max(first, last - most + 1), last)
    found = entries(commits)
    if html is not None:
        from tandem.cli.history_page import page

        _write_page(html, page(commits, title=_title(table), location=table.location))
    elif output is Output.TABLE:
        print_table(table_of_commits(found, terminal_width()))
    else:
        rows = [_row(e, c) for e, c in zip(reversed(found), reversed(commits), strict=True)]
        print_data(rows, output)
    return Exit.OK


def _title(table: Target) -> str:
    """The name of the LakeTable, or else the last part of the location."""
    if table.table is not None:
        return table.table.name
    return unquote(table.location.rstrip("/").rpartition("/")[2])


def _write_page(html: str, text: str) -> None:
    if html == "-":
        write(text)
        return
    try:
        Path(html).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidSpec(
            "the page cannot be written",
            resource="--html",
            found=f"{html}: {error.strerror}",
            expected="a file in an existing folder, or - for standard output",
        ) from error
    say(f"Wrote {html}.")


def _row(entry: HistoryEntry, commit: Commit) -> dict[str, Any]:
    """An entry for `-o json`, with names as in the log."""
    info = commit.info
    ours = info.body.get("tandem") if info is not None else None
    return {
        "version": entry.version,
        "time": utc(entry.time_ms),
        "operation": info.operation if info is not None else None,
        "engine": info.engine if info is not None else None,
        "by": str(ours.get("resource") or ours.get("operation") or "")
        if isinstance(ours, dict)
        else None,
        "filesAdded": entry.files_added,
        "filesRemoved": entry.files_removed,
        "filesMarked": entry.files_marked,
        "rowsAdded": entry.rows_added,
        "rowsRemoved": entry.rows_removed,
        "rowsDeleted": entry.rows_deleted,
        "segments": list(entry.segments),
        "readVersion": entry.read_version,
        **({"batch": dict(zip(("number", "of"), entry.batch, strict=True))} if entry.batch else {}),
        "met": [
            {
                "version": met.version,
                "effect": str(met.effect),
                "rows": met.rows,
                "onto": met.onto or None,
            }
            for met in entry.meetings
        ],
        "summary": list(entry.summary),
    }


# A history as a table with a small picture, newest first, similar to `git log --graph`.
#
# 45 ●─╮   a compaction of ours, which read version 41
# 44 ◆─▶   another writer deleted rows: replayed
# 43 ○ │   another writer appended: does not affect it
# 41 ○─╯   the version that it read


MOST_LANES = 4
MARKS = {EntryKind.APPEND: "○", EntryKind.CHANGE: "◆", EntryKind.REWRITE: "■", EntryKind.OTHER: "·"}
OUR_MARK = "●"


def table_of_commits(entries: Sequence[HistoryEntry], width: int) -> Table:
    """`entries` oldest first. In less than its `width` in characters, author and notes of a commit
    are below its operation."""
    drawn = [*zip(reversed(entries), reversed(picture(entries)), strict=True)]
    wide = table_of(
        ["version", "", "time (UTC)", "operation", "by", "files", "rows", "met"],
        [[entry.version, lines, *entry.texts[1:]] for entry, lines in drawn],
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
                        entry.operation_text,
                        entry.by.rpartition("/")[2] or entry.author,
                        *entry.notes,
                    ]
                ),
                entry.files_text,
                entry.rows_text,
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
    # Neither may begin in the line in which another one ends.
    spans = [(e, (max(first, e.read_version or 0), e.version + 1)) for e in working]
    return [(work, lane + 1) for work, lane in lanes_of(spans, MOST_LANES)]
