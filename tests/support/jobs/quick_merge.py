"""What `quick_jobs` does for a merge: the join by DuckDB, the source's pin by the engine.

Sources are Parquet with the columns of the table. As the job on Spark does, one that inserts
records which source row matched which row of the table, and a round on a part inserts nothing.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from urllib.parse import unquote, urlsplit

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandem.errors import StatementFailed
from tandem.jobs.formats import SOURCE_IDS, SOURCE_IS_WHOLE, SOURCE_SCHEMA, MergeJob
from tandem.jobs.results import SideFileRef
from tandem.reconcile.matches import KEPT
from tandem.spark.runtime.control import Control, to_file
from tandem.spark.sources import readers
from tandem.statements.merge import Clause, MergeStatement, parse_merge
from tandem.statements.types import Schema

FATE = "__fate"
"""What becomes of a row: the action of the clause that applies to it, or `STAYS`."""
STAYS = "Keep"
"""The fate of a row that matched, and to which no clause applies."""
_STAYS, _NOTHING = -1, -2
"""In place of a clause's number: of matches that are recorded but not changed, of the rest."""
SOURCES = ("__source_1", "__source_2")
"""Which source row it was, as two hashes; null where there is none. Only where it is recorded."""


def merged(opened: Control, job: MergeJob, rows: pa.Table, *, part: bool) -> pa.Table:
    """The rows that matched or to which something happens, as they become, with `FATE`. `rows`
    have `__input` and `__position`; inserted ones have nulls there. `part`: `rows` are not all
    rows of the table, so nothing is inserted.

    Raises: StatementFailed if several source rows match one row, and it matters which.
    """
    held, _ = readers.pinned(opened)
    source = pq.read_table(unquote(urlsplit(job.source_location).path))
    columns = Schema.from_json(opened.spec.table.schema_string)
    statement = parse_merge(job.on, job.clauses, columns, columns)
    hidden = [pa.field(FATE, pa.string())]
    records = bool(statement.when("NotMatched")) and statement.deterministic
    if records and not any(pa.types.is_nested(field.type) for field in source.schema):
        source = _with_identity(source)
        hidden += [source.schema.field(name) for name in SOURCES]
    with duckdb.connect() as engine:
        engine.execute("SET threads = 1")
        engine.register("target", rows)
        engine.register("source", source)
        source_columns = SOURCES if len(hidden) > 1 else ()
        text = _text(statement, rows.schema.names, source_columns, part=part)
        found = engine.sql(text).to_arrow_table()
    readers.check(opened, held)
    return _once(statement, found.cast(pa.schema([*rows.schema, *hidden])))


def copied(opened: Control, job: MergeJob) -> SideFileRef:
    """The whole source for the engine, with its identities where matches are recorded. Its schema
    is the table's, unless the file's metadata has one."""
    source = pq.read_table(unquote(urlsplit(job.source_location).path))
    schema = (source.schema.metadata or {}).get(SOURCE_SCHEMA, opened.spec.table.schema_string)
    if not any(pa.types.is_nested(field.type) for field in source.schema):
        source = _with_identity(source).rename_columns([*source.schema.names, *SOURCE_IDS])
    metadata = {SOURCE_SCHEMA: schema, SOURCE_IS_WHOLE: "true"}
    return opened.side_file(0, "source.arrow", to_file(source.replace_schema_metadata(metadata)))


def with_record(matches: pa.Table, matched: pa.Table) -> pa.Table:
    """The answer for the rows `matched`, with the source row that each one matched, if recorded."""
    if SOURCES[0] not in matched.schema.names:
        return matches
    stays = pa.array([fate == STAYS for fate in matched.column(FATE).to_pylist()])
    outputs = pc.if_else(stays, pa.scalar(KEPT, pa.int32()), matches.column("output"))
    matches = matches.set_column(2, "output", outputs)
    for number, name in enumerate(SOURCES, start=1):
        matches = matches.append_column(f"source_{number}", matched.column(name))
    return matches


def _with_identity(source: pa.Table) -> pa.Table:
    """Rows of equal content have the same identity, in every round and process."""
    names = sorted(source.schema.names)
    found = [
        hashlib.blake2b(repr([row[name] for name in names]).encode(), digest_size=16).digest()
        for row in source.to_pylist()
    ]
    hashes = np.frombuffer(b"".join(found), dtype=np.int64).reshape(-1, len(SOURCES))
    for number, name in enumerate(SOURCES):
        source = source.append_column(name, pa.array(hashes[:, number], pa.int64()))
    return source


def _once(statement: MergeStatement, found: pa.Table) -> pa.Table:
    """Each row of the table once, without a record if it came several times; rows that stay are
    included only if they are recorded."""
    ours = pc.is_valid(found["__position"])
    places = found.filter(ours).select(["__input", "__position"])
    recorded = SOURCES[0] in found.schema.names
    if len(places.group_by(places.schema.names).aggregate([])) < len(places):
        if statement.one_match_only:
            raise StatementFailed(
                "several rows of the source match one row of the table", field="spec.merge.on"
            )
        # They stay, or are deleted, by whichever row they matched.
        keys = found.select(["__input", "__position"]).to_pylist()
        repeats = [False, *(key == before for before, key in pairwise(keys))]
        again = pc.and_(ours, pa.array(repeats))
        recorded, found = (
            False,
            found.filter(pc.invert(again)).drop_columns(
                [name for name in SOURCES if name in found.schema.names]
            ),
        )
    return found if recorded else found.filter(pc.not_equal(found[FATE], STAYS))


def _text(
    statement: MergeStatement, names: list[str], columns: tuple[str, ...], *, part: bool
) -> str:
    """`columns`: the columns of the source that identify its row. All rows that match are there,
    whatever happens to them: one may do so twice."""
    clauses = list(enumerate(statement.clauses))
    clause = (
        f"CASE WHEN t.__position IS NULL THEN {_first(clauses, 'NotMatched')} "
        f"WHEN s.__here IS NULL THEN {_first(clauses, 'NotMatchedBySource')} "
        f"ELSE {_first(clauses, 'Matched', _STAYS)} END"
    )
    becomes = [_becomes(clauses, name) for name in names if not name.startswith("__")]
    fate = " ".join(f"WHEN {number} THEN '{each.action}'" for number, each in clauses)
    sources = "".join(f", s.{name}" for name in columns)
    return (
        f"SELECT {', '.join(becomes)}, __position, __input, "
        f"CASE __clause {fate} WHEN {_STAYS} THEN '{STAYS}' END AS {FATE}{sources} "
        f"FROM (SELECT t, s, __position, __input, {clause} AS __clause FROM target t "
        f"{'LEFT' if part else 'FULL'} JOIN (SELECT *, TRUE AS __here FROM source) s "
        f"ON {sql(statement.on_sql)}) "
        f"WHERE __clause <> {_NOTHING} ORDER BY __input, __position, 1"
    )


def _first(clauses: list[tuple[int, Clause]], when: str, otherwise: int = _NOTHING) -> str:
    """The number of the clause that applies."""
    cases = [f"WHEN {sql(c.where_sql)} THEN {number}" for number, c in clauses if c.when == when]
    return f"CASE {' '.join(cases)} ELSE {otherwise} END" if cases else f"{otherwise}"


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
    return canonical.replace("`", '"').replace("<=>", "IS NOT DISTINCT FROM")
