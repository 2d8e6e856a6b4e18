"""The rows of blocks: checks and arranges the rows of an append, and writes and reads block files.

An appended block has one record a key, sorted by key. Does not commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import AddFile
from tandem.delta.char_types import comparable, fitted
from tandem.delta.datafiles.conform import (
    SchemaMismatch,
    conform,
    forbidden_null,
    is_array,
    nulls,
    require_fit,
    require_utf8,
    require_whole_micros,
)
from tandem.delta.datafiles.reader import (
    BATCH_ROWS,
    DataFileReader,
    TableFormat,
    arrow_schema,
)
from tandem.delta.datafiles.writer import ParquetDataWriter, repetitive_columns
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.partitions import combinations, encoded_texts, unstorable
from tandem.delta.schema import ArrayType, DataType, Field, MapType, StructType, to_arrow_type
from tandem.distinct import IntArray
from tandem.errors import CorruptLog, DataFileMissing, InvalidSpec, StorageError, closest_name
from tandem.mergelog.by_key import Records, require_decided, sorted_order, wide, winners
from tandem.mergelog.log_table import (
    DELETED,
    INSTANT,
    LogSettings,
    block_format,
    rules_of_base,
)
from tandem.mergelog.versions import DELETES, FIRST, LAST, Block
from tandem.storage.store import Store

# Checks the columns of an append, and converts them to the types of the table. Pure.
#
# A value is stored as it is, or refused: Arrow would also cast 5 to true, or a moment to its day.
# Only texts of a CHAR or VARCHAR are padded or cut, as Spark does it.


def converted(column: pa.ChunkedArray, field: Field) -> pa.Array:
    """The column in the type of the table's field.

    Raises: pa.ArrowInvalid, pa.ArrowNotImplementedError if a value does not fit.
    """
    array = column.combine_chunks()
    wanted = to_arrow_type(field.type)
    if not array.type.equals(wanted):
        # Under column mapping, nested fields have other names in data files.
        logical = Field(field.name, _without_metadata(field.type))
        require_fit(array.type, logical, by_id=False)
        _require_same_kind(array.type, wanted, field.name)
        require_whole_micros(array, field.name)
        array = conform(array, logical.type)
    require_utf8(array, field.name)
    return fitted(array, field)


def _without_metadata(type_: DataType) -> DataType:
    match type_:
        case StructType():
            return StructType(
                tuple(Field(f.name, _without_metadata(f.type), f.nullable) for f in type_)
            )
        case ArrayType():
            return replace(type_, element=_without_metadata(type_.element))
        case MapType():
            return replace(
                type_, key=_without_metadata(type_.key), value=_without_metadata(type_.value)
            )
        case _:
            return type_


def null_in(column: pa.Array, field: Field) -> str | None:
    """The path of the column, or of a nested one, that has a NULL although it must not."""
    return forbidden_null(field, column)


def _require_same_kind(found: Any, wanted: Any, column: str) -> None:
    """Raises: SchemaMismatch if a value could change, or a field of a struct get lost."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found) or found.equals(wanted):
        return
    if pa.types.is_struct(wanted):
        names = [part.name for part in found]
        for part in found:
            if names.count(part.name) > 1:
                raise SchemaMismatch(f"{column}.{part.name}", "a field twice", "field once")
            at = wanted.get_field_index(part.name)
            if at < 0:
                raise SchemaMismatch(f"{column}.{part.name}", "a field", "field of the table")
            _require_same_kind(part.type, wanted.field(at).type, f"{column}.{part.name}")
    elif is_array(wanted):
        _require_same_kind(found.value_type, wanted.value_type, f"{column}.element")
    elif pa.types.is_map(wanted):
        _require_same_kind(found.key_type, wanted.key_type, f"{column}.key")
        _require_same_kind(found.item_type, wanted.item_type, f"{column}.value")
    elif _kind(wanted) not in _CONVERSIONS.get(_kind(found), {_kind(found)}):
        raise SchemaMismatch(column, str(found), str(wanted))


_CONVERSIONS = {"integer": {"integer", "decimal", "float"}}
"""Conversions to another kind. Values that do not fit are refused one by one."""


def _kind(type_: Any) -> str:
    is_ = pa.types
    if is_.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    tests = {
        "integer": is_.is_integer,
        "float": is_.is_floating,
        "decimal": is_.is_decimal,
        "boolean": is_.is_boolean,
        "date": is_.is_date,
    }
    for kind, test in tests.items():
        if test(type_):
            return kind
    if is_.is_string(type_) or is_.is_large_string(type_) or is_.is_string_view(type_):
        return "string"
    binary = (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary)
    return "binary" if any(test(type_) for test in binary) else str(type_)


MEMORY: Final = 32 << 20
"""About as many bytes of a block are held while its rows are read one part after the other."""
_READ_AHEAD: Final = range(64 << 10, 1 << 20)
"""The least and the greatest number of bytes that are read ahead of each column of a large block:
the first keeps requests to a store few, the second is of no further use."""


def arrange(
    base: Snapshot,
    settings: LogSettings,
    rows: pa.Table | None,
    deletes: pa.Table | None,
    *,
    unordered: bool = False,
) -> pa.Table:
    """The rows of an append in the columns of the log, one record a key, sorted by key.

    Args:
        rows: columns of the base table, in any order; absent ones are NULL.
        deletes: the keys, and the ordering column if there is one. They follow the rows.
        unordered: whether the order of the rows means nothing.
    Raises: InvalidSpec; DuplicateKeys, if rows without an order have the same key.
    """
    parts = [arrow_schema(block_format(base, settings)).empty_table()]
    if rows is not None:
        _require(base, rows, settings.columns, optional=base.schema.names)
        upserts = _filled(base, _complete(base, rows, deleted=False), rows.column_names)
        _check_nulls(base, upserts)
        rules_of_base(base).require_here(upserts)
        parts.append(upserts)
    if deletes is not None:
        _require(base, deletes, settings.columns, optional=settings.columns)
        parts.append(_complete(base, deletes, deleted=True))
    table = pa.concat_tables(parts).combine_chunks()
    _check_keys(base, settings, table)
    _check_partitions(base, table)
    if unordered:
        require_decided(_records(table, settings), settings, base.location)
    kept = table.take(pa.array(winners(_records(table, settings))))
    return kept.take(sorted_order([kept[key].combine_chunks() for key in settings.keys]))


def _filled(base: Snapshot, rows: pa.Table, given: Sequence[str]) -> pa.Table:
    """With what the base table holds in columns that an append lacks."""
    from tandem.statements.local import NeedsSpark  # a parser: compactions need none
    from tandem.statements.local.rules import filled

    try:
        return filled(rows, base.metadata.schema_string, given)
    except NeedsSpark as error:
        raise _wrong(
            base,
            "a column that an append lacks has a value that only Spark computes",
            str(error).partition(":")[0],
            str(error),
            "the column in the append",
        ) from error


def _records(table: pa.Table, settings: LogSettings) -> Records:
    """The rows as records, with their places as instants: the later row of a key wins."""
    return Records(
        tuple(wide(table[key]) for key in settings.keys),
        wide(table[settings.ordering_column]) if settings.ordered else None,
        np.arange(table.num_rows, dtype=np.int64),
        table[DELETED].combine_chunks().to_numpy(zero_copy_only=False),
    )


def _require(
    base: Snapshot, rows: pa.Table, required: Sequence[str], *, optional: Sequence[str]
) -> None:
    names = rows.column_names
    for name in names:
        if name not in optional or names.count(name) > 1:
            meant = closest_name(name, optional)
            expected = f"perhaps {meant}" if meant else ", ".join(optional)
            raise _wrong(base, "an append has a column that is not expected", name, name, expected)
    for name in required:
        if name not in names:
            raise _wrong(base, "an append lacks a column", name, ", ".join(names), name)


def _complete(base: Snapshot, rows: pa.Table, *, deleted: bool) -> pa.Table:
    """All columns of the log, in its order and types."""
    schema = arrow_schema(TableFormat(base.schema))
    columns = [
        _converted(base, rows[field.name], field)
        if field.name in rows.column_names
        else nulls(rows.num_rows, field.type)
        for field in base.schema
    ]
    columns += [pa.repeat(pa.scalar(deleted), rows.num_rows), pa.nulls(rows.num_rows, pa.int64())]
    return pa.table(columns, pa.schema([*schema, (DELETED, pa.bool_()), (INSTANT, pa.int64())]))


def _converted(base: Snapshot, column: pa.ChunkedArray, field: Field) -> pa.Array:
    try:
        return converted(column, field)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _wrong(
            base,
            "a column of an append has values that the table cannot hold",
            error.column if isinstance(error, SchemaMismatch) else field.name,
            f"{column.type}: {str(error)[:200]}",
            str(to_arrow_type(field.type)),
        ) from error


def _check_nulls(base: Snapshot, upserts: pa.Table) -> None:
    for field in base.schema:
        found = null_in(upserts[field.name].combine_chunks(), field)
        if found is not None:
            raise _wrong(base, "a required column is NULL", found, "NULL", "a value")


def _check_keys(base: Snapshot, settings: LogSettings, table: pa.Table) -> None:
    for key in settings.keys:
        if table[key].null_count:
            raise _wrong(base, "a key is NULL", key, "NULL", "a value in every row")


def _check_partitions(base: Snapshot, table: pa.Table) -> None:
    """A merge writes the rows into partitions of the base table: it must not change a value."""
    for name in base.partition_columns:
        wrong = unstorable(table[name].combine_chunks())
        if wrong is not None:
            message = "a partition column cannot hold a value"
            raise _wrong(base, message, name, wrong.found, wrong.expected)


def _wrong(base: Snapshot, message: str, field: str, found: str, expected: str) -> InvalidSpec:
    return InvalidSpec(
        message,
        resource=base.location,
        field=field,
        found=found,
        expected=expected,
        remedy="Correct the rows; nothing was written",
    )


def write_blocks(
    store: Store, prefix: str, table: TableFormat, rows: pa.Table, *, task: int
) -> list[AddFile]:
    """Write the rows as one file per group, without tags of instants.

    Args:
        table: how blocks of the log are written.
        prefix: folder below the log's root.
        task: a number that the names of the files show.
    """
    written = []
    for values, part, _ in by_group(table, rows):
        data = part.select(table.data_schema.names)
        with ParquetDataWriter(
            store,
            prefix,
            table,
            partition_values=values,
            partition_folders=False,
            task=task,
            dictionary=repetitive_columns(table, data),
            checksums=True,
        ) as writer:
            for batch in data.to_batches():
                writer.write(batch)
            (file,) = writer.close()
        deletes = int(pc.sum(part[DELETED]).as_py())
        written.append(
            AddFile(
                logged_path=file.path,
                partition_values=dict(values),
                size=file.size,
                modified_ms=file.modified_ms,
                data_change=True,
                stats=file.stats,
                tags={DELETES: str(deletes)},
            )
        )
    return written


def by_group(
    table: TableFormat, rows: pa.Table
) -> list[tuple[dict[str, str | None], pa.Table, IntArray]]:
    """For each partition its values in the form of the log, its rows, and their indexes."""
    if not table.partition_columns:
        return [({}, rows, np.arange(rows.num_rows, dtype=np.int64))]
    names = [table.schema[name].physical_name for name in table.partition_columns]
    columns = [encoded_texts(rows[name].combine_chunks()) for name in table.partition_columns]
    numbers, texts = combinations(columns)
    order = np.argsort(numbers, kind="stable")
    # Sorted once: a search for each group would read all rows as often as there are groups.
    ordered = rows if len(texts) == 1 else rows.take(pa.array(order))
    ends = np.searchsorted(numbers[order], np.arange(len(texts)), side="right")
    found, start = [], 0
    for values, end in zip(texts, ends.tolist(), strict=True):
        part = ordered.slice(start, end - start)
        found.append((dict(zip(names, values, strict=True)), part, order[start:end]))
        start = end
    return found


def tagged(add: AddFile, first: int, last: int) -> AddFile:
    """The `add` of a block of these instants."""
    return replace(add, tags={**add.tags, FIRST: str(first), LAST: str(last)})


def _missing(block: Block, resource: str) -> DataFileMissing:
    return DataFileMissing(
        f"a block of the log, with records of {block.instants}, does not exist",
        resource=resource,
        found="no such object",
        expected="the file: a version refers to it",
        remedy="If you read an earlier version: the blocks of versions before the retention of "
        "files are cleaned, so read a later one. Otherwise a restore of the base table has "
        "brought back a block that was cleaned: restore the version before that restore, or "
        "the file from a backup, or give up its records with `tandem log resolve --discard`",
    )


class BlockReader:
    """An open block: its rows with these columns, `DELETED`, and `INSTANT` without NULLs. Use as a
    context manager.

    Args:
        memory: bytes of a part of the rows, and of the file's pages beside it, about; None for no
            limit.
    Raises: DataFileMissing, StorageError.
    """

    def __init__(
        self,
        store: Store,
        block: Block,
        table: TableFormat,
        columns: Sequence[str],
        *,
        memory: int | None,
    ) -> None:
        wanted = [*columns, DELETED, INSTANT]
        ahead = 0
        if memory is not None and block.size > memory:
            ahead = min(max(memory // len(wanted), _READ_AHEAD.start), _READ_AHEAD.stop)
        self.schema = arrow_schema(table, wanted)
        self._block = block
        self._resource = f"{store.location}/{block.path}"
        self._memory = memory
        try:
            self._reader = DataFileReader(
                store,
                block.path,
                table,
                partition_values=dict(block.group),
                columns=wanted,
                read_ahead=ahead,
            )
        except DataFileMissing as error:
            raise _missing(block, self._resource) from error

    @property
    def num_rows(self) -> int:
        return self._reader.num_rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, in order. Raises: StorageError, also if a page does not match its checksum."""
        most = BATCH_ROWS
        if self._memory is not None:
            most = min(max(self._memory // self._reader.row_bytes, 1), BATCH_ROWS)
        for batch in self._reader.batches(batch_rows=most):
            if batch.column(DELETED).null_count:
                raise StorageError(
                    "a block does not say which of its records are deletes",
                    resource=self._resource,
                    field=DELETED,
                    found="NULL",
                    expected="true or false in every row",
                    remedy="Restore the file from a backup",
                )
            instants = pc.fill_null(batch.column(INSTANT), self._block.first)
            yield batch.set_column(batch.num_columns - 1, INSTANT, instants)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_block(store: Store, block: Block, table: TableFormat, columns: Sequence[str]) -> pa.Table:
    """All rows of a block. Raises: as `BlockReader` and its `batches`."""
    with BlockReader(store, block, table, columns, memory=None) as reader:
        return pa.Table.from_batches(list(reader.batches()), reader.schema)


def rows_at(
    store: Store, block: Block, table: TableFormat, columns: Sequence[str], rows: IntArray
) -> Iterator[tuple[pa.RecordBatch, slice]]:
    """Some rows of a block, in parts that take little memory, and which of `rows` each part has.

    Args:
        rows: places in the block, ascending.
    Raises: as `read_block`.
    """
    start = 0
    with BlockReader(store, block, table, columns, memory=MEMORY) as reader:
        for batch in reader.batches():
            first, last = np.searchsorted(rows, [start, start + batch.num_rows]).tolist()
            if first < last:
                mine = pa.array(rows[first:last] - start)
                yield batch.select(list(columns)).take(mine), slice(first, last)
            start += batch.num_rows


def records_of(
    rows: pa.Table, table: TableFormat, settings: LogSettings, path: str = ""
) -> Records:
    """Rows of the block at `path` as records. Raises: CorruptLog, if a key is NULL."""
    require_keys(rows, settings, path)
    deciding = [comparable(wide(rows[name]), table.schema[name]) for name in settings.columns]
    return Records(
        tuple(deciding[: len(settings.keys)]),
        deciding[-1] if settings.ordered else None,
        rows[INSTANT].combine_chunks().to_numpy().astype(np.int64),
        rows[DELETED].combine_chunks().to_numpy(zero_copy_only=False),
    )


def require_keys(rows: pa.Table | pa.RecordBatch, settings: LogSettings, path: str) -> None:
    """Raises: CorruptLog, if a row of the block at `path` has a NULL in a key."""
    for key in settings.keys:
        if rows[key].null_count:
            # As if the block lacked the column: such records would be taken for one of each other.
            raise CorruptLog(
                "a record of the log has no key",
                resource=path,
                field=key,
                found="NULL",
                expected="a value in each record of a block",
                remedy="If the key was dropped and added again, restore the table to the version "
                "before; else restore the block from a backup",
            )
