"""`read`: the matching rows of a table as a DataFrame, of the files that the index chooses.

The index only chooses; Spark reads the rows and evaluates the condition. Where a session lacks
Delta's scan over chosen files, Delta chooses them, too: the rows are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

import structlog

from tandem.errors import InvalidSpec
from tandem.index import Query, open_index
from tandem.index.answers import Splits
from tandem.index.library import IndexReader, condition
from tandem.index.server.lake_table import index_of
from tandem.spark.indexed import delta_scan
from tandem.spark.indexed.delta_scan import DeltaScanMissing
from tandem.spark.indexed.meaning import require_meaning
from tandem.spec import LakeTable
from tandem.statements import to_spark_sql

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
) -> DataFrame:
    """The rows of one version of a Delta table for which a condition is true.

    The DataFrame stays at this version. Spark reads with its own access to the store; the index
    reads the log with that of this process.

    Args:
        session: has Delta's jars, extension and catalog, as for `format("delta")`.
        table: a location, a LakeTable, or an index that is held between reads.
        where: a condition in Spark SQL, as in docs/statements.md; empty for all rows.
        version, timestamp_ms, segments, at_least, max_staleness_s: as of `Query`.
        options, base: as of `open_index`; not for an index that is held.
    Raises: InvalidSpec: a setting of the session changes what the condition means. Otherwise as
        `IndexReader`.
    """
    index = _index(table, options, base=base)
    query = Query(where, version, timestamp_ms, segments, at_least, max_staleness_s)
    found = index.splits(query)
    tree = condition(found.head, where)
    if tree is not None:
        require_meaning(session, tree)
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
    return rows if tree is None or certain else rows.filter(to_spark_sql(tree))


def _index(
    table: str | LakeTable | IndexReader, options: Mapping[str, str] | None, *, base: bool
) -> IndexReader:
    if isinstance(table, IndexReader):
        if options or base:
            raise InvalidSpec(
                "an index that is held was opened before",
                resource=table.store.location,
                field="options" if options else "base",
                expected="none",
                remedy="Give it to open_index",
            )
        return table
    if isinstance(table, LakeTable):
        return index_of(table, options, base=base)
    return open_index(table, options, base=base)


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
        path = unquote(logged)
        scheme, _, rest = path.partition(":/")
        paths.append(rest.lstrip("/") if rest and "/" not in scheme else f"{root}/{path}")
    bare = F.regexp_replace(F.col("_metadata.file_path"), "^[A-Za-z0-9]+:/+", "")
    # `url_decode` reads a `+` as a space.
    return F.url_decode(F.replace(bare, F.lit("+"), F.lit("%2B"))).isin(paths)
