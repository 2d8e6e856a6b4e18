"""Data files whose oldest dates Spark counts in another calendar than everyone else.

Spark 2 counted days in the hybrid Julian and Gregorian calendar, and so does a later Spark whose
`datetimeRebaseModeInWrite` or `int96RebaseModeInWrite` is LEGACY. Spark finds that in the footer
and shifts what is old when it reads; Arrow does not, and a file of ours would say that nothing is
to be shifted. Source: `DataSourceUtils.datetimeRebaseSpec` and `int96RebaseSpec` of apache/spark.
No I/O.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.errors import UnsupportedFeature

_MARKS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_VERSION = b"org.apache.spark.version"
_FIRST_GREGORIAN = b"3"
FIRST_SAME_DAY = -141_427
"""Days since 1970: from 1582-10-15 on, both calendars have the same dates."""
FIRST_SAME_INSTANT_US = -2_208_988_800_000_000
"""Microseconds since 1970: before 1900, zones differ as well."""


def is_legacy(footer: Any) -> bool:
    """Whether Spark shifts old dates and instants of the file with this footer."""
    pairs = footer.metadata or {}
    return any(mark in pairs for mark in _MARKS) or pairs.get(_VERSION, b"9") < _FIRST_GREGORIAN


def refuse_shifted(array: Any, *, path: str, column: str) -> None:
    """Refuse values of a legacy file that Spark reads as others than we do.

    Args:
        array: as the table's type: days, or microseconds.
    Raises: UnsupportedFeature.
    """
    if _has_shifted(array):
        raise UnsupportedFeature(
            "a data file has dates of the hybrid calendar of Spark 2, which only Spark reads right",
            resource=path,
            field=column,
            found="dates before 1582-10-15 or instants before 1900",
            expected="dates that every reader understands alike",
            remedy="Rewrite the file with Spark, with spark.sql.parquet.datetimeRebaseModeInWrite "
            "and spark.sql.parquet.int96RebaseModeInWrite set to CORRECTED",
        )


def _has_shifted(array: Any) -> bool:
    type_ = array.type
    if pa.types.is_date(type_):
        return _any_below(array.cast(pa.int32()), FIRST_SAME_DAY)
    if pa.types.is_timestamp(type_):
        # Wall-clock times are of Spark 3.4 and later, which never shifts them.
        return type_.tz is not None and _any_below(array.cast(pa.int64()), FIRST_SAME_INSTANT_US)
    if pa.types.is_struct(type_):
        return any(_has_shifted(child) for child in array.flatten())
    if pa.types.is_map(type_):
        return _has_shifted(array.keys) or _has_shifted(array.items)
    if pa.types.is_list(type_):
        return _has_shifted(array.flatten())
    return False


def _any_below(values: Any, bound: int) -> bool:
    return bool(pc.any(pc.less(values, bound)).as_py())
