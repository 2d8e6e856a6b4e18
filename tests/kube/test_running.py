"""A process whose kopf does not end, ends: nobody waits for an operator that hangs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

HANGS = textwrap.dedent("""
    import asyncio
    import kopf
    from tandem.kube import running
    from tandem.kube.settings import OperatorSettings

    class Idle:
        async def hold(self): await asyncio.Event().wait()
        run = hold

    async def hanging(*, ready_flag, **_):
        ready_flag.set()
        await asyncio.Event().wait()

    async def main():
        stop, ready = asyncio.Event(), asyncio.Event()
        work = running.work(OperatorSettings(), None, Idle(), Idle(), stop, ready)
        task = asyncio.create_task(work)
        await ready.wait()
        print("ready", flush=True)
        stop.set()
        await task

    kopf.operator = hanging
    running._END_S = 0.1
    asyncio.run(main())
""")


def test_a_process_ends_although_kopf_hangs_in_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("ready\n")
    assert "kopf does not end" in done.stdout
