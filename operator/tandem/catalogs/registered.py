"""What a Hive Metastore or AWS Glue says of a table: whether it is a Delta table, and where. Pure.

Spark keeps Delta tables in both as tables of its provider `delta`, with the location as the
property `path` of the serialization: the location itself of an external table ends in
`-__PLACEHOLDER__`. Other engines write the property `table_type`, or Hive's storage handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandem.errors import InvalidSpec, TableNotFound, UnsupportedFeature
from tandem.storage.paths import canonical_location, without_userinfo

_PLACEHOLDER: Final = "-__PLACEHOLDER__"
_VIEWS: Final = frozenset({"VIRTUAL_VIEW", "MATERIALIZED_VIEW"})
_HANDLER: Final = "io.delta.hive.deltastoragehandler"
_SPELLINGS: Final = ("spark.sql.sources.provider", "table_type", "provider")
_OTHERS: Final = (*_SPELLINGS, "classification", "storage_handler")


@dataclass(frozen=True, slots=True)
class RegisteredTable:
    """A table as a catalog describes it; `location` as it is stored, "" for none."""

    table_type: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    location: str = ""
    serde_parameters: Mapping[str, str] = field(default_factory=dict)
    input_format: str = ""


def location_of(found: RegisteredTable, *, resource: str) -> str:
    """The canonical location of the table.

    Args:
        resource: the table as the command line spells it, for messages.
    Raises: UnsupportedFeature for a view, or a table of another format; TableNotFound if the
        catalog has no location, or one of a store that is not known.
    """
    if found.table_type in _VIEWS:
        raise UnsupportedFeature(
            "this is a view",
            resource=resource,
            found=found.table_type,
            expected="a Delta table",
            remedy="Name the table that the view reads",
        )
    parameters = {name.lower(): text for name, text in found.parameters.items()}
    handler = parameters.get("storage_handler", "").lower()
    if handler != _HANDLER and not any(
        parameters.get(name, "").lower() == "delta" for name in _SPELLINGS
    ):
        shown = [f"{name}={parameters[name]}" for name in _OTHERS if name in parameters]
        raise UnsupportedFeature(
            "the catalog does not say that this is a Delta table",
            resource=resource,
            found=", ".join(shown) or found.input_format or "no format",
            expected="spark.sql.sources.provider=delta, or table_type=DELTA",
            remedy="Name a Delta table; if it is one, correct its property in the catalog, or give "
            "its location in place of its name",
        )
    serde = {name.lower(): text for name, text in found.serde_parameters.items()}
    location = serde.get("path") or found.location
    if not location or location.endswith(_PLACEHOLDER):
        raise TableNotFound(
            "the catalog has no location of this table",
            resource=resource,
            found=location or "none",
            expected="a location, or the property `path` of its serialization",
            remedy="Correct the table in the catalog, or give its location in place of its name",
        )
    return canonical(location, resource=resource)


def canonical(location: str, *, resource: str) -> str:
    """The canonical form of a location as a catalog stores it: literally, not percent-encoded.

    Raises: UnsupportedFeature if it is in a store that is not known.
    """
    try:
        return canonical_location(location, encoded=False, field="location")
    except InvalidSpec as error:
        raise UnsupportedFeature(
            f"the location that the catalog has cannot be used: {error.message}",
            resource=resource,
            found=without_userinfo(location)[:200],
            expected=error.expected,
            remedy="Correct the table's location in the catalog",
        ) from None
