"""Rows as data files of a table, one or more for each partition, and the position of each row.

All new rows are written here: those that Spark has evaluated (`frames.write_rows`,
`spark.jobs.spark_merge`), those that tasks evaluate over Arrow, and those of rounds that are too
small for a job. It must not import Spark, which the engine does not need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import SchemaMismatch, conform, forbidden_null, require_utf8
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile, limit_held
from tandem.delta.partitions import (
    EncodedTexts,
    combinations,
    encoded_texts,
    partition_texts,
    to_scalar,
)
from tandem.delta.schema import PrimitiveType
from tandem.distinct import IntArray, number_rows
from tandem.errors import CountMismatch, StatementFailed
from tandem.jobs.formats import InputFile, JobTable, TimeBorders
from tandem.jobs.results import OutputFile
from tandem.spark.runtime.control import job_table_format, origin_of, output_file, to_stream
from tandem.spark.runtime.written_facts import FileDescriber
from tandem.statements.local.rules import LocalRules, violation
from tandem.storage import Store
from tandem.storage.paths import object_path
from tandem.timeline.file_columns import chunk_starts

MOST_CHUNKS = 1_000
"""The most chunks for which a task writes files of their own; the others share files."""

INPUT = "__tandem_input"
POSITION = "__tandem_position"
HIDDEN = (INPUT, POSITION)
BROKEN = "__tandem_broken"
"""The number of the first rule of the table that a row breaks, NULL for none, where Spark has
evaluated them (`frames.with_rules`)."""

_TEXTS = (PrimitiveType("string"), PrimitiveType("binary"))

MATCHES = pa.schema(
    [
        ("input", pa.int32()),
        ("position", pa.int64()),
        ("output", pa.int32()),
        ("output_position", pa.int64()),
    ]
)
IN_ORDER: Final = [("input", "ascending"), ("position", "ascending")]


@dataclass(frozen=True)
class LoggedPartitionValue:
    """A partition value of an input whose text in the log differs from ours: `logged` instead of
    `ours`. Rows that keep the value keep its text."""

    input: int
    column: str
    ours: str | None
    logged: str | None


@dataclass(frozen=True)
class InputSplit:
    """Part `part` of `parts` of an input."""

    input: int
    part: int = 0
    parts: int = 1

    def of(self, count: int) -> range:
        """The indexes of this part out of `count` items (row groups, bytes)."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


@dataclass(frozen=True, kw_only=True)
class RowsWork:
    """A write of rows."""

    table: JobTable
    data_prefix: str = ""
    target_file_size: int = 0
    logged_values: tuple[LoggedPartitionValue, ...] = ()
    """For rows that are in the table."""
    new_columns: tuple[str, ...] = ()
    """Columns with new values: their texts must be UTF-8. Others are carried over unchanged."""
    borders: TimeBorders | None = None


def open_input(
    store: Store,
    table: TableFormat,
    input_: InputFile,
    columns: Sequence[str],
    *,
    exact: bool = False,
    is_written: bool = False,
) -> DataFileReader:
    """Open an input's reader; the caller closes it.

    Args:
        is_written: it is no file of the table yet: rows without ids have none.
    Raises: CountMismatch if the file has another
    number of rows than the log records; as `DataFileReader`."""
    reader = DataFileReader(
        store,
        object_path(input_.logged_path),
        table,
        partition_values=input_.partition_values,
        columns=columns,
        exact=exact,
        origin=None if is_written else origin_of(input_, table),
    )
    if reader.num_rows != input_.rows:
        found = reader.num_rows
        reader.close()
        raise CountMismatch(
            "the number of rows in a data file differs from the log",
            resource=input_.logged_path,
            found=found,
            expected=str(input_.rows),
        )
    return reader


def logged_partition_values(
    table: JobTable, inputs: Sequence[InputFile], changed: Sequence[str] = ()
) -> tuple[LoggedPartitionValue, ...]:
    """The texts of the inputs' partition values that differ from ours.

    Args:
        changed: columns (lower case) whose values are set, and written with our text.
    """
    format_ = job_table_format(table)
    columns = [format_.schema[n] for n in format_.partition_columns if n.lower() not in changed]
    ours: dict[tuple[str, str | None], str | None] = {}
    found = []
    for number, input_ in enumerate(inputs):
        for column in columns:
            logged = input_.partition_values.get(column.physical_name)
            key = (column.name, logged)
            if key not in ours:
                value = to_scalar(
                    logged, column.type, resource=input_.logged_path, column=column.name
                )
                [ours[key]] = partition_texts(pa.array([value], value.type))
            if ours[key] != logged:
                found.append(
                    LoggedPartitionValue(
                        input=number, column=column.name, ours=ours[key], logged=logged
                    )
                )
    return tuple(found)


@dataclass(frozen=True)
class RowsWritten:
    """Closed files, and the rows in them; `matches` has the origin of each row (`MATCHES`), where
    `output` is an index into these files, and what else there is of hidden columns. It is empty
    without these. `together` are the chunks whose rows share files although there are borders."""

    files: tuple[WrittenFile, ...]
    matches: pa.Table
    rows: int
    together: frozenset[int] = frozenset()

    def sent(self) -> TaskRows:
        """As a task sends it to the driver."""
        return TaskRows(self.files, to_stream(self.matches), self.rows, self.together)


@dataclass(frozen=True)
class TaskRows:
    """The rows that a task has written, or matched, as `RowsWritten`; `matches` is a compressed
    Arrow IPC stream."""

    files: tuple[WrittenFile, ...]
    matches: bytes
    rows: int
    together: frozenset[int] = frozenset()


def unwritten(
    rows: pa.Table | pa.RecordBatch, output: int | None, more: Sequence[str] = ()
) -> pa.Table:
    """Matches of rows that are deleted (no `output`), or stay, from their hidden columns; `more`
    are to be beside these."""
    count = rows.num_rows
    which = pa.repeat(pa.scalar(output, pa.int32()), count)
    columns = [rows[INPUT], rows[POSITION], which, pa.nulls(count, pa.int64())]
    return pa.table([*columns, *(rows[name] for name in more)], schema=matches_with(more))


def matches_with(more: Iterable[str]) -> pa.Schema:
    """The columns of matches beside which there are others, of integers."""
    return pa.schema([*MATCHES, *(pa.field(name, pa.int64()) for name in more)])


def joined(
    answers: Sequence[TaskRows], round_: int, more: Sequence[str] = ()
) -> tuple[tuple[OutputFile, ...], pa.Table]:
    """The outputs of all tasks, and their matches in the form of a result (`JobResult`), with
    `more` columns."""
    outputs: list[OutputFile] = []
    tables = [matches_with(more).empty_table()]
    for answer in answers:
        table = pa.ipc.open_stream(answer.matches).read_all()
        # Rows that are deleted have no output, and those that stay have a number below zero.
        has_file = pc.greater_equal(table["output"], pa.scalar(0, pa.int32()))
        shifted = pc.add(table["output"], pa.scalar(len(outputs), pa.int32()))
        moved = pc.if_else(has_file, shifted, table["output"])
        tables.append(table.set_column(2, MATCHES.field(2), moved))
        outputs += [output_file(file, round_=round_) for file in answer.files]
    return tuple(outputs), pa.concat_tables(tables).sort_by(IN_ORDER)


@dataclass
class PartitionWriter:
    """The files that a task writes into one partition of the table."""

    writer: ParquetDataWriter
    rows: int = 0
    hidden: list[pa.RecordBatch] = field(default_factory=list)
    """The hidden columns of these rows."""


def split_by(batch: pa.RecordBatch, numbers: IntArray) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each of these numbers, one a row; rows in order."""
    found, counts = np.unique(numbers, return_counts=True)
    if len(found) == 1:
        yield int(found[0]), batch
        return
    order, end = np.argsort(numbers, kind="stable"), 0
    for number, count in zip(found.tolist(), counts.tolist(), strict=True):
        start, end = end, end + count
        yield number, batch.take(pa.array(order[start:end]))


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of Spark's is one piece of memory, and any column would keep all of it."""
    return batch.take(pa.array(np.arange(batch.num_rows)))


class RowFiles:
    """Writes the table's columns, if there are any, and collects the hidden ones: `HIDDEN`, and
    integers that are to be beside them in the matches. Use as a context manager, or `write_all`: an
    error leaves no incomplete file.

    Args:
        names: the columns of the batches, in order. Rows with a column of ids were in the table
            before: their files say so. Others get the ids that the log gives to their files.
        task: a number for file names.
    """

    are_blocks: ClassVar[bool] = False
    """Whether they are blocks of a log: with a checksum of each page, in no folders of their
    partition values, and without facts for the index."""

    def __init__(
        self, control: Store, work: RowsWork, names: tuple[str, ...], task: int = 0
    ) -> None:
        self._control = control
        self._work = work
        self._task = task
        table = job_table_format(work.table)
        self._table = table if {*table.row_ids[:1]} <= {*names} else table.without_row_ids
        columns = self._table.schema.names
        self._columns = tuple(n for n in names if n in columns)
        self._hidden = [n for n in names if n not in (*columns, BROKEN)]
        self._matches_schema = matches_with(n for n in self._hidden if n not in HIDDEN)
        self._describe = (
            FileDescriber(control, work.table.table_id) if not self.are_blocks else None
        )
        self._logged: dict[str, dict[tuple[int, str | None], str | None]] = {}
        for each in work.logged_values:
            self._logged.setdefault(each.column, {})[each.input, each.ours] = each.logged
        # By partition values in the form of the log, and the chunk where the work has borders.
        self._partitions: dict[tuple[str | None, ...], PartitionWriter] = {}
        self._chunks: set[int] = set()
        self._together: set[int] = set()

    def write_all(self, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
        """Write all batches, and close the files."""
        if not self._columns:
            return self._positions_only(batches)
        with self:
            for batch in batches:
                self.take(batch)
            return self.written()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        for partition in self._partitions.values() if error else ():
            partition.writer.abort()

    @cached_property
    def _rules(self) -> LocalRules:
        of = self._work.table
        return LocalRules.of(of.schema_string, of.configuration, of.partition_columns)

    def _require_rules(self, batch: pa.RecordBatch) -> None:
        """Check the rules of the table. Raises: ConstraintViolated, NeedsSpark."""
        if BROKEN not in batch.schema.names:
            self._rules.require(batch)
            return
        broken = batch.column(BROKEN)
        if broken.null_count < len(broken):
            at = pc.index(broken.is_valid(), True).as_py()
            rule = self._rules.rules[broken[at].as_py()]
            raise violation(rule.name, rule.text, batch, at, rule.columns)

    def take(self, batch: pa.RecordBatch) -> None:
        """Write a batch; opens files for new partitions.

        Raises: ConstraintViolated for a row that breaks a rule of the table; NeedsSpark if only
            Spark evaluates these rules, and has not; StatementFailed, StorageError.
        """
        self._require_rules(batch)
        partitions = self._partitions
        for key, part in self._split(batch):
            for chunk, rows in self._divided(part):
                place = (*key, *chunk)
                if place not in partitions:
                    partitions[place] = PartitionWriter(self._open(key))
                self._append(partitions[place], rows)
        if self._work.borders is not None:
            limit_held(partition.writer for partition in partitions.values())

    def _divided(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
        """(a name of the chunk, rows) for each chunk that has files of its own."""
        borders = self._work.borders
        if borders is None:
            yield (), batch
            return
        chunks = chunk_starts(batch.column(borders.column), borders.granularity)
        for chunk, rows in split_by(batch, chunks):
            if len(self._chunks) < MOST_CHUNKS:
                self._chunks.add(chunk)
            alone = chunk in self._chunks
            if not alone:
                self._together.add(chunk)
            yield (str(chunk) if alone else "",), rows

    def written(self) -> RowsWritten:
        """Close the files."""
        partitions = list(self._partitions.values())
        for partition in partitions:
            partition.writer.close()
        return self._message(partitions)

    def _open(self, key: tuple[str | None, ...]) -> ParquetDataWriter:
        names = [self._table.schema[n].physical_name for n in self._table.partition_columns]
        return ParquetDataWriter(
            self._control,
            self._work.data_prefix,
            self._table,
            partition_values=dict(zip(names, key, strict=True)),
            partition_folders=not self.are_blocks,
            target_size=self._work.target_file_size,
            task=self._task,
            checksums=self.are_blocks,
            describe=self._describe,
        )

    def _split(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """(partition values in the form of the log, rows), rows in order."""
        names = self._table.partition_columns
        if not names:
            yield (), batch
            return
        codes, keys = combinations([self._texts(batch, name) for name in names])
        for number, key in enumerate(keys):
            for name, text in zip(names, key, strict=True):
                # A new empty text has become null; one from the log is a value.
                if text is None and not self._table.schema[name].nullable:
                    _refuse(name, batch, int(np.flatnonzero(codes == number)[0]))
            whole = len(keys) == 1
            yield key, batch if whole else batch.take(pa.array(np.flatnonzero(codes == number)))

    def _texts(self, batch: pa.RecordBatch, name: str) -> EncodedTexts:
        """The partition values of the rows, in the form of the log."""
        try:
            encoded = encoded_texts(batch.column(name))
        except UnicodeDecodeError as error:
            raise StatementFailed(
                "a partition value cannot be written as a string",
                field=name,
                found=f"X'{bytes(error.object).hex()}'",
                expected="valid UTF-8: the log stores partition values as strings",
                remedy="Leave such rows out, or partition by another column",
            ) from error
        logged = self._logged.get(name)
        if not logged or not self._hidden:
            return encoded
        column, inputs = batch.column(name), batch.column(INPUT).to_numpy()
        indices, first = number_rows((inputs, encoded.indices))
        texts = []
        for at in first:
            ours = encoded.dictionary[encoded.indices[at]]
            # A logged "" is an empty text, not null, and ours is null for both.
            is_new = self._table.schema[name].type in _TEXTS and not column[int(at)].is_valid
            texts.append(ours if is_new else logged.get((int(inputs[at]), ours), ours))
        return EncodedTexts(indices, texts)

    def _append(self, partition: PartitionWriter, batch: pa.RecordBatch) -> None:
        arrays = []
        fields = []
        for wanted in self._table.data_schema:
            array = (
                batch.column(wanted.name)
                if wanted.name in self._columns
                else pa.nulls(batch.num_rows, pa.int64())  # the version of a row with new values
            )
            forbidden = forbidden_null(wanted, array)
            if forbidden is not None:
                at = next(i for i in range(len(array)) if forbidden_null(wanted, array.slice(i, 1)))
                _refuse(forbidden, batch, at)
            if wanted.name in self._work.new_columns:
                require_texts(array, wanted.name)
            # Not Arrow's own cast, which treats the fields below a null struct as values.
            arrays.append(conform(array, wanted.type))
            fields.append(pa.field(wanted.name, arrays[-1].type))
        partition.writer.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        partition.rows += batch.num_rows
        if self._hidden:
            partition.hidden.append(copied(batch.select(self._hidden)))

    def _positions_only(self, batches: Iterable[pa.RecordBatch]) -> RowsWritten:
        hidden = [batch.select(self._hidden) for batch in batches]
        rows = sum(batch.num_rows for batch in hidden)
        nowhere = pa.nulls(rows, pa.int32()), pa.nulls(rows, pa.int64())
        return RowsWritten((), self._matches(hidden, *nowhere), rows)

    def _message(self, partitions: list[PartitionWriter]) -> RowsWritten:
        files: list[WrittenFile] = []
        tables = [self._matches_schema.empty_table()]
        for partition in partitions:
            outputs: list[Any] = []
            places: list[Any] = []
            for file in partition.writer.files:
                outputs.append(pa.repeat(pa.scalar(len(files), pa.int32()), file.rows))
                places.append(pa.array(np.arange(file.rows)))
                files.append(file)
            if self._hidden and partition.rows:
                found = pa.chunked_array(outputs), pa.chunked_array(places)
                tables.append(self._matches(partition.hidden, *found))
        rows = sum(p.rows for p in partitions)
        matches = pa.concat_tables(tables)
        return RowsWritten(tuple(files), matches, rows, frozenset(self._together))

    def _matches(self, hidden: Sequence[pa.RecordBatch], outputs: Any, places: Any) -> pa.Table:
        """Rows with these hidden columns, and where they are."""

        def column(name: str, type_: pa.DataType) -> Any:
            return pa.chunked_array([batch.column(name) for batch in hidden], type_)

        more = [column(f.name, f.type) for f in self._matches_schema if f.name not in MATCHES.names]
        own = column(INPUT, pa.int32()), column(POSITION, pa.int64())
        return pa.table([*own, outputs, places, *more], schema=self._matches_schema)


def require_texts(array: Any, column: str) -> None:
    """Raises: StatementFailed if a new text is not UTF-8: most readers refuse the file then."""
    try:
        require_utf8(array, column)
    except SchemaMismatch as error:
        raise StatementFailed(
            "a new string is not valid UTF-8, and most readers reject such a file",
            field=error.column,
            found=error.found,
            expected="valid UTF-8",
            remedy="Keep such bytes in a BINARY column, or leave such rows out",
        ) from error


def _refuse(column: str, rows: pa.RecordBatch, at: int) -> NoReturn:
    error = violation(column, "NOT NULL", rows, at, frozenset([column]))
    error.message = "a column that must not be null would become null"
    error.remedy = "Guard the expression with coalesce, or leave such rows out"
    raise error
