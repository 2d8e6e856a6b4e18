"""The live files of a version as planning sees them, stored as columns.

A `SegmentFile` is an index into the columns: it is created on access, and its `add` action is
decoded on demand. So a file that a plan does not take costs no Python object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.distinct import IntArray, number_rows
from tandem.pruning.bounds import BoolArray
from tandem.timeline.chunks import TimeColumn, TimeInterval
from tandem.timeline.file_intervals import FileIntervals, file_intervals

TAG_CHUNK = "tandem.chunk"
TAG_LAYOUT = "tandem.layout"
"""The order in which a compaction wrote its segment: `segments.layout_label`."""

PartitionValues = Mapping[str, str | None]
Partition = tuple[tuple[str, str | None], ...]


class FileColumns:
    """Files of `table` (as `Snapshot.files`) in the order of their segments and paths.

    Args:
        order: for each place the index of its row in `table`.
        segments: for each place its segment, as an index into `names`; ascending.
        names: those of the segments, in their order.
    """

    def __init__(
        self, table: pa.Table, order: IntArray, segments: IntArray, names: pa.Array,
        time: TimeColumn | None,
    ) -> None:  # fmt: skip
        self._table, self._order, self._time = table, order, time
        self.segments, self.names = segments, names
        self._adds: dict[int, AddFile] = {}
        self._among: tuple[frozenset[str], BoolArray] | None = None

    def ordered(self, name: str) -> IntArray:
        """A column of numbers, in the order of places."""
        found: IntArray = self._table[name].to_numpy()[self._order]
        return found

    @cached_property
    def paths(self) -> list[str]:
        return self.paths_at(np.arange(len(self._order)))

    def paths_at(self, places: IntArray) -> list[str]:
        return list(self._table["path"].take(pa.array(self._order[places])).to_pylist())

    @cached_property
    def size(self) -> IntArray:
        return self.ordered("size")

    @cached_property
    def deleted(self) -> IntArray:
        """Rows in deletion vectors."""
        found = pc.fill_null(pc.struct_field(self._table["deletion_vector"], "cardinality"), 0)
        deleted: IntArray = found.to_numpy()[self._order]
        return deleted

    @cached_property
    def rows(self) -> list[int | None]:
        """Physical rows, None if the log does not record them."""
        known = stats_.num_records(self._table["stats"]).combine_chunks()
        return list(known.take(pa.array(self._order)).to_pylist())

    @cached_property
    def live_bytes(self) -> IntArray:
        found = self.size.copy()
        for at in np.flatnonzero(self.deleted).tolist():
            found[at] = SegmentFile(self, at).live_bytes
        return found

    @cached_property
    def deleted_shares(self) -> npt.NDArray[np.float64]:
        found = np.zeros(len(self.deleted), np.float64)
        for at in np.flatnonzero(self.deleted).tolist():
            found[at] = SegmentFile(self, at).deleted_share
        return found

    @cached_property
    def sizes(self) -> list[int]:
        return list(self.size.tolist())

    @cached_property
    def deletions(self) -> list[int]:
        return list(self.deleted.tolist())

    @cached_property
    def _intervals(self) -> FileIntervals | None:
        if self._time is None:
            return None
        found = file_intervals(self._table, self._time, TAG_CHUNK)
        return FileIntervals(found.codes[self._order], found.distinct, found.spans[self._order])

    @cached_property
    def interval_codes(self) -> IntArray:
        """For each file the index of its interval in `intervals`; -1 if it has none."""
        found = self._intervals
        return found.codes if found is not None else np.full(len(self._order), -1, np.int64)

    @cached_property
    def intervals(self) -> tuple[TimeInterval | None, ...]:
        """The distinct intervals, and None at the end, for code -1."""
        return (*(self._intervals.distinct if self._intervals is not None else ()), None)

    @cached_property
    def codes(self) -> list[int]:
        return list(self.interval_codes.tolist())

    @cached_property
    def spans(self) -> BoolArray:
        found = self._intervals
        return found.spans if found is not None else np.zeros(len(self._order), np.bool_)

    @cached_property
    def layouts(self) -> list[str | None]:
        """For each file the tag that records the order of its rows."""
        return list(self.tags(TAG_LAYOUT).to_pylist())

    def tags(self, key: str) -> pa.Array:
        """For each file the value of a tag, or null."""
        found = pc.map_lookup(self._table["tags"], key, "first").combine_chunks()
        return found.take(pa.array(self._order))

    @cached_property
    def partition_codes(self) -> IntArray:
        """For each file the index of its values in `partitions`."""
        codes: IntArray = self._partitions[0][self._order]
        return codes

    @cached_property
    def partition_numbers(self) -> list[int]:
        return list(self.partition_codes.tolist())

    @cached_property
    def partitions(self) -> list[PartitionValues]:
        """The distinct partition values, as logged."""
        return self._partitions[1]

    @cached_property
    def by_partition(self) -> tuple[IntArray, list[Partition]]:
        """For each file the index of its partition, and the partitions; values that differ only
        in the order of columns are the same."""
        numbers: dict[Partition, int] = {}
        same = [
            numbers.setdefault(tuple(sorted(values.items())), len(numbers))
            for values in self.partitions
        ]
        return np.array(same, np.int64)[self.partition_codes], list(numbers)

    @cached_property
    def _partitions(self) -> tuple[IntArray, list[PartitionValues]]:
        maps = self._table["partition_values"].combine_chunks()
        offsets = maps.offsets.to_numpy()
        widths = np.diff(offsets)
        if not len(widths):
            return widths.astype(np.int64), []
        first, last = int(offsets[0]), int(offsets[-1])
        keys, values = (
            each.slice(first, last - first).dictionary_encode("encode")
            for each in (maps.keys, maps.items)
        )
        entries = keys.indices.to_numpy() * np.int64(len(values.dictionary) or 1)
        entries += values.indices.to_numpy()
        width = max(1, int(widths.max()))
        # One row per file, padded for files with fewer values.
        table = np.full((len(widths), width), -1, np.int64)
        table[np.arange(width) < widths[:, None]] = entries
        codes, at = number_rows([*table.T])
        found = maps.take(pa.array(at)).to_pylist(maps_as_pydicts="lossy")
        return codes, [each or {} for each in found]

    def among(self, paths: frozenset[str]) -> BoolArray:
        """Which of the files have one of the logged paths."""
        if self._among is None or self._among[0] is not paths:
            found = files_.have_paths(self._table, paths)
            self._among = (paths, np.asarray(found)[self._order])
        return self._among[1]

    def add(self, at: int) -> AddFile:
        found = self._adds.get(at)
        if found is None:
            self.decode([at])
            found = self._adds[at]
        return found

    def decode(self, places: Iterable[int]) -> None:
        """Decode these `add` actions together, which is faster than one by one."""
        missing = [at for at in places if at not in self._adds]
        rows = self._table.take(pa.array(self._order[np.array(missing, np.int64)]))
        self._adds.update(zip(missing, files_.to_adds(rows), strict=True))


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
        return str(self._columns.names[self.segment_code].as_py())

    @property
    def segment_code(self) -> int:
        """The index of its segment in the order of the version's segments."""
        return int(self._columns.segments[self._at])

    @property
    def layout(self) -> str | None:
        """The order in which a compaction wrote its rows, as its tag records."""
        return self._columns.layouts[self._at]

    @property
    def partition_values(self) -> PartitionValues:
        return self._columns.partitions[self._columns.partition_numbers[self._at]]

    @property
    def deleted_share(self) -> float:
        """The share of deleted rows, 0 to 1; 1 if some are deleted of an unknown number."""
        if not self.deleted:
            return 0.0
        return min(1.0, self.deleted / self.rows) if self.rows else 1.0

    @property
    def live_bytes(self) -> int:
        """Estimated bytes of the rows that are not deleted."""
        if not self.deleted or not self.rows:
            return self.size
        return self.size * max(self.rows - self.deleted, 0) // self.rows

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
