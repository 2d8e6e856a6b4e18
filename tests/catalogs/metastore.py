"""A Hive Metastore 2.3 of PySpark's own jars, in a process of its own with a database in memory,
and calls that create what tests look up in it.
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.processes import terminate
from support.waiting import await_that
from tandem.spark.runtime.session import find_java, spark_home

_SETTINGS: Final = {
    "javax.jdo.option.ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
    "datanucleus.schema.autoCreateAll": "true",
    "datanucleus.connectionPoolingType": "DBCP",
    "hive.metastore.schema.verification": "false",
    "hive.async.log.enabled": "false",
}
_DELTA: Final = {"spark.sql.sources.provider": "delta", "EXTERNAL": "TRUE"}


@contextmanager
def metastore(folder: Path) -> Iterator[str]:
    """The URI of a metastore whose files are in a folder, for the length of the block."""
    settings = {**_SETTINGS, "hive.metastore.warehouse.dir": str(folder / "warehouse")}
    lines = (
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    (folder / "hive-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "metastore.log").open("wb") as log:
        process = subprocess.Popen(
            [
                str(find_java()),
                *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("--add-opens", "java.base/java.net=ALL-UNNAMED"),
                *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
                *("-cp", f"{folder}:{spark_home() / 'jars'}/*"),
                "org.apache.hadoop.hive.metastore.HiveMetaStore",
                *("-p", str(port)),
            ],
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            await_that(lambda: _answers(process, port, folder), "the metastore does not answer")
            yield f"thrift://127.0.0.1:{port}"
        finally:
            terminate(process)


def _answers(process: subprocess.Popen[bytes], port: int, folder: Path) -> bool:
    assert process.poll() is None, (folder / "metastore.log").read_text()[-2_000:]
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


# Thrift's binary protocol, as far as the calls here need it: a field is (type, number, content).


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack(">i", len(content)) + content


def _field(type_: int, number: int, content: bytes) -> bytes:
    return struct.pack(">bh", type_, number) + content


def _texts(values: Mapping[str, str]) -> bytes:
    return struct.pack(">bbi", 11, 11, len(values)) + b"".join(
        _text(name) + _text(value) for name, value in values.items()
    )


def create_database(uri: str, name: str, folder: Path) -> None:
    """Make a database."""
    described = _field(11, 1, _text(name)) + _field(11, 3, _text(f"file:{folder}"))
    _call(uri, "create_database", _field(12, 1, described + b"\0"))


def create_table(
    uri: str,
    database: str,
    name: str,
    location: str,
    *,
    parameters: Mapping[str, str] = _DELTA,
    path: str = "",
    kind: str = "EXTERNAL_TABLE",
) -> None:
    """Register a table, as Spark does if `path` is its location."""
    serde = _field(13, 3, _texts({"path": path} if path else {}))
    column = _field(11, 1, _text("id")) + _field(11, 2, _text("bigint")) + b"\0"
    storage = (
        _field(15, 1, struct.pack(">bi", 12, 1) + column)
        + (_field(11, 2, _text(location)) if location else b"")
        + _field(11, 3, _text("org.apache.hadoop.mapred.SequenceFileInputFormat"))
        + _field(12, 7, serde + b"\0")
    )
    described = (
        _field(11, 1, _text(name))
        + _field(11, 2, _text(database))
        + _field(12, 7, storage + b"\0")
        + _field(13, 9, _texts(parameters))
        + _field(11, 12, _text(kind))
    )
    _call(uri, "create_table", _field(12, 1, described + b"\0"))


def _call(uri: str, method: str, argument: bytes) -> None:
    host, _, port = uri.removeprefix("thrift://").rpartition(":")
    head = struct.pack(">I", 0x80010001) + _text(method) + struct.pack(">i", 0)
    with socket.create_connection((host, int(port)), 60) as connection:
        connection.sendall(head + argument + b"\0")
        found = connection.makefile("rb").read(4 + 4 + len(method) + 4 + 1)
    # A reply whose result has no field: no exception, and nothing is returned.
    assert found[3] == 2, (method, found)
    assert found[-1] == 0, (method, found)
