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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, StatementJob
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
from tandem.statements.generate import quote_name
from tandem.statements.local import NeedsSpark

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
    with ExitStack() as opened:
        context = spark.sparkContext
        is_local = local and compiled(control.spec) is not None
        own: SparkSession | None = None

        def round_(inputs: Sequence[InputFile], number: int) -> None:
            nonlocal is_local, own
            if is_local:
                is_local = _evaluate(control, inputs, number, _Arrow(control, context))
            if not is_local:
                if own is None:
                    own = opened.enter_context(isolated_session(spark))
                _evaluate(control, inputs, number, _Spark(control, own))

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
    is_local = compiled(control.spec) is not None

    def round_(inputs: Sequence[InputFile], number: int) -> None:
        nonlocal is_local
        with turn:
            is_local = _evaluate(control, inputs, number, _Arrow(control, None))
        if not is_local:
            ended.set()

    if is_local:
        round_(job.inputs, 0)
        serve(control, round_, ended)
    return is_local


Round = Callable[[Sequence[InputFile], int], None]
"""Evaluates these files and publishes the result of the round with this number."""


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
            ended.wait(min(longest, max(shortest, idle / 8)))
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


_Find = Callable[[Sequence[InputFile], int], list[TaskRows] | None]
"""What the tasks of a round find; None if they cannot: then Spark evaluates it."""


def _evaluate(control: Control, inputs: Sequence[InputFile], round_: int, find: _Find) -> bool:
    """Evaluate the statement on the live rows of `inputs` and publish the round's result; False if
    `find` cannot: nothing is published then."""
    spec = control.spec
    job = spec.job
    assert isinstance(job, StatementJob)
    live = sum(i.rows - cardinality(i) for i in inputs)
    # Without live rows, by statistics no file is affected, or all rows are deleted.
    found = find(inputs, round_) if live else []
    if found is None:
        return False
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
            matches=control.sidecar(round_, "matches.arrow", to_file(matches)),
            rows_read=live,
            rows_written=written,
            rows_matched=matched,
        )
    )
    return True


@dataclass(frozen=True)
class _Arrow:
    """Evaluates rounds over Arrow, in tasks of Spark or, without a context, in this thread."""

    control: Control
    context: SparkContext | None

    def __call__(self, inputs: Sequence[InputFile], round_: int) -> list[TaskRows] | None:
        store, spec = self.control.store, self.control.spec

        def task(number: int, splits: Sequence[InputSplit]) -> TaskRows:
            return find_rows(store, spec, inputs, round_, number, splits)

        try:
            return in_tasks(self.control, self.context, inputs, round_, "Evaluating", task)
        except NeedsSpark:
            return None


@dataclass(frozen=True)
class _Spark:
    """Evaluates rounds by Spark."""

    control: Control
    session: SparkSession

    def __call__(self, inputs: Sequence[InputFile], round_: int) -> list[TaskRows]:
        control = self.control
        spec, job = control.spec, control.spec.job
        assert isinstance(job, StatementJob)
        schema = table_schema(spec.table)
        columns = _columns_read(job, schema, spec.table.partition_columns if job.set_only else ())
        rows = read_rows(control, self.session, inputs, columns, round_, hidden=True)
        found = _statement(rows, job, table_schema(spec.new_rows_table))
        chosen = [name.lower() for name in job.set]
        work = RowsWork(
            table=spec.new_rows_table,
            data_prefix=spec.data_prefix,
            target_file_size=job.target_file_size,
            logged_values=logged_partition_values(spec.table, inputs, chosen),
            new_columns=tuple(name for name in schema.names if name.lower() in chosen),
        )
        with reported_shares(control, "Evaluating", inputs, round_):
            return write_rows(control, found, work)


def _statement(rows: DataFrame, job: StatementJob, schema: StructType) -> DataFrame:
    """`schema`: of new rows."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    found = rows.filter(F.expr(job.where))
    hidden = [F.col(name) for name in HIDDEN]
    if not job.set:
        return found.select(*hidden)
    chosen = {name.lower(): text for name, text in job.set.items()}
    # ANSI store assignment: a value that does not fit its column raises.
    columns = [
        F.expr(chosen[f.name.lower()]).cast(f.dataType).alias(f.name)
        if f.name.lower() in chosen
        else F.col(quote_name(f.name))
        for f in schema.fields
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
