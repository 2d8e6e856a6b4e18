"""No file with a matching row is ever skipped, and files that obviously have none are."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pruning.file_ranges import ColumnRange, FileRange, known, matching
from support.some import some
from support.statements.rows import SCHEMA, SCHEMA_JSON, nasty, rows, runtime_errors
from support.statements.texts import texts
from tandem.errors import InvalidStatement
from tandem.pruning.predicate import columns_of, may_match, must_match
from tandem.pruning.selection import Keys
from tandem.statements import parse_where, to_spark_sql
from tandem.statements.types import STRING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = "b b2 i8 i16 i32 j32 i64 f32 f64 g64 dec wide s u bin d e ts ntz"
COLUMNS = _COLUMNS.split()
SIMPLE = [name for name in COLUMNS if name != "bin"]
POSITIONS = {name: n for n, name in enumerate(COLUMNS)}


def match(text: str, file: FileRange) -> bool:
    return bool(matching(parse_where(text, SCHEMA), [file], SCHEMA_JSON)[0])


def one(name: str, low: Any, high: Any, nulls: int | None = 0, rows: int = 10) -> FileRange:
    return FileRange({name: ColumnRange(low, high, nulls)}, rows)


UTC = dt.UTC
MARCH = dt.datetime(2013, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "file", "expected"),
    [
        ("i32 = 5", one("i32", 1, 4), False),
        ("i32 = 4", one("i32", 1, 4), True),
        ("5 = i32", one("i32", 1, 4), False),
        ("5 > i32", one("i32", 5, 9), False),
        ("i32 < 1", one("i32", 1, 4), False),
        ("i32 <= 1", one("i32", 1, 4), True),
        ("i32 > 4 OR i32 < 1", one("i32", 1, 4), False),
        ("i32 > 4 AND s = 'x'", one("i32", 1, 4), False),
        ("i32 != 3", one("i32", 3, 3), False),
        ("i32 != 3", one("i32", 3, 4), True),
        ("NOT i32 = 3", one("i32", 3, 3), False),
        ("NOT (i32 > 0)", one("i32", 1, 4), False),
        ("NOT (i32 > 0)", one("i32", 1, 4, nulls=3), False),  # NOT NULL is NULL, no match
        ("i32 IN (7, 8, NULL)", one("i32", 1, 4), False),
        ("i32 NOT IN (3)", one("i32", 3, 3), False),
        ("i32 NOT IN (3, NULL)", one("i32", 1, 4), False),  # never true in Spark
        ("i32 BETWEEN 5 AND 9", one("i32", 1, 4), False),
        ("i32 NOT BETWEEN 0 AND 9", one("i32", 1, 4), False),
        ("i32 IS NULL", one("i32", 1, 4, nulls=0), False),
        ("i32 IS NULL", one("i32", 1, 4, nulls=None), True),
        ("i32 IS NOT NULL", one("i32", None, None, nulls=10), False),
        ("i32 = 1", one("i32", None, None, nulls=10), False),
        ("i32 <=> NULL", one("i32", 1, 4, nulls=0), False),
        ("i32 <=> 9", one("i32", 1, 4, nulls=1), False),
        ("i32 = NULL", one("i32", 1, 4), False),
        ("i32 + 1 = 9", one("i32", 1, 4), True),  # not understood: keep
        ("(i32 = 9) IS TRUE", one("i32", 1, 4), False),
        ("(i32 = 9) IS NOT TRUE", one("i32", 1, 4), True),
        ("(i32 = 9) IS UNKNOWN", one("i32", 1, 4, nulls=0), False),
        ("i32 = 9.0", one("i32", 1, 4), False),
        ("i32 = 9e0", one("i32", 1, 4), True),
        ("dec > 9.99", one("dec", Decimal("1.00"), Decimal("9.99")), False),
        ("b", one("b", False, False), False),
        ("NOT b", one("b", True, True), False),
        ("FALSE", FileRange(), False),
        ("NULL", FileRange(), False),
        ("s = 'zz'", one("s", "a", "m"), False),
        ("s LIKE 'zz%'", one("s", "a", "m"), False),
        ("s LIKE 'm%'", one("s", "a", "ma"), True),
        ("s LIKE 'aa%'", one("s", "a", "m"), True),
        ("s NOT LIKE 'zz%'", one("s", "a", "m"), True),
        ("s LIKE '%zz'", one("s", "a", "m"), True),
        ("s = 'zz'", one("s", "a", "z" * 32), True),  # perhaps cut
        ("s > 'é'", one("s", "a", "z"), False),
        ("s = 1", one("s", "a", "m"), True),
        ("d = '2014-01-01'", one("d", dt.date(2013, 1, 1), dt.date(2013, 2, 1)), False),
        ("ts > TIMESTAMP '2013-03-01 00:00:00.000999'", one("ts", MARCH, MARCH), True),
        ("ts > TIMESTAMP '2013-03-01 00:00:00.001'", one("ts", MARCH, MARCH), False),
        ("ts > '2090-03-31 00:00:00 +01:00'", one("ts", MARCH, MARCH), False),
        ("ts > '2090-03-31 +01:00'", one("ts", MARCH, MARCH), True),
        ("ts > '2090-03-31 01:00Z'", one("ts", MARCH, MARCH), True),
        ("ts < DATE '2013-03-01'", one("ts", MARCH, MARCH), True),  # cut below, by convention
        ("ts < DATE '2013-02-28'", one("ts", MARCH, MARCH), False),
        ("ts = '2013-04-01'", one("ts", MARCH, MARCH), False),
        ("f64 > 100", one("f64", 0.0, 1.0), True),  # NaN is greater, and not counted
        ("f64 = 100", one("f64", 0.0, 1.0), False),
        ("f64 < 0", one("f64", 0.0, 1.0), False),
        ("f64 < 0", one("f64", float("nan"), 1.0), True),
        ("NOT (f64 < 100)", one("f64", 0.0, 1.0), True),
        ("f64 = -0.0D", one("f64", 0.0, 1.0), True),
        ("f32 = 1.100000023841858D", one("f32", 1.1, 1.1), True),  # written as 1.1
        ("i32 = 1", one("i32", "1", b"4"), True),  # odd statistics
        ("i32 = 9", one("i32", True, 4.0), True),
        ("i32 = 9", FileRange(), True),
        ("i32 = 9", FileRange({}, 0), False),
        ("st.x = 9", FileRange({"st": ColumnRange({"x": 1}, {"x": 4})}, 10), True),  # a field
        ("st.x IS NULL", FileRange({"x": ColumnRange(1, 4, 0)}, 10), True),
        ("rand() < 0.5", FileRange(), True),
    ],
)  # fmt: skip
def test_files_that_statistics_rule_out(text: str, file: FileRange, expected: bool) -> None:
    assert match(text, file) is expected


@pytest.mark.parametrize("bounds", [("\ud83d", "b"), ("a", "\ud83d")])
def test_half_a_surrogate_pair_bounds_nothing(bounds: tuple[str, str]) -> None:
    """Of a writer that cut a text by UTF-16; JSON allows it."""
    file = FileRange({"s": ColumnRange(*bounds, 0)}, 10)
    assert match("s = 'a'", file)
    keys = Keys("s", STRING, (b"a",), complete=True)
    assert keys.may_occur(known([file], SCHEMA_JSON, {"s": STRING})).all()


def test_partition_values_are_exact() -> None:
    file = FileRange({"s": ColumnRange("a", "b", 0)}, 10, {"i32": "3", "u": None})
    assert match("i32 = 3", file)
    assert not match("i32 != 3", file)
    assert not match("u IS NOT NULL", file)
    assert not match("u = 'x'", file)
    assert not match("s = 'x'", file)
    long = FileRange({}, 10, {"s": "z" * 40})
    assert not match("s > 'zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz'", long)


def test_a_list_of_any_length_is_decided() -> None:
    file = one("i32", 1, 4, nulls=3)
    numbers = range(5, 1_000)
    listed = ", ".join(map(str, numbers))
    assert not match(f"i32 IN ({listed})", file)
    assert match(f"i32 IN ({listed}, 3)", file)
    assert match(f"i32 NOT IN ({listed})", file)
    assert not match(f"i32 NOT IN ({listed}, NULL)", file)
    either = " OR ".join(f"i32 = {number}" for number in numbers[:600])
    assert not match(either, file)
    assert match(f"NOT ({either})", file)
    assert match(f"{either} OR i32 = 3", file)
    assert not match(" AND ".join(f"i32 != {n % 4}" for n in range(600)), one("i32", 3, 3))


def file_of(chosen: list[int]) -> FileRange:
    """Statistics as a hostile but valid writer makes them, of some of the rows."""
    data = rows()
    columns: dict[str, ColumnRange] = {}
    for name in SIMPLE:
        values = [data[n][POSITIONS[name]] for n in chosen]
        present = [v for v in values if v is not None and v == v]
        low: Any = min(present, default=None)
        high: Any = max(present, default=None)
        if name in ("ts", "ntz") and low is not None:
            low, high = (v.replace(microsecond=v.microsecond // 1000 * 1000) for v in (low, high))
        if name == "f32" and low is not None:
            low, high = float(f"{low:.7g}"), float(f"{high:.7g}")
        columns[name] = ColumnRange(low, high, values.count(None))
    return FileRange(columns, len(chosen))


@pytest.fixture(scope="module")
def frame(oracle_spark: SparkSession) -> DataFrame:
    return nasty(oracle_spark)


PRUNABLE = [
    f"{column} {op} {value}"
    for column, values in {
        "i32": ["0", "-7", "7L", "2147483647", "1.5", "0e0", "'7'", "NULL"],
        "i64": ["42", "9223372036854775807", "0.0"],
        "f64": ["0", "-0.0D", "1.1", "1.1D", "1e308", "CAST('NaN' AS DOUBLE)", "2.5F"],
        "f32": ["1.1F", "1.1D", "1.100000023841858D", "0", "1.5"],
        "dec": ["1.50", "0", "99999999.99", "100000000000", "1.5D"],
        "wide": ["1.5", "0", "12345678901234567890.5"],
        "s": ["'abc'", "''", "'Z'", "'ß'", "'\\U0001F600'"],
        "d": ["DATE '2013-03-31'", "'2016-02-29'", "TIMESTAMP '2013-03-31 00:00:00'"],
        "ts": ["TIMESTAMP '1960-01-01 00:00:00.000001'", "'2013-03-31'", "DATE '2013-03-31'",
               "TIMESTAMP '2013-10-27 00:59:59.999999'"],
        "ntz": ["TIMESTAMP_NTZ '2024-02-29 12:00:00.000005'", "TIMESTAMP '2013-03-31 02:30:00'"],
        "b": ["TRUE", "FALSE"],
    }.items()
    for value in values
    for op in ("=", "!=", "<", "<=", ">", ">=", "<=>")
]  # fmt: skip


def matching_rows(frame: DataFrame, texts_: list[str]) -> dict[str, list[int]]:
    """Rows on which Spark finds each condition true; without the conditions that raise."""
    try:
        found = frame.selectExpr(*(f"{text} AS c{n}" for n, text in enumerate(texts_))).collect()
    except runtime_errors():
        if len(texts_) == 1:
            return {}
        half = len(texts_) // 2
        return matching_rows(frame, texts_[:half]) | matching_rows(frame, texts_[half:])
    return {text: [n for n, row in enumerate(found) if row[i]] for i, text in enumerate(texts_)}


def skipped_wrongly(frame: DataFrame, texts_: list[str], seed: int) -> list[str]:
    trees = {to_spark_sql(tree): tree for tree in (parse_where(t, SCHEMA) for t in texts_)}
    hits = matching_rows(frame, list(trees))
    chance = random.Random(seed)
    height = len(rows())
    files = [[n] for n in range(height)]
    files += [chance.sample(range(height), chance.randint(2, height)) for _ in range(15)]
    ranges = [file_of(chosen) for chosen in files]
    wrong = []
    for text, found in hits.items():
        where = trees[text]
        bounds = known(ranges, SCHEMA_JSON, dict(columns_of(where)))
        may, must = may_match(where, bounds), must_match(where, bounds)
        for chosen, kept, certain in zip(files, may, must, strict=True):
            here = set(found) & set(chosen)
            if (here and not kept) or (certain and here != set(chosen)):
                wrong.append(f"{text}: rows {sorted(here)} of {sorted(chosen)}, {certain}")
    return wrong


def test_no_matching_row_is_skipped(frame: DataFrame) -> None:
    negated = [f"NOT ({text})" for text in some(PRUNABLE)]
    more = ["s LIKE 'a%'", "s LIKE 'it''s'", "s NOT LIKE 'a%'", "i32 IN (7, NULL)", "ts = ntz",
            "i32 NOT IN (7, 1)", "i32 NOT IN (7, NULL)", "i32 BETWEEN 0 AND 8", "b OR i32 > 3",
            "i32 NOT BETWEEN 0 AND 8", "(i32 > 3) IS NOT TRUE", "(i32 > 3) IS UNKNOWN",
            "NOT b AND i32 IS NULL", "s IN ('abc', '10')", "d IN ('2013-03-31', DATE '2016-02-29')",
            "i32 IN ('7', 1)", "wide IN (1.5, 2e0)", "s = '10' OR f64 > 1"]  # fmt: skip
    assert skipped_wrongly(frame, PRUNABLE + negated + more, seed=1) == []


@pytest.mark.matrix
@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
                           HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
@given(st.lists(texts("bool", 2), min_size=10, max_size=40, unique=True), st.integers(0, 99))
def test_no_matching_row_is_skipped_by_random_conditions(
    frame: DataFrame, chosen: list[str], seed: int
) -> None:
    accepted = []
    for text in chosen:
        try:
            parse_where(text, SCHEMA)
        except InvalidStatement:
            continue
        accepted.append(text)
    if accepted:
        assert skipped_wrongly(frame, accepted, seed) == []
