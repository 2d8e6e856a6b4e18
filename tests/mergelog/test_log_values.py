"""Rows come back from the merged view as they were appended, and from the base after a merge: all
types, names and partitions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from mergelog.lake import Merged, in_memory, made
from mergelog.services import assert_services_change_nothing, bits
from support.values.kinds import KINDS, Kind
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.partitions import days_of, unstorable
from tandem.delta.schema import ArrayType, Field, PrimitiveType, StructType
from tandem.errors import DuplicateKeys, InvalidSpec, UnsupportedFeature
from tandem.mergelog.blocks import by_group
from tandem.mergelog.by_key import Records, UniqueRows, require_decided
from tandem.mergelog.log_table import LogSettings
from tandem.storage import open_store

PLAIN = [kind for kind in KINDS if not pa.types.is_struct(kind.arrow)]
KEYS = [kind for kind in PLAIN if not pa.types.is_floating(kind.arrow)]


def name_of(kind: Kind) -> str:
    return kind.name


def distinct(kind: Kind) -> list[Any]:
    """The values of a kind, the ordinary one first."""
    return list(dict.fromkeys([kind.ordinary, *kind.extremes]))


def by_id(found: pa.Table) -> pa.Table:
    return found.sort_by("id")


def ids(numbers: Sequence[int | None]) -> pa.Array:
    return pa.array(numbers, pa.int64())


# Types


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    most = max(len(kind.extremes) for kind in KINDS) + 2
    columns = {
        kind.name: kind.array([*kind.extremes, kind.ordinary, *[None] * most][:most])
        for kind in KINDS
    }
    rows = pa.table({"id": ids(range(most)), **columns})
    merged = made(tmp_path / "t", rows.slice(0, 1), keys=("id",))
    merged.append(rows)
    found = by_id(merged.view())
    for kind in KINDS:
        assert bits(found[kind.name]) == bits(rows[kind.name]), kind.name
    assert_services_change_nothing(tmp_path / "t")


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", KEYS, ids=name_of)
def test_keys_of_every_type_find_their_rows(tmp_path: Path, kind: Kind) -> None:
    """All values are in the base; the first half is replaced, the others deleted."""
    values = distinct(kind)
    half = (len(values) + 1) // 2
    every = pa.table({"id": ids(range(len(values))), "key": kind.array(values)})
    merged = made(tmp_path / "t", every, keys=("key",))
    upserts = pa.table({"id": ids(range(100, 100 + half)), "key": kind.array(values[:half])})
    merged.append(upserts, pa.table({"key": kind.array(values[half:])}))
    found = by_id(merged.view())
    assert found["id"].to_pylist() == list(range(100, 100 + half))
    assert bits(found["key"]) == bits(kind.array(values[:half]))
    assert_services_change_nothing(tmp_path / "t")


@pytest.mark.parametrize("kind", PLAIN, ids=name_of)
def test_ordering_columns_of_every_type_decide(tmp_path: Path, kind: Kind) -> None:
    """Each pair of values, one in the base, one in the log."""
    values = [None, *distinct(kind)]
    pairs = list(itertools.product(values, values))
    numbers = ids(range(len(pairs)))

    def side(at: int, who: str) -> pa.Table:
        named = pa.array([who] * len(pairs))
        return pa.table(
            {"id": numbers, "o": kind.array([pair[at] for pair in pairs]), "who": named}
        )

    merged = made(tmp_path / "t", side(0, "base"), keys=("id",), ordering="o")
    merged.append(side(1, "log"))
    expected = ["base" if weight(one) > weight(other) else "log" for one, other in pairs]
    assert by_id(merged.view())["who"].to_pylist() == expected


def weight(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if value != value:
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


NESTED = pa.schema(
    [
        ("s", pa.struct([("a", pa.int32()), ("b", pa.struct([("c d.e", pa.string())]))])),
        ("l", pa.list_(pa.list_(pa.int64()))),
        ("m", pa.map_(pa.string(), pa.struct([("x", pa.decimal128(38, 10))]))),
        ("t", pa.list_(pa.struct([("u", pa.timestamp("us", "UTC"))]))),
    ]
)


def nested(number: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [
        {"s": None, "l": None, "m": None, "t": None},
        {"s": {"a": 1, "b": None}, "l": [], "m": [], "t": []},
        {"s": {"a": None, "b": {"c d.e": ""}}, "l": [[1], None, []], "m": [("", None)],
         "t": [None, {"u": None}]},
        {"s": {"a": 2, "b": {"c d.e": "ü"}}, "l": [[None, 2**62]], "m": [("k", {"x": None})],
         "t": [{"u": 1}]},
    ]  # fmt: skip
    return rows[number]


def test_nested_columns_come_back(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([nested(at) for at in range(4)], NESTED)
    rows = rows.add_column(0, "id", ids(range(4)))
    merged = made(tmp_path / "t", rows.slice(0, 2), keys=("id",))
    merged.append(rows.slice(1), pa.table({"id": ids([0])}))
    assert by_id(merged.view()).to_pylist() == rows.slice(1).to_pylist()
    assert_services_change_nothing(tmp_path / "t")
    merged.append(None, pa.table({"id": ids([1, 2])}))
    assert merged.view().to_pylist() == rows.slice(3).to_pylist()


CONVERSIONS = {
    "smaller integers": (pa.int64(), pa.array([1, None], pa.int8())),
    "larger integers that fit": (pa.int8(), pa.array([127, None], pa.int64())),
    "large strings": (pa.string(), pa.array(["ü", None], pa.large_string())),
    "string views": (pa.string(), pa.array(["ü", None], pa.string_view())),
    "dictionaries": (pa.string(), pa.array(["ü", None]).dictionary_encode()),
    "large binaries": (pa.binary(), pa.array([b"\0", None], pa.large_binary())),
    "milliseconds": (pa.timestamp("us", "UTC"), pa.array([-1, None], pa.timestamp("ms", "UTC"))),
    "another zone": (pa.timestamp("us", "UTC"),
                     pa.array([5, None], pa.timestamp("us", "Europe/Berlin"))),
    "whole nanoseconds": (pa.timestamp("us"), pa.array([-5000, None], pa.timestamp("ns"))),
    "integers as decimals": (pa.decimal128(38, 10), pa.array([7, None])),
    "smaller decimals": (pa.decimal128(38, 10), pa.array(["1.5", None]).cast(pa.decimal128(4, 1))),
    "float as double": (pa.float64(), pa.array([0.5, None], pa.float32())),
    "large lists": (pa.list_(pa.int32()), pa.array([[1], None], pa.large_list(pa.int64()))),
    "fields in another order": (
        pa.struct([("a", pa.int32()), ("b", pa.string()), ("c", pa.string())]),
        pa.array([{"b": "x", "a": 1}, None], pa.struct([("b", pa.string()), ("a", pa.int8())]))),
    "nothing but NULL": (pa.list_(pa.int32()), pa.nulls(2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_value_of_another_width_is_stored_as_it_is(tmp_path: Path, name: str) -> None:
    wanted, given = CONVERSIONS[name]
    empty = pa.table({"id": ids([]), "c": pa.array([], wanted)})
    merged = made(tmp_path / "t", empty, keys=("id",))
    merged.append(pa.table({"id": ids([0, 1]), "c": given}))
    found = by_id(merged.view())["c"]
    assert found.type == wanted
    if pa.types.is_struct(wanted):
        assert found.to_pylist() == [{"a": 1, "b": "x", "c": None}, None]
    elif pa.types.is_list(wanted):
        assert found.to_pylist() == given.to_pylist()
    else:
        assert found.combine_chunks().equals(given.cast(wanted))


REFUSED = {
    "integer as boolean": (pa.bool_(), pa.array([5])),
    "boolean as integer": (pa.int64(), pa.array([True])),
    "integer as moment": (pa.timestamp("us"), pa.array([5])),
    "moment as integer": (pa.int64(), pa.array([5], pa.timestamp("us"))),
    "moment as day": (pa.date32(), pa.array([5], pa.timestamp("us"))),
    "day as moment": (pa.timestamp("us"), pa.array([5], pa.date32())),
    "moment without a zone as one with": (pa.timestamp("us", "UTC"),
                                          pa.array([5], pa.timestamp("us"))),
    "moment with a zone as one without": (pa.timestamp("us"),
                                          pa.array([5], pa.timestamp("us", "UTC"))),
    "parts of a microsecond": (pa.timestamp("us"), pa.array([1], pa.timestamp("ns"))),
    "double as float": (pa.float32(), pa.array([0.1])),
    "double as decimal": (pa.decimal128(10, 2), pa.array([0.5])),
    "digits that a decimal lacks": (pa.decimal128(10, 1),
                                    pa.array(["0.25"]).cast(pa.decimal128(10, 2))),
    "integer beyond a double": (pa.float64(), pa.array([2**53 + 1])),
    "text as bytes": (pa.binary(), pa.array(["a"])),
    "bytes as text": (pa.string(), pa.array([b"a"])),
    "text that is not UTF-8": (pa.string(), pa.array([b"\xff"]).view(pa.string())),
    "duration": (pa.int64(), pa.array([5], pa.duration("us"))),
    "nested number as text": (pa.list_(pa.string()), pa.array([[1]])),
    "struct with an unknown field": (pa.struct([("a", pa.int32())]), pa.array([{"a": 1, "b": 2}])),
    "struct with a field twice": (
        pa.struct([("a", pa.int64()), ("b", pa.int64())]),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
    ),
    "map as struct": (pa.struct([("a", pa.int32())]),
                      pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_that_would_change_is_refused(tmp_path: Path, name: str) -> None:
    wanted, given = REFUSED[name]
    empty = pa.table({"id": ids([]), "c": pa.array([], wanted)})
    merged = made(tmp_path / "t", empty, keys=("id",))
    with pytest.raises(InvalidSpec) as caught:
        merged.append(pa.table({"id": ids([0]), "c": given}))
    assert caught.value.field.split(".")[0] == "c"
    assert not list((tmp_path / "t" / "_tandem" / "log").glob("blocks/**/*.parquet"))


@pytest.mark.parametrize(
    "given", [[{"id": 0}], {"id": [0]}, pa.table({"id": ids([0])}).to_reader()]
)
def test_what_is_no_arrow_table_is_refused_by_its_type(tmp_path: Path, given: Any) -> None:
    merged = made(tmp_path / "t", pa.table({"id": ids([])}), keys=("id",))
    with pytest.raises(TypeError, match=r"takes a pyarrow\.Table or RecordBatch, not a "):
        merged.append(given)


VOID = StructType((Field("k", PrimitiveType("long")), Field("z", PrimitiveType("void"))))


def test_a_column_without_a_type_stays_null() -> None:
    merged = Merged(in_memory(schema=VOID), ("k",))
    merged.append(pa.table({"k": ids([1, 2])}))
    merged.append(None, pa.table({"k": ids([1])}))
    assert merged.view().to_pylist() == [{"k": 2, "z": None}]


@pytest.mark.parametrize(("keys", "ordering"), [(("z",), ""), (("k", "z"), ""), (("k",), "z")])
def test_a_column_without_a_type_is_no_key_and_orders_nothing(
    keys: tuple[str, ...], ordering: str
) -> None:
    with pytest.raises(InvalidSpec, match="void"):
        Merged(in_memory(schema=VOID), keys, ordering)


def test_a_struct_without_fields_is_refused_before_the_log_is_made() -> None:
    inner = Field("z", ArrayType(StructType(()), contains_null=True))
    schema = StructType((Field("k", PrimitiveType("long")), inner))
    with pytest.raises(UnsupportedFeature, match="struct without fields"):
        Merged(in_memory(schema=schema), ("k",))


# Names


ODD = ("a b", "a.b", ".a", "[0]", "ü😀", 'it\'s "quoted"', "`tick`", "UPPER", "%41", "k=v", "#")


def test_odd_names_of_columns_are_names(tmp_path: Path) -> None:
    def rows(first: int, count: int) -> pa.Table:
        return pa.table(
            {
                name: pa.array([f"{at}-{number}" for number in range(first, first + count)])
                for at, name in enumerate(ODD)
            }
        )

    for number, key in enumerate(("a.b", ".a", "[0]", "ü😀", "`tick`", "k=v")):
        merged = made(tmp_path / f"t{number}", rows(0, 3), keys=(key, "a b"), ordering="UPPER")
        merged.append(rows(2, 2), rows(0, 1).select([key, "a b", "UPPER"]))
        assert merged.view().sort_by("a b").to_pylist() == rows(1, 3).to_pylist()
        assert_services_change_nothing(tmp_path / f"t{number}")


def test_names_of_tandem_itself_are_refused(tmp_path: Path) -> None:
    """Columns of a block would be taken for those of its records."""
    for number, name in enumerate(("__tandem_deleted", "__TANDEM_x")):
        with pytest.raises(UnsupportedFeature, match=name):
            made(tmp_path / f"t{number}", pa.table({"id": ids([1]), name: ["a"]}), keys=("id",))


def test_names_that_differ_in_case_are_not_two_columns(tmp_path: Path) -> None:
    merged = made(tmp_path / "t", pa.table({"id": ids([1]), "v": ["a"]}), keys=("id",))
    with pytest.raises(InvalidSpec) as caught:
        merged.append(pa.table({"id": ids([1]), "v": ["a"], "V": ["b"]}))
    assert (caught.value.field, caught.value.expected) == ("V", "perhaps v")


# Partitions


SPECIAL = [
    *("x", "a b", "a/b", "a=b", "ü😀", "100%", "%41", "..", ".", "'", '"', "a\\b", "\t", "#?&+"),
    *("é" * 60, "null", "__HIVE_DEFAULT_PARTITION__"),
]


def test_special_characters_in_partition_values_are_kept(tmp_path: Path) -> None:
    rows = pa.table({"id": ids(range(len(SPECIAL))), "p": SPECIAL})
    base = pa.table({"id": ids([0, 900]), "p": ["x", "y"]})
    merged = made(tmp_path / "t", base, keys=("id", "p"), partition_by=["p"])
    merged.append(rows)
    assert merged.log.snapshot().partition_columns == ("p",)
    expected = sorted([*enumerate(SPECIAL), (900, "y")])
    assert sorted(tuple(row.values()) for row in merged.view().to_pylist()) == expected
    assert_services_change_nothing(tmp_path / "t")
    merged.append(None, rows.slice(1))
    assert sorted(tuple(row.values()) for row in merged.view().to_pylist()) == [
        (0, "x"),
        (900, "y"),
    ]


DAY_US = 86_400_000_000
LIMITS = (days_of("-262143-01-01"), days_of("+262142-12-31"))
"""The first and the last day that `deltalake` reads in a log."""
OF_DAYS = {"day": 1, "moment": DAY_US, "local": DAY_US}


def storable(kind: Kind) -> list[Any]:
    """The values of a kind that a partition column can hold."""
    limits = [day * OF_DAYS[kind.name] for day in LIMITS if kind.name in OF_DAYS]
    return [v for v in (*distinct(kind), *limits) if unstorable(kind.array([v])) is None]


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", KEYS, ids=name_of)
def test_partition_keys_of_every_type_find_their_rows(tmp_path: Path, kind: Kind) -> None:
    values = storable(kind)
    every = pa.table({"id": ids(range(len(values))), "key": kind.array(values)})
    # `deltalake` writes bytes in a form that it reads as other bytes (decision 0105).
    base = every.slice(0, 0 if kind.name == "bytes" else 1)
    merged = made(tmp_path / "t", base, keys=("id", "key"), partition_by=["key"])
    merged.append(every)
    found = by_id(merged.view())
    assert bits(found["key"]) == bits(every["key"])
    assert_services_change_nothing(tmp_path / "t")
    merged.append(None, every.slice(1))
    assert merged.view()["id"].to_pylist() == [0]


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", PLAIN, ids=name_of)
def test_partition_columns_of_every_type_that_are_no_keys_keep_their_values(
    tmp_path: Path, kind: Kind
) -> None:
    """Also both zeros, which are one value to Arrow, and two texts to Delta."""
    values = [*storable(kind), None]
    every = pa.table({"id": ids(range(len(values))), "p": kind.array(values)})
    merged = made(tmp_path / "t", every.slice(0, 1), keys=("id",), partition_by=["p"])
    merged.append(every)
    merged.append(every.slice(0, 1))
    assert bits(by_id(merged.view())["p"]) == bits(every["p"])
    assert_services_change_nothing(tmp_path / "t")


NANS = {
    "double": np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], "u8"),
    "float": np.array([0x7FC00001, 0xFFC00000, 0x7F800001], "u4"),
}


@pytest.mark.parametrize("name", NANS)
def test_each_nan_in_a_partition_column_is_the_canonical_one(tmp_path: Path, name: str) -> None:
    """Delta's text of a partition value is `NaN`, whatever its bits: a merge changes none."""
    given = NANS[name].view("f8" if name == "double" else "f4")
    every = pa.table({"id": ids(range(3)), "p": given, "v": given})
    merged = made(tmp_path / "t", every.slice(0, 0), keys=("id",), partition_by=["p"])
    merged.append(every)
    unsigned = NANS[name].dtype
    canonical = np.array([np.nan] * 3, given.dtype).view(unsigned)
    for _ in range(2):
        found = by_id(merged.view())
        assert found["p"].to_numpy().view(unsigned).tolist() == canonical.tolist()
        # As they came, in a column that is stored in files.
        assert found["v"].to_numpy().view(unsigned).tolist() == NANS[name].tolist()
        assert_services_change_nothing(tmp_path / "t")


FAR = (LIMITS[0] - 1, LIMITS[1] + 1)
UNSTORABLE = [
    *((pa.string(), value) for value in ("",)),
    *((pa.binary(), value) for value in (b"", b"\xff", b"ok\xc3")),
    *((pa.date32(), day) for day in FAR),
    *((pa.timestamp("us", "UTC"), day * DAY_US) for day in FAR),
    *((pa.timestamp("us"), day * DAY_US) for day in FAR),
]


@pytest.mark.parametrize("key", [True, False], ids=["key", "other"])
@pytest.mark.parametrize(("type_", "value"), UNSTORABLE)
def test_a_value_that_a_partition_column_cannot_hold_is_refused(
    tmp_path: Path, type_: pa.DataType, value: Any, key: bool
) -> None:
    base = pa.table({"id": ids([0]), "p": pa.nulls(1, type_)})
    keys = ("id", "p") if key else ("id",)
    merged = made(tmp_path / "t", base, keys=keys, partition_by=["p"])
    width = pa.int32() if pa.types.is_date(type_) else pa.int64()
    plain = pa.types.is_string(type_) or pa.types.is_binary(type_)
    values = pa.array([value, value], type_ if plain else width)
    row = pa.table({"id": ids([0, 1]), "p": values.cast(type_)})
    for rows, deletes in ((row, None), (None, row)) if key else ((row, None),):
        with pytest.raises(InvalidSpec, match="partition column cannot hold a value") as caught:
            merged.append(rows, deletes)
        assert caught.value.field == "p"
    assert merged.log.log.latest_version() == 0
    assert not list((tmp_path / "t" / "_tandem" / "log").glob("blocks/**/*.parquet"))


def test_an_empty_text_is_a_key_like_any_other_without_partitions(tmp_path: Path) -> None:
    base = pa.table({"id": ["", "a"], "v": ["1", "2"]})
    merged = made(tmp_path / "t", base, keys=("id",))
    merged.append(pa.table({"id": [""], "v": [""]}), pa.table({"id": ["a"]}))
    assert merged.rows() == [("", "")]


def test_a_base_partitioned_by_another_column_has_one_group_of_blocks(tmp_path: Path) -> None:
    base = pa.table({"id": ids([1, 2, 3]), "p": ["x", "y", None]})
    merged = made(tmp_path / "t", base, keys=("id",), partition_by=["p"])
    assert merged.log.snapshot().partition_columns == ()
    merged.append(pa.table({"id": ids([1, 4]), "p": ["y", None]}), pa.table({"id": ids([3])}))
    assert merged.rows() == [(1, "y"), (2, "y"), (4, None)]
    assert_services_change_nothing(tmp_path / "t")


def test_rows_of_the_base_without_a_key_are_shown(tmp_path: Path) -> None:
    base = pa.table({"id": ids([1, None, None]), "v": ["a", "b", "b"]})
    merged = made(tmp_path / "t", base, keys=("id",))
    merged.append(pa.table({"id": ids([1]), "v": ["A"]}))
    assert merged.rows() == [(1, "A"), (None, "b"), (None, "b")]


# Columns


def test_a_scan_of_some_columns_needs_no_keys_among_them(tmp_path: Path) -> None:
    base = pa.table({"id": ids([1, 2]), "v": ["a", "b"], "p": ["x", "x"]})
    merged = made(tmp_path / "t", base, keys=("id",), ordering="v")
    merged.append(pa.table({"id": ids([2, 3]), "v": ["c", "d"]}))
    view = merged.open()
    assert sorted(view.scan(["p"]).read_all()["p"].to_pylist(), key=repr) == sorted(
        ["x", None, None], key=repr
    )
    found = view.scan(["P", "ID"]).read_all()
    assert found.column_names == ["p", "id"]
    assert sorted(found["id"].to_pylist()) == [1, 2, 3]
    with pytest.raises(InvalidSpec, match="no such column"):
        view.scan(["nothing"])


def test_a_row_filter_sees_merged_rows_only(tmp_path: Path) -> None:
    base = pa.table({"id": ids(range(10)), "v": ["a"] * 10})
    merged = made(tmp_path / "t", base, keys=("id",))
    merged.append(pa.table({"id": ids([3]), "v": ["b"]}), pa.table({"id": ids([4])}))
    seen: list[tuple[int, str]] = []

    def only_b(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(tuple(row.values()) for row in batch.to_pylist())
        return batch.filter(pc.equal(batch.column("v"), "b"))

    found = merged.open().scan(row_filter=only_b).read_all()
    assert found.to_pylist() == [{"id": 3, "v": "b"}]
    assert sorted(seen) == sorted([(at, "a") for at in range(10) if at not in (3, 4)] + [(3, "b")])


def test_a_table_with_other_deletion_vectors_and_many_files_is_merged(tmp_path: Path) -> None:
    base = pa.table({"id": ids(range(100)), "v": ["a"] * 100})
    path = tmp_path / "t"
    merged = made(path, base.slice(0, 40), keys=("id",))
    for start in range(40, 100, 20):
        write_deltalake(str(path), base.slice(start, 20), mode="append")
    DeltaTable(str(path)).delete("id % 10 = 3")
    merged.append(pa.table({"id": ids(range(0, 100, 5)), "v": ["b"] * 20}))
    found = Merged(open_store(path.as_uri()), ("id",)).rows()
    expected = [(at, "b" if at % 5 == 0 else "a") for at in range(100) if at % 10 != 3]
    assert found == sorted(expected, key=repr)


def test_rows_of_many_partitions_are_divided_in_order() -> None:
    fields = tuple(Field(name, PrimitiveType(type_)) for name, type_ in (("id", "long"), *PARTS))
    table = TableFormat(StructType(fields), ("p", "q"), {})
    every = pa.table(
        {
            "id": ids(range(1000)),
            "p": pa.array([i % 7 or None for i in range(1000)], pa.int64()),
            "q": [f"q{i * i % 11}" for i in range(1000)],
        }
    )
    found = by_group(table, pa.concat_tables([every.slice(0, 300), every.slice(300)]))
    groups = [tuple(values.values()) for values, _, _ in found]
    assert len(set(groups)) == len(groups) == len({(i % 7, i * i % 11) for i in range(1000)})
    for values, part, at in found:
        assert part.equals(every.take(pa.array(at)))
        assert sorted(at) == list(at)
        assert {str(p) if p else None for p in part["p"].to_pylist()} == {values["p"]}
        assert set(part["q"].to_pylist()) == {values["q"]}
    assert sum(len(at) for _, _, at in found) == 1000


PARTS = (("p", "long"), ("q", "string"))

BEYOND = {
    "day": (pa.array([2**30] * 2, pa.int32()).cast(pa.date32()), "+2941775-04-07"),
    "moment": (pa.array([2**62] * 2, pa.timestamp("us", "UTC")), "+148108-07-06T14:00:27"),
    "text": (pa.array([b"\xff"] * 2).view(pa.string()), "\\xff"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_repeated_key_that_python_cannot_hold_is_named(name: str) -> None:
    keys, text = BEYOND[name]
    settings = LogSettings(("k",))
    records = Records((keys,), None, np.arange(2), np.zeros(2, bool))
    with pytest.raises(DuplicateKeys) as caught:
        require_decided(records, settings, "t")
    assert f"k = {text}" in str(caught.value)
    unique = UniqueRows(settings)
    assert unique.take(pa.table({"k": keys})) is not None
    assert unique.finish() is not None
    assert unique.repeated.keys == 1
    assert unique.repeated.examples[0].startswith(f"k = {text}")


def test_a_view_without_columns_has_as_many_rows(tmp_path: Path) -> None:
    base = pa.table({"id": ids([1, 2, 3]), "p": ["a", "a", "b"]})
    merged = made(tmp_path / "t", base, keys=("id",), partition_by=["p"])
    merged.append(pa.table({"id": ids([3, 4, 5]), "p": ["b", "b", "c"]}))
    merged.append(None, pa.table({"id": ids([1])}))
    found = merged.open().scan([]).read_all()
    assert (found.num_columns, found.num_rows) == (0, 4)
