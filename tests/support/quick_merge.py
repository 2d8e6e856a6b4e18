"""What `support.quick_jobs` does for a merge: the join by DuckDB, the source's pin by the engine.

Sources are Parquet with the columns of the table.
"""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from tandem.spark import pin
from tandem.spark.control import Control
from tandem.spark.job import MergeJob
from tandem.statements.merge import Clause, Merge, parse_merge
from tandem.statements.types import Schema

FATE = "__fate"
"""What becomes of a row: the action of the clause that applies to it."""


def merged(opened: Control, job: MergeJob, rows: pa.Table) -> pa.Table:
    """The rows to which something happens, as they become, with `FATE`. `rows` have
    `__input` and `__position`; inserted ones have nulls there."""
    held, _ = pin.pinned(opened)
    source = pq.read_table(unquote(urlsplit(job.source_location).path))
    columns = Schema.from_json(opened.spec.table.schema_string)
    statement = parse_merge(job.on, job.clauses, columns, columns)
    with duckdb.connect() as engine:
        engine.execute("SET threads = 1")
        engine.register("target", rows)
        engine.register("source", source)
        found = engine.sql(_text(statement, rows.schema.names)).to_arrow_table()
    pin.check(opened, held)
    return found.cast(pa.schema([*rows.schema, pa.field(FATE, pa.string())]))


def _text(statement: Merge, names: list[str]) -> str:
    clauses = list(enumerate(statement.clauses))
    clause = (
        f"CASE WHEN t.__position IS NULL THEN {_first(clauses, 'NotMatched')} "
        f"WHEN s.__here IS NULL THEN {_first(clauses, 'NotMatchedBySource')} "
        f"ELSE {_first(clauses, 'Matched')} END"
    )
    becomes = [_becomes(clauses, name) for name in names if not name.startswith("__")]
    fate = " ".join(f"WHEN {number} THEN '{each.action}'" for number, each in clauses)
    return (
        f"SELECT {', '.join(becomes)}, __position, __input, CASE __clause {fate} END AS {FATE} "
        f"FROM (SELECT t, s, __position, __input, {clause} AS __clause FROM target t "
        f"FULL JOIN (SELECT *, TRUE AS __here FROM source) s ON {sql(statement.on_sql)}) "
        f"WHERE __clause >= 0 ORDER BY __input, __position, 1"
    )


def _first(clauses: list[tuple[int, Clause]], when: str) -> str:
    """The number of the clause that applies, -1 for none."""
    cases = [f"WHEN {sql(c.where_sql)} THEN {number}" for number, c in clauses if c.when == when]
    return f"CASE {' '.join(cases)} ELSE -1 END" if cases else "-1"


def _becomes(clauses: list[tuple[int, Clause]], name: str) -> str:
    column = '"' + name.replace('"', '""') + '"'
    cases = []
    for number, clause in clauses:
        if clause.action == "Delete":
            continue
        kept = f"t.{column}" if clause.action == "Update" else "NULL"
        cases.append(f"WHEN {number} THEN {sql(clause.set_sql.get(name, kept))}")
    return f"CASE __clause {' '.join(cases)} END AS {column}" if cases else f"t.{column}"


def sql(canonical: str) -> str:
    """Spark's quotes → DuckDB's; the statements of these tests mean the same in both."""
    return canonical.replace("`", '"')
