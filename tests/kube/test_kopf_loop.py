"""What becomes of an operator whose kopf does not end, or ends by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from kube.root_tasks import Deaf, Run, endless, failing
from tandem.kube import handlers, kopf_loop
from tandem.kube.client.api import Forbidden
from tandem.kube.kopf_loop import KopfPhase
from tandem.kube.runtime.context import OperatorSettings

LIMIT_S = 120.0
T = TypeVar("T")

HANGS = textwrap.dedent("""
    import asyncio
    import kopf
    from kube.root_tasks import Deaf, Run
    from tandem.kube import handlers, kopf_loop

    async def main():
        run = Run(Deaf())
        kopf.spawn_tasks = run.spawn_tasks
        task = asyncio.create_task(run.run_kopf())
        await run.working.wait()
        print("ready", flush=True)
        run.stop.set()
        await task

    kopf_loop._END_S = 0.1
    asyncio.run(main())
""")


def test_a_process_ends_although_kopf_hangs_at_shutdown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("ready\n")
    assert "kopf does not end" in done.stdout


class ClientError(Exception):
    """A response of the API server, as far as it differs here (`test_kopf_internals.py`)."""

    def __init__(self, status: int) -> None:
        super().__init__("refused")
        self.status = status


def limited(work: Coroutine[Any, Any, T]) -> T:
    async def run() -> T:
        return await asyncio.wait_for(work, LIMIT_S)

    return asyncio.run(run())


@pytest.mark.parametrize("of_a_watch", [True, False])
def test_a_kopf_that_hangs_after_it_ended_by_itself_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, *, of_a_watch: bool
) -> None:
    """Also if it ended with a watch that was never seen among its tasks, since it died at once.
    Meanwhile the process is neither alive nor ready for its probes."""

    async def scene() -> None:
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(os, "_exit", exited.set_result)
        deaf, fails = Deaf(), failing(ClientError(410))
        run = Run(fails, deaf) if of_a_watch else Run(deaf, fails)
        running = asyncio.create_task(run.run(monkeypatch))
        try:
            assert await exited == 1
            assert not running.done()
            assert (run.state.is_alive, run.state.is_ready) == (False, False)
        finally:
            deaf.end.set()
        assert await running

    monkeypatch.setattr(kopf_loop, "_END_S", 0.1)
    limited(scene())


@pytest.mark.parametrize(
    ("status", "of_a_watch", "goes_on"),
    [(410, True, True), (404, True, True), (410, False, True), (404, False, False)],
)
def test_a_watch_that_dies_at_once_is_restarted(
    monkeypatch: pytest.MonkeyPatch, status: int, *, of_a_watch: bool, goes_on: bool
) -> None:
    """Before it was seen among kopf's tasks. Another root task of kopf may watch, too: only 410
    tells that it did. A failure that no restart repairs ends the process."""

    async def scene() -> KopfPhase:
        fails = failing(ClientError(status))
        run = Run(fails) if of_a_watch else Run(other=fails)
        assert await run.run(monkeypatch)
        assert (run.state.is_alive, run.state.is_ready) == (True, False)
        return run.state.phase

    monkeypatch.setattr(kopf_loop, "_LOOK_S", 0.01)
    if goes_on:
        assert limited(scene()) is KopfPhase.RESTARTS
    else:
        with pytest.raises(ClientError):
            limited(scene())


@pytest.mark.parametrize("namespaces", [(), ("team-*",)])
def test_a_watch_that_kopf_cancels_is_restarted_unless_its_namespace_may_be_gone(
    monkeypatch: pytest.MonkeyPatch, namespaces: tuple[str, ...]
) -> None:
    """kopf goes on without it."""
    watches: set[asyncio.Task[None]] = set()

    async def scene() -> bool:
        async def starter() -> None:
            watch = asyncio.create_task(endless())
            watches.add(watch)
            await asyncio.sleep(0.1)
            watch.cancel()
            await asyncio.wait([watch])
            await asyncio.sleep(0.1)
            if namespaces:
                run.stop.set()
            await endless()

        run = Run(starter, namespaces=namespaces)
        return await run.run(monkeypatch)

    monkeypatch.setattr(kopf_loop, "watch_tasks", watches.copy)
    monkeypatch.setattr(kopf_loop, "_LOOK_S", 0.01)
    assert limited(scene()) is not bool(namespaces)


def test_it_is_alive_and_ready_while_kopf_works(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        run = Run()
        assert (run.state.is_alive, run.state.is_ready) == (True, True), "a standby"
        running = asyncio.create_task(run.run(monkeypatch))
        await run.working.wait()
        phases = [run.state.phase]
        assert (run.state.is_alive, run.state.is_ready) == (True, True)
        run.stop.set()
        assert not await running
        phases.append(run.state.phase)
        assert phases == [KopfPhase.WORKS, KopfPhase.ENDS]

    limited(scene())


def test_a_task_of_ours_that_fails_at_the_end_is_not_taken_for_one_of_kopf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kopf raises what its tasks end with that it meets on its way out."""

    async def scene() -> bool:
        run = Run()

        async def refused() -> None:
            await run.stop.wait()
            raise Forbidden(403, "Forbidden", "the role is gone")

        ours = asyncio.create_task(refused())
        asyncio.get_running_loop().call_later(0.05, run.stop.set)
        again = await run.run(monkeypatch)
        with pytest.raises(Forbidden):
            await ours
        return again

    assert not limited(scene())


def test_what_a_task_of_kopf_ends_with_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = failing(Forbidden(403, "Forbidden", "the role is gone"))
    with pytest.raises(Forbidden):
        limited(Run(other=refused).run(monkeypatch))


def test_kopf_kills_no_process_ten_minutes_after_a_restart() -> None:
    """As it does by default, where it has ended by itself."""
    assert handlers.kopf_settings(OperatorSettings(), None).process.ultimate_exiting_timeout is None
