"""Texts that must never reach Spark: code execution, file access, tricks of reading.

Every string here is refused with an InvalidStatement; none is accepted, none crashes the
parser. Where a text would be fine but for one thing, that one thing is the attack.
"""

# ruff: noqa: E501  -- the corpus is easier to read in wide rows.

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.some import few
from support.statements.rows import SCHEMA
from tandem.errors import InvalidStatement
from tandem.statements import parse_expression, parse_statement, parse_where, to_spark_sql
from tandem.statements.parsing.functions import ALIASES, FUNCTIONS
from tandem.statements.tree import Literal

CODE = [
    "reflect('java.lang.System','getProperty','java.version') = '17'",
    "java_method('java.lang.Runtime','getRuntime') IS NULL",
    "try_reflect('java.lang.System','getenv','AWS_SECRET_ACCESS_KEY') = s",
    "REFLECT('java.lang.System', 'exit', 1) IS NULL",
    "rEfLeCt('a', 'b') = s", "`reflect`('a','b') = s", "reflect ('a','b') = s",
    "system.builtin.reflect('a','b') = s", "builtin.reflect('a', 'b') = s",
    "spark_catalog.default.f(s) = s", "my_udf(s) = s", "default.my_udf(s)", "python_udf(1) > 0",
    "s = java_method('java.lang.System', 'getenv', 'HOME')",
    "b AND reflect('java.lang.Thread','sleep','1') IS NULL",
    "CASE WHEN b THEN reflect('a','b') ELSE s END = s", "coalesce(reflect('a','b'), s) = s",
    "upper(java_method('a','b')) = s", "i32 IN (1, reflect('a','b'))",
    "s LIKE reflect('a','b')", "CAST(reflect('a','b') AS INT) = 1",
    "assert_true(b)", "raise_error('x')", "call_udf('f')", "call_function('reflect', 'a', 'b')",
    "ai_query('m', s)", "http_get('http://x')", "xpath(s, 'a')", "xpath_string(s, '//a')",
    "from_xml(s, 'a INT') IS NULL", "from_json(s, 'a INT') IS NULL", "from_csv(s, 'a INT') IS NULL",
    "schema_of_json(s) = s", "parse_url(s, 'HOST') = s", "aes_decrypt(bin, bin) IS NULL",
    "secret('scope', 'key') = s", "try_secret('scope', 'key') = s", "sleep(1)", "sentences(s) IS NULL",
]  # fmt: skip

FILES = [
    "i32 = (SELECT 1)", "i32 IN (SELECT i32 FROM t)", "EXISTS (SELECT 1)", "EXISTS(SELECT * FROM t)",
    "NOT EXISTS (SELECT 1 FROM text.`/etc/passwd`)", "s IN (SELECT value FROM text.`/etc/passwd`)",
    "(SELECT count(*) FROM parquet.`s3://bucket/secret`) > 0", "s = (SELECT * FROM csv.`/etc/shadow`)",
    "(select first(value) from text.`file:///proc/self/environ`) = s",
    "i32 = (FROM t)", "i32 = (TABLE t)", "i32 = (VALUES (1))", "i32 IN (VALUES (1))",
    "(WITH x AS (SELECT 1) SELECT * FROM x) = 1", "i32 = ANY (SELECT 1)", "i32 > ALL (SELECT 1)",
    "i32 = SOME (1, 2)", "text.`/etc/passwd`", "text.`/etc/passwd`.value = s", "`text`.`/etc/passwd` = s",
    "parquet.`s3://b/k`.x = 1", "read_files('/etc/passwd')", "read_files('s3://b') IS NULL",
    "s = input_file_name()", "input_file_block_start() = 0", "_metadata.file_path = s",
    "_metadata = s", "s IN (TABLE t)", "i32 = (SELECT max(i32) FROM t) + 1", "array(SELECT 1) IS NULL",
    "(SELECT 1", "SELECT 1", "FROM t", "delta.`/tmp/x`.y = 1", "binaryFile.`/etc/passwd`.content = bin",
    "lateral (select 1)", "explode(arr) = 1", "stack(1, 2) = 1", "inline(arr) = 1", "sql_keywords() = 1",
    "range(10) = 1", "table_changes('t', 1) IS NULL", "json_tuple(s, 'a') = s",
]  # fmt: skip

TRICKS = [
    "b -- comment", "b --", "--b", "b /* c */", "/* */ b", "/*+ BROADCAST(t) */ b", "b /* unclosed",
    "b AND b2 --'", "i32--1 = 2", "b;", "b; DROP TABLE t", ";", "b;b", "b; --", "b OR 1=1; DELETE FROM t",
    "#b", "b # c", "b // c", "\\b", "b \\", "b\x00", "\x00", "b \ufeff", "\ufeffb", "b\u00a0AND b2",
    "b\u2028AND b2", "b \u200b", "s = \u2018x\u2019", "s = \u201cx\u201d", "s = \u02bcx\u02bc", "s = '\u2019x",
    "s = ´x´", "b \uff21\uff2e\uff24 b2", "i32 \uff1d 1", "i32 = \u0661", "i32 = \uff11", "ѕ = 'x'",
    "b ＯＲ b2", "b \u202eAND b2", "i32 \u2212 1 = 0", "`\u202eb`", "b\u037e b2", "b\u0085AND b2", "b\x0bAND b2",
    "b\x0cAND b2", "i32 = 1\u00b2", "i32 = \u2155", "s = 'x", "s = \"x", "s = 'x\\'", "`b", "`", "'", '"', "``",
    "s = 'a' 'b'", "s = 'a'\"b\"", "s = N'x'", "s = U&'x'", "s = E'x'", "s = b'x'", "s = $$x$$", "s = q'[x]'",
    "X'0'", "X'0G' = bin", "X\"00\" = bin", "0x1F = i32", "0b1 = i32", "1_000 = i32", "1e = 1", "1e400 > 0",
    "1.5L > 0", "300Y > 0", "40000S > 0", "1e39F > 0", "1.5e3BD > 0", "1abc = 1", "1.2.3 = 1", "1..2 = 1",
    "123456789012345678901234567890123456789 > 0", "9223372036854775808L > 0", "'\\ud800' = s", "'\ud800' = s",
    "'\\U00110000' = s", "i32 = 1 b", "b b2", "b AND", "AND b", "b AND AND b2", "NOT", "()", "(b", "b)", "b,b2", "",
    " ", "\n", "(b, b2)", "(i32, j32) = (1, 2)", "(i32, j32) IN ((1, 2))", "struct(1) = st", "*", "t.*", "count(*) > 1",
    "b AS x", "b x", "i32 i64 = 1", "s COLLATE UTF8_LCASE = 'a'", "i32::string = s", "i32 := 1", "i32 ** 2 = 1",
    "i32 ^ 1 = 1", "i32 & 1 = 1", "i32 | 1 = 1", "~i32 = 1", "i32 << 1 = 2", "i32 >> 1 = 2", "i32 >>> 1 = 2",
    "i32 !> 1", "i32 !< 1", "i32 <=>> 1", "i32 =! 1", "arr[0] = 1", "arr.x = 1", "st['x'] = 1", "st.* = 1", "st.nope = 1",
    "t.b", "spark_catalog.default.t.b", "st. x.", ".b", "b.", "`a.b`", "b IS", "b IS NOT", "b IS b2", "b IS NULL IS NULL",
    "b = NOT b2", "i32 IN ()", "i32 IN 1", "i32 IN (1,)", "i32 BETWEEN 1", "i32 BETWEEN 1 OR 2", "s LIKE", "s LIKE u",
    "s LIKE ANY ('a', 'b')", "s LIKE ALL ('a')", "s NOT", "s LIKE 'a' || 'b'", "s RLIKE u", "s SIMILAR TO 'a'",
    "CASE END", "CASE WHEN b END", "CASE b WHEN", "CASE WHEN b THEN 1", "CASE i32 WHEN 'a' THEN 1 ELSE b END",
    "CAST(i32 AS)", "CAST(i32, INT)", "CAST(i32 AS ARRAY<INT>)", "CAST(i32 AS MAP<INT,INT>)", "CAST(i32 AS STRUCT<a: INT>)",
    "CAST(i32 AS VARIANT)", "CAST(i32 AS INTERVAL DAY)", "CAST(i32 AS DECIMAL(39,1))", "CAST(i32 AS DECIMAL(5,6))",
    "CAST(i32 AS CHAR(3))", "CAST(s AS STRING COLLATE X)", "CAST(i32 AS my.type)", "CAST(b AS INT) OVER ()",
]  # fmt: skip

PLACEHOLDERS = [
    "s = ${x}", "s = '${env:HOME}'", "s = '${system:java.version}'", "s = \"${hiveconf:x}\"", "`${x}` = 1",
    "s = :p", "s = ?", "s = {{x}}", "s = {x}", "s = {% x %}", "s = @p", "s = @@p", "s = $1", "s = %(p)s", "s = %s",
    "s = &p", "s = #{x}", "s = <%= x %>", "IDENTIFIER('s') = 'x'", "IDENTIFIER(:p)", "s = DEFAULT(1)", "s = :1",
]  # fmt: skip

FUNCTION_KINDS = [
    "sum(i32) > 1", "count(1) > 1", "max(i32) = 1", "collect_list(i32) IS NULL", "row_number() OVER () = 1",
    "rank() OVER (ORDER BY i32) = 1", "lag(i32) OVER (ORDER BY i32) = 1", "first(s) = 'x'", "upper(s) OVER ()",
    "transform(arr, x -> x + 1) IS NULL", "filter(arr, x -> x > 0) IS NULL", "exists(arr, x -> x > 0)",
    "aggregate(arr, 0, (a, x) -> a + x) = 1", "grouping(i32) = 1", "window(ts, '1 day') IS NULL",
    "session_window(ts, '1 day') IS NULL", "monotonically_increasing_id() = 1", "spark_partition_id() = 0",
    "current_user() = s", "current_user = s", "user = s", "session_user = s", "current_catalog() = s",
    "current_database() = s", "version() = s", "current_timezone() = s", "typeof(i32) = s", "hash(i32) = 1",
    "regexp_replace(s, '(a+)+$', '') = s", "regexp_extract(s, 'a', 0) = s", "regexp_like(s, 'a')", "split(s, 'a') IS NULL",
    "rlike(s, '(a+)+$')", "like(s, 'a')", "repeat(s, 2000000000) = s", "space(2000000000) = s", "lpad(s, 2000000000, 'x') = s",
    "sequence(1, 1000000000) IS NULL", "array_repeat(1, 100) IS NULL", "array(1) IS NULL", "map(1, 2) IS NULL",
    "named_struct('a', 1) = st", "format_string('%s', s) = s", "printf('%s', s) = s", "translate(s, 'a', 'b') = s",
    "encode(s, 'x') IS NULL", "try_add(1, 2) = 3", "extract(year FROM d) = 1", "substring(s FROM 1 FOR 2) = s",
    "trim(BOTH 'x' FROM s) = s", "position('a' IN s) = 1", "timestampadd(DAY, 1, ts) = ts", "overlay(s PLACING 'x' FROM 1) = s",
    "upper(DISTINCT s) = s", "upper(s => 'x') = s", "upper(str => s) = s", "upper() = s", "upper(s, s) = s", "upper = s",
    "date_trunc(s, ts) = ts", "trunc(d, s) = d", "to_date(s, u) = d", "to_date(s, 'yyyy''x') = d", "round(f64, j32) = 1",
    "date_trunc('century', ts) = ts", "to_timestamp(s, 'EEEE') = ts", "date_format(ts, repeat('y', 9)) = s",
    "rand(1) > 0", "uuid() = 1 + 1 +", "md5(bin) = s", "st = st", "arr = arr", "arr IN (arr)", "b + 1 = 2", "NOT i32",
    "i32 AND b", "i32", "s", "1", "d", "b = 1", "d = 1", "ts = i32", "bin = i32", "b > d", "- s = s", "-b", "i32 LIKE 'a'",
    "d + d = d", "d * 2 = d", "ts + 1 = ts", "INTERVAL 1 DAY = INTERVAL 1 DAY", "INTERVAL 1 DAY", "d + INTERVAL 1.5 DAY = d",
    "d + INTERVAL '1-1' YEAR TO MONTH = d", "d + INTERVAL '1 day 2 hours' = d", "d + INTERVAL i32 DAY = d",
    "d + INTERVAL 99999999999 DAY = d", "DATE 'yesterday' = d", "DATE 'epoch' = d", "DATE '2013-02-30' = d", "DATE s = d",
    "TIMESTAMP '2013-01-01 25:00:00' = ts", "TIMESTAMP 'now' = ts", "TIMESTAMP '2013-01-01 00:00:00 Europe/Berlin' = ts",
    "ts > TIMESTAMP '2013-03-31Z'", "ts > TIMESTAMP '2013-03-31 +01:00'", "ts > TIMESTAMP '2013-03-31 01:00Z'",
    "ts > TIMESTAMP '2013-03-31 01:00 UTC'", "DATE '２０１３-03-31' = d", "TIMESTAMP '2013-03-31 ٠1:00:00' = ts",
    "TIMESTAMP '2013-03-31 01:00:00+1٣:00' = ts", "i32 = 1٣", "i32 = .٣", "s RLIKE 'a{٣}'",
    "TIMESTAMP_NTZ '2013-01-01 00:00:00Z' = ntz", "TIME '10:00' = s", "foo '1' = s", "s ESCAPE '\\\\'", "s LIKE 'a' ESCAPE 'ab'",
]  # fmt: skip

DEEP = [
    "(" * 10_000 + "b" + ")" * 10_000, "(" * 61 + "b" + ")" * 61, "NOT " * 500 + "b", "!" * 5000 + "b",
    "- " * 3000 + "1 = 1", "upper(" * 300 + "s" + ")" * 300 + " = s", "CASE WHEN b THEN " * 200 + "1" + " END" * 200,
    "i32" + " + 1" * 150 + " = 1", "s" + " || 'x'" * 200 + " = s", "i32 IN (" + "1," * 1000 + "1)", "b" + " OR b" * 3000,
    "s = '" + "x" * 5000 + "'", "s" * 300 + " = 1", "`" + "s" * 300 + "` = 1", "b AND " * 4000 + "b", "[" * 9999, "st" + ".x" * 5000,
    "i32 IN (" * 100 + "1" + ")" * 100, "concat(" + "s," * 200 + "s) = s", "b = " * 2000 + "b", "CAST(" * 400 + "1",
    "b " * 9000,
]  # fmt: skip

PATTERNS = [
    "s RLIKE '" + "a?" * 30 + "a" * 30 + "'", "s RLIKE '" + "(a|a|a|a)" * 9 + "b'", "s RLIKE '" + "a{0,99}" * 9 + "b'",
    "to_date(s, '" + "M" * 39 + "!') = d", "to_date(s, '" + "S" * 39 + "x') = d", "to_date(s, 'yyyy-yyyy') = d",
    "s RLIKE '(a+)+$'", "s RLIKE '(a*)*b'", "s RLIKE '(a|aa)+$'", "s RLIKE '(.*a){20}'", "s RLIKE '(a|a)*'", "s RLIKE 'a**'",
    "s RLIKE '([a-z]+)*$'", "s RLIKE '(?=a)b'", "s RLIKE '(?!a)b'", "s RLIKE '(?<=a)b'", "s RLIKE '(?i)a'", "s RLIKE r'(a)\\1'",
    "s RLIKE 'a{1,100000}'", "s RLIKE 'a{2,1}'", "s RLIKE '.*.*.*.*.*x'", "s RLIKE '(a'", "s RLIKE 'a)'", "s RLIKE '[a'", "s RLIKE '*a'",
    "s RLIKE '[z-a]'", "s RLIKE r'\\p{L}'", "s RLIKE '(?<n>a)'", "s RLIKE 'a++'", "s RLIKE '[a&&b]'", "s RLIKE r'\\Qa'", "s RLIKE '\\\\'",
    "s LIKE '%a%a%a%a%a%a%'", "s LIKE 'a\\\\b'", "s LIKE 'a\\\\'", "s LIKE '" + "x" * 300 + "'", "s RLIKE '" + "(a)" * 11 + "'",
    "s RLIKE ''''(", "s LIKE '%%%%%%%%%%%%x'", "s ILIKE '%%%%%%%'", "s LIKE 'x' ESCAPE ''", "s LIKE 'x' ESCAPE '%'",
]  # fmt: skip

ATTACKS = [*CODE, *FILES, *TRICKS, *PLACEHOLDERS, *FUNCTION_KINDS, *DEEP, *PATTERNS]


def test_the_corpus_is_large() -> None:
    assert len(set(ATTACKS)) >= 200


@pytest.mark.part(3)
@pytest.mark.timeout(30)
@pytest.mark.parametrize("text", ATTACKS, ids=lambda text: ascii(text)[:50])
def test_attack_is_refused(text: str) -> None:
    with pytest.raises(InvalidStatement) as caught:
        parse_where(text, SCHEMA, resource="TableUpdate/t", field="spec.update.where")
    error = caught.value
    assert error.resource == "TableUpdate/t"
    assert error.field == "spec.update.where"
    assert error.position is not None
    line, column = error.position
    assert f"line {line}, column {column}" in str(error)
    assert error.snippet.splitlines()[-1].strip() == "^"


def test_attacks_are_refused_in_set_too() -> None:
    # A condition is no string, so even those that only lack a type stay out.
    for text in (*CODE, *FILES, *PLACEHOLDERS, *DEEP):
        with pytest.raises(InvalidStatement):
            parse_statement("b", {"st": text}, SCHEMA)
        with pytest.raises(InvalidStatement):
            parse_expression(text, SCHEMA, resource="", field="set")


def test_no_function_of_the_table_runs_code_or_reads_the_session() -> None:
    forbidden = {"reflect", "java_method", "try_reflect", "input_file_name", "current_user", "user",
                 "version", "read_files", "raise_error", "assert_true", "repeat", "regexp_replace",
                 "hash", "monotonically_increasing_id", "spark_partition_id"}  # fmt: skip
    assert not forbidden & {*FUNCTIONS, *ALIASES}
    assert all(target in FUNCTIONS for target in ALIASES.values())


WORDS = st.sampled_from(
    [
        "b", "i32", "s", "d", "ts", "st.x", "1", "1.5", "-", "+", "*", "/", "(", ")", ",", ".", "=", "<", "<=>",
        "!=", "!", "NOT", "AND", "OR", "IN", "IS", "NULL", "LIKE", "RLIKE", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE",
        "END", "CAST", "AS", "INT", "INTERVAL", "DAY", "DATE", "'2013-01-01'", "'a%'", "upper", "coalesce", "reflect",
        "SELECT", "FROM", "`s`", "'it''s'", "''", '"x"', "r'\\'", "X'00'", "||", "DIV", "%", "TRUE", "DISTINCT", ";", "--",
        "/*", "${", ":p", "?", "\\", "\n", "'", "`", "\u2019", "ESCAPE", "1L", "1e3", "OVER", "EXISTS", "*", "[", "->",
    ]
)  # fmt: skip


@settings(max_examples=few(188, 1_500), deadline=None, derandomize=True)
@given(st.lists(WORDS, max_size=14).map(" ".join) | st.lists(WORDS, max_size=10).map("".join))
def test_any_sequence_of_tokens_is_refused_or_canonicalized(text: str) -> None:
    _refused_or_clean(text)


@settings(max_examples=few(188, 1_500), deadline=None, derandomize=True)
@given(st.text(max_size=40) | st.text(string.printable, max_size=40))
def test_any_text_is_refused_or_canonicalized(text: str) -> None:
    _refused_or_clean(text)


@settings(max_examples=few(63, 500), deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_any_string_survives_as_a_literal(value: str) -> None:
    if "${" in value:
        return
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
        with pytest.raises(InvalidStatement, match="half a character"):
            parse_expression(quoted, SCHEMA, resource="", field="")
        return
    tree = parse_expression(quoted, SCHEMA, resource="", field="")
    assert isinstance(tree, Literal)
    assert tree.value == value
    canonical = to_spark_sql(tree)
    assert all(char.isprintable() for char in canonical)
    assert "${" not in canonical
    assert parse_expression(canonical, SCHEMA, resource="", field="") == tree


def _refused_or_clean(text: str) -> None:
    try:
        tree = parse_expression(text, SCHEMA, resource="", field="")
    except InvalidStatement:
        return
    canonical = to_spark_sql(tree)
    assert parse_expression(canonical, SCHEMA, resource="", field="") == tree
    for word in ("select", "reflect", "--", "/*", ";", "${"):
        assert word not in canonical.lower()
