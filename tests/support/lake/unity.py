"""A Unity Catalog server for tests: `uc-server` over SQLite in a temporary folder, on loopback.

Not the server of Unity Catalog's makers: docs/compatibility.md says where they differ. It can be
killed and started again, and then has what it has acknowledged. `start_server` builds it first
where it is missing (`tools/build-unity.sh`).
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from cluster_processes import Part, free_ports, scratch
from tandem.catalogs.unity import API, UnityTable

Json = Any
_REPOSITORY = Path(__file__).resolve().parents[3]
CATALOG, SCHEMA = "unity", "lake"
TOKEN = "token-of-tests-4f1d"
"""The server takes any; what must appear nowhere."""
_ROW_IDS = {
    "delta.enableRowTracking": "true",
    "delta.rowTracking.materializedRowIdColumnName": "_row-id-of-tests",
    "delta.rowTracking.materializedRowCommitVersionColumnName": "_row-version-of-tests",
}


@dataclass(frozen=True)
class ManagedTable:
    """A table of the server whose versions it decides."""

    server: UnityServer
    name: str
    table_id: str
    folder: Path

    @property
    def full_name(self) -> str:
        return f"{CATALOG}.{SCHEMA}.{self.name}"

    @property
    def url(self) -> str:
        return f"{self.server.url}{API}/{self.path}"

    @property
    def path(self) -> str:
        return f"delta/v1/catalogs/{CATALOG}/schemas/{SCHEMA}/tables/{self.name}"

    def client(self, uri: str = "") -> UnityTable:
        """Ours, through the server or what stands before it."""
        return UnityTable(uri or self.server.url, (CATALOG, SCHEMA, self.name), lambda: TOKEN)

    def state(self) -> Json:
        """As the server gives it."""
        return self.server.call("GET", self.path)


@dataclass(frozen=True)
class UnityServer:
    """`url` stays the same over restarts of `part`, and so does what it has acknowledged."""

    url: str
    part: Part

    def call(self, method: str, path: str, body: Json = None) -> Json:
        """A call of the API, without our client. Raises: AssertionError if it is refused."""
        request = urllib.request.Request(
            f"{self.url}{API}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                content = answer.read()
        except HTTPError as error:
            raise AssertionError(f"{error.code} {error.read()[:1000]!r}") from None
        return json.loads(content) if content else None

    def create_table(
        self,
        name: str = "",
        columns: Mapping[str, str] | None = None,
        *,
        row_ids: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> ManagedTable:
        """A table without rows, as an engine creates it (`api/delta.yaml`, createStagingTable).

        Args:
            columns: types of Delta, by name; `id` and `v` by default.
            row_ids: with row tracking.
        """
        name = name or f"t{secrets.token_hex(6)}"
        at = f"delta/v1/catalogs/{CATALOG}/schemas/{SCHEMA}"
        staging = self.call("POST", f"{at}/staging-tables", {"name": name})
        folder = Path(staging["location"].removeprefix("file://"))
        required = staging["required-protocol"]
        readers = [*required["reader-features"], "deletionVectors"]
        writers = [*required["writer-features"], "deletionVectors"]
        writers += ["domainMetadata", "rowTracking"] if row_ids else []
        configuration = {
            **{key: text for key, text in staging["required-properties"].items() if text},
            "delta.enableDeletionVectors": "true",
            **(_ROW_IDS if row_ids else {}),
            **(properties or {}),
        }
        schema = {
            "type": "struct",
            "fields": [
                {"name": each, "type": type_, "nullable": True, "metadata": {}}
                for each, type_ in (columns or {"id": "long", "v": "string"}).items()
            ],
        }
        made_ms = int(time.time() * 1000)
        _write_first(folder, staging["table-id"], schema, configuration, readers, writers, made_ms)
        self.call(
            "POST",
            f"{at}/tables",
            {
                "name": name,
                "table-type": "MANAGED",
                "location": staging["location"],
                "columns": schema,
                "properties": configuration,
                "protocol": {**required, "reader-features": readers, "writer-features": writers},
                "last-commit-timestamp-ms": made_ms,
            },
        )
        return ManagedTable(self, name, staging["table-id"], folder)


def _write_first(
    folder: Path,
    table_id: str,
    schema: Json,
    configuration: Mapping[str, str],
    readers: Sequence[str],
    writers: Sequence[str],
    made_ms: int,
) -> None:
    actions: list[Json] = [
        {
            "commitInfo": {
                "inCommitTimestamp": made_ms,
                "timestamp": made_ms,
                "operation": "CREATE TABLE",
                "operationParameters": {},
                "txnId": str(uuid.uuid4()),
            }
        },
        {
            "protocol": {
                "minReaderVersion": 3,
                "minWriterVersion": 7,
                "readerFeatures": readers,
                "writerFeatures": writers,
            }
        },
        {
            "metaData": {
                "id": table_id,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": dict(configuration),
                "createdTime": made_ms,
            }
        },
    ]
    log = folder / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)  # Spark makes no folder on a local disk
    (log / f"{0:020d}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))


@contextmanager
def start_server() -> Iterator[UnityServer]:
    """Run a server for the length of the block, with one catalog and one schema."""
    built = subprocess.run(
        [str(_REPOSITORY / "tools" / "build-unity.sh")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    program = built.stdout.strip()
    with scratch("tandem-unity-") as root:
        (root / "tables").mkdir()
        (port,) = free_ports(1)
        url, config = f"http://127.0.0.1:{port}", root / "uc.yaml"
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        settings = {
            "host": "127.0.0.1",
            "port": port,
            "backend": {"engine": "sqlite", "path": str(root / "uc.db")},
            "managed_storage_root": f"file://{root / 'tables'}",
            "local_storage": {"allowed-roots": [str(root / "tables")]},
            "encryption": {"active": {"id": "tests", "key": key}},
            "ui": {"serve": False},
        }
        config.write_text(json.dumps(settings))  # JSON is YAML
        migrate = [program, "migrate", "-c", str(config)]
        done = subprocess.run(migrate, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        part = Part("uc-server", [program, "serve", "-c", str(config)], root, lambda: _serves(url))
        server = UnityServer(url, part)
        part.start()
        try:
            server.call("POST", "catalogs", {"name": CATALOG})
            server.call("POST", "schemas", {"name": SCHEMA, "catalog_name": CATALOG})
            yield server
        finally:
            part.terminate()


def _serves(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
