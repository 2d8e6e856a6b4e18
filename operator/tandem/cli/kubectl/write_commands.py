"""`kubectl tandem retry`, `suspend`, `resume` and `wait`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tandem.cli.errors import Exit, say
from tandem.cli.kubectl import access as access_
from tandem.cli.kubectl import names
from tandem.cli.kubectl.access import Access
from tandem.cli.kubectl.flags import Flags
from tandem.cli.kubectl.output.overview import condition_message, reason_of
from tandem.cli.kubectl.output.render import plain
from tandem.cli.kubectl.output.result_line import result_line
from tandem.cli.kubectl.read_commands import now_ms
from tandem.errors import InvalidSpec
from tandem.json_types import Json
from tandem.kube.client.api import ResourcePath
from tandem.kube.client.resources import TABLE_KIND, is_active, path, spec_of, status_of
from tandem.remedies import remedy
from tandem.spec.labels import RETRY_ANNOTATION
from tandem.spec.status import ENDED, Phase

_POLL_S = 0.5
_ASKED_S = 10.0


def retry(flags: Flags, text: str, *, wait: bool, timeout_s: float | None) -> Exit:
    """Request one more run of a failed operation. Raises: InvalidSpec if it did not fail."""
    kind, name = names.resource(text, tables=False)

    async def work(access: Access) -> Exit:
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

    return access_.run(flags, work)


def suspend(flags: Flags, text: str, *, wanted: bool) -> Exit:
    """Suspend or resume an operation. Raises: InvalidSpec if it has ended, or is a LakeTable."""
    kind, name = names.resource(text)
    if kind == TABLE_KIND:
        raise InvalidSpec(
            "automatic compaction cannot be suspended",
            resource=text,
            remedy="Suspend its compactions one by one, or remove spec.compaction: running ones "
            "continue, and no new ones start",
        )

    async def work(access: Access) -> Exit:
        where = path(kind, access.namespace, name)
        found = await access.get(where)
        phase = status_of(found).get("phase")
        if not is_active(found):
            raise InvalidSpec(
                f"it has ended, and cannot be {'suspended' if wanted else 'resumed'}",
                resource=f"{kind}/{name}",
                field="status.phase",
                found=str(phase),
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

    return access_.run(flags, work)


def _is_at_work(found: Mapping[str, Any]) -> bool:
    phase = status_of(found).get("phase")
    return phase not in ENDED and phase != Phase.SUSPENDED


def wait(flags: Flags, text: str, *, timeout_s: float | None) -> Exit:
    """Wait until the operation has ended: `OK` on success, `FAILED` if it failed or is not over in
    time."""
    kind, name = names.resource(text, tables=False)

    async def work(access: Access) -> Exit:
        return await _await_end(access, path(kind, access.namespace, name), timeout_s)

    return access_.run(flags, work)


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
    return f"{line}, {message.rpartition(', ')[0] or message}" if message else line


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
