"""/healthz, /readyz and /metrics, served by the loop that does the work, so that they fail when the
loop hangs. The first two say the same facts, with 503 if the process is not alive or not ready."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from tandem.kube.metrics.collectors import CONTENT_TYPE

Facts = Callable[[], Mapping[str, object]]
Exposition = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def serve(
    address: str,
    facts: Facts,
    exposition: Exposition,
    *,
    is_alive: Callable[[], bool],
    is_ready: Callable[[], bool],
) -> AsyncIterator[str]:
    """Serve on `host:port` (port 0: any free one), and yield the address. "" serves nothing."""
    if not address:
        yield ""
        return

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response(dict(facts()), status=200 if is_alive() else 503)

    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response(dict(facts()), status=200 if is_ready() else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await exposition(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    host, _, port = address.rpartition(":")
    site = web.TCPSite(runner, host or "0.0.0.0", int(port))
    await site.start()
    try:
        yield f"{runner.addresses[0][0]}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
