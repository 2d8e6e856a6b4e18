"""Encodes columns of a row group so that the schema of a file, and its other columns, go with them.

The codec of each, whether it has a dictionary, a page index or a bloom filter, is as in the row
group that it takes the place of; filters that the table asks for are added. No I/O: what is encoded
is in memory, so the caller bounds it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, chain
from typing import Any, BinaryIO, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandem.delta.datafiles import footer as n
from tandem.delta.datafiles.bloom_filters import can_be_filtered, filter_options
from tandem.delta.datafiles.conform import conform
from tandem.delta.datafiles.copyable import CODECS, FileColumn, Unfit, file_columns
from tandem.delta.datafiles.footer import (
    ColumnChunk,
    FileFooter,
    FooterInvalid,
    RowGroup,
    parse,
    read_footer,
)
from tandem.delta.datafiles.joined_files import ChunkSource
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.stats import leaves_of, parquet_leaves, summaries
from tandem.delta.datafiles.writer import arrow_writer, encoded_as, kept_dictionary
from tandem.delta.schema import StructType

# The new values of some rows of a file, and how they take the place of its own. No I/O.
#
# Positions are physical: they count the rows of the file, deleted ones included.


_MOST_SLICES: Final = 32
"""Of a batch: more are sooner filtered than put together."""
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NewValues:
    """New values of some rows of a file.

    Attributes:
        positions: of the rows in the file, ascending.
        rows: row k takes the place of that at position k.
        columns: physical names of the top-level columns that `rows` has: of those in
            `TableFormat.data_schema` whose values may differ from those in the file; None for all.
    """

    positions: Positions
    rows: pa.Table
    columns: frozenset[str] | None = None


@dataclass(frozen=True)
class Replacement:
    """What becomes of some rows: `dropped` are the positions of those that are left out, and
    `columns` the new values of the rows at `positions`, which are others, by logical name."""

    dropped: Positions
    positions: Positions
    columns: dict[str, Any]

    @classmethod
    def of(
        cls, rows: int, dropped: Positions, new: NewValues | None, schema: StructType
    ) -> Replacement:
        """Args: rows: of the file. Raises: ValueError for positions that are not ascending, or not
        in the file, for columns that the table does not have, and for rows without them."""
        if new is None or not len(new.positions):
            return cls(dropped, np.empty(0, np.int64), {})
        positions = np.asarray(new.positions, np.int64)
        if positions[0] < 0 or positions[-1] >= rows or (np.diff(positions) <= 0).any():
            raise ValueError(f"positions that are not ascending, below {rows}")
        if len(positions) != new.rows.num_rows:
            raise ValueError(f"{new.rows.num_rows} rows for {len(positions)} positions")
        names = {field.physical_name for field in schema}
        wanted = names if new.columns is None else new.columns
        wanted_names = {field.name for field in schema if field.physical_name in wanted}
        lacking = wanted_names - {*new.rows.column_names}
        if not wanted <= names or lacking:
            raise ValueError(f"columns {sorted({*(wanted - names), *lacking})} are not in both")
        if not wanted:
            return cls(dropped, np.empty(0, np.int64), {})
        live = ~_among(positions, dropped)
        found = {
            field.name: conform(_one_array(new.rows.column(field.name)), field.type)
            for field in schema
            if field.physical_name in wanted
        }
        if not live.all():
            keep = pa.array(live)
            positions, found = positions[live], {n: v.filter(keep) for n, v in found.items()}
        return cls(dropped, positions, found)

    def between(self, start: int, end: int) -> Replacement:
        """The part of it for the positions [start, end)."""
        first, last = np.searchsorted(self.dropped, (start, end))
        low, high = np.searchsorted(self.positions, (start, end))
        found = {name: values.slice(low, high - low) for name, values in self.columns.items()}
        return Replacement(self.dropped[first:last], self.positions[low:high], found)

    def apply(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """The rows of a file from position `start`, with new values, without those that are
        dropped."""
        part = self.between(start, start + batch.num_rows)
        if len(part.positions):
            at = part.positions - start
            columns = [
                replaced(array, at, part.columns[name]) if name in part.columns else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        if len(part.dropped):
            batch = _without(batch, part.dropped - start)
        return batch

    def digest(self) -> bytes:
        """Equal for equal replacements alone, by positions and values."""
        found = blake2b(self.dropped.tobytes(), digest_size=32)
        found.update(len(self.dropped).to_bytes(8, "little") + self.positions.tobytes())
        sink = pa.BufferOutputStream()
        table = pa.table(self.columns)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        found.update(sink.getvalue())
        return found.digest()


def _without(batch: pa.RecordBatch, dropped: Positions) -> pa.RecordBatch:
    """The batch without rows, whose indexes ascend: in slices where they are together, as those of
    an input that is gone."""
    gaps = np.flatnonzero(np.diff(dropped) > 1)
    if len(gaps) >= _MOST_SLICES:
        keep = np.ones(batch.num_rows, np.bool_)
        keep[dropped] = False
        return batch.filter(pa.array(keep))
    starts = [0, *(dropped[gaps] + 1).tolist(), int(dropped[-1]) + 1]
    ends = [int(dropped[0]), *dropped[gaps + 1].tolist(), batch.num_rows]
    kept = [
        batch.slice(start, end - start)
        for start, end in zip(starts, ends, strict=True)
        if start < end
    ]
    return pa.concat_batches(kept) if len(kept) > 1 else kept[0] if kept else batch.slice(0, 0)


def replaced(array: Any, at: Positions, values: Any) -> Any:
    """The array with `values` at the indexes `at`, which are ascending."""
    if pa.types.is_dictionary(array.type):
        both = pa.chunked_array([array, values.dictionary_encode().cast(array.type)])
        old, new = both.unify_dictionaries().chunks
        indices = replaced(old.indices, at, new.indices)
        return pa.DictionaryArray.from_arrays(indices, old.dictionary)
    if pa.types.is_nested(array.type) or pa.types.is_null(array.type):
        order = np.arange(len(array), dtype=np.int64)
        order[at] = len(array) + np.arange(len(at), dtype=np.int64)
        return pa.concat_arrays([array, values.cast(array.type)]).take(pa.array(order))
    mask = np.zeros(len(array), np.bool_)
    mask[at] = True
    return pc.replace_with_mask(array, pa.array(mask), values.cast(array.type))


def _among(positions: Positions, others: Positions) -> NDArray[np.bool_]:
    """Which positions are among others; both are ascending."""
    if not len(others):
        return np.zeros(len(positions), np.bool_)
    at = np.minimum(np.searchsorted(others, positions), len(others) - 1)
    found: NDArray[np.bool_] = others[at] == positions
    return found


def _one_array(column: pa.ChunkedArray) -> Any:
    """Its values in one array; `combine_chunks` returns several of dictionaries that differ."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        return pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
    return found


# Encodes columns of a row group so that the schema of a file, and its other columns, go with them.


_FALSE_POSITIVES: Final = 0.01
"""Of filters that another writer gave a column, which does not say what share it chose."""


class CannotEncode(ValueError):
    """Row groups that a file cannot have, for a reason that its footer does not show: `why`."""

    def __init__(self, message: str, why: Unfit = Unfit.COLUMNS) -> None:
        super().__init__(message)
        self.why = why


class ColumnEncoder:
    """Encodes columns of a file.

    Args:
        footer: of the file, whose columns are those of `table`, in this order (`fits`).
    """

    def __init__(self, footer: FileFooter, table: TableFormat) -> None:
        self._footer = footer
        self._table = table
        self._fields = table.file_schema.fields

    @cached_property
    def _columns(self) -> tuple[FileColumn, ...]:
        return file_columns(self._footer, self._table)

    @cached_property
    def starts(self) -> list[int]:
        """The number of the first Parquet column of each column, and their number."""
        return list(accumulate((leaves_of(c.arrow.type) for c in self._columns), initial=0))

    def leaves(self, columns: Sequence[int]) -> list[int]:
        """The numbers of the Parquet columns of these columns."""
        return list(chain.from_iterable(range(*self.starts[c : c + 2]) for c in columns))

    def encode(
        self, columns: Sequence[int], rows: pa.Table, like: RowGroup, dictionary: Sequence[int]
    ) -> list[ChunkSource]:
        """A row group of some columns.

        Args:
            columns: their numbers in the file.
            rows: their values under logical names, in this order.
            like: a row group of the file, for codecs, filters and page indexes.
            dictionary: the numbers of the Parquet columns that get a dictionary.
        Raises: CannotEncode; FooterInvalid if not all values were encoded.
        """
        stored = {number: self._columns[number].integers for number in columns}
        for number, integers in stored.items():
            if integers is None:
                raise CannotEncode(f"column {self._fields[number].name} is stored in another way")
        parts = []
        for integers in (True, False):
            chosen = [number for number in columns if stored[number] is integers]
            if chosen:
                values = rows.select([self._fields[number].name for number in chosen])
                parts.append(self._part(chosen, values, like, dictionary, integers=integers))
        return parts

    def _part(
        self,
        columns: Sequence[int],
        values: pa.Table,
        like: RowGroup,
        dictionary: Sequence[int],
        *,
        integers: bool,
    ) -> ChunkSource:
        numbers = self.leaves(columns)
        chunks = [like.chunks[number] for number in numbers]
        try:
            rows = self._physical(columns, values)
            paths = [leaf.path for leaf in parquet_leaves(rows.schema)]
            codecs = [CODECS[chunk.codec] for chunk in chunks]
            sink = io.BytesIO()
            with arrow_writer(
                sink,
                rows.schema,
                dictionary=[p for p, at in zip(paths, numbers, strict=True) if at in dictionary],
                compression=dict(zip(paths, codecs, strict=True)),
                store_decimal_as_integer=integers,
                write_page_index=any(chunk.offset_index is not None for chunk in chunks),
                bloom_filter_options=filter_options(
                    self._filters(columns, like), [self._fields[number] for number in columns], rows
                ),
            ) as writer:
                writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        except pa.ArrowInvalid as error:
            # Of required values below NULL, which Arrow takes for forbidden ones.
            raise CannotEncode(str(error)) from error
        source = cast(BinaryIO, pa.BufferReader(sink.getvalue()))
        footer = parse(read_footer(source), source.seek(0, 2))
        [group] = footer.groups
        _require_values(group, rows)
        starts = [self.starts[number] for number in columns]
        return ChunkSource(
            source,
            footer,
            {
                number: _named(chunk, like.chunks[number])
                for number, chunk in zip(numbers, group.chunks, strict=True)
            },
            summaries(zip(starts, rows.columns, strict=True)),
        )

    def _physical(self, columns: Sequence[int], values: pa.Table) -> pa.Table:
        """Under physical names, with what the file requires."""
        fields, arrays = [], []
        for number, found in zip(columns, values.columns, strict=True):
            field = kept_dictionary(self._columns[number].arrow, found.type)
            if any(_lacks_required(field, chunk) for chunk in found.chunks):
                raise CannotEncode(f"NULL in column {field.name}, which the file requires")
            chunks = [encoded_as(chunk, field.type) for chunk in found.chunks]
            fields.append(field)
            arrays.append(_without_unused(pa.chunked_array(chunks, field.type)))
        return pa.table(arrays, schema=pa.schema(fields))

    def _filters(self, columns: Sequence[int], like: RowGroup) -> Mapping[str, float]:
        """The columns with filters, as `TableFormat.filters`."""
        there = {
            self._fields[number].name: _FALSE_POSITIVES
            for number in columns
            if can_be_filtered(self._fields[number])
            and like.chunks[self.starts[number]].filter is not None
        }
        return {**there, **self._table.filters}


def _named(chunk: ColumnChunk, like: ColumnChunk) -> ColumnChunk:
    """A chunk under the name that another has in its file."""
    names = [field for field in like.metadata if field.id == n.M_NAMES]
    others = [field for field in chunk.metadata if field.id != n.M_NAMES]
    fields = sorted([*others, *names], key=lambda field: field.id)
    return replace(chunk, metadata=tuple(fields))


def _lacks_required(field: pa.Field, array: Any) -> bool:
    """Whether an array, of the field's shape, has NULL where the field requires a value. Arrow's
    writer does not notice that of a struct, list or map."""
    if not field.nullable and array.null_count:
        return True
    type_ = field.type
    if not pa.types.is_nested(type_) or pa.types.is_dictionary(type_):
        return False
    if array.null_count:
        array = array.drop_null()
    if pa.types.is_struct(type_):
        return any(map(_lacks_required, type_, array.flatten()))
    if pa.types.is_map(type_):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return _lacks_required(type_.item_field, array.items.slice(start, end - start))
    return _lacks_required(type_.value_field, array.flatten())


def _without_unused(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dictionaries without values that no row has: what is deleted must not stay in the file."""
    if not pa.types.is_dictionary(column.type) or not len(column):
        return column
    column = column.unify_dictionaries()
    dictionary = column.chunk(0).dictionary
    used = np.zeros(len(dictionary), np.bool_)
    for chunk in column.chunks:
        used[np.asarray(chunk.indices.drop_null())] = True
    if used.all():
        return column
    places = np.cumsum(used, dtype=np.int32) - 1
    kept = dictionary.filter(pa.array(used))
    return pa.chunked_array(
        [
            pa.DictionaryArray.from_arrays(pa.array(places).take(chunk.indices), kept)
            for chunk in column.chunks
        ],
        column.type,
    )


def _require_values(group: RowGroup, rows: pa.Table) -> None:
    """Raises: FooterInvalid if a row group has not one value per row, or more of lists and maps."""
    first = 0
    for column in rows.columns:
        for chunk in group.chunks[first : first + leaves_of(column.type)]:
            exact = not _is_repeated(column.type)
            if chunk.values < len(column) or (exact and chunk.values != len(column)):
                raise FooterInvalid(f"{chunk.values} values of {len(column)} rows were encoded")
        first += leaves_of(column.type)
    if group.rows != rows.num_rows:
        raise FooterInvalid(f"{group.rows} rows of {rows.num_rows} were encoded")


def _is_repeated(type_: Any) -> bool:
    if pa.types.is_struct(type_):
        return any(_is_repeated(field.type) for field in type_)
    return pa.types.is_nested(type_) and not pa.types.is_dictionary(type_)
