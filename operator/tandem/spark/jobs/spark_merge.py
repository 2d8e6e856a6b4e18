"""A merge by Spark: both sides as DataFrames, one join of them, and what its tasks write.

The join yields unmatched source rows, unmatched rows of the table, and rows matched several times,
each with the clause that applies to it. Tasks write what clauses update and insert. Does not pin
the source, nor publish.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tandem.errors import InvalidSpec, StatementFailed
from tandem.jobs.formats import SOURCE_IDS, InputFile, JobTable, MergeJob, SourceJob
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs.local_merge import MergedRows, changed
from tandem.spark.jobs.merge_source import with_identity
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import (
    Batches,
    answers,
    read_rows,
    table_schema,
    task_number,
    with_rules,
)
from tandem.spark.runtime.identity import NUMBER, number_of, value_of
from tandem.spark.runtime.listing import ListedSource, check_unique_names
from tandem.spark.runtime.row_files import (
    BROKEN,
    HIDDEN,
    INPUT,
    POSITION,
    RowFiles,
    RowsWork,
    copied,
    require_texts,
    split_by,
    unwritten,
)
from tandem.spark.sources import readers
from tandem.spark.sources.casts import (
    assigned,
    bounded_text,
    check_columns,
    declared_char_types,
)
from tandem.spark.sources.options import check_option_names, source_job
from tandem.spark.sources.readers import SourcePin
from tandem.statements.merge import SOURCE, TABLE, Clause, MergeStatement, parse_merge
from tandem.statements.tree import quote_name
from tandem.statements.types import Schema
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType


# The source of a merge as one DataFrame, named `s` in its expressions.
#
# Columns of CSV and JSON that the table has by name are read with the table's types, as an ingest
# does; others are strings (CSV), or have the type that Spark infers (JSON). Parquet and Delta have
# their own types. Files may differ in columns: a column that a file lacks is null.


def read(
    control: Control,
    spark: SparkSession,
    schema: StructType,
    pin: SourcePin,
    source: ListedSource | None,
) -> DataFrame:
    """The pinned source. `schema` is the table's.

    Raises: InvalidSpec, StatementFailed, StorageError; and Spark's errors.
    """
    job = source_job(control.spec)
    found = readers.read(control, spark, schema, source=source, version=pin.version)
    frames = [rows.frame for rows in found]
    if not frames:
        raise InvalidSpec(
            "the source has no columns",
            resource=job.source_location,
            field=f"{job.source_field}.location",
            found="files without a line",
            expected="a header, at least",
        )
    for frame in frames:
        check_unique_names(frame.schema.names, job.source_location)
        check_option_names(frame.schema.names, job)
    return frames[0] if len(frames) == 1 else _together(frames, schema, job)


def _together(frames: Sequence[DataFrame], schema: StructType, job: SourceJob) -> DataFrame:
    """All rows, each with the columns of all frames."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    table = {f.name.lower(): f.dataType for f in schema.fields}
    spelled: dict[str, str] = {}
    types: dict[str, DataType] = {}
    for frame in frames:
        for found in frame.schema.fields:
            key = found.name.lower()
            spelled.setdefault(key, found.name)
            if types.setdefault(key, found.dataType) == found.dataType:
                continue
            if key not in table:
                raise InvalidSpec(
                    "a column has different types in the files of the source",
                    resource=job.source_location,
                    field=job.source_field,
                    found=f"{found.name}: {types[key].simpleString()} and "
                    f"{found.dataType.simpleString()}",
                    expected="one type, for a column that the table does not have",
                )
            types[key] = table[key]
    whole = []
    for frame in frames:
        present = {f.name.lower(): f for f in frame.schema.fields}
        columns = []
        for key, name in spelled.items():
            own = present.get(key)
            if own is None:
                column = F.lit(None).cast(types[key])
            elif own.dataType == types[key]:
                column = F.col(quote_name(own.name))
            else:
                column = assigned(
                    F.col(quote_name(own.name)),
                    own.dataType,
                    types[key],
                    job.source_location,
                    name,
                )
            columns.append(column.alias(name))
        whole.append(frame.select(*columns))
    return reduce(lambda a, b: a.unionAll(b), whole)


# The join of both.


_HERE = "__tandem_here"
"""True on every row of the source: an outer join has null for rows without one."""
CLAUSE = "__tandem_clause"
"""The number of the clause that applies to a row."""
_NONE = -1
"""The clause of rows that matched, but to which no clause applies."""

Held = tuple[readers.SourcePin, ListedSource | None]
"""The pinned source, and its files; None for a Delta table."""


@dataclass(frozen=True)
class Sides:
    """The two sides of the join, and the mode. `part`: the table's side is only some of its rows;
    `record`: source rows have an identity, which is recorded. `ids`: the column of row ids, if rows
    keep theirs. `bounded`: from `declared_char_types`. `plain` is the source without the
    join's columns; `size` the size of its files in bytes, 0 if unknown; `of` is the table;
    `broadcast`: the source takes little memory."""

    statement: MergeStatement
    schema: StructType
    table: DataFrame
    source: DataFrame
    plain: DataFrame
    size: int
    part: bool
    record: bool
    ids: tuple[str, ...]
    bounded: Mapping[str, DataType]
    of: JobTable
    broadcast: bool = False

    @property
    def numbered(self) -> Mapping[str, Column]:
        """Of the rows of `decided`, the values of identity columns that the table gives, by column;
        NULL where it gives none."""
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

        found = {}
        for name in self.of.identity:
            clauses = [n for n, c in enumerate(self.statement.clauses) if _numbers(c, name)]
            if clauses and not self.part:
                found[name] = F.when(F.col(CLAUSE).isin(clauses), F.col(quote_name(name)))
        return found


def sides_of(
    control: Control,
    spark: SparkSession,
    job: MergeJob,
    inputs: Sequence[InputFile],
    round_: int,
    held: Held,
    part: bool,
) -> Sides:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    table = control.spec.table
    schema = table_schema(table)
    source = read(control, spark, schema, *held)
    statement = parse_merge(
        job.on,
        job.clauses,
        Schema.from_json(table.schema_string),
        Schema.from_json(source.schema.json()),
    )
    if any(clause.every for clause in statement.clauses):
        _check_every(source.schema, schema, job)
    ids = table.column_of_ids if _updates(statement) else ()
    columns = (*_columns_read(statement), *ids)
    rows = read_rows(control, spark, inputs, columns, round_, hidden=True)
    identified = None
    if statement.records_matches:
        identified = with_identity(source)
    plain = source if identified is None else identified
    joined = plain.withColumn(_HERE, F.lit(True))
    if any(_numbers(clause, name) for clause in statement.clauses for name in table.identity):
        joined = joined.withColumn(NUMBER, number_of(plain))
    return Sides(
        statement,
        schema,
        rows.alias(TABLE),
        joined.alias(SOURCE),
        plain,
        size=sum(file.size for file in held[0].files),
        part=part,
        record=identified is not None,
        ids=ids,
        bounded=declared_char_types(table.schema_string),
        of=table,
    )


def _numbers(clause: Clause, name: str) -> bool:
    """Whether a clause inserts rows without a value for an identity column."""
    return clause.action == "Insert" and name not in clause.set_sql


def _updates(statement: MergeStatement) -> bool:
    return any(clause.action == "Update" for clause in statement.clauses)


def _check_every(source: StructType, schema: StructType, job: MergeJob) -> None:
    """Columns of struct, array or map type must have the same fields on both sides."""
    from pyspark.sql.types import AtomicType, StructType

    for field in schema.fields:
        if not isinstance(field.dataType, AtomicType):
            same_name = [f for f in source.fields if f.name.lower() == field.name.lower()]
            pair = StructType(same_name), StructType([field])
            check_columns(*pair, job.source_location, field=job.source_field)


def _columns_read(statement: MergeStatement) -> tuple[str, ...]:
    """The columns that are evaluated, and those that some update leaves unchanged."""
    names = [column.name for column in statement.table.columns]
    read = set(statement.columns_of_table())
    for clause in statement.clauses:
        if clause.action == "Update":
            read |= set(names) - clause.set_sql.keys()
    return tuple(name for name in names if name in read)


def decided(sides: Sides) -> DataFrame:
    """The rows that change: the table's columns with their new values, the row's id and position,
    and the number of the clause that applies to it."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    clauses = sides.statement.clauses
    joined = _joined(sides).withColumn(CLAUSE, _clause(sides.statement, sides.record))
    joined = joined.filter(F.col(CLAUSE).isNotNull())
    written = [(n, c) for n, c in enumerate(clauses) if c.action != "Delete"]
    columns = []
    for field in sides.schema.fields if written else ():
        value = F.lit(None).cast(field.dataType)
        for number, clause in written:
            becomes = _value(clause, field.name, sides).cast(field.dataType)
            value = F.when(F.col(CLAUSE) == number, becomes).otherwise(value)
        columns.append(value.alias(field.name))
    of_table = (*sides.ids, INPUT, POSITION)
    hidden = [F.col(f"{TABLE}.{quote_name(name)}").alias(name) for name in of_table]
    if sides.record:
        hidden += [F.col(f"{SOURCE}.{name}").alias(name) for name in SOURCE_IDS]
    return joined.select(*columns, *hidden, F.col(CLAUSE))


def _value(clause: Clause, name: str, sides: Sides) -> Column:
    """The new value of a column in an update or an insert."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql.types import AtomicType

    text = clause.set_sql.get(name)
    if name in sides.of.identity and _numbers(clause, name):
        return value_of(sides.of, name, F.col(f"{SOURCE}.{NUMBER}"))
    if text is None:
        return F.lit(None) if clause.action == "Insert" else F.col(f"{TABLE}.{quote_name(name)}")
    wanted, value = sides.schema[name].dataType, F.expr(text)
    if clause.every and not isinstance(wanted, AtomicType):
        found = next(f for f in sides.source.schema.fields if f.name.lower() == name.lower())
        value = assigned(value, found.dataType, wanted, "the source", name)
    # ANSI store assignment: a value that does not fit its column raises.
    return bounded_text(value, sides.bounded.get(name.lower()), name)


def _clause(statement: MergeStatement, record: bool) -> Column:
    """The number of the clause that applies to a row of the join; null for none, except for matches
    that are recorded nevertheless."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    def first(when: str, otherwise: Column) -> Column:
        chosen = otherwise
        numbered = [(n, c) for n, c in enumerate(statement.clauses) if c.when == when]
        for number, clause in reversed(numbered):
            applies = F.expr(clause.where_sql)
            chosen = F.when(applies, number).otherwise(chosen)
        return chosen

    nothing = F.lit(None).cast("int")
    in_table = F.col(f"{TABLE}.{POSITION}").isNotNull()
    in_source = F.col(f"{SOURCE}.{_HERE}").isNotNull()
    recorded = statement.one_match_only or record
    return (
        F.when(in_table & in_source, first("Matched", F.lit(_NONE) if recorded else nothing))
        .when(in_source, first("NotMatched", nothing))
        .otherwise(first("NotMatchedBySource", nothing))
    )


def _joined(sides: Sides) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    statement, source = sides.statement, sides.source
    inserts = statement.when("NotMatched") and not sides.part
    leaves = statement.when("NotMatchedBySource")
    how = {
        (False, False): "inner",
        (True, False): "right",
        (False, True): "left",
        (True, True): "full",
    }[bool(inserts), bool(leaves)]
    if sides.broadcast and how in ("inner", "left"):
        source = F.broadcast(source)
    return sides.table.join(source, F.expr(statement.on_sql), how)


def several_matches(
    control: Control,
    spark: SparkSession,
    sides: Sides,
    inputs: Sequence[InputFile],
    place: tuple[int, int],
) -> StatementFailed:
    """The error that shows the key of a row that several source rows matched."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    input_, position = place
    statement = sides.statement
    keys = statement.keys_of_table()
    needed = tuple(statement.columns_of_table()) or keys
    rows = read_rows(control, spark, [inputs[input_]], needed, 0, hidden=True)
    row = rows.filter(F.col(POSITION) == position).alias(TABLE)
    both = row.join(sides.source, F.expr(statement.on_sql), "inner")
    shown = [F.first(F.col(f"{TABLE}.{quote_name(k)}").cast("string")).alias(k) for k in keys]
    found = both.agg(F.count(F.lit(1)).alias("__tandem_count"), *shown).collect()[0]
    values = ", ".join(f"{key} = {str(found[key])[:80]}" for key in keys)
    file = inputs[input_].logged_path
    return StatementFailed(
        "several rows of the source match one row of the table, so it is not clear which applies",
        field="spec.merge.on",
        found=f"{found['__tandem_count']} rows for {values or f'row {position} of {file}'}",
        expected="at most one",
        remedy="Make `on` or the source more selective, so that each row is matched at most once",
    )


# What the tasks write. Rows are deleted, or stay, without being written; where each row of the
# table is that changes or stays becomes a match. Rows that matched without any effect are matches,
# too, so that a row that matched twice is found whatever the clauses are.


@dataclass(frozen=True, kw_only=True)
class MergeWork(RowsWork):
    """A write of decided rows.

    Attributes:
        statement: the merge, of whose clauses each row has the number.
        most_recorded: of so many matches at most a task sends which source row each is of.
    """

    statement: MergeStatement
    most_recorded: int = 0

    def new_texts(self, clause: int) -> list[str]:
        """The columns whose texts are new in rows of a clause; partitions are checked apart."""
        chosen = [item.column for item in self.statement.clauses[clause].assignments]
        return [name for name in chosen if name not in self.table.partition_columns]


def write_decided(control: Control, rows: DataFrame, work: MergeWork) -> list[MergedRows]:
    """Write rows of `decided`: what each task has written."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    written = [n for n, c in enumerate(work.statement.clauses) if c.action != "Delete"]
    if written:
        rows = with_rules(rows, work.table, F.col(CLAUSE).isin(written))
    store, names = control.store, tuple(rows.columns)

    def write(batches: Batches) -> Iterator[MergedRows]:
        yield _written(store, work, names, batches)

    return answers(rows, write)


def _written(store: Store, work: MergeWork, names: Sequence[str], batches: Batches) -> MergedRows:
    ids = tuple(name for name in SOURCE_IDS if name in names)
    columns = tuple(name for name in names if name not in (*HIDDEN, *ids, CLAUSE, BROKEN))
    inserted = tuple(name for name in columns if name not in (work.table.row_ids or ()))
    others: list[pa.Table] = []

    def leave(rows: pa.RecordBatch, output: int | None) -> None:
        others.append(unwritten(copied(rows.select([*HIDDEN, *ids])), output, ids))

    with (
        RowFiles(store, work, (*columns, *HIDDEN, *ids), task_number()) as updates,
        RowFiles(store, work, inserted, task_number()) as inserts,
    ):
        for batch in batches:
            clauses = batch.column(CLAUSE).to_numpy().astype(np.int64)
            for number, rows in split_by(batch, clauses):
                if number == _NONE:
                    leave(rows, KEPT)
                    continue
                for name in work.new_texts(number):
                    require_texts(rows.column(name), name)
                match work.statement.clauses[number].action:
                    case "Update":
                        updates.take(rows)
                    case "Insert":
                        inserts.take(rows)
                    case "Delete":
                        leave(rows, None)
        found, fresh = updates.written(), inserts.written()
    matches = pa.concat_tables([found.matches, *others])
    complete = len(matches) <= work.most_recorded
    if ids and not complete:
        # The driver would discard them.
        for name in ids:
            at = matches.column_names.index(name)
            matches = matches.set_column(at, name, pa.nulls(len(matches), pa.int64()))
        if not work.statement.one_match_only:
            matches = changed(matches)
    return MergedRows(replace(found, matches=matches).sent(), fresh.files, complete=complete)
