"""Rows by partition: the texts of their partition values, and the values that have no such text.

No I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.calendar import days_of, python_values
from tandem.delta.values import partition_texts
from tandem.distinct import IntArray, number_rows

_FIRST_DAY: Final = days_of("-262143-01-01")
_LAST_DAY: Final = days_of("+262142-12-31")
"""Of the days that deltalake reads: for another one in the log it refuses the whole table."""
_DAY_US: Final = 86_400_000_000
_SHOWN: Final = 60


class Unstorable(NamedTuple):
    """A value that a partition column cannot hold: its row, its text for an error, and what the
    column can hold."""

    row: int
    found: str
    expected: str


def unstorable(values: Any) -> Unstorable | None:
    """The first value of an Arrow array that a partition column does not give back as it is, None
    if it can hold all of them.

    The log has texts. An empty one is NULL, bytes are read as UTF-8, and a day has limits.
    """
    is_ = pa.types
    if is_.is_string(values.type):
        wrong = pc.equal(values, "")
        expected = "text that is not empty: Delta stores the empty one as NULL"
    elif is_.is_binary(values.type):
        encoded = values.dictionary_encode()
        known = [not _is_text(value) for value in encoded.dictionary.to_pylist()]
        wrong = pa.array(known, pa.bool_()).take(encoded.indices)
        expected = "UTF-8 that is not empty: Delta stores a text, and the empty one as NULL"
    elif is_.is_date(values.type) or is_.is_timestamp(values.type):
        unit = 1 if is_.is_date(values.type) else _DAY_US
        numbers = values.cast(pa.int32() if unit == 1 else pa.int64())
        wrong = pc.or_(
            pc.less(numbers, _FIRST_DAY * unit),
            pc.greater_equal(numbers, pa.scalar((_LAST_DAY + 1) * unit)),
        )
        expected = "years -262143 to 262142: deltalake cannot read others"
    else:
        return None
    row = pc.index(wrong, pa.scalar(True)).as_py()
    return None if row < 0 else Unstorable(row, _shown(values.slice(row, 1)), expected)


def given_back(values: Any) -> Any:
    """The values of an Arrow array as a partition column gives them back: all NaNs have one text,
    so they lose their payload."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode())
    except UnicodeDecodeError:
        return False


def _shown(value: Any) -> str:
    [found] = python_values(value)
    if isinstance(found, bytes):
        return f"X'{found[:_SHOWN].hex()}'"
    return repr(found) if found == "" else str(found)[:_SHOWN]


class EncodedTexts(NamedTuple):
    """The texts of rows, dictionary-encoded: that of row i is `dictionary[indices[i]]`. A text may
    be in the dictionary twice."""

    indices: Any
    dictionary: list[str | None]


def encoded_texts(column: Any) -> EncodedTexts:
    """The partition values of an Arrow array. Raises: UnicodeDecodeError."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        # Arrow treats 0.0 and -0.0, which have different texts, as one value.
        return EncodedTexts(np.arange(len(column)), partition_texts(column))
    encoded = column.dictionary_encode(null_encoding="encode")
    return EncodedTexts(encoded.indices.to_numpy(), partition_texts(encoded.dictionary))


def combinations(
    columns: Sequence[EncodedTexts],
) -> tuple[IntArray, list[tuple[str | None, ...]]]:
    """The number of each row's combination of texts, and the combinations, in the order of their
    first occurrence."""
    codes, first = number_rows([column.indices for column in columns])
    found: dict[tuple[str | None, ...], int] = {}
    number = np.empty(len(first), np.int64)
    for place in np.argsort(first):
        key = tuple(column.dictionary[column.indices[first[place]]] for column in columns)
        number[place] = found.setdefault(key, len(found))
    return number[codes], list(found)
