"""A source's values as values of a table's columns: exactly, or with an error and its location.

Columns and fields are matched by name, at every level, without dropping any. A column that the
source lacks becomes null (the writer refuses that if the column is not nullable); a column that the
table lacks, and a type that does not fit, are errors.

Spark's casts define the meaning of a text of CSV and JSON, but some of them lose information
silently: `1.239` is 1.24 in DECIMAL(10,2), `2020-01-01 10:00` is a day, `2020` the first of
January, `12:34` a time of the current day, `1d` and `0x1p3` are numbers, `1e400` is infinite, and a
zone is dropped if the column has none. Such texts are refused, as `update` refuses such values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

from tandem.delta.char_types import declared
from tandem.delta.protocol import is_reserved_column
from tandem.errors import InvalidSpec, StatementFailed
from tandem.remedies import HEADER_AND_SEP
from tandem.spark.runtime.control import TOO_LONG
from tandem.spark.sources.text_records import FILE, FOLDER, LINE
from tandem.statements.coercion import assignment_loss
from tandem.statements.tree import quote_name
from tandem.statements.types import NULL, STRING, decimal
from tandem.statements.types import SqlType as StatementType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from tandem.spark.runtime.listing import FolderColumn

SHOWN = 60
"""Characters of a value that an error shows."""

Leaf = Callable[["Column", "DataType", "DataType", str], "Column"]
"""From a value that has no fields and no elements, its type, the type it is to have, and its path:
the value in that type."""


def reshaped(
    column: Column,
    found: DataType,
    wanted: DataType,
    path: str,
    leaf: Leaf,
    where: Column | None = None,
) -> Column:
    """A column of type `found` in the shape of `wanted`: by name, since Spark casts structs by
    position, but a source's fields may be in any order. `where` is the location of a row, for
    errors."""

    def inner(part: Column, from_type: DataType, to_type: DataType, name: str) -> Column:
        return reshaped(part, from_type, to_type, f"{path}.{name}", leaf, where)

    match found, wanted:
        case T.StructType(), T.StructType():
            present = {f.name.lower(): f for f in found.fields}
            parts = []
            for field in wanted.fields:
                own = present.get(field.name.lower())
                if own is None:
                    part = F.lit(None).cast(field.dataType)
                else:
                    part = inner(
                        column.getField(own.name), own.dataType, field.dataType, field.name
                    )
                parts.append(part.alias(field.name))
            return F.when(column.isNotNull(), F.struct(*parts))
        case T.ArrayType(), T.ArrayType():
            element, into = found.elementType, wanted.elementType
            return F.transform(column, lambda x: inner(x, element, into, "element"))
        case T.MapType(), T.MapType():
            keys = F.transform(
                F.map_keys(column), lambda k: inner(k, found.keyType, wanted.keyType, "key")
            )
            return F.transform_values(
                _with_keys(column, keys, path, where),
                lambda _, v: inner(v, found.valueType, wanted.valueType, "value"),
            )
        case _:
            return leaf(column, found, wanted, path)


def _with_keys(map_: Column, keys: Column, path: str, where: Column | None) -> Column:
    """The map with other keys, in their order; on a row with a duplicate key, Spark raises an
    error with the location."""
    several = F.size(F.array_distinct(keys)) < F.size(keys)
    shown = F.array_join(keys.cast("array<string>"), ", ")
    error = _refusal(shown, "each key once", path, where, "a map has a key twice")
    # Part of the value, so that Spark raises where the value is needed.
    kept = F.when(several, error.cast("boolean")).otherwise(F.lit(True))
    return F.when(kept, F.map_from_arrays(keys, F.map_values(map_)))


def _value_or_error(
    given: Column, value: Column, type_: DataType, path: str, where: Column | None
) -> Column:
    """`value`; on a row where it is null and `given` is not, Spark raises."""
    error = _refusal(given, type_.simpleString(), path, where, "a value does not fit its column")
    return F.coalesce(value, F.when(given.isNotNull(), error).cast(type_))


def _refusal(given: Column, expected: str, path: str, where: Column | None, message: str) -> Column:
    """An expression that raises an error with the location and the value."""
    shown = F.substring(given.cast("string"), 1, SHOWN)
    place = [where, F.lit(", ")] if where is not None else []
    return F.raise_error(
        F.concat(
            *place,
            F.lit(f"column {path}: {message} (found: "),
            shown,
            F.lit(f"; expected: {expected})"),
        )
    )


# Texts of CSV and JSON.


_DAY = r"^\s*[+-]?\d{4,7}-\d{1,2}-\d{1,2}"
_EXACT = r"(?!.*\.\d{6}\d*[1-9])"
"""No digit beyond microseconds, except zeros."""
_FLOAT = r"(?i)^\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|infinity|nan)\s*$"
_WORDS = r"(?i)(inf|nan)"
_PATTERNS = {
    "date": _DAY + r"([T ]00:00(:00(\.0+)?)?(Z|[+-]00:?00)?)?\s*$",
    "timestamp": _DAY + r"(?![\d-])" + _EXACT,
    "timestamp_ntz": _DAY + _EXACT + r"([T ][\d:.]*)?\s*$",
    "float": _FLOAT,
    "double": _FLOAT,
}
_FORMATS = {
    "date": "dateFormat",
    "timestamp": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
}


def cast_texts(
    texts: DataFrame,
    schema: StructType,
    paths: Sequence[str],
    options: Mapping[str, str],
    *,
    json: bool,
    places: bool = False,
    folders: Sequence[FolderColumn] = (),
) -> tuple[DataFrame, Column | None]:
    """Convert records (`tandem.spark.sources.text_records`) to a schema, with their locations.

    Args:
        paths: the records' files, by number.
        folders: columns that the records have from names of folders. Those that do not override
            are for records that lack a value.
        options: may contain formats of times.
        json: whether the texts are JSON's: booleans are only true and false, and binaries are
            Base64.
        places: whether the rows keep the hidden columns for their location; without them it is
            None.
    """
    require_zoneless(options)
    files = F.array(*map(F.lit, paths))
    where = F.concat(
        F.element_at(files, F.col(FILE) + 1), F.lit(", line "), F.col(LINE).cast("string")
    )

    def leaf(text: Column, _: DataType, type_: DataType, path: str) -> Column:
        if isinstance(type_, T.StringType | T.NullType):
            return text
        exact = exact_value(text, type_, options, json=json)
        return _value_or_error(text, exact, type_, path, where)

    def value(name: str, type_: DataType) -> Column:
        given = []
        for number, folder in enumerate(folders):
            if folder.name.lower() == name.lower():
                given = [F.col(f"{FOLDER}{number}").cast(type_)]
                if folder.overrides or name not in texts.columns:
                    return given[0]
        text = F.col(quote_name(name))
        found = reshaped(text, texts.schema[name].dataType, type_, name, leaf, where)
        return F.coalesce(found, *given) if given else found

    rows = texts.select(
        *(value(f.name, f.dataType).alias(f.name) for f in schema.fields),
        *((F.col(FILE), F.col(LINE)) if places else ()),
    )
    return rows, where if places else None


def require_zoneless(options: Mapping[str, str]) -> None:
    """A column without a zone holds no instant. Raises: InvalidSpec for a format with a zone."""
    format_ = options.get("timestampNTZFormat", "")
    bare = "".join(format_.split("'")[::2])
    if any(sign in bare for sign in "VzOXxZ"):
        raise InvalidSpec(
            "the format of timestamps without a time zone has a zone",
            field="options.timestampNTZFormat",
            found=format_,
            expected="a format without V, z, O, X, x and Z",
            remedy="Leave the zone out, or make the column a TIMESTAMP",
        )


def exact_value(text: Column, type_: DataType, options: Mapping[str, str], *, json: bool) -> Column:
    """A text as a value of an atomic type, null for a text without an exact value."""
    name = type_.typeName()
    wanted = options.get(_FORMATS.get(name, ""))
    if wanted is not None:
        if name == "date":
            return F.try_to_date(text, wanted)
        # The session's zone is UTC, so a format without a zone gives the time as written.
        return F.try_to_timestamp(text, F.lit(wanted)).cast(type_)
    if isinstance(type_, T.BinaryType):
        return F.try_to_binary(text, F.lit("base64")) if json else text.cast(type_)
    if isinstance(type_, T.DecimalType):
        return _decimal(text, type_)
    value = text.try_cast(type_)
    if isinstance(type_, T.BooleanType) and json:
        return F.when(text.isin("true", "false"), value)
    pattern = _PATTERNS.get(name)
    if pattern is None:
        return value
    fits: Any = text.rlike(pattern)
    if isinstance(type_, T.FloatType | T.DoubleType):
        infinite = F.abs(value) == F.lit(float("inf")).cast(type_)
        lost = (value == 0) & text.rlike(r"^[^eE]*[1-9]")
        fits = fits & (text.rlike(_WORDS) | ~(infinite | lost))
    return F.when(fits, value)


def _decimal(text: Column, type_: T.DecimalType) -> Column:
    scale = type_.scale
    number = rf"^\s*[+-]?(\d+(\.\d{{0,{scale}}}0*)?|\.(?=\d)\d{{0,{scale}}}0*)\s*$"
    power = r"^\s*[+-]?(?:\d+\.?(\d*)|\.(\d+))[eE]([+-]?\d{1,3})\s*$"
    # An exponent moves digits across the decimal point.
    digits = F.length(
        F.regexp_replace(
            F.concat(F.regexp_extract(text, power, 1), F.regexp_extract(text, power, 2)), "0+$", ""
        )
    )
    moved = digits - F.regexp_extract(text, power, 3).try_cast("int")
    fits = text.rlike(number) | (text.rlike(power) & (moved <= scale))
    return F.when(fits, text.try_cast(type_))


# Columns of a source as those of a table.


def align_columns(
    source: DataFrame,
    schema: StructType,
    location: str,
    bounded: Mapping[str, DataType],
    where: Column | None = None,
    *,
    field: str = "spec.source",
    csv: bool = False,
) -> DataFrame:
    """`source` with exactly the table's columns.

    Args:
        bounded: from `declared_char_types`.
        where: the location of a row, for errors.
        field: the field of the resource that describes the source.
        csv: whether names come from the first line of a CSV file, which a wrong option may misread.
    Raises:
        InvalidSpec: a column that the table lacks. StatementFailed: a type that does not fit.
    """
    shown = [f for f in source.schema.fields if not is_reserved_column(f.name)]
    check_columns(T.StructType(shown), schema, location, field=field, csv=csv)
    present = {f.name.lower(): f for f in shown}
    columns = []
    for wanted in schema.fields:
        found = present.get(wanted.name.lower())
        if found is None:
            column = F.lit(None).cast(wanted.dataType)
        else:
            column = F.col(quote_name(found.name))
            types = found.dataType, wanted.dataType
            column = assigned(column, *types, location, wanted.name, where)
            column = bounded_text(column, bounded.get(wanted.name.lower()), wanted.name, where)
        columns.append(column.alias(wanted.name))
    return source.select(*columns)


def check_columns(
    found: DataType,
    wanted: DataType,
    location: str,
    above: str = "",
    *,
    field: str = "spec.source",
    csv: bool = False,
) -> None:
    """Check that the table has every column of the source, including nested ones; `field` is the
    field of the resource that describes the source. Raises: InvalidSpec."""
    match found, wanted:
        case T.StructType(), T.StructType():
            known = {f.name.lower(): f for f in wanted.fields}
            extra = [above + f.name for f in found.fields if f.name.lower() not in known]
            if extra:
                raise InvalidSpec(
                    "the source has columns that the table lacks",
                    resource=f"{field}: {location}",
                    found=", ".join(extra),
                    expected=", ".join(above + name for name in wanted.names),
                    remedy="Add the columns to the table, or leave them out of the source"
                    + f"; if these are not column names, {HEADER_AND_SEP.in_resource}" * csv,
                )
            for part in found.fields:
                inner = known[part.name.lower()].dataType
                below = f"{above}{part.name}."
                check_columns(part.dataType, inner, location, below, field=field)
        case T.ArrayType(), T.ArrayType():
            check_columns(found.elementType, wanted.elementType, location, above, field=field)
        case T.MapType(), T.MapType():
            check_columns(found.keyType, wanted.keyType, location, above, field=field)
            check_columns(found.valueType, wanted.valueType, location, above, field=field)
        case _:
            pass


def assigned(
    column: Column,
    found: DataType,
    wanted: DataType,
    location: str,
    path: str,
    where: Column | None = None,
) -> Column:
    """Assign a column to another type, or raise: StatementFailed for a type that does not fit, by
    the rule of `update`; for a value out of range, when Spark evaluates it.

    Args:
        where: the location of a row, for errors.
    """

    def leaf(value: Column, from_type: DataType, to_type: DataType, at: str) -> Column:
        if from_type == to_type:
            return value
        loss = _loss(from_type, to_type)
        if loss:
            raise StatementFailed(
                f"a column of the source has another type than the table's: {loss}",
                resource=f"{location}, column {at}",
                found=from_type.simpleString(),
                expected=to_type.simpleString(),
                remedy="Convert the column in the source",
            )
        wide = isinstance(to_type, T.StringType | T.DoubleType)
        if wide or not isinstance(from_type, T.NumericType):
            return value.cast(to_type)
        cast = value.try_cast(to_type)
        if isinstance(to_type, T.FloatType):
            infinite = F.abs(cast) == F.lit(float("inf"))
            cast = F.when(~(infinite & (F.abs(value) != F.lit(float("inf")))), cast)
        return _value_or_error(value, cast, to_type, at, where)

    return reshaped(column, found, wanted, path, leaf, where)


def _loss(found: DataType, wanted: DataType) -> str:
    """Why values of a type cannot be stored in a column of another; "" if they can."""

    def plain(type_: DataType) -> StatementType:
        if isinstance(type_, T.NullType):
            return NULL
        if isinstance(type_, T.DecimalType):
            return decimal(type_.precision, type_.scale)
        if isinstance(type_, T.StringType):
            return STRING
        atomic = isinstance(type_, T.AtomicType)
        return StatementType(type_.typeName() if atomic else "other")

    return assignment_loss(plain(found), plain(wanted))


# CHAR(n) and VARCHAR(n) as columns of Spark, by the rule of `tandem.delta.char_types`.


def declared_char_types(schema_string: str) -> dict[str, DataType]:
    """The declared types of columns that contain a CHAR or VARCHAR at some level, by the column's
    name in lower case. `schema_string`: in the form of Delta's metadata."""
    found = {}
    for field in json.loads(schema_string)["fields"]:
        text = declared(field.get("metadata") or {})
        if text:
            found[field["name"].lower()] = T.DataType.fromDDL(text)
    return found


def bounded_text(
    column: Column, type_: DataType | None, path: str, where: Column | None = None
) -> Column:
    """The column in the form that Spark stores; on a row whose text is too long, Spark raises.

    Args:
        type_: from `declared_char_types`; None for a column without such types.
        where: the location of a row in a source, for the error.
    """

    def leaf(value: Column, _: DataType, of: DataType, at: str) -> Column:
        if not isinstance(of, T.CharType | T.VarcharType):
            return value
        size, text = of.length, value.cast("string")
        whole = F.rpad(text, size, " ") if isinstance(of, T.CharType) else text
        error = _refusal(text, of.simpleString(), at, where, TOO_LONG)
        return (
            F.when(text.isNull(), F.lit(None).cast("string"))
            .when(F.length(text) <= size, whole)
            .when(F.length(F.rtrim(text)) <= size, F.substring(text, 1, size))
            .otherwise(error.cast("string"))
        )

    return column if type_ is None else reshaped(column, type_, type_, path, leaf, where)
