"""Data types in statements, and the table's columns by name.

The types are Spark's, read from the schema string of Delta metadata; types that a statement cannot
compute with (arrays, maps, variants) are opaque: they may only be tested for NULL. Pure values;
nothing here depends on files or sessions.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tandem.delta.schema import COLLATIONS
from tandem.errors import InvalidStatement

MAX_PRECISION: Final = 38


@dataclass(frozen=True)
class SqlType:
    """A type. `name` is Delta's primitive name, or one of `decimal`, `struct`, `null`,
    `interval day`, `interval day to second`, `interval year to month`, `other` and `unknown`: that
    of a column whose type is determined later, and which is compatible with every type. `nested`
    distinguishes arrays and maps by what they hold; empty for other types."""

    name: str
    precision: int = 0
    scale: int = 0
    fields: tuple[SchemaColumn, ...] = ()
    detail: str = ""
    nested: str = ""

    def __str__(self) -> str:
        return self.detail or sql_name(self)

    @property
    def is_integral(self) -> bool:
        return self.name in _INTEGRAL_DIGITS

    @property
    def is_numeric(self) -> bool:
        return self.is_integral or self.name in {"decimal", "float", "double"}

    @property
    def is_datetime(self) -> bool:
        return self.name in {"date", "timestamp", "timestamp_ntz"}

    @property
    def is_interval(self) -> bool:
        return self.name.startswith("interval ")

    @property
    def is_atomic(self) -> bool:
        """Whether it can be compared, cast and stored. Intervals can only be added to times."""
        return self.name not in {"struct", "other"} and not self.is_interval

    @property
    def is_nested(self) -> bool:
        """Whether it is a struct, an array or a map: its values are only ever stored as they
        are."""
        return self.name == "struct" or bool(self.nested)

    @property
    def has_map(self) -> bool:
        """Whether there is a map in it, or it is one."""
        return '"type": "map"' in self.nested or any(f.type.has_map for f in self.fields)

    def same_as(self, other: SqlType) -> bool:
        """Whether it is the same type, whichever parts of it may be NULL."""
        if self.name != "struct" or other.name != "struct":
            return self == other
        pairs = list(zip(self.fields, other.fields, strict=False))
        return len(self.fields) == len(other.fields) and all(
            a.name == b.name and a.type.same_as(b.type) for a, b in pairs
        )


@dataclass(frozen=True)
class SchemaColumn:
    """A column of the table, or a field of a struct."""

    name: str
    type: SqlType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, hash=False)


_INTEGRAL_DIGITS: Final = {"byte": 3, "short": 5, "integer": 10, "long": 20}

BOOLEAN = SqlType("boolean")
BYTE = SqlType("byte")
SHORT = SqlType("short")
INTEGER = SqlType("integer")
LONG = SqlType("long")
FLOAT = SqlType("float")
DOUBLE = SqlType("double")
STRING = SqlType("string")
BINARY = SqlType("binary")
DATE = SqlType("date")
TIMESTAMP = SqlType("timestamp")
TIMESTAMP_NTZ = SqlType("timestamp_ntz")
NULL = SqlType("null")
UNKNOWN = SqlType("unknown")
COLLATED = SqlType("other", detail="STRING with a collation")
INTERVAL_DAY = SqlType("interval day")
INTERVAL_DAY_SECOND = SqlType("interval day to second")
INTERVAL_YEAR_MONTH = SqlType("interval year to month")

_PRIMITIVES: Final = {
    t.name: t
    for t in (
        BOOLEAN, BYTE, SHORT, INTEGER, LONG, FLOAT, DOUBLE, STRING, BINARY, DATE, TIMESTAMP,
        TIMESTAMP_NTZ,
    )
}  # fmt: skip

_SQL_NAMES: Final = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INT",
    "long": "BIGINT",
    "null": "VOID",
}

CAST_NAMES: Final[Mapping[str, SqlType]] = {
    "boolean": BOOLEAN,
    "tinyint": BYTE,
    "byte": BYTE,
    "smallint": SHORT,
    "short": SHORT,
    "int": INTEGER,
    "integer": INTEGER,
    "bigint": LONG,
    "long": LONG,
    "float": FLOAT,
    "real": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "binary": BINARY,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
"""Types that CAST may name, besides DECIMAL(p, s) and its synonyms."""

DECIMAL_NAMES: Final = frozenset({"decimal", "dec", "numeric"})


def decimal(precision: int, scale: int) -> SqlType:
    return SqlType("decimal", precision, scale)


def struct_of(fields: Iterable[tuple[str, SqlType]]) -> SqlType:
    """The type of a struct with these fields."""
    columns = tuple(SchemaColumn(name, type_) for name, type_ in fields)
    return SqlType("struct", fields=columns, detail="STRUCT")


def delta_name(data_type: SqlType) -> str:
    """The name of a type in Delta's schema, if it is a primitive one."""
    if data_type.name == "decimal":
        return f"decimal({data_type.precision},{data_type.scale})"
    return data_type.name


def sql_name(data_type: SqlType) -> str:
    """The name of a type in Spark SQL, for example in a CAST."""
    if data_type.name == "decimal":
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    return _SQL_NAMES.get(data_type.name, data_type.name.upper())


def type_name(delta_type: str) -> str:
    """The SQL name of a type of a Delta schema that is not nested: `long` as `BIGINT`."""
    return str(_type(delta_type))


def as_decimal(data_type: SqlType) -> SqlType:
    """The decimal type that holds every value of an integral or decimal type."""
    if data_type.name == "decimal":
        return data_type
    return decimal(_INTEGRAL_DIGITS[data_type.name], 0)


@dataclass(frozen=True)
class Schema:
    """The columns of a table by the names that a statement may use, which are case-insensitive.

    Raises:
        InvalidStatement: for an invalid schema string.
    """

    columns: tuple[SchemaColumn, ...]

    @classmethod
    def from_json(cls, schema_string: str) -> Schema:
        """From the `schemaString` of Delta metadata."""
        try:
            root = json.loads(schema_string)
            if root["type"] != "struct":
                raise ValueError(root["type"])
            columns = _type(root).fields
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidStatement(
                "the table's schema cannot be read",
                field="metaData.schemaString",
                found=schema_string[:80],
                expected="a struct type as JSON",
            ) from error
        return cls(columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def with_types(self, names: Sequence[str]) -> Schema:
        """Columns of a text source: with the types of this table's columns of these names, or
        strings."""
        known = {column.name.lower(): column.type for column in self.columns}
        return Schema(tuple(SchemaColumn(n, known.get(n.lower(), STRING)) for n in names))


def matching(columns: Sequence[SchemaColumn], name: str) -> list[SchemaColumn]:
    """The columns that a name may refer to, as Spark resolves it with caseSensitive=false."""
    wanted = name.lower()
    return [column for column in columns if column.name.lower() == wanted]


def close_names(columns: Sequence[SchemaColumn], name: str) -> list[str]:
    """Up to three names that are close to `name`, for a hint."""
    by_lower = {column.name.lower(): column.name for column in columns}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    return [by_lower[lower] for lower in close]


def type_named(name: str) -> SqlType:
    """The type that Delta's schema calls so: a primitive one, or an opaque one."""
    return _type(name)


_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)", re.ASCII)


def _type(raw: Any) -> SqlType:
    if isinstance(raw, str):
        if raw in _PRIMITIVES:
            return _PRIMITIVES[raw]
        if raw == "decimal":
            return decimal(10, 0)
        if match := _DECIMAL.fullmatch(raw):
            return decimal(int(match[1]), int(match[2]))
        return SqlType("other", detail=raw.upper())
    if raw["type"] == "struct":
        fields = tuple(
            SchemaColumn(
                item["name"],
                _opaque(item) or _type(item["type"]),
                bool(item.get("nullable", True)),
                item.get("metadata") or {},
            )
            for item in raw["fields"]
        )
        return SqlType("struct", fields=fields, detail="STRUCT")
    kind = str(raw["type"])
    nested = _shape(raw) if kind in ("array", "map") else ""
    return SqlType("other", detail=kind.upper(), nested=nested)


_OF_SHAPE: Final = frozenset(
    {"type", "elementType", "keyType", "valueType", "containsNull", "valueContainsNull", "name"}
)


def _shape(raw: Any) -> str:
    """A nested type as text, without the metadata of fields."""

    def of(part: Any) -> Any:
        if isinstance(part, dict):
            fields = [of(each) for each in part.get("fields", ())]
            return {"fields": fields, **{k: of(v) for k, v in part.items() if k in _OF_SHAPE}}
        return part

    return json.dumps(of(raw), sort_keys=True)


def as_target(column: SchemaColumn) -> SchemaColumn:
    """A column as values are stored in it: a CHAR, or one with a collation, as a string."""
    opaque = _opaque({"type": "string", "metadata": column.metadata})
    return replace(column, type=STRING) if opaque == column.type else column


def _opaque(item: Mapping[str, Any]) -> SqlType | None:
    # Spark pads char(n) on comparison and checks lengths on write, by the metadata of a plain
    # string column. Padding does not happen when the files are read directly, so such a column
    # would silently have another meaning: char is opaque, varchar can be read. Nor are texts with a
    # collation compared by their bytes.
    metadata = item.get("metadata") or {}
    note = str(metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))
    if note.startswith("char"):
        return SqlType("other", detail=note.upper())
    if COLLATIONS in metadata and item["type"] == "string":
        return COLLATED
    return None
