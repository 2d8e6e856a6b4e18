"""An event loop in a thread of the test's process, for the length of a block."""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

LIMIT_S = 120.0
_CLOSING_S = 5.0
Main = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, object]]


class _Connections(selectors.DefaultSelector):
    """The sockets of a loop. `closed` is set while only the loop's own one is open."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: Any = None
    ) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        self._note()
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._note()
        return key

    def _note(self) -> None:
        if len(self.get_map()) > 1:
            self.closed.clear()
        else:
            self.closed.set()


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

    selector = _Connections()

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
            # Closing a session starts the end of TLS on its connections. One that stays open for
            # longer is reported by asyncio itself, as a ResourceWarning.
            with suppress(TimeoutError):
                await asyncio.wait_for(selector.closed.wait(), _CLOSING_S)

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
