"""The evaluator over Arrow gives what Spark gives, or nothing.

Spark is the judge: each expression that is evaluated without it is evaluated by it, too, many in
one query, on tables with the ends of every type. Where Spark raises, there must be no value.
"""

# ruff: noqa: E501  -- the corpus is easier to read in wide rows.

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from statements.test_same_meaning import CORPUS
from support.local_judge import Judge
from support.statement_rows import SCHEMA
from support.statement_tables import expressions, extreme, tame
from tandem.errors import InvalidStatement
from tandem.statements import parse_expression, parse_statement, to_spark_sql
from tandem.statements.local import LocalExpression, NeedsSpark, compile_expression, compile_statement
from tandem.statements.tree import Call, Expr, walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
