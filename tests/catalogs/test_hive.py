"""The Hive Metastore: what it may answer, whatever that is; and a real one."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from catalogs.metastore import create_database, create_table, metastore
from tandem.catalogs import hive
from tandem.errors import StorageError, TableNotFound, TandemError, UnsupportedFeature
from tandem.operations.adopt import open_table
from tandem.spec import LakeTable, parse
from tandem.spec.catalog import HiveName

NAME = b"get_table_req"
REPLY = struct.pack(">Ii", 0x80010002, len(NAME)) + NAME + b"\0\0\0\0"
"""The head of an answer."""
FAILURE = struct.pack(">Ii", 0x80010003, len(NAME)) + NAME + b"\0\0\0\0"


@contextmanager
def answering(answer: bytes | None) -> Iterator[HiveName]:
    """A server that gives each request this answer, and ends the connection; None: it waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, over = server.getsockname()[1], threading.Event()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                if answer is None:
                    over.wait()
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield HiveName(uri=f"thrift://127.0.0.1:{port}", name="lake.orders")
        finally:
            over.set()
            thread.join()


def text(number: int, value: bytes) -> bytes:
    return struct.pack(">bhi", 11, number, len(value)) + value


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"", StorageError, "the end of the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n<html>", StorageError, "HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x50", StorageError, "instead of Thrift's"),
        (REPLY, StorageError, "the end of the connection"),
        (REPLY + b"\x0b\x00\x00\x7f\xff\xff\xff", StorageError, "a field 0 of type 11"),
        (REPLY + b"\x0b\x00\x09\x7f\xff\xff\xff", StorageError, "a value of 2147483647 bytes"),
        (REPLY + b"\x0b\x00\x09\xff\xff\xff\xff", StorageError, "a value of -1 bytes"),
        (REPLY + b"\x0f\x00\x09\x0c\x7f\xff\xff\xff", StorageError, "2147483647 entries"),
        (REPLY + b"\x0c\x00\x09" * 99, StorageError, "too deep"),
        (REPLY + b"\x63\x00\x09", StorageError, "a value of type 99"),
        (FAILURE + text(1, b"Invalid method\nname") + b"\0", StorageError, "Invalid method name"),
        (REPLY + b"\x0c\x00\x01" + text(1, b"no database") + b"\0\0", StorageError, "no database"),
        (REPLY + b"\x0c\x00\x02" + text(1, b"no such") + b"\0\0", TableNotFound, "no such"),
    ],
)
def test_an_answer_that_is_no_table(answer: bytes, error: type[TandemError], words: str) -> None:
    with answering(answer) as named, pytest.raises(error) as found:
        hive.look_up(named, resource="hive://x/lake.orders")
    assert words in str(found.value)


@given(st.binary())
def test_any_bytes_end_in_a_table_or_an_error(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(REPLY + content)
        theirs.shutdown(socket.SHUT_WR)
        found = None
        with suppress(hive.NotThrift):
            found = hive.ThriftAnswer(ours, time.monotonic() + 60).result()
        assert found is None or set(found) <= {0, 1, 2}


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64, "[::::]", "[::1]"])
def test_hosts_that_are_none(host: str) -> None:
    named = HiveName(uri=f"thrift://{host}:1", name="lake.orders")
    with pytest.raises(StorageError, match="did not answer as expected"):
        hive.look_up(named, resource="hive://x/lake.orders", ceiling_s=1)


def test_a_metastore_that_does_not_answer_is_given_up() -> None:
    with answering(None) as named, pytest.raises(StorageError, match="did not answer as expected"):
        hive.look_up(named, resource="hive://x/lake.orders", ceiling_s=0.2)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("metastore")
    with metastore(folder) as uri:
        create_database(uri, "lake", folder / "lake")
        yield uri


def lake_table(uri: str, name: str) -> LakeTable:
    found = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "t"},
            "spec": {"catalog": {"hive": {"uri": uri, "name": name}}},
        }
    )
    assert isinstance(found, LakeTable)
    return found


def test_a_table_of_a_real_metastore(server: str, tmp_path: Path) -> None:
    """Its location has characters that a URL encodes, and the catalog does not."""
    odd = tmp_path / "my orders 50%20"
    write_deltalake(str(tmp_path / "plain"), pa.table({"id": [1, 2, 3]}))
    (tmp_path / "plain").rename(odd)
    place = f"file:{tmp_path}/lake/orders-__PLACEHOLDER__"
    create_table(server, "lake", "orders", place, path=f"file:{odd}")
    create_table(server, "lake", "csv", f"file:{tmp_path}/csv", parameters={"separator": ","})
    create_table(server, "lake", "view", "", kind="VIRTUAL_VIEW")

    opened = open_table(lake_table(server, "lake.orders"))
    assert opened.log.snapshot().num_files == 1
    assert opened.location.endswith("/my%20orders%2050%2520")
    with pytest.raises(UnsupportedFeature, match="does not say that this is a Delta table"):
        open_table(lake_table(server, "lake.csv"))
    with pytest.raises(UnsupportedFeature, match="this is a view"):
        open_table(lake_table(server, "lake.view"))
    for missing in ("lake.nothing", "nowhere.orders"):
        with pytest.raises(TableNotFound, match="has no such table"):
            open_table(lake_table(server, missing))


@pytest.mark.matrix
def test_tables_that_spark_has_registered(server: str, tmp_path: Path) -> None:
    """An external table, and one in the folder of its database."""
    made = [sys.executable, "-m", "catalogs.hive_spark", server, str(tmp_path)]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    orders = open_table(lake_table(server, "spark.orders"))
    assert orders.location == f"file://{tmp_path}/my%20orders"
    assert sum(orders.log.snapshot().num_records.to_pylist()) == 10
    returns = open_table(lake_table(server, "spark.returns"))
    assert sum(returns.log.snapshot().num_records.to_pylist()) == 5
    with pytest.raises(UnsupportedFeature, match=r"spark\.sql\.sources.provider=parquet"):
        open_table(lake_table(server, "spark.plain"))
    with pytest.raises(UnsupportedFeature, match="this is a view"):
        open_table(lake_table(server, "spark.seen"))
