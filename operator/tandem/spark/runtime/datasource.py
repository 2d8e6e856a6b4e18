"""A Spark data source over our own reader and writer (Python data source API, Arrow batches).

So Spark's tasks need no Hadoop file system, no second set of credentials, and no Delta jars
(`docs/decisions/0022-spark-reads-through-our-store.md`). A small file that the driver writes beside
the job's other control files describes the read or write; options name it.

Reading adds two hidden columns: the input that a row is from, and its position in that file.
Writing splits rows by partition value, writes data files, and returns the position of each row.
Spark runs `commit` in a separate process, so the result is passed through the store.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.writer import WrittenFile
from tandem.delta.dv import from_base64
from tandem.errors import ManifestInvalid, StorageError
from tandem.jobs.formats import Format, InputFile
from tandem.jobs.results import OutputFile
from tandem.spark.runtime.control import (
    Control,
    Counter,
    encode,
    job_table_format,
    output_file,
    to_file,
    to_stream,
)
from tandem.spark.runtime.listing import decoding_error
from tandem.spark.runtime.row_files import (
    HIDDEN,
    INPUT,
    MATCHES,
    POSITION,
    InputSplit,
    RowFiles,
    RowsWork,
    RowsWritten,
    open_input,
)
from tandem.spark.runtime.written_facts import store_facts
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# Distribution of inputs over Spark's tasks: small ones together, large ones in parts.


class TaskSplits(InputPartition):
    """The splits that one task reads, in order; `number` is the index of the task."""

    def __init__(self, number: int, splits: tuple[InputSplit, ...]) -> None:
        super().__init__(number)
        self.number = number
        self.splits = splits


def task_splits(sizes: Sequence[int], target: int, whole: Collection[int] = ()) -> list[TaskSplits]:
    """Tasks of about `target` bytes each, in the inputs' order.

    Args:
        sizes: sizes of the inputs in bytes.
        whole: indexes of inputs that cannot be split.
    """
    found: list[tuple[InputSplit, ...]] = []
    together: list[InputSplit] = []
    filled = 0
    for index, size in enumerate(sizes):
        parts = 1 if index in whole else max(1, round(size / target))
        if parts > 1:
            found += [(InputSplit(index, part, parts),) for part in range(parts)]
            continue
        together.append(InputSplit(index))
        filled += size
        if filled >= target:
            found.append(tuple(together))
            together, filled = [], 0
    if together:
        found.append(tuple(together))
    return [TaskSplits(number, shares) for number, shares in enumerate(found)]


# A Spark data source over our own reader and writer (Python data source API, Arrow batches).


NAME = "tandem-rows"
STRIPE_BYTES = 48 << 20
"""The approximate size that one task reads: small files together, large ones in row groups."""


class WriteResult(Format):
    """The result of a committed write; `matches` is the path of an Arrow file, "" for none."""

    outputs: tuple[OutputFile, ...]
    rows: int
    matches: str = ""
    chunks_together: int = 0


def shares(inputs: Sequence[InputFile]) -> list[TaskSplits]:
    """The splits that each task reads; parts of a file are row groups."""
    return task_splits([i.size for i in inputs], STRIPE_BYTES)


class RowsSource(DataSource):
    """`spark.read.format("tandem-rows")`; options: see `put_work`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _work(self) -> tuple[Store, RowsWork]:
        store, data = get_work(self.options)
        return store, RowsWork.model_validate_json(data)

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(*self._work(), tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return RowsWriter(*self._work(), tuple(schema.names))


def put_work(control: Control, work: Format, round_: int) -> dict[str, str]:
    """Write the work of a source beside the job's other control files; returns the source's
    options. They contain no secrets; workers read those from the environment."""
    path, data = control.round_path(round_, f"work-{uuid.uuid4()}.json"), encode(work)
    control.store.put(path, data)
    return {
        "location": control.store.location,
        "storage": json.dumps(dict(control.spec.table.storage_options)),
        "work": path,
        "digest": hashlib.sha256(data).hexdigest(),
    }


def get_work(options: Mapping[str, str]) -> tuple[Store, bytes]:
    """The table's store, and the content that `put_work` wrote. It determines what a worker reads,
    so a file that another writer put in its place is refused.

    Raises: ManifestInvalid, StorageError.
    """
    store = open_store(options["location"], json.loads(options["storage"]))
    data = store.get(options["work"])
    if hashlib.sha256(data).hexdigest() != options["digest"]:
        raise ManifestInvalid(
            "a control file of the job is not what its driver wrote",
            resource=options["work"],
            remedy="Find out what else writes to the table's _tandem folder",
        )
    return store, data


class RowsReader(DataSourceReader):
    def __init__(self, control: Store, work: RowsWork, names: tuple[str, ...]) -> None:
        self._control = control
        self._work = work
        self._names = names
        table = job_table_format(work.table)
        # As the schema declared to Spark: the writer checks nullability.
        self._table = replace(table, schema=all_nullable(table.schema))
        self._storage = dict(work.table.storage_options)

    def partitions(self) -> Sequence[InputPartition]:
        return shares(self._work.inputs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskSplits)
        store = open_store(
            self._work.table.location,
            self._storage,
            allowed_prefixes=self._work.table.allowed_prefixes,
        )
        counter = Counter(self._control, self._work.counters, partition.number)
        for split in partition.splits:
            try:
                yield from self._read_split(store, split)
            except StorageError as error:
                raise (decoding_error(error) if self._work.source else None) or error from error
            if self._work.counters:
                counter.add()
        counter.show()

    def _read_split(self, store: Store, split: InputSplit) -> Iterator[pa.RecordBatch]:
        input_ = self._work.inputs[split.input]
        hidden = INPUT in self._names
        columns = [n for n in self._names if n not in HIDDEN]
        exact = self._work.source
        with open_input(store, self._table, input_, columns, exact=exact) as reader:
            for batch in reader.batches(
                dead=from_base64(input_.dv) if input_.dv else None,
                positions=POSITION if hidden else None,
                row_groups=split.of(len(reader.row_groups)),
                batch_rows=65_536,
            ):
                yield _with_input(batch, split.input, self._names) if hidden else batch


def _with_input(batch: pa.RecordBatch, input_: int, names: Sequence[str]) -> pa.RecordBatch:
    constant = pa.repeat(pa.scalar(input_, pa.int32()), batch.num_rows)
    columns = [constant if n == INPUT else batch.column(n) for n in names]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


@dataclass
class TaskOutput(WriterCommitMessage):
    """The output of one task; `matches` is a compressed Arrow IPC stream whose `output` is an
    index into this task's files."""

    files: tuple[WrittenFile, ...]
    matches: bytes
    rows: int
    together: frozenset[int] = frozenset()


def task_number() -> int:
    """The number of the running task; 0 outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0


def as_message(written: RowsWritten, *, hidden: bool) -> TaskOutput:
    """A task's message to the driver about the files that it wrote."""
    matches = to_stream(written.matches) if hidden else b""
    return TaskOutput(written.files, matches, written.rows, written.together)


class RowsWriter(RowFiles, DataSourceArrowWriter):
    """Writes the table's columns to data files; the driver joins the messages of all tasks."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return as_message(self.write_all(iterator), hidden=self._hidden)

    def _task(self) -> int:
        return task_number()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """`messages` has, of all attempts at each task, only the one that Spark accepted."""
        outputs: list[OutputFile] = []
        tables = [MATCHES.empty_table()]
        rows = 0
        together: set[int] = set()
        for message in messages:
            if not isinstance(message, TaskOutput):
                continue
            together |= message.together
            if message.matches:
                table = pa.ipc.open_stream(message.matches).read_all()
                shifted = pc.add(table["output"], pa.scalar(len(outputs), pa.int32()))
                tables.append(table.set_column(2, MATCHES.field(2), shifted))
            outputs += [output_file(f, round_=self._work.round) for f in message.files]
            rows += message.rows
        files = (f for m in messages if isinstance(m, TaskOutput) for f in m.files)
        store_facts(self._control, self._work.table.table_id, files)
        path = ""
        if self._hidden:
            path = f"{self._work.answer_path}.matches.arrow"
            self._control.put(path, to_file(self._joined(tables)))
        answer = WriteResult(
            outputs=tuple(outputs), rows=rows, matches=path, chunks_together=len(together)
        )
        self._control.put(self._work.answer_path, answer.model_dump_json(by_alias=True).encode())

    def _joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """The tasks' matches as one table, in the form of results
        (`tandem.jobs.results.JobResult`)."""
        order = [("input", "ascending"), ("position", "ascending")]
        return pa.concat_tables(tables).sort_by(order)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing refers to the files written; the engine cleans the attempt's folder."""
