"""What commands find as a terminal shows it. Pure: gives what rich prints; colours come only
where rich sees a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tandem.cli.kubectl.overview import condition_message
from tandem.cli.output import table_of
from tandem.json_types import JsonMapping
from tandem.kube.client.resources import status_of
from tandem.operations.status import duration_in_words
from tandem.spec.status import unix_ms
from tandem.text import counted, human_bytes

_BAR = 20
_LOCKED = 4
"""So many segments of a lock are shown; `-o json` has more."""
_HEALTH = {"NotReady": "yellow", "Stalled": "red", "Unseen": "yellow"}
_PHASES = {"Succeeded": "green", "Superseded": "cyan", "Failed": "red"}


def bar(percent: int, width: int = _BAR) -> str:
    """`█████░░░░░`, full at 100 only."""
    done = max(0, min(percent, 100)) * width // 100
    return "█" * done + "░" * (width - done)


def ago(moment: object, now_ms: int) -> str:
    """`40 s`, `3 min`, `2 d`; "" for what is no time."""
    then = unix_ms(moment)
    if then is None:
        return ""
    seconds = max(0, now_ms - then) // 1000
    return f"{seconds // 86_400} d" if seconds >= 2 * 86_400 else duration_in_words(seconds)


def time_text(moment: object) -> str:
    """`2026-11-21 15:45:53`"""
    text = str(moment or "")
    return text.partition(".")[0].removesuffix("Z").replace("T", " ")


def status(found: JsonMapping, *, now_ms: int, namespaces: bool = False) -> Group:
    """Problems first, then a line per table, then what happens on them.

    Args:
        namespaces: tables are of several, and named with theirs.
    """
    blocks: list[RenderableType] = []
    if found.get("operator"):
        blocks += [_operator(found["operator"]), Text("")]
    if found["problems"]:
        blocks += [*_problems(found["problems"], now_ms, namespaces), Text("")]
    tables = found["tables"]
    if tables:
        blocks.append(_tables(tables, namespaces))
    else:
        blocks.append(Text("No LakeTables here."))
    if found.get("indexServers"):
        blocks += [Text(""), _servers(found["indexServers"], namespaces)]
    happens = _happens(tables, now_ms, namespaces)
    blocks += happens
    for lost in found.get("withoutTable", ()):
        name = f"{lost['namespace']}/{lost['operation']}" if namespaces else lost["operation"]
        blocks.append(Text(f"{name} waits: there is no LakeTable {lost['table']} in its namespace"))
    return Group(*blocks)


def _operator(operator: JsonMapping) -> Text:
    text = Text("operator: ", style="bold")
    return text.append(str(operator["summary"]), style="" if operator["ok"] else "yellow")


def _problems(
    problems: Sequence[JsonMapping], now_ms: int, namespaces: bool
) -> list[RenderableType]:
    count = len(problems)
    lines: list[RenderableType] = [
        Text(f"{count} problem{'s' if count > 1 else ''}", style="bold red")
    ]
    for problem in problems:
        head = Text("  ")
        head.append(_named(problem, "resource", namespaces), style="bold")
        if problem.get("table") and not str(problem["resource"]).startswith("LakeTable/"):
            head.append(f" on {problem.get('table')}")
        head.append(f": {problem['reason']}", style="red")
        since = ago(problem.get("since"), now_ms)
        head.append(f", {since}" if since else "")
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row("   ", Text(str(problem.get("message", ""))))
        if problem.get("remedy"):
            grid.add_row("   →", Text(plain(str(problem["remedy"]))))
        lines += [head, grid]
    return lines


def plain(text: str) -> str:
    """Without Markdown's quotes around code."""
    return text.replace("`", "")


def _named(item: JsonMapping, key: str, namespaces: bool) -> str:
    return f"{item['namespace']}/{item[key]}" if namespaces else str(item[key])


def _servers(servers: Sequence[JsonMapping], namespaces: bool) -> Table:
    rows = []
    for server in servers:
        sizes = [
            None if server.get(key) is None else human_bytes(server[key])
            for key in ("bytes", "limitBytes")
        ]
        rows.append(
            [
                _named(server, "name", namespaces),
                server["health"],
                server.get("tables"),
                len(server.get("notServed", ())) or None,
                *sizes,
                server.get("evictions"),
            ]
        )
    names = ["index server", "health", "tables", "not served", "held", "limit", "evictions"]
    return _coloured(table_of(names, rows), servers)


def _coloured(table: Table, items: Sequence[JsonMapping]) -> Table:
    for line, item in zip(table.rows, items, strict=True):
        line.style = _HEALTH.get(item["health"])
    return table


def _tables(tables: Sequence[JsonMapping], namespaces: bool) -> Table:
    rows = []
    for table in tables:
        size = None if table.get("bytes") is None else human_bytes(table["bytes"])
        rows.append(
            [
                _named(table, "name", namespaces),
                table["health"],
                *(table.get(key) for key in ("version", "segments", "files", "smallFiles")),
                size,
                *(table.get(key) for key in ("rows", "deletedRows")),
                len(table["running"]) or None,
                len(table["waiting"]) or None,
            ]
        )
    names = ["table", "health", "version", "segments", "files", "small", "size", "rows", "deleted"]
    return _coloured(table_of([*names, "running", "waiting"], rows), tables)


def _happens(tables: Sequence[JsonMapping], now_ms: int, namespaces: bool) -> list[RenderableType]:
    blocks: list[RenderableType] = []
    for table in tables:
        lines = Table.grid(padding=(0, 2))
        lines.add_column(no_wrap=True)
        lines.add_column(no_wrap=True)
        lines.add_column(overflow="fold")
        for operation in table["running"]:
            lines.add_row("  runs", Text(operation["operation"]), _runs(operation, now_ms))
        for operation in table["waiting"]:
            lines.add_row("  waits", Text(operation["operation"]), _waits(operation, now_ms))
        for lead, text in _next_action(table.get("next") or {}):
            lines.add_row("  next", lead, text)
        log = table.get("log") or {}
        if log:
            lines.add_row("  log", *_log(log, now_ms))
        for lead, text in _next_action(log.get("next") or {}):
            lines.add_row("  next", lead, text)
        for operation in table["last"]:
            lines.add_row("  last", Text(operation["name"]), _ended(operation, now_ms))
        if lines.row_count:
            blocks += [Text(_named(table, "name", namespaces), style="bold"), lines]
    return blocks


def _runs(operation: JsonMapping, now_ms: int) -> Text:
    text = Text()
    if operation.get("percent") is not None:
        text.append(bar(operation["percent"]), style="cyan").append(f" {operation['percent']:>3}% ")
    phase = operation.get("phase", "")
    parts = [
        operation.get("summary") if operation.get("percent") is not None else phase,
        f"attempt {operation['attempt']}" if operation.get("attempt", 0) > 1 else "",
        f"for {ago(operation.get('since'), now_ms)}" if operation.get("since") else "",
    ]
    return text.append(", ".join(part for part in parts if part))


def _waits(operation: JsonMapping, now_ms: int) -> Text:
    message = operation.get("message") or operation["reason"]
    since = ago(operation.get("since"), now_ms)
    text = Text(str(message), style="yellow")
    if since and not str(message).endswith((" s", " min", " h")):
        text.append(f", for {since}")
    return text


def _next_action(action: JsonMapping) -> list[tuple[Text, Text]]:
    if not action:
        return []
    what = Text(str(action.get("what") or "nothing"))
    parts = [
        f"at {time_text(action['nextTime'])} UTC" if action.get("nextTime") else "",
        str(action.get("why", "")),
    ]
    return [(what, Text("; ".join(part for part in parts if part)))]


def _log(log: JsonMapping, now_ms: int) -> tuple[Text, Text]:
    if log.get("problem") and log.get("blocks") is None:
        return Text("cannot be read", style="red"), Text(str(log["problem"]))
    blocks = f"{log.get('blocks')} blocks, {human_bytes(log.get('bytes') or 0)}"
    oldest = log.get("oldestUnmerged")
    parts = [
        f"{log.get('unmergedBlocks')} unmerged for {ago(oldest, now_ms)}"
        if oldest
        else "all merged",
        f"{log.get('smallBlocks')} small",
        f"instant {log.get('newestInstant')}",
        f"merged up to {log['mergedInstant']}" if log.get("mergedInstant") is not None else "",
        f"{log['deadPercent']} % of the table's rows dead" if log.get("deadPercent") else "",
    ]
    text = Text(", ".join(part for part in parts if part))
    if log.get("problem"):
        text.append("\ncannot be merged: ", style="red").append(str(log["problem"]))
    return Text(blocks), text


def _ended(operation: JsonMapping, now_ms: int) -> Text:
    phase = str(operation.get("phase", ""))
    text = Text(phase, style=_PHASES.get(phase, ""))
    reason = operation.get("reason")
    text.append(f" ({reason})" if reason and reason != "Committed" else "")
    if operation.get("version") is not None:
        text.append(f", version {operation['version']}")
    since = ago(operation.get("completionTime"), now_ms)
    return text.append(f", {since} ago" if since else "")


def locks(found: Sequence[JsonMapping], *, now_ms: int, namespaces: bool = False) -> Table:
    """A line per lock and place in the queue."""
    rows = []
    for lock in found:
        segments = list(map(str, lock.get("segments", ())))
        more = len(segments) - _LOCKED + int(lock.get("more") or 0)
        behind = "; ".join(lock.get("behind", ()))
        rows.append(
            [
                _named(lock, "table", namespaces),
                lock["operation"],
                lock.get("mode"),
                lock.get("state"),
                ", ".join(segments[:_LOCKED]) + (f" and {more} more" if more > 0 else ""),
                ago(lock.get("since"), now_ms),
                behind,
            ]
        )
    names = ["table", "operation", "mode", "state", "segments", "for", "behind"]
    return table_of(names, rows)


def history(rows: Sequence[JsonMapping]) -> Table:
    cells = [
        [
            time_text(row.get("time")),
            row.get("resource"),
            row.get("what"),
            row.get("version"),
            str(row.get("did", "")).partition("\n")[0],
        ]
        for row in rows
    ]
    return table_of(["time (UTC)", "resource", "what", "version", "did"], cells)


# What an operation did, in a line. Pure.


def result_line(operation: Mapping[str, Any]) -> str | None:
    """`20 files (1.0 MiB) → 1 (1.0 MiB), 4,971 rows updated, segments 0.1`; of a failure, why."""
    status = status_of(operation)
    result = status.get("result") or {}
    if not result:
        return condition_message(operation) or None
    parts = []
    removed, added = result.get("filesRemoved") or 0, result.get("filesAdded") or 0
    if removed or added:
        what = "files" if result.get("blocksIn") is None else "blocks"
        files = f"{removed} {what} ({human_bytes(result.get('bytesRemoved') or 0)})"
        parts.append(f"{files} → {added} ({human_bytes(result.get('bytesAdded') or 0)})")
    if marked := result.get("filesMarked"):
        parts.append(f"{counted(marked, 'file')} marked")
    rows = result.get("rowsAffected") or {}
    parts += [
        f"{rows[what]:,} rows {what}"
        for what in ("updated", "deleted", "inserted", "upserted")
        if rows.get(what)
    ]
    reconciled = result.get("reconciled") or {}
    met = result.get("summary")
    if isinstance(met, list):
        # The first only counts commits.
        parts += [str(sentence) for sentence in met[1:]]
    elif reconciled.get("deletesRemapped"):  # of an operator before there were sentences
        parts.append(f"{reconciled['deletesRemapped']:,} deletes replayed")
    for what in ("segments", "instants"):
        if names := result.get(what):
            parts.append(f"{what} " + ", ".join(str(name) for name in names[:6]))
    return ", ".join(parts) or condition_message(operation) or None
