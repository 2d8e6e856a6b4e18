"""A Spark data source over our own reader (Python data source API, Arrow batches).

So Spark's tasks need no Hadoop file system, no second set of credentials, and no Delta jars
(`docs/decisions/0022-spark-reads-through-our-store.md`). A small file that the driver writes beside
the job's other control files describes the read; options name it. Two hidden columns are added: the
input that a row is from, and its position in that file.

Python workers of a user's session need this module: it imports little.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import ArrayType, MapType, StructField, StructType

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.dv import from_base64
from tandem.delta.schema import COLLATIONS
from tandem.errors import ManifestInvalid, StorageError
from tandem.jobs.formats import Format, InputFile, JobTable
from tandem.spark.runtime.control import (
    Control,
    Counter,
    StoredCounters,
    encode,
    job_table_format,
)
from tandem.spark.runtime.listing import decoding_error
from tandem.spark.runtime.row_files import HIDDEN, INPUT, POSITION, InputSplit, open_input
from tandem.storage import Store, open_store

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


# A Spark data source over our own reader.


NAME = "tandem-rows"
STRIPE_BYTES = 48 << 20
"""The approximate size that one task reads: small files together, large ones in row groups."""


class RowsRead(Format):
    """A read of rows.

    Attributes:
        inputs: files of the table, or of a `source`.
        counters: the prefix of the readers' progress counters in the control store, "" for none.
    """

    table: JobTable
    inputs: tuple[InputFile, ...]
    counters: str = ""
    source: bool = False


def shares(inputs: Sequence[InputFile]) -> list[TaskSplits]:
    """The splits that each task reads; parts of a file are row groups."""
    return task_splits([i.size for i in inputs], STRIPE_BYTES)


class RowsSource(DataSource):
    """`spark.read.format("tandem-rows")`; options: see `put_work`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:
        store, data = get_work(self.options)
        return RowsReader(store, RowsRead.model_validate_json(data), tuple(schema.names))


def put_work(control: Control, work: Format, round_: int) -> dict[str, str]:
    """Write the work of a source beside the job's other control files; returns the source's
    options. They contain no secrets; workers read those from the environment."""
    path, data = control.round_path(round_, f"work-{uuid.uuid4()}.json"), encode(work)
    control.scratch.put(path, data)
    here = control.scratch.location == control.store.location
    storage = control.spec.table.storage_options if here else {}
    return {
        "location": control.scratch.location,
        "storage": json.dumps(dict(storage)),
        "work": path,
        "digest": hashlib.sha256(data).hexdigest(),
    }


def get_work(options: Mapping[str, str]) -> tuple[Store, bytes]:
    """The store of the work, and the content that `put_work` wrote. It determines what a worker
    reads, so a file that another writer put in its place is refused.

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
    def __init__(self, control: Store, work: RowsRead, names: tuple[str, ...]) -> None:
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
        prefix = self._work.counters
        counters = StoredCounters(self._control, prefix) if prefix else None
        counter = Counter(counters, partition.number)
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


def spark_schema(schema_string: str) -> StructType:
    """From the columns in Delta's metadata; all nullable at any level, and without metadata. Texts
    have no collation: they are copied by their bytes."""
    schema = StructType.fromJson(json.loads(schema_string, object_hook=_without_collations))
    return StructType([StructField(f.name, _nullable(f.dataType), True) for f in schema.fields])


def _without_collations(part: dict[str, Any]) -> dict[str, Any]:
    part.pop(COLLATIONS, None)
    return part


def _nullable(type_: Any) -> Any:
    if isinstance(type_, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True) for f in type_.fields])
    if isinstance(type_, ArrayType):
        return ArrayType(_nullable(type_.elementType), True)
    if isinstance(type_, MapType):
        return MapType(_nullable(type_.keyType), _nullable(type_.valueType), True)
    return type_
