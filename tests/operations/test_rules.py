"""CHECK constraints, invariants, NOT NULL: no row with new values breaks one (R-15). Real jobs,
without Spark; with it: `tests/spark/matrix_of_rules.py`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake, just_before
from support.lake.lake import DELETION_VECTORS, INSERT_ALL, message, reason
from tandem.delta.log.codec import encode_action
from tandem.errors import ConstraintViolated, InvalidStatement
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.statements.local.rules import LocalRules
from tandem.statements.rules import rules_of

VECTORS = pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "edits"])


def lake_with(folder: Path, text: str, name: str = "small", *, vectors: bool = True) -> ArrowLake:
    """Ten rows with a constraint."""
    properties = DELETION_VECTORS if vectors else {}
    lake = quick_lake.of_kind(
        ArrowLake, quick_lake.make(folder, 1, properties=properties).location, folder / "sources"
    )
    lake.foreign().alter.add_constraint({name: text})
    return lake


def files(lake: ArrowLake) -> set[str]:
    return {add.path for add in lake.log.snapshot().adds()}


def assert_refused(lake: ArrowLake, operation: Operation, *shown: str) -> None:
    """It ends with the rule and a row, and the table is as before."""
    before = files(lake), lake.by_tandem()
    status = lake.run(operation)
    assert reason(status) == "ConstraintViolated", message(status)
    for part in shown:
        assert part in message(status)
    assert (files(lake), lake.by_tandem()) == before
    lake.assert_clean()


@VECTORS
def test_an_update_that_breaks_a_constraint_publishes_nothing(
    tmp_path: Path, vectors: bool
) -> None:
    lake = lake_with(tmp_path, "v < 1000", vectors=vectors)
    rows = lake.by_tandem()
    shown = ("delta.constraints.small", "v < 1000", "v = 1000", "id = 3")
    assert_refused(lake, lake.update("id = 3", v="1000"), *shown)
    lake.do(lake.update("id = 3", v="999"))
    assert lake.by_tandem() == tuple((i, k, 999 if i == 3 else v) for i, k, v in rows)


@VECTORS
def test_a_constraint_on_a_column_that_is_not_set(tmp_path: Path, vectors: bool) -> None:
    """A whole row has new values, also if only a part of it is written."""
    lake = lake_with(tmp_path, "v < 500 OR k < 5", vectors=vectors)
    assert_refused(lake, lake.update("id = 7", k="9"), "v = 700", "k = 9")
    lake.do(lake.update("id = 4", k="9"))
    assert (4, 9, 400) in lake.by_tandem()


def test_null_breaks_a_constraint_as_in_spark(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, "v < 1000")
    assert_refused(lake, lake.update("id = 3", v="NULL"), "v = NULL")


def test_inserts_updates_and_loads_that_break_a_constraint(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, "v < 1000")
    right, wrong = (30, 0, 7), (31, 0, 1000)
    assert_refused(lake, lake.merge((right, wrong)), "id = 31")
    assert_refused(lake, lake.merge((right, (3, 3, 1000))), "id = 3")
    assert_refused(lake, lake.ingest((right, wrong)), "id = 31")
    rows = lake.by_tandem()
    lake.do(lake.merge((right, (3, 3, 999))))
    lake.do(lake.ingest(((32, 1, 999),)))
    changed = tuple((i, k, 999 if i == 3 else v) for i, k, v in rows)
    assert lake.by_tandem() == (*changed, right, (32, 1, 999))
    # Rows that a merge deletes, or leaves as they are, need not fit.
    lake.do(lake.merge(((3, 3, 5000),), whenMatched=[{"delete": {}}]))
    assert 3 not in {row[0] for row in lake.by_tandem()}


TOO_MUCH = "v < 1000 AND sinh(v) >= 0"


@pytest.mark.parametrize(
    "operation",
    [
        lambda lake: lake.update("id = 3", v="1"),
        lambda lake: lake.merge(((3, 3, 1),)),
        lambda lake: lake.ingest(((40, 3, 1),)),
    ],
    ids=["update", "merge", "ingest"],
)
def test_a_constraint_beyond_the_grammar_is_refused_before_a_job(
    tmp_path: Path, operation: Callable[[ArrowLake], Operation]
) -> None:
    lake = lake_with(tmp_path, TOO_MUCH)
    version = lake.version
    status = lake.run(operation(lake))
    assert reason(status) == "InvalidStatement"
    assert "delta.constraints.small" in message(status)
    assert "\n" + " " * 13 + "^" in message(status), message(status)
    assert lake.version == version


def test_deletes_and_rewrites_need_not_know_a_constraint(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, TOO_MUCH)
    lake.do(lake.delete("id = 3"))
    lake.do(lake.compaction("Major"))
    assert 3 not in {row[0] for row in lake.by_tandem()}


def test_N26_a_constraint_that_is_added_meanwhile(tmp_path: Path) -> None:
    """The operation is planned again, and evaluated with it."""
    lake = lake_with(tmp_path, "id >= 0", "other")

    def add(text: str) -> None:
        lake.foreign().alter.add_constraint({f"c{lake.version}": text})

    before = files(lake)
    wrong = just_before(Point.RECONCILE, lambda: add("v < 1000"))
    status = lake.run(lake.update("id = 3", v="5000"), interceptor=wrong)
    assert (reason(status), files(lake)) == ("ConstraintViolated", before)
    right = just_before(Point.RECONCILE, lambda: add("v < 2000"))
    lake.do(lake.update("id = 3", v="500"), interceptor=right)
    assert (3, 3, 500) in lake.by_tandem()


def test_N26_a_row_that_breaks_a_constraint_in_a_later_round(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, "v < 1000", vectors=False)
    changed = just_before(
        Point.RECONCILE, lambda: lake.foreign().update({"v": "600"}, predicate="id = 3")
    )
    status = lake.run(lake.update("id = 3", v="v + 500"), interceptor=changed)
    assert reason(status) == "ConstraintViolated"
    assert "v = 1100" in message(status)
    assert (3, 3, 600) in lake.by_tandem()
    lake.assert_clean()


def test_an_invariant_of_a_column(tmp_path: Path) -> None:
    lake = lake_with(tmp_path, "id >= 0")
    encoded = {"delta.invariants": json.dumps({"expression": {"expression": "v < 1000"}})}
    snapshot = lake.log.snapshot()
    schema = json.loads(snapshot.metadata.schema_string)
    schema["fields"][2]["metadata"] = encoded
    changed = dataclasses.replace(snapshot.metadata, schema_string=json.dumps(schema))
    lake.log_raw(encode_action(changed), operation="CHANGE COLUMN")
    assert_refused(lake, lake.update("id = 3", v="1000"), "delta.invariants of v", "v < 1000")
    lake.do(lake.update("id = 3", v="999"))


@pytest.mark.parametrize(
    "invariant", ["v < 10", "{}", '{"expression": "v < 10"}', '{"expression": {"expression": 1}}']
)
def test_what_is_no_invariant_is_refused_by_name(invariant: str) -> None:
    field = {"name": "v", "type": "long", "metadata": {"delta.invariants": invariant}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    with pytest.raises(InvalidStatement, match=r"delta\.invariants of v"):
        rules_of(schema, {}, ())


@pytest.mark.parametrize(
    "text",
    ["v < 10 AND", "w < 10", "v", "rand() < v", "v IN (SELECT 1)", "'x" * 5_000_000, "c = 'x'"],
    ids=["part", "column", "no condition", "random", "query", "10 MB", "CHAR"],
)
def test_constraints_that_are_refused_by_name(text: str) -> None:
    char = {"name": "c", "type": "string", "metadata": {"__CHAR_VARCHAR_TYPE_STRING": "char(3)"}}
    fields = [{"name": "v", "type": "long", "metadata": {}}, char]
    schema = json.dumps({"type": "struct", "fields": fields})
    with pytest.raises(InvalidStatement) as caught:
        rules_of(schema, {"delta.Constraints.c\n": text}, ())
    assert caught.value.field == "delta.Constraints.c"
    assert "deletes and compactions are possible" in caught.value.remedy
    assert len(str(caught.value)) < 2_000


def test_an_empty_text_of_a_partition_is_null() -> None:
    """As it is stored: in the log both are NULL."""
    rows = pa.table({"p": ["a", "", None], "q": ["", "", ""]})
    fields = [{"name": name, "type": "string", "metadata": {}} for name in "pq"]
    schema = json.dumps({"type": "struct", "fields": fields})

    def kept(text: str) -> list[bool]:
        rules = LocalRules.of(schema, {"delta.constraints.c": text}, ("p",))
        return [_fits(rules, rows.slice(at, 1)) for at in range(3)]

    assert kept("CASE WHEN p = 'a' THEN true ELSE p IS NOT NULL END") == [True, False, False]
    assert kept("q IS NOT NULL") == [True, True, True]


def _fits(rules: LocalRules, rows: pa.Table) -> bool:
    try:
        rules.require(rows)
    except ConstraintViolated:
        return False
    return True


def test_a_message_shows_a_row_on_one_line_and_of_bounded_length() -> None:
    text = "x\n" * 5_000
    rows = pa.table({f"c{n:02}": [text] for n in range(50)} | {"v": [7], "a\nb\x1b": [1]})
    fields = [{"name": "v", "type": "long", "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    rules = LocalRules.of(schema, {"delta.constraints.c\n": "v < 5"}, ())
    with pytest.raises(ConstraintViolated) as caught:
        rules.require(rows.select(["a\nb\x1b", "v", *rows.column_names[:50]]))
    shown = str(caught.value)
    assert "found: v = 7, a b = 1, c00 = 'x" in shown
    assert len(shown) < 2_000
    assert "\n" not in shown


def computed_lake(folder: Path, *, vectors: bool = True) -> ArrowLake:
    """Ten rows, with `v` generated from `id`, and a default for `k`."""
    lake = lake_with(folder, "id >= 0", vectors=vectors)
    computed = {"v": {"delta.generationExpression": "id * 100"}, "k": {"CURRENT_DEFAULT": "4"}}
    schema = json.loads(lake.log.snapshot().metadata.schema_string)
    for column in schema["fields"]:
        column["metadata"] |= computed.get(column["name"], {})
    metadata = dataclasses.replace(lake.log.snapshot().metadata, schema_string=json.dumps(schema))
    lake.log_raw(encode_action(metadata))
    return lake


def only(**columns: int | None) -> pa.Table:
    return pa.table({name: pa.array([value], pa.int64()) for name, value in columns.items()})


@VECTORS
def test_a_generated_column_follows_what_it_reads(tmp_path: Path, vectors: bool) -> None:
    lake = computed_lake(tmp_path, vectors=vectors)
    rows = lake.by_tandem()
    lake.do(lake.update("id = 3", id="30"))
    lake.do(lake.update("id = 4", k="1"))  # which it does not read
    lake.do(lake.update("id = 5", v="id * 10 * 10"))
    changed = {3: (30, rows[3][1], 3000), 4: (4, 1, 400)}
    assert lake.by_tandem() == tuple(sorted(changed.get(row[0], row) for row in rows))
    for statement in (lake.update("id = 6", v="7"), lake.update("id = 6", id="60", v="v")):
        assert_refused(lake, statement, "generated column v", "id * 100", "id = 6")


@VECTORS
def test_columns_that_an_insert_or_a_source_lacks(tmp_path: Path, vectors: bool) -> None:
    lake = computed_lake(tmp_path, vectors=vectors)
    rows = lake.by_tandem()
    lake.do(lake.merge(only(id=50), **INSERT_ALL))
    lake.do(lake.merge(only(id=51, k=None), **INSERT_ALL))
    lake.do(lake.ingest(only(id=52)))
    lake.do(lake.ingest(only(id=53, k=None, v=5300)))
    new = ((50, 4, 5000), (51, None, 5100), (52, 4, 5200), (53, None, 5300))
    assert set(lake.by_tandem()) == {*rows, *new}
    assert_refused(lake, lake.ingest(only(id=54, v=54)), "generated column v", "v = 54")
    assert_refused(lake, lake.merge(only(id=54, k=0, v=None)), "generated column v", "v = NULL")


@pytest.mark.parametrize(
    ("column", "key", "text"),
    [("v", "delta.generationExpression", "sinh(id)"), ("k", "CURRENT_DEFAULT", "sinh(1)")],
)
def test_what_computes_a_column_is_refused_with_its_place(
    tmp_path: Path, column: str, key: str, text: str
) -> None:
    """A default only where it is needed."""
    lake = computed_lake(tmp_path)
    metadata = lake.log.snapshot().metadata
    schema = json.loads(metadata.schema_string)
    for each in schema["fields"]:
        each["metadata"] |= {key: text} if each["name"] == column else {}
    lake.log_raw(encode_action(dataclasses.replace(metadata, schema_string=json.dumps(schema))))
    statuses = [lake.run(lake.merge(only(id=50), **INSERT_ALL)), lake.run(lake.ingest(only(id=5)))]
    for status in statuses:
        assert reason(status) == "InvalidStatement", message(status)
        assert f"{key} of {column}" in message(status)
        assert "^" in message(status)
    lake.do(lake.delete("id = 4"))
    lake.do(lake.compaction("Major"))
    if column == "k":
        lake.do(lake.update("id = 3", id="30"))
    lake.assert_clean()
