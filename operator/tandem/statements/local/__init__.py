"""Evaluates statements over Arrow tables, without Spark, where the result is proven equal.

Spark defines the meaning of a statement (`tandem.statements.coercion`), but takes long for small
numbers of rows, so the part of the language for which differential tests prove the same results is
evaluated here, too. `compile_…` returns None for everything else, and its result raises
`NeedsSpark` instead of returning a value where Spark would raise. Pure: no I/O, no Spark.

    expression  expressions; update and delete
    kernels     rows and their columns, operators and functions
    merge       merge
    rules       the rules of a table, which row breaks which, and the columns that it computes
"""

from typing import TYPE_CHECKING

from tandem.exports import exports

if TYPE_CHECKING:
    from tandem.statements.local.expression import (
        LocalExpression,
        LocalStatement,
        compile_expression,
        compile_statement,
    )
    from tandem.statements.local.kernels import LocalRows, NeedsSpark
    from tandem.statements.local.merge import LocalClause, LocalMerge, RowPairs, compile_merge

__all__ = [
    "LocalClause",
    "LocalExpression",
    "LocalMerge",
    "LocalRows",
    "LocalStatement",
    "NeedsSpark",
    "RowPairs",
    "compile_expression",
    "compile_merge",
    "compile_statement",
]

__getattr__ = exports(
    __name__,
    {
        "LocalExpression": "expression",
        "compile_expression": "expression",
        "RowPairs": "merge",
        "LocalClause": "merge",
        "LocalMerge": "merge",
        "compile_merge": "merge",
        "LocalRows": "kernels",
        "NeedsSpark": "kernels",
        "LocalStatement": "expression",
        "compile_statement": "expression",
    },
)
