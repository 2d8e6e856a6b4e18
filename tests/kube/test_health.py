"""What probes see of an operator process."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tandem.kube.kopf_loop import KopfPhase, KopfState
from tandem.kube.operator import serve_health


@pytest.mark.parametrize(
    ("phase", "healthz", "readyz"),
    [
        (KopfPhase.WAITS, 200, 200),
        (KopfPhase.WORKS, 200, 200),
        (KopfPhase.ENDS, 503, 503),
        (KopfPhase.RESTARTS, 200, 503),
    ],
)
def test_a_kopf_that_ends_is_not_alive_and_one_that_restarts_is_not_ready(
    phase: KopfPhase, healthz: int, readyz: int
) -> None:
    state = KopfState()
    state.phase = phase

    async def exposition() -> bytes:
        return b""

    async def ask() -> list[tuple[int, object]]:
        serving = serve_health(
            "127.0.0.1:0",
            lambda: {"kopf": state.phase},
            exposition,
            is_alive=lambda: state.is_alive,
            is_ready=lambda: state.is_ready,
        )
        async with serving as address, aiohttp.ClientSession() as session:
            found = []
            for page in ("healthz", "readyz"):
                async with session.get(f"http://{address}/{page}") as answer:
                    found.append((answer.status, await answer.json()))
            return found

    facts = {"kopf": phase.value}
    assert asyncio.run(ask()) == [(healthz, facts), (readyz, facts)]
