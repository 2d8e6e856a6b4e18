"""The statement job: finds the rows that an update or delete affects, writes their new contents.

Round 0 evaluates the files of the job; then the driver serves rounds until the engine ends the
job: rows that other writers appended or changed meanwhile, at a later version. Where the meaning is
proven equal, tasks evaluate the statement over Arrow (`local_statement`), without Spark if the job
is small. Otherwise, and if a row needs it, Spark does: the texts are canonical Spark SQL generated
from a checked tree (`tandem.statements`), never a user's text. A row on which the statement raises
an error fails the whole round.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, JobTable, StatementJob
from tandem.jobs.results import JobResult
from tandem.spark.jobs.edits import edit_round, maker_of
from tandem.spark.jobs.local_statement import compiled, find_rows, in_tasks
from tandem.spark.runtime.control import Control, to_file, translate
from tandem.spark.runtime.frames import (
    cardinality,
    isolated_session,
    read_rows,
    reported_shares,
    table_schema,
    write_rows,
)
from tandem.spark.runtime.row_files import (
    HIDDEN,
    InputSplit,
    RowsWork,
    TaskRows,
    joined,
    logged_partition_values,
)
from tandem.spark.runtime.written_facts import store_facts
from tandem.statements.local import NeedsSpark
from tandem.statements.tree import quote_name

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


IDLE_SECONDS = 1800.0
"""A driver ends if its engine makes no request for this long, to free its memory."""
POLL_SECONDS = (0.02, 0.2)
"""First and longest pause between two checks for a request. In between, a pause is an eighth of
the time waited so far: other writers may keep committing before the engine does."""


def run(
    control: Control,
    spark: SparkSession,
    stop: threading.Event | None = None,
    *,
    local: bool = True,
) -> None:
    """Evaluate round 0, then serve rounds. `stop` ends the service early (tests).

    Args:
        local: evaluate over Arrow what is proven equal.
    Raises: TandemError if round 0 fails. Failures of later rounds are reported, and the service
    continues: the engine decides what follows.
    """
    job = control.spec.job
    assert isinstance(job, StatementJob)
    evaluate = _over_arrow(control, spark.sparkContext) if local else None

    def by_spark(own: SparkSession, inputs: Sequence[InputFile], round_: int) -> None:
        _publish(control, inputs, round_, lambda: _by_spark(control, own, inputs, round_))

    with arrow_then_spark(spark, evaluate, by_spark) as round_:
        round_(job.inputs, 0)
        serve(control, round_, stop or threading.Event())


def run_here(control: Control, ended: threading.Event, turn: AbstractContextManager[Any]) -> bool:
    """Evaluate round 0 in this thread, then serve rounds until the engine ends the job, or `ended`
    is set; False if Spark is needed: for an expression, a row or many rows, also of a later round.

    Args:
        turn: entered for each round.
    Raises: TandemError if round 0 fails; as `run`.
    """
    job = control.spec.job
    assert isinstance(job, StatementJob)
    evaluate = _over_arrow(control, None)
    return evaluate is not None and rounds_here(control, job.inputs, evaluate, ended, turn)


# The rounds of a job that evaluates rows: over Arrow as long as that is proven equal.


Round = Callable[[Sequence[InputFile], int], None]
"""Evaluates these files and publishes the result of the round with this number."""
ArrowRound = Callable[[Sequence[InputFile], int], bool]
"""A `Round`; False if only Spark can evaluate it: nothing is published then."""


@contextmanager
def arrow_then_spark(
    spark: SparkSession,
    over_arrow: ArrowRound | None,
    by_spark: Callable[[SparkSession, Sequence[InputFile], int], None],
) -> Iterator[Round]:
    """Rounds over Arrow until one needs Spark; that one and all later ones are evaluated by it, in
    a session of their own."""
    with ExitStack() as opened:
        own: SparkSession | None = None

        def round_(inputs: Sequence[InputFile], number: int) -> None:
            nonlocal over_arrow, own
            if over_arrow is not None and over_arrow(inputs, number):
                return
            over_arrow = None
            if own is None:
                own = opened.enter_context(isolated_session(spark))
            by_spark(own, inputs, number)

        yield round_


def rounds_here(
    control: Control,
    inputs: Sequence[InputFile],
    over_arrow: ArrowRound,
    ended: threading.Event,
    turn: AbstractContextManager[Any],
) -> bool:
    """Evaluate round 0, on `inputs`, and serve rounds until one needs Spark: False then.

    Args:
        turn: entered for each round.
    """
    is_local = True

    def round_(inputs: Sequence[InputFile], number: int) -> None:
        nonlocal is_local
        with turn:
            is_local = over_arrow(inputs, number)
        if not is_local:
            ended.set()

    round_(inputs, 0)
    serve(control, round_, ended)
    return is_local


def serve(control: Control, evaluate_: Round, ended: threading.Event) -> None:
    """Evaluate rows, or make edits, as the engine asks, until it ends the job, or `ended` is
    set."""
    round_ = 1
    maker = maker_of(control)
    shortest, longest = POLL_SECONDS
    idle_since = time.monotonic()
    while not ended.is_set():
        request = control.request(round_)
        if request is None:
            idle = time.monotonic() - idle_since
            if control.is_done() or idle > IDLE_SECONDS:
                return
            control.wait(ended, min(longest, max(shortest, idle / 8)))
            continue
        try:
            if request.edits is None:
                evaluate_(request.inputs, round_)
            else:
                edit_round(control, request, maker)
        except Exception as error:  # noqa: BLE001 - described to the engine, which decides
            control.fail(translate(error), round_)
        round_ += 1
        idle_since = time.monotonic()


def _over_arrow(control: Control, context: SparkContext | None) -> ArrowRound | None:
    """Evaluates rounds over Arrow, in tasks of Spark or, without a context, in this thread; None if
    only Spark can evaluate the statement."""
    store, spec = control.store, control.spec
    if compiled(spec) is None:
        return None

    def round_(inputs: Sequence[InputFile], number: int) -> bool:
        counters = control.counters(number)

        def task(task: int, splits: Sequence[InputSplit]) -> TaskRows:
            return find_rows(store, spec, inputs, task, splits, counters)

        def find() -> list[TaskRows]:
            return in_tasks(control, context, inputs, number, "Evaluating", task)

        try:
            _publish(control, inputs, number, find)
        except NeedsSpark:
            return False
        return True

    return round_


def _publish(
    control: Control,
    inputs: Sequence[InputFile],
    round_: int,
    find: Callable[[], Sequence[TaskRows]],
) -> None:
    """Evaluate the statement on the live rows of `inputs`, and publish the round's result."""
    spec = control.spec
    job = spec.job
    assert isinstance(job, StatementJob)
    live = sum(i.rows - cardinality(i) for i in inputs)
    # Without live rows, by statistics no file is affected, or all rows are deleted.
    found = find() if live else ()
    outputs, matches = joined(found, round_)
    matched = len(matches)
    written = sum(o.rows for o in outputs)
    if matched > live or (job.set and written != matched):
        raise CountMismatch(
            "a statement wrote a different number of rows than it matched",
            resource=f"round {round_}",
            found=f"{matched} matched, {written} written",
            expected=f"the same, at most {live}",
        )
    store_facts(control.store, spec.table.table_id, (file for each in found for file in each.files))
    control.publish(
        JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            round=round_,
            outputs=outputs,
            matches=control.side_file(round_, "matches.arrow", to_file(matches)),
            rows_read=live,
            rows_written=written,
            rows_matched=matched,
        )
    )


def _by_spark(
    control: Control, session: SparkSession, inputs: Sequence[InputFile], round_: int
) -> list[TaskRows]:
    """Evaluate a round by Spark."""
    spec, job = control.spec, control.spec.job
    assert isinstance(job, StatementJob)
    schema = table_schema(spec.table)
    columns = _columns_read(job, schema, spec.table.partition_columns if job.set_only else ())
    to = spec.new_rows_table
    if job.set:
        columns += to.column_of_ids
    rows = read_rows(control, session, inputs, columns, round_, hidden=True)
    chosen = [name.lower() for name in job.set]
    work = RowsWork(
        table=to,
        data_prefix=spec.data_prefix,
        target_file_size=job.target_file_size,
        logged_values=logged_partition_values(spec.table, inputs, chosen),
        new_columns=tuple(name for name in schema.names if name.lower() in chosen),
    )
    with reported_shares(control, "Evaluating", inputs, round_):
        return write_rows(control, _statement(rows, job, to), work)


def _statement(rows: DataFrame, job: StatementJob, to: JobTable) -> DataFrame:
    """`to`: the table with the columns of new rows."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.sources.casts import bounded_text, declared_char_types  # imports Spark

    found = rows.filter(F.expr(job.where))
    hidden = [F.col(name) for name in HIDDEN]
    if not job.set:
        return found.select(*hidden)
    hidden += [F.col(quote_name(name)) for name in to.column_of_ids]
    chosen = {name.lower(): text for name, text in job.set.items()}
    bounded = declared_char_types(to.schema_string)
    # ANSI store assignment: a value that does not fit its column raises.
    columns = [
        bounded_text(
            F.expr(chosen[f.name.lower()]).cast(f.dataType), bounded.get(f.name.lower()), f.name
        ).alias(f.name)
        if f.name.lower() in chosen
        else F.col(quote_name(f.name))
        for f in table_schema(to).fields
    ]
    return found.select(*columns, *hidden)


def _columns_read(
    job: StatementJob, schema: StructType, partitions: Sequence[str]
) -> tuple[str, ...]:
    """Unless whole rows are written, the columns whose names occur in the texts, and those of
    partitions (extra ones do no harm)."""
    if job.set and not job.set_only:
        return tuple(schema.names)
    text = " ".join((job.where, *job.set.values())).lower().replace("``", "`")
    return tuple(n for n in schema.names if n in partitions or n.lower().replace("``", "`") in text)
