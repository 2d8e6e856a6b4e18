"""The commands of `kubectl tandem` that only read (`status`, `locks`, `history`, `version`), and
those that change a resource (`retry`, `suspend`, `resume`) or wait for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group

import tandem
from tandem.cli.errors import Exit, say
from tandem.cli.kubectl import access as access_
from tandem.cli.kubectl import render
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.overview import (
    condition_message,
    id_of,
    namespace_of,
    overview,
    reason_of,
    table_of,
    without_duration,
)
from tandem.cli.kubectl.render import plain, result_line
from tandem.cli.output import Output, print_data, print_table
from tandem.cli.output import table_of as table
from tandem.errors import AccessDenied, InvalidSpec, TandemError
from tandem.json_types import Json
from tandem.kube.client.api import ResourcePath
from tandem.kube.client.resources import (
    TABLE_KIND,
    is_active,
    is_plan_copy,
    path,
    spec_of,
    status_of,
)
from tandem.remedies import remedy
from tandem.spec.common import GROUP, RETRY_ANNOTATION
from tandem.spec.status import ENDED, Phase, unix_ms

_WATCH_S = 2.0


def now_ms() -> int:
    return int(time.time() * 1000)


async def status(access: Access, name: str | None, *, output: Output, watch: bool) -> Exit:
    """Print the status once or, with `watch`, after each change until Ctrl-C."""
    if watch:
        await _watch(access, name, output)
    found = await _overview(access, name)
    if output is Output.TABLE:
        print_table(_rendered(access, found))
    else:
        print_data(found, output)
    return Exit.OK


def _rendered(access: Access, found: Json) -> Group:
    return render.status(found, now_ms=now_ms(), namespaces=access.all_namespaces)


async def _overview(access: Access, name: str | None) -> Json:
    tables, operations, operator, servers = await asyncio.gather(
        access_.tables(access, name),
        access_.operations(access, name),
        access_.operator(access),
        access_.index_servers(access),
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
                live.update(_rendered(access, found), refresh=True)
                await asyncio.sleep(_WATCH_S)
    last: Json = {}
    while True:
        found = await _overview(access, name)
        if found != last:
            last = found
            if output is Output.TABLE:
                print_table(_rendered(access, found))
            elif output is Output.JSON:
                # One line per document, so that programs can read them one by one.
                sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
                sys.stdout.flush()
            else:
                sys.stdout.write("---\n")
                print_data(found, output)
        await asyncio.sleep(_WATCH_S)


async def locks(access: Access, name: str | None, *, output: Output) -> Exit:
    found = locks_of(await access_.tables(access, name))
    if output is not Output.TABLE:
        print_data(found, output)
    elif found:
        print_table(render.locks(found, now_ms=now_ms(), namespaces=access.all_namespaces))
    else:
        print_table(table(["locks"], [["No operation holds a lock or waits for one."]]))
    return Exit.OK


def locks_of(tables: Sequence[Mapping[str, Any]]) -> list[Json]:
    """The locks and waiters of LakeTables, each with its table. Pure."""
    return [
        {"namespace": namespace_of(found), "table": found["metadata"]["name"], **lock}
        for found in tables
        for lock in status_of(found).get("locks") or ()
    ]


async def history(access: Access, name: str, *, output: Output, limit: int) -> Exit:
    (found, *_), operations, events = await asyncio.gather(
        access_.tables(access, name),
        access_.operations(access, name, ended_well=True),
        _events(access),
    )
    rows = history_of(found, operations, events)[:limit]
    if output is Output.TABLE:
        print_table(render.history(rows))
    else:
        print_data(rows, output)
    return Exit.OK


async def _events(access: Access) -> list[Json]:
    """The events; none if they may not be read, since the resources show what has ended."""
    try:
        return await access_.events(access)
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
    rows.sort(key=lambda row: unix_ms(row.get("time")) or 0, reverse=True)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _row_of_end(operation: Mapping[str, Any]) -> Json:
    from tandem.cli.kubectl.render import result_line

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


async def version(access: Access, *, output: Output) -> Exit:
    """Print the versions of the plugin, the operator and the kinds, and what could not be read."""
    found: Json = {"plugin": tandem.__version__}
    for name, url in (("kubernetes", "/version"), ("kinds", f"/apis/{GROUP}")):
        try:
            answer = await access.page(url)
        except TandemError as error:
            found[name] = error.message
            continue
        found[name] = answer.get("gitVersion") or [v["version"] for v in answer["versions"]]
    found["operator"] = await access_.operator(access)
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
    print_table(table(["part", "version"], rows))
    return Exit.OK


# `kubectl tandem retry`, `suspend`, `resume` and `wait`.


_POLL_S = 0.5
_ASKED_S = 10.0


async def retry(
    access: Access, resource: tuple[str, str], *, wait: bool, timeout_s: float | None
) -> Exit:
    """Request one more run of a failed operation. Raises: InvalidSpec if it did not fail."""
    kind, name = resource
    where = path(kind, access.namespace, name)
    found = await access.get(where)
    phase = status_of(found).get("phase", "Pending")
    if phase != Phase.FAILED:
        raise InvalidSpec(
            "only a failed operation can be retried",
            resource=f"{kind}/{name}",
            field="status.phase",
            found=str(phase),
            expected=str(Phase.FAILED),
        )
    await access.patch(where, {"metadata": {"annotations": {RETRY_ANNOTATION: str(now_ms())}}})
    say(f"{kind}/{name}: another run is requested")
    return await _await_end(access, where, timeout_s) if wait else Exit.OK


async def suspend(access: Access, resource: tuple[str, str], *, wanted: bool) -> Exit:
    """Suspend or resume an operation. Raises: InvalidSpec if it has ended, or is a LakeTable."""
    kind, name = resource
    if kind == TABLE_KIND:
        raise InvalidSpec(
            "automatic compaction cannot be suspended",
            resource=f"{kind}/{name}",
            remedy="Suspend its compactions one by one, or remove spec.compaction: running ones "
            "continue, and no new ones start",
        )
    where = path(kind, access.namespace, name)
    found = await access.get(where)
    if not is_active(found):
        raise InvalidSpec(
            f"it has ended, and cannot be {'suspended' if wanted else 'resumed'}",
            resource=f"{kind}/{name}",
            field="status.phase",
            found=str(status_of(found).get("phase")),
        )
    if bool(spec_of(found).get("suspend", False)) is wanted:
        say(f"{kind}/{name}: {'suspended' if wanted else 'not suspended'} already")
        return Exit.OK
    await access.patch(where, {"spec": {"suspend": wanted}})
    if wanted and not await _until(access, where, lambda o: not _is_at_work(o), _ASKED_S):
        say(f"{kind}/{name}: will be suspended; its job is being stopped")
    else:
        say(f"{kind}/{name}: {'suspended' if wanted else 'resumed'}")
    return Exit.OK


def _is_at_work(found: Mapping[str, Any]) -> bool:
    phase = status_of(found).get("phase")
    return phase not in ENDED and phase != Phase.SUSPENDED


async def wait(access: Access, resource: tuple[str, str], *, timeout_s: float | None) -> Exit:
    """Wait until the operation has ended: `OK` on success, `FAILED` if it failed or is not over in
    time."""
    return await _await_end(access, path(resource[0], access.namespace, resource[1]), timeout_s)


async def _await_end(access: Access, where: ResourcePath, timeout_s: float | None) -> Exit:
    printed: list[str] = []

    def over(found: Mapping[str, Any]) -> bool:
        line = _line(found)
        if printed[-1:] != [line]:
            printed.append(line)
            say(line)
        return not is_active(found)

    found = await _until(access, where, over, timeout_s)
    if found is None:
        say("It has not ended in time; it continues.")
        return Exit.FAILED
    if status_of(found).get("phase") == Phase.FAILED:
        say(f"    remedy:   {plain(remedy(reason_of(found)))}")
        return Exit.FAILED
    return Exit.OK


def _line(found: Mapping[str, Any]) -> str:
    """`TableCompaction/nightly: Running 12/20 files`; the time of a wait is left out, since it
    would make a new line every time."""
    status = status_of(found)
    phase = str(status.get("phase") or "Pending")
    line = f"{found['kind']}/{found['metadata']['name']}: {phase}"
    if not is_active(found):
        reason = reason_of(found)
        line += f" ({reason})" if reason != "Committed" else ""
        return f"{line}, {result_line(found)}" if result_line(found) else line
    if phase == Phase.RUNNING:
        progress = status.get("progress") or {}
        return f"{line} {progress.get('summary', '')}".rstrip().partition(",")[0]
    message = condition_message(found)
    return f"{line}, {without_duration(message)}" if message else line


async def _until(
    access: Access,
    where: ResourcePath,
    test: Callable[[Json], bool],
    timeout_s: float | None,
) -> Json | None:
    """The object as soon as it satisfies the condition; None after the timeout."""
    loop = asyncio.get_running_loop()
    until = None if timeout_s is None else loop.time() + timeout_s
    while True:
        found = await access.get(where)
        if test(found):
            return found
        if until is not None and loop.time() > until:
            return None
        await asyncio.sleep(_POLL_S)
