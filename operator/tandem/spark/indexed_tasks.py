"""Reads in which each task asks for its own files, and reads them with our reader.

The driver holds where the answer is cut, not the files. A task asks whom the driver asked: the
server, else the index in its own process. Version, table and condition are those of the driver's
answer, so all tasks together have each file of that version that is needed, once, whichever answers
them. Rows are not filtered here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import pyarrow as pa
from pydantic import Field
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.delta.char_types import METADATA_KEY
from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import InvalidSpec
from tandem.index import rows
from tandem.index.answers import Cut, PathRange, Portion, Portions
from tandem.index.library import EVERYTHING, IndexReader, Query, TableIndex
from tandem.index.server.client import Fallback, ServerAddress
from tandem.index.window import View
from tandem.jobs.formats import Format
from tandem.spark.runtime.datasource import spark_schema
from tandem.storage import Store, open_store
from tandem.storage.rooted import RootedStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

NAME: Final = "tandem-portions"
_READ: Final = "read"
"""The option of the source: a `TaskRead`."""
_TASKS_OF_CONNECT: Final = 32
"""Tasks that run at once in a session that does not say how many do."""
_KEPT_S: Final = 600
"""Seconds for which a worker keeps an index."""
_registered: WeakSet[object] = WeakSet()
"""Sessions that know the source."""


class IndexSource(Format):
    """How a task finds the index. Has no secret: those are in its environment and in files.

    Attributes:
        storage: settings of the store.
        server: None for the index in the worker.
        key: equal for tasks of one read, which share what a worker holds.
    """

    location: str
    storage: dict[str, str]
    allowed_prefixes: tuple[str, ...] = ()
    server: ServerAddress | None = None
    fallback: Fallback = Fallback.EMBEDDED
    key: str = Field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def of(
        cls,
        store: Store,
        server: ServerAddress | None = None,
        fallback: Fallback = Fallback.EMBEDDED,
    ) -> IndexSource:
        """Raises: InvalidSpec if another process cannot open such a store."""
        if not isinstance(store, RootedStore):
            raise InvalidSpec(
                "tasks cannot open the store of this index",
                resource=store.location,
                found=type(store).__name__,
                expected="a store of open_store",
            )
        return cls(
            location=store.location,
            storage=dict(store.options),
            allowed_prefixes=store.allowed_prefixes,
            server=server,
            fallback=fallback,
        )

    def open(self) -> IndexReader:
        store = open_store(self.location, self.storage, allowed_prefixes=self.allowed_prefixes)

        @cache
        def embedded() -> TableIndex:
            return VersionIndex(DeltaLog(store))

        if self.server is None:
            return embedded()
        return self.server.index(store, embedded, self.fallback)


class TaskRead(Format):
    """What each task of a read has: no file is named.

    Attributes:
        columns: names as the schema spells them.
    """

    source: IndexSource
    where: str
    segments: tuple[str, ...]
    version: int
    table_id: str
    columns: tuple[str, ...]

    def query(self, paths: PathRange) -> Query:
        return Query(
            self.where, self.version, segments=self.segments, paths=paths, table_id=self.table_id
        )


class PlannedRead(Format):
    """A read and where its answer is cut: as of `Portions`."""

    read: TaskRead
    firsts: tuple[str, ...]
    parts: tuple[int, ...]

    @classmethod
    def of(
        cls, source: IndexSource, query: Query, found: Portions, columns: Sequence[str]
    ) -> PlannedRead:
        """Args: query: that `found` answers."""
        read = TaskRead(
            source=source,
            where=query.where,
            segments=tuple(query.segments),
            version=found.head.version,
            table_id=found.head.metadata.id,
            columns=tuple(columns),
        )
        return cls(read=read, firsts=tuple(found.firsts), parts=tuple(found.parts))

    def tasks(self) -> list[TaskPortion]:
        portions = Portions.cut_at(self.firsts, self.parts)
        return [TaskPortion(number, portion) for number, portion in enumerate(portions)]


class TaskPortion(InputPartition):
    """What one task reads; None for nothing."""

    def __init__(self, number: int, portion: Portion | None) -> None:
        super().__init__(number)
        self.portion = portion


class PortionsSource(DataSource):
    """The source that Spark creates for `scan`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - that of `scan`
        return PortionsReader(PlannedRead.model_validate_json(self.options[_READ]))


class PortionsReader(DataSourceReader):
    def __init__(self, planned: PlannedRead) -> None:
        self._read = planned.read
        self._tasks = planned.tasks()

    def __getstate__(self) -> dict[str, object]:
        # Each task gets the reader, too, and only its own portion.
        return {**self.__dict__, "_tasks": []}

    def partitions(self) -> Sequence[InputPartition]:
        return self._tasks or [TaskPortion(0, None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPortion)
        if partition.portion is not None:
            yield from portion_rows(self._read, partition.portion)


def scan(
    session: SparkSession,
    source: IndexSource,
    query: Query,
    found: Portions,
    columns: Sequence[str],
) -> DataFrame:
    """The live rows of an answer's files, and perhaps more of them.

    Args:
        query: that the answer is to.
        columns: names as the schema spells them.
    """
    if session not in _registered:
        session.dataSource.register(PortionsSource)
        _registered.add(session)
    schema = _schema(found.head.metadata.schema_string, columns)
    planned = PlannedRead.of(source, query, found, columns).model_dump_json(by_alias=True)
    return session.read.format(NAME).schema(schema).option(_READ, planned).load()


def _schema(schema_string: str, columns: Sequence[str]) -> StructType:
    """As Delta gives it: by the declared types of texts, Spark pads what it reads and compares."""
    every = spark_schema(schema_string)
    declared = {
        field["name"]: {METADATA_KEY: text}
        for field in json.loads(schema_string)["fields"]
        if (text := (field.get("metadata") or {}).get(METADATA_KEY))
    }
    fields = [every[name] for name in columns]
    return type(every)(
        [type(f)(f.name, f.dataType, f.nullable, declared.get(f.name)) for f in fields]
    )


def cut_for(session: SparkSession) -> Cut:
    """How an answer is cut for a session."""
    from pyspark.errors import PySparkException

    try:
        return Cut(max(1, session.sparkContext.defaultParallelism))
    except PySparkException:  # Spark Connect
        return Cut(_TASKS_OF_CONNECT)


def portion_rows(asked: TaskRead, portion: Portion) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of its portion."""
    index = opened(asked.source)
    found = index.splits(asked.query(portion.paths))
    table = rows.table_format(found.head)
    # As the schema declared to Spark.
    schema = arrow_schema(TableFormat(all_nullable(table.schema)), asked.columns)
    for batch in rows.read(found, index.store, asked.columns, portion=portion):
        yield batch if batch.schema.equals(schema) else batch.cast(schema)


@lru_cache(maxsize=1)
def _opened(text: str, period: int) -> IndexReader:  # noqa: ARG001 - of another one is another
    return IndexSource.model_validate_json(text).open()


def opened(source: IndexSource) -> IndexReader:
    """The index of a task, and of the next ones of the same read in this worker: a server that
    failed is left out, and the log is loaded once. For a while only, since tokens end."""
    return _opened(source.model_dump_json(), int(time.monotonic() // _KEPT_S))


class VersionIndex(TableIndex):
    """The index of the one version that a worker reads: it is loaded once, and not followed. The
    driver has looked for a log of a merge-on-read table."""

    def __init__(self, log: DeltaLog) -> None:
        super().__init__(log, base=True)
        self._view: View | None = None

    def view(self, query: Query = EVERYTHING) -> View:
        if self._view is None:
            self._view = super().view(query)
        return self._view
