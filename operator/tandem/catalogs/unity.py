"""A table in Unity Catalog, by its Delta API (unitycatalog, `api/delta.yaml`, version 1.0).

Answers are foreign: each field is checked before it is used. Which commit has a version is found
by `load`, never by the status of an answer: servers differ in it.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

from tandem.catalogs.rest import Reply, Rest
from tandem.delta.log.commit_log import CatalogState, RatifiedCommit
from tandem.errors import (
    AccessDenied,
    BacklogFull,
    CommitRefused,
    InvalidSpec,
    StorageError,
    TableNotFound,
    UnsupportedFeature,
)
from tandem.json_types import Json
from tandem.storage import Store, open_store
from tandem.storage.paths import canonical_location, is_below
from tandem.storage.renewable import Vended, VendedStore, unix_ms

API: Final = "/api/2.1/unity-catalog"
_MANAGED: Final = ("delta.feature.catalogManaged", "delta.feature.catalogOwned-preview")
_DOMAINS: Final = ("delta.rowTracking", "delta.clustering")
"""Those that the catalog keeps."""
_FILE: Final = re.compile(r"[A-Za-z0-9._-]{1,255}\.json")
_UNSUPPORTED: Final = ("UnsupportedTableFormatException", "NotImplementedException")
_VARIABLES: Final[Mapping[str, str]] = {
    "s3.access-key-id": "AWS_ACCESS_KEY_ID",
    "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "s3.session-token": "AWS_SESSION_TOKEN",
    "azure.sas-token": "AZURE_STORAGE_SAS_TOKEN",
    "gcs.oauth-token": "GOOGLE_BEARER_TOKEN",
}
_NEEDED: Final[Mapping[str, Collection[str]]] = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "abfss": ("AZURE_STORAGE_SAS_TOKEN",),
    "gs": ("GOOGLE_BEARER_TOKEN",),
}
"""Of a store of this scheme. Without them its client would take those of the process."""
_MOST: Final = 2**63 - 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What a catalog says of a table when it is opened.

    Attributes:
        location: canonical.
        catalog_managed: whether the catalog decides which versions it has; if not, its folder
            does.
    """

    table_id: str
    location: str
    catalog_managed: bool


class UnityTable:
    """A `CatalogTable`. Thread-safe.

    Args:
        uri: the catalog's address, `https://host[:port]`; the path of its API is added.
        name: catalog, schema and table.
        token: the bearer token, asked for at each request; "" for none.
        ceiling_s: as of `Rest`.
        context: as of `Rest`.
    Raises: InvalidSpec if it is not such an address, or a part of the name is `.` or `..`.
    """

    def __init__(
        self,
        uri: str,
        name: tuple[str, str, str],
        token: Callable[[], str],
        *,
        ceiling_s: float | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        base = uri.rstrip("/")
        url = base if base.endswith(API) else base + API
        self._rest = Rest(url, token, ceiling_s=ceiling_s, context=context)
        self._token = token
        catalog, schema, table = name
        self._path = ("delta", "v1", "catalogs", catalog, "schemas", schema, "tables", table)
        self.name = ".".join(name)
        if not {".", ".."}.isdisjoint(name):
            raise InvalidSpec(
                "a part of the name of a table is a step of a path",
                resource=self._rest.url,
                field="name",
                found=self.name,
                expected="catalog.schema.table",
            )

    def __repr__(self) -> str:
        return f"<{self.name} of {self._rest.url}>"

    def entry(self) -> TableEntry:
        """Raises: TableNotFound, AccessDenied, UnsupportedFeature if it is no Delta table or a
        UniForm one, StorageError."""
        body = self._load()
        metadata = self._field(body, "metadata", dict)
        if body.get("uniform") is not None:
            raise UnsupportedFeature(
                "the table has an Iceberg side, which would be out of date after our commits",
                resource=self.name,
                field="uniform",
                found="UniForm",
                expected="a Delta table only",
            )
        location = self._field(metadata, "location", str)
        try:
            location = canonical_location(location)
        except InvalidSpec as error:
            raise StorageError(
                "the catalog names a location that cannot be used",
                resource=self.name,
                field="location",
                found=error.found,
                expected=error.expected,
            ) from None
        properties = self._field(metadata, "properties", dict)
        return TableEntry(
            table_id=self._field(metadata, "table-uuid", str),
            location=location,
            catalog_managed=any(properties.get(each) == "supported" for each in _MANAGED),
        )

    def load(self) -> CatalogState:
        """Raises: TableNotFound, AccessDenied, StorageError."""
        body = self._load()
        metadata = self._field(body, "metadata", dict)
        allowed = body.get("allowed-maintenance-operations")
        if allowed is not None and not isinstance(allowed, list):
            self._refuse("allowed-maintenance-operations", allowed, "a list")
        commits = body.get("commits") or []
        if not isinstance(commits, list):
            self._refuse("commits", commits, "a list")
        ratified = tuple(map(self._commit, commits))
        versions = sorted(each.version for each in ratified)
        if versions and versions != list(range(versions[0], versions[0] + len(versions))):
            self._refuse("commits", f"versions {versions}", "each version once, without a gap")
        latest = self._field(body, "latest-table-version", int)
        return CatalogState(
            table_id=self._field(metadata, "table-uuid", str),
            latest=latest,
            ratified=tuple(each for each in ratified if each.version <= latest),
            permissions=None if allowed is None else frozenset(map(str, allowed)),
        )

    def add_commit(
        self, commit: RatifiedCommit, *, table_id: str, domains: Mapping[str, str]
    ) -> None:
        """As of `CatalogTable`."""
        described: Json = {
            "version": commit.version,
            "timestamp": commit.timestamp_ms,
            "file-name": commit.file_name,
            "file-size": commit.size,
            "file-modification-timestamp": commit.modified_ms,
        }
        updates: list[Json] = [{"action": "add-commit", "commit": described}]
        kept = {name: json.loads(text) for name, text in domains.items() if name in _DOMAINS}
        if kept:
            updates.append({"action": "set-domain-metadata", "updates": kept})
        answer = self._update(table_id, updates)
        if answer.status == 429:
            raise self._error(BacklogFull, "too many commits are not published", answer)
        if not answer.ok:
            raise self._error(CommitRefused, "the catalog did not ratify the commit", answer)

    def report_published(self, version: int, *, table_id: str) -> None:
        """As of `CatalogTable`."""
        action = "set-latest-backfilled-version"
        answer = self._update(table_id, [{"action": action, "latest-published-version": version}])
        if not answer.ok:
            raise self._error(StorageError, "the catalog took no report", answer)

    def credentials(self, location: str) -> Vended:
        """Those for the table's folder: to write, or only to read where the catalog gives no more.

        Args:
            location: the table's, canonical.
        Raises: AccessDenied if it gives none, none for this folder, or none of its store;
            StorageError.
        """
        answer = self._credentials("READ_WRITE")
        if answer.status == 403:
            answer = self._credentials("READ")
        self._require(answer)
        best: tuple[int, Json] | None = None
        for each in self._field(answer.body, "storage-credentials", list):
            if not isinstance(each, dict):
                self._refuse("storage-credentials", each, "objects")
            length = _covers(self._field(each, "prefix", str), location)
            if length and (best is None or length > best[0]):
                best = length, each
        if best is None:
            raise AccessDenied(
                "the catalog gives no credentials for the table's folder",
                resource=self.name,
                field="storage-credentials",
                found=self._rest.shown(
                    ", ".join(
                        str(each.get("prefix")) for each in answer.body["storage-credentials"]
                    )
                ),
                expected=location,
            )
        expires = best[1].get("expiration-time-ms")
        if expires is not None and not isinstance(expires, int):
            self._refuse("expiration-time-ms", type(expires).__name__, "Unix milliseconds")
        config = best[1].get("config") or {}
        if not isinstance(config, dict):
            self._refuse("config", type(config).__name__, "an object")
        environ = {name: str(config[key]) for key, name in _VARIABLES.items() if config.get(key)}
        for key, name in _VARIABLES.items():
            if not environ.get(name, "").isprintable():
                self._refuse(key, "a control character", "credentials")
        needed = _NEEDED.get(location.partition(":")[0], ())
        if missing := [name for name in needed if name not in environ]:
            raise AccessDenied(
                "the catalog gives no credentials of the table's store",
                resource=self.name,
                field="storage-credentials.config",
                found=self._rest.shown(", ".join(config)) or "nothing",
                expected=", ".join(key for key, name in _VARIABLES.items() if name in missing),
                remedy="Configure the catalog's credentials of this location, or give those of the "
                "table by spec.storage.secretRef",
            )
        return Vended(environ, expires)

    # Requests

    def _load(self) -> Json:
        answer = self._rest.get(self._path)
        self._require(answer)
        return answer.body

    def _credentials(self, operation: str) -> Reply:
        return self._rest.get((*self._path, "credentials"), {"operation": operation})

    def _update(self, table_id: str, updates: list[Json]) -> Reply:
        requirement = {"type": "assert-table-uuid", "uuid": table_id}
        answer = self._rest.post(self._path, {"requirements": [requirement], "updates": updates})
        self._require_access(answer)
        return answer

    # Answers

    def _commit(self, found: Any) -> RatifiedCommit:
        if not isinstance(found, dict):
            self._refuse("commits", found, "objects")
        name = self._field(found, "file-name", str)
        if _FILE.fullmatch(name) is None:
            self._refuse("file-name", name, "the name of a file, without a folder")
        return RatifiedCommit(
            version=self._field(found, "version", int),
            file_name=name,
            size=self._field(found, "file-size", int),
            modified_ms=self._field(found, "file-modification-timestamp", int),
            timestamp_ms=self._field(found, "timestamp", int),
        )

    def _field(self, found: Json, name: str, kind: type[_T]) -> _T:
        value = found.get(name)
        if not isinstance(value, kind) or isinstance(value, bool):
            self._refuse(name, "nothing" if value is None else value, kind.__name__)
        if isinstance(value, int) and not 0 <= value <= _MOST:
            self._refuse(name, value, f"0 to {_MOST}")
        if value == "":
            self._refuse(name, "an empty text", "a text")
        return value

    def _refuse(self, name: str, found: object, expected: str) -> NoReturn:
        raise StorageError(
            "the catalog's answer is not that of its API",
            resource=self.name,
            field=name,
            found=self._rest.shown(str(found)),
            expected=expected,
            remedy="Correct the URL, or report it to the makers of the catalog",
        )

    def _require_access(self, answer: Reply) -> None:
        if answer.status == 401:
            raise self._error(
                AccessDenied,
                "the catalog does not take the token"
                if self._token()
                else "the catalog wants a token, and there is none",
                answer,
                "Set TANDEM_UNITY_TOKEN to one that is valid; in a cluster, the key of the Secret "
                "that spec.catalog.unity.tokenSecretRef names",
            )
        if answer.status == 403:
            raise self._error(
                AccessDenied,
                "the catalog does not allow this to the owner of the token",
                answer,
                "Grant it there: USE CATALOG, USE SCHEMA, SELECT, MODIFY, EXTERNAL USE SCHEMA",
            )
        if answer.status == 404:
            raise TableNotFound(
                "the catalog has no such table",
                resource=self.name,
                found=answer.described,
                expected="catalog.schema.table",
                remedy="Correct the name; a table may have been dropped or renamed",
            )

    def _require(self, answer: Reply) -> None:
        self._require_access(answer)
        if answer.error in _UNSUPPORTED:
            raise UnsupportedFeature(
                "the catalog does not serve it as a Delta table",
                resource=self.name,
                found=answer.described,
                expected="a Delta table",
            )
        if not answer.ok:
            raise self._error(StorageError, "the catalog refuses the request", answer)

    def _error(
        self, kind: type[StorageError], message: str, answer: Reply, remedy: str = ""
    ) -> StorageError:
        return kind(message, resource=self.name, found=answer.described, remedy=remedy)


def _covers(prefix: str, location: str) -> int:
    """The length of a prefix that has the location below it; 0 if it has not."""
    try:
        folder = canonical_location(prefix)
    except InvalidSpec:
        return 0
    return len(folder) if is_below(location, folder) else 0


def open_vended_store(
    table: UnityTable,
    location: str,
    options: Mapping[str, str],
    *,
    allowed_prefixes: Sequence[str] = (),
    ceiling_s: float | None = None,
    now_ms: Callable[[], int] = unix_ms,
) -> Store:
    """The store of a table whose credentials nothing else gives: no Secret, no variable. Those of
    the process are for other tables. A local folder needs none.

    Args:
        location: the table's, canonical.
        options: as the other arguments, of `open_store`.
    Raises: as `UnityTable.credentials`, `open_store`.
    """

    def opened(environ: Mapping[str, str]) -> Store:
        return open_store(
            location,
            options,
            allowed_prefixes=allowed_prefixes,
            environ=environ,
            ceiling_s=ceiling_s,
        )

    if location.startswith("file:"):
        return opened({})
    return VendedStore(lambda: table.credentials(location), opened, now_ms)
