"""The merge job: joins the table with a source, writes updated rows and inserts.

Round 0 merges into the files of the job; then the driver serves rounds as the statement job does:
the whole merge again at a later version, or only rows of the table that are new since. A merge that
inserts records which source row matched which row (`row_hash.py`), so that the engine can decide
whether a part suffices. The source is pinned on first read (`source_pin.py`). The user's text is
parsed here, where the source's columns are known, and Spark receives canonical text only. One join
yields unmatched source rows, unmatched rows of the table, and rows matched several times.

Where the meaning is proven equal, and the source is small, tasks merge over Arrow (`local_merge`),
without Spark if the job is small; Spark does if an expression or a row needs it.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tandem.errors import CountMismatch, SourceChanged, StatementFailed
from tandem.jobs.formats import SOURCE_IDS, InputFile, MergeJob
from tandem.jobs.results import JobResult, SidecarRef
from tandem.spark.jobs import merge_source, source_copy
from tandem.spark.jobs.local_merge import source as local_source
from tandem.spark.jobs.local_merge.rounds import MergeAnswer, execute
from tandem.spark.jobs.source_copy import SourceSize
from tandem.spark.jobs.statement import serve
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import (
    cardinality,
    isolated_session,
    read_rows,
    reported_shares,
    save_rows,
    table_schema,
)
from tandem.spark.runtime.listing import ListedSource
from tandem.spark.runtime.names import quoted_identifier
from tandem.spark.sources import source_pin
from tandem.spark.sources.row_hash import with_identity
from tandem.spark.sources.schema_alignment import by_name, check_columns
from tandem.statements.local import NeedsSpark
from tandem.statements.merge import SOURCE, TABLE, Clause, MergeStatement, parse_merge
from tandem.statements.types import Schema

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tandem.spark.jobs.merge_writer import MergeWriteResult

_HERE = "__tandem_here"
"""True on every row of the source: an outer join has null for rows without one."""
_NONE = -1
"""The clause of rows that matched, but to which no clause applies."""
MEASURED_BYTES = 16 << 20
"""A source whose files are larger is not read an additional time to measure it."""
BROADCAST_BYTES = 64 << 20
"""A source that takes at most this much memory is broadcast to all tasks, if the type of join
allows it. For a source that was not measured Spark decides at run time."""

MAX_RECORDED = 2_000_000
"""A merge that matched more rows is executed again as a whole instead: the record of a row takes 16
bytes, in the job and in the operator, and as much again for its position if it stays."""
UNEVEN = 4
"""A task may match up to this many times its share of the rows: so all tasks together send the
driver at most this many times the rows that it keeps."""


@dataclass(frozen=True)
class _Sides:
    """The two sides of the join, and the mode. `part`: the table's side is only some of its rows;
    `record`: source rows have an identity, which is recorded. `plain` is the source without the
    join's columns; `size` the size of its files in bytes, 0 if unknown; `broadcast`: it takes
    little memory."""

    statement: MergeStatement
    schema: StructType
    table: DataFrame
    source: DataFrame
    plain: DataFrame
    size: int
    part: bool
    record: bool
    broadcast: bool = False


def run(
    control: Control,
    spark: SparkSession,
    stop: threading.Event | None = None,
    *,
    local: bool = True,
) -> None:
    """Merge, then serve rounds. `stop` ends the service early (tests).

    Args:
        local: merge over Arrow what is proven equal.
    Raises: TandemError if round 0 fails. Failures of later rounds are reported to the engine.
    """
    job = control.spec.job
    assert isinstance(job, MergeJob)
    with ExitStack() as opened:
        context = spark.sparkContext
        is_local = local and _may_be_local(job)
        own: SparkSession | None = None
        size: SourceSize | None = None

        def round_(inputs: Sequence[InputFile], number: int) -> None:
            nonlocal is_local, own, size
            part = _is_part(control, number)
            if is_local:
                is_local = _merge_over_arrow(control, context, inputs, number, part=part)
            if not is_local:
                if own is None:
                    own = opened.enter_context(_session(spark))
                size = _merge(control, own, job, inputs, number, size, part=part)

        round_(job.inputs, 0)
        serve(control, round_, stop or threading.Event())


def run_here(control: Control, ended: threading.Event, turn: AbstractContextManager[Any]) -> bool:
    """Merge in this thread, then serve rounds until the engine ends the job, or `ended` is set;
    False if Spark is needed: for the source, an expression, a row or many rows, also of a later
    round.

    Args:
        turn: entered for each round.
    Raises: TandemError if round 0 fails; as `run`.
    """
    job = control.spec.job
    assert isinstance(job, MergeJob)
    is_local = _may_be_local(job)

    def round_(inputs: Sequence[InputFile], number: int) -> None:
        nonlocal is_local
        with turn:
            part = _is_part(control, number)
            is_local = _merge_over_arrow(control, None, inputs, number, part=part)
        if not is_local:
            ended.set()

    if is_local:
        round_(job.inputs, 0)
        serve(control, round_, ended)
    return is_local


def _may_be_local(job: MergeJob) -> bool:
    return job.source_format in local_source.FORMATS


def _is_part(control: Control, round_: int) -> bool:
    request = control.request(round_) if round_ else None
    return request is not None and request.part


@contextmanager
def _session(spark: SparkSession) -> Iterator[SparkSession]:
    from tandem.spark.jobs.merge_writer import MergeSink

    with isolated_session(spark) as own:
        own.dataSource.register(MergeSink)
        yield own


def _merge_over_arrow(
    control: Control,
    context: SparkContext | None,
    inputs: Sequence[InputFile],
    round_: int,
    *,
    part: bool,
) -> bool:
    """Execute a round over Arrow; False if it needs Spark: nothing is published then."""
    live = sum(i.rows - cardinality(i) for i in inputs)
    try:
        with _held(control) as held:
            source = local_source.load(control, *held)
            answer = execute(
                control,
                context,
                source,
                inputs if live else (),
                round_,
                inserts=not part,
                most_recorded=MAX_RECORDED,
            )
    except NeedsSpark:
        return False
    copy = local_source.copied(control, source, round_)
    _publish(control, round_, live, answer, copy)
    return True


def _merge(
    control: Control,
    spark: SparkSession,
    job: MergeJob,
    inputs: Sequence[InputFile],
    round_: int,
    size: SourceSize | None,
    *,
    part: bool,
) -> SourceSize | None:
    """Execute a round; returns the memory that the source takes, which does not change."""
    live = sum(i.rows - cardinality(i) for i in inputs)
    with _held(control) as held:
        sides = _sides(control, spark, job, inputs if live else (), round_, held, part)
        if round_ == 0 and _is_small(sides):
            size = source_copy.measure(sides.plain, sides.statement)
        if size is not None and size.bytes <= BROADCAST_BYTES:
            sides = replace(sides, broadcast=True)
        copy = _copy(control, sides, size, round_)
        with reported_shares(control, "Merging", inputs, round_):
            written = _write(control, sides, inputs, job.target_file_size, round_)
        if written.doubled:
            raise _several(control, spark, sides, inputs, written.doubled[0])
    data = control.store.get(written.matches)
    matches = SidecarRef(
        path=written.matches, size=len(data), sha256=hashlib.sha256(data).hexdigest()
    )
    counts = written.updated, written.deleted, written.inserted
    _publish(control, round_, live, MergeAnswer(written.outputs, matches, *counts), copy)
    return size


def _publish(
    control: Control, round_: int, live: int, answer: MergeAnswer, copy: SidecarRef | None
) -> None:
    """Raises: CountMismatch, StorageError."""
    _check_counts(answer, live, round_)
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            round=round_,
            outputs=answer.outputs,
            matches=answer.matches,
            source=copy,
            rows_read=live,
            rows_written=answer.updated + answer.inserted,
            rows_matched=answer.updated + answer.deleted,
        )
    )


def _copy(
    control: Control, sides: _Sides, size: SourceSize | None, round_: int
) -> SidecarRef | None:
    """Copy the source for the engine: whole in the first round, if it is small; else its bounds in
    the second round, which most merges do not have."""
    if round_ == 0 and size is not None:
        return source_copy.copy_all_rows(control, sides.plain, sides.statement, size, round_)
    if round_ == 1 and control.result(0).source is None:
        return source_copy.bounds(control, sides.plain, sides.statement, round_)
    return None


def _is_small(sides: _Sides) -> bool:
    """Whether reading the source an additional time costs little."""
    if sides.size:
        return sides.size <= MEASURED_BYTES
    # The pin of a Delta table has no sizes; the size that one task reads is bounded.
    return sides.plain.rdd.getNumPartitions() <= 1


_Held = tuple[source_pin.SourcePin, ListedSource | None]


@contextmanager
def _held(control: Control) -> Iterator[_Held]:
    """The pinned source, checked before and after it is read: an error in between may be a
    consequence of the change. Raises: SourceChanged."""
    found, source = source_pin.pinned(control)
    try:
        yield found, source
    except SourceChanged:
        raise
    except Exception:
        source_pin.check(control, found)
        raise
    source_pin.check(control, found)


def _sides(
    control: Control,
    spark: SparkSession,
    job: MergeJob,
    inputs: Sequence[InputFile],
    round_: int,
    held: _Held,
    part: bool,
) -> _Sides:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    table = control.spec.table
    schema = table_schema(table)
    source = merge_source.read(control, spark, schema, *held)
    statement = parse_merge(
        job.on,
        job.clauses,
        Schema.from_json(table.schema_string),
        Schema.from_json(source.schema.json()),
    )
    if any(clause.every for clause in statement.clauses):
        _check_every(source.schema, schema, job)
    rows = read_rows(control, spark, inputs, _columns_read(statement), round_, hidden=True)
    identified = None
    if statement.records_matches:
        identified = with_identity(source)
    plain = source if identified is None else identified
    return _Sides(
        statement,
        schema,
        rows.alias(TABLE),
        plain.withColumn(_HERE, F.lit(True)).alias(SOURCE),
        plain,
        size=sum(file.size for file in held[0].files),
        part=part,
        record=identified is not None,
    )


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


def _write(
    control: Control,
    sides: _Sides,
    inputs: Sequence[InputFile],
    target_file_size: int,
    round_: int,
) -> MergeWriteResult:
    from tandem.spark.jobs.merge_writer import NAME, MergeWork, MergeWriteResult
    from tandem.spark.runtime.row_files import logged_partition_values

    tasks = int(sides.table.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    record = MAX_RECORDED if sides.record else 0
    work = MergeWork(
        table=control.spec.table,
        data_prefix=control.spec.data_prefix,
        target_file_size=target_file_size,
        answer_path=control.round_path(round_, f"answer-{uuid.uuid4()}"),
        round=round_,
        logged_values=logged_partition_values(control.spec.table, inputs),
        one_match_only=sides.statement.one_match_only,
        record=record,
        record_of_task=min(record, UNEVEN * record // tasks),
        set_by_clause=tuple(
            tuple(n for n in clause.set_sql if n not in control.spec.table.partition_columns)
            for clause in sides.statement.clauses
        ),
    )
    return save_rows(control, _decided(sides), NAME, work, MergeWriteResult)


def _decided(sides: _Sides) -> DataFrame:
    """The rows that change: the table's columns with their new values, the row's position, and its
    fate."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.jobs.merge_writer import CLAUSE, FATE, RowFate
    from tandem.spark.runtime.row_files import INPUT, POSITION

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
    fate = F.lit(int(RowFate.KEPT))
    for number, clause in enumerate(clauses):
        fates = {"Delete": RowFate.DELETED, "Update": RowFate.UPDATED, "Insert": RowFate.INSERTED}
        fate = F.when(F.col(CLAUSE) == number, int(fates[clause.action])).otherwise(fate)
    hidden = [F.col(f"{TABLE}.{name}").alias(name) for name in (INPUT, POSITION)]
    if sides.record:
        hidden += [F.col(f"{SOURCE}.{name}").alias(name) for name in SOURCE_IDS]
    return joined.select(*columns, *hidden, F.col(CLAUSE), fate.alias(FATE))


def _value(clause: Clause, name: str, sides: _Sides) -> Column:
    """The new value of a column in an update or an insert."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql.types import AtomicType

    text = clause.set_sql.get(name)
    if text is None:
        return (
            F.lit(None)
            if clause.action == "Insert"
            else F.col(f"{TABLE}.{quoted_identifier(name)}")
        )
    wanted = sides.schema[name].dataType
    if clause.every and not isinstance(wanted, AtomicType):
        found = next(f for f in sides.source.schema.fields if f.name.lower() == name.lower())
        return by_name(F.expr(text), found.dataType, wanted, "the source", name)
    # ANSI store assignment: a value that does not fit its column raises.
    return F.expr(text)


def _clause(statement: MergeStatement, record: bool) -> Column:
    """The number of the clause that applies to a row of the join; null for none, except for matches
    that are recorded nevertheless."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.row_files import POSITION

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


def _joined(sides: _Sides) -> DataFrame:
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


def _check_counts(answer: MergeAnswer, live: int, round_: int) -> None:
    updated = sum(o.rows for o in answer.outputs if not o.fresh)
    inserted = sum(o.rows for o in answer.outputs if o.fresh)
    if (updated, inserted) != (answer.updated, answer.inserted) or (
        answer.updated + answer.deleted > live
    ):
        raise CountMismatch(
            "a merge wrote a different number of rows than it changed",
            resource=f"round {round_}",
            found=f"{updated} rewritten and {inserted} inserted",
            expected=f"{answer.updated} and {answer.inserted}; at most {live} matched",
        )


def _several(
    control: Control,
    spark: SparkSession,
    sides: _Sides,
    inputs: Sequence[InputFile],
    place: tuple[int, int],
) -> StatementFailed:
    """The error that shows the key of a row that several source rows matched."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.row_files import POSITION

    input_, position = place
    statement = sides.statement
    keys = statement.keys_of_table()
    needed = tuple(statement.columns_of_table()) or keys
    rows = read_rows(control, spark, [inputs[input_]], needed, 0, hidden=True)
    row = rows.filter(F.col(POSITION) == position).alias(TABLE)
    both = row.join(sides.source, F.expr(statement.on_sql), "inner")
    shown = [
        F.first(F.col(f"{TABLE}.{quoted_identifier(k)}").cast("string")).alias(k) for k in keys
    ]
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
