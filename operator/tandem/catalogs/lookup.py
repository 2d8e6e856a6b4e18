"""Where a catalog says that a table is, and whether the catalog decides which versions it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tandem.catalogs.registered import location_of
from tandem.catalogs.unity import UnityTable
from tandem.errors import InvalidSpec
from tandem.spec.catalog import GlueName, HiveName, parts_of
from tandem.spec.table import LakeTable
from tandem.storage.paths import canonical_location, without_userinfo

TOKEN_VARIABLE: Final = "TANDEM_UNITY_TOKEN"
"""The token of Unity Catalog, where no Secret has it."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as its catalog names it.

    Attributes:
        location: canonical.
        unity: the calls for a table of Unity Catalog; None for other catalogs.
        managed_id: the table's id, if the catalog decides which versions it has; else "".
    """

    location: str
    unity: UnityTable | None = None
    managed_id: str = ""


def look_up(
    table: LakeTable,
    *,
    token: Callable[[], str],
    environ: Mapping[str, str] | None = None,
    ceiling_s: float | None = None,
) -> CatalogEntry:
    """Ask the catalog of a LakeTable, which must have one.

    Args:
        token: that of Unity Catalog, "" for none.
        environ: credentials for Glue that replace the process's own variables of the same names.
        ceiling_s: how long the request may take, in seconds; None for any time.
    Raises: TableNotFound, AccessDenied, UnsupportedFeature for what is no Delta table, InvalidSpec
        if `spec.location` is another location, StorageError.
    """
    assert table.spec.catalog is not None
    named, resource = table.spec.catalog.entry, table.spec.catalog.url
    if isinstance(named, HiveName):
        from tandem.catalogs import hive

        described = hive.look_up(named, resource=resource, ceiling_s=ceiling_s)
        found = CatalogEntry(location_of(described, resource=resource))
    elif isinstance(named, GlueName):
        from tandem.catalogs import glue

        described = glue.look_up(named, environ, resource=resource, ceiling_s=ceiling_s)
        found = CatalogEntry(location_of(described, resource=resource))
    else:
        catalog, schema, name = parts_of(named.name)
        client = UnityTable(named.uri, (catalog, schema, name), token, ceiling_s=ceiling_s)
        entry = client.entry()
        found = CatalogEntry(
            entry.location, client, entry.table_id if entry.catalog_managed else ""
        )
    _check_location(table, found.location)
    return found


def _check_location(table: LakeTable, location: str) -> None:
    given = table.spec.location
    if given is None or canonical_location(given, field="spec.location") == location:
        return
    raise InvalidSpec(
        "the catalog has another location for this table",
        resource=table.id,
        field="spec.location",
        found=without_userinfo(given),
        expected=location,
        remedy="Remove spec.location, or correct it or the name in spec.catalog",
    )
