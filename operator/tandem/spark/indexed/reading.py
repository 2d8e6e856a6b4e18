"""`read`: the matching rows of a table as a DataFrame, of the files that the index chooses.

The index only chooses; Spark reads the rows and evaluates the condition. Where a session lacks
Delta's scan over chosen files, Delta chooses them, too: the rows are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from tandem.delta.scan import column_names
from tandem.errors import InvalidSpec
from tandem.index import Query, TableIndex, open_index
from tandem.index.answers import Splits
from tandem.index.library import IndexReader, condition
from tandem.index.server.client import Fallback, ServerAddress, address_of, index_of
from tandem.index.window import Head
from tandem.spark.indexed import delta_scan, task_reads
from tandem.spark.indexed.delta_scan import DeltaScanMissing
from tandem.spark.indexed.meaning import require_meaning
from tandem.spec import LakeTable
from tandem.statements import to_spark_sql
from tandem.statements.statement import referenced
from tandem.statements.tree import Expr
from tandem.storage.paths import is_absolute, object_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_log = structlog.get_logger("tandem.spark.read")


def read(
    session: SparkSession,
    table: str | LakeTable | IndexReader,
    where: str = "",
    *,
    version: int | None = None,
    timestamp_ms: int | None = None,
    segments: Collection[str] = (),
    at_least: int | None = None,
    max_staleness_s: float | None = None,
    options: Mapping[str, str] | None = None,
    base: bool = False,
    columns: Sequence[str] | None = None,
    in_tasks: bool = False,
    fallback: Fallback | str = Fallback.EMBEDDED,
    hold_s: int = 0,
) -> DataFrame:
    """The rows of one version of a Delta table for which a condition is true.

    The DataFrame stays at this version. Spark reads with its own access to the store; the index
    reads the log with that of this process.

    Args:
        session: has Delta's jars, extension and catalog, as for `format("delta")`.
        table: a location, a LakeTable, or an index that is held between reads.
        where: a condition in Spark SQL, as in docs/statements.md; empty for all rows.
        version, timestamp_ms, segments, at_least, max_staleness_s, hold_s: as of `Query`.
        options, base: as of `open_index`; not for an index that is held.
        columns: in the order wanted; None for all.
        in_tasks: each task asks for its own files, so that this process holds none of them, and
            reads them with Tandem's reader. Executors need Tandem, and the access that this process
            has; Delta's jars are not needed.
        fallback: what follows where the LakeTable's server fails: `Embedded` or `Never`.
    Raises: InvalidSpec: a setting of the session changes what the condition means; an unknown
        column. Otherwise as `IndexReader`.
    """
    index, server = _index(table, options, base=base, fallback=Fallback(fallback))
    query = Query(where, version, timestamp_ms, segments, at_least, max_staleness_s, hold_s)
    if in_tasks:
        if isinstance(table, IndexReader) and not isinstance(table, TableIndex):
            raise InvalidSpec(
                "tasks cannot ask through a connection that this process holds",
                resource=index.store.location,
                field="table",
                found=type(table).__name__,
                expected="a location, a TableIndex or a LakeTable",
                remedy="Give the LakeTable, whose spec.index.server tasks ask",
            )
        source = task_reads.IndexSource.of(index.store, server, Fallback(fallback))
        return _in_tasks(session, index, source, query, columns)
    found = index.splits(query)
    tree = _condition(session, found.head, where)
    certain = bool(found.certain.all())
    try:
        rows = delta_scan.scan(session, found)
    except DeltaScanMissing as error:
        _log.warning(
            "Delta has no scan over chosen files here; it chooses the files itself",
            table=found.head.location,
            version=found.version,
            problem=str(error),
        )
        rows = _version(session, found, chosen=bool(segments))
        certain = False
    rows = rows if tree is None or certain else rows.filter(to_spark_sql(tree))
    return rows if columns is None else _select(rows, _names(found.head, columns))


def _in_tasks(
    session: SparkSession,
    index: IndexReader,
    source: task_reads.IndexSource,
    query: Query,
    columns: Sequence[str] | None,
) -> DataFrame:
    found = index.portions(task_reads.cut_for(session), query)
    tree = _condition(session, found.head, query.where)
    wanted = found.head.schema.names if columns is None else _names(found.head, columns)
    tested = () if tree is None else (n for n in found.head.schema.names if n in referenced(tree))
    read_ = tuple(dict.fromkeys((*wanted, *tested)))
    rows = task_reads.scan(session, source, query, found, read_)
    # What answers a task may know less than what answered here: nothing is certain.
    return _select(rows if tree is None else rows.filter(to_spark_sql(tree)), wanted)


def _condition(session: SparkSession, head: Head, where: str) -> Expr | None:
    tree = condition(head, where)
    if tree is not None:
        require_meaning(session, tree)
    return tree


def _names(head: Head, columns: Sequence[str]) -> tuple[str, ...]:
    return column_names(head.schema, columns, resource=head.location)


def _select(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    return rows.select(*("`" + name.replace("`", "``") + "`" for name in names))


def _index(
    table: str | LakeTable | IndexReader,
    options: Mapping[str, str] | None,
    *,
    base: bool,
    fallback: Fallback,
) -> tuple[IndexReader, ServerAddress | None]:
    if isinstance(table, IndexReader):
        if options or base:
            raise InvalidSpec(
                "an index that is held was opened before",
                resource=table.store.location,
                field="options" if options else "base",
                expected="none",
                remedy="Give it to open_index",
            )
        return table, None
    if isinstance(table, LakeTable):
        address = None if base else address_of(table)
        return index_of(table, options, base=base, fallback=fallback), address
    return open_index(table, options, base=base), None


def _version(session: SparkSession, splits: Splits, *, chosen: bool) -> DataFrame:
    """The rows of a version by `format("delta")`; `chosen`: only those in the files of splits."""
    location = delta_scan.spark_location(session, splits.head.location)
    reader = session.read.format("delta").option("versionAsOf", splits.version)
    rows = reader.load(location)
    return rows.filter(_in_files(splits, location)) if chosen else rows


def _in_files(splits: Splits, location: str) -> Column:
    """Whether a row lies in one of the files, whatever the scheme that Spark spells paths with."""
    from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

    root = location.partition("://")[2].lstrip("/")
    paths = []
    for logged in splits.files["path"].to_pylist():
        path = object_path(logged)
        outside = path.partition("://")[2] or path
        paths.append(outside.lstrip("/") if is_absolute(path) else f"{root}/{path}")
    bare = F.regexp_replace(F.col("_metadata.file_path"), "^[A-Za-z0-9]+:/+", "")
    # `url_decode` reads a `+` as a space.
    return F.url_decode(F.replace(bare, F.lit("+"), F.lit("%2B"))).isin(paths)
