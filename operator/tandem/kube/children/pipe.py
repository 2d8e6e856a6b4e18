"""Calls between the operator and a child, over a pair of connected sockets.

Both sides write JSON of known types, never pickles: a child that was taken over by what it read
must not choose what the operator executes. A frame is a head, a line feed, and the bytes that the
call returns, if it returns bytes.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from pydantic import TypeAdapter

from tandem import errors
from tandem.errors import TandemError
from tandem.jobs.formats import JobSpec, RoundRequest
from tandem.jobs.port import RoundState
from tandem.jobs.results import JobResult
from tandem.jobs.runner import JobRequest


@dataclass(frozen=True, slots=True)
class CallTypes:
    """The arguments of a call, and what it returns; `returns_bytes`: beside that, the bytes of a
    file, if there is one."""

    arguments: TypeAdapter[Any]
    result: TypeAdapter[Any]
    returns_bytes: bool = False


_NOTHING: Final = TypeAdapter[None](None)
_NAME: Final = TypeAdapter(tuple[str])
CALLS: Final = {
    "start": CallTypes(TypeAdapter(tuple[JobRequest, JobSpec]), _NOTHING),
    "poll": CallTypes(TypeAdapter(tuple[str, int]), TypeAdapter(RoundState)),
    "result": CallTypes(TypeAdapter(tuple[str, int]), TypeAdapter(JobResult | None)),
    "file": CallTypes(_NAME, TypeAdapter(bool), returns_bytes=True),
    "ask": CallTypes(TypeAdapter(tuple[str, RoundRequest]), TypeAdapter(RoundRequest)),
    "finish": CallTypes(_NAME, _NOTHING),
    "stop": CallTypes(_NAME, _NOTHING),
}
"""What a child can be asked: `Jobs` by the names of jobs."""


@dataclass(frozen=True, slots=True)
class ChildCall:
    """`number` joins it with its answer."""

    number: int
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """`error` is raised by the caller."""

    number: int
    result: Any = None
    content: bytes | None = None
    error: TandemError | None = None


class InvalidCall(ValueError):
    """The arguments of call `number` do not have its types."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


class Pipe:
    """One end of the connection. Any thread may send; one receives.

    Args:
        most_bytes: of a frame that is received; a longer one ends the connection. None for any.
        send_s: how long the other side may take nothing of what is sent; None for any time.
    """

    def __init__(
        self,
        connection: Connection,
        most_bytes: int | None = None,
        send_s: float | None = None,
    ) -> None:
        self._connection = connection
        self._most_bytes = most_bytes
        self._sending = threading.Lock()
        self._closing = threading.Lock()
        """What uses the descriptor's number beside the one that receives: after `close` the number
        may be that of another connection."""
        if send_s is not None:
            seconds, rest = divmod(send_s, 1)
            with self._socket() as own:
                own.setsockopt(
                    socket.SOL_SOCKET,
                    socket.SO_SNDTIMEO,
                    struct.pack("ll", int(seconds), int(rest * 1e6)),
                )

    def _socket(self) -> socket.socket:
        return socket.fromfd(self._connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)

    def hang_up(self) -> None:
        """Both sides find the end, also one that is waiting in a thread to receive.

        Raises: OSError if there is no descriptor left to do it with.
        """
        with self._closing:
            if self._connection.closed:
                return
            with self._socket() as own, suppress(OSError):  # the other side is gone
                own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """To be called by the side that receives, after the end of the other side, or after
        `hang_up`: those that send find it then, and go first."""
        with self._sending, self._closing:
            self._connection.close()

    # The operator's side

    def send_call(self, call: ChildCall) -> None:
        """Raises: OSError if the other side is gone, or takes nothing for too long."""
        arguments = CALLS[call.name].arguments.dump_python(
            call.arguments, mode="json", by_alias=True
        )
        self._send({"number": call.number, "call": call.name, "arguments": arguments})

    def receive_answer(self, called: dict[int, str]) -> ChildAnswer | str:
        """An answer to one of these calls, or the name of a job that has something new to say.

        Raises: EOFError, OSError if the other side is gone; ValueError for what is no answer.
        """
        head, content = self._receive()
        if "changed" in head:
            return str(head["changed"])
        number = head["number"]
        types = CALLS[called[number]] if number in called else None
        if types is None:
            raise ValueError("an answer to no call")
        if "error" in head:
            return ChildAnswer(number, error=_error(head["error"]))
        result = types.result.validate_python(head["result"])
        return ChildAnswer(number, result, content if types.returns_bytes and result else None)

    # The child's side

    def receive_call(self) -> ChildCall:
        """Raises: EOFError, OSError if the operator is gone; InvalidCall."""
        head, _ = self._receive()
        name, number = head["call"], head["number"]
        try:
            arguments = CALLS[name].arguments.validate_python(head["arguments"])
        except ValueError as error:
            raise InvalidCall(number, f"{name}: {error}"[:1000]) from error
        return ChildCall(number, name, arguments)

    def send_answer(self, answer: ChildAnswer, call: str) -> None:
        head: dict[str, Any] = {"number": answer.number}
        if answer.error is not None:
            kind = type(answer.error).__name__
            head["error"] = {"kind": kind, "message": str(answer.error)}
        else:
            adapter = CALLS[call].result
            head["result"] = adapter.dump_python(answer.result, mode="json", by_alias=True)
        self._send(head, answer.content or b"")

    def send_change(self, job: str) -> None:
        """A job has something new to say."""
        self._send({"changed": job})

    def _send(self, head: dict[str, Any], content: bytes = b"") -> None:
        frame = json.dumps(head, separators=(",", ":")).encode() + b"\n" + content
        with self._sending:
            self._connection.send_bytes(frame)

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            frame = self._connection.recv_bytes(self._most_bytes)
        except OSError as error:
            if "bad message length" in str(error):
                raise ValueError(f"a frame of more than {self._most_bytes} bytes") from error
            raise
        head, _, content = frame.partition(b"\n")
        found = json.loads(head)
        if not isinstance(found, dict):
            raise ValueError("a frame whose head is no object")
        return found, content


def _error(found: Any) -> TandemError:
    kind, message = getattr(errors, str(found["kind"]), None), str(found["message"])
    if not (isinstance(kind, type) and issubclass(kind, TandemError)):
        return TandemError(message)
    try:
        return kind(message)
    except TypeError:  # some kinds want more than a message
        error = TandemError(message)
        error.reason = kind.reason
        return error
