"""`tandem log`: the log of a merge-on-read table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tandem.cli.commands.tables import Target
from tandem.cli.errors import Exit, say
from tandem.cli.output import ByteSize, Output, print_data, print_table, table_of

if TYPE_CHECKING:
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.mergelog.state.versions import Block


def show(table: Target, *, output: Output) -> Exit:
    """Print the live blocks, by group and in order, and which unfinished merge reads them."""
    from tandem.mergelog.state.log_table import MergeLog
    from tandem.mergelog.state.versions import in_order
    from tandem.mergelog.view import MergedView
    from tandem.text import counted

    log = table.log()
    view = MergedView.open(MergeLog(log))
    blocks = in_order(view.state.live.values())
    merges = _unfinished_merges(log)
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
                    "pendingMerge": merges.get(block.path),
                }
                for block in blocks
            ],
        }
        print_data(data, output)
        return Exit.OK

    def merged(block: Block) -> str:
        if block.last <= view.state.mark:
            return "yes"
        return "pending" if block.path in merges else "no"

    largest = max((block.size for block in blocks), default=1)
    cells = [
        [
            " ".join(f"{column}={value}" for column, value in block.group) or "all",
            f"{block.first}–{block.last}" if block.stitched else str(block.first),
            "stitched" if block.stitched else "appended",
            merged(block),
            ByteSize(block.size),
            "█" * max(1, round(20 * block.size / largest)),
            block.deletes,
        ]
        for block in blocks
    ]
    if cells:
        headers = ["group", "instants", "block", "merged", "size", "", "deletes"]
        print_table(table_of(headers, cells))
    unmerged = len(view.state.unmerged)
    live = counted(len(blocks), "live block")
    say(f"{live}, {unmerged} not merged, as of base version {view.base.version}")
    for name in sorted(set(merges.values())):
        read = sum(merges.get(block.path) == name for block in blocks)
        say(f"Pending: {name} merges {read} of them")
    return Exit.OK


def _unfinished_merges(base: DeltaLog) -> dict[str, str]:
    """The resources of log merges that have a plan and no outcome, by the blocks that they read."""
    from tandem.operations.attempt import garbage, paths, records

    unfinished = garbage.unfinished(base.store)
    if not unfinished:
        return {}
    found: dict[str, str] = {}
    for pin in garbage.uncommitted(unfinished, base.snapshot()):
        reads = garbage.reads_of_log(base.store, pin)
        if reads is not None:
            identity = paths.identity(pin.operation_id)
            known = records.load(base.store, identity, records.OperationRecord)
            name = f"{known.kind}/{known.name}" if known else pin.operation_id
            found |= dict.fromkeys(reads.blocks, name)
    return found


def resolve(table: Target, *, keep: bool) -> Exit:
    """Decide whether the unmerged records are still valid, or give up blocks that are gone."""
    from tandem.mergelog.state.log_table import MergeLog
    from tandem.mergelog.upkeep import resolve as resolve_log
    from tandem.text import counted

    log = MergeLog(table.log())
    found = resolve_log(log, keep=keep, now_ms=lambda: time.time_ns() // 1_000_000)
    state = found.state
    if not found.decided:
        say(
            "Which records are valid is certain, and all of their blocks exist: there is nothing "
            "to decide, and nothing changed."
        )
        return Exit.OK
    if found.gone:
        lost = ", ".join(dict.fromkeys(block.instants for block in found.gone))
        say(
            f"{counted(len(found.gone), 'block')} without a file dropped: the records of {lost} "
            f"are given up, as far as the base table lacks them. "
            f"{counted(len(state.live), 'live block')} left, as of base version {state.base}."
        )
        return Exit.OK
    kept = f"{len(state.unmerged)} unmerged blocks are valid" if keep else "no record is left"
    say(f"The log belongs to base version {state.base}; {kept}.")
    return Exit.OK
