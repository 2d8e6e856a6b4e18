"""The columns say of every file what its own statistics say when they are read alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pruning import model
from support.some import few
from tandem.delta import schema as schema_
from tandem.delta.actions import AddFile
from tandem.delta.log import files
from tandem.delta.stats import num_records, num_records_of, read
from tandem.pruning.predicate import bounds_of, columns_of, may_match, must_match
from tandem.pruning.selection import Keys
from tandem.statements import parse_where
from tandem.statements.types import Schema

MAPPED = {"delta.columnMapping.physicalName": "col-1", "delta.columnMapping.id": 1}
TYPES = {
    "i": "integer", "l": "long", "f": "float", "d": "double", "dec": "decimal(10,2)",
    "s": "string", "b": "boolean", "day": "date", "ts": "timestamp", "ntz": "timestamp_ntz",
    "m": "long", ".x": "long", "p": "string", "pi": "integer", "pd": "decimal(20,2)", "pt": "date",
}  # fmt: skip
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": n, "type": t, "nullable": True, "metadata": MAPPED if n == "m" else {}}
            for n, t in TYPES.items()
        ]
        + [
            {
                "name": "st",
                "type": {
                    "type": "struct",
                    "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}],
                },
                "nullable": True,
                "metadata": {},
            }
        ],
    }
)
PARTITIONS = ("p", "pi", "pd", "pt")
STATED = [name for name in TYPES if name not in PARTITIONS]
PHYSICAL = {name: "col-1" if name == "m" else name for name in [*STATED, "st"]}

BIG = 10**18
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 5, 2.5, 2**31, 2**63 - 1, 2**63, -(2**63), 10**40, 10**400, 1e300,
    float("nan"), float("inf"), 0.1, 1.005, "", "NaN", "a", "ab", "b", "z" * 31, "z" * 32, "é",
    "\ud83d", "1", "2013-01-01", "2013-01-05", "20130103", "2013-13-01", "0000-01-01",
    "2013-01-01T00:00:00.000Z", "2013-01-02 12:00:00", "2013-01-03T00:00:00.123456789Z",
    "2013-01-03T00:00:00-07:00", "9999-12-31T23:59:59.999-10:00", "never", [], [1], {}, {"x": 3},
]  # fmt: skip
COUNTS: list[Any] = [None, 0, 1, 3, 3, 3, -1, True, "3", 3.0, BIG, 2**63, 10**30, {"x": 0}]
USUAL: dict[str, list[Any]] = {
    "integer": [-3, 0, 1, 5], "long": [-3, 0, 1, 5, 2**40], "float": [0.0, 1.1, -2.5],
    "double": [0.0, 1.1, -2.5, 3], "decimal(10,2)": [0, 1.5, -2.25, 99999999.99],
    "string": ["a", "ab", "m", "z" * 40], "boolean": [True, False],
    "date": ["2013-01-01", "2013-01-05"],
    "timestamp": ["2013-01-01T00:00:00.000Z", "2013-01-03T00:00:00.123Z"],
    "timestamp_ntz": ["2013-01-01T00:00:00.000", "2013-01-03T00:00:00.123"],
}  # fmt: skip
WHERE = [
    *(f"{c} {op} {v}" for c in ("i", "l", "m", "`.x`") for op in ("=", "<", "<=", ">", ">=", "!=")
      for v in ("1", "0", "2.5", "5L", "9223372036854775807", "9223372036854775808")),
    *(f"{c} {op} {v}" for c in ("d", "f", "dec") for op in ("=", "<", "<=", ">", ">=")
      for v in ("1.1D", "0", "1.5", "1.005", "-2.25")),
    *(f"s {op} {v}" for op in ("=", "<", "<=", ">", ">=", "!=") for v in ("'a'", "'ab'", "'é'")),
    "s LIKE 'a%'", "s LIKE 'zzz%'", "s LIKE '%'", "s NOT LIKE 'b%'", "b", "NOT b", "b = FALSE",
    *(f"day {op} DATE '2013-01-03'" for op in ("=", "<", ">=")),
    *(f"{c} {op} TIMESTAMP '2013-01-03 00:00:00.123'" for c in ("ts", "ntz")
      for op in ("=", "<", "<=", ">", ">=")),
    "i IS NULL", "i IS NOT NULL", "s IS NULL", "i <=> NULL", "i <=> 1", "i IN (1, 7)",
    "i NOT IN (1, 5)", "i BETWEEN 1 AND 3", "i NOT BETWEEN -3 AND 5", "(i = 1) IS UNKNOWN",
    "i = 1 AND s = 'a'", "i = 1 OR d < 0", "NOT (i = 1 OR d < 0)", "st.x = 3", "st.x IS NULL",
    "p = 'a'", "p != 'a'", "p IS NULL", "p IS NOT NULL", "p LIKE 'a%'", "pi = 3", "pi > 2.5",
    "pi IN (3, 4)", "pd = 1.5", "pd != 1.5", "pd >= 12345678901234567.89", "pt < DATE '2013-01-03'",
    "p = 'a' AND i > 0", "NOT (p = 'b' OR i < 5)",
]  # fmt: skip


@st.composite
def _statistics(draw: st.DrawFn) -> str | None:
    """JSON text, most of it as writers make it, some of it not."""

    def bounds() -> Any:
        if draw(st.integers(0, 30)) == 0:
            return draw(st.sampled_from(ODD))
        found = {}
        for name in draw(st.lists(st.sampled_from([*STATED, "st"]), unique=True)):
            usual = USUAL.get(TYPES.get(name, ""), [{"x": 3}])
            odd = draw(st.integers(0, 12)) == 0
            found[PHYSICAL[name]] = draw(st.sampled_from(ODD if odd else usual))
        return found

    body: dict[str, Any] = {"minValues": bounds(), "maxValues": bounds()}
    names = draw(st.lists(st.sampled_from(STATED), unique=True))
    body["nullCount"] = {PHYSICAL[name]: draw(st.sampled_from(COUNTS)) for name in names}
    body["numRecords"] = draw(st.sampled_from(COUNTS))
    if draw(st.booleans()):
        body["tightBounds"] = draw(st.sampled_from([True, False, None, "false", 0]))
    chosen = draw(st.permutations(sorted(body)))[: draw(st.integers(0, 5))]
    text = json.dumps({name: body[name] for name in chosen})
    match draw(st.integers(0, 40)):
        case 0:
            return draw(
                st.sampled_from([None, "", " ", "[]", "null", "5", '"x"', "{}{}", "[" * 9000])
            )
        case 1:
            return text[: draw(st.integers(0, len(text)))]
        case 2:
            return text.replace(",", "\n,\r\n\t")
        case 3:
            return text + draw(st.sampled_from(["\n", " x", "{}", "}", "\n{}"]))
        case _:
            return text


_PARTITION: dict[str, list[str | None]] = {
    "p": [None, "", "a", "ab", "b", "z" * 40],
    "pi": [None, "3", "-1", "", "x", "99999999999"],
    "pd": [None, "1.5", "12345678901234567.89", "nan"],
    "pt": [None, "2013-01-01", "2013-01-05 00:00:00", "99999-01-01", "soon"],
}


@st.composite
def file_of_any_writer(draw: st.DrawFn) -> AddFile:
    values: Mapping[str, str | None] = {
        name: draw(st.sampled_from(texts))
        for name, texts in _PARTITION.items()
        if draw(st.integers(0, 9))  # one of ten is missing
    }
    return AddFile(
        logged_path="x", partition_values=values, size=1, modified_ms=0, data_change=True,
        stats=draw(_statistics()),
    )  # fmt: skip


ADDS = st.lists(file_of_any_writer(), min_size=1, max_size=12)


def chunked(adds: list[AddFile], cut: int) -> pa.Table:
    """Rows of two commits, of which the first begins in the middle of its buffers."""
    table = files.from_adds([adds[0], *adds])
    return pa.concat_tables([table.slice(1, cut), table.slice(1 + cut)])


@settings(deadline=None, max_examples=few(50, 400))
@given(
    st.lists(file_of_any_writer(), min_size=1, max_size=12),
    st.integers(0, 12),
    st.sampled_from(WHERE),
)
def test_all_files_at_once_are_decided_as_one_by_one(
    adds: list[AddFile], cut: int, text: str
) -> None:
    where = parse_where(text, Schema.from_json(SCHEMA))
    schema = schema_.parse(SCHEMA)
    known = bounds_of(chunked(adds, cut), schema, PARTITIONS, dict(columns_of(where)))

    ranges = [model.range_of(add, schema, PARTITIONS) for add in adds]
    assert may_match(where, known).tolist() == [model.may_match(where, each) for each in ranges]
    assert must_match(where, known).tolist() == [model.must_match(where, each) for each in ranges]


KEYS: dict[str, list[Any]] = {
    "l": [-3, 0, 1, 2, 2**40], "s": [b"", b"a", b"aa", b"m", b"z" * 40], "pi": [-1, 2, 3],
    "p": [b"a", b"abc"],
}  # fmt: skip


@settings(deadline=None, max_examples=few(25, 200))
@given(ADDS, st.data())
def test_keys_of_a_source_rule_out_the_same_files(adds: list[AddFile], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(KEYS)))
    values = tuple(sorted(data.draw(st.sets(st.sampled_from(KEYS[name])))))
    schema = schema_.parse(SCHEMA)
    types = {column.name: column.type for column in Schema.from_json(SCHEMA).columns}
    key = Keys(name, types[name], values, complete=data.draw(st.booleans()))
    known = bounds_of(chunked(adds, 3), schema, PARTITIONS, {name: types[name]})

    found = key.may_occur(known).tolist()

    assert found == [model.may_occur(key, model.range_of(a, schema, PARTITIONS)) for a in adds]


@settings(deadline=None, max_examples=few(25, 200))
@given(st.lists(_statistics(), min_size=1, max_size=12))
def test_numbers_of_rows_are_those_of_each_file(texts: list[str | None]) -> None:
    found = num_records(pa.chunked_array([texts], pa.string())).to_pylist()
    assert found == [num_records_of(text) for text in texts]
    assert all(rows is None or (0 <= rows < BIG and rows is not True) for rows in found)


FIELDS = pa.schema(
    [
        ("numRecords", pa.int64()),
        ("minValues", pa.struct([(PHYSICAL["s"], pa.string()), (PHYSICAL["l"], pa.int64())])),
        ("tightBounds", pa.bool_()),
    ]
)


@settings(deadline=None, max_examples=few(25, 200))
@given(_statistics())
def test_the_statistics_of_one_file_are_read_as_those_of_many(text: str | None) -> None:
    alone = read(pa.chunked_array([[text]], pa.string()), FIELDS).to_pylist()
    among = read(pa.chunked_array([[text, *['{"numRecords":4}'] * 99]], pa.string()), FIELDS)
    assert alone == among.slice(0, 1).to_pylist()


def test_a_text_that_is_no_utf8_in_an_unread_field_has_its_other_fields() -> None:
    text = b'{"numRecords":4,"minValues":{"other":"\xff"}}'
    texts = pa.array([text], pa.binary()).view(pa.string())
    assert num_records(pa.chunked_array([texts])).to_pylist() == [4]


@pytest.mark.parametrize("rows", ["true", "-1", "1e3", "3.0", '"3"', str(10**18), str(2**63), "{}"])
def test_an_invalid_number_of_rows_is_unknown_to_every_reader(rows: str) -> None:
    text = f'{{"numRecords":{rows}}}'
    assert num_records_of(text) is None
    assert num_records(pa.chunked_array([[text, '{"numRecords":4}']])).to_pylist() == [None, 4]


def test_a_broken_string_does_not_disable_skipping_of_other_files() -> None:
    texts = [f'{{"numRecords":{n}}}' for n in range(3_000)]
    texts[1_000] = '{"numRecords":1'
    texts[2_000] = '{"numRecords":1}{"numRecords":2}'
    texts[2_001] = ""
    found = num_records(pa.chunked_array([texts])).to_pylist()
    assert found == [n if n not in (1_000, 2_000, 2_001) else None for n in range(3_000)]
