"""Converts texts of CSV and JSON to a column's type: exactly, or with an error and its location.

Spark's casts define the meaning of a text, but some of them lose information silently: `1.239` is
1.24 in DECIMAL(10,2), `2020-01-01 10:00` is a day, `2020` the first of January, `12:34` a time of
the current day, `1d` and `0x1p3` are numbers, `1e400` is infinite, and a zone is dropped if the
column has none. Such texts are refused, as `update` refuses such values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tandem.errors import InvalidSpec
from tandem.spark.sources.text_records import FILE, FOLDER, LINE
from tandem.statements.generate import quote_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from tandem.spark.runtime.listing import FolderColumn

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
SHOWN = 60
"""Characters of a value that an error shows."""


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
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    require_zoneless(options)
    files = F.array(*map(F.lit, paths))
    where = F.concat(
        F.element_at(files, F.col(FILE) + 1), F.lit(", line "), F.col(LINE).cast("string")
    )

    def leaf(text: Column, type_: DataType, path: str) -> Column:
        return cast_exactly(text, type_, path, where, options, json=json)

    def value(name: str, type_: DataType) -> Column:
        given = []
        for number, folder in enumerate(folders):
            if folder.name.lower() == name.lower():
                given = [F.col(f"{FOLDER}{number}").cast(type_)]
                if folder.overrides or name not in texts.columns:
                    return given[0]
        found = each_leaf(F.col(quote_name(name)), type_, name, leaf, where)
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


Leaf = Callable[["Column", "DataType", str], "Column"]


def each_leaf(
    column: Column, type_: DataType, path: str, leaf: Leaf, where: Column | None = None
) -> Column:
    """A column of the shape of `type_`, with `leaf` applied to all its atomic values; `where` is
    the location of a row, for errors."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    def inner(part: Column, of: DataType, name: str) -> Column:
        return each_leaf(part, of, f"{path}.{name}", leaf, where)

    match type_:
        case T.StructType():
            parts = [
                inner(column.getField(f.name), f.dataType, f.name).alias(f.name)
                for f in type_.fields
            ]
            return F.when(column.isNotNull(), F.struct(*parts))
        case T.ArrayType():
            element = type_.elementType
            return F.transform(column, lambda x: inner(x, element, "element"))
        case T.MapType():
            key, value = type_.keyType, type_.valueType
            keys = F.transform(F.map_keys(column), lambda k: inner(k, key, "key"))
            return F.transform_values(
                with_keys(column, keys, path, where),
                lambda _, v: inner(v, value, "value"),
            )
        case _:
            return leaf(column, type_, path)


def cast_exactly(
    text: Column,
    type_: DataType,
    path: str,
    where: Column,
    options: Mapping[str, str],
    *,
    json: bool = False,
) -> Column:
    """A text as a value of an atomic type; on a row with an invalid text, Spark raises."""
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

    if isinstance(type_, T.StringType | T.NullType):
        return text
    return value_or_error(text, exact_value(text, type_, options, json=json), type_, path, where)


def value_or_error(
    given: Column, value: Column, type_: DataType, path: str, where: Column | None
) -> Column:
    """`value`; on a row where it is null and `given` is not, Spark raises."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    error = refusal(given, type_.simpleString(), path, where, "a value does not fit its column")
    return F.coalesce(value, F.when(given.isNotNull(), error).cast(type_))


def refusal(given: Column, expected: str, path: str, where: Column | None, message: str) -> Column:
    """An expression that raises an error with the location and the value."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

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


def with_keys(map_: Column, keys: Column, path: str, where: Column | None) -> Column:
    """The map with other keys, in their order; on a row with a duplicate key, Spark raises an
    error with the location."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    several = F.size(F.array_distinct(keys)) < F.size(keys)
    shown = F.array_join(keys.cast("array<string>"), ", ")
    error = refusal(shown, "each key once", path, where, "a map has a key twice")
    # Part of the value, so that Spark raises where the value is needed.
    kept = F.when(several, error.cast("boolean")).otherwise(F.lit(True))
    return F.when(kept, F.map_from_arrays(keys, F.map_values(map_)))


def exact_value(text: Column, type_: DataType, options: Mapping[str, str], *, json: bool) -> Column:
    """The value, null for a text without an exact value."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - Spark's own convention

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


def _decimal(text: Column, type_: Any) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

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
