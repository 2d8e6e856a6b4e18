"""Delta's own scan over chosen files, by `DeltaLog.createDataFrame`.

That is no public API of Delta: this is the only module that names classes of Delta, and raises
`DeltaScanMissing` wherever one is absent or differs, so that callers can read in another way. Known
to work with delta-spark 4.4 (`org.apache.spark.sql.delta.DeltaLog`, "Integration"), whose jars are
the user's. Delta's state of the table is never reconstructed: its snapshot gives metadata and
protocol only, and the files are ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandem.delta.log.codec import encode_action
from tandem.delta.log.files import to_adds
from tandem.index.answers import Splits
from tandem.index.window import Head
from tandem.storage.paths import split_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
