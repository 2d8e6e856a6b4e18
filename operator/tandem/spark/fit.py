"""Fitting a source's columns to a table's: by name at every level, never dropping anything.

A column that the source lacks becomes null (the writer refuses that where the table does); one
that the table lacks, and a type that does not fit, are errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tandem.errors import InvalidSpec, StatementFailed
from tandem.spark.statement import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

_TIME_FORMATS = {
    "date": "dateFormat",
    "timestamp": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
}


def fitted(
    source: DataFrame, schema: StructType, location: str, *, texts: Mapping[str, str] | None = None
) -> DataFrame:
    """`source` with exactly the table's columns.

    Args:
        texts: given if all columns are texts to be cast; may say formats of times.
    Raises:
        InvalidSpec: a column that the table lacks. StatementFailed: a type that does not fit.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    check_columns(source.schema, schema, location)
    present = {f.name.lower(): f for f in source.schema.fields}
    columns = []
    for field in schema.fields:
        found = present.get(field.name.lower())
        if found is None:
            column = F.lit(None).cast(field.dataType)
        elif texts is not None:
            column = cast_text(F.col(quoted(found.name)), field.dataType, texts)
        else:
            column = by_name(
                F.col(quoted(found.name)), found.dataType, field.dataType, location, field.name
            )
        columns.append(column.alias(field.name))
    return source.select(*columns)


def cast_text(column: Column, type_: DataType, formats: Mapping[str, str]) -> Column:
    """A text as a value of a type; `formats` may say how dates and times are written."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    wanted = formats.get(_TIME_FORMATS.get(type_.typeName(), ""))
    if wanted is None:
        return column.cast(type_)
    if type_.typeName() == "date":
        return F.to_date(column, wanted)
    if type_.typeName() == "timestamp":
        return F.to_timestamp(column, wanted)
    return F.to_timestamp_ntz(column, F.lit(wanted))


def check_columns(
    found: DataType,
    wanted: DataType,
    location: str,
    above: str = "",
    *,
    field: str = "spec.source",
) -> None:
    """That the table has every column of the source, nested ones too; `field` is where the
    source stands in its resource. Raises: InvalidSpec."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    match found, wanted:
        case T.StructType(), T.StructType():
            known = {f.name.lower(): f for f in wanted.fields}
            extra = [above + f.name for f in found.fields if f.name.lower() not in known]
            if extra:
                raise InvalidSpec(
                    "the source has columns that the table lacks",
                    resource=location,
                    field=field,
                    found=", ".join(extra),
                    expected=", ".join(above + name for name in wanted.names),
                    remedy="Add the columns to the table, or leave them out of the source",
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


def spelled(found: StructType, wanted: StructType) -> StructType:
    """The fields of `found`, as spelled there, with the types of `wanted`; found ⊆ wanted."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    def typed(there: DataType, here: DataType) -> DataType:
        match there, here:
            case T.StructType(), T.StructType():
                return spelled(there, here)
            case T.ArrayType(), T.ArrayType():
                return T.ArrayType(typed(there.elementType, here.elementType), True)
            case _:
                return here

    known = {f.name.lower(): f.dataType for f in wanted.fields}
    return T.StructType(
        [T.StructField(f.name, typed(f.dataType, known[f.name.lower()])) for f in found.fields]
    )


def typed_where_known(
    found: StructType, wanted: StructType, location: str, field: str
) -> StructType:
    """The fields of `found`, those that `wanted` has with its types; others as they are.

    Raises: InvalidSpec for a field inside a struct of `wanted` that it lacks.
    """
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    known = {f.name.lower() for f in wanted.fields}
    common = T.StructType([f for f in found.fields if f.name.lower() in known])
    check_columns(common, wanted, location, field=field)
    typed = {f.name: f for f in spelled(common, wanted).fields}
    return T.StructType([typed.get(f.name, f) for f in found.fields])


def by_name(column: Column, found: DataType, wanted: DataType, location: str, path: str) -> Column:
    """Spark casts structs by position; a source's fields may come in another order.

    Raises: StatementFailed for a type that does not fit.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    def inner(part: Column, there: DataType, here: DataType, name: str) -> Column:
        return by_name(part, there, here, location, f"{path}.{name}")

    match found, wanted:
        case T.StructType(), T.StructType():
            present = {f.name.lower(): f for f in found.fields}
            parts = []
            for field in wanted.fields:
                there = present.get(field.name.lower())
                part = (
                    F.lit(None).cast(field.dataType)
                    if there is None
                    else inner(
                        column.getField(there.name), there.dataType, field.dataType, field.name
                    )
                )
                parts.append(part.alias(field.name))
            return F.when(column.isNotNull(), F.struct(*parts))
        case T.ArrayType(), T.ArrayType():
            element, into = found.elementType, wanted.elementType
            return F.transform(column, lambda x: inner(x, element, into, "element"))
        case T.MapType(), T.MapType():
            keys = F.transform_keys(
                column, lambda k, _: inner(k, found.keyType, wanted.keyType, "key")
            )
            return F.transform_values(
                keys, lambda _, v: inner(v, found.valueType, wanted.valueType, "value")
            )
        case _:
            if not _assignable(found, wanted):
                raise StatementFailed(
                    "a column of the source has another type than the table's",
                    resource=location,
                    field=path,
                    found=found.simpleString(),
                    expected=wanted.simpleString(),
                )
            return column.cast(wanted)


def _assignable(found: DataType, wanted: DataType) -> bool:
    """ANSI store assignment between atomic types: numbers to numbers, anything to text, a date
    to a timestamp."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    if found == wanted or isinstance(found, T.NullType):
        return True
    if isinstance(found, T.NumericType) and isinstance(wanted, T.NumericType):
        return True
    if isinstance(wanted, T.StringType):
        return isinstance(found, T.AtomicType) and not isinstance(found, T.BinaryType)
    times = (T.DateType, T.TimestampType, T.TimestampNTZType)
    return isinstance(found, times) and isinstance(wanted, times)
