"""`spark.read.format("tandem")` and `writeStream.format("tandem")`, for Spark sessions of users:
the data source that Spark creates, and its registration.

`register(spark)` makes the format known to a session. Executors need this package, and credentials
of the store in their environment. Not for jobs of operations, which read files that the engine has
chosen (`tandem.spark.runtime.datasource`). The merged view is read as tasks, without the files that
filters leave out.

Appends to the log: tasks write blocks, the driver commits them as one batch of a log writer. Spark
repeats a batch after a failure, under the same number; it counts once. What a task or a batch
that failed has written stays: its commit may have been made although the answer was lost. Cleaning
deletes what no version names.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.scan import check_rows, named_columns
from tandem.errors import InvalidSpec, TableReplaced
from tandem.mergelog.view import FilePart, MergedView, Share, open_log, open_view
from tandem.mergelog.winners import WinnerPasses
from tandem.mergelog.writer import LogWriter, Upload, Uploaded
from tandem.pruning.predicate import columns_of
from tandem.pruning.selection import Selection
from tandem.spark.connector_options import WriteOptions, read_options, write_options
from tandem.spark.runtime.datasource import TaskSplits, spark_schema, task_splits
from tandem.spark.runtime.row_files import InputSplit
from tandem.statements.tree import (
    Binary,
    ColumnRef,
    Expr,
    InList,
    IsTest,
    Literal,
    Logical,
    Match,
    Unary,
)
from tandem.statements.types import BOOLEAN, STRING, Schema, SqlType
from tandem.storage.paths import without_userinfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from tandem.spark.connector_options import ReadOptions


BLOCK_BYTES: Final = 256 << 20
"""Arrow bytes of rows that a task holds before it writes them as blocks."""
QUERY_ID: Final = "sql.streaming.queryId"
"""The local property of a task that identifies its stream: it comes with the checkpoint."""


@dataclass(frozen=True)
class TaskBlocks(WriterCommitMessage):
    """What a task wrote; `query` identifies the stream."""

    parts: tuple[Uploaded, ...]
    query: str


class AppendWriter:
    """Writes the rows of a task as blocks. Picklable."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises: InvalidSpec, if the log cannot take such rows; NotMergeOnRead."""
        self._options = options
        self._upload = Upload.begin(open_log(options.location, dict(options.storage)))
        self._check_marker()
        empty = to_arrow_schema(schema, timezone="UTC").empty_table()
        self._upload.arrange(*self._divided(empty))

    def _check_marker(self) -> None:
        name = self._options.deletes
        if name and name in self._upload.base.schema.names:
            raise self._wrong_marker(f"{name}, a column of the table", "another column")

    def _divided(self, rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Upserts and deletes."""
        name = self._options.deletes
        if not name:
            return rows, None
        if name not in rows.column_names or not pa.types.is_boolean(rows[name].type):
            found = str(rows[name].type) if name in rows.column_names else "no such column"
            raise self._wrong_marker(f"{name}: {found}", "a boolean column of the rows")
        marks = rows[name]
        if marks.null_count:
            raise self._wrong_marker("NULL", "true or false in every row")
        others = rows.drop_columns([name])
        deleted = others.filter(marks).select(list(self._upload.settings.columns))
        return others.filter(pc.invert(marks)), deleted

    def _wrong_marker(self, found: str, expected: str) -> InvalidSpec:
        return InvalidSpec(
            "the marker of deletes is invalid",
            resource=self._options.location,
            field="deletes",
            found=found,
            expected=expected,
            remedy="Correct the option `deletes`, or the rows",
        )

    def write_all(self, batches: Iterator[pa.RecordBatch]) -> TaskBlocks:
        """The blocks of a task. Raises: InvalidSpec, DuplicateKeys, StorageError."""
        store = open_log(self._options.location, dict(self._options.storage)).store
        parts: list[Uploaded] = []
        held: list[pa.RecordBatch] = []

        def write() -> None:
            parts.append(self._upload.write(store, *self._divided(pa.Table.from_batches(held))))
            held.clear()

        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= BLOCK_BYTES:
                write()
                size = 0
        if held:
            write()
        return TaskBlocks(tuple(part for part in parts if part.adds), _query())

    def commit_all(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Commit what the tasks wrote; a batch without rows leaves no trace. Raises: as
        `LogWriter.append_uploaded`."""
        found = [message for message in messages if isinstance(message, TaskBlocks)]
        parts = [part for message in found for part in message.parts]
        if not parts:
            return
        name = self._options.writer or found[0].query
        log = open_log(self._options.location, dict(self._options.storage))
        with LogWriter(log, name) as writer:
            writer.append_uploaded(parts, batch=batch)


def _query() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID) or "") if context is not None else ""


class StreamWriter(AppendWriter, DataSourceStreamArrowWriter):
    """A micro-batch of a stream is one batch, under its number."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_all(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.commit_all(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Deletes nothing: the commit may have been made."""


class BatchWriter(AppendWriter, DataSourceArrowWriter):
    """A write is one batch, under the number that the option `batch` gives."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_all(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        assert self._options.batch is not None
        self.commit_all(messages, self._options.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing: the commit may have been made."""


# Filters that Spark pushes, as conditions by which files are left out.
#
# Spark evaluates every filter itself, on the rows that a read gives. So a filter that is not
# understood here, or only partly, only costs time.


_COMPARISONS: Mapping[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_ESCAPE = "\\"
_KNOWN = None | bool | int | float | Decimal | str | bytes | dt.date
"""Types of values that conditions have."""


def conditions(filters: Iterable[Filter], schema_string: str) -> tuple[Expr, ...]:
    """The filters that bounds of files can decide, in terms of the table's columns."""
    types = {column.name: column.type for column in Schema.from_json(schema_string).columns}
    found = (_condition(each, types) for each in filters)
    return tuple(each for each in found if each is not None)


def all_of(wanted: Iterable[Expr]) -> Expr | None:
    """Their conjunction, None for none."""
    operands = tuple(wanted)
    if len(operands) < 2:
        return operands[0] if operands else None
    return Logical(op="AND", operands=operands, type=BOOLEAN)


def on_columns(found: Iterable[Expr], names: Iterable[str]) -> tuple[Expr, ...]:
    """The conditions that name no other columns."""
    known = set(names)
    return tuple(each for each in found if {name for name, _ in columns_of(each)} <= known)


def _condition(filter_: Filter, types: Mapping[str, SqlType]) -> Expr | None:
    if isinstance(filter_, Not):
        child = _condition(filter_.child, types)
        return None if child is None else Unary(op="NOT", operand=child, type=BOOLEAN)
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    type_ = types.get(path[0]) if len(path) == 1 else None
    if type_ is None or not type_.is_atomic:
        return None
    column = ColumnRef(parts=path, type=type_)
    if isinstance(filter_, IsNull | IsNotNull):
        negated = isinstance(filter_, IsNotNull)
        return IsTest(value=column, what="NULL", negated=negated, type=BOOLEAN)
    value: Any = getattr(filter_, "value", None)
    if isinstance(filter_, StringStartsWith) and type_ == STRING:
        pattern = "".join(_ESCAPE + c if c in "%_\\" else c for c in value) + "%"
        return Match(op="LIKE", value=column, pattern=pattern, type=BOOLEAN)
    # Spark has cast the values to the type of the column before.
    items = [
        Literal(value=each, type=type_)
        for each in (value if isinstance(filter_, In) else (value,))
        if isinstance(each, _KNOWN)
    ]
    if isinstance(filter_, In):
        if len(items) < len(value):
            return None
        return InList(value=column, items=tuple(items), type=BOOLEAN)
    op = _COMPARISONS.get(type(filter_))
    if op is None or not items:
        return None
    return Binary(op=op, left=column, right=items[0], type=BOOLEAN)


# The merged view as tasks of Spark.
#
# The versions of base table and log are fixed once, as the table is loaded: all tasks, retries and
# actions of a DataFrame see the same view. A task gets numbers of files and blocks, not their
# contents, and opens the view by its versions; a worker keeps it, with the winners of the log, for
# its next task.


TASK_BYTES: Final = 64 << 20
"""The approximate size that one task reads: small files together, large ones in row groups."""


@dataclass(frozen=True, slots=True)
class ViewVersion:
    """Which view is read. Hashable and small: each task has it.

    Attributes:
        version: of the base table.
        instant: the version of the log, -1 to leave it out.
        table_id: the id of the base table.
        log_id: the id of the log. A recreated log has other records under the same number.
        schema_string: the columns of the base table.
        memory: bytes that the index of the log may take.
    """

    location: str
    storage: tuple[tuple[str, str], ...]
    version: int
    instant: int
    table_id: str
    log_id: str
    schema_string: str
    memory: int

    @classmethod
    def of(cls, view: MergedView, options: ReadOptions) -> ViewVersion:
        return cls(
            options.location,
            options.storage,
            view.base.version,
            view.instant,
            view.base.metadata.id,
            view.log_id if view.instant >= 0 else "",
            view.base.metadata.schema_string,
            options.memory,
        )

    def open(self) -> MergedView:
        """Raises: VersionNotFound, TableReplaced."""
        log = open_log(self.location, dict(self.storage))
        view = MergedView.at(log, self.version, self.instant)
        for what, found, expected in (
            ("table at this location", view.base.metadata.id, self.table_id),
            ("log of the table", view.log_id, self.log_id),
        ):
            if found != expected:
                raise TableReplaced(
                    f"the {what} was replaced since the table was loaded",
                    resource=self.location,
                    field="metaData.id",
                    found=found,
                    expected=expected,
                    remedy="Load the table again",
                )
        # In the same order in each process, whatever checkpoints were written meanwhile.
        files = view.base.files.sort_by("path")
        return replace(view, base=replace(view.base, files=files))


@dataclass(frozen=True)
class OpenedView:
    """A view, reduced by the conditions that Spark pushed."""

    view: MergedView
    where: tuple[Expr, ...]
    memory: int

    @cached_property
    def files(self) -> Sequence[int]:
        """Indexes of the files of the base table whose rows are read."""
        selected = Selection(all_of(self.where), self.view.base).mask(self.view.base.files)
        found: list[int] = np.flatnonzero(selected).tolist()
        return found

    @cached_property
    def blocks(self) -> Sequence[str]:
        return sorted(self.view.state.live)

    @cached_property
    def passes(self) -> WinnerPasses:
        return self.view.passes(self.memory)

    def tasks(self) -> list[TaskSplits]:
        """What each task reads: files by their places in `files`, then blocks."""
        sizes = self.view.base.files["size"].take(pa.array(self.files, pa.int64())).to_pylist()
        count = len(sizes)
        sizes += [self.view.state.live[path].size for path in self.blocks]
        return task_splits(sizes, TASK_BYTES, range(count, len(sizes)))

    def share(self, splits: Iterable[InputSplit]) -> Share:
        files: list[FilePart] = []
        blocks: set[str] = set()
        for split in splits:
            if split.input < len(self.files):
                files.append(FilePart(self.files[split.input], split.part, split.parts))
            else:
                blocks.add(self.blocks[split.input - len(self.files)])
        return Share(tuple(files), frozenset(blocks))


@lru_cache(maxsize=1)
def opened(version: ViewVersion, where: tuple[Expr, ...]) -> OpenedView:
    """The view for the next task of this worker, too."""
    view = version.open()
    check_rows(view.base)
    on_keys = all_of(on_columns(where, view.settings.keys))
    return OpenedView(view if on_keys is None else view.narrowed(on_keys), where, version.memory)


class ViewReader(DataSourceReader):
    """Reads columns of a view. Spark filters the rows."""

    def __init__(self, version: ViewVersion, columns: Sequence[str]) -> None:
        self._version = version
        self._columns = tuple(columns)
        self._where: tuple[Expr, ...] = ()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], list[Filter]]:  # noqa: N802
        return _Push(self)

    def push(self, filters: Sequence[Filter]) -> None:
        self._where = conditions(filters, self._version.schema_string)

    def partitions(self) -> Sequence[InputPartition]:
        return opened(self._version, self._where).tasks() or [TaskSplits(0, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskSplits)
        found = opened(self._version, self._where)
        base = found.view.base
        wanted = named_columns(base, self._columns)
        # As the schema declared to Spark.
        schema = arrow_schema(TableFormat(all_nullable(base.schema)), wanted)
        for batch in found.view.read(found.share(partition.splits), wanted, found.passes):
            yield batch if batch.schema.equals(schema) else batch.cast(schema)


class _Push:
    """`pushFilters` of a reader.

    Spark refuses a reader that overrides the method while the setting
    `spark.sql.python.filterPushdown.enabled` is off, as it is by default, and recognizes an
    override by `__func__`. This reader works with both settings.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: ViewReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.push(filters)
        return filters


# `format("tandem")`: the data source that Spark creates, and its registration.


NAME = "tandem"


def register(spark: SparkSession) -> None:
    """Make `format("tandem")` known to a session."""
    spark.dataSource.register(TandemSource)


class TandemSource(DataSource):
    """The merged view of a table, and appends to its log."""

    _version: ViewVersion | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """The columns that are read. Fixes the versions: Spark calls it once, as a table is
        loaded, and keeps the source."""
        options = read_options(self.options)
        log = open_log(options.location, dict(options.storage))
        view = open_view(log, options.version, base=options.base)
        check_rows(view.base)
        self._version = ViewVersion.of(view, options)
        every = spark_schema(view.base.metadata.schema_string)
        if options.columns is None:
            return every
        wanted = named_columns(view.base, options.columns)
        return type(every)([every[name] for name in wanted])

    def reader(self, schema: StructType) -> DataSourceReader:
        if self._version is None:
            raise InvalidSpec(
                "a merged view has the columns of its table",
                resource=without_userinfo(self.options.get("path", "")),
                field="schema",
                found=schema.simpleString()[:200],
                expected="no schema",
                remedy="Leave it out; the option `columns` chooses columns",
            )
        return ViewReader(self._version, schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        self._require_append(overwrite)
        return BatchWriter(write_options(self.options, stream=False), schema)

    def streamWriter(  # noqa: N802 - Spark's own convention
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        self._require_append(overwrite)
        return StreamWriter(write_options(self.options, stream=True), schema)

    def _require_append(self, overwrite: bool) -> None:
        if overwrite:
            raise InvalidSpec(
                "a log takes upserts and deletes by key",
                resource=without_userinfo(self.options.get("path", "")),
                field="mode",
                found="overwrite, or the output mode complete",
                expected="append",
                remedy='Use mode("append"), or outputMode("append")',
            )
