"""An event loop in a thread of the test's process, for the length of a block."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

LIMIT_S = 60.0
_CLOSING_S = 5.0
_POLL_S = 0.01
Main = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, object]]


@contextmanager
def loop_thread(
    name: str, main: Main, limit_s: float = LIMIT_S
) -> Iterator[asyncio.AbstractEventLoop]:
    """Run `main(stop, ready)` until the block ends; the block begins when `ready` is set.

    Raises: what `main` raises; AssertionError if it is not ready, or does not end, in time.
    """
    is_ready = threading.Event()
    errors: list[BaseException] = []
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    selector = selectors.DefaultSelector()

    async def body() -> None:
        stop, ready = asyncio.Event(), asyncio.Event()
        running.append((asyncio.get_running_loop(), stop))

        async def pass_on() -> None:
            await ready.wait()
            is_ready.set()

        passing_on = asyncio.create_task(pass_on())
        try:
            await main(stop, ready)
        finally:
            passing_on.cancel()
            await _connections_closed(selector)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
                runner.run(body())
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            errors.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        assert is_ready.wait(limit_s), f"{name} is not ready"
        if errors:
            raise errors[0]
        yield running[0][0]
    finally:
        loop, stop = running[0]
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(limit_s)
    assert not thread.is_alive(), f"{name} does not end"
    if errors:
        raise errors[0]


async def _connections_closed(selector: selectors.BaseSelector) -> None:
    """Until only the loop's own socket is registered: closing a session starts the end of TLS on
    its connections, and a loop that ends before them leaves them open."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CLOSING_S
    while len(selector.get_map()) > 1 and loop.time() < deadline:  # noqa: ASYNC110 - no event
        await asyncio.sleep(_POLL_S)
