"""Statements as operations carry them: SET, canonical text, determinism, helpful errors."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from support.statements.rows import SCHEMA, SCHEMA_JSON
from tandem.errors import InvalidStatement
from tandem.statements import Statement, parse_statement, parse_where, to_spark_sql


def update(values: dict[str, str], where: str | None = None) -> Statement:
    return parse_statement(where, values, SCHEMA, resource="TableUpdate/t", field="spec.update")


def refusal(values: dict[str, str], where: str | None = None) -> InvalidStatement:
    with pytest.raises(InvalidStatement) as caught:
        update(values, where)
    return caught.value


def test_the_main_example() -> None:
    statement = update({"f64": "f64 + 15"}, "s = 'UA' AND i32 = 3")
    assert statement.kind == "Update"
    assert statement.where_sql == "((`s` = 'UA') AND (`i32` = 3))"
    assert statement.set_sql == {"f64": "(`f64` + 15)"}
    assert statement.canonical == (
        "UPDATE SET `f64` = (`f64` + 15) WHERE ((`s` = 'UA') AND (`i32` = 3))"
    )
    assert statement.deterministic
    assert statement.columns == {"f64", "s", "i32"}
    assert json.loads(json.dumps(statement.to_json()))["deterministic"] is True


def test_a_key_of_set_that_may_be_a_column_or_a_field_stands_in_backquotes() -> None:
    field = {"name": "b", "type": "long", "nullable": True, "metadata": {}}
    struct = {"type": "struct", "fields": [field]}
    columns = [field | {"name": "a.b"}, field | {"name": "a", "type": struct}]
    schema = json.dumps({"type": "struct", "fields": columns})
    with pytest.raises(InvalidStatement, match="or a field inside a struct") as caught:
        parse_statement(None, {"a.b": "1"}, schema)
    assert caught.value.expected == "`a.b` for the column"
    assert parse_statement("`a.b` = a.b", {"`a.b`": "1"}, schema).canonical == (
        "UPDATE SET `a.b` = CAST(1 AS BIGINT) WHERE (`a.b` = `a`.`b`)"
    )


@pytest.mark.parametrize("name", ["`a`", "a.b", "`", "`a.b`", "x``y", "l" * 300])
def test_the_recorded_set_clause_names_columns_exactly(name: str) -> None:
    field = {"name": "b", "type": "long", "nullable": True, "metadata": {}}
    struct = {"type": "struct", "fields": [field]}
    columns = [field | {"name": n} for n in ("c", "x`y", name)] + [
        {**field, "name": "a", "type": struct}
    ]
    schema = json.dumps({"type": "struct", "fields": columns})
    quoted = "`" + name.replace("`", "``") + "`"
    typed = name if len(name) > 9 else quoted
    recorded = parse_statement(None, {typed: "c + 1"}, schema).set_sql
    assert list(recorded) == [name]
    assert parse_statement(None, recorded, schema, exact_names=True).set_sql == recorded


def test_a_delete_has_a_canonical_text() -> None:
    statement = parse_statement("d IS NULL", None, SCHEMA_JSON)
    assert (statement.kind, statement.canonical) == ("Delete", "DELETE WHERE (`d` IS NULL)")
    everything = parse_statement(None, None, SCHEMA)
    assert (everything.where_sql, everything.columns) == ("TRUE", frozenset())


def test_canonical_parts_parse_to_the_same_statement() -> None:
    statement = update({"s": "s || 'it''s'", "i16": "i16 + 1", "dec": "2"}, "b OR b2")
    assert update(statement.set_sql, statement.where_sql) == statement


@pytest.mark.parametrize(
    ("text", "deterministic"),
    [("rand() < 0.5", False), ("uuid() = s", False), ("d < current_date", False),
     ("ts < now()", False), ("i32 = 1", True), ("year(d) = 2013", True),
     ("CASE WHEN b THEN rand() ELSE 1 END > 0.1", False)],
)  # fmt: skip
def test_whether_a_statement_is_deterministic(text: str, deterministic: bool) -> None:
    assert parse_statement(text, None, SCHEMA).deterministic is deterministic
    assert update({"b": text}).deterministic is deterministic


@pytest.mark.parametrize(
    ("column", "value", "sql"),
    [
        ("i16", "i16 + 1", "CAST((`i16` + 1) AS SMALLINT)"),  # overflow raises in the job
        ("I64", "i32", "CAST(`i32` AS BIGINT)"),
        ("f32", "f32 + 1", "CAST((`f32` + 1) AS FLOAT)"),
        ("f64", "dec", "CAST(`dec` AS DOUBLE)"),
        ("dec", "1", "CAST(1 AS DECIMAL(10, 2))"),
        ("dec", "1.500", "CAST(1.500BD AS DECIMAL(10, 2))"),
        ("dec", "dec", "`dec`"),
        ("i32", "2.0", "CAST(2.0BD AS INT)"),
        ("s", "i32", "CAST(`i32` AS STRING)"),
        ("ts", "d", "CAST(`d` AS TIMESTAMP)"),
        ("d", "NULL", "CAST(NULL AS DATE)"),
        ("`we ird``.x`", "'x'", "'x'"),
        ("we ird`.x", "'x'", "'x'"),
        ("i32", "CAST(f64 AS INT)", "CAST(`f64` AS INT)"),
    ],
)
def test_stored_values_have_the_type_of_the_column(column: str, value: str, sql: str) -> None:
    assert list(update({column: value}).set_sql.values()) == [sql]


@pytest.mark.parametrize(
    ("column", "value", "part"),
    [
        ("i32", "f64", "digits after the point would be lost"),
        ("i32", "1.5", "digits after the point would be lost"),
        ("dec", "dec * 1.1", "CAST(… AS DECIMAL(10, 2))"),
        ("dec", "f64", "digits after the point would be lost"),
        ("d", "ts", "the time of day would be lost"),
        ("i32", "'7'", "CAST(… AS INT)"),
        ("i32", "b", "CAST(… AS INT)"),
        ("d", "i32", "not converted implicitly"),
        ("st", "i32", "it is of another type"),
        ("nope", "1", "does not have"),
        ("i3", "1", "perhaps"),
        ("i32; DROP", "1", "does not have"),
        ("", "1", "does not have"),
    ],
)
def test_values_that_cannot_be_stored_say_why(column: str, value: str, part: str) -> None:
    error = refusal({column: value})
    assert part in str(error)
    assert error.resource == "TableUpdate/t"
    assert error.field.startswith("spec.update.set")


def test_set_must_name_each_column_once() -> None:
    assert "twice" in str(refusal({"i32": "1", "I32": "2"}))
    assert "no column" in str(refusal({}))


def test_values_that_columns_do_not_take() -> None:
    fields: list[dict[str, Any]] = [
        {"name": "g", "type": "integer", "metadata": {"delta.generationExpression": "1"}},
        {"name": "i", "type": "long", "metadata": {"delta.identity.start": 1}},
        {"name": "v", "type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}},
        {"name": "c", "type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}},
        {"name": "n", "type": "integer", "nullable": False, "metadata": {}},
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    assert parse_statement(None, {"g": "2"}, schema).set_sql == {"g": "2"}  # a rule compares it
    for name, value in (("i", "1"), ("n", "NULL"), ("v", "c")):
        with pytest.raises(InvalidStatement):
            parse_statement(None, {name: value}, schema)
    # The job checks the length of a text, and pads it.
    found = parse_statement(None, {"v": "'x'", "c": "1"}, schema).set_sql
    assert found == {"v": "'x'", "c": "CAST(1 AS STRING)"}
    assert parse_where("v = 'x'", schema).type.name == "boolean"
    with pytest.raises(InvalidStatement):
        parse_where("c = 'x'", schema)


def test_assignments_are_in_the_order_of_columns() -> None:
    found = parse_statement("b", {"s": "'x'", "i32": "1"}, SCHEMA_JSON)
    assert list(found.set_sql) == ["i32", "s"]


def test_names_that_differ_only_in_case_are_ambiguous() -> None:
    fields: list[dict[str, Any]] = [
        {"name": name, "type": "integer", "metadata": {}} for name in ("Ab", "aB", "c")
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    with pytest.raises(InvalidStatement, match="ambiguous"):
        parse_where("ab = 1", schema)
    with pytest.raises(InvalidStatement, match="ambiguous"):
        parse_statement(None, {"ab": "1"}, schema)
    assert to_spark_sql(parse_where("C = 1", schema)) == "(`c` = 1)"


def test_a_column_comes_before_a_function_without_parentheses() -> None:
    fields: list[dict[str, Any]] = [
        {"name": n, "type": "date", "metadata": {}} for n in ("current_date", "date", "year")
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    text = "current_date = date AND year(year) = 1 AND date = DATE '2013-01-01'"
    assert to_spark_sql(parse_where(text, schema)) == (
        "((`current_date` = `date`) AND (year(`year`) = 1) AND (`date` = DATE '2013-01-01'))"
    )


def test_an_error_points_at_the_place() -> None:
    error = refusal({"i32": "1"}, "b AND\n  carier = 'UA'")
    assert error.position == (2, 3)
    assert error.snippet == "  carier = 'UA'\n  ^"
    assert error.field == "spec.update.where"
    assert "line 2, column 3" in str(error)
    assert error.found == "carier"


def test_a_long_line_is_shown_around_the_place() -> None:
    error = refusal({"i32": "1"}, "b AND " * 40 + "nope" + " AND b" * 40)
    text, caret = error.snippet.splitlines()
    assert len(text) < 80
    assert text[caret.index("^") :].startswith("nope")


def test_errors_cross_process_borders() -> None:
    error = refusal({"i32": "1"}, "nope")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.position) == (str(error), error.position)


def test_a_condition_must_be_boolean() -> None:
    with pytest.raises(InvalidStatement, match="not BOOLEAN"):
        parse_where("i32", SCHEMA)
    with pytest.raises(InvalidStatement, match="a text"):
        parse_where(1, SCHEMA)  # type: ignore[arg-type]


def test_a_condition_of_no_type_becomes_a_boolean() -> None:
    assert to_spark_sql(parse_where("NULL", SCHEMA)) == "CAST(NULL AS BOOLEAN)"
    with pytest.raises(InvalidStatement, match="WHEN needs a condition"):
        parse_where("CASE WHEN NULL THEN b END", SCHEMA)


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"type": "struct"}', '{"type": "array"}'])
def test_a_broken_schema_is_an_error(text: str) -> None:
    with pytest.raises(InvalidStatement):
        parse_where("TRUE", text)


@pytest.mark.parametrize(
    ("where", "said"),
    [("a.b = 1", "perhaps `a.b`"), ("`a.c` = 1", "perhaps `a.b`"), ("ip = 1", "perhaps id")],
)
def test_names_are_proposed_as_a_statement_writes_them(where: str, said: str) -> None:
    names = ("a.b", "id")
    columns: list[Any] = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in names
    ]
    with pytest.raises(InvalidStatement) as caught:
        parse_where(where, json.dumps({"type": "struct", "fields": columns}), resource="", field="")
    assert caught.value.expected == said


def test_a_column_that_is_called_as_a_query_begins_has_a_hint() -> None:
    assert "in `backquotes`" in refusal({"f64": "1"}, "select = 5").remedy


NESTED: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"name": "a.b", "type": "integer", "metadata": {}},
        {
            "name": "st",
            "metadata": {},
            "type": {
                "type": "struct",
                "fields": [
                    {"name": "x", "type": "long", "metadata": {}},
                    {"name": "y z", "type": "string", "metadata": {}, "nullable": False},
                    {
                        "name": "in",
                        "metadata": {},
                        "type": {
                            "type": "struct",
                            "fields": [{"name": "d", "type": "double", "metadata": {}}],
                        },
                    },
                ],
            },
        },
        *(
            {
                "name": name,
                "metadata": {},
                "type": {"type": "array", "elementType": of, "containsNull": True},
            }
            for name, of in (("ints", "integer"), ("more", "integer"), ("texts", "string"))
        ),
    ],
}
X = "`st`.`x`"
Y = "`st`.`y z`"
IN = "`st`.`in`"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"st.x": "1"}, f"named_struct('x', CAST(1 AS BIGINT), 'y z', {Y}, 'in', {IN})"),
        ({"ST.`Y Z`": "'q'"}, f"named_struct('x', {X}, 'y z', 'q', 'in', {IN})"),
        (
            {"st.in.d": "st.x", "`st`.`x`": "NULL"},
            "named_struct('x', CAST(NULL AS BIGINT), "
            f"'y z', {Y}, 'in', named_struct('d', CAST({X} AS DOUBLE)))",
        ),
        (
            {"st": "named_struct('IN', NULL, 'y z', 'q', 'x', 2)"},
            "named_struct('x', CAST(2 AS BIGINT), 'y z', 'q', 'in', NULL)",
        ),
        ({"st": "NULL"}, "NULL"),
    ],
)
def test_fields_of_structs_are_set_in_a_whole_one(values: dict[str, str], expected: str) -> None:
    schema = json.dumps(NESTED)
    found = parse_statement(None, values, schema)
    assert found.set_sql == {"st": expected}
    again = parse_statement(None, found.set_sql, schema, exact_names=True)
    assert again.set_sql == found.set_sql


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"st.nope": "1"}, "does not have"),
        ({"st.X": "1", "st.x": "2"}, "twice"),
        ({"st": "NULL", "st.x": "2"}, "twice"),
        ({"st.in": "NULL", "st.in.d": "2"}, "twice"),
        ({"st.`y z`": "NULL"}, "NOT NULL"),
        ({"st.x": "'a'"}, "CAST"),
        ({"st.x.y": "1"}, "does not have"),
        ({"ints": "texts"}, "another type"),
        ({"ints[0]": "1"}, "does not have"),
        ({"st": "named_struct('x', 1)"}, "another type"),
        ({"st": "named_struct('x')"}, "different number"),
        ({"st": "named_struct('x', 1, 'X', 2)"}, "names in quotes"),
        ({"st": "named_struct(st.x, 1)"}, "names in quotes"),
        ({"st.in": "st"}, "another type"),
    ],
)
def test_nested_values_that_cannot_be_stored(values: dict[str, str], part: str) -> None:
    with pytest.raises(InvalidStatement, match=part):
        parse_statement(None, values, json.dumps(NESTED))


def test_arrays_are_set_as_a_whole() -> None:
    found = parse_statement(None, {"ints": "more", "a.b": "1"}, json.dumps(NESTED))
    assert found.set_sql == {"a.b": "1", "ints": "`more`"}
