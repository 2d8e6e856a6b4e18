"""Encodes columns of a row group so that the schema of a file, and its other columns, go with them.

The codec of each, whether it has a dictionary, a page index or a bloom filter, is as in the row
group that it takes the place of; filters that the table asks for are added. No I/O: what is encoded
is in memory, so the caller bounds it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, BinaryIO, Final, cast

import numpy as np
import pyarrow as pa

from tandem.delta.datafiles import footer as n
from tandem.delta.datafiles.bloom_filters import can_be_filtered, filter_options
from tandem.delta.datafiles.float_bounds import leaves_of, parquet_leaves, summaries
from tandem.delta.datafiles.footer import (
    ColumnChunk,
    FileFooter,
    FooterInvalid,
    RowGroup,
    parse,
    read_footer,
)
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.rowgroups.joined import ChunkSource
from tandem.delta.datafiles.rowgroups.schema import CODECS, FileColumn, Unfit, file_columns
from tandem.delta.datafiles.writer import arrow_writer, encoded_as, kept_dictionary

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
        self._fields = table.data_schema.fields

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
