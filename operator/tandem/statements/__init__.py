"""`where` and `set`: parses a user's text into a typed tree, and generates canonical Spark SQL.

A user's text never reaches Spark unchanged. Pure: no I/O, no Spark. Spark defines the meaning of a
statement; `local` evaluates the part for which tests prove that its result is the same. The
accepted language is in docs/statements.md.

    lexer      text to tokens
    cursor     the parser's position, its limits, and the names that it resolves; targets of SET
    parser     the grammar: tokens to tree, or the position at which a text is refused
    functions  the functions that may be called
    local      package: evaluation over Arrow
    tree       the typed tree, and its canonical Spark SQL
    types      data types and columns
    coercion   the result types of operators, and constants that have no value of a type
    statement  update and delete, and how values are stored in columns
    merge      merge
    rules      CHECK constraints and invariants, which each row with new values must satisfy
"""

from typing import TYPE_CHECKING

from tandem.exports import exports

if TYPE_CHECKING:
    from tandem.statements.statement import (
        Assignment,
        Statement,
        parse_expression,
        parse_statement,
        parse_where,
    )
    from tandem.statements.tree import to_spark_sql
    from tandem.statements.types import Schema

__all__ = [
    "Assignment",
    "Schema",
    "Statement",
    "parse_expression",
    "parse_statement",
    "parse_where",
    "to_spark_sql",
]

__getattr__ = exports(
    __name__,
    {
        "to_spark_sql": "tree",
        "Assignment": "statement",
        "Statement": "statement",
        "parse_expression": "statement",
        "parse_statement": "statement",
        "parse_where": "statement",
        "Schema": "types",
    },
)
