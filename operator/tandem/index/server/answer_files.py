"""Large answers, which wait in files until they are fetched (X11, X17).

A ticket is an unguessable name, and only the caller that it was given to can use it. Files are
removed when they are fetched, after a time, and at the start of the next process. Where no file can
be written the answer is sent at once. One caller's answers cannot fill the disk.
"""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tandem.errors import Unreachable

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
