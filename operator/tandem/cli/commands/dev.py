"""`tandem dev`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from tandem.cli.errors import Exit, say
from tandem.kube.dev.controller import DevSettings, run_dev


def dev(kubeconfig: Path | None, namespaces: Sequence[str], max_jobs: int) -> Exit:
    """Serve until SIGINT or SIGTERM; all jobs end then. Raises what `run_dev` raises."""
    settings = DevSettings(namespaces=tuple(namespaces), kubeconfig=kubeconfig, max_jobs=max_jobs)
    asyncio.run(_serve(settings))
    return Exit.OK


async def _serve(settings: DevSettings) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    where = ", ".join(settings.namespaces) or "all namespaces"

    async def greet() -> None:
        await ready.wait()
        say(f"Running Tandem's SparkApplications in {where}. Ctrl-C stops it and its jobs.")

    greeting = asyncio.create_task(greet())
    try:
        await run_dev(settings, stop=stop, ready=ready)
    finally:
        greeting.cancel()
