"""The facts of data files, as columns: one entry per file, and one per row group.

Pure. What is unknown is null, or `UNKNOWN`. A file has no entry for a column in which it has no
usable statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.stats import MOST_ROWS
from tandem.distinct import IntArray
from tandem.index.facts.stored import StoredType

UNKNOWN: Final = -1
_COMPUTED: Final = ("first_group", "file_of_group", "first_row")


@dataclass(frozen=True, slots=True)
class ColumnKey:
    """A top-level column of some files: its name and type in them, and its field id if it has
    one. A column whose type was widened has two."""

    name: str
    type: StoredType
    field_id: int | None = None


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What is known of a column in each row group.

    Attributes:
        low, high: null if unknown.
        nulls: number of NULLs, `UNKNOWN` if unknown.
        filter_start, filter_bytes: where its bloom filter lies in the file, with its header;
            `UNKNOWN` if there is none, or nothing says how long it is.
    """

    low: pa.Array
    high: pa.Array
    nulls: IntArray
    filter_start: IntArray
    filter_bytes: IntArray

    @classmethod
    def unknown(cls, type_: StoredType, groups: int) -> Self:
        none = pa.nulls(groups, type_.bounds)
        nothing = np.full(groups, UNKNOWN)
        return cls(none, none, nothing, nothing, nothing)

    def take(self, groups: IntArray) -> ColumnFacts:
        rows = pa.array(groups)
        return ColumnFacts(
            self.low.take(rows), self.high.take(rows), self.nulls[groups],
            self.filter_start[groups], self.filter_bytes[groups],
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


@dataclass(frozen=True)
class FileFacts:
    """The facts of files.

    Attributes:
        paths: as logged.
        sizes: in bytes.
        rows: physical rows.
        groups: row groups of each file, which follow each other below.
        group_rows: physical rows of each row group.
        group_start, group_bytes: where its pages lie in the file.
    """

    paths: pa.Array
    sizes: IntArray
    rows: IntArray
    groups: IntArray
    group_rows: IntArray
    group_start: IntArray
    group_bytes: IntArray
    columns: Mapping[ColumnKey, ColumnFacts]

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def first_group(self) -> IntArray:
        """The index of each file's first row group."""
        return np.cumsum(self.groups) - self.groups

    @cached_property
    def file_of_group(self) -> IntArray:
        """The file of each row group."""
        return np.repeat(np.arange(len(self)), self.groups)

    @cached_property
    def first_row(self) -> IntArray:
        """The position in its file of each row group's first row."""
        before = np.append(0, np.cumsum(self.group_rows))
        positions: IntArray = before[:-1] - before[self.first_group[self.file_of_group]]
        return positions

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers, and of what was computed of them."""
        own = (self.paths, self.sizes, self.rows, self.groups, self.group_rows, self.group_start,
               self.group_bytes)  # fmt: skip
        computed = [self.__dict__[name] for name in _COMPUTED if name in self.__dict__]
        by_hash = self.__dict__.get("_by_hash", ())
        return sum(each.nbytes for each in (*own, *self.columns.values(), *computed, *by_hash))

    def only(self, columns: Collection[str]) -> FileFacts:
        """The same facts, of columns with these names."""
        kept = {key: column for key, column in self.columns.items() if key.name in columns}
        return replace(self, columns=kept)

    def take(self, files: IntArray) -> FileFacts:
        """The facts of some of the files, in this order."""
        groups = self.groups_of(files)
        return FileFacts(
            self.paths.take(pa.array(files)), self.sizes[files], self.rows[files],
            self.groups[files], self.group_rows[groups], self.group_start[groups],
            self.group_bytes[groups],
            {key: column.take(groups) for key, column in self.columns.items()},
        )  # fmt: skip

    def groups_of(self, files: IntArray) -> IntArray:
        """The indexes of the row groups of some files, file by file."""
        counts = self.groups[files]
        before = np.cumsum(counts) - counts
        places = np.arange(int(counts.sum())) - np.repeat(before, counts)
        return np.repeat(self.first_group[files], counts) + places

    def believed(self, paths: pa.Array, sizes: IntArray, rows: IntArray) -> IntArray:
        """For each file that a version names, the index of its facts; `UNKNOWN` if there are none,
        or they are of a file of another size or number of rows.

        Args:
            paths: as logged.
            rows: physical rows, `UNKNOWN` where the log does not say.
        """
        at = self.index_of(paths)
        # An entry more, which index -1 finds.
        own_sizes, own_rows = np.append(self.sizes, UNKNOWN), np.append(self.rows, UNKNOWN)
        same = (own_sizes[at] == sizes) & ((rows == UNKNOWN) | (own_rows[at] == rows))
        return np.where((at != UNKNOWN) & same, at, UNKNOWN)

    def index_of(self, paths: pa.Array) -> IntArray:
        """For each path the index of its facts, right or not; `UNKNOWN` if there are none."""
        if not len(self):
            return np.full(len(paths), UNKNOWN)
        hashes, files = self._by_hash
        # Not by Arrow's `index_in`, which makes a hash table of all files for each question.
        place = np.searchsorted(hashes, _hashes(paths))
        at: IntArray = files[np.minimum(place, len(files) - 1)]
        same = np.asarray(pc.equal(self.paths.take(pa.array(at)), paths))
        return np.where(same, at, UNKNOWN)

    @cached_property
    def _by_hash(self) -> tuple[IntArray, IntArray]:
        """The hashes of the paths in order, and the file of each. Of two files with one hash, one
        is not found."""
        hashes = _hashes(self.paths)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def check(self) -> None:
        """Raises: ValueError if numbers are none, or contradict each other, or a file is there
        twice."""
        if self.paths.null_count or len(pc.unique(self.paths)) != len(self):
            raise ValueError("a file is there twice, or has no path")
        for numbers in (self.sizes, self.rows, self.groups, self.group_rows):
            if (numbers < 0).any() or (numbers > MOST_ROWS).any():
                raise ValueError("a number that is none")
        too_many = (self.groups > len(self.group_rows)).any()  # their sum might overflow
        if too_many or int(self.groups.sum()) != len(self.group_rows):
            raise ValueError(f"{len(self.group_rows)} row groups, not as the files say")
        before = np.append(0, np.cumsum(self.group_rows))
        if (before[self.first_group + self.groups] - before[self.first_group] != self.rows).any():
            raise ValueError("row groups that do not have the rows of their file")
        for column in self.columns.values():
            if (column.nulls < UNKNOWN).any() or (column.nulls > self.group_rows).any():
                raise ValueError("a number of NULLs that is none")


def _hashes(paths: pa.Array) -> IntArray:
    return np.fromiter(map(hash, paths.to_pylist()), np.int64, len(paths))


def concat(parts: Sequence[FileFacts]) -> FileFacts:
    """The facts of the files of all parts, in their order."""
    if len(parts) == 1:
        return parts[0]
    keys = dict.fromkeys(key for part in parts for key in part.columns)

    def together(name: str) -> IntArray:
        return np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])

    return FileFacts(
        pa.concat_arrays([pa.array([], pa.string()), *(part.paths for part in parts)]),
        together("sizes"), together("rows"), together("groups"), together("group_rows"),
        together("group_start"), together("group_bytes"),
        {key: _joined(key, parts) for key in keys},
    )  # fmt: skip


def _joined(key: ColumnKey, parts: Sequence[FileFacts]) -> ColumnFacts:
    found = [
        part.columns.get(key) or ColumnFacts.unknown(key.type, len(part.group_rows))
        for part in parts
    ]
    return ColumnFacts(
        pa.concat_arrays([column.low for column in found]),
        pa.concat_arrays([column.high for column in found]),
        np.concatenate([column.nulls for column in found]),
        np.concatenate([column.filter_start for column in found]),
        np.concatenate([column.filter_bytes for column in found]),
    )
