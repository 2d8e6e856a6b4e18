"""`read`: the matching rows of a table as a DataFrame, of the files that the index chooses.

The index only chooses; Spark reads the rows and evaluates the condition. Executors need nothing of
this module, unless a caller chooses `in_tasks` (`indexed_tasks`). Where a session lacks Delta's
scan over chosen files, Delta chooses them, too: the rows are the same.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog

from tandem.delta.log.codec import encode_action
from tandem.delta.log.files import to_adds
from tandem.delta.scan import column_names
from tandem.errors import InvalidSpec
from tandem.index import Query, TableIndex, open_index
from tandem.index.answers import Splits
from tandem.index.library import IndexReader, condition
from tandem.index.server.client import Fallback, ServerAddress, address_of, index_of
from tandem.index.window import Head
from tandem.spark import indexed_tasks
from tandem.spark.runtime.session import session_conf
from tandem.spec import LakeTable
from tandem.statements import to_spark_sql
from tandem.statements.statement import referenced
from tandem.statements.tree import Call, Cast, Expr, quote_name, walk
from tandem.storage.paths import is_absolute, object_path, split_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Whether a session means by a condition what we mean.
#
# Jobs pin settings in sessions of their own (`tandem.spark.runtime.session`). A user's session is
# not ours to change: a setting that would change which rows match is refused by its name.


_ZONE: Final = "spark.sql.session.timeZone"
_SUBSTITUTE: Final = "spark.sql.variable.substitute"
_OF_OTHER_THINGS: Final = ("spark.sql.storeAssignmentPolicy", "spark.sql.runSQLOnFiles")
"""Of writes, and of names of tables."""


def require_meaning(session: SparkSession, where: Expr) -> None:
    """Raises: InvalidSpec that names the setting, its value and the required one."""
    for key, expected in session_conf().items():
        if key in _OF_OTHER_THINGS or (key == _ZONE and not uses_time_zone(where)):
            continue
        # Generated text has no other `$` than in names.
        if key == _SUBSTITUTE and "${" not in to_spark_sql(where):
            continue
        found = session.conf.get(key, None)
        if found != expected:
            raise InvalidSpec(
                "the session has a setting that changes which rows match",
                resource="where",
                field=key,
                found=found,
                expected=expected,
                remedy=f'Run session.conf.set("{key}", "{expected}"), or read in a '
                "session.newSession() that has it",
            )


def uses_time_zone(where: Expr) -> bool:
    """Whether the session's time zone may matter: to a function, to a cast from or to a timestamp,
    or where a timestamp meets another type. Literals have a zone of their own."""
    for node in walk(where):
        types = {child.type.name for child in node.children()}
        if isinstance(node, Call):
            return True
        if isinstance(node, Cast):
            types.add(node.type.name)
        if "timestamp" in types and len(types - {"null"}) > 1:
            return True
    return False


# Delta's own scan over chosen files, by `DeltaLog.createDataFrame`.
#
# That is no public API of Delta: this is the only module that names classes of Delta, and raises
# `DeltaScanMissing` wherever one is absent or differs, so that callers can read in another way.
# Known to work with delta-spark 4.4 (`org.apache.spark.sql.delta.DeltaLog`, "Integration"), whose
# jars are the user's. Delta's state of the table is never reconstructed: its snapshot gives
# metadata and protocol only, and the files are ours.


_AT_ONCE = 10_000
"""Files in one text that the JVM parses: bounds the memory of this process."""

_UNUSED = ("stats", "tags")
"""What a scan does not need of a file."""


class DeltaScanMissing(Exception):
    """This session has no such scan; the message says why."""


def scan(session: SparkSession, splits: Splits) -> DataFrame:
    """All live rows of some files of one version, as `format("delta")` gives them.

    Raises: DeltaScanMissing.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    jvm = getattr(session, "_jvm", None)
    if jvm is None:
        raise DeltaScanMissing("a session of Spark Connect has no JVM here")
    try:
        with _active(session, jvm):
            return _scan(session, jvm, splits)
    except (Py4JError, PySparkException) as error:
        # The classes are there but differ. What is wrong with the table itself fails again, with
        # the same message, where the caller reads in another way.
        raise DeltaScanMissing(str(error).splitlines()[0][:300]) from error


def spark_location(session: SparkSession, location: str) -> str:
    """A table's location as Hadoop's `Path` takes it: decoded, and `s3a` where the session has no
    file system for `s3`."""
    scheme, authority, path = split_location(location)
    jsc = getattr(session, "_jsc", None)
    if scheme == "s3" and (jsc is None or jsc.hadoopConfiguration().get("fs.s3.impl") is None):
        scheme = "s3a"
    return f"{scheme}://{authority}{path}"


def _scan(session: SparkSession, jvm: Any, splits: Splits) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame

    delta = jvm.org.apache.spark.sql.delta
    location = spark_location(session, splits.head.location)
    log = _known(delta.DeltaLog).forTable(session._jsparkSession, location)
    snapshot = _snapshot(jvm, log, splits.head)
    files = _files(session, jvm, splits.files)
    return DataFrame(log.createDataFrame(snapshot, files, False, jvm.scala.Option.empty()), session)


def _snapshot(jvm: Any, log: Any, head: Head) -> Any:
    """Delta's snapshot of a version; its log is listed only if it holds another one.

    Raises: DeltaScanMissing if Delta finds another table in this version.
    """
    none = jvm.scala.Option.empty()
    found = log.unsafeVolatileSnapshot()
    if not _is_of(found, head):
        found = log.update(False, none, none)
    if not _is_of(found, head):
        # Of Delta's own parameters, what it takes by default.
        check_age = getattr(log, "getSnapshotAt$default$4")()
        found = log.getSnapshotAt(head.version, none, none, check_age)
    if not _is_of(found, head):
        raise DeltaScanMissing(
            f"in version {head.version} Delta finds the table {found.metadata().id()}, the index "
            f"{head.metadata.id}"
        )
    return found


def _is_of(snapshot: Any, head: Head) -> bool:
    if snapshot.version() != head.version:
        return False
    return bool(snapshot.metadata().id() == head.metadata.id)


def _files(session: SparkSession, jvm: Any, files: pa.Table) -> Any:
    """Delta's `AddFile`s, in a Scala sequence. The JVM parses them from the log's JSON, many at a
    time: a call for each file would take minutes for a hundred thousand."""
    delta = jvm.org.apache.spark.sql.delta
    add_file = _known(delta.actions.AddFile)
    mapper = _known(delta.util.JsonUtils).mapper()
    gateway: Any = session.sparkContext._gateway
    array = gateway.new_array(add_file, 0)
    sequence = jvm.scala.collection.immutable.ArraySeq
    found = sequence.unsafeWrapArray(array)
    for start in range(0, files.num_rows, _AT_ONCE):
        adds = [_body(add) for add in to_adds(files.slice(start, _AT_ONCE))]
        parsed = mapper.readValue(json.dumps(adds), array.getClass())
        found = found.concat(sequence.unsafeWrapArray(parsed))
    return found


def _body(add: Any) -> dict[str, Any]:
    body: dict[str, Any] = encode_action(add)["add"]
    return {name: value for name, value in body.items() if name not in _UNUSED}


def _known(class_: Any) -> Any:
    """A class. Raises: DeltaScanMissing if there is none of that name."""
    from py4j.java_gateway import JavaPackage

    if isinstance(class_, JavaPackage):
        raise DeltaScanMissing(f"there is no class {class_._fqn}")
    return class_


@contextmanager
def _active(session: SparkSession, jvm: Any) -> Iterator[None]:
    """Delta reads in the session that is active in the thread."""
    sessions = session._get_j_spark_session_class(jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


# `read`: the matching rows of a table as a DataFrame, of the files that the index chooses.


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
        source = indexed_tasks.IndexSource.of(index.store, server, Fallback(fallback))
        return _in_tasks(session, index, source, query, columns)
    found = index.splits(query)
    tree = _condition(session, found.head, where)
    certain = bool(found.certain.all())
    try:
        rows = scan(session, found)
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
    source: indexed_tasks.IndexSource,
    query: Query,
    columns: Sequence[str] | None,
) -> DataFrame:
    found = index.portions(indexed_tasks.cut_for(session), query)
    tree = _condition(session, found.head, query.where)
    wanted = found.head.schema.names if columns is None else _names(found.head, columns)
    tested = () if tree is None else (n for n in found.head.schema.names if n in referenced(tree))
    read_ = tuple(dict.fromkeys((*wanted, *tested)))
    rows = indexed_tasks.scan(session, source, query, found, read_)
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
    return rows.select(*map(quote_name, names))


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
    location = spark_location(session, splits.head.location)
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
