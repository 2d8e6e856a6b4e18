"""One data file of a table as Arrow record batches of the table's schema.

The one reader of scans, rewrites, statements and ingests. It reads through `Store`, so it works
with every kind of store. It does not decide which files belong to a version
(`tandem.delta.log.snapshot`) nor which rows are deleted (`tandem.delta.dv`): callers pass both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, BinaryIO, Self, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.delta.datafiles.conform import (
    FieldIndex,
    SchemaMismatch,
    conform,
    missing,
    nulls,
    require_fit,
    require_whole_micros,
    unreadable,
)
from tandem.delta.datafiles.times import ExactParquetFile
from tandem.delta.partitions import to_scalar
from tandem.delta.schema import (
    Field,
    PrimitiveType,
    StructType,
    column_mapping_mode,
    to_arrow_field,
)
from tandem.errors import CorruptDeletionVector, ObjectNotFound, StorageError
from tandem.storage.store import Store

BATCH_ROWS = 131_072
"""Rows of one batch: large enough that Python's overhead is negligible, small enough that a few
columns of strings take only tens of megabytes."""

DICTIONARY_BYTES_PER_VALUE = 3.0
"""A string column that takes fewer encoded bytes per value than this is dictionary-encoded in
practice, and reading it as a dictionary is several times faster than as text."""
_DICTIONARY_BYTES = 1 << 20
"""Bytes of a dictionary at most, as writers limit it by default."""


@dataclass(frozen=True, slots=True)
class TableFormat:
    """What reading and writing data files needs to know of a table.

    `schema` is the logical one, in order; `configuration` the table's properties; `filters` the
    columns of which new files get bloom filters, each with the share of absent values that a filter
    takes for present. `row_ids`: the names of the columns in which files keep the ids of rows and
    their versions (`RowOrigin`), which are no columns of the table, but the last two of `schema`.
    `repeats_partitions`: new files have the partition columns, too.
    """

    schema: StructType
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    filters: Mapping[str, float] = field(default_factory=dict)
    row_ids: tuple[str, ...] = ()
    repeats_partitions: bool = False

    @property
    def mapping(self) -> str:
        return column_mapping_mode(self.configuration)

    @property
    def data_schema(self) -> StructType:
        """The columns of which each row has a value of its own."""
        return self.schema.without(self.partition_columns)

    @property
    def file_schema(self) -> StructType:
        """The columns of new files, in order."""
        if not self.repeats_partitions:
            return self.data_schema
        own, ids = self.without_row_ids.data_schema, map(self.schema.get, self.row_ids)
        partitions = map(self.schema.get, self.partition_columns)
        return StructType((*own, *filter(None, partitions), *filter(None, ids)))

    def with_row_ids(self, names: Sequence[str]) -> TableFormat:
        """The table with these two columns, or none, after its own."""
        columns = (Field(name, PrimitiveType("long")) for name in names)
        schema = StructType((*self.schema.fields, *columns))
        return replace(self, schema=schema, row_ids=tuple(names))

    @property
    def without_row_ids(self) -> TableFormat:
        """The table with its own columns alone."""
        if not self.row_ids:
            return self
        return replace(self, schema=self.schema.without(self.row_ids), row_ids=())

    @property
    def names_of_updated(self) -> tuple[str, ...]:
        """The columns of a row that has new values, in order: with its id, and without a version,
        which is that of the commit then."""
        return tuple(name for name in self.schema.names if name not in self.row_ids[1:])


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """What the log says of the rows of a file for which its columns `TableFormat.row_ids` say
    nothing: the id of the first row, and the version of all (protocol, "Row Tracking")."""

    base_id: int
    version: int

    def ids(self, start: int, rows: int) -> Any:
        """Of the rows from position `start`."""
        first = self.base_id + start
        return pa.array(np.arange(rows, dtype=np.int64) + first)


@dataclass(frozen=True, slots=True)
class _AsTheyAre:
    """Batches whose columns have the table's types: their schema, the places of the columns in the
    order wanted, and the schema that they are returned with."""

    found: pa.Schema
    order: list[int]
    schema: pa.Schema


@dataclass(slots=True)
class _Places:
    """Where the columns are in files of one schema: the index of each in the file, None if it is
    absent; the indexes to read, ascending; and the place of each of these in a batch."""

    schema: pa.Schema
    found: Mapping[str, int | None]
    wanted: Sequence[int]
    places: Mapping[int, int]
    as_they_are: _AsTheyAre | None = None


class DataFileReader:
    """An open data file. Use as a context manager.

    Args:
        path: for the store: decoded, relative to the root or absolute.
        columns: logical names to read, in this order; None for all.
        partition_values: as logged; keys are physical names under column mapping.
        dictionaries: return dictionary-encoded strings as dictionaries if that is faster.
        exact: refuse timestamps with digits beyond microseconds, which are otherwise rounded down.
        read_ahead: bytes of each column that are held in encoded form; 0 for all columns of the
            row groups, which takes fewer requests to the store.
        origin: says which ids and versions the rows have that have none in the file; without it
            they are NULL.
        data: the content of a small file (`read_whole`), which is decoded in one thread: more of
            them take longer than its rows. None to read the file as it is needed.
        like: the reader of another file of the table, with the same columns: what it has found is
            used again if this file has the same schema.
    Checksums of pages are verified where there are some.
    Raises: DataFileMissing; StorageError if it is not a Parquet file, or a column's type does not
        fit.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        table: TableFormat,
        *,
        partition_values: Mapping[str, str | None] | None = None,
        columns: Sequence[str] | None = None,
        dictionaries: bool = False,
        exact: bool = False,
        read_ahead: int = 0,
        origin: RowOrigin | None = None,
        data: bytes | None = None,
        like: DataFileReader | None = None,
    ) -> None:
        self.path = path
        self._is_small = data is not None
        # Most probably those of a similar file; others cost opening this one twice.
        self._compact: list[str] = like._compact if like is not None and dictionaries else []
        self._read_ahead = read_ahead
        self._exact = exact
        self._origins = {} if origin is None else dict.fromkeys(table.row_ids, origin)
        self._ids = table.row_ids[:1]
        self._dictionaries = dictionaries
        self._by_id = table.mapping == "id"
        wanted = table.schema.names if columns is None else columns
        self.fields = tuple(table.schema[name] for name in wanted)
        values = partition_values or {}
        self._constants = {
            f.name: to_scalar(
                values.get(f.physical_name, values.get(f.name)),
                f.type,
                resource=path,
                column=f.name,
            )
            for f in self.fields
            if f.name in table.partition_columns
        }
        try:
            self._source = (
                store.open_input(path) if data is None else cast(BinaryIO, pa.BufferReader(data))
            )
        except ObjectNotFound as error:
            raise missing(path) from error
        try:
            self._file = self._open()
        except (pa.ArrowInvalid, OSError) as error:
            self._source.close()
            raise _unreadable(path, error) from error
        try:
            self._places = self._places_of(like)
        except pa.ArrowInvalid as error:
            self.close()
            raise _unreadable(path, error) from error

    def _open(self) -> ExactParquetFile:
        try:
            parquet = self._opened()
        except KeyError:  # pyarrow's error if the file lacks one of the columns
            self._compact = []
            self._source.seek(0)
            parquet = self._opened()
        if self._dictionaries:
            compact = dictionary_columns(parquet.metadata, parquet.schema)
            if compact != self._compact:
                parquet.read_dictionary(compact)
            self._compact = compact
        return parquet

    def _opened(self) -> ExactParquetFile:
        return ExactParquetFile(
            self._source,
            resource=self.path,
            whole_micros=self._exact,
            pre_buffer=not self._read_ahead and not self._is_small,
            buffer_size=self._read_ahead,
            read_dictionary=self._compact,
        )

    def _places_of(self, like: DataFileReader | None) -> _Places:
        schema = self._file.schema
        if (
            like is not None
            and like._by_id == self._by_id
            and like.fields == self.fields
            and like._constants.keys() == self._constants.keys()
            and like._places.schema.equals(schema, check_metadata=True)
        ):
            return like._places
        candidates = FieldIndex(list(schema))
        found = {
            f.name: candidates.find(f, by_id=self._by_id)
            for f in self.fields
            if f.name not in self._constants
        }
        for f in self.fields:
            index = found.get(f.name)
            if index is not None:
                require_fit(schema.field(index).type, f, by_id=self._by_id)
        # By position: Parquet's paths are joined by dots, so that a name says too little. The
        # columns of a batch keep the order of the file.
        wanted = sorted({i for i in found.values() if i is not None})
        places = {index: place for place, index in enumerate(wanted)}
        return _Places(schema, found, wanted, places)

    @property
    def num_rows(self) -> int:
        """The physical rows, including deleted ones."""
        return int(self._file.metadata.num_rows)

    @cached_property
    def row_groups(self) -> tuple[int, ...]:
        """Rows of each row group."""
        meta = self._file.metadata
        return tuple(meta.row_group(i).num_rows for i in range(meta.num_row_groups))

    @cached_property
    def _starts(self) -> list[int]:
        """The position of the first row of each row group, and the number of rows."""
        return list(accumulate(self.row_groups, initial=0))

    @cached_property
    def row_bytes(self) -> int:
        """About how many bytes a row takes in memory, with all columns of the file."""
        meta = self._file.metadata
        groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
        return 1 + max((_row_bytes(group) for group in groups), default=0)

    @property
    def metadata(self) -> Any:
        return self._file.metadata

    def constant(self, column: str) -> Any | None:
        """The value that a partition column has in all rows, as an Arrow scalar; None for another
        column."""
        return self._constants.get(column)

    def integer_bounds(self, column: str) -> list[tuple[int, int] | None] | None:
        """The least and the greatest value of a column in each row group, by the footer: None for
        one that does not say so. None for a column that is not of integers or dates (as days) in
        this file, whatever its type in the table, and for dates of another calendar (`times`)."""
        index = self._places.found.get(column)
        if index is None:
            return None
        type_ = self._file.schema.field(index).type
        is_date = pa.types.is_date32(type_)
        if not (pa.types.is_signed_integer(type_) or is_date):
            return None
        if is_date and self._file.has_other_dates:
            return None
        leaf = self._file.leaves[index]
        meta = self._file.metadata
        groups = (meta.row_group(number) for number in range(meta.num_row_groups))
        found = [group.column(leaf).statistics for group in groups]
        return [
            (int(bounds.min_raw), int(bounds.max_raw))
            if bounds is not None and bounds.has_min_max
            else None
            for bounds in found
        ]

    def batches(
        self,
        *,
        dead: BitMap64 | None = None,
        positions: str | None = None,
        row_groups: range | None = None,
        batch_rows: int = BATCH_ROWS,
        use_threads: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows in file order.

        Args:
            dead: positions in the file that are left out.
            positions: name of an added last column, int64, with each row's position in the file.
            row_groups: which ones to read; None for all.
        Raises:
            CorruptDeletionVector: `dead` names a position beyond the last row.
            StorageError: the content cannot be decoded, does not match its checksum or the number
                of rows in the footer, or does not fit the table's schema.
            UnsupportedFeature: a date or time does not mean what it says (`times`).
        """
        require_positions(dead, self.num_rows, self.path)
        groups = row_groups if row_groups is not None else range(len(self.row_groups))
        start = self._starts[groups.start]
        try:
            for batch in self._raw(groups, batch_rows, use_threads):
                keep = live_mask(dead, start, batch.num_rows)
                converted = self._convert(batch, positions, start)
                start += batch.num_rows
                if keep is not None:
                    converted = converted.filter(pa.array(keep))
                if converted.num_rows:
                    yield converted
            end = sum(self.row_groups[: groups.stop])
            if start != end:
                # Arrow skips a page whose header is damaged: headers have no checksum.
                raise pa.ArrowInvalid(f"pages of {start} rows, {end} by the footer")
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            names = {each.physical_name: each.name for each in self.fields}
            raise _unreadable(self.path, error, names) from error

    def _raw(self, groups: range, batch_rows: int, use_threads: bool) -> Iterator[pa.RecordBatch]:
        if self._places.wanted:
            yield from self._file.iter_batches(
                batch_size=batch_rows,
                row_groups=list(groups),
                places=self._places.wanted,
                use_threads=use_threads and not self._is_small,
            )
            return
        # Only partition columns, or columns that this file lacks: rows without content.
        left = sum(self.row_groups[g] for g in groups)
        while left > 0:
            rows = min(left, batch_rows)
            yield pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""])
            left -= rows

    def _convert(self, batch: pa.RecordBatch, positions: str | None, start: int) -> pa.RecordBatch:
        rows = batch.num_rows
        known = self._places.as_they_are
        plain = positions is None and not self._exact and not self._origins
        if known is not None and plain and batch.schema.equals(known.found):
            columns = [batch.column(place) for place in known.order]
            return pa.RecordBatch.from_arrays(columns, schema=known.schema)
        arrays: list[Any] = []
        fields: list[pa.Field] = []
        for wanted in self.fields:
            constant = self._constants.get(wanted.name)
            if constant is not None:
                array = pa.repeat(constant, rows)
            else:
                index = self._places.found[wanted.name]
                if self._exact and index is not None:
                    require_whole_micros(self._column(batch, index), wanted.name)
                array = (
                    nulls(rows, wanted.type)
                    if index is None
                    else conform(
                        self._column(batch, index),
                        wanted.type,
                        by_id=self._by_id,
                        dictionaries=self._dictionaries,
                    )
                )
            origin = self._origins.get(wanted.name)
            if origin is not None and array.null_count:
                is_id = wanted.name in self._ids
                found = origin.ids(start, rows) if is_id else pa.scalar(origin.version, pa.int64())
                array = pc.coalesce(array, found)
            arrays.append(array)
            # Nullable whatever the schema says: other writers do not always follow it, and readers
            # return the values that are there.
            fields.append(pa.field(wanted.name, array.type))
        if positions is not None:
            arrays.append(pa.array(np.arange(start, start + rows, dtype=np.int64)))
            fields.append(pa.field(positions, pa.int64()))
        if not arrays:
            # Only so does a batch without columns have a number of rows.
            return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""]).select([])
        schema = pa.schema(fields)
        if plain:
            self._remember(batch.schema, schema)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _column(self, batch: pa.RecordBatch, index: int) -> Any:
        return batch.column(self._places.places[index])

    def _remember(self, found: pa.Schema, schema: pa.Schema) -> None:
        """Remember the schema of a batch if nothing had to be converted."""
        indices = [self._places.found.get(f.name) for f in self.fields]
        order = [self._places.places[index] for index in indices if index is not None]
        if len(order) == len(schema) and all(
            found.field(place).type.equals(field.type)
            for place, field in zip(order, schema, strict=True)
        ):
            self._places.as_they_are = _AsTheyAre(found, order, schema)

    def close(self) -> None:
        self._file.close()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_whole(store: Store, path: str, size: int) -> bytes | None:
    """The content of a data file, in one request; None if it has not the size that the log says:
    then it may have any.

    Raises: DataFileMissing, StorageError.
    """
    try:
        data = store.get_range(path, 0, size + 1)
    except ObjectNotFound as error:
        raise missing(path) from error
    return data if len(data) == size else None


def _row_bytes(group: Any) -> int:
    """About how many bytes a row of a row group takes in memory."""
    columns = (group.column(number) for number in range(group.num_columns))
    return sum(map(_bytes_in_memory, columns)) // max(int(group.num_rows), 1)


def _bytes_in_memory(chunk: Any) -> int:
    """About how many bytes a column takes in memory. Values that are in a dictionary take much less
    in the file: the least and the greatest one stand for all. Writers leave these out if they are
    long."""
    width = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}.get(chunk.physical_type, 8)
    if chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page:
        found = chunk.statistics
        if found is not None and found.has_min_max:
            width += max(len(found.min_raw), len(found.max_raw))
        else:
            width += min(int(chunk.total_uncompressed_size), _DICTIONARY_BYTES)
    return max(int(chunk.total_uncompressed_size), width * int(chunk.num_values))


def arrow_schema(table: TableFormat, columns: Sequence[str] | None = None) -> pa.Schema:
    """The schema of batches that `DataFileReader` gives (all nullable, no dictionaries)."""
    wanted = table.schema.names if columns is None else columns
    return pa.schema([to_arrow_field(table.schema[n]).with_nullable(True) for n in wanted])


def require_positions(dead: BitMap64 | None, rows: int, path: str) -> None:
    """Raises: CorruptDeletionVector if deleted rows are not among the `rows` of their file."""
    if dead and dead.max() >= rows:
        raise CorruptDeletionVector(
            "a deletion vector names a row that its file does not have",
            resource=path,
            found=dead.max(),
            expected=f"positions below {rows}",
            remedy="Restore the table to a version before this deletion vector",
        )


def live_mask(dead: BitMap64 | None, start: int, rows: int) -> Any | None:
    """Boolean numpy mask of the live rows among positions [start, start + rows); None if all
    are live."""
    if not dead:
        return None
    from pyroaring import BitMap64 as Bitmap

    window = dead & Bitmap(range(start, start + rows))
    if not window:
        return None
    keep = np.ones(rows, dtype=np.bool_)
    keep[np.asarray(window.to_array()).astype(np.int64) - start] = False
    return keep


def dictionary_columns(metadata: Any, schema: pa.Schema) -> list[str]:
    """Top-level string columns that are worth reading as dictionaries."""
    if metadata.num_row_groups == 0:
        return []
    strings = {f.name for f in schema if _is_text(f.type)}
    group = metadata.row_group(0)
    chosen = []
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema not in strings or not column.has_dictionary_page:
            continue
        if column.total_uncompressed_size <= DICTIONARY_BYTES_PER_VALUE * max(column.num_values, 1):
            chosen.append(column.path_in_schema)
    return chosen


def _is_text(type_: Any) -> bool:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _unreadable(
    path: str, error: Exception, names: Mapping[str, str] | None = None
) -> StorageError:
    if isinstance(error, SchemaMismatch):
        return StorageError(
            "a column of a data file does not fit the table's",
            resource=path,
            field=error.column,
            found=error.found,
            expected=error.expected,
            remedy="Write the file again, or restore the table to a version without it",
        )
    return unreadable(path, error, names)
