"""Aligns a source's columns with a table's: by name at every level, without dropping any.

A column that the source lacks becomes null (the writer refuses that if the column is not nullable);
a column that the table lacks, and a type that does not fit, are errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.delta.char_types import declared
from tandem.delta.protocol import is_reserved_column
from tandem.errors import InvalidSpec, StatementFailed
from tandem.remedies import HEADER_AND_SEP
from tandem.spark.sources.text_casts import each_leaf, refusal, value_or_error, with_keys
from tandem.statements.coercion import assignment_loss
from tandem.statements.generate import quote_name
from tandem.statements.types import NULL, STRING, decimal
from tandem.statements.types import SqlType as StatementType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


# CHAR(n) and VARCHAR(n) as columns of Spark, by the rule of `tandem.delta.char_types`.


def declared_char_types(schema_string: str) -> dict[str, DataType]:
    """The declared types of columns that contain a CHAR or VARCHAR at some level, by the column's
    name in lower case. `schema_string`: in the form of Delta's metadata."""
    from pyspark.sql.types import DataType

    found = {}
    for field in json.loads(schema_string)["fields"]:
        text = declared(field.get("metadata") or {})
        if text:
            found[field["name"].lower()] = DataType.fromDDL(text)
    return found


def bounded_text(
    column: Column, type_: DataType | None, path: str, where: Column | None = None
) -> Column:
    """The column in the form that Spark stores; on a row whose text is too long, Spark raises.

    Args:
        type_: from `declared_char_types`; None for a column without such types.
        where: the location of a row in a source, for the error.
    """
    if type_ is None or not _bounded(type_):
        return column
    return each_leaf(column, type_, path, lambda leaf, of, at: _fitting(leaf, of, at, where), where)


def _fitting(column: Column, type_: DataType, path: str, where: Column | None) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    if not isinstance(type_, T.CharType | T.VarcharType):
        return column
    size = type_.length
    text = column.cast("string")
    whole = F.rpad(text, size, " ") if isinstance(type_, T.CharType) else text
    error = refusal(text, type_.simpleString(), path, where, "a string is too long for its column")
    return (
        F.when(text.isNull(), F.lit(None).cast("string"))
        .when(F.length(text) <= size, whole)
        .when(F.length(F.rtrim(text)) <= size, F.substring(text, 1, size))
        .otherwise(error.cast("string"))
    )


def _bounded(type_: DataType) -> bool:
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    match type_:
        case T.StructType():
            return any(_bounded(f.dataType) for f in type_.fields)
        case T.ArrayType():
            return _bounded(type_.elementType)
        case T.MapType():
            return _bounded(type_.keyType) or _bounded(type_.valueType)
        case _:
            return isinstance(type_, T.CharType | T.VarcharType)


# The alignment.


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
        bounded: declared types from `tandem.spark.sources.schema_alignment`.
        where: the location of a row, for errors.
        field: the field of the resource that describes the source.
        csv: whether names come from the first line of a CSV file, which a wrong option may misread.
    Raises:
        InvalidSpec: a column that the table lacks. StatementFailed: a type that does not fit.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    shown = [f for f in source.schema.fields if not is_reserved_column(f.name)]
    check_columns(type(schema)(shown), schema, location, field=field, csv=csv)
    present = {f.name.lower(): f for f in shown}
    columns = []
    for wanted in schema.fields:
        found = present.get(wanted.name.lower())
        if found is None:
            column = F.lit(None).cast(wanted.dataType)
        else:
            column = by_name(
                F.col(quote_name(found.name)),
                found.dataType,
                wanted.dataType,
                location,
                wanted.name,
                where,
            )
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
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

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
                    remedy="Add the columns to the table, or leave them out of the source; "
                    f"if these are not column names, {HEADER_AND_SEP.in_resource}"
                    if csv
                    else "Add the columns to the table, or leave them out of the source",
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


def by_name(
    column: Column,
    found: DataType,
    wanted: DataType,
    location: str,
    path: str,
    where: Column | None = None,
) -> Column:
    """Cast by name: Spark casts structs by position, but a source's fields may be in any order.

    Args:
        where: the location of a row, for errors.
    Raises: StatementFailed for a type that does not fit, by the rule of `update`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    def inner(part: Column, from_type: DataType, to_type: DataType, name: str) -> Column:
        return by_name(part, from_type, to_type, location, f"{path}.{name}", where)

    match found, wanted:
        case T.StructType(), T.StructType():
            present = {f.name.lower(): f for f in found.fields}
            parts = []
            for field in wanted.fields:
                source_field = present.get(field.name.lower())
                part = (
                    F.lit(None).cast(field.dataType)
                    if source_field is None
                    else inner(
                        column.getField(source_field.name),
                        source_field.dataType,
                        field.dataType,
                        field.name,
                    )
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
                with_keys(column, keys, path, where),
                lambda _, v: inner(v, found.valueType, wanted.valueType, "value"),
            )
        case _:
            return _assigned(column, found, wanted, location, path, where)


def _assigned(
    column: Column,
    found: DataType,
    wanted: DataType,
    location: str,
    path: str,
    where: Column | None,
) -> Column:
    """Assign a value of a type without fields or elements to another type, or raise: for a type
    that does not fit immediately, for a value out of range when Spark evaluates it."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    if found == wanted:
        return column
    loss = _loss(found, wanted)
    if loss:
        raise StatementFailed(
            f"a column of the source has another type than the table's: {loss}",
            resource=f"{location}, column {path}",
            found=found.simpleString(),
            expected=wanted.simpleString(),
            remedy="Convert the column in the source",
        )
    if not isinstance(found, T.NumericType) or isinstance(wanted, T.StringType | T.DoubleType):
        return column.cast(wanted)
    value = column.try_cast(wanted)
    if isinstance(wanted, T.FloatType):
        infinite = F.abs(value) == F.lit(float("inf"))
        value = F.when(~(infinite & (F.abs(column) != F.lit(float("inf")))), value)
    return value_or_error(column, value, wanted, path, where)


def _loss(found: DataType, wanted: DataType) -> str:
    """Why values of a type cannot be stored in a column of another; "" if they can."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

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
