"""What a statement means is what Spark says it means: original text against canonical text.

Every accepted text is given to Spark as it was typed, and as we generate it. Spark's analyser
must see the same expression, of the type that we computed; and on rows that are hard on
expressions the values, or the error raised, must be the same.
"""

from __future__ import annotations

import itertools
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from support.some import few, some
from support.statements.rows import SCHEMA, analyse, nasty, outcome, runtime_errors
from support.statements.texts import texts
from tandem.errors import InvalidStatement
from tandem.statements import parse_expression, to_spark_sql
from tandem.statements.functions import FUNCTIONS
from tandem.statements.tree import Call, Expr
from tandem.statements.types import CAST_NAMES, sql_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORPUS: list[str] = tomllib.loads(
    Path(__file__).with_name("corpus.toml").read_text(encoding="utf-8")
)["accepted"]
"""Texts that must be accepted."""


@pytest.fixture(scope="module")
def frame(oracle_spark: SparkSession) -> DataFrame:
    return nasty(oracle_spark)


def tree_of(text: str) -> Expr:
    return parse_expression(text, SCHEMA, resource="TableUpdate/t", field="where")


def differences(frame: DataFrame, accepted: dict[str, Expr]) -> list[str]:
    """Where Spark sees another expression in the canonical text, or another type than we."""
    originals, canonical = list(accepted), [to_spark_sql(tree) for tree in accepted.values()]
    if not originals:
        return []
    seen = analyse(frame, originals + canonical)
    count = len(originals)
    wrong = []
    for text, ours, first, second in zip(
        originals, canonical, seen[:count], seen[count:], strict=True
    ):
        spark_type = first.dataType().sql().replace(",", ", ")
        computed = sql_name(accepted[text].type)
        known = accepted[text].type.is_atomic
        if known and spark_type != computed:
            wrong.append(f"{text}: {computed} here, {spark_type} in Spark")
        if not first.canonicalized().equals(second.canonicalized()):
            wrong.append(f"{text}: {first} here, {second} in {ours}")
    return wrong


def disagreements(frame: DataFrame, accepted: dict[str, Expr]) -> list[str]:
    """Where values or errors differ on the rows; many expressions in one job."""
    originals, canonical = list(accepted), [to_spark_sql(tree) for tree in accepted.values()]
    selected = frame.selectExpr(
        *(f"CAST(({text}) AS STRING) AS c{n}" for n, text in enumerate(originals + canonical))
    )
    count = len(originals)
    try:
        return [
            f"{originals[n]}: {row[n]!r} and {row[count + n]!r}"
            for row in selected.collect()
            for n in range(count)
            if repr(row[n]) != repr(row[count + n])
        ]
    except runtime_errors():
        if count > 1:
            half = dict(list(accepted.items())[: count // 2])
            rest = {text: tree for text, tree in accepted.items() if text not in half}
            return disagreements(frame, half) + disagreements(frame, rest)
    one, other = outcome(frame, originals[0]), outcome(frame, canonical[0])
    return [] if one == other and one[0] else [f"{originals[0]}: {one} and {other}"]


def test_corpus_is_read_as_spark_reads_it(frame: DataFrame) -> None:
    accepted = {text: tree_of(text) for text in CORPUS}
    assert differences(frame, accepted) == []


def test_corpus_gives_the_same_values_and_errors(frame: DataFrame) -> None:
    """Of a third of them: each that raises costs a dozen jobs."""
    accepted = {text: tree_of(text) for text in some(CORPUS)}
    assert disagreements(frame, accepted) == []


def test_canonical_text_parses_to_the_same_tree() -> None:
    for text in CORPUS:
        tree = tree_of(text)
        again = tree_of(to_spark_sql(tree))
        assert again == tree
        assert to_spark_sql(again) == to_spark_sql(tree)


OPERANDS = ["b", "i8", "i32", "i64", "f32", "f64", "dec", "wide", "s", "bin", "d", "ts", "ntz",
            "NULL", "1", "1.5", "'x'", "INTERVAL '1' DAY", "INTERVAL '1' HOUR",
            "INTERVAL '1' MONTH"]  # fmt: skip
CONSTANTS = {
    "digits": ["2"],
    "format": ["'yyyy-MM-dd'"],
    "unit": ["'hour'"],
    "dateunit": ["'week'"],
}


def combinations() -> list[str]:
    """Every operator, cast and function with operands of every type."""
    pairs = list(itertools.product(OPERANDS, OPERANDS))
    made = [f"{a} {op} {b}" for op in ["=", "+", "-", "*", "/", "%", "DIV", "||"] for a, b in pairs]
    made += [f"CASE WHEN b THEN {a} ELSE {b} END" for a, b in pairs]
    made += [f"{a} IN ({b}, NULL)" for a, b in pairs]
    made += [f"CAST({a} AS {t})" for a in OPERANDS for t in (*CAST_NAMES, "decimal(7, 3)")]
    for row in FUNCTIONS.values():
        for count in {row.least, min(row.most, 3)}:
            kinds = [row.takes[min(n, len(row.takes) - 1)] for n in range(count)]
            choices = [CONSTANTS.get(kind, OPERANDS) for kind in kinds]
            if count < 3:
                tuples = set(itertools.product(*choices))
            else:
                tuples = {tuple(c[n % len(c)] for c in choices) for n in range(len(OPERANDS))}
                tuples |= {(c, "1", "2") for c in OPERANDS} | {("b", c, "NULL") for c in OPERANDS}
            made += [f"{row.name}({', '.join(args)})" for args in sorted(tuples)]
    return list(dict.fromkeys(made))


def test_every_operator_and_function_has_the_type_that_spark_gives_it(frame: DataFrame) -> None:
    accepted = {}
    for text in combinations():
        try:
            accepted[text] = tree_of(text)
        except InvalidStatement:
            continue
    assert len(accepted) > 2_000
    names = {tree.function for tree in accepted.values() if isinstance(tree, Call)}
    assert names == set(FUNCTIONS)
    listed = some([item for item in accepted.items() if not _is_fickle(item[1])], every=6)
    for first in range(0, len(listed), 100):
        assert differences(frame, dict(listed[first : first + 100])) == []


def _is_fickle(tree: Expr) -> bool:
    # Spark gives each rand() and uuid() a seed of its own.
    return isinstance(tree, Call) and tree.function in ("rand", "uuid")


def accepted_of(drawn: list[str]) -> dict[str, Expr]:
    """The trees of the texts that are valid."""
    accepted = {}
    for text in drawn:
        with suppress(InvalidStatement):
            accepted[text] = tree_of(text)
    return accepted


KINDS = st.sampled_from(["bool", "bool", "int", "number", "string", "date", "time"])


UNSHRUNK = settings(
    deadline=None,
    derandomize=True,
    # Shrinking asks Spark thousands of times; the differing text says enough.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
                           HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip


@settings(UNSHRUNK, max_examples=few(8, 25))
@given(st.lists(KINDS.flatmap(texts), min_size=20, max_size=60, unique=True))
def test_random_texts_are_read_as_spark_reads_them(frame: DataFrame, drawn: list[str]) -> None:
    accepted = accepted_of(drawn)
    for tree in accepted.values():
        assert tree_of(to_spark_sql(tree)) == tree
    assert differences(frame, accepted) == []


@settings(UNSHRUNK, max_examples=few(2, 4))
@given(st.lists(KINDS.flatmap(texts), min_size=8, max_size=20, unique=True))
def test_random_texts_give_the_same_values_and_errors(frame: DataFrame, drawn: list[str]) -> None:
    accepted = accepted_of(drawn)
    if accepted:
        assert disagreements(frame, accepted) == []
