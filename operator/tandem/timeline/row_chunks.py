"""The time chunk of each row, by its value of the time column. Reads no file.

Rows without a time are in no chunk of a calendar, and in no interval.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.intervals import IntervalSet
from tandem.pruning.scope import covered
from tandem.spec.fields import Granularity
from tandem.timeline.file_intervals import chunk_borders, chunk_numbers

NO_CHUNK = int(np.iinfo(np.int64).min)
"""In place of the start of a chunk, for rows without a time."""
NO_NUMBER = int(np.iinfo(np.int32).min)
"""In place of the number of a chunk."""

_DAY_US = 86_400_000_000
_MOST_DAYS = int(np.iinfo(np.int64).max) // _DAY_US
"""Of days that 64 bits hold as microseconds. Others are far outside of the years of intervals."""


def chunk_starts(times: pa.Array, granularity: Granularity) -> IntArray:
    """For each row the start of its chunk, in microseconds since 1970."""
    starts, _ = chunk_borders(_micros(times), granularity)
    return np.where(np.asarray(pc.is_valid(times)), starts, NO_CHUNK)


def row_chunk_numbers(times: pa.Array, granularity: Granularity) -> npt.NDArray[np.int32]:
    """For each row the number of its chunk (`chunk_numbers`), `NO_NUMBER` without a time."""
    numbers = chunk_numbers(_micros(times), granularity)
    return np.where(np.asarray(pc.is_valid(times)), numbers, NO_NUMBER).astype(np.int32)


def rows_within(times: pa.Array, intervals: IntervalSet) -> BoolArray:
    """Which rows have a time that lies in one of the intervals."""
    moments = _micros(times) // 1_000
    return np.asarray(pc.is_valid(times)) & covered(intervals, moments, moments + 1)


def _micros(times: pa.Array) -> IntArray:
    if pa.types.is_date(times.type):
        days = np.asarray(pc.fill_null(times.cast(pa.int32()), 0), np.int64)
        return np.clip(days, -_MOST_DAYS, _MOST_DAYS) * _DAY_US
    micros = times.cast(pa.timestamp("us", tz=times.type.tz), safe=False)
    return np.asarray(pc.fill_null(micros.cast(pa.int64()), 0))
