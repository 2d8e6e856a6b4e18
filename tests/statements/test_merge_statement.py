"""Merges as texts: two relations, clauses, and what can be checked before the source is known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest

from tandem.errors import InvalidStatement
from tandem.statements.merge import ClauseAction, MergeStatement, When, parse_merge
from tandem.statements.types import (
    DATE,
    INTEGER,
    LONG,
    STRING,
    TIMESTAMP,
    Schema,
    SchemaColumn,
    SqlType,
)

ARRAY = SqlType("other", detail="ARRAY")
TABLE = Schema(
    (
        SchemaColumn("id", LONG, nullable=False),
        SchemaColumn("a", INTEGER),
        SchemaColumn("D", DATE),
        SchemaColumn("x", STRING),
        SchemaColumn("t", STRING),
        SchemaColumn("st", SqlType("struct", fields=(SchemaColumn("y", LONG),), detail="STRUCT")),
    )
)
SOURCE = Schema(
    (
        SchemaColumn("id", LONG),
        SchemaColumn("A", LONG),
        SchemaColumn("d", DATE),
        SchemaColumn("op", STRING),
        SchemaColumn("at", TIMESTAMP),
        SchemaColumn("list", ARRAY),
        SchemaColumn("n", SqlType("struct", fields=(SchemaColumn("y", LONG),), detail="STRUCT")),
    )
)


@dataclass(frozen=True)
class Text:
    when: When = "Matched"
    action: ClauseAction = "Delete"
    where: str | None = None
    set: dict[str, str] = field(default_factory=dict)
    all: bool = False
    field: str = "spec.merge.clause"


def merge(
    on: str, *clauses: Text, source: Schema | None = SOURCE, table: Schema = TABLE
) -> MergeStatement:
    return parse_merge(on, clauses or (Text(),), table, source, resource="TableUpdate/x")


def update(**values: str) -> Text:
    return Text(action="Update", set=values)


@pytest.mark.parametrize(
    ("on", "canonical"),
    [
        ("t.id = s.id", "(`t`.`id` = `s`.`id`)"),
        ("T.ID = `S`.`Id`", "(`t`.`id` = `s`.`id`)"),
        ("x = op", "(`t`.`x` = `s`.`op`)"),  # each is a column of one relation only
        ("t.t = s.op", "(`t`.`t` = `s`.`op`)"),
        ("t = s.op", "(`t`.`t` = `s`.`op`)"),  # a bare name is a column, whatever it is called
        ("t.st.y = s.n.Y", "(`t`.`st`.`y` = `s`.`n`.`y`)"),
        ("s.at < current_timestamp", "(`s`.`at` < current_timestamp())"),
        ("t.id = s.id AND t.d BETWEEN s.d - INTERVAL 1 DAY AND s.d",
         "((`t`.`id` = `s`.`id`) AND (`t`.`D` BETWEEN (`s`.`d` - INTERVAL '1' DAY) AND `s`.`d`))"),
    ],
)  # fmt: skip
def test_names_of_two_relations(on: str, canonical: str) -> None:
    found = merge(on)
    assert found.on_sql == canonical
    assert merge(found.on_sql) == found
    # Without the source it is accepted, too, and comes to the same text.
    assert merge(on, source=None).on_sql.lower() == canonical.lower()


CLAUSES = (
    Text(where="op = 'D'"),
    Text(action="Update", where="s.A > t.a", set={"a": "s.A + t.a", "d": "s.d"}),
    Text(action="Update", set={"x": "NULL"}),
    Text("NotMatched", "Insert", "A IS NOT NULL", {"id": "id", "x": "op || '!'"}),
    Text("NotMatched", "Insert", None, {"id": "coalesce(s.id, -1)"}),
    Text("NotMatchedBySource", "Update", "a = 0", {"a": "a + 1"}),
    Text("NotMatchedBySource", "Delete"),
)


def test_every_clause_has_a_canonical_text() -> None:
    found = merge("t.id = s.id", *CLAUSES)
    assert found.canonical == (
        "MERGE ON (`t`.`id` = `s`.`id`) "
        "WHEN MATCHED AND (`s`.`op` = 'D') THEN DELETE "
        "WHEN MATCHED AND (`s`.`A` > `t`.`a`) THEN UPDATE SET "
        "`a` = CAST((`s`.`A` + `t`.`a`) AS INT), `D` = `s`.`d` "
        "WHEN MATCHED THEN UPDATE SET `x` = CAST(NULL AS STRING) "
        "WHEN NOT MATCHED AND (`s`.`A` IS NOT NULL) THEN INSERT (`id`, `x`) "
        "VALUES (`s`.`id`, (`s`.`op` || '!')) "
        "WHEN NOT MATCHED THEN INSERT (`id`) VALUES (coalesce(`s`.`id`, -1)) "
        "WHEN NOT MATCHED BY SOURCE AND (`t`.`a` = 0) THEN UPDATE SET `a` = (`t`.`a` + 1) "
        "WHEN NOT MATCHED BY SOURCE THEN DELETE"
    )
    assert (found.one_match_only, found.deterministic) == (True, True)
    assert found.columns_of_table() == {"id", "a"}
    assert found.keys_of_table() == ("id",)
    assert merge("t.id = s.id", *CLAUSES, source=None).one_match_only


def test_recorded_parameters_are_those_of_delta_and_can_be_parsed_again() -> None:
    found = merge("t.id = s.id", *CLAUSES)
    parameters = {name: json.loads(text) for name, text in found.predicates().items()}
    assert parameters == {
        "predicate": ["(`t`.`id` = `s`.`id`)"],
        "matchedPredicates": [
            {"predicate": "(`s`.`op` = 'D')", "actionType": "delete"},
            {"predicate": "(`s`.`A` > `t`.`a`)", "actionType": "update"},
            {"actionType": "update"},
        ],
        "notMatchedPredicates": [
            {"predicate": "(`s`.`A` IS NOT NULL)", "actionType": "insert"},
            {"actionType": "insert"},
        ],
        "notMatchedBySourcePredicates": [
            {"predicate": "(`t`.`a` = 0)", "actionType": "update"},
            {"actionType": "delete"},
        ],
    }
    recorded = json.loads(json.dumps(found.to_json()))
    again = merge(recorded["on"], *(Text(**clause) for clause in recorded["clauses"]))
    assert again == found


SMALL = Schema(
    (
        SchemaColumn("id", LONG, nullable=False),
        SchemaColumn("a", INTEGER),
        SchemaColumn("st", ARRAY),
    )
)
LIKE_IT = Schema(
    (
        SchemaColumn("ID", LONG),
        SchemaColumn("a", INTEGER),
        SchemaColumn("st", ARRAY),
        SchemaColumn("z", LONG),
    )
)
EVERY = (
    Text(action="Update", all=True),
    Text("NotMatched", "Insert", all=True),
)


def test_all_columns_are_those_of_the_table_by_name() -> None:
    found = merge("t.id = s.id", *EVERY, table=SMALL, source=LIKE_IT)
    assert [clause.set_sql for clause in found.clauses] == [
        {"id": "`s`.`ID`", "a": "`s`.`a`", "st": "`s`.`st`"}
    ] * 2
    assert "UPDATE SET * WHEN NOT MATCHED THEN INSERT *" in found.canonical
    assert merge("t.id = s.id", *EVERY, table=SMALL, source=None).canonical == (
        found.canonical.replace("`ID`", "`id`")
    )


@pytest.mark.parametrize(
    ("clauses", "single"),
    [
        ((Text(),), False),  # deleted, whichever it matched
        ((Text(where="t.a = 1"),), True),
        ((Text(where="t.a = 1"), Text()), True),
        ((update(a="1"),), True),
        ((Text("NotMatched", "Insert", set={"id": "id"}),), False),
        ((Text("NotMatchedBySource"),), False),
    ],
)
def test_when_several_matches_are_an_error(clauses: tuple[Text, ...], single: bool) -> None:
    assert merge("t.id = s.id", *clauses).one_match_only is single


@pytest.mark.parametrize(
    ("on", "where", "message"),
    [
        ("id = s.id", "on:", "means columns of the table and the source at line 1, column 1"),
        ("t.id = d", "on:", "expected: t.d or s.d"),
        ("t.idd = s.id", "on:", "the table has no such column at line 1, column 3"),
        ("t.id = s.oq", "on:", "the source has no such column at line 1, column 10 .*perhaps s.op"),
        ("t.id = nope", "on:", r"the table \(t\) and the source \(s\) have no such column"),
        ("q.id = s.id", "on:", "have no such column at line 1, column 1"),
        ("t.id = s.list", "on:", "= cannot join BIGINT and ARRAY"),
        ("t.id = s.op.y", "on:", "s.op has no fields"),
        ("t.id + s.id", "on:", "the condition is not BOOLEAN"),
        ("t.id = s.id AND rand() < 0.5", "on:", "must be deterministic at line 1, column 17"),
        ("t.id = (SELECT 1)", "on:", "sub-queries"),
        ("t.", "on:", "cannot be parsed"),
        ("", "on:", "empty"),
    ],
)
def test_conditions_that_are_refused(on: str, where: str, message: str) -> None:
    with pytest.raises(InvalidStatement, match=message) as caught:
        merge(on)
    assert str(caught.value).startswith(f"TableUpdate/x.spec.merge.{where}")
    assert caught.value.snippet.endswith("^")


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ((Text(), Text()), "never applies"),
        ((Text("NotMatched", "Insert", set={"id": "t.id"}),), "no row of the table"),
        ((Text("NotMatched", "Insert", "t.id = 1", set={"id": "1"}),), "no row of the table"),
        ((Text("NotMatched", "Insert", set={"id": "x"}),), r"the source \(s\) has no such"),
        ((Text("NotMatchedBySource", where="s.id = 1"),), "no row of the source"),
        ((Text("NotMatchedBySource", "Update", set={"a": "op"}),), r"the table \(t\) has no such"),
        ((Text("NotMatched", "Insert", set={"a": "1"}),), "id is NOT NULL and gets no value"),
        ((update(id="NULL"),), "id is NOT NULL at line 1"),
        ((update(a="s.op"),), "STRING cannot be stored in a"),
        ((update(a="s.d"),), "DATE cannot be stored in a"),
        ((update(a="1", A="2"),), "names the same column twice"),
        ((update(b="1"),), "a column that the table does not have"),
        ((update(),), "no column, or too many"),
        ((update(st="s.list"),), "it is of another type"),
        ((update(st="named_struct('z', 1)"),), "it is of another type"),
        (
            (Text("NotMatched", "Insert", set={"id": "1", "st.y": "1"}),),
            "an insert gives whole columns",
        ),
        ((Text(where="s.A"),), "not BOOLEAN"),
        ((Text(where="uuid() = x"),), "deterministic"),
        (EVERY, "must have every column of the table"),
    ],
)
def test_clauses_that_are_refused(clauses: tuple[Text, ...], message: str) -> None:
    with pytest.raises(InvalidStatement, match=message) as caught:
        merge("t.id = s.id", *clauses)
    assert "TableUpdate/x.spec.merge.clause" in str(caught.value)


def test_ambiguous_and_identity_columns_are_refused_in_all_columns() -> None:
    numbered = SchemaColumn("a", LONG, metadata={"delta.identity.start": 1})
    with pytest.raises(InvalidStatement, match="the table gives the values of an identity column"):
        merge(
            "t.id = s.id",
            *EVERY,
            table=Schema((SchemaColumn("id", LONG), numbered)),
            source=LIKE_IT,
        )
    twice = Schema(
        (SchemaColumn("a", INTEGER), SchemaColumn("A", INTEGER), SchemaColumn("id", LONG))
    )
    with pytest.raises(InvalidStatement, match="2 columns called a"):
        merge("t.a = s.id", *EVERY, table=Schema((SchemaColumn("a", INTEGER),)), source=twice)


COMPUTED = Schema(
    (
        SchemaColumn("id", LONG),
        SchemaColumn("a", INTEGER, metadata={"CURRENT_DEFAULT": "3"}),
        SchemaColumn("Next a", LONG, metadata={"delta.generationExpression": "a + 1"}),
    )
)


NEW = Schema((SchemaColumn("id", LONG), SchemaColumn("a", INTEGER)))


def insert(**values: str) -> Text:
    return Text("NotMatched", "Insert", set=values)


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        (update(a="s.a"), {"a": "`s`.`a`", "Next a": "CAST((`s`.`a` + 1) AS BIGINT)"}),
        (update(id="s.id"), {"id": "`s`.`id`"}),
        (update(id="s.id", **{"Next a": "t.id"}), {"id": "`s`.`id`", "Next a": "`t`.`id`"}),
        (insert(id="s.id"), {"id": "`s`.`id`", "a": "3", "Next a": "CAST((3 + 1) AS BIGINT)"}),
        (
            insert(id="s.id", a="NULL"),
            {
                "id": "`s`.`id`",
                "a": "CAST(NULL AS INT)",
                "Next a": "CAST((CAST(NULL AS INT) + 1) AS BIGINT)",
            },
        ),
    ],
)
def test_columns_that_a_clause_does_not_give(clause: Text, expected: dict[str, str]) -> None:
    [found] = merge("t.id = s.id", clause, table=COMPUTED, source=NEW).clauses
    assert found.set_sql == expected


def test_all_columns_of_a_source_without_the_computed_ones() -> None:
    source = Schema((SchemaColumn("id", LONG),))
    with pytest.raises(InvalidStatement, match="the source must have every column"):
        merge("t.id = s.id", EVERY[0], table=COMPUTED, source=source)
    [found] = merge("t.id = s.id", EVERY[1], table=COMPUTED, source=source).clauses
    assert list(found.set_sql) == ["id", "a", "Next a"]


def test_a_value_that_differs_each_time_cannot_be_read_by_a_generated_column() -> None:
    with pytest.raises(InvalidStatement, match="Next a reads a value that is another one each"):
        merge("t.id = s.id", update(a="CAST(rand() AS INT)"), table=COMPUTED, source=NEW)


@pytest.mark.parametrize(
    ("on", "clause"),
    [
        ("t.id = s.id + s.days * 2", update(a="-s.x", D="t.d + s.days")),
        ("t.x LIKE 'a%' AND s.flag", update(a="s.a DIV 2", x="substring(s.x, 2)")),
        ("NOT s.flag OR t.id IN (s.a, s.b)", update(D="coalesce(s.d, t.d)")),
        ("t.id BETWEEN s.low AND s.high", update(a="round(s.v, 1)", x="CAST(s.v AS STRING)")),
        ("(s.x RLIKE '^a') IS TRUE", update(a="CASE WHEN s.flag THEN s.v ELSE floor(s.v) END")),
        ("s.n.y.z = t.id", update(a="greatest(s.a, s.b)", D="date_add(s.d, s.n)")),
        ("if(s.flag, s.a, s.b) <=> t.x", update(x="nullif(s.x, 'a') || year(s.d)")),
    ],
)
def test_columns_that_are_not_known_yet_may_be_anything(on: str, clause: Text) -> None:
    """The plan must refuse nothing that the job would accept."""
    found = merge(on, clause, source=None)
    assert merge(found.on_sql, clause, source=None).on_sql == found.on_sql


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("t.idd = s.id", "the table has no such column"),
        ("t.id = reflect('x', s.a)", "this function is not accepted"),
        ("t.id = 'a' AND 5", "AND needs conditions"),
        ("t.id = s.id -- all", "comments"),
    ],
)
def test_errors_that_the_plan_finds_without_the_source(on: str, message: str) -> None:
    with pytest.raises(InvalidStatement, match=message):
        merge(on, source=None)
