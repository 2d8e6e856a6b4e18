"""Times of many files as columns: texts of statistics and partition values as microseconds since
1970 in UTC. A text that is not a date or timestamp is null.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.partitions import to_scalar
from tandem.delta.schema import PrimitiveType
from tandem.errors import CorruptLog

# Partition values of many files, by column.


MISSING = -1


def partition_codes(
    column: pa.ChunkedArray, physical: str
) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """A partition column as codes and distinct texts; `MISSING` if a file does not have it."""
    codes = np.full(len(column), MISSING, np.int64)
    found: list[Any] = []
    start = 0
    for chunk in column.chunks:
        at = np.flatnonzero(pc.equal(chunk.keys, physical).to_numpy(zero_copy_only=False))
        row = np.searchsorted(chunk.offsets.to_numpy(), at, side="right") - 1
        mine = (row >= 0) & (row < len(chunk))
        found.append((row[mine] + start, chunk.items.take(pa.array(at[mine]))))
        start += len(chunk)
    if not found:
        return codes, []
    texts = pa.concat_arrays([items for _, items in found]).dictionary_encode("encode")
    codes[np.concatenate([rows for rows, _ in found])] = texts.indices.to_numpy()
    return codes, texts.dictionary.to_pylist()


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_DAY = 86_400_000_000


def micros(moment: dt.datetime | dt.date) -> int:
    """A moment, or the start of a day, in microseconds since 1970; in UTC if it has no zone."""
    if not isinstance(moment, dt.datetime):
        moment = dt.datetime.combine(moment, dt.time())
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // _MICROSECOND


FIRST = micros(dt.datetime.min.replace(tzinfo=dt.UTC))
LAST = micros(dt.datetime.max.replace(tzinfo=dt.UTC))
"""The end of Python's calendar: later times are unknown."""


def moments(texts: pa.Array, type_: str) -> pa.Array:
    """The texts in statistics of a column of `type_` (date, timestamp or timestamp_ntz) as int64.

    A timestamp without a zone is in UTC. One with a zone other than UTC is not a timestamp_ntz.
    """
    found = _read(texts, type_)
    within = pc.and_(pc.greater_equal(found, FIRST), pc.less_equal(found, LAST))
    return pc.if_else(within, found, pa.scalar(None, pa.int64()))


def _read(texts: pa.Array, type_: str) -> pa.Array:
    for form in _FORMS[type_]:
        try:
            return texts.cast(form).cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
    distinct = texts.dictionary_encode()
    values = [_moment(text, type_) for text in distinct.dictionary.to_pylist()]
    return pa.array(values, pa.int64()).take(distinct.indices)


_FORMS = {
    "date": (pa.date32(),),
    "timestamp": (pa.timestamp("us", tz="UTC"), pa.timestamp("us")),
    "timestamp_ntz": (pa.timestamp("us"),),
}


def time_bounds(
    files: pa.Table, path: Sequence[str], type_: str, *, partition: bool
) -> tuple[pa.Array, pa.Array]:
    """The least and the greatest time in each file as logged, possibly truncated to milliseconds.

    Args:
        path: the column's physical name, one part per level of nesting.
        type_: its type: date, timestamp or timestamp_ntz.
        partition: whether it is a partition column.
    """
    if partition:
        codes, texts = partition_codes(files["partition_values"], path[0])
        values = [_partition_moment(text, PrimitiveType(type_)) for text in texts]
        # Code -1, of files without the value, is the null at the end.
        times = pa.array([*values, None], pa.int64()).take(pa.array(codes % (len(values) + 1)))
        return times, times
    return bounds_in(stats_.read(files["stats"], bounds_schema(path)), path, type_)


def bounds_schema(path: Sequence[str]) -> pa.Schema:
    """The statistics that `bounds_in` needs, for `delta.stats.read`."""
    field = pa.field(path[-1], pa.string())
    for part in reversed(path[:-1]):
        field = pa.field(part, pa.struct([field]))
    bounds = pa.struct([field])
    return pa.schema([("minValues", bounds), ("maxValues", bounds)])


def bounds_in(statistics: pa.Table, path: Sequence[str], type_: str) -> tuple[pa.Array, pa.Array]:
    """As `time_bounds`, from statistics that have been read."""
    # By index: Arrow parses a name that begins with a dot as a path.
    low, high = (
        pc.struct_field(statistics[name].combine_chunks(), [0] * len(path))
        for name in ("minValues", "maxValues")
    )
    return moments(low, type_), moments(high, type_)


def _partition_moment(text: str | None, type_: PrimitiveType) -> int | None:
    try:
        value = to_scalar(text, type_)
    except (CorruptLog, ValueError, OverflowError):
        return None
    if not value.is_valid:
        return None
    found = int(value.value) * (_DAY if type_.name == "date" else 1)
    return found if FIRST <= found <= LAST else None


def _moment(text: str | None, type_: str) -> int | None:
    """One text, parsed as ISO 8601 by Python, which accepts more forms than Arrow."""
    if text is None:
        return None
    try:
        if type_ == "date":
            return micros(dt.date.fromisoformat(text))
        moment = dt.datetime.fromisoformat(text)
        return None if type_ == "timestamp_ntz" and moment.utcoffset() else micros(moment)
    except (ValueError, OverflowError):
        return None
