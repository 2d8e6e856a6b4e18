"""Names with dots, times before 1970, dates beyond Python's calendar, odd properties of statistics:
what is read and written is what was there."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.foreign.tables import BEYOND, column, dotted, struct, write
from tandem.delta import protocol
from tandem.delta.datafiles.conform import conform
from tandem.delta.datafiles.stats import INDEXED_COLUMNS, STATS_COLUMNS, FloatBounds, from_footer
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.partitions import date_text, days_of, moment_text, python_values, to_scalar
from tandem.delta.scan import scan
from tandem.delta.schema import PrimitiveType, parse
from tandem.errors import CorruptLog, StorageError, UnsupportedFeature
from tandem.storage import open_store

DATE = PrimitiveType("date")
LONG = PrimitiveType("long")


def read(root: Path, *columns: str) -> pa.Table:
    log = DeltaLog(open_store(root.as_uri()))
    return scan(log.snapshot(), log.store, columns or None).read_all()


# Names


@pytest.mark.parametrize(
    "names", [("a",), ("a.b",), ("a", "a.b"), ("a.b.c", "a"), (".a",), (".",), ("`a.b`", "a`b")]
)
def test_a_name_selects_one_column_whatever_its_dots(names: tuple[str, ...], root: Path) -> None:
    dotted(root)
    [every] = read(root).to_pylist()
    assert every["a"] == {"b": 1, "b.c": 2}
    assert [every[n] for n in list(every)[1:]] == list(range(10, 17))
    assert read(root, *names).to_pylist() == [{name: every[name] for name in names}]


def test_only_the_columns_asked_for_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow takes a name for the prefix of a path: `a.b` would be the field of `a`, too."""
    dotted(root)
    taken: list[list[int]] = []
    original = pq.core.ParquetReader.iter_batches

    class Spy:
        def __init__(self, reader: Any) -> None:
            self._reader = reader

        def iter_batches(self, *given: Any, column_indices: list[int], **more: Any) -> Any:
            taken.append(column_indices)
            return original(self._reader, *given, column_indices=column_indices, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

    init = pq.ParquetFile.__init__

    def watched(self: Any, *given: Any, **more: Any) -> None:
        init(self, *given, **more)
        self.reader = Spy(self.reader)

    monkeypatch.setattr(pq.ParquetFile, "__init__", watched)
    read(root, "a.b")
    assert taken == [[2]]


def test_of_two_columns_of_one_name_none_is_read(root: Path) -> None:
    """Spark, pyarrow and Polars read neither, DuckDB the first."""
    ones, twos = pa.array([1]), pa.array([2])
    twice = pa.Table.from_arrays([ones, ones, twos], names=["id", "x", "x"])
    write(root, column("id"), column("x"), rows=twice)
    with pytest.raises(StorageError, match="may be any of x, x"):
        read(root)


def test_names_that_differ_in_case_are_not_read_as_nulls(root: Path) -> None:
    ones = pa.array([1])
    write(root, column("id"), rows=pa.table({"ID": ones, "Id": ones}))
    with pytest.raises(StorageError, match="may be any of ID, Id"):
        read(root)


# Times


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=1))
def test_nanoseconds_are_rounded_down_on_both_sides_of_1970(values: list[int | None]) -> None:
    nanos = pa.array(values, pa.timestamp("ns", tz="UTC"))
    micros = conform(nanos, PrimitiveType("timestamp"))
    assert micros.cast(pa.int64()).to_pylist() == [v if v is None else v // 1_000 for v in values]


def test_nanoseconds_are_the_same_instant_as_int96(tmp_path: Path) -> None:
    """One instant, two encodings: INT96 counts from midnight, and so rounds down."""
    written = pa.table({"t": pa.array([-1, -999, -1_001, 1_001], pa.timestamp("ns"))})
    found = []
    for old in (True, False):
        root = tmp_path / str(old)
        write(root, column("t", "timestamp_ntz"), rows=written, features=["timestampNtz"])
        pq.write_table(written, root / "part-0.parquet", use_deprecated_int96_timestamps=old)
        found.append(read(root))
    assert found[0] == found[1]


def test_times_too_large_for_microseconds_are_refused_and_do_not_wrap(root: Path) -> None:
    late = pa.array([2**60], pa.timestamp("ms", tz="UTC"))
    write(root, column("t", "timestamp"), rows=pa.table({"t": late}))
    with pytest.raises(StorageError, match="out of bounds"):
        read(root)


# Dates


@given(st.dates())
def test_dates_of_pythons_calendar(day: dt.date) -> None:
    days = (day - dt.date(1970, 1, 1)).days
    assert date_text(days) == day.isoformat()
    assert days_of(day.isoformat()) == days


@given(st.integers(-3_650_000_000 // 1_000, 3_650_000_000 // 1_000))
def test_dates_of_any_year(days: int) -> None:
    assert days_of(date_text(days)) == days


@pytest.mark.parametrize("text", ["2021-02-29", "2021-13-01", "2021-00-01", "x", "", "1-1-1"])
def test_invalid_dates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no"):
        days_of(text)


@given(st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999))
def test_moments_of_pythons_calendar(micros: int) -> None:
    for zone in (None, "UTC"):
        moment = pa.scalar(micros, pa.timestamp("us", tz=zone)).as_py()
        assert moment_text(micros, aware=zone is not None) == moment.isoformat()


def test_values_that_python_has_no_date_for_are_texts_at_any_depth() -> None:
    day = pa.date32()
    batch = pa.record_batch(
        {
            "d": pa.array([BEYOND, 0, None], day),
            "t": pa.array([2**61, None, 0], pa.timestamp("us", tz="UTC")),
            "l": pa.array([[-BEYOND], None, []], pa.list_(day)),
            "m": pa.array([[("k", BEYOND)], None, []], pa.map_(pa.string(), day)),
            "s": pa.array([{"d": BEYOND}, None, {"d": 0}], pa.struct([("d", day)])),
        }
    )
    first, second, third = python_values(batch)
    assert first == {
        "d": "+12921-08-18",
        "t": "+75039-04-04T19:00:13.693952+00:00",
        "l": ["-8982-05-17"],
        "m": [("k", "+12921-08-18")],
        "s": {"d": "+12921-08-18"},
    }
    assert second["d"] == third["s"]["d"] == dt.date(1970, 1, 1)
    assert (third["d"], second["l"], third["m"]) == (None, None, [])


@pytest.mark.parametrize(
    ("text", "days"),
    # As Spark writes them, and the days that it reads.
    [
        ("+10000-01-01", 2_932_897), ("0000-12-31", -719_163), ("-0001-02-01", -719_862),
        ("+12921-08-18", BEYOND), ("0101-02-03", -682_605), ("2020-01-01 00:00:00", 18_262),
    ],
)  # fmt: skip
def test_date_partitions_of_any_year(text: str, days: int) -> None:
    assert to_scalar(text, DATE).value == days


def test_an_invalid_date_partition() -> None:
    with pytest.raises(CorruptLog, match="2021-02-29"):
        to_scalar("2021-02-29", DATE)


# Properties


def stats_of(properties: dict[str, str], tmp_path: Path) -> set[str]:
    """The columns that have bounds."""
    import json

    ids = pa.array([1])
    names = ["a", "x.y", "s", "a,b"]
    nested = pa.StructArray.from_arrays([ids, ids], ["t", "u"])
    pq.write_table(pa.table([ids, ids, nested, ids], names=names), tmp_path / "x.parquet")
    fields = [column("a"), column("x.y"), column("s", struct(column("t"), column("u")))]
    schema = parse(json.dumps(struct(*fields, column("a,b"))))
    text = from_footer(pq.read_metadata(tmp_path / "x.parquet"), schema, properties, FloatBounds())
    found = json.loads(text)["minValues"]
    inner = found.pop("s", {})
    return {*found, *(f"s.{name}" for name in inner)}


EVERY = {"a", "x.y", "s.t", "s.u", "a,b"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [("many", EVERY), ("", EVERY), ("-2", EVERY), ("1_0", EVERY), ("-1", EVERY), (" 1 ", {"a"}),
     ("9" * 30, EVERY), ("٣", EVERY), ("0", set())],
)  # fmt: skip
def test_an_invalid_number_of_indexed_columns_counts_as_the_default(
    value: str, expected: set[str], tmp_path: Path
) -> None:
    assert stats_of({INDEXED_COLUMNS: value}, tmp_path) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("`x.y`", {"x.y"}), ("x.y", set()), ("s.t, A", {"s.t", "a"}),
        ("`a,b`,s", {"a,b", "s.t", "s.u"}),
        ("nope", set()), ("`a", EVERY), ("a.", EVERY), ("`s`.`u`", {"s.u"}), ("a,", {"a"}),
    ],
)  # fmt: skip
def test_columns_with_statistics_by_name(value: str, expected: set[str], tmp_path: Path) -> None:
    assert stats_of({STATS_COLUMNS: value}, tmp_path) == expected


# Deletion vectors


@pytest.mark.parametrize("name", ["_metadata", "_METADATA", "_tmp_metadata_ROW_INDEX"])
def test_no_first_vector_where_spark_could_not_read_the_table_after_it(
    name: str, root: Path
) -> None:
    write(root, column("id"), column(name))
    snapshot = DeltaLog(open_store(root.as_uri())).snapshot()
    with pytest.raises(UnsupportedFeature, match=f"column {name}"):
        protocol.check_vectors(snapshot.protocol, snapshot.metadata)
    refused = {
        kind
        for kind in protocol.OperationKind
        if any(f"column {name}" == w for w, _ in
               protocol.refusals(snapshot.protocol, snapshot.metadata, kind))
    }  # fmt: skip
    assert {kind.value for kind in refused} == {"Update", "Delete", "Merge", "Replace"}


def test_a_field_of_that_name_inside_a_struct_is_harmless(root: Path) -> None:
    write(root, column("s", struct(column("_metadata"))), rows=None)
    snapshot = DeltaLog(open_store(root.as_uri())).snapshot()
    protocol.check_vectors(snapshot.protocol, snapshot.metadata)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "table"
