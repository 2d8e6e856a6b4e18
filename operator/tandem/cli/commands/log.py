"""`tandem log`: the log of a merge-on-read table."""

from __future__ import annotations

import time

from tandem.cli.commands.tables import Target
from tandem.cli.errors import Exit, say
from tandem.cli.output import ByteSize, Output, print_data, print_table, table_of


def show(table: Target, *, output: Output) -> Exit:
    """Print the live blocks, by group and in order."""
    from tandem.mergelog.state.log_table import MergeLog
    from tandem.mergelog.state.model import in_order
    from tandem.mergelog.view import MergedView

    view = MergedView.open(MergeLog(table.log()))
    blocks = in_order(view.state.live.values())
    if output is not Output.TABLE:
        data = {
            "version": view.instant,
            "baseVersion": view.base.version,
            "mark": view.state.mark if view.state.mark >= 0 else None,
            "keys": list(view.settings.keys),
            "orderingColumn": view.settings.ordering_column or None,
            "blocks": [
                {
                    "path": block.path,
                    "group": dict(block.group),
                    "first": block.first,
                    "last": block.last,
                    "bytes": block.size,
                    "deletes": block.deletes,
                    "stitched": block.stitched,
                    "merged": block.last <= view.state.mark,
                }
                for block in blocks
            ],
        }
        print_data(data, output)
        return Exit.OK
    largest = max((block.size for block in blocks), default=1)
    cells = [
        [
            " ".join(f"{column}={value}" for column, value in block.group) or "all",
            f"{block.first}–{block.last}" if block.stitched else str(block.first),
            "stitched" if block.stitched else "appended",
            "yes" if block.last <= view.state.mark else "no",
            ByteSize(block.size),
            "█" * max(1, round(20 * block.size / largest)),
            block.deletes,
        ]
        for block in blocks
    ]
    print_table(table_of(["group", "instants", "block", "merged", "size", "", "deletes"], cells))
    unmerged = len(view.state.unmerged)
    say(f"{len(blocks)} live blocks, {unmerged} not merged, as of base version {view.base.version}")
    return Exit.OK


def resolve(table: Target, *, keep: bool) -> Exit:
    """Decide whether the unmerged records are still valid."""
    from tandem.mergelog.resolve import resolve as resolve_log
    from tandem.mergelog.state.log_table import MergeLog

    log = MergeLog(table.log())
    found = resolve_log(log, keep=keep, now_ms=lambda: time.time_ns() // 1_000_000)
    state = found.state
    if not found.decided:
        say("Which records are valid is certain: there is nothing to decide, and nothing changed.")
        return Exit.OK
    kept = f"{len(state.unmerged)} unmerged blocks are valid" if keep else "no record is left"
    say(f"The log belongs to base version {state.base}; {kept}.")
    return Exit.OK
