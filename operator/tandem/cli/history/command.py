"""`tandem history`: reads the log, and prints a table, JSON, or a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tandem.cli.errors import Exit, say
from tandem.cli.output import Output, print_data, print_table, terminal_width, utc, write
from tandem.errors import InvalidSpec

if TYPE_CHECKING:
    from tandem.cli.commands.tables import Target
    from tandem.cli.history.model import HistoryEntry
    from tandem.delta.actions import Commit

TERMINAL_COMMITS = 20
PAGE_COMMITS = 2_000
"""How many of the last commits are read by default."""


def history(table: Target, *, output: Output, limit: int | None, html: str | None = None) -> Exit:
    """The newest commits that the log still holds, newest first.

    Args:
        html: write a page there instead; `-` is standard output.
    """
    from tandem.cli.history.model import entries

    log = table.log()
    first, last = log.versions()
    most = limit or (TERMINAL_COMMITS if html is None else PAGE_COMMITS)
    commits = log.commits(max(first, last - most + 1), last)
    found = entries(commits)
    if html is not None:
        from tandem.cli.history.page import page

        _write_page(html, page(commits, title=_title(table), location=table.location))
    elif output is Output.TABLE:
        from tandem.cli.history import terminal

        print_table(terminal.table(found, terminal_width()))
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
        "by": _operation_of(ours) if isinstance(ours, dict) else None,
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


def _operation_of(ours: dict[str, Any]) -> str:
    """The resource of a commit of ours, or else its operation id."""
    return str(ours.get("resource") or ours.get("operation") or "")
