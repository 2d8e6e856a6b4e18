"""Where AWS Glue says that a table is: one call, `GetTable`, by botocore."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from tandem.catalogs.registered import RegisteredTable
from tandem.errors import AccessDenied, StorageError, TableNotFound, TandemError, UnsupportedFeature
from tandem.remedies import CREDENTIALS
from tandem.spec.catalog import GlueName, parts_of
from tandem.storage.options import settings
from tandem.storage.s3 import client_of_service
from tandem.storage.time_limits import TimeLimits, time_limits
from tandem.text import clean

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_GLUE", "AWS_ENDPOINT_URL")
"""AWS's own variables of the process; those of a Secret do not count."""
_NOT_FOUND: Final = "EntityNotFoundException"
_DENIED: Final = frozenset(
    {
        "AccessDeniedException",
        "ExpiredTokenException",
        "IncompleteSignatureException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "UnrecognizedClientException",
    }
)


_UNREADABLE: Final = (ValueError, TypeError, AttributeError, RecursionError)
"""What botocore raises for a region or a host that is none, and for an answer of another shape."""


def look_up(
    named: GlueName,
    environ: Mapping[str, str] | None = None,
    *,
    resource: str,
    ceiling_s: float | None = None,
) -> RegisteredTable:
    """The table as Glue describes it.

    Args:
        ceiling_s: how long the request may take, in seconds; None for any time.
        environ: credentials that replace the process's own variables of the same names.
        resource: the table as the command line spells it, for messages.
    Raises: TableNotFound, AccessDenied, UnsupportedFeature for a link to another table, InvalidSpec
        for credentials that cannot be used, StorageError if Glue does not answer.
    """
    database, table = parts_of(named.name)
    asked = {"DatabaseName": database, "Name": table}
    if named.catalog_id is not None:
        asked["CatalogId"] = named.catalog_id
    limits = time_limits({}, ceiling_s)
    try:
        client = _client(named, environ, limits, resource)
        described = _Described(_call(client, asked, resource))
        if target := described.inner("TargetTable"):
            raise UnsupportedFeature(
                "this is a link to another table",
                resource=resource,
                found=f"{target.text('DatabaseName')}.{target.text('Name')}",
                expected="the table itself",
                remedy=f"Name it, with catalogId {target.text('CatalogId')}",
            )
        storage = described.inner("StorageDescriptor")
        return RegisteredTable(
            table_type=described.text("TableType"),
            parameters=described.texts("Parameters"),
            location=storage.text("Location"),
            serde_parameters=storage.inner("SerdeInfo").texts("Parameters"),
            input_format=storage.text("InputFormat"),
        )
    except _UNREADABLE as error:
        raise StorageError(
            "AWS Glue did not answer as expected",
            resource=resource,
            found=clean(f"{type(error).__name__}: {error}", 200),
            expected="an answer of Glue",
            remedy="Check the region, the endpoint and the network",
        ) from None


class _Described:
    """A part of an answer. botocore leaves values of other types as they are. Raises: TypeError."""

    def __init__(self, found: Any) -> None:
        if not isinstance(found, dict):
            raise TypeError(f"{found!r:.50} is no object")
        self._found = found

    def __bool__(self) -> bool:
        return bool(self._found)

    def inner(self, name: str) -> _Described:
        return _Described(self._found.get(name, {}))

    def text(self, name: str) -> str:
        found = self._found.get(name, "")
        if not isinstance(found, str):
            raise TypeError(f"{name} is no text")
        return found

    def texts(self, name: str) -> dict[str, str]:
        inner = self.inner(name)
        return {key: inner.text(key) for key in inner._found}


def _client(
    named: GlueName, environ: Mapping[str, str] | None, limits: TimeLimits, resource: str
) -> Any:
    chosen = settings("s3", {}, environ)
    endpoint = named.endpoint or next(filter(None, map(os.environ.get, _ENDPOINTS)), None)
    config = {**chosen.config, "region": named.region}
    client = client_of_service("glue", config, limits, endpoint=endpoint)
    if client is not None:
        return client
    try:
        import botocore  # noqa: F401
    except ImportError:
        raise StorageError(
            "AWS Glue is asked by botocore, which is not installed",
            resource=resource,
            remedy="pip install --no-deps -r requirements/part-copy.in, or give the table's "
            "location in place of its name",
        ) from None
    raise AccessDenied(
        "there are no credentials for AWS Glue",
        resource=resource,
        found=f"no key in {CREDENTIALS.in_resource}, and no identity of this machine or pod",
        expected="credentials that may glue:GetTable",
        remedy=f"Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in {CREDENTIALS.in_resource}",
    )


def _call(client: Any, asked: Mapping[str, str], resource: str) -> Any:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer: dict[str, Any] = client.get_table(**asked)
    except ClientError as error:
        raise _translated(error.response.get("Error", {}), asked, resource) from None
    except BotoCoreError as error:
        raise StorageError(
            "AWS Glue did not answer as expected",
            resource=resource,
            found=f"{type(error).__name__} at {client.meta.endpoint_url}",
            expected="an answer",
            remedy="Check the region, the endpoint and the network",
        ) from None
    if not answer.get("Table"):
        raise StorageError(
            "AWS Glue did not answer as expected",
            resource=resource,
            found=f"an answer without a table from {client.meta.endpoint_url}",
            expected="a table",
            remedy="Check the endpoint, and the proxy before it",
        )
    return answer["Table"]


def _translated(error: Mapping[str, Any], asked: Mapping[str, str], resource: str) -> TandemError:
    code = str(error.get("Code", ""))[:80]
    said = " ".join(str(error.get("Message", "")).split())[:200]
    shown = f"{code}: {said}"
    if code == _NOT_FOUND:
        return TableNotFound(
            "AWS Glue has no such table",
            resource=resource,
            found=shown,
            expected=f"a table {asked['Name']} in the database {asked['DatabaseName']}",
            remedy="Correct the name, the region or catalogId",
        )
    if code in _DENIED:
        return AccessDenied(
            "AWS Glue refuses these credentials",
            resource=resource,
            found=shown,
            expected="credentials that may glue:GetTable",
            remedy=f"Check the credentials in {CREDENTIALS.in_resource}, and their policy",
        )
    return StorageError(
        "AWS Glue did not answer as expected", resource=resource, found=shown, expected="a table"
    )
