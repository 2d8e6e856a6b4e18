"""What becomes of an operator whose kopf does not end, or ends by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from typing import Any

import kopf
import pytest

from tandem.kube import kopf_loop
from tandem.kube.client.api import Forbidden
from tandem.kube.runtime.settings import OperatorSettings

HANGS = textwrap.dedent("""
    import asyncio
    import kopf
    from tandem.kube import kopf_loop
    from tandem.kube.runtime.settings import OperatorSettings

    class Idle:
        async def hold(self): await asyncio.Event().wait()
        run = hold

    async def hanging(*, ready_flag, **_):
        ready_flag.set()
        await asyncio.Event().wait()

    async def main():
        stop, ready = asyncio.Event(), asyncio.Event()
        work = kopf_loop.run_kopf(OperatorSettings(), None, Idle(), Idle(), stop, ready)
        task = asyncio.create_task(work)
        await ready.wait()
        print("ready", flush=True)
        stop.set()
        await task

    kopf.operator = hanging
    kopf_loop._END_S = 0.1
    asyncio.run(main())
""")


def test_a_process_ends_although_kopf_hangs_at_shutdown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("ready\n")
    assert "kopf does not end" in done.stdout


class ClientError(Exception):
    """An answer of the API server, as far as it differs here (`test_kopf_internals.py`)."""

    def __init__(self, status: int) -> None:
        super().__init__("refused")
        self.status = status


class Idle:
    """Leads for ever, and has nothing to tidy."""

    async def hold(self) -> None:
        await asyncio.Event().wait()

    run = hold


@pytest.mark.parametrize(("status", "goes_on"), [(410, True), (403, False)])
def test_a_watch_that_dies_at_once_is_restarted(
    monkeypatch: pytest.MonkeyPatch, status: int, *, goes_on: bool
) -> None:
    """Before it was seen among kopf's tasks. A failure that no restart repairs ends the process."""

    async def dying(**_: Any) -> None:
        raise ClientError(status)

    async def working() -> bool:
        events = asyncio.Event(), asyncio.Event()
        idle: Any = Idle()
        return await kopf_loop.run_kopf(
            OperatorSettings(), kopf.OperatorRegistry(), idle, idle, *events
        )

    monkeypatch.setattr(kopf, "operator", dying)
    monkeypatch.setattr(kopf_loop, "_LOOK_S", 0.0)
    if goes_on:
        assert asyncio.run(working())
    else:
        with pytest.raises(ClientError):
            asyncio.run(working())


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_call_that_is_refused_during_shutdown_is_ignored(
    monkeypatch: pytest.MonkeyPatch, *, is_stopped: bool
) -> None:
    """kopf raises what tasks end with that it meets on its way out, ours among them."""
    stop, ready = asyncio.Event(), asyncio.Event()

    async def refused(*, stop_flag: asyncio.Event, **_: Any) -> None:
        if is_stopped:
            stop.set()
            await stop_flag.wait()
        raise Forbidden(403, "Forbidden", "the role is gone")

    monkeypatch.setattr(kopf, "operator", refused)
    idle: Any = Idle()
    working = kopf_loop.run_kopf(
        OperatorSettings(), kopf.OperatorRegistry(), idle, idle, stop, ready
    )
    if is_stopped:
        assert not asyncio.run(working)
    else:
        with pytest.raises(Forbidden):
            asyncio.run(working)
