"""Messages between the operator and a child, as lines of JSON over a socket pair.

Either side notifies the other one, or calls it and awaits the answer. What arrives is begun in the
order in which it was sent. Never pickles: a process that was taken over by what it read must not
choose what the operator executes. Does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeVar

import structlog

from tandem import errors
from tandem.errors import JobRefused, TandemError
from tandem.kube.client import api
from tandem.kube.client.api import ApiError
from tandem.kube.client.events import traceback_of

_log = structlog.get_logger("tandem.kube.children")
LONGEST: Final = 64 << 20
"""Bytes of a line to a child, which ends at a longer one: a page of a list may be long."""
LONGEST_OF_CHILD: Final = 8 << 20
"""Bytes of a line of a child: a status has at most 1.5 MiB, and the operator's loop decodes it."""
_UNSENT: Final = 256 << 20
"""Bytes that the other side may leave unread: more of them, and it hangs. After a new list, all
objects of a namespace are said at once."""


Handler = Callable[..., Coroutine[Any, Any, Any] | asyncio.Task[Any] | None]
"""Called in the loop with the arguments of a message, as soon as that is read. For a call it
returns what leads to the answer, or None for the answer None. It checks its arguments itself."""


class LinkEnded(ConnectionError):
    """The other side is gone, or said what is no message."""


class Link:
    """One end. To be used on its event loop only.

    Args:
        handlers: by the names of messages.
    """

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[Any]] = set()
        self._unwritten: list[bytes] = []
        self._problem = ""
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self.ended = False

    async def connect(self, own: socket.socket, most_bytes: int | None = None) -> None:
        """`most_bytes`: of a line that is taken, else `LONGEST`."""
        limit = most_bytes or LONGEST
        self._reader, self._writer = await asyncio.open_connection(sock=own, limit=limit)

    async def serve(self) -> str:
        """Take messages until the other side ends. Returns what was wrong with it, "" for an end in
        order."""
        assert self._reader is not None
        try:
            while line := await self._reader.readline():
                self._take(json.loads(line))
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever a process that was taken over may say
            self._problem = f"what it said is no message: {type(error).__name__}"
        finally:
            self.close()
        return self._problem

    async def drain(self) -> None:
        """Wait until the other side has read most of what was sent."""
        self._write()
        if self._writer is not None and not self.ended:
            with suppress(OSError):
                await self._writer.drain()

    def close(self) -> None:
        """End it for both sides: calls under way raise `LinkEnded`."""
        self.ended = True
        if self._writer is not None:
            self._writer.close()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(LinkEnded("the other side is gone"))
        self._calls.clear()
        for task in list(self._answering):
            task.cancel()

    def notify(self, name: str, *arguments: Any) -> None:
        """Send a message without an answer; no effect after the end."""
        self._send({"notify": name, "arguments": arguments})

    async def call(self, name: str, *arguments: Any) -> Any:
        """Raises: LinkEnded; the TandemError or ApiError that is the answer."""
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._send({"call": name, "number": number, "arguments": arguments})
        if self.ended:
            self._calls.pop(number, None)
            raise LinkEnded("the other side is gone")
        try:
            return await answer
        finally:
            self._calls.pop(number, None)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.ended:
            return
        if not self._unwritten:
            # What is sent in one turn of the loop is written at once: a write costs more than it.
            asyncio.get_running_loop().call_soon(self._write)
        self._unwritten.append(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def _write(self) -> None:
        lines, self._unwritten = b"".join(self._unwritten), []
        if self._writer is None or self.ended or not lines:
            return
        self._writer.write(lines)
        if self._writer.transport.get_write_buffer_size() > _UNSENT:
            self._problem = "it reads too slowly what it is sent"
            self._writer.transport.abort()

    def _take(self, message: Any) -> None:
        arguments = message.get("arguments", ())
        if "notify" in message:
            if self._handlers[message["notify"]](*arguments) is not None:
                raise ValueError("it has to be called")
        elif "call" in message:
            self._take_call(int(message["number"]), str(message["call"]), arguments)
        else:
            answer = self._calls.get(int(message["number"]))
            if answer is None or answer.done():
                return
            if "error" in message:
                answer.set_exception(_error(message["error"]))
            else:
                answer.set_result(message["answer"])

    def _take_call(self, number: int, name: str, arguments: Any) -> None:
        try:
            begun = self._handlers[name](*arguments)
        except Exception as error:  # noqa: BLE001 - the answer to the caller
            self._send({"number": number, "error": _failure(name, error)})
            return
        if begun is None:
            self._send({"number": number, "answer": None})
            return
        if not isinstance(begun, asyncio.Task):
            begun = asyncio.create_task(begun, name=f"answer a child: {name}")
        self._answering.add(begun)
        begun.add_done_callback(partial(self._answer, number, name))

    def _answer(self, number: int, name: str, done: asyncio.Task[Any]) -> None:
        """One that was cancelled has no answer: its caller has given it up, or is gone."""
        self._answering.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._send({"number": number, "answer": done.result()})
        elif not isinstance(error, LinkEnded):
            self._send({"number": number, "error": _failure(name, error)})


def _failure(name: str, error: BaseException) -> dict[str, Any]:
    """The answer to a call that failed. The text of a bug's error stays here."""
    if isinstance(error, TandemError | ApiError):
        return _encoded(error)
    _log.error("not answered", message=name, at=traceback_of(error))
    return _encoded(TandemError(f"{type(error).__name__}, a bug"))


def _encoded(error: TandemError | ApiError) -> dict[str, Any]:
    found = {"kind": type(error).__name__, "reason": str(error.reason)}
    if isinstance(error, ApiError):
        return {
            **found,
            "status": error.status,
            "message": error.message,
            "unsure": error.unsure,
        }
    return {**found, "message": str(error), "certain": getattr(error, "certain", None)}


def _error(found: Mapping[str, Any]) -> Exception:
    kind, reason, message = (str(found[key]) for key in ("kind", "reason", "message"))
    if "status" in found:
        made = _kind(api, kind, ApiError)
        return made(int(found["status"]), reason, message, unsure=bool(found["unsure"]))
    try:
        raised = _kind(errors, kind, TandemError)(message)
    except TypeError:  # some kinds want more than a message
        raised = TandemError(message)
    raised.reason = errors.Reason(reason)
    if isinstance(raised, JobRefused):
        raised.certain = bool(found["certain"])
    return raised


_E = TypeVar("_E", bound=Exception)


def _kind(module: ModuleType, name: str, base: type[_E]) -> type[_E]:
    found = getattr(module, name, None)
    return found if isinstance(found, type) and issubclass(found, base) else base
