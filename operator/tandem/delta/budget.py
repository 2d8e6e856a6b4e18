"""How much memory reading a table may take, and how much a piece of its log would take. Pure.

What is read is estimated before it is decoded, from sizes that no writer can feign: bytes that are
there, values that they can hold. An estimate is an upper bound of what was measured
(`docs/decisions/0173-a-table-has-a-budget.md`), not of every input; errors are on the safe side.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tandem.errors import TooLarge

OPTION: Final = "--table-memory"

FILE_BYTES: Final = 640
"""Of a live file beside its texts: its row, and what planning makes of it at the most."""
TEXT_FACTOR: Final = 2
"""Texts of files are held once, and once more while they are compared."""
ROW_BYTES: Final = 80
"""Of a file in a table of files, without its texts."""
ACTION_BYTES: Final = 1_500
"""Of an action that becomes a Python object, beside its texts."""
OBJECT_BYTES: Final = 512
"""Of an object in a listing."""
FOOTER_FACTOR: Final = 32
"""A decoded Parquet footer is larger than its bytes."""
VECTOR_FACTOR: Final = 16
"""A set of row positions is larger than its bytes: each container is an object."""

VALUE_BYTES: Final = 64
"""Of a JSON value, for each bracket, comma and colon."""
_COPIES: Final = 3
"""A commit is held as bytes, as text, and as the texts in its actions."""
MOST_LINE: Final = 16 << 20
"""Bytes of one action. Python decodes it in one go, and nothing else runs meanwhile."""
MOST_VALUES: Final = 500_000
"""Values of one action, for the same reason: half a second."""
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Also one that does not end: otherwise each of its quotes would be tried as a beginning."""
_BEYOND_16_BITS = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")


@dataclass(frozen=True, slots=True)
class TableBudget:
    """How many bytes of memory a look at a table may take; None for any number."""

    limit: int | None = None

    def account(self, resource: str) -> Account:
        """Of one look at `resource`."""
        return Account(self.limit, resource)


UNLIMITED: Final = TableBudget()


class Account:
    """What one look at a table takes, as far as it has come. Thread-safe.

    Every method raises `TooLarge` if it would be more than the limit.
    """

    def __init__(self, limit: int | None, resource: str) -> None:
        self._limit = limit
        self._resource = resource
        self._spent = 0
        self._lock = threading.Lock()

    @property
    def limited(self) -> bool:
        return self._limit is not None

    @property
    def left(self) -> int:
        """Bytes; very many without a limit."""
        return (1 << 62 if self._limit is None else self._limit) - self._spent

    def spend(self, needed: int, what: str) -> None:
        """`needed` bytes for something. `what` says so, with the numbers."""
        if self._limit is None:
            return
        with self._lock:
            if self._spent + needed > self._limit:
                raise too_large(self._resource, what, self._spent + needed, self._limit)
            self._spent += needed

    def give_back(self, spent: int) -> None:
        """What was spent is free again."""
        with self._lock:
            self._spent -= min(spent, self._spent)

    def require(self, needed: int, what: str) -> None:
        """That so much is left, without spending it."""
        if needed > self.left:
            assert self._limit is not None
            raise too_large(self._resource, what, self._spent + needed, self._limit)

    def actions(self, data: bytes, path: str) -> None:
        """A file of one JSON action a line, before it is decoded."""
        if self._limit is None:
            return
        copies = _COPIES * len(data) * text_factor(data)
        self.require(copies, f"{path}: {len(data):,} bytes of JSON")
        values = _values(data)
        if copies + values * VALUE_BYTES > self.left:
            # Only now, since it takes longer: commas within texts are no values.
            values = sum(self._line(line, path) for line in lines_of(data))
        elif len(data) > MOST_VALUES:
            for line in lines_of(data):
                if len(line) > MOST_VALUES:  # a value takes a byte at least
                    self._line(line, path)
        what = f"{path}: {len(data):,} bytes of JSON with {values:,} values"
        self.spend(copies + values * VALUE_BYTES, what)

    def document(self, text: str, what: str) -> None:
        """A JSON document within an action, before it is decoded."""
        if self._limit is None:
            return
        data = text.encode("utf-8", "replace")
        values = self._line(data, what)
        needed = len(data) * text_factor(data) + values * VALUE_BYTES
        self.spend(needed, f"{what}: {len(data):,} bytes of JSON with {values:,} values")

    def _line(self, line: bytes, path: str) -> int:
        """How many values it has, at the most."""
        values = _values(line)
        if len(line) <= MOST_LINE:
            values = _values(_STRINGS.sub(b"", line))
            if values <= MOST_VALUES:
                return values
        raise TooLarge(
            "a single action is too large to be decoded",
            resource=self._resource,
            field=path,
            found=f"{len(line):,} bytes with up to {values:,} values",
            expected=f"at most {MOST_LINE:,} bytes and {MOST_VALUES:,} values",
            remedy="Find the writer of this file; the table can be restored to a version before it",
        )


def lines_of(data: bytes) -> Iterator[bytes]:
    """The lines, without copying all of them at once."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end]
        start = end + 1
    yield data[start:]


REMEDY: Final = (
    "Find the writer of this file. If the table is meant to be so large, ask the operator's "
    f"administrator for a larger {OPTION} (the chart's settings.tableMemory) and more memory"
)


def too_large(resource: str, what: str, needed: int, limit: int) -> TooLarge:
    """The error of a table that needs more than it may take."""
    return TooLarge(
        "the table needs more memory than one table may take",
        resource=resource,
        found=f"{what}: about {mebibytes(needed)}",
        expected=f"at most {mebibytes(limit)} ({OPTION})",
        remedy=REMEDY,
    )


def mebibytes(size: int) -> str:
    """A size for messages, rounded up."""
    return f"{-(-size // 2**20):,} MiB"


def text_factor(data: bytes) -> int:
    """How many bytes a byte becomes in Python's texts, at the most: each character has as many as
    the longest one of its text needs."""
    if any(map(data.__contains__, _BEYOND_16_BITS)):
        return 4
    return 1 if data.isascii() and b"\\u" not in data else 2


def _values(data: bytes) -> int:
    return sum(map(data.count, (b"[", b"{", b",", b":")))
