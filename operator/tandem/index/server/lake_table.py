"""The index of a LakeTable as its `spec.index` says: that of its server, with this process's own
behind it. Reads no cluster: where a server answers follows from names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from tandem.delta.log.delta_log import DeltaLog
from tandem.index.library import IndexReader, open_index, require_no_merge_log
from tandem.index.server.client import ChainedIndex, RemoteIndex
from tandem.index.server.config import PORT
from tandem.index.server.transport import Connection, Tls
from tandem.spec.table import LakeTable
from tandem.storage import open_store

_log = structlog.get_logger("tandem.index.client")

ENDPOINT_VARIABLE: Final = "TANDEM_INDEX_ENDPOINT"
"""Where the server answers, outside of its cluster: `grpc+tls://HOST:PORT`."""
FOLDER_VARIABLE: Final = "TANDEM_INDEX_ACCESS"
"""The folder with `token`, and `ca.crt` unless the server's certificate is trusted anyway."""
ACCESS_FOLDER: Final = "/var/run/secrets/tandem-index"


def index_of(
    table: LakeTable,
    options: Mapping[str, str] | None = None,
    *,
    base: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> IndexReader:
    """The index of a table.

    Args:
        options: of the store, beside those of the LakeTable.
        base: as of `open_index`; then no server is asked.
    Raises: as `open_index`. A server that cannot be asked is none, which is logged as a warning.
    """
    location, storage = table.spec.location, {**table.spec.storage.options, **(options or {})}
    server = server_of(table)
    if server is None or base:
        return open_index(location, storage, base=base)
    endpoint = _endpoint(server, table.namespace, environ)
    if endpoint is None:
        _log.warning(
            "the index server is not asked; this process answers",
            server=server,
            problem=f"this is outside of its cluster, and {ENDPOINT_VARIABLE} names no address",
        )
        return open_index(location, storage)
    store = open_store(location, storage)
    require_no_merge_log(DeltaLog(store))
    folder = Path(environ.get(FOLDER_VARIABLE) or ACCESS_FOLDER)
    authorities = _content(folder / "ca.crt")
    connection = Connection(
        endpoint,
        token=_content(folder / "token").decode(errors="replace").strip(),
        tls=Tls(authorities) if authorities else None,
    )
    remote = RemoteIndex(connection, table.name, store)
    return ChainedIndex(remote, lambda: open_index(location, storage), server=server)


def server_of(table: LakeTable) -> str | None:
    """The name of the `IndexServer` that a table's readers ask; None if there is none."""
    return table.spec.index.server if table.spec.index is not None else None


def _endpoint(server: str, namespace: str, environ: Mapping[str, str]) -> str | None:
    """Where a server answers; None if it cannot be reached."""
    if environ.get(ENDPOINT_VARIABLE):
        return environ[ENDPOINT_VARIABLE]
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return f"grpc+tls://{server}-index.{namespace}.svc:{PORT}"


def _content(file: Path) -> bytes:
    """What is in a file; nothing if it cannot be read: then the server refuses, and is left out."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
