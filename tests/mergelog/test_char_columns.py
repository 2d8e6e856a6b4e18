"""CHAR(n) and VARCHAR(n) of a base table: new values are padded, cut or refused by one rule, by
which way soever they reach the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import PrimitiveType as DeltaPrimitive
from hypothesis import given
from hypothesis import strategies as st

from mergelog.lake import DELETION_VECTORS, Merged, in_memory
from mergelog.orders import MERGE, Orders
from mergelog.services import assert_services_change_nothing, contents
from support.jobs.inline_runner import InlineRunner
from tandem import mergelog
from tandem.delta.char_types import METADATA_KEY, BoundedText, bounds_of, fitted
from tandem.delta.datafiles.conform import SchemaMismatch
from tandem.delta.schema import ArrayType, Field, MapType, PrimitiveType, StructType
from tandem.errors import InvalidSpec
from tandem.spark.connector import register
from tandem.spec.status import Phase
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT = PrimitiveType("string")


def declared(name: str, type_: str, as_stored: Any = TEXT) -> Field:
    return Field(name, as_stored, True, {METADATA_KEY: type_})


SCHEMA = StructType((declared("k", "char(3)"), declared("v", "varchar(2)"), Field("p", TEXT)))
Row = tuple[Any, ...]


def rows(*found: Row) -> pa.Table:
    names = ("k", "v", "p")[: len(found[0])]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in found])


def test_one_key_in_two_forms_is_one_row() -> None:
    merged = Merged(in_memory(schema=SCHEMA))
    merged.append(rows(("a", "1", "first"), ("a  ", "2", "second"), ("b", None, " ")))
    assert merged.rows() == [("a  ", "2", "second"), ("b  ", None, " ")]
    merged.append(rows(("a ", "x   ", "third")), rows(("b ",)))
    assert merged.rows() == [("a  ", "x ", "third")]


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        (("abcd", "1"), "k", "char(3)"),
        (("ü😀ü😀", "1"), "k", "char(3)"),
        (("abc", "123"), "v", "varchar(2)"),
    ],
)
def test_a_text_that_is_too_long_is_refused_before_the_upload(
    row: Row, column: str, expected: str
) -> None:
    store = in_memory(schema=SCHEMA)
    merged = Merged(store)
    for upserts, deletes in ((rows(row), None), (None, rows(row[:1]))):
        if deletes is not None and column != "k":
            continue
        with pytest.raises(InvalidSpec) as caught:
            merged.append(upserts, deletes)
        assert caught.value.field == column
        assert f"is no {expected}" in caught.value.found
    assert not [path for path in store.paths() if "/blocks/" in path]


def test_only_characters_count_and_only_blanks_are_cut() -> None:
    field = declared("c", "char(3)")
    given_ = pa.array(["ü😀ü", "ü😀", "abc    ", "", None])
    assert fitted(given_, field).to_pylist() == ["ü😀ü", "ü😀 ", "abc", "   ", None]
    with pytest.raises(SchemaMismatch):
        fitted(pa.array(["abc\t"]), field)


NESTED = declared(
    "c",
    "struct<A:char(2),l:array<varchar(2)>,m:map<char(2),struct<x:char(2)>>,n:decimal(9,2)>",
    StructType(
        (
            Field("a", TEXT),
            Field("l", ArrayType(TEXT)),
            Field("m", MapType(TEXT, StructType((Field("x", TEXT),)))),
            Field("n", PrimitiveType("decimal(9,2)")),
        )
    ),
)


def test_texts_inside_a_column_follow_their_own_declaration() -> None:
    type_ = pa.struct(
        [
            ("a", pa.string()),
            ("l", pa.list_(pa.string())),
            ("m", pa.map_(pa.string(), pa.struct([("x", pa.string())]))),
            ("n", pa.decimal128(9, 2)),
        ]
    )
    values: list[Any] = [
        {"a": "u", "l": ["ab", None, "d   "], "m": [("k", {"x": "v"})], "n": None},
        None,
        {"a": None, "l": None, "m": None, "n": None},
        {"a": "vw", "l": [], "m": [], "n": None},
    ]
    expected = [
        {"a": "u ", "l": ["ab", None, "d "], "m": [("k ", {"x": "v "})], "n": None},
        *values[1:],
    ]
    array = pa.array(values, type_)
    assert fitted(array, NESTED).to_pylist() == expected
    assert fitted(array.slice(1), NESTED).to_pylist() == expected[1:]
    # What lies below a NULL is no value.
    hidden = pa.StructArray.from_arrays(
        [pa.array(["too long"]), *(array.field(at).slice(2, 1) for at in (1, 2, 3))],
        fields=list(type_),
        mask=pa.array([True]),
    )
    assert fitted(hidden, NESTED).to_pylist() == [None]
    for path, wrong in (
        ("c.a", {"a": "abc"}),
        ("c.l.element", {"l": ["abc"]}),
        ("c.m.key", {"m": [("abc", None)]}),
        ("c.m.value.x", {"m": [("k", {"x": "abc"})]}),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            fitted(pa.array([wrong], type_), NESTED)
        assert caught.value.column == path


@pytest.mark.parametrize(
    "text", ["struct<a:char(3)", "struct<a>", "list<char(3)>", "array<char(3)>>", "char(3),"]
)
def test_a_declaration_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SchemaMismatch, match="declared type"):
        fitted(pa.array(["a"]), declared("c", text))


@st.composite
def declarations(draw: st.DrawFn) -> tuple[str, Any]:
    """A declared type, and its bounds."""
    text, found = draw(
        st.recursive(
            st.builds(BoundedText, st.integers(1, 99), st.booleans()).map(lambda b: (str(b), b))
            | st.sampled_from(["string", "decimal(9,2)", "timestamp_ntz"]).map(lambda t: (t, {})),
            lambda inner: (
                inner.map(lambda i: (f"array<{i[0]}>", {"element": i[1]}))
                | st.tuples(inner, inner).map(
                    lambda p: (f"map<{p[0][0]},{p[1][0]}>", {"key": p[0][1], "value": p[1][1]})
                )
                | st.dictionaries(st.sampled_from(["a", "b`c", "d:e", "f,g"]), inner).map(
                    lambda fields: (
                        "struct<"
                        + ",".join(f"`{n.replace('`', '``')}`:{i[0]}" for n, i in fields.items())
                        + ">",
                        {n: i[1] for n, i in fields.items()},
                    )
                )
            ),
            max_leaves=6,
        )
    )
    return text, found


@given(declarations())
def test_declarations_are_read_at_any_depth(case: tuple[str, Any]) -> None:
    text, expected = case
    assert bounds_of(text) == expected


def test_a_value_that_another_writer_has_not_padded_is_the_same_key(tmp_path: Path) -> None:
    """`deltalake` pads nothing, as does Spark in a Delta table."""
    folder = tmp_path / "t"
    fields = [
        deltalake.Field(name, DeltaPrimitive("string"), metadata={METADATA_KEY: type_})
        for name, type_ in (("k", "char(3)"), ("o", "char(2)"), ("v", "varchar(9)"))
    ]
    DeltaTable.create(folder, deltalake.Schema(fields), configuration=DELETION_VECTORS)
    base = pa.table({"k": ["a", "b  ", "c"], "o": ["x", "x", "y"], "v": ["base"] * 3})
    write_deltalake(str(folder), base, mode="append")
    merged = Merged(open_store(folder.as_uri()), ordering="o")
    upserts = pa.table({"k": ["a ", "b", "c"], "o": ["x", "x ", "x"], "v": ["log"] * 3})
    merged.append(upserts)
    expected = [("a  ", "x ", "log"), ("b  ", "x ", "log"), ("c", "y", "base")]
    assert merged.rows() == expected
    assert_services_change_nothing(folder)
    merged.append(None, pa.table({"k": ["c"], "o": ["z"]}))
    assert merged.rows() == expected[:2]


# Real Spark


ARROW = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.string()),
        ("s", pa.struct([("x", pa.string())])),
        ("a", pa.list_(pa.string())),
    ]
)
GIVEN = pa.Table.from_pylist(
    [
        {"k": "a", "v": "x    ", "s": {"x": "y"}, "a": ["z    ", None]},
        {"k": "ü😀    ", "v": None, "s": None, "a": None},
        {"k": "", "v": "", "s": {"x": None}, "a": []},
    ],
    ARROW,
)
STORED = pa.Table.from_pylist(
    [
        {"k": "a  ", "v": "x ", "s": {"x": "y "}, "a": ["z ", None]},
        {"k": "ü😀 ", "v": None, "s": None, "a": None},
        {"k": "   ", "v": "", "s": {"x": None}, "a": []},
    ],
    ARROW,
)


def with_key(key: str) -> pa.Table:
    return GIVEN.slice(0, 1).set_column(0, "k", pa.array([key]))


@pytest.fixture(scope="module")
def session(spark: SparkSession, delta_spark: SparkSession) -> Iterator[SparkSession]:
    session = delta_spark.newSession()
    register(session)
    yield session
    # A query leaves its session active in the thread, where another one cannot register the format.
    assert spark._jvm is not None
    spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["writer", "connector", "upsert", "ingest"])
def test_each_way_stores_the_same_and_replaces_what_spark_wrote(
    tmp_path: Path, spark: SparkSession, session: SparkSession, way: str
) -> None:
    jobs = InlineRunner(spark)
    table = Orders(tmp_path / "t")

    def append(rows_: pa.Table, batch: int) -> None:
        if way == "writer":
            table.append(rows_, batch=batch)
        elif way == "connector":
            options = {"writer": "w", "batch": str(batch)}
            frame = session.createDataFrame(rows_)
            frame.write.format("tandem").mode("append").options(**options).save(table.location)
        else:
            source = {"source": table.source(rows_, f"source-{batch}")}
            spec = {"upsert": source} if way == "upsert" else source
            status = table.run(spec, name=f"rows-{batch}", jobs=jobs)
            assert status.phase is Phase.SUCCEEDED, status.conditions[0].message

    def view() -> list[tuple[str, ...]]:
        return contents(mergelog.MergedView.open(table.log).scan().read_all())

    name = f"delta.`{table.location}`"
    session.sql(
        f"CREATE TABLE {name} (k CHAR(3), v VARCHAR(2), s STRUCT<x: CHAR(2)>, a ARRAY<VARCHAR(2)>) "
        "USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    session.sql(f"INSERT INTO {name} VALUES ('a', '1', NULL, NULL), ('ü😀', '2', NULL, NULL)")
    mergelog.ensure_log(table.log, mergelog.LogSettings(("k",)), now_ms=0, nonce="made")
    append(GIVEN, 0)
    assert view() == contents(STORED)
    append(with_key("a   "), 1)  # the same key in another form
    assert view() == contents(STORED)
    with pytest.raises(Exception, match=r"char\(3\)|too long"):
        append(with_key("abcd"), 2)
    gone = {"deleteKeys": {"source": table.source(pa.table({"k": ["a"]}), "gone")}}
    table.do(gone, name="gone", jobs=jobs)
    assert view() == contents(STORED.slice(1))
    table.do(MERGE, name="merge", jobs=jobs)
    assert view() == contents(STORED.slice(1))
    found = session.sql(f"SELECT k, v FROM {name} ORDER BY k").collect()
    assert [tuple(row) for row in found] == [("   ", ""), ("ü😀 ", None)]
