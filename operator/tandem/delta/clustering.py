"""Clustered tables (protocol, "Clustered Table"): their columns, and the tags of clustered files.

The files of one clustering are a *Z-cube*, named by tags that Delta's `OPTIMIZE` reads and writes:
it leaves files alone that another clustering ordered by other columns, those of cubes that are
large enough, and those of a cube that is all there is. No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem.delta.actions import DomainMetadata
from tandem.delta.schema import Field, StructType
from tandem.errors import CorruptLog

DOMAIN: Final = "delta.clustering"
PROVIDER: Final = "liquid"
"""`clusteringProvider` of files that Delta, or we, clustered."""
CUBE_ID: Final = "ZCUBE_ID"
CUBE_COLUMNS: Final = "ZCUBE_ZORDER_BY"
STABLE_CUBE: Final = 100 << 30
"""A cube of so many bytes is not clustered again (`optimize.clustering.mergeStrategy.minCubeSize`
of Spark)."""

_PLAIN = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


def clustering_columns(
    domains: Mapping[str, DomainMetadata], schema: StructType
) -> dict[str, Field]:
    """The clustering columns of a table, in order, by the reference that tags name them by: the
    logical names of a field and the structs around it, quoted as Spark does. Raises: CorruptLog."""
    domain = domains.get(DOMAIN)
    if domain is None:
        return {}
    try:
        listed = json.loads(domain.configuration)["clusteringColumns"]
        paths = [[each] if isinstance(each, str) else list(each) for each in listed]
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(domain.configuration, "clusteringColumns, a list") from error
    return dict(_found(path, schema, domain.configuration) for path in paths)


def _found(path: Sequence[object], schema: StructType, text: str) -> tuple[str, Field]:
    names: list[str] = []
    field: Field | None = None
    inside: object = schema
    for part in path:
        fields = inside.fields if isinstance(inside, StructType) else ()
        field = next((each for each in fields if each.physical_name == part), None)
        if field is None:
            break
        names.append(field.name)
        inside = field.type
    if field is None:
        raise _corrupt(text, "physical names of columns in the schema")
    return reference(names), field


def _corrupt(found: str, expected: str) -> CorruptLog:
    return CorruptLog(
        "the clustering columns of the table cannot be read",
        field=f"domainMetadata {DOMAIN}",
        found=found,
        expected=expected,
        remedy="Set them again: ALTER TABLE … CLUSTER BY",
    )


def reference(names: Sequence[str]) -> str:
    """Names of nested fields as one text: `a.b`, or in backquotes where they are not plain."""
    return ".".join(
        name if _PLAIN.fullmatch(name) else f"`{name.replace('`', '``')}`" for name in names
    )


def path_of(text: str) -> tuple[str, ...]:
    """The names in a reference."""
    return tuple(m[2] or m[1].replace("``", "`") for m in _PART.finditer(text))


def cube_tags(id_: str, columns: Sequence[str]) -> dict[str, str]:
    """The tags of the files of a cube, ordered by these references."""
    by = json.dumps(columns, ensure_ascii=False, separators=(",", ":"))
    return {CUBE_ID: id_, CUBE_COLUMNS: by}


def is_by(tag: str, columns: Sequence[str]) -> bool:
    """Whether a value of `CUBE_COLUMNS` names these references."""
    try:
        found: Any = json.loads(tag)
    except ValueError:
        return False
    return bool(found == list(columns))
