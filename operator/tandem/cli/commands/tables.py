"""Commands that show or tidy one table: `table`, `locks`, `clean` and `log`."""

from __future__ import annotations

import json
import posixpath
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from tandem.cli.commands.arguments import VERSION, group, on_table, option
from tandem.cli.errors import Exit, say
from tandem.cli.output import (
    ByteSize,
    Output,
    OutputOption,
    people_time,
    print_data,
    print_table,
    table_of,
    utc,
)
from tandem.text import counted, human_bytes

if TYPE_CHECKING:
    from tandem.cli.commands.target import Target
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.snapshot import Snapshot
    from tandem.mergelog.versions import Block
    from tandem.operations.clean import CleaningResult
    from tandem.planning.cleaning import CleaningRules

table_app = group("Inspect a table.")
log_app = group("Inspect the log of a merge-on-read table.")


@table_app.command(short_help="List the segments of a version.")
@on_table
def segments(
    table: Target,
    *,
    output: OutputOption = Output.TABLE,
    version: int | None = VERSION,
    every: bool = option(False, "Also former segments that the log still has.", "--all"),
) -> Exit:
    """List segments: level, status, interval, load time, size, deleted rows."""
    from tandem.timeline.chunks import label
    from tandem.timeline.lineage import format_lineage
    from tandem.timeline.segments import retired
    from tandem.timeline.segments import segments as segments_of

    log = table.log()
    snapshot = log.snapshot(version)
    time = table.time_column(snapshot)
    live = segments_of(snapshot.files, time)
    found = list(live)
    if every:
        first, _ = log.versions()
        found = [*retired(live, log.commits(first, snapshot.version)), *live]
        found.sort(key=lambda segment: segment.order)
    rows = []
    for segment in found:
        interval = None
        if segment.interval is not None:
            interval = label(segment.interval, time.granularity) if time else str(segment.interval)
        rows.append(
            {
                "name": segment.name,
                "level": segment.level,
                "status": str(segment.status),
                "interval": interval,
                "loadTime": utc(segment.load_ms),
                "files": len(segment.files),
                "bytes": segment.size_bytes,
                "rows": segment.rows,
                "deletedRows": segment.deleted_rows,
                "loads": segment.loads or None,
                "parents": format_lineage(segment.parents) or None,
            }
        )
    if output is Output.TABLE:
        cells = [
            [
                *(row[name] for name in ("name", "level")),
                _in_words(str(row["status"])),
                row["interval"],
                people_time(segment.load_ms),
                row["files"],
                ByteSize(segment.size_bytes),
                row["rows"],
                row["deletedRows"] or None,  # mostly there are none: the column is left out
                _counted(segment.loads),
                _counted(str(row["parents"] or "")),
            ]
            for segment, row in zip(found, rows, strict=True)
        ]
        names = ["segment", "level", "status", "interval", "loaded (UTC)", "files", "size"]
        print_table(table_of([*names, "rows", "deleted", "loads", "parents"], cells))
    else:
        print_data(rows, output)
    return Exit.OK


def _counted(lineage: str) -> str:
    """A lineage of many parts, shortened to their number: `-o json` lists them."""
    parts = lineage.split(",")
    return lineage if len(parts) <= 2 else f"{len(parts)} in all"


def _in_words(name: str) -> str:
    """`MarkedForUpdate` as `Marked for update`, which can be wrapped."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", name)
    return words[:1] + words[1:].lower()


@table_app.command(short_help="Show version, size, columns and protocol.")
@on_table
def show(
    table: Target, *, output: OutputOption = Output.TABLE, version: int | None = VERSION
) -> Exit:
    """Show a table's version, size, columns and protocol."""
    import pyarrow.compute as pc

    from tandem.delta.protocol import features_in_use
    from tandem.timeline.segments import segments as segments_of

    snapshot = table.log().snapshot(version)
    rows = pc.sum(snapshot.num_records).as_py() if not snapshot.num_records.null_count else None
    deleted = pc.sum(snapshot.num_deleted).as_py() or 0
    facts: dict[str, Any] = {
        "location": snapshot.location,
        "version": snapshot.version,
        "time": utc(snapshot.timestamp_ms),
        "tableId": snapshot.metadata.id,
        "files": snapshot.num_files,
        "bytes": snapshot.size_bytes,
        "rows": None if rows is None and snapshot.num_files else (rows or 0) - deleted,
        "deletedRows": deleted,
        "segments": len(segments_of(snapshot.files, table.time_column(snapshot))),
        "partitionColumns": list(snapshot.partition_columns),
        "columns": _columns(snapshot),
        "readerVersion": snapshot.protocol.min_reader,
        "writerVersion": snapshot.protocol.min_writer,
        "featuresInUse": list(features_in_use(snapshot.protocol, snapshot.metadata)),
        "properties": dict(snapshot.configuration),
    }
    if version is None:
        log = _log(table, facts)
        facts |= {"log": log} if log is not None else {}
    if output is Output.TABLE:
        shown = {**facts, "columns": _sql_columns(snapshot)}
        cells = [[name, _cell(name, value)] for name, value in shown.items()]
        print_table(table_of(["fact", "value"], cells))
    else:
        print_data(facts, output)
    return Exit.OK


def _log(table: Target, facts: dict[str, Any]) -> dict[str, Any] | None:
    """The log of a merge-on-read table, as in the status of a LakeTable; None without one."""
    from tandem.operations.adopt import read_log_status
    from tandem.operations.model import Table
    from tandem.operations.ports import SystemClock
    from tandem.spec.status import TableStatus

    opened = table.log()
    status = TableStatus(rows=facts["rows"], deleted_rows=facts["deletedRows"])
    found = read_log_status(
        Table(opened.store, opened, table.location),
        table.table,
        status,
        SystemClock().now_ms(),
    )
    return found.manifest() if found is not None else None


def _columns(snapshot: Snapshot) -> dict[str, str]:
    """Column → the name of its type in Delta; nested types as JSON."""
    fields = json.loads(snapshot.metadata.schema_string)["fields"]
    return {
        field["name"]: field["type"]
        if isinstance(field["type"], str)
        else json.dumps(field["type"], separators=(",", ":"))
        for field in fields
    }


def _sql_columns(snapshot: Snapshot) -> dict[str, str]:
    """Column → its type as SQL writes it: `BIGINT NOT NULL`."""
    return {
        field["name"]: _sql_type(field["type"], field.get("metadata") or {})
        + ("" if field.get("nullable", True) else " NOT NULL")
        for field in json.loads(snapshot.metadata.schema_string)["fields"]
    }


def _sql_type(type_: Any, metadata: dict[str, Any] | None = None) -> str:
    """`ARRAY<STRUCT<a: BIGINT>>`; a type that is unknown by its own name."""
    from tandem.statements.types import type_name

    if bounded := (metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING"):
        return str(bounded).upper()
    if isinstance(type_, str):
        return type_name(type_)
    match type_.get("type"):
        case "struct":
            inner = (f"{part['name']}: {_sql_type(part['type'])}" for part in type_["fields"])
            return f"STRUCT<{', '.join(inner)}>"
        case "array":
            return f"ARRAY<{_sql_type(type_['elementType'])}>"
        case "map":
            return f"MAP<{_sql_type(type_['keyType'])}, {_sql_type(type_['valueType'])}>"
        case other:
            return str(other).upper()


def _cell(name: str, value: Any) -> str:
    if name == "bytes":
        return str(ByteSize(value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item}" for key, item in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


@on_table
def locks(table: Target, *, output: OutputOption = Output.TABLE) -> Exit:
    """List the locks on a table. Without a cluster they exist in the running process only."""
    table.log().latest_version()
    if output is Output.TABLE:
        say("No locks: without a cluster they exist in the process that runs the operations only.")
    else:
        print_data([], output)
    return Exit.OK


# `tandem clean`: remove files that are no longer needed, or list them with `--dry-run`.
#
# Which files are removed, and when, is decided in `tandem.planning.cleaning` (docs/cleaning.md).


_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


@on_table
def clean(
    target: Target,
    *,
    output: OutputOption = Output.TABLE,
    dry_run: bool = option(False, "Only list what would be removed."),
) -> Exit:
    """Remove files that are no longer needed.

    docs/cleaning.md says which they are, and when they go.
    """
    from tandem.operations.clean import CleaningOptions, rules_for
    from tandem.operations.clean_log import clean_with_log
    from tandem.operations.model import Table

    log = target.log()
    display = target.table.id if target.table is not None else target.location
    table = Table(log.store, log, display, target.table)
    retention = target.table.spec.retention if target.table is not None else None
    rules = rules_for(log.snapshot().configuration, retention)
    cleaned = clean_with_log(table, rules, options=CleaningOptions(dry_run=dry_run))
    if output is Output.TABLE:
        _print_cleaned(cleaned, rules, dry_run=dry_run)
    else:
        print_data(
            [
                {
                    "path": each.file.path,
                    "bytes": each.file.size,
                    "reason": each.why.name.title().replace("_", ""),
                    "message": each.why.value,
                    **({"operation": each.file.operation_id} if each.file.operation_id else {}),
                }
                for each in cleaned.garbage
            ],
            output,
        )
    return say_what_else(cleaned, dry_run=dry_run)


def say_what_else(cleaned: CleaningResult, *, dry_run: bool) -> Exit:
    """What a cleaning did beside removing files, on standard error; and how it ended."""
    verb = "would be" if dry_run else "was"
    for operation_id, attempt in cleaned.abandoned:
        attempt_of = f"Attempt {attempt} of operation {operation_id}"
        say(f"{attempt_of} {verb} abandoned: no process works on it.")
    for session, upload in cleaned.rolled_back:
        say(f"Upload {upload} of log writer {session} {verb} rolled back: it was never committed.")
    if cleaned.problem:
        say(f"The log of blocks {'cannot be' if dry_run else 'was not'} cleaned: {cleaned.problem}")
        return Exit.FAILED
    return Exit.OK


def _print_cleaned(cleaned: CleaningResult, rules: CleaningRules, *, dry_run: bool) -> None:
    from tandem.planning.cleaning import RemovalReason

    if not cleaned.garbage:
        kept = f"{_duration(rules.files_ms)} after a commit removed them" if rules.files_ms else ""
        why = f" Files that older versions refer to are kept until {kept}." if kept else ""
        say(f"Nothing to remove.{why}")
        return
    cells = [
        [each.file.path, each.why.value, ByteSize(each.file.size)]
        for each in cleaned.garbage
        if each.why is not RemovalReason.ARCHIVED
    ]
    archived = [each.file for each in cleaned.garbage if each.why is RemovalReason.ARCHIVED]
    if archived:
        # A log has a version for each instant: not a line for each.
        what = f"{posixpath.dirname(archived[0].path)} ({counted(len(archived), 'file')})"
        size = ByteSize(sum(file.size for file in archived))
        cells.append([what, RemovalReason.ARCHIVED.value, size])
    verb = "would remove" if dry_run else "removed"
    print_table(table_of([verb, "why", "size"], cells))
    say(clean_summary(cleaned, dry_run=dry_run))


def clean_summary(cleaned: CleaningResult, *, dry_run: bool) -> str:
    """`Removed 3 files, 1.2 MiB: 3 …`"""
    from tandem.storage.paths import LOG_FOLDER

    verb = "would remove" if dry_run else "removed"
    counts = Counter(each.why.value for each in cleaned.garbage)
    reasons = ", ".join(f"{count} {why}" for why, count in counts.items())
    of_log = sum(each.file.path.startswith(f"{LOG_FOLDER}/") for each in cleaned.garbage)
    return (
        f"{verb.capitalize()} {counted(len(cleaned.garbage), 'file')}, {human_bytes(cleaned.size)}"
        f"{f', {of_log} in the log of blocks' if of_log else ''}"
        f"{': ' if reasons else ''}{reasons}."
    )


def _duration(milliseconds: int) -> str:
    """`7 days`, `90 minutes`: in the largest unit that divides it evenly."""
    for size, name in _UNITS:
        if milliseconds >= size and milliseconds % size == 0:
            return counted(milliseconds // size, name)
    return f"{milliseconds:,} ms"


# `tandem log`: the log of a merge-on-read table.


@log_app.command("show", short_help="Show the live blocks of a log.")
@on_table
def log_show(table: Target, *, output: OutputOption = Output.TABLE) -> Exit:
    """Show the live blocks of a table's log: instants, sizes, deletes, merged, pending or not."""
    from tandem.mergelog.log_table import MergeLog
    from tandem.mergelog.versions import in_order
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
    from tandem.operations import attempt_files, garbage

    unfinished = garbage.unfinished(base.store)
    if not unfinished:
        return {}
    found: dict[str, str] = {}
    for pin in garbage.uncommitted(unfinished, base.snapshot()):
        reads = garbage.reads_of_log(base.store, pin)
        if reads is not None:
            identity = attempt_files.identity(pin.operation_id)
            known = attempt_files.load(base.store, identity, attempt_files.OperationRecord)
            name = f"{known.kind}/{known.name}" if known else pin.operation_id
            found |= dict.fromkeys(reads.blocks, name)
    return found


@log_app.command("resolve", short_help="Keep or discard records that are not merged.")
@on_table
def log_resolve(
    table: Target,
    *,
    keep: bool = option(..., "Whether the unmerged records are still valid.", "--keep/--discard"),
) -> Exit:
    """Decide about unmerged records after the base table was replaced, or give up (`--discard`)
    those whose blocks are gone."""
    from tandem.mergelog.log_table import MergeLog
    from tandem.mergelog.upkeep import resolve
    from tandem.text import counted

    log = MergeLog(table.log())
    found = resolve(log, keep=keep, now_ms=lambda: time.time_ns() // 1_000_000)
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
