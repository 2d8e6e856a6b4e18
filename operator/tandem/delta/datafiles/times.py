"""Reads dates and times of Parquet files exactly as Spark does, INT96 included, or refuses them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandem.delta.datafiles.conform import SchemaMismatch, is_array, plain_list
from tandem.delta.datafiles.footer_edit import without_int96
from tandem.delta.datafiles.pages import ColumnPages, damaged_page
from tandem.errors import UnsupportedFeature

# INT96 timestamps, Spark's default, as exact microseconds.
#
# An INT96 is a nanosecond of a day (int64) and a Julian day number (int32), both of which writers
# treat as signed. pyarrow treats both as unsigned and wraps around silently: times before the year
# -4713, and times that Spark wrote near the end of its range (where its own arithmetic wraps), are
# read as other times. Footers have no bounds of INT96 columns, so only the twelve bytes show that.
# pyarrow returns the bytes if the footer declares the column as fixed-length bytes; so the footer
# is changed in memory, and the bytes are converted here as Spark converts them
# (`DateTimeUtils.fromJulianDay`). Source: apache/parquet-format, "parquet.thrift", and Thrift's
# compact protocol. No I/O.


RAW = pa.binary(12)
EPOCH_DAY = 2_440_588
"""The Julian day number of 1970-01-01."""
DAY_US = 86_400_000_000
LAST_DAY = (1 << 63) // DAY_US
"""The last whole day whose microseconds fit 64 bits, counted from any day. Spark's day numbers are
within as many days around zero."""

_RECORD = np.dtype([("nanos", "<i8"), ("day", "<i4")])


def to_micros(array: Any, zone: str | None, *, resource: str, column: str) -> Any:
    """The microseconds since 1970 of INT96 values.

    Args:
        array: of type `RAW`.
        zone: of the Arrow type to give.
        resource, column: for messages.
    Raises: UnsupportedFeature for a time whose microseconds do not fit 64 bits.
    """
    rows = len(array)
    target = pa.timestamp("us", tz=zone)
    data = array.buffers()[1]
    if data is None or not rows:
        return pa.nulls(rows, target)
    raw = np.frombuffer(data, dtype=_RECORD, count=array.offset + rows)[array.offset :]
    valid = np.asarray(array.is_valid()) if array.null_count else None
    days, nanos = raw["day"].astype(np.int64), raw["nanos"].copy()
    part = nanos // 1000
    if nanos.min() < 0:
        # As Java divides: towards zero.
        part += (nanos < 0) & (part * 1000 != nanos)
    found = (days - EPOCH_DAY) * DAY_US + part  # wraps as Spark's does
    if valid is not None:
        found[~valid] = 0
    if days.min() < -LAST_DAY or days.max() > LAST_DAY or np.abs(part).max() >= DAY_US:
        _refuse_out_of_range(days, nanos, found, valid, resource, column)
    return pa.array(found, mask=None if valid is None else ~valid).cast(target)


def require_whole_int96_micros(array: Any, *, column: str) -> None:
    """Raises: SchemaMismatch if an INT96 value is not a whole number of microseconds."""
    valid = array.drop_null()
    data = valid.buffers()[1]
    if data is None:
        return
    raw = np.frombuffer(data, dtype=_RECORD, count=valid.offset + len(valid))[valid.offset :]
    cut = raw["nanos"][raw["nanos"] % 1000 != 0]
    if len(cut):
        raise SchemaMismatch(
            column, f"nanosecond {cut[0]} of a day", "whole number of microseconds"
        )


def _refuse_out_of_range(
    days: Any, nanos: Any, found: Any, valid: Any, resource: str, column: str
) -> None:
    # Spark's own numbers of days wrap near the end of its range, and back when it reads them.
    in_range = (np.abs(days) <= LAST_DAY) & (np.abs(nanos // 1000) <= DAY_US)
    exact = (days - EPOCH_DAY).astype(np.float64) * DAY_US + nanos / 1000
    wrong = ~(in_range | (np.abs(exact - found) < DAY_US))
    if valid is not None:
        wrong &= valid
    if wrong.any():
        first = int(np.argmax(wrong))
        raise UnsupportedFeature(
            "a data file holds an INT96 timestamp that no engine can show",
            resource=resource,
            field=column,
            found=f"Julian day {int(days[first])}, nanosecond {int(nanos[first])}",
            expected="a moment whose microseconds since 1970 fit into 64 bits",
            remedy="Correct or delete the row with the engine that wrote it",
        )


def with_bytes(metadata: Any) -> Any:
    """The same footer (`pq.FileMetaData`), with INT96 columns declared as twelve bytes each. Both
    types are stored alike, in every encoding."""
    sink = io.BytesIO()
    metadata.write_metadata_file(sink)
    file = sink.getvalue()
    footer = file[4:-8]
    changed = without_int96(footer)
    whole = b"PAR1" + changed + len(changed).to_bytes(4, "little") + b"PAR1"
    return pq.read_metadata(pa.BufferReader(whole))


# Reads dates and times of Parquet files exactly as Spark does, or refuses them.
#
# pyarrow silently misreads two things: INT96 outside of the range that it computes with
# (`tandem.delta.datafiles.times`), and files in the hybrid calendar, which Spark wrote before
# version 3 (and still writes if configured to): Julian before 15 October 1582, with local mean
# times before 1900. Spark rebases their values when it reads them; here the few values that would
# be rebased are refused by name. The rules are those of Spark's `DataSourceUtils.getRebaseSpec`.
#
# All pages that are decoded come through here, so this is where their checksums are verified.


GREGORIAN_DAY = -141_427
"""15 October 1582, in days since 1970: from then on the two calendars agree."""
GREGORIAN_US = GREGORIAN_DAY * DAY_US
STANDARD_TIME_US = -2_208_988_800_000_000
"""The year 1900, in microseconds since 1970: from then on, old and new readers agree on zones."""
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "Zulu", "Etc/Zulu", "UCT", "Etc/UCT"})


@dataclass(frozen=True, slots=True)
class RebaseBoundaries:
    """The time from which on a file's values need no rebasing: `date_from` in days, the others in
    microseconds since 1970; None for always."""

    date_from: int | None = None
    timestamp_from: int | None = None
    int96_from: int | None = None

    @classmethod
    def of(cls, footer: Mapping[bytes, bytes]) -> RebaseBoundaries:
        """The calendar by a footer's key-value metadata. Files of other writers are Gregorian, as
        by default in Spark 4."""
        version = footer.get(b"org.apache.spark.version")
        if version is None:
            return cls()
        zone = footer.get(b"org.apache.spark.timeZone", b"").decode(errors="replace")
        moment = GREGORIAN_US if zone in _UTC else STANDARD_TIME_US
        # Spark compares versions as texts, too.
        old = version < b"3.0.0" or b"org.apache.spark.legacyDateTime" in footer
        old_int96 = version < b"3.1.0" or b"org.apache.spark.legacyINT96" in footer
        return cls(
            GREGORIAN_DAY if old else None,
            moment if old else None,
            moment if old_int96 else None,
        )

    @property
    def always(self) -> bool:
        return self == RebaseBoundaries()


class ExactParquetFile:
    """`pq.ParquetFile`, with dates and times as Spark reads them, and checksums verified of the
    pages that have one.

    `schema` is the file's Arrow schema with INT96 as microseconds, `metadata` its footer.
    """

    def __init__(
        self, source: Any, *, resource: str, whole_micros: bool = False, **options: Any
    ) -> None:
        """`resource` is the file's path, for messages; `whole_micros`: refuse INT96 timestamps
        with more digits (SchemaMismatch); `options` are those of `pq.ParquetFile`, as are the
        errors."""
        self._whole_micros = whole_micros
        self._source = source
        self._resource = resource
        self._options = {"page_checksum_verification": True, **options}
        self._file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **self._options)
        self.schema: pa.Schema = self._file.schema_arrow
        self.metadata: Any = self._file.metadata
        self._calendar = RebaseBoundaries.of(self.metadata.metadata or {})
        columns = self._file.schema
        self._int96 = any(columns.column(i).physical_type == "INT96" for i in range(len(columns)))
        if self._int96:
            self._reopen()

    def _reopen(self, **options: Any) -> None:
        footer = with_bytes(self.metadata) if self._int96 else self.metadata
        self._source.seek(0)
        self._file = pq.ParquetFile(self._source, metadata=footer, **{**self._options, **options})

    @property
    def has_other_dates(self) -> bool:
        """Whether bounds of dates in the footer may be those of another calendar."""
        return self._calendar.date_from is not None

    @property
    def leaves(self) -> list[int]:
        """The index in Parquet of the first column of each top-level one, and their number."""
        return list(accumulate((_leaves(f.type) for f in self.schema), initial=0))

    def read_dictionary(self, columns: list[str]) -> None:
        """Return these columns as dictionaries from now on."""
        self._reopen(read_dictionary=columns)

    def iter_batches(
        self, *, places: Sequence[int] | None = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Like `pq.ParquetFile.iter_batches`, with columns of the types in `schema`.

        Args:
            places: indexes of the top-level columns to read, ascending, instead of `columns`: a
                name with a dot is ambiguous. Batches have them in this order.
        Raises: PageDamaged; UnsupportedFeature for a value that Spark would rebase.
        """
        indices: Sequence[int] | None = None
        if places is None:
            batches = self._file.iter_batches(**options)
        else:
            starts = self.leaves
            indices = [n for i in places for n in range(starts[i], starts[i + 1])]
            batches = self._file.reader.iter_batches(
                options.pop("batch_size"), column_indices=indices, **options
            )
        for batch in self._verified(batches, options.get("row_groups"), indices):
            if not self._int96 and self._calendar.always:
                yield batch
                continue
            names = batch.schema.names
            fields = [
                self.schema.field(name if places is None else places[i])
                for i, name in enumerate(names)
            ]
            arrays = [
                self._exact(array, field.type, field.name)
                for array, field in zip(batch.columns, fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, names=names)

    def close(self) -> None:
        self._file.close()

    def _verified(
        self,
        batches: Iterator[pa.RecordBatch],
        groups: Sequence[int] | None,
        columns: Sequence[int] | None,
    ) -> Iterator[pa.RecordBatch]:
        """The batches. Raises: PageDamaged, and Arrow's errors."""
        try:
            yield from batches
        except OSError as error:
            damaged = damaged_page(error, self._source, self._pages(groups, columns))
            if damaged is not None:
                raise damaged from error
            raise

    def _pages(
        self, groups: Sequence[int] | None, columns: Sequence[int] | None
    ) -> Iterator[ColumnPages]:
        """Where pages are; None for all row groups, or columns."""
        for group in range(self.metadata.num_row_groups) if groups is None else groups:
            chunks = self.metadata.row_group(group)
            for column in range(chunks.num_columns) if columns is None else columns:
                chunk = chunks.column(column)
                first = chunk.dictionary_page_offset
                start = min(first or chunk.data_page_offset, chunk.data_page_offset)
                end = start + chunk.total_compressed_size
                yield ColumnPages(chunk.path_in_schema, start, end)

    def _exact(self, array: Any, plain: pa.DataType, column: str) -> Any:
        """The array with every INT96 in it as microseconds; `plain` is the type that it has in
        `schema`."""
        if pa.types.is_nested(array.type):
            return self._nested(array, plain, column)
        is_date = pa.types.is_date(plain)
        first = self._calendar.date_from if is_date else self._calendar.timestamp_from
        if not is_date and not pa.types.is_timestamp(plain):
            return array
        if array.type.equals(RAW):
            if self._whole_micros:
                require_whole_int96_micros(array, column=column)
            array = to_micros(array, plain.tz, resource=self._resource, column=column)
            first = self._calendar.int96_from
        if first is not None and len(array) > array.null_count:
            self._require_from(first, array, column)
        return array

    def _require_from(self, first: int, array: Any, column: str) -> None:
        target = pa.date32() if pa.types.is_date(array.type) else pa.timestamp("us", array.type.tz)
        limit = pa.scalar(first, target)
        early = array.filter(pc.less(array, limit))
        if len(early):
            raise UnsupportedFeature(
                "a data file holds a date or time of the Julian calendar or of local mean time",
                resource=self._resource,
                field=column,
                found=_shown(early),
                expected=f"values from {_shown(pa.array([first], target))} on: the file is from "
                "Spark 2, or from a later version in legacy mode",
                remedy="Rewrite the file with Spark 3 or later, such as by an UPDATE of its rows",
            )

    def _nested(self, array: Any, plain: pa.DataType, column: str) -> Any:
        if not _has_times(plain):
            return array
        if array.offset:
            # `from_arrays` refuses an offset into shared buffers.
            array = pc.take(array, pa.array(range(len(array)), pa.int64()))
        if is_array(array.type) and not pa.types.is_large_list(array.type):
            array = plain_list(array)
        mask = array.is_null() if array.null_count else None
        found = array.type

        def exact(values: Any, field: pa.Field) -> Any:
            return self._exact(values, field.type, f"{column}.{field.name}")

        if pa.types.is_struct(found):
            # Not all of them may have been requested.
            some = found.num_fields < plain.num_fields
            children = [
                exact(array.field(i), plain.field(found.field(i).name if some else i))
                for i in range(found.num_fields)
            ]
            fields = [found.field(i).with_type(each.type) for i, each in enumerate(children)]
            return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
        if pa.types.is_map(found):
            keys, items = exact(array.keys, plain.key_field), exact(array.items, plain.item_field)
            type_ = pa.map_(
                found.key_field.with_type(keys.type), found.item_field.with_type(items.type)
            )
            return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=mask)
        values = exact(array.values, plain.value_field)
        field = found.value_field.with_type(values.type)
        if pa.types.is_large_list(found):
            type_ = pa.large_list(field)
            return pa.LargeListArray.from_arrays(array.offsets, values, type=type_, mask=mask)
        return pa.ListArray.from_arrays(array.offsets, values, type=pa.list_(field), mask=mask)


def _leaves(type_: pa.DataType) -> int:
    """How many columns a value of this type has in a Parquet file."""
    if isinstance(type_, pa.BaseExtensionType):
        return _leaves(type_.storage_type)
    if pa.types.is_nested(type_):
        return sum(_leaves(type_.field(i).type) for i in range(type_.num_fields))
    return 1


def _has_times(type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_):
        return any(_has_times(type_.field(i).type) for i in range(type_.num_fields))
    return bool(pa.types.is_timestamp(type_) or pa.types.is_date(type_))


def _shown(values: Any) -> str:
    """The first value as a text; Python has no years before 1."""
    return str(values.slice(0, 1).cast(pa.string())[0].as_py())
