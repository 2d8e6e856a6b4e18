"""The statement job: finds the rows that an update or delete affects, writes their new contents.

Round 0 evaluates the files of the job; then the driver serves rounds until the engine ends the
job: rows that other writers appended or changed meanwhile, at a later version. The texts are
canonical Spark SQL generated from a checked tree (`tandem.statements`), never a user's text. A row
on which the statement raises an error fails the whole round.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, StatementJob
from tandem.jobs.results import JobResult, SidecarRef
from tandem.spark.runtime.control import Control, translate
from tandem.spark.runtime.frames import (
    cardinality,
    isolated_session,
    read_rows,
    reported_shares,
    table_schema,
    write_rows,
)
from tandem.spark.runtime.names import quoted_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


IDLE_SECONDS = 1800.0
"""A driver ends if its engine makes no request for this long, to free its memory."""
POLL_SECONDS = (0.02, 0.2)
"""First and longest pause between two checks for a request. In between, a pause is an eighth of
the time waited so far: other writers may keep committing before the engine does."""


def run(control: Control, spark: SparkSession, stop: threading.Event | None = None) -> None:
    """Evaluate round 0, then serve rounds. `stop` ends the service early (tests).

    Raises: TandemError if round 0 fails. Failures of later rounds are reported, and the service
    continues: the engine decides what follows.
    """
    job = control.spec.job
    assert isinstance(job, StatementJob)
    with isolated_session(spark) as own:

        def round_(inputs: Sequence[InputFile], number: int) -> None:
            evaluate(control, own, job, inputs, number)

        round_(job.inputs, 0)
        serve(control, round_, stop or threading.Event())


Round = Callable[[Sequence[InputFile], int], None]
"""Evaluates these files and publishes the result of the round with this number."""


def serve(control: Control, evaluate_: Round, ended: threading.Event) -> None:
    """Evaluate the engine's requests until it ends the job, or `ended` is set."""
    round_ = 1
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
            evaluate_(request.inputs, round_)
        except Exception as error:  # noqa: BLE001 - described to the engine, which decides
            control.fail(translate(error), round_)
        round_ += 1
        idle_since = time.monotonic()


def evaluate(
    control: Control,
    spark: SparkSession,
    job: StatementJob,
    inputs: Sequence[InputFile],
    round_: int,
) -> None:
    """Evaluate the statement on the live rows of `inputs` and publish the round's result."""
    from tandem.spark.runtime.ipc import to_file
    from tandem.spark.runtime.row_files import MATCHES, logged_partition_values

    spec = control.spec
    live = sum(i.rows - cardinality(i) for i in inputs)
    outputs: tuple[Any, ...] = ()
    matched = 0
    if not live:
        # By its statistics no file is affected, or all rows are deleted. A result without a
        # matches file counts as truncated, so an empty one is written.
        matches = control.sidecar(round_, "matches.arrow", to_file(MATCHES.empty_table()))
    else:
        schema = table_schema(spec.table)
        columns = _columns_read(job, schema)
        rows = read_rows(control, spark, inputs, columns, round_, hidden=True)
        found = _statement(rows, job, schema)
        chosen = [name.lower() for name in job.set]
        with reported_shares(control, "Evaluating", inputs, round_):
            answer = write_rows(
                control,
                found,
                job.target_file_size,
                round_,
                logged_partition_values(spec.table, inputs, chosen),
                new_columns=[name for name in schema.names if name.lower() in chosen],
            )
        outputs, matched = answer.outputs, answer.rows
        data = control.store.get(answer.matches)
        matches = SidecarRef(
            path=answer.matches, size=len(data), sha256=hashlib.sha256(data).hexdigest()
        )
        written = sum(o.rows for o in outputs)
        if matched > live or (job.set and written != matched):
            raise CountMismatch(
                "a statement wrote a different number of rows than it matched",
                resource=f"round {round_}",
                found=f"{matched} matched, {written} written",
                expected=f"the same, at most {live}",
            )
    control.publish(
        JobResult(
            operation_id=spec.operation_id,
            attempt=spec.attempt,
            round=round_,
            outputs=outputs,
            matches=matches,
            rows_read=live,
            rows_written=sum(o.rows for o in outputs),
            rows_matched=matched,
        )
    )


def _statement(rows: DataFrame, job: StatementJob, schema: StructType) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from tandem.spark.runtime.row_files import HIDDEN

    found = rows.filter(F.expr(job.where))
    hidden = [F.col(name) for name in HIDDEN]
    if not job.set:
        return found.select(*hidden)
    chosen = {name.lower(): text for name, text in job.set.items()}
    # ANSI store assignment: a value that does not fit its column raises.
    columns = [
        F.expr(chosen[f.name.lower()]).cast(f.dataType).alias(f.name)
        if f.name.lower() in chosen
        else F.col(quoted_identifier(f.name))
        for f in schema.fields
    ]
    return found.select(*columns, *hidden)


def _columns_read(job: StatementJob, schema: StructType) -> tuple[str, ...]:
    """A delete reads the columns whose names occur in its text (extra ones do no harm)."""
    if job.set:
        return tuple(schema.names)
    text = job.where.lower().replace("``", "`")
    return tuple(n for n in schema.names if n.lower().replace("``", "`") in text)
