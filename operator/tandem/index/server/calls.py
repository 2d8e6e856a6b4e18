"""What every service of the index server takes and gives: a call's body, and an answer. Pure."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
import structlog
from pydantic import ValidationError
from pydantic_core import from_json

from tandem import errors
from tandem.errors import InvalidSpec, TandemError, Unreachable
from tandem.index.server.messages import MAX_REQUEST_BYTES, Message
from tandem.text import clean

# Work for which no caller waits: what fails in it is logged, and stops nothing else.


_log = structlog.get_logger("tandem.index.background")


class Background:
    """Threads of their own.

    Args:
        name: of the threads.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def submit(self, table: str, work: Callable[..., object], *args: Any) -> Future[object]:
        """Begin work about a table as soon as a thread is free."""
        task: Future[object] = self._pool.submit(work, *args)
        task.add_done_callback(partial(_log_failure, table))
        return task

    def close(self) -> None:
        """Begin nothing more; returns before the work under way has ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _log_failure(table: str, task: Future[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a bug: please report it", table=table, exc_info=error)


# Errors of a server as JSON, so that a client raises what a call in its own process would have
# raised. Pure.


_PLAIN = (str, int, tuple, type(None))
"""Types of attributes of errors that are sent."""


def described(error: TandemError) -> dict[str, Any]:
    """What is sent of an error."""
    plain = {n: v for n, v in vars(error).items() if isinstance(v, _PLAIN)}
    return {"type": type(error).__name__, "attributes": plain}


def raised(message: Mapping[str, Any]) -> TandemError:
    """The error that the server raised, as its own type."""
    kind = getattr(errors, str(message.get("type")), TandemError)
    if not (isinstance(kind, type) and issubclass(kind, TandemError)):
        kind = TandemError
    attributes = message.get("attributes")
    plain = attributes if isinstance(attributes, dict) else {}
    error: TandemError = kind.__new__(kind)
    TandemError.__init__(error, str(plain.get("message", "the index server failed")))
    for name, value in plain.items():
        vars(error)[name] = tuple(value) if isinstance(value, list) else value
    return error


# How much one caller has of a server at once: what is beyond waits for its turn, and what does not
# come in time is refused, so that its caller goes on without the server.


MAX_CALLS: Final = 64
"""Of one caller that are worked on at once."""
MAX_STREAMS: Final = 16
"""Of one caller that are being sent to it, of those that are larger than what a connection takes
unread: one that does not read takes the place of others of its own only."""
WAIT_S: Final = 1.0
"""For its turn, of the two seconds for which a client waits."""
_MOST_WAITING: Final = 1_000


class CallerTurns:
    """So many at once of one caller; further ones wait for their turn. Thread-safe."""

    def __init__(self, most: int, wait_s: float = WAIT_S) -> None:
        self._most, self._wait_s = most, wait_s
        self._changed = threading.Condition()
        self._taken: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def turn(self, caller: str) -> Iterator[None]:
        """Raises: Unreachable if the turn does not come in time: the caller goes on without the
        server."""
        with self._changed:
            if self._waiting[caller] >= _MOST_WAITING:
                raise self._too_much()
            self._waiting[caller] += 1
            came = self._changed.wait_for(lambda: self._taken[caller] < self._most, self._wait_s)
            self._lower(self._waiting, caller)
            if not came:
                raise self._too_much()
            self._taken[caller] += 1
        try:
            yield
        finally:
            with self._changed:
                self._lower(self._taken, caller)
                self._changed.notify_all()

    def _lower(self, counts: Counter[str], caller: str) -> None:
        counts[caller] -= 1
        if not counts[caller]:
            del counts[caller]

    def _too_much(self) -> Unreachable:
        return Unreachable(
            "this caller asks too much at once",
            found=f"{self._most} calls that are not answered yet",
            expected=f"at most {self._most} at once",
        )


M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Answer:
    """A message, and the Arrow tables that belong to it."""

    message: Message
    tables: tuple[pa.Table, ...] = ()


def table_of(body: bytes) -> str:
    """The table that a call is about; "" for all, or if it is no question at all."""
    if len(body) > MAX_REQUEST_BYTES:
        return ""
    try:
        # The parser of `parsed`: of a name that is there twice, both take the same one.
        message = from_json(body or b"{}")
    except ValueError:
        return ""
    found = message.get("table") if isinstance(message, dict) else None
    return found if isinstance(found, str) else ""


def no_such_call(call: str, known: Iterable[str]) -> InvalidSpec:
    return InvalidSpec("no such call", resource=call[:40], expected="one of " + ", ".join(known))


def parsed(model: type[M], call: str, body: bytes) -> M:
    """Raises: InvalidSpec, which names the first field that is wrong."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidSpec(
            "the server does not take this question",
            resource=call,
            field=".".join(map(str, first["loc"])),
            found=clean(str(first["input"])),
            expected=str(first["msg"]),
            remedy="Correct it, or use the client of the server's version",
        ) from error
