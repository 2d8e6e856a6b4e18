"""Which files are adjacent: what decides whether a compaction continues the roots of its inputs.

Druid's restrictions of segment locking (S15 to S17): a range of loads may be rewritten as one if it
is whole. In each *cell* (a time chunk of a partition), between the files that are taken there is no
other live file: none with a root within the range, such as another member of an input's group, and
none without a root at their place in the order. Only tags are compared, which decide about no row:
the worst that a wrong one does is that a run is not adjacent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from tandem.delta.log import files as files_
from tandem.distinct import IntArray, number_rows
from tandem.timeline.lineage import Root, read_roots
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segments, sequences_of


def beside(files: pa.Table, taken: Collection[str]) -> pa.Table:
    """The files of a version that can matter to the adjacency of those that are taken (logged
    paths), and these: few, if the version has many."""
    mine = np.asarray(files_.have_paths(files, taken))
    roots, sequences = read_roots(files), sequences_of(files)
    known, unknown = mine & (roots.first >= 0), roots.first < 0
    near = mine
    if mine.any():
        low, high = sequences[mine].min(), sequences[mine].max()
        near = mine | (unknown & (sequences >= low) & (sequences <= high))
    if known.any():
        low, high = roots.first[known].min(), roots.last[known].max()
        near |= ~unknown & (roots.first <= high) & (roots.last >= low)
    return files.filter(pa.array(near))


class Adjacency:
    """The live files of a version by cells."""

    def __init__(self, live: Segments) -> None:
        files = live.columns.files
        partitions, _ = files.by_partition
        self._files, self._roots, self._wide = files, files.roots, files.spans
        self._sequences = live.columns.sequences[files.segments]
        self._partitions = partitions
        # A file that spans cells is in none, and beside all of its partition.
        cells = np.where(self._wide, -1, files.interval_codes + 1)
        self._cells, _ = number_rows((partitions, cells))
        self._by_cell = _Groups(self._cells)
        self._by_partition = _Groups(partitions)
        self._sorted: dict[tuple[bool, int], _Ranges] = {}

    def roots(self, taken: SegmentFiles) -> list[tuple[SegmentFiles, Root | None]]:
        """The files by cell, and the root of what is made from those of the cell; None if they are
        not adjacent."""
        cells = self._cells[taken.places]
        return [(files, self._root(files.places)) for _, files in taken.grouped(cells)]

    def adjacent(self, taken: SegmentFiles) -> bool:
        return all(root is not None for _, root in self.roots(taken))

    def _root(self, places: IntArray) -> Root | None:
        root = self._roots.take(places).merged
        if root is None or self._wide[places].any():
            return None
        sequences = self._sequences[places]
        low, high = int(sequences.min()), int(sequences.max())
        between = 0
        for ranges in self._beside(int(places[0])):
            between += ranges.within(root.first, root.last)
            if ranges.unknown_within(low, high):
                return None
        return root if between == len(places) else None

    def _beside(self, place: int) -> Iterator[_Ranges]:
        for wide, groups, number in (
            (False, self._by_cell, int(self._cells[place])),
            (True, self._by_partition, int(self._partitions[place])),
        ):
            found = self._sorted.get((wide, number))
            if found is None:
                members = groups.members(number)
                if wide:
                    members = members[self._wide[members]]
                found = self._sorted[wide, number] = self._ranges(members)
            yield found

    def _ranges(self, places: IntArray) -> _Ranges:
        roots = self._roots.take(places)
        known = roots.first >= 0
        return _Ranges(
            np.sort(roots.first[known]),
            np.sort(roots.last[known]),
            np.sort(self._sequences[places][~known]),
        )


class _Ranges:
    """Root ranges, and the places in the order of files that have none; each sorted."""

    __slots__ = ("_firsts", "_lasts", "_unknown")

    def __init__(self, firsts: IntArray, lasts: IntArray, unknown: IntArray) -> None:
        self._firsts, self._lasts, self._unknown = firsts, lasts, unknown

    def within(self, first: int, last: int) -> int:
        """How many ranges have a load in common with this one."""
        begun = int(np.searchsorted(self._firsts, last, "right"))
        return begun - int(np.searchsorted(self._lasts, first, "left"))

    def unknown_within(self, low: int, high: int) -> bool:
        at = int(np.searchsorted(self._unknown, low, "left"))
        return at < len(self._unknown) and int(self._unknown[at]) <= high


class _Groups:
    """Places by a number that each has."""

    __slots__ = ("_numbers", "_order")

    def __init__(self, numbers: IntArray) -> None:
        self._order = np.argsort(numbers, kind="stable")
        self._numbers = numbers[self._order]

    def members(self, number: int) -> IntArray:
        low, high = (np.searchsorted(self._numbers, number, side) for side in ("left", "right"))
        return self._order[low:high]
