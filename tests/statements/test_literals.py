"""Constants that Spark cannot convert are refused, and no other ones."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import lit

from tandem.errors import InvalidStatement
from tandem.statements import parse_statement, parse_where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = {
    "tiny": "byte",
    "id": "long",
    "n": "integer",
    "x": "double",
    "price": "decimal(5,2)",
    "ok": "boolean",
    "day": "date",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "name": "string",
}
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in TYPES.items()
        ],
    }
)

TEXTS: list[str] = tomllib.loads(
    Path(__file__).with_name("corpus.toml").read_text(encoding="utf-8")
)["constants"]


def is_refused(where: str) -> bool:
    try:
        parse_where(where, SCHEMA)
    except InvalidStatement:
        return True
    return False


@pytest.mark.parametrize(
    "where",
    [
        "id = 'abc'",
        "'abc' < id",
        "n IN (1, 'x')",
        "id BETWEEN 1 AND 'many'",
        "x > 'lots'",
        "price = '1,5'",
        "ok = 'maybe'",
        "day = '2013-13-01'",
        "at >= 'last week'",
        "local = '28.02.2013'",
        "id + 'a' > 1",
        "CAST('abc' AS INT) = 1",
        "CAST(300 AS TINYINT) = tiny",
        "NOT (name = 'a' OR id = 'abc')",
    ],
)
def test_a_constant_without_a_value_is_refused_where_it_stands(where: str) -> None:
    with pytest.raises(InvalidStatement, match="this is not a valid ") as refused:
        parse_where(where, SCHEMA, resource="TableUpdate/late", field="spec.delete.where")
    assert (refused.value.resource, refused.value.field) == (
        "TableUpdate/late",
        "spec.delete.where",
    )
    assert refused.value.expected
    assert "column" in refused.value.message, "the position"


@pytest.mark.parametrize(
    "where",
    [
        "id = '7'",
        "id = name",
        "name = 5",
        "name = 'abc'",
        "name IN ('a', 'b')",
        "TRY_CAST('abc' AS INT) IS NULL",
        "day = 'today'",
        "at > '2013-02'",
        "name LIKE 'a%'",
        "id IS NULL",
        "id = NULL",
    ],
)
def test_other_constants_are_left_alone(where: str) -> None:
    assert not is_refused(where)


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        ("tiny", "127", True),
        ("tiny", "128", False),
        ("n", "2147483647", True),
        ("n", "2147483648", False),
        ("price", "999.99", True),
        ("price", "1000", False),
        ("price", "-999", True),
        ("x", "5", True),
    ],
)
def test_a_number_fits_the_column_that_is_set(column: str, value: str, fits: bool) -> None:
    def parsed() -> None:
        parse_statement(None, {column: value}, SCHEMA)

    if fits:
        parsed()
        return
    with pytest.raises(InvalidStatement):
        parsed()


def test_nothing_is_refused_that_spark_converts(spark: SparkSession) -> None:
    """Each text, compared with a column of each type: whatever Spark has a value for is allowed,
    and what it has none for is refused, but for times, whose text Spark alone knows."""
    of_texts = {
        "n": "BIGINT",
        "x": "DOUBLE",
        "price": "DOUBLE",
        "ok": "BOOLEAN",
        "day": "DATE",
        "at": "TIMESTAMP",
        "local": "TIMESTAMP_NTZ",
    }
    special = {"now", "today", "yesterday", "epoch", "Tomorrow"}
    pairs = [(text, column) for text in TEXTS if text not in special for column in of_texts]
    casts = [lit(text).try_cast(of_texts[column]).isNotNull() for text, column in pairs]
    [row] = spark.range(1).select(*casts).collect()
    for (text, column), has_value in zip(pairs, row, strict=True):
        refused = is_refused(f"{column} = '{text}'")
        assert not (refused and has_value), f"{text!r} as {of_texts[column]}"
        if of_texts[column] in ("BIGINT", "DOUBLE", "BOOLEAN"):
            assert refused is not has_value, f"{text!r} as {of_texts[column]}"
    for text in special:
        assert not is_refused(f"day = '{text}'"), text
