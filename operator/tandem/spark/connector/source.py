"""`format("tandem")`: the data source that Spark creates, and its registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
)

from tandem.delta.scan import check_rows, named_columns
from tandem.errors import InvalidSpec
from tandem.mergelog.view import open_log, open_view
from tandem.spark.connector.options import read_options, write_options
from tandem.spark.connector.reader import ViewReader, ViewVersion
from tandem.spark.connector.writer import BatchWriter, StreamWriter
from tandem.spark.runtime.schemas import spark_schema
from tandem.storage.paths import without_userinfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

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
