"""A Spark data source over our own reader and writer (Python data source API, Arrow batches).

So Spark's tasks need no Hadoop file system, no second set of credentials, and no Delta jars
(`docs/decisions/0022-spark-reads-through-our-store.md`). What to read or write is a small file
that the driver put beside the job's other control files; options name it.

Reading adds two hidden columns: which input a row is from, and its position in that file.
Writing splits rows by partition value, writes data files, and answers where each row landed.
Spark runs `commit` in a process of its own, so that the answer takes the way through the store.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from tandem.delta.conform import all_nullable, conform, forbidden_null
from tandem.delta.dv import from_base64
from tandem.delta.parquet import DataFileReader
from tandem.delta.parquet_write import ParquetDataWriter, WrittenFile
from tandem.delta.partition_text import to_scalar
from tandem.delta.values import partition_texts
from tandem.errors import (
    CountMismatch,
    ManifestInvalid,
    SourceUnreadable,
    StatementFailed,
    StorageError,
)
from tandem.spark.control import Control, encode, output_file, table_format
from tandem.spark.counters import Counter
from tandem.spark.ipc import to_file as to_file
from tandem.spark.ipc import to_stream
from tandem.spark.job import Format, InputFile, OutputFile, Table
from tandem.spark.stripes import Stripe, Stripes, stripes
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tandem-rows"
INPUT = "__tandem_input"
POSITION = "__tandem_position"
HIDDEN = (INPUT, POSITION)
STRIPE_BYTES = 48 << 20
"""About what one task reads: small files together, large ones in stripes of row groups."""

MATCHES = pa.schema(
    [
        ("input", pa.int32()),
        ("position", pa.int64()),
        ("output", pa.int32()),
        ("output_position", pa.int64()),
    ]
)


class Spelling(Format):
    """A partition value of an input that its log spells in another way than we do: `logged` in
    place of `ours`. Rows that keep the value keep its text."""

    input: int
    column: str
    ours: str | None
    logged: str | None


class Work(Format):
    """What a read reads, or a write writes, and where its control files are."""

    table: Table
    inputs: tuple[InputFile, ...] = ()
    columns: tuple[str, ...] = ()
    data_prefix: str = ""
    target_file_size: int = 0
    answer_path: str = ""
    round: int = 0
    counters: str = ""
    """Where the control store holds the readers' progress, "" for nowhere."""
    spellings: tuple[Spelling, ...] = ()
    """For a write of rows that were in the table."""
    source: bool = False
    """The inputs are no files of the table, but those of a source."""


class Answer(Format):
    """What a committed write answers; `matches` is the path of an Arrow file, "" for none."""

    outputs: tuple[OutputFile, ...]
    rows: int
    matches: str = ""


def spellings(
    table: Table, inputs: Sequence[InputFile], changed: Sequence[str] = ()
) -> tuple[Spelling, ...]:
    """How the inputs' partition values are spelt where we spell them in another way.

    Args:
        changed: columns (lower case) whose values are set, and written as ours.
    """
    format_ = table_format(table)
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
                    Spelling(input=number, column=column.name, ours=ours[key], logged=logged)
                )
    return tuple(found)


def shares(inputs: Sequence[InputFile]) -> list[Stripes]:
    """What each task reads; parts are of row groups."""
    return stripes([i.size for i in inputs], STRIPE_BYTES)


class RowsSource(DataSource):
    """`spark.read.format("tandem-rows")`; options: see `put_work`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _work(self) -> tuple[Store, Work]:
        store, data = get_work(self.options)
        return store, Work.model_validate_json(data)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(*self._work(), tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return RowsWriter(*self._work(), tuple(schema.names))


def put_work(control: Control, work: Format, round_: int) -> dict[str, str]:
    """Write what a source is to do beside the job's other control files; the source's options.
    They hold no secrets; workers take those from the environment."""
    path, data = control.round_path(round_, f"work-{uuid.uuid4()}.json"), encode(work)
    control.store.put(path, data)
    return {
        "location": control.store.location,
        "storage": json.dumps(dict(control.spec.table.storage_options)),
        "work": path,
        "digest": hashlib.sha256(data).hexdigest(),
    }


def get_work(options: Mapping[str, str]) -> tuple[Store, bytes]:
    """The table's store, and what `put_work` wrote there: it says what a worker reads, so what
    somebody else put in its place is not believed.

    Raises: ManifestInvalid, StorageError.
    """
    store = open_store(options["location"], json.loads(options["storage"]))
    data = store.get(options["work"])
    if hashlib.sha256(data).hexdigest() != options["digest"]:
        raise ManifestInvalid(
            "a control file of the job is not what its driver wrote",
            resource=options["work"],
            remedy="Find out who else writes to the table's _tandem folder",
        )
    return store, data


class RowsReader(DataSourceReader):
    def __init__(self, control: Store, work: Work, names: tuple[str, ...]) -> None:
        self._control = control
        self._work = work
        self._names = names
        table = table_format(work.table)
        # As the schema that Spark is told: what must not be null is checked when it is written.
        self._table = replace(table, schema=all_nullable(table.schema))
        self._storage = dict(work.table.storage_options)

    def partitions(self) -> Sequence[InputPartition]:
        return shares(self._work.inputs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Stripes)
        store = open_store(
            self._work.table.location,
            self._storage,
            allowed_prefixes=self._work.table.allowed_prefixes,
        )
        counter = Counter(self._control, self._work.counters, partition.number)
        for stripe in partition.stripes:
            try:
                yield from self._stripe(store, stripe)
            except StorageError as error:
                raise (broken(error) if self._work.source else None) or error from error
            if self._work.counters:
                counter.add()
        counter.show()

    def _stripe(self, store: Store, stripe: Stripe) -> Iterator[pa.RecordBatch]:
        input_ = self._work.inputs[stripe.input]
        hidden = INPUT in self._names
        with DataFileReader(
            store,
            unquote(input_.logged_path),
            self._table,
            partition_values=input_.partition_values,
            columns=[n for n in self._names if n not in HIDDEN],
        ) as reader:
            if reader.num_rows != input_.rows:
                raise CountMismatch(
                    "a data file has another number of rows than the log says",
                    resource=input_.logged_path,
                    found=reader.num_rows,
                    expected=str(input_.rows),
                )
            for batch in reader.batches(
                dead=from_base64(input_.dv) if input_.dv else None,
                positions=POSITION if hidden else None,
                row_groups=stripe.of(len(reader.row_groups)),
                batch_rows=65_536,
            ):
                yield _with_input(batch, stripe.input, self._names) if hidden else batch


def broken(error: StorageError) -> SourceUnreadable | None:
    """The error of a source's file that cannot be decoded; None if the store failed, which may
    do better the next time."""
    if not isinstance(error.__cause__, pa.ArrowInvalid | pa.ArrowNotImplementedError | OSError):
        return None
    return SourceUnreadable(
        "a file of the source is damaged, cut off, or no Parquet file",
        resource=error.resource,
        found=error.found,
        expected="a whole Parquet file",
        remedy="Write the file again",
    )


def _with_input(batch: pa.RecordBatch, input_: int, names: Sequence[str]) -> pa.RecordBatch:
    constant = pa.repeat(pa.scalar(input_, pa.int32()), batch.num_rows)
    columns = [constant if n == INPUT else batch.column(n) for n in names]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote; `matches` is a compressed Arrow IPC stream, `output` in it counts
    this task's files."""

    files: tuple[WrittenFile, ...]
    matches: bytes
    rows: int


@dataclass
class Partition:
    """What a task writes into one partition of the table."""

    writer: ParquetDataWriter
    rows: int = 0
    inputs: list[Any] = field(default_factory=list)
    positions: list[Any] = field(default_factory=list)


Partitions = dict[tuple[str | None, ...], Partition]
"""By partition values as logged."""


def discard(partitions: Partitions, error: BaseException) -> None:
    """Leave nothing of files that are half written."""
    for partition in partitions.values():
        partition.writer.__exit__(type(error), error, None)


class RowsWriter(DataSourceArrowWriter):
    """Writes the table's columns, if there are any, and remembers the hidden ones."""

    def __init__(self, control: Store, work: Work, names: tuple[str, ...]) -> None:
        super().__init__()
        self._control = control
        self._work = work
        self._hidden = INPUT in names
        self._columns = tuple(n for n in names if n not in HIDDEN)
        self._table = table_format(work.table)
        self._logged: dict[str, dict[tuple[int, str | None], str | None]] = {}
        for each in work.spellings:
            self._logged.setdefault(each.column, {})[each.input, each.ours] = each.logged

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._columns:
            return self._positions_only(iterator)
        partitions: Partitions = {}
        try:
            for batch in iterator:
                self.take(partitions, batch)
            return self.written(partitions)
        except BaseException as error:
            discard(partitions, error)
            raise

    def take(self, partitions: Partitions, batch: pa.RecordBatch) -> None:
        """Write a batch; files of partitions that are new are opened."""
        for key, part in self._split(batch):
            if key not in partitions:
                partitions[key] = Partition(self._open(key))
            self._append(partitions[key], part)

    def written(self, partitions: Partitions) -> Written:
        """Close the files."""
        for partition in partitions.values():
            partition.writer.close()
        return self._message(list(partitions.values()))

    def _open(self, key: tuple[str | None, ...]) -> ParquetDataWriter:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        names = [self._table.schema[n].physical_name for n in self._table.partition_columns]
        return ParquetDataWriter(
            self._control,
            self._work.data_prefix,
            self._table,
            partition_values=dict(zip(names, key, strict=True)),
            target_size=self._work.target_file_size,
            task=task,
        )

    def _split(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        """(partition values as logged, rows), rows in their order."""
        names = self._table.partition_columns
        if not names:
            yield (), batch
            return
        keys = [self._texts(batch, name) for name in names]
        rows: dict[tuple[str | None, ...], list[int]] = {}
        for index, key in enumerate(zip(*keys, strict=True)):
            rows.setdefault(key, []).append(index)
        for key, indexes in rows.items():
            for name, text in zip(names, key, strict=True):
                # An empty text that is new has become null; one that was logged is a value.
                if text is None and not self._table.schema[name].nullable:
                    _refuse(name)
            yield key, batch.take(pa.array(indexes, pa.int64())) if len(rows) > 1 else batch

    def _texts(self, batch: pa.RecordBatch, name: str) -> list[str | None]:
        """The partition values of the rows, as they are to be logged."""
        column = batch.column(name)
        try:
            texts = partition_texts(column)
        except UnicodeDecodeError as error:
            raise StatementFailed(
                "a partition value has no text that stands for it",
                field=name,
                found=f"X'{bytes(error.object).hex()}'",
                expected="bytes that are UTF-8: the log keeps partition values as texts",
                remedy="Leave such rows out, or partition by another column",
            ) from error
        logged = self._logged.get(name)
        if logged and self._hidden:
            inputs = batch.column(INPUT).to_pylist()
            texts = [logged.get((i, t), t) for i, t in zip(inputs, texts, strict=True)]
        return texts

    def _append(self, partition: Partition, batch: pa.RecordBatch) -> None:
        arrays = []
        fields = []
        for wanted in self._table.data_schema:
            array = batch.column(wanted.name)
            _refuse(forbidden_null(wanted, array))
            # Not Arrow's own cast, which takes what lies below a null struct for values.
            arrays.append(conform(array, wanted.type))
            fields.append(pa.field(wanted.name, arrays[-1].type))
        partition.writer.write(pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
        partition.rows += batch.num_rows
        if self._hidden:
            partition.inputs.append(batch.column(INPUT))
            partition.positions.append(batch.column(POSITION))

    def _positions_only(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        inputs, positions = [], []
        for batch in iterator:
            inputs.append(batch.column(INPUT))
            positions.append(batch.column(POSITION))
        rows = sum(len(p) for p in positions)
        table = pa.table(
            [
                pa.chunked_array(inputs, pa.int32()),
                pa.chunked_array(positions, pa.int64()),
                pa.nulls(rows, pa.int32()),
                pa.nulls(rows, pa.int64()),
            ],
            schema=MATCHES,
        )
        return Written((), to_stream(table), rows)

    def _message(self, partitions: list[Partition]) -> Written:
        files: list[WrittenFile] = []
        tables = [MATCHES.empty_table()]
        for partition in partitions:
            outputs: list[Any] = []
            places: list[Any] = []
            for file in partition.writer.files:
                outputs.append(pa.repeat(pa.scalar(len(files), pa.int32()), file.rows))
                places.append(pa.array(np.arange(file.rows)))
                files.append(file)
            if self._hidden and partition.rows:
                tables.append(
                    pa.table(
                        [
                            pa.chunked_array(partition.inputs, pa.int32()),
                            pa.chunked_array(partition.positions, pa.int64()),
                            pa.chunked_array(outputs, pa.int32()),
                            pa.chunked_array(places, pa.int64()),
                        ],
                        schema=MATCHES,
                    )
                )
        rows = sum(p.rows for p in partitions)
        matches = to_stream(pa.concat_tables(tables)) if self._hidden else b""
        return Written(tuple(files), matches, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Of all attempts at each task only the one that Spark accepted is in `messages`."""
        outputs: list[OutputFile] = []
        tables = [MATCHES.empty_table()]
        rows = 0
        for message in messages:
            if not isinstance(message, Written):
                continue
            if message.matches:
                table = pa.ipc.open_stream(message.matches).read_all()
                shifted = pc.add(table["output"], pa.scalar(len(outputs), pa.int32()))
                tables.append(table.set_column(2, MATCHES.field(2), shifted))
            outputs += [output_file(f, round_=self._work.round) for f in message.files]
            rows += message.rows
        path = ""
        if self._hidden:
            path = f"{self._work.answer_path}.matches.arrow"
            self._control.put(path, to_file(self._joined(tables)))
        answer = Answer(outputs=tuple(outputs), rows=rows, matches=path)
        self._control.put(self._work.answer_path, answer.model_dump_json(by_alias=True).encode())

    def _joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """The tasks' matches as one table, as results have them (`job.JobResult`)."""
        order = [("input", "ascending"), ("position", "ascending")]
        return pa.concat_tables(tables).sort_by(order)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing refers to what was written; the engine cleans the attempt's folder."""


def _refuse(column: str | None) -> None:
    if column is not None:
        raise StatementFailed(
            "a column that must not be null would become null",
            field=column,
            found="NULL",
            expected="a value in every row",
            remedy="Guard the expression with coalesce, or leave such rows out",
        )
