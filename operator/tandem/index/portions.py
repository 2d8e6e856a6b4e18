"""An answer in portions: many tasks share it, and no process has to hold all of it. Pure.

A portion is a range of logged paths, and nothing else. Which files of a version lie in it depends
neither on who answers nor on what is known of the files. So each task asks for its own portion,
whichever answers, and all of them have each file once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.index.window import Chosen, Head

FILE_BYTES: Final = 1 << 20
"""What a file costs beside its bytes: a task opens it, and reads its footer."""
_LEAST_BYTES = 4 << 20
"""Of a portion: less is not worth a task."""
MOST: Final = 50_000
"""Portions of an answer, about, so that a driver can hold them: of larger ones, if need be."""
_MOST_SIZE = 1 << 50
"""Bytes that a file is taken for, whatever its log says."""


@dataclass(frozen=True, slots=True)
class PathRange:
    """Logged paths from `first` on and before `end`, by their bytes; None for no end."""

    first: str = ""
    end: str | None = None

    def mask(self, paths: pa.ChunkedArray) -> BoolArray:
        """Which of some paths lie in it."""
        found = pc.greater_equal(paths, pa.scalar(self.first, pa.string()))
        if self.end is not None:
            found = pc.and_(found, pc.less(paths, pa.scalar(self.end, pa.string())))
        inside: BoolArray = found.to_numpy()
        return inside


def within(chosen: list[Chosen], paths: PathRange | None) -> list[Chosen]:
    """The entries whose paths lie in a range; None for all of them."""
    if paths is None:
        return chosen
    found = []
    for part in chosen:
        inside = paths.mask(part.entries.paths_at(part.rows))
        found.append(Chosen(part.entries, part.rows[inside], part.certain[inside]))
    return found


@dataclass(frozen=True, slots=True)
class Cut:
    """How an answer is cut.

    Attributes:
        tasks: that can run at once: a small answer is cut for all of them.
        most_bytes: of a portion, where it is not a single row group.
    """

    tasks: int = 1
    most_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads: of each file in a range of paths, part `part` of `parts` of its row
    groups."""

    paths: PathRange
    part: int = 0
    parts: int = 1

    def groups(self, count: int) -> range:
        """The row groups of a file of so many."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


WHOLE: Final = Portion(PathRange())
"""An answer that is not cut."""


@dataclass(frozen=True)
class Portions:
    """Where an answer is cut.

    Attributes:
        splits: files of the whole answer.
        firsts: the path at which each range of paths begins, ascending.
        parts: so many tasks share each range.
    """

    head: Head
    splits: int
    firsts: Sequence[str]
    parts: Sequence[int]

    @staticmethod
    def cut_at(firsts: Sequence[str], parts: Sequence[int]) -> list[Portion]:
        """All portions. The first one begins with the first path that there can be, and the last
        one has no end: what answers for a portion may know of files that this answer left out,
        and each of these is in one of them."""
        ranges = zip(["", *firsts[1:]], [*firsts[1:], None], parts, strict=False)
        return [
            Portion(PathRange(first, end), part, count)
            for first, end, count in ranges
            for part in range(count)
        ]


def portions_of(head: Head, files: pa.Table, cut: Cut) -> Portions:
    """Cut an answer.

    Args:
        files: with `path` and `size`.
    """
    order = pc.sort_indices(files["path"])
    sizes = files["size"].take(order).to_numpy()
    starts, parts = _starts(np.clip(sizes, 0, _MOST_SIZE), cut)
    firsts = files["path"].take(order.take(pa.array(starts))).to_pylist()
    # A path that a log has twice is in one range.
    together = _together(zip(firsts, parts.tolist(), strict=True))
    return Portions(head, files.num_rows, tuple(together), tuple(together.values()))


def _starts(sizes: IntArray, cut: Cut) -> tuple[IntArray, IntArray]:
    """Where a portion begins, and how many tasks share it."""
    if not len(sizes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # As floats: the sum of what logs say may be more than 64 bits hold.
    costs = sizes.astype(np.float64) + FILE_BYTES
    before = np.cumsum(costs) - costs
    total = float(before[-1] + costs[-1])
    goal = min(cut.most_bytes, max(_LEAST_BYTES, total / cut.tasks))
    goal = max(goal, FILE_BYTES, total / MOST)
    shares = np.rint(sizes / goal).astype(np.int64)
    large = shares > 1
    begins = np.ones(len(sizes), bool)
    begins[1:] = (np.diff(before // goal) > 0) | large[1:] | large[:-1]
    starts = np.flatnonzero(begins)
    return starts, np.maximum(shares[starts], 1)


def _together(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for first, each in found:
        parts[first] = max(each, parts.get(first, 1))
    return parts
