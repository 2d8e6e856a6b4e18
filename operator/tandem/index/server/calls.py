"""What every service of the index server takes and gives: a call's body, and an answer.

Large answers wait in files until they are fetched (X11, X17). A ticket is an unguessable name, and
only the caller that it was given to can use it. Files are removed when they are fetched, after a
time, and at the start of the next process. Where no file can be written the answer is sent at once.
One caller's answers cannot fill the disk.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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


_BATCH_ROWS = 4_096
"""About a mebibyte: what a reader that does not read keeps in memory."""


@dataclass(frozen=True)
class _Part:
    path: Path
    caller: str
    until: float
    bytes: int


class AnswerFiles:
    """Answers in a folder of their own.

    Args:
        folder: is emptied; None: no answer is kept.
        inline_limit: bytes of an answer that is sent at once.
        ttl_s: seconds after which an answer that was not fetched is removed.
        limit_bytes: of all answers that wait; what is beyond is sent at once. None for no limit.
        caller_bytes: of those of one caller.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        inline_limit: int = 300 * 1024,
        ttl_s: float = 3 * 3600,
        limit_bytes: int | None = None,
        caller_bytes: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inline_limit = inline_limit
        self._folder, self._ttl_s, self._now = folder, ttl_s, now
        self._limit, self._caller_limit = limit_bytes, caller_bytes
        self._lock = threading.Lock()
        self._parts: dict[str, _Part] = {}
        if folder is not None:
            # Of a process that has died: its tickets are gone, too.
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, table: pa.Table, caller: str) -> str | None:
        """The ticket of an answer; None if it is to be sent at once.

        Raises: Unreachable if too many answers wait for this caller: it goes on without the server.
        """
        self.sweep()
        if self._folder is None or table.nbytes <= self.inline_limit:
            return None
        waiting, mine = self._waiting(caller)
        if self._caller_limit is not None and mine + table.nbytes > self._caller_limit:
            raise Unreachable(
                "too many answers wait for this caller",
                found=f"{mine:,} bytes, and {table.nbytes:,} more",
                expected=f"at most {self._caller_limit:,}",
                remedy="Fetch the answers under their tickets",
            )
        if self._limit is not None and waiting + table.nbytes > self._limit:
            return None
        ticket = secrets.token_urlsafe(32)
        path = self._folder / f"{ticket}.arrow"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as out:
                out.write_table(table, max_chunksize=_BATCH_ROWS)
        except OSError:
            # No folder, or no room: the answer need not wait.
            with suppress(OSError):
                path.unlink()
            return None
        with self._lock:
            self._parts[ticket] = _Part(path, caller, self._now() + self._ttl_s, table.nbytes)
        return ticket

    def _waiting(self, caller: str) -> tuple[int, int]:
        """Bytes of all answers that wait, and of those of one caller."""
        with self._lock:
            parts = list(self._parts.values())
        return sum(p.bytes for p in parts), sum(p.bytes for p in parts if p.caller == caller)

    def fetch(self, ticket: str, caller: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """An answer, once. Raises: KeyError if there is none of that ticket for this caller."""
        self.sweep()
        with self._lock:
            part = self._parts.get(ticket)
            if part is None or not secrets.compare_digest(part.caller, caller):
                raise KeyError(ticket)
            del self._parts[ticket]
        source = pa.memory_map(str(part.path))
        # The mapping stays readable; the name is gone at once.
        os.unlink(part.path)
        reader = pa.ipc.open_stream(source)
        return reader.schema, iter(reader)

    def sweep(self) -> None:
        """Remove what has waited too long."""
        with self._lock:
            late = [name for name, part in self._parts.items() if part.until <= self._now()]
            gone = [self._parts.pop(name) for name in late]
        for part in gone:
            with suppress(FileNotFoundError):
                part.path.unlink()

    def __len__(self) -> int:
        return len(self._parts)
