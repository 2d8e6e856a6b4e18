"""Cuts what is appended to an object into the parts of a multipart upload. Pure.

S3 wants at least 5 MiB in each part but the last one, and one source for each part that it copies.
So a range of at least that size is copied, and what lies between such ranges is gathered into
parts that are read and sent: where it is smaller, with bytes of the range that follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

LEAST: Final = 5 << 20
"""Bytes of a part, unless it is the last one."""
MOST: Final = 32 << 20
"""Bytes of a part that is copied: more copies run side by side, and a part that the store does not
copy is read into memory."""
MOST_PARTS: Final = 10_000
"""Parts of an upload."""
_SPARE: Final = MOST_PARTS // 2
"""After so many parts, the others are large."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """`size` bytes from `start` of an object of the bucket, in the version with the tag `e_tag`."""

    key: str
    e_tag: str
    start: int
    size: int

    def __len__(self) -> int:
        return self.size

    def precedes(self, other: SourceRange) -> bool:
        """Whether the other one goes on where this one ends."""
        same = (self.key, self.e_tag) == (other.key, other.e_tag)
        return same and self.start + self.size == other.start

    def split(self, size: int) -> tuple[SourceRange, SourceRange]:
        """Its first `size` bytes, and the others."""
        rest = replace(self, start=self.start + size, size=self.size - size)
        return replace(self, size=size), rest


@dataclass(frozen=True, slots=True)
class UploadPart:
    """A part, of bytes and ranges of objects in their order."""

    pieces: tuple[bytes | SourceRange, ...]
    is_copied: bool = False
    """It is one range, which the store can copy."""

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))


class PartCutter:
    """The parts of one object. Iterate over each result before the next call."""

    def __init__(self) -> None:
        self._waiting: deque[bytes | SourceRange] = deque()
        self._size = 0
        """Bytes that are waiting: there may be 100,000 pieces, such as page indexes."""
        self._made = 0

    def append(self, piece: bytes | SourceRange) -> Iterator[UploadPart]:
        """Append bytes, or a range of an object; the parts that are complete by that."""
        if not len(piece):
            return
        last = self._waiting[-1] if self._waiting else b""
        if (
            isinstance(last, SourceRange)
            and isinstance(piece, SourceRange)
            and last.precedes(piece)
        ):
            self._waiting[-1] = replace(last, size=last.size + piece.size)
        else:
            self._waiting.append(piece)
        self._size += len(piece)
        yield from self._complete(is_last=False)

    def rest(self) -> Iterator[UploadPart]:
        """The parts that remain at the object's end."""
        yield from self._complete(is_last=True)

    def _complete(self, *, is_last: bool) -> Iterator[UploadPart]:
        while self._waiting:
            least = LEAST if self._made < _SPARE else MOST
            first = self._waiting[0]
            # A range at the end may grow.
            is_open = not is_last and isinstance(self._waiting[-1], SourceRange)
            closed = self._size - (len(self._waiting[-1]) if is_open else 0)
            if closed and isinstance(first, SourceRange) and first.size >= least:
                part = self._copied(first, least)
            elif is_last or closed >= (least if is_open else 2 * least):
                # Of bytes alone, enough stay for a part of their own before a range.
                part = self._gathered(least)
            else:
                return
            self._made += 1
            self._size -= part.size
            yield part

    def _copied(self, first: SourceRange, least: int) -> UploadPart:
        size = min(first.size, MOST)
        if 0 < first.size - size < least:  # too little for a part of its own
            size = first.size - least if first.size >= 2 * least else first.size
        taken, left = first.split(size)
        if left.size:
            self._waiting[0] = left
        else:
            self._waiting.popleft()
        return UploadPart((taken,), is_copied=True)

    def _gathered(self, least: int) -> UploadPart:
        pieces: list[bytes | SourceRange] = []
        missing = least
        while self._waiting and missing > 0:
            piece = self._waiting.popleft()
            if isinstance(piece, SourceRange) and piece.size - missing >= least:
                piece, left = piece.split(missing)
                self._waiting.appendleft(left)
            pieces.append(piece)
            missing -= len(piece)
        pieces += self._few_bytes(least)
        return UploadPart(tuple(pieces))

    def _few_bytes(self, least: int) -> list[bytes | SourceRange]:
        """Take the bytes that follow, if they are too few for a part."""
        found = list(takewhile(lambda piece: isinstance(piece, bytes), self._waiting))
        if sum(map(len, found)) >= least:
            return []
        for _ in found:
            self._waiting.popleft()
        return found
