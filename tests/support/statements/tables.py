"""Arrow tables that are hard on expressions, and many expressions, for the differential tests.

`extreme` has the ends of every type and whatever compares in unusual ways; on it most
arithmetic raises. `tame` has values with which arithmetic comes to a result.
"""

# ruff: noqa: E501  -- the pools are easier to read in wide rows.

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from support.lake.arrow_schema import to_arrow
from support.statements.rows import SCHEMA_JSON
from support.statements.texts import ANY_KIND, CHOICES, LEAVES, TEMPLATES
from tandem.delta.schema import parse

NAN, INF = float("nan"), float("inf")
ARROW = to_arrow(parse(SCHEMA_JSON))
_FLOATS = [NAN, -NAN, -0.0, 0.0, INF, -INF, 1.1, -1.1, 1.0, 7.0]
_TEXTS = ["", " ", "a", "A", "abc", "ABC", "it's", 'a"b', "back\\slash", "Zürich", "ß", "é", "e\u0301", "😀",
          "\uffff", "\U00010000", "a%b_c", "%", "_", " pad ", "10", "1.5", "2013-01-01", "true", "\n", "a\nb", "\0x",
          "x" * 300, "axxb", "it'ss", "i1's"]  # fmt: skip
_EXTREME: Mapping[str, Sequence[Any]] = {
    "bool": [True, False],
    "int8": [-128, 127, 0, 1, -1, 7],
    "int16": [-(2**15), 2**15 - 1, 0, 1, -1, 7],
    "int32": [-(2**31), 2**31 - 1, 0, 1, -1, 7, 3, 16777217],
    "int64": [-(2**63), 2**63 - 1, 0, 1, -1, 7, 2**53 + 1, -(2**53) - 1, 2**31],
    "float": [*_FLOATS, 3.4028234663852886e38, 1.401298464324817e-45, 16777216.0],
    "double": [*_FLOATS, 1.7976931348623157e308, 5e-324, 1e308, 9007199254740992.0,
               1.100000023841858, 9.223372036854775807e18],
    "decimal128(10, 2)": [Decimal(t) for t in
                          ("99999999.99", "-99999999.99", "0.00", "0.01", "-0.01", "1.50", "7.00")],
    "decimal128(38, 18)": [Decimal(t) for t in
                           ("99999999999999999999.999999999999999999", "1.5", "0", "7",
                            "-99999999999999999999.999999999999999999", "0.000000000000000001")],
    "string": _TEXTS,
    "binary": [b"", b"\0", b"\x00\xff", b"abc", b"\x7f", b"\x80", b"\xff"],
    "date32[day]": [-(2**31), 2**31 - 1, 0, -1, -719162, 2932896, -719163, -141427, 16860, 15796],
    "timestamp[us, tz=UTC]": [-(2**63), 2**63 - 1, 0, -1, 1, 1364691600000000, 86400000000, -1],
    "timestamp[us]": [-(2**63), 2**63 - 1, 0, -1, 1, 1364697000000000, 86400000000, -86400000000],
}  # fmt: skip
_TAME: Mapping[str, Sequence[Any]] = {
    "bool": [True, False],
    "int8": [-3, -1, 1, 2, 7],
    "int16": [-7, -1, 1, 2, 5],
    "int32": [-100, -7, -1, 1, 2, 3, 7, 1000],
    "int64": [-(10**6), -7, -1, 1, 2, 7, 10**6],
    "float": [NAN, INF, -INF, 1.1, -2.5, 7.0, 1e-3, 16777217.0],
    "double": [NAN, INF, -INF, 1.1, -2.5, 7.0, 1e-300, 0.1, 0.2, 0.30000000000000004, 1e15],
    "decimal128(10, 2)": [Decimal(t) for t in ("1.50", "-1.50", "0.01", "7.00", "100.00")],
    "decimal128(38, 18)": [Decimal(t) for t in ("1.5", "-0.25", "7", "0.000000000000000001")],
    "string": [*_TEXTS, "7", "-3", "2013-03-31"],
    "binary": [b"", b"\x00\xff", b"abc"],
    "date32[day]": [0, -1, 15796, 16860, 11016, 15795],
    "timestamp[us, tz=UTC]": [0, -1, 1364691600000000, 1382837400000000, 86400000000],
    "timestamp[us]": [0, -1, 1364697000000000, 1382837400500000, 86400000000],
}  # fmt: skip


def extreme(rows: int = 80, seed: int = 1) -> pa.Table:
    return _table(_EXTREME, rows, seed)


def tame(rows: int = 60, seed: int = 2) -> pa.Table:
    return _table(_TAME, rows, seed)


def _table(pools: Mapping[str, Sequence[Any]], rows: int, seed: int) -> pa.Table:
    chance = random.Random(seed)
    return pa.table([_column(field.type, pools, rows, chance) for field in ARROW], schema=ARROW)


def _column(
    kind: Any, pools: Mapping[str, Sequence[Any]], rows: int, chance: random.Random
) -> pa.Array:
    """Every value of the pool, a NULL, and more of them by chance, in any order."""
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        inner = [_column(field.type, pools, rows, chance) for field in fields]
        mask = pa.array([chance.random() < 0.2 for _ in range(rows)])
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if pa.types.is_list(kind):
        return pa.array([chance.choice([None, [], [1, 2]]) for _ in range(rows)], kind)
    pool = pools[str(kind)]
    more = range(rows - len(pool) - 1)
    values = [*pool, None, *(chance.choice([*pool, None]) for _ in more)][:rows]
    chance.shuffle(values)
    storage = pa.int32() if pa.types.is_date(kind) else pa.int64()
    if pa.types.is_temporal(kind):
        return pa.array(values, storage).cast(kind)
    return pa.array(values, kind)


def comparable(array: Any) -> list[str]:
    """Values as texts that differ where the values do: NaN is one, -0.0 and 0.0 are two."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64())
    return [repr(value) for value in array.to_pylist()]


_PLACE = re.compile(r"\{(\w+)\}")
_MORE: Mapping[str, Sequence[str]] = {
    "bool": ["{same} <=> {same}", "startswith({string}, 'a')", "endswith({string}, 'c')", "contains({string}, 'b')",
             "{number} {no}IN (1, 1.5, {number})", "{string} {no}IN ('abc', '', 'ß', NULL)", "isnan(f64)", "isnan(f32)",
             "{date} {cmp} {date}", "{time} {cmp} {time}", "{number} {cmp} {number}", "bin {cmp} X'00FF'",
             "{date} {cmp} '2013-03-31'", "{time} {cmp} '2013-03-31 01:00:00'", "{int} {no}IN (7, 1, -1, NULL)",
             "dec {no}IN (1.5, 7, 0)", "{number} {no}BETWEEN {number} AND {number}", "{bool} {and} {bool}",
             "{date} {no}IN (DATE '2013-03-31', {date})", "{bool} {cmp} {bool}", "{string} {no}LIKE {pattern}",
             "CAST({int} AS BOOLEAN)"],
    "int": ["{same} {sum} {same}", "{same} % 7", "{same} DIV 3", "{same} % {same}", "{same} * 3 + 1", "length({string})",
            "CAST({int} AS BIGINT)", "CAST({int} AS SMALLINT)", "CAST({bool} AS INT)", "abs({same})", "-({same})"],
    "number": ["{same} {sum} {same}", "{same} / {same}", "CAST({int} AS DOUBLE)", "CAST({int} AS FLOAT)",
               "dec {sum} {int}", "dec {sum} dec", "f64 {sum} {int}", "f32 {sum} f32", "-({same})", "f64 / {int}",
               "CAST({int} AS DECIMAL(20, 2))", "CAST(dec AS DECIMAL(12, 4))", "CAST(f64 AS FLOAT)"],
    "string": ["{same} || {same}", "concat({same}, '-', {same})", "CAST({int} AS STRING)", "CAST({bool} AS STRING)",
               "concat({int}, {string})", "CAST({date} AS STRING)"],
    "date": ["{date}"],
    "time": ["CAST({date} AS TIMESTAMP)", "CAST({date} AS TIMESTAMP_NTZ)", "CAST(ts AS TIMESTAMP_NTZ)",
             "CAST(ntz AS TIMESTAMP)"],
}  # fmt: skip
"""Beside the templates of `statement_texts`: what is evaluated without Spark."""


def expressions(seed: int) -> Iterator[str]:
    """Endless expressions of every kind."""
    chance = random.Random(seed)
    kinds = ["bool", "bool", "bool", "int", "number", "string", "date", "time"]
    while True:
        yield _text(chance, chance.choice(kinds), chance.choice([1, 2, 2, 3, 4]))


def _text(chance: random.Random, kind: str, depth: int) -> str:
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(LEAVES[kind])
    common = chance.random() < 0.7
    template = chance.choice([*_MORE[kind], *ANY_KIND] if common else TEMPLATES[kind])

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name in CHOICES:
            return _PLACE.sub(fill, chance.choice(CHOICES[name]))
        return f"({_text(chance, kind if name == 'same' else name, depth - 1)})"

    return _PLACE.sub(fill, template)


OF_A_TYPE = {
    "boolean": ["b", "TRUE", "NULL"],
    "integer": ["i8", "i64", "st.x", "0", "-1", "7S", "9223372036854775807"],
    "float": ["f32", "g64", "1.1F", "1e308", "0.0D"],
    "decimal": ["dec", "wide", "1.5", "99999999999999999999", "12345678901234567890.5"],
    "string": ["s", "st.y.z", "''", "'10'", "'2013-03-31'"],
    "binary": ["bin", "X'00FF'"],
    "date": ["d", "DATE '2013-03-31'"],
    "time": ["ts", "ntz", "TIMESTAMP '2013-03-31 01:00:00'", "TIMESTAMP_NTZ '1969-12-31 23:59:59.999999'"],
}  # fmt: skip
"""Operands by kind: columns, and constants of the kind and at its ends."""
NUMBERS = [*OF_A_TYPE["integer"], *OF_A_TYPE["float"], *OF_A_TYPE["decimal"]]
MOMENTS = [*OF_A_TYPE["date"], *OF_A_TYPE["time"], "'2013-03-31'", "'2013-03-31 01:00:00'"]
TARGETS = ["boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "date",
           "timestamp", "timestamp_ntz", "decimal(7, 3)", "decimal(38, 0)", "decimal(38, 30)", "decimal(3, 0)"]  # fmt: skip
PATTERNS = ["'a%'", "'%b'", "'%b%'", "'a_c'", "'_'", "'__'", "'%'", "''", "'%%'", "'a%c'", "'a\\\\%b\\\\_c'", "'%\n%'",
            "'a!%b!_c' ESCAPE '!'", "'_\n_'", "'%😀%'", "'%\\'%'", "'it%s'", "'.*'", "'%\\\\%%'", "'%__%'", "'%\\0%'",
            "'/_%' ESCAPE '/'", "'x_%'", "'e_'", "'[a]%'"]  # fmt: skip
LISTS = {
    "i32": "1, 7, 16777217", "i64": "0, -1, 9007199254740993", "i8": "1000, 7", "dec": "1.5, 7, 0.01, 99999999.99",
    "wide": "1.5, 0.000000000000000001", "s": "'', 'abc', 'ß', '😀', 'x'", "bin": "X'', X'00FF', X'80'", "b": "TRUE",
    "d": "DATE '2013-03-31', DATE '1970-01-01'", "f64": "0.0D, 1.1D", "f32": "1.1F, 7", "st.x": "7, 3",
    "ts": "TIMESTAMP '2013-03-31 01:00:00', TIMESTAMP '1970-01-01'",
    "ntz": "TIMESTAMP_NTZ '2013-03-31 02:30:00', TIMESTAMP_NTZ '1970-01-01'",
}  # fmt: skip


def combinations() -> list[str]:
    """Every operator that is evaluated here, with operands of every type that it takes."""
    kinds = [NUMBERS, MOMENTS, *(OF_A_TYPE[kind] for kind in ("boolean", "string", "binary"))]
    pairs = [pair for kind in kinds for pair in itertools.product(kind, kind) if len(set(pair)) > 1]
    comparisons = itertools.cycle(["=", "!=", "<", "<=", ">", ">=", "<=>"])
    made = [f"{a} {next(comparisons)} {b}" for _ in range(3) for a, b in pairs]
    made += [f"{a} {op} {a}" for kind in kinds for a in kind for op in ("=", "<", "<=", "<=>")]
    numbers = list(itertools.product(NUMBERS, NUMBERS))
    operators = itertools.cycle(["+", "*", "-", "/", "DIV", "%"])
    made += [f"{a} {next(operators)} {b}" for _ in range(2) for a, b in numbers]
    others = itertools.cycle([
        "CASE WHEN b THEN {a} ELSE {b} END", "coalesce({a}, {b})", "nullif({a}, {b})", "{a} IN ({b}, NULL)",
        "{a} NOT IN ({b}, {b})", "{a} BETWEEN {b} AND {a}", "{a} NOT BETWEEN {b} AND {b}", "if(b2, {b}, {a})",
    ])  # fmt: skip
    made += [next(others).format(a=a, b=b) for a, b in pairs]
    operands = [item for items in OF_A_TYPE.values() for item in items]
    made += [f"CAST({a} AS {target})" for a in operands for target in TARGETS]
    tests = ("{} IS NULL", "NOT {}", "-({})", "+({})", "abs({})", "isnan({})", "length({})", "{} IS NOT TRUE",
             "{} IS UNKNOWN", "{} IS NOT FALSE", "{} || 'x'", "concat({}, s)")  # fmt: skip
    made += [test.format(a) for a in operands for test in tests]
    in_ascii = (
        "CASE WHEN s IN ('', ' pad ', 'a', 'A', 'abc', 'ABC', 'it''s', 'a%b_c', 'a\nb') THEN s END"
    )
    texts = [f"{f}({a})" for f in ("upper", "lower", "trim", "ltrim", "rtrim")
             for a in (*OF_A_TYPE["string"], "u", in_ascii, "' x\t '", "'\u00a0 x'")]  # fmt: skip
    parts_of_dates = ("year", "quarter", "month", "day", "dayofyear", "dayofweek", "weekday")
    usual = "CASE WHEN {0} >= DATE '0001-01-01' AND {0} < DATE '9999-12-31' THEN {0} END"
    moments = [
        *OF_A_TYPE["date"],
        *OF_A_TYPE["time"],
        *(usual.format(a) for a in ("d", "ts", "ntz")),
    ]
    made += texts + [f"{f}({a})" for f in parts_of_dates for a in moments]
    made += ["arr IS NULL", "st IS NOT NULL", "st.y IS NULL"]
    made += [f"{a} {no}LIKE {p}" for p in PATTERNS for a, no in (("s", ""), ("u", "NOT "))]
    parts = ("''", "'a'", "'😀'", "'%'", "'\\0'", "'bc'", "NULL")
    made += [f"{f}(s, {p})" for f in ("startswith", "endswith", "contains") for p in parts]
    for column, items in LISTS.items():
        made += [
            f"{column} {no}IN ({items}{null})" for no in ("", "NOT ") for null in ("", ", NULL")
        ]
        # Spark looks up more than ten constants in a set.
        made.append(f"{column} IN ({', '.join([items] * 6)})")
        different = ", ".join(
            f"CAST({n} AS STRING)" if column == "s" else str(n) for n in range(12)
        )
        made.append(f"{column} IN ({different})")
    return list(dict.fromkeys(made))
