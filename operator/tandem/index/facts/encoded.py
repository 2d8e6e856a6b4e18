"""Constants of a condition as the values that a bloom filter hashes: plainly encoded, without the
length of byte arrays.

Pure. A constant has an encoding for each stored value that Spark finds equal to it: two for zero of
a float, none if no value of the column can be equal. Source: "Parquet Bloom Filter" of
apache/parquet-format.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

from tandem.delta.datafiles.int96 import DAY_US
from tandem.index.facts.columns import reads_as
from tandem.index.facts.stored import StoredType, ValueKind
from tandem.pruning.times import micros
from tandem.statements.types import SqlType

Encodings = tuple[bytes, ...]

_RANGES = {"INT32": 31, "INT64": 63}
_FORMS = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}


def encodings(value: Any, stored: StoredType, type_: SqlType) -> Encodings | None:
    """The encodings of the stored values that equal a constant; None if that is not certain.

    Args:
        value: in the form of `constants.comparable_constant` for `type_`.
        type_: the column's type.
    """
    if not reads_as(stored, type_):
        return None
    match stored.kind:
        case ValueKind.INTEGER:
            return _integer(value, stored)
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _floating(value, stored)
        case ValueKind.DECIMAL:
            return _decimal(value, stored)
        case ValueKind.TEXT:
            return (value,)
        case ValueKind.DATE:
            days, rest = divmod(micros(value), DAY_US)
            return () if rest else _packed(days, stored)
        case ValueKind.TIMESTAMP | ValueKind.TIMESTAMP_NTZ:
            return _moment(value, stored)
        case _:
            return None


def _integer(value: int | float | Decimal, stored: StoredType) -> Encodings:
    return _packed(int(value), stored) if value == int(value) else ()


def _packed(number: int, stored: StoredType) -> Encodings:
    limit = 1 << _RANGES[stored.physical]
    return (struct.pack(_FORMS[stored.physical], number),) if -limit <= number < limit else ()


def _floating(value: float, stored: StoredType) -> Encodings:
    form = _FORMS[stored.physical]
    if value == 0:
        return struct.pack(form, 0.0), struct.pack(form, -0.0)
    try:
        data = struct.pack(form, value)
    except OverflowError:
        return ()
    # A float that is compared with a double is equal to it as a double.
    return (data,) if struct.unpack(form, data)[0] == value else ()


def _decimal(value: int | Decimal, stored: StoredType) -> Encodings | None:
    if stored.physical == "BYTE_ARRAY":
        return None  # of any number of bytes
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    shift = exponent + stored.scale
    if shift < 0:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            return ()
    else:
        unscaled *= 10**shift
    unscaled = -unscaled if sign else unscaled
    if stored.physical in _RANGES:
        return _packed(unscaled, stored)
    try:
        return (unscaled.to_bytes(stored.length, "big", signed=True),)
    except OverflowError:
        return ()


def _moment(value: dt.datetime | dt.date, stored: StoredType) -> Encodings | None:
    match stored.unit:
        case "us":
            return _packed(micros(value), stored)
        case "ms":
            millis, rest = divmod(micros(value), 1_000)
            return () if rest else _packed(millis, stored)
        case _:
            return None  # readers round nanoseconds
