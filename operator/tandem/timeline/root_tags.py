"""Root ranges: which loads a file was made from, by its tags.

A load is a segment that was committed under a plain number, and has that number as its root. A
compaction of adjacent loads writes the range of their numbers, `12-15`, with a minor version above
those of its inputs. A loader of single segments needs both to know which parts stand for the same
rows (`tandem.timeline.serving`), and people see which loads a segment holds.

Any writer can set tags, so no tag decides about rows (I-56): an invalid one counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log import files as files_
from tandem.distinct import IntArray
from tandem.timeline.names import MAX_NUMBER
from tandem.timeline.serving.parts import MAX_MINOR

TAG_ROOT = "tandem.root"
TAG_MINOR = "tandem.minor"
TAG_GROUP = "tandem.group"
"""How many files a compaction wrote for its root range in one time chunk and partition."""

_TAG_SEGMENT = "tandem.segment"
_NUMBER = "0|[1-9][0-9]{0,15}"
_RANGE = f"^(?P<first>{_NUMBER})(?:-(?P<last>{_NUMBER}))?$"


@dataclass(frozen=True, slots=True)
class Root:
    """Loads `first` to `last`, and the minor version: 0 for a load."""

    first: int
    last: int
    minor: int = 0

    def __str__(self) -> str:
        return _text(self.first, self.last)

    def tags(self, group_size: int) -> dict[str, str]:
        return {TAG_ROOT: str(self), TAG_MINOR: str(self.minor), TAG_GROUP: str(group_size)}


@dataclass(frozen=True, slots=True)
class Roots:
    """Those of several files, as columns; `first` is -1 for a file without one."""

    first: IntArray
    last: IntArray
    minor: IntArray

    def take(self, places: IntArray) -> Roots:
        return Roots(self.first[places], self.last[places], self.minor[places])

    @property
    def all_known(self) -> bool:
        return bool((self.first >= 0).all())

    @property
    def merged(self) -> Root | None:
        """The root of a file that is made from these; None if one of them has none, or the minor
        version would exceed its limit."""
        if not len(self.first) or not self.all_known or int(self.minor.max()) >= MAX_MINOR:
            return None
        return Root(int(self.first.min()), int(self.last.max()), int(self.minor.max()) + 1)

    def __str__(self) -> str:
        """The loads, as `0-3,7`; empty if a file has no root."""
        if not self.all_known:
            return ""
        return _joined(zip(self.first.tolist(), self.last.tolist(), strict=True))


def read_roots(files: pa.Table) -> Roots:
    """The roots of files (as `Snapshot.files`)."""
    first, last = _range(files_.tag(files, TAG_ROOT))
    minor = _number(files_.tag(files, TAG_MINOR), _NUMBER)
    own = _number(files_.tag(files, _TAG_SEGMENT), _NUMBER)
    valid = (first >= 0) & (first <= last) & (last <= MAX_NUMBER)
    valid &= (minor >= 0) & (minor <= MAX_MINOR)
    own[own > MAX_NUMBER] = -1
    return Roots(np.where(valid, first, own), np.where(valid, last, own), np.where(valid, minor, 0))


def root_of(tags: Mapping[str, str]) -> Root | None:
    """The root of one file."""
    table = pa.table({"tags": pa.array([list(tags.items())], pa.map_(pa.string(), pa.string()))})
    found = read_roots(table)
    if not found.all_known:
        return None
    return Root(int(found.first[0]), int(found.last[0]), int(found.minor[0]))


def group_size_of(tags: Mapping[str, str]) -> int | None:
    """How many files the group of a file has; None if its tags do not say."""
    text = tags.get(TAG_GROUP, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 else None


def _number(text: pa.Array, pattern: str) -> IntArray:
    valid = pc.fill_null(pc.match_substring_regex(text, f"^(?:{pattern})$"), False)
    number = pc.cast(pc.if_else(valid, text, None), pa.int64())
    found: IntArray = pc.fill_null(number, -1).to_numpy(zero_copy_only=False).copy()
    return found


def _range(text: pa.Array) -> tuple[IntArray, IntArray]:
    parts = pc.extract_regex(text, _RANGE)
    first, last = (pc.struct_field(parts, name) for name in ("first", "last"))
    last = pc.if_else(pc.equal(last, ""), first, last)
    return _number(first, _NUMBER), _number(last, _NUMBER)


def _joined(ranges: Iterable[tuple[int, int]]) -> str:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return ",".join(_text(first, last) for first, last in joined)


def _text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
