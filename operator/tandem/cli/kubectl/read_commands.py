"""`kubectl tandem status`, `locks`, `history` and `version`: commands that only read."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tandem
from tandem.cli.errors import Exit, say
from tandem.cli.kubectl import access as access_
from tandem.cli.kubectl import queries
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.flags import Flags
from tandem.cli.kubectl.output import render
from tandem.cli.kubectl.output.overview import (
    id_of,
    milliseconds,
    namespace_of,
    overview,
    reason_of,
    table_of,
)
from tandem.cli.kubectl.output.render import shown
from tandem.cli.output import Output, print_data
from tandem.cli.output import table_of as table
from tandem.errors import AccessDenied, TandemError
from tandem.json_types import Json
from tandem.kube.client.resources import is_plan_copy, status_of
from tandem.spec.common import GROUP
from tandem.spec.status import ENDED

_WATCH_S = 2.0


def now_ms() -> int:
    return int(time.time() * 1000)


def status(flags: Flags, name: str | None, *, output: Output, watch: bool) -> Exit:
    """Print the status once or, with `watch`, after each change until Ctrl-C."""

    async def work(access: Access) -> Exit:
        if watch:
            await _watch(access, name, output)
        found = await _overview(access, name)
        if output is Output.TABLE:
            shown(render.status(found, now_ms=now_ms(), namespaces=access.all_namespaces))
        else:
            print_data(found, output)
        return Exit.OK

    return access_.run(flags, work)


async def _overview(access: Access, name: str | None) -> Json:
    tables, operations, operator, servers = await asyncio.gather(
        queries.tables(access, name),
        queries.operations(access, name),
        queries.operator(access),
        queries.index_servers(access),
    )
    found = overview(tables, operations, servers, now_ms=now_ms(), problems_of=name or "")
    return {"operator": operator, **found}


async def _watch(access: Access, name: str | None, output: Output) -> None:
    """Never returns."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout)
    if output is Output.TABLE and console.is_terminal:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                found = await _overview(access, name)
                live.update(
                    render.status(found, now_ms=now_ms(), namespaces=access.all_namespaces),
                    refresh=True,
                )
                await asyncio.sleep(_WATCH_S)
    last: Json = {}
    while True:
        found = await _overview(access, name)
        if found != last:
            last = found
            if output is Output.TABLE:
                shown(render.status(found, now_ms=now_ms(), namespaces=access.all_namespaces))
            elif output is Output.JSON:
                # One line per document, so that programs can read them one by one.
                sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
                sys.stdout.flush()
            else:
                sys.stdout.write("---\n")
                print_data(found, output)
        await asyncio.sleep(_WATCH_S)


def locks(flags: Flags, name: str | None, *, output: Output) -> Exit:
    async def work(access: Access) -> Exit:
        found = locks_of(await queries.tables(access, name))
        if output is not Output.TABLE:
            print_data(found, output)
        elif found:
            shown(render.locks(found, now_ms=now_ms(), namespaces=access.all_namespaces))
        else:
            shown(table(["locks"], [["No operation holds a lock or waits for one."]]))
        return Exit.OK

    return access_.run(flags, work)


def locks_of(tables: Sequence[Mapping[str, Any]]) -> list[Json]:
    """The locks and waiters of LakeTables, each with its table. Pure."""
    return [
        {"namespace": namespace_of(found), "table": found["metadata"]["name"], **lock}
        for found in tables
        for lock in status_of(found).get("locks") or ()
    ]


def history(flags: Flags, name: str, *, output: Output, limit: int) -> Exit:
    async def work(access: Access) -> Exit:
        (found, *_), operations, events = await asyncio.gather(
            queries.tables(access, name),
            queries.operations(access, name, ended_well=True),
            _events(access),
        )
        rows = history_of(found, operations, events)[:limit]
        if output is Output.TABLE:
            shown(render.history(rows))
        else:
            print_data(rows, output)
        return Exit.OK

    return access_.run(flags, work)


async def _events(access: Access) -> list[Json]:
    """The events; none if they may not be read, since the resources show what has ended."""
    try:
        return await queries.events(access)
    except AccessDenied as error:
        say(f"Without events: {error.message}.")
        return []


def history_of(
    table: Mapping[str, Any],
    operations: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
) -> list[Json]:
    """What happened on a table, newest first: ends of operations, and their events. Pure."""
    namespace = namespace_of(table)
    mine = [
        o for o in operations
        if namespace_of(o) == namespace and table_of(o) == table["metadata"]["name"]
        and not is_plan_copy(o)
    ]  # fmt: skip
    rows = [_row_of_end(o) for o in mine if status_of(o).get("phase") in ENDED]
    there = {id_of(o) for o in mine}
    rows += [
        {
            "time": last.get("completionTime"),
            "resource": last.get("name"),
            "what": _what(last.get("phase"), last.get("reason")),
            "version": last.get("version"),
        }
        for last in status_of(table).get("lastOperations") or ()
        if last.get("name") not in there
    ]
    ended = {(row["resource"], row["reason"]) for row in rows if "reason" in row}
    for event in events:
        about = event.get("involvedObject") or {}
        resource = f"{about.get('kind')}/{about.get('name')}"
        known = resource in there or resource == id_of(table)
        if about.get("namespace") != namespace or not known:
            continue
        if (resource, event.get("reason")) in ended:
            continue  # its end is listed already
        rows.append(
            {
                "time": event.get("lastTimestamp") or event.get("eventTime")
                or event["metadata"].get("creationTimestamp"),
                "resource": resource,
                "what": event.get("reason"),
                "did": event.get("message"),
            }
        )  # fmt: skip
    rows.sort(key=lambda row: milliseconds(row.get("time")) or 0, reverse=True)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _row_of_end(operation: Mapping[str, Any]) -> Json:
    from tandem.cli.kubectl.output.result_line import result_line

    found = status_of(operation)
    reason = reason_of(operation)
    return {
        "time": found.get("completionTime"),
        "resource": id_of(operation),
        "what": _what(found.get("phase"), reason),
        "reason": reason,
        "version": (found.get("result") or {}).get("version"),
        "did": result_line(operation),
    }


def _what(phase: object, reason: object) -> str:
    return f"{phase} ({reason})" if reason and reason not in ("Committed", phase) else str(phase)


def version(flags: Flags, *, output: Output) -> Exit:
    """Print the versions of the plugin, the operator and the kinds, and what could not be read."""

    async def work(access: Access) -> Exit:
        found: Json = {"plugin": tandem.__version__}
        for name, url in (("kubernetes", "/version"), ("kinds", f"/apis/{GROUP}")):
            try:
                answer = await access.page(url)
            except TandemError as error:
                found[name] = error.message
                continue
            found[name] = answer.get("gitVersion") or [v["version"] for v in answer["versions"]]
        found["operator"] = await queries.operator(access)
        if output is not Output.TABLE:
            print_data(found, output)
            return Exit.OK
        kinds = found["kinds"]
        rows = [
            ["kubectl tandem", found["plugin"]],
            ["operator", found["operator"]["summary"]],
            ["kinds", ", ".join(kinds) if isinstance(kinds, list) else kinds],
            ["Kubernetes", found["kubernetes"]],
        ]
        shown(table(["part", "version"], rows))
        return Exit.OK

    return access_.run(flags, work)
