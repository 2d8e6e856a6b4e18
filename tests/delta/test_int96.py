"""INT96 timestamps and the hybrid calendar: each value as Spark reads it, or refused by name.

Files are pyarrow's own; values that it cannot write are put in place of others, byte for byte.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.times import ExactParquetFile
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.errors import UnsupportedFeature
from tandem.storage import open_store

NS = pa.timestamp("ns", "UTC")
DAY_NS = 86_400 * 10**9
NESTED = pa.table(
    {
        "i": pa.array([1, 2, 3, 4]),
        "t": pa.array([0, 10**15, -(10**15), None], NS),
        "s": pa.array(
            [{"x": 0, "y": 1}, {"x": None, "y": 2}, None, {"x": 5000, "y": 3}],
            pa.struct([("x", NS), ("y", pa.int32())]),
        ),
        "l": pa.array([[0, None], [], None, [7000]], pa.list_(NS)),
        "m": pa.array([[("a", 0)], None, [], [("b", None), ("c", -9000)]], pa.map_("string", NS)),
        "k": pa.array([[(1000, 1)], None, [], [(5000, 1), (6000, 2)]], pa.map_(NS, pa.int32())),
        "d": pa.array(
            [[{"q": [1000]}], None, [], [{"q": None}, {"q": []}]],
            pa.list_(pa.struct([("q", pa.list_(NS))])),
        ),
        "b": pa.array([b"123456789012", None, b"abcdefghijkl", b"            "], pa.binary(12)),
    }
)


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_ordinary_values_are_what_pyarrow_reads_at_every_depth(
    tmp_path: Path, dictionary: bool, batch_size: int
) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(
        NESTED,
        path,
        use_deprecated_int96_timestamps=True,
        row_group_size=2,
        use_dictionary=dictionary,
    )
    plain = pq.ParquetFile(path, coerce_int96_timestamp_unit="us").read()
    with path.open("rb") as source:
        file = ExactParquetFile(source, resource="f.parquet")
        found = pa.Table.from_batches(list(file.iter_batches(batch_size=batch_size)))
        chosen = pa.Table.from_batches(
            list(file.iter_batches(batch_size=batch_size, row_groups=[0, 1], places=[1, 2, 6]))
        )
        part = pa.Table.from_batches(list(file.iter_batches(columns=["s.x"])))
    assert found.equals(plain)
    assert found.schema.types == plain.schema.types
    assert chosen.equals(plain.select([1, 2, 6]))
    assert part["s"].combine_chunks().field(0).equals(plain["s"].combine_chunks().field(0))


@pytest.mark.parametrize(
    ("day", "nanos", "micros"),
    [
        (2_440_588, 0, 0),
        (2_440_587, DAY_NS - 1000, -1),
        (0, 0, -210_866_803_200_000_000),
        # Before the Julian calendar's first day Spark writes both numbers negative,
        (0, -1000, -210_866_803_200_000_001),
        (-1, -1000, -210_866_889_600_000_001),
        # others only the day.
        (-1, DAY_NS - 1000, -210_866_803_200_000_001),
        (0, -1999, -210_866_803_200_000_001),
        # The ends of Spark's range: at the last one its day number wraps. Others do not.
        (-104_311_403, -14_454_775_809_000, 2**63 - 1),
        (109_192_579, 14_454_775_807_000, 2**63 - 1),
        (-104_311_403, -14_454_775_808_000, -(2**63)),
    ],
)
def test_all_that_spark_writes_is_read_as_spark_reads_it(
    tmp_path: Path, day: int, nanos: int, micros: int
) -> None:
    assert _read(tmp_path, day, nanos) == [None, micros]


@pytest.mark.parametrize(
    ("day", "nanos"), [(2**31 - 1, 0), (-(2**31), 0), (109_192_579, 14_454_775_808_000)]
)
def test_a_value_beyond_64_bits_is_refused_by_name(tmp_path: Path, day: int, nanos: int) -> None:
    with pytest.raises(UnsupportedFeature) as refused:
        _read(tmp_path, day, nanos)
    assert (refused.value.resource, refused.value.field) == ("f.parquet", "t")
    assert refused.value.found == f"Julian day {day}, nanosecond {nanos}"


def _read(folder: Path, day: int, nanos: int) -> list[int | None]:
    """Through the table's reader: a null and this INT96."""
    path = folder / "f.parquet"
    stamp = pa.table({"t": pa.array([None, 1_234_567_890_123_456_000], NS)})
    pq.write_table(
        stamp, path, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False
    )
    whole, rest = divmod(1_234_567_890_123_456_000, DAY_NS)
    written = struct.pack("<qi", rest, whole + 2_440_588)
    data = path.read_bytes()
    assert data.count(written) == 1
    path.write_bytes(data.replace(written, struct.pack("<qi", nanos, day)))
    return _micros(folder, "t")


def _micros(folder: Path, column: str, type_: str = "timestamp") -> list[int | None]:
    table = TableFormat(StructType((Field(column, PrimitiveType(type_)),)))
    with DataFileReader(open_store(folder.as_uri()), "f.parquet", table) as reader:
        [batch] = list(reader.batches())
    number = pa.int32() if type_ == "date" else pa.int64()
    found: list[int | None] = batch.column(0).cast(number).to_pylist()
    return found


GREGORIAN = -141_427
SECONDS_1900 = -2_208_988_800


@pytest.mark.parametrize(
    ("kind", "key", "first"),
    [
        # Spark 2 wrote all of it in the hybrid calendar, and named no zone.
        ("date", {"version": "2.4.8"}, GREGORIAN),
        ("int64", {"version": "2.4.8"}, SECONDS_1900),
        ("int96", {"version": "2.4.8"}, SECONDS_1900),
        # Spark 3.0 only INT96.
        ("date", {"version": "3.0.3"}, None),
        ("int64", {"version": "3.0.3"}, None),
        ("int96", {"version": "3.0.3"}, SECONDS_1900),
        # Later ones if they are asked to; then they name the zone.
        ("date", {"version": "4.2.0", "legacyDateTime": ""}, GREGORIAN),
        ("int64", {"version": "4.2.0", "legacyDateTime": "", "timeZone": "UTC"}, GREGORIAN * 86400),
        ("int96", {"version": "4.2.0", "legacyINT96": "", "timeZone": "UTC"}, GREGORIAN * 86400),
        ("int96", {"version": "4.2.0", "legacyINT96": "", "timeZone": "Asia/Tokyo"}, SECONDS_1900),
        ("int96", {"version": "4.2.0"}, None),
        ("int96", {}, None),
    ],
)
def test_values_that_spark_would_rebase_are_refused_by_name(
    tmp_path: Path, kind: str, key: dict[str, str], first: int | None
) -> None:
    type_ = "date" if kind == "date" else "timestamp"
    unit = 1 if kind == "date" else 10**6
    if first is None:
        _write(tmp_path, kind, key, -800_000 * unit)
        assert _micros(tmp_path, "c", type_) == [-800_000 * unit]
        return
    _write(tmp_path, kind, key, first * unit)
    assert _micros(tmp_path, "c", type_) == [first * unit]
    _write(tmp_path, kind, key, first * unit - 1)
    with pytest.raises(UnsupportedFeature) as refused:
        _micros(tmp_path, "c", type_)
    assert (refused.value.resource, refused.value.field) == ("f.parquet", "c")
    assert refused.value.found


def _write(folder: Path, kind: str, key: dict[str, str], value: int) -> None:
    if kind == "date":
        array = pa.array([value], pa.int32()).cast(pa.date32())
    else:
        array = pa.array([value], pa.timestamp("us", "UTC"))
    schema = pa.schema([("c", array.type)])
    int96 = kind == "int96"
    path = folder / "f.parquet"
    with pq.ParquetWriter(path, schema, use_deprecated_int96_timestamps=int96) as writer:
        writer.add_key_value_metadata({f"org.apache.spark.{k}": v for k, v in key.items()})
        writer.write_table(pa.table([array], schema=schema))
