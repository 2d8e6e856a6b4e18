"""The live files of a version as planning sees them, stored as columns.

A `SegmentFile` is an index into the columns: it is created on access, and its `add` action is
decoded on demand. So a file that a plan does not take costs no Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from tandem.delta.actions import AddFile
from tandem.distinct import BoolArray, IntArray
from tandem.intervals import TimeInterval
from tandem.timeline.file_columns import FileColumns, PartitionValues


class SegmentFile:
    """A live file as planning needs it."""

    __slots__ = ("_at", "_columns")

    def __init__(self, columns: FileColumns, at: int) -> None:
        self._columns, self._at = columns, at

    @property
    def path(self) -> str:
        """The logged path: the file's identity."""
        return self._columns.paths[self._at]

    @property
    def add(self) -> AddFile:
        return self._columns.add(self._at)

    @property
    def size(self) -> int:
        return self._columns.sizes[self._at]

    @property
    def rows(self) -> int | None:
        """Physical rows; None if the log does not record them."""
        return self._columns.rows[self._at]

    @property
    def deleted(self) -> int:
        """Rows in its deletion vector."""
        return self._columns.deletions[self._at]

    @property
    def interval(self) -> TimeInterval | None:
        """None where unknown or without a time column."""
        return self._columns.intervals[self._columns.codes[self._at]]

    @property
    def spans(self) -> bool:
        """Whether it covers several chunks, or unknown ones."""
        return bool(self._columns.spans[self._at])

    @property
    def segment(self) -> str:
        """The name of its segment."""
        return self._columns.names[self.segment_code]

    @property
    def segment_code(self) -> int:
        """The index of its segment in the order of the version's segments."""
        return int(self._columns.segments[self._at])

    @property
    def layout(self) -> str | None:
        """The order in which a compaction wrote its rows, as its tag records."""
        layout: str | None = self._columns.layouts[self._at].as_py()
        return layout

    @property
    def partition_values(self) -> PartitionValues:
        return self._columns.partitions[self._columns.partition_numbers[self._at]]

    @property
    def deleted_share(self) -> float:
        """The share of deleted rows, 0 to 1; 1 if some are deleted of an unknown number."""
        return float(self._columns.deleted_shares[self._at])

    @property
    def live_bytes(self) -> int:
        """Estimated bytes of the rows that are not deleted."""
        return int(self._columns.live_bytes[self._at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SegmentFile) and (
            self is other
            or (self.add, self.interval, self.spans) == (other.add, other.interval, other.spans)
        )

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"SegmentFile({self.path!r})"


class SegmentFiles(Sequence[SegmentFile]):
    """Files of one working set, as indexes into its columns, in order."""

    __slots__ = ("columns", "places")

    def __init__(self, columns: FileColumns, places: IntArray) -> None:
        self.columns, self.places = columns, places

    @classmethod
    def of(cls, parts: Iterable[Sequence[SegmentFile]]) -> SegmentFiles | None:
        """The files of several segments of one working set; None if there are none."""
        some = [part for part in parts if isinstance(part, SegmentFiles)]
        if not some:
            return None
        assert all(part.columns is some[0].columns for part in some), "files of one version"
        return cls(some[0].columns, np.concatenate([part.places for part in some]))

    @property
    def live_bytes(self) -> IntArray:
        """For each file the estimated bytes of the rows that are not deleted."""
        return self.columns.live_bytes[self.places]

    @property
    def deleted_shares(self) -> npt.NDArray[np.float64]:
        """For each file the share of deleted rows, 0 to 1."""
        return self.columns.deleted_shares[self.places]

    @property
    def row_counts(self) -> IntArray:
        """For each file its physical rows, -1 if unknown."""
        return self.columns.row_counts[self.places]

    def have_layout(self, label: str) -> BoolArray:
        """Which of the files have their rows in this order."""
        return self.columns.have_layout(label)[self.places]

    def cubes(self, columns: Sequence[str]) -> IntArray:
        """For each file the number of its Z-cube: as `FileColumns.cubes`."""
        return self.columns.cubes(tuple(columns))[self.places]

    def where(self, mask: BoolArray) -> SegmentFiles:
        """The files for which `mask` (one entry per file) is true."""
        return SegmentFiles(self.columns, self.places[mask])

    @property
    def segments(self) -> IntArray:
        """For each file the index of its segment in the order of the version's segments."""
        return self.columns.segments[self.places]

    @property
    def paths(self) -> frozenset[str]:
        """The logged paths."""
        return frozenset(self.columns.paths_at(self.places))

    @property
    def sizes(self) -> IntArray:
        return self.columns.size[self.places]

    @property
    def size_bytes(self) -> int:
        return int(self.sizes.sum())

    @property
    def hull(self) -> TimeInterval | None:
        """The interval that all files cover; None if that of one of them is unknown."""
        intervals = [self.columns.intervals[code] for code in set(self.interval_codes.tolist())]
        known = [time for time in intervals if time is not None]
        if not known or len(known) < len(intervals):
            return None
        return TimeInterval(min(i.start_ms for i in known), max(i.end_ms for i in known))

    @property
    def interval_codes(self) -> IntArray:
        return self.columns.interval_codes[self.places]

    @property
    def partition_codes(self) -> IntArray:
        return self.columns.partition_codes[self.places]

    @property
    def spans(self) -> BoolArray:
        return self.columns.spans[self.places]

    def among(self, paths: frozenset[str]) -> BoolArray:
        """Which of the files have one of the logged paths."""
        return self.columns.among(paths)[self.places]

    def grouped(self, codes: IntArray) -> list[tuple[int, SegmentFiles]]:
        """The files by code (one entry per file), in the order of each code's first file."""
        if not len(codes):
            return []
        if len(codes) == 1 or (codes == codes[0]).all():
            return [(int(codes[0]), self)]
        order = np.argsort(codes, kind="stable")
        found, places = codes[order], self.places[order]
        starts = np.flatnonzero(found[1:] != found[:-1]) + 1
        ends = [0, *starts.tolist(), len(places)]
        first = order[ends[:-1]]
        return [
            (int(found[ends[at]]), SegmentFiles(self.columns, places[ends[at] : ends[at + 1]]))
            for at in np.argsort(first).tolist()
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[SegmentFile]:
        return (SegmentFile(self.columns, at) for at in self.places.tolist())

    @overload
    def __getitem__(self, index: int) -> SegmentFile: ...
    @overload
    def __getitem__(self, index: slice) -> SegmentFiles: ...
    def __getitem__(self, index: int | slice) -> SegmentFile | SegmentFiles:
        if isinstance(index, slice):
            return SegmentFiles(self.columns, self.places[index])
        return SegmentFile(self.columns, int(self.places[index]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def decode_adds(files: Iterable[SegmentFile]) -> None:
    """Decode the `add` actions of these files together."""
    by_table: dict[int, tuple[FileColumns, list[int]]] = {}
    for file in files:
        columns = file._columns
        by_table.setdefault(id(columns), (columns, []))[1].append(file._at)
    for columns, places in by_table.values():
        columns.decode(places)
