"""The index of a LakeTable as its `spec.index` says: that of its server, with this process's own
behind it. Reads no cluster: where a server answers follows from names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tandem.delta.log.delta_log import DeltaLog
from tandem.index.library import (
    IndexReader,
    TableIndex,
    open_index,
    require_no_merge_log,
)
from tandem.index.server.client import ChainedIndex, Fallback, RemoteIndex
from tandem.index.server.config import PORT
from tandem.index.server.transport import Connection, Tls
from tandem.spec.table import LakeTable
from tandem.storage import open_store
from tandem.storage.store import Store

_log = structlog.get_logger("tandem.index.client")

ENDPOINT_VARIABLE: Final = "TANDEM_INDEX_ENDPOINT"
"""Where the server answers, outside of its cluster: `grpc+tls://HOST:PORT`."""
FOLDER_VARIABLE: Final = "TANDEM_INDEX_ACCESS"
"""The folder with `token`, and `ca.crt` unless the server's certificate is trusted anyway."""
ACCESS_FOLDER: Final = "/var/run/secrets/tandem-index"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a table's server is found. Has no secret: token and certificates are files, which each
    process reads by itself.

    Attributes:
        table: the name of the LakeTable.
        server: the name of the `IndexServer`.
        endpoint: `grpc+tls://HOST:PORT`.
        folder: with `token` and `ca.crt`.
    """

    table: str
    server: str
    endpoint: str
    folder: str

    def index(
        self,
        store: Store,
        embedded: Callable[[], TableIndex],
        fallback: Fallback = Fallback.EMBEDDED,
    ) -> IndexReader:
        """The index that the server holds, and this process's own behind it."""
        folder = Path(self.folder)
        authorities = _content(folder / "ca.crt")
        connection = Connection(
            self.endpoint,
            token=_content(folder / "token").decode(errors="replace").strip(),
            tls=Tls(authorities) if authorities else None,
        )
        remote = RemoteIndex(connection, self.table, store)
        return ChainedIndex(remote, embedded, fallback=fallback, server=self.server)


def index_of(
    table: LakeTable,
    options: Mapping[str, str] | None = None,
    *,
    base: bool = False,
    fallback: Fallback = Fallback.EMBEDDED,
    environ: Mapping[str, str] = os.environ,
) -> IndexReader:
    """The index of a table.

    Args:
        options: of the store, beside those of the LakeTable.
        base: as of `open_index`; then no server is asked.
        fallback: what follows where the server fails.
    Raises: as `open_index`. A server that cannot be asked is none, which is logged as a warning.
    """
    location, storage = table.spec.location, storage_of(table, options)
    address = None if base else address_of(table, environ)
    if address is None:
        server = server_of(table)
        if server is not None and not base:
            _log.warning(
                "the index server is not asked; this process answers",
                server=server,
                problem=f"this is outside of its cluster, and {ENDPOINT_VARIABLE} names no address",
            )
        return _own_index(table, storage, base=base)
    store = open_store(location, storage, allowed_prefixes=table.spec.storage.clone_sources)
    require_no_merge_log(DeltaLog(store))
    return address.index(store, lambda: _own_index(table, storage), fallback)


def _own_index(table: LakeTable, storage: Mapping[str, str], *, base: bool = False) -> TableIndex:
    sources = table.spec.storage.clone_sources
    return open_index(table.spec.location, storage, base=base, allowed_prefixes=sources)


def storage_of(table: LakeTable, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """The options of a table's store, and others beside them."""
    return {**table.spec.storage.options, **(options or {})}


def address_of(table: LakeTable, environ: Mapping[str, str] = os.environ) -> ServerAddress | None:
    """Where the server of a table is; None if it has none, or if that cannot be reached."""
    server = server_of(table)
    endpoint = None if server is None else _endpoint(server, table.namespace, environ)
    if server is None or endpoint is None:
        return None
    folder = environ.get(FOLDER_VARIABLE) or ACCESS_FOLDER
    return ServerAddress(table.name, server, endpoint, folder)


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
