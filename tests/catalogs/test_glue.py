"""AWS Glue, for which moto's server stands in: a table by its name, and what Glue refuses."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cli.invoke import Tandem
from support.http_server import EveryMethod, serving
from support.processes import terminate
from support.waiting import await_that
from tandem.catalogs import glue
from tandem.catalogs.registered import RegisteredTable
from tandem.errors import AccessDenied, StorageError, TableNotFound, TandemError, UnsupportedFeature
from tandem.spec.catalog import GlueName

REGION, ACCOUNT = "eu-central-1", "123456789012"
KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret-of-glue"}
_TOOL = Path(__file__).resolve().parents[2] / "tools" / "setup-moto.sh"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that knows a database `lake`."""
    built = subprocess.run([str(_TOOL)], stdout=subprocess.PIPE, check=True, text=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (tmp_path_factory.mktemp("moto") / "log").open("wb") as log:
        process = subprocess.Popen(
            [built.stdout.strip(), "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            await_that(lambda: serves(process, port), "moto does not answer")
            client(f"http://127.0.0.1:{port}").create_database(DatabaseInput={"Name": "lake"})
            yield f"http://127.0.0.1:{port}"
        finally:
            terminate(process)


def serves(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def client(endpoint: str) -> Any:
    """Of AWS's own, to create what is looked up."""
    return botocore.session.Session().create_client(
        "glue",
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id="key",
        aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
    )


def create(endpoint: str, name: str, location: str, **more: Any) -> None:
    described = {
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {"table_type": "DELTA"},
        "StorageDescriptor": {"Location": location},
        **more,
    }
    client(endpoint).create_table(DatabaseName="lake", TableInput=described)


def look_up(endpoint: str, name: str, environ: dict[str, str] | None = None) -> RegisteredTable:
    named = GlueName(region=REGION, name=name, endpoint=endpoint)
    return glue.look_up(named, environ or KEYS, resource=f"glue://{REGION}/{name}")


def test_a_table_by_its_name(
    endpoint: str, tandem: Tandem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(str(tmp_path / "orders"), pa.table({"id": [1, 2, 3]}))
    create(endpoint, "orders", f"file://{tmp_path}/orders")
    for name, value in {**KEYS, "AWS_ENDPOINT_URL_GLUE": endpoint}.items():
        monkeypatch.setenv(name, value)
    done = tandem("table", "show", f"glue://{REGION}/lake.orders")
    assert done.exit_code == 0, done.stderr
    assert f"file://{tmp_path}/orders" in done.stdout


def test_what_spark_on_emr_writes(endpoint: str) -> None:
    create(
        endpoint,
        "spark",
        "s3://warehouse/spark-__PLACEHOLDER__",
        Parameters={"spark.sql.sources.provider": "delta"},
        StorageDescriptor={
            "Location": "s3://warehouse/spark-__PLACEHOLDER__",
            "SerdeInfo": {"Parameters": {"path": "s3://lake/spark"}},
        },
    )
    found = look_up(endpoint, "lake.spark")
    assert found.serde_parameters == {"path": "s3://lake/spark"}


def test_a_name_that_glue_does_not_know(endpoint: str) -> None:
    for missing in ("lake.nothing", "nowhere.orders"):
        with pytest.raises(TableNotFound, match=r"no such table.*EntityNotFoundException"):
            look_up(endpoint, missing)


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (400, b'{"__type":"AccessDeniedException","message":"x"}', AccessDenied, "glue:GetTable"),
        (400, b'{"__type":"ExpiredTokenException"}', AccessDenied, "ExpiredTokenException"),
        (400, b'{"__type":"InvalidInputException"}', StorageError, "InvalidInputException"),
        (403, b"<html>no</html>", StorageError, "403"),
        (200, b"<html>fine</html>", StorageError, "did not answer as expected"),
        (
            200,
            b'{"Table":{"Name":"t","TargetTable":{"DatabaseName":"other","Name":"o"}}}',
            UnsupportedFeature,
            "other.o",
        ),
        (200, b"[1]", StorageError, "did not answer as expected"),
        (200, b"[" * 100_000, StorageError, "RecursionError"),
        (400, b"\xff\xfe", StorageError, "did not answer as expected"),
        (400, b'{"__type":5}', StorageError, "did not answer as expected"),
        (200, b'{"Table":"t"}', StorageError, "did not answer as expected"),
        (200, b'{"Table":{"TableType":["x"]}}', StorageError, "TableType is no text"),
        (200, b'{"Table":{"Parameters":{"provider":5}}}', StorageError, "provider is no text"),
        (200, b'{"Table":{"StorageDescriptor":{"Location":7}}}', StorageError, "Location is no"),
    ],
)
def test_an_answer_that_is_no_table(
    status: int, body: bytes, error: type[TandemError], words: str
) -> None:
    class Handler(EveryMethod):
        def answer(self) -> None:
            self.body()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with serving(Handler) as url, pytest.raises(error) as found:
        look_up(url, "lake.orders")
    assert words in str(found.value)
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in str(found.value)


@pytest.mark.parametrize(
    "named", [{"region": "a-"}, {"endpoint": "http://[::::]"}, {"endpoint": "http://a..b"}]
)
def test_regions_and_hosts_that_are_none(named: dict[str, str]) -> None:
    name = GlueName.model_validate({"region": REGION, "name": "lake.orders", **named})
    with pytest.raises(StorageError, match="did not answer as expected"):
        glue.look_up(name, KEYS, resource="glue://x/lake.orders", ceiling_s=2)


def test_without_credentials_there_is_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    named = GlueName(region=REGION, name="lake.orders", endpoint="http://127.0.0.1:9")
    with pytest.raises(AccessDenied, match="no credentials for AWS Glue"):
        glue.look_up(named, {}, resource="glue://x/lake.orders")


def test_no_answer_is_an_error_of_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(StorageError, match=r"EndpointConnectionError at http://127\.0\.0\.1"):
        look_up(f"http://127.0.0.1:{port}", "lake.orders")
