"""CHAR(n) and VARCHAR(n) as columns of Spark, by the rule of `tandem.delta.char_types`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tandem.delta.char_types import declared
from tandem.spark.sources.text_casts import each_leaf, refusal

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


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
