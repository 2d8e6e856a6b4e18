"""The merge job: joins the table with a source, writes updated rows and inserts.

Round 0 merges into the files of the job; then the driver serves rounds as the statement job does:
the whole merge again at a later version, or only rows of the table that are new since. A merge that
inserts records which source row matched which row (`merge_source.py`), so that the engine can
decide whether a part suffices. The source is pinned on first read (`readers.py`). The user's text
is parsed here, where the source's columns are known, and Spark receives canonical text only
(`spark_merge`).

Where the meaning is proven equal, and the source is small, tasks merge over Arrow (`local_merge`),
without Spark if the job is small; Spark does if an expression or a row needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandem.errors import CountMismatch, SourceChanged
from tandem.jobs.formats import SOURCE_IDS, InputFile, MergeJob
from tandem.jobs.results import JobResult, SideFileRef
from tandem.spark.jobs import merge_source
from tandem.spark.jobs.local_merge import MergeAnswer, MergedRows, answered, execute, repeats
from tandem.spark.jobs.merge_source import SourceSize
from tandem.spark.jobs.statement import ArrowRound, arrow_then_spark, rounds_here, serve
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import cardinality, reported_shares
from tandem.spark.runtime.identity import LastValues
from tandem.spark.runtime.row_files import joined, logged_partition_values
from tandem.spark.sources import readers
from tandem.statements.local import NeedsSpark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from tandem.spark.jobs.spark_merge import Held, Sides

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
    evaluate = _over_arrow(control, spark.sparkContext) if local else None
    size: SourceSize | None = None

    def by_spark(own: SparkSession, inputs: Sequence[InputFile], round_: int) -> None:
        nonlocal size
        size = _merge(control, own, job, inputs, round_, size)

    with arrow_then_spark(spark, evaluate, by_spark) as round_:
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
    evaluate = _over_arrow(control, None)
    return evaluate is not None and rounds_here(control, job.inputs, evaluate, ended, turn)


def _is_part(control: Control, round_: int) -> bool:
    request = control.request(round_) if round_ else None
    return request is not None and request.part


def _over_arrow(control: Control, context: SparkContext | None) -> ArrowRound | None:
    """Executes rounds over Arrow, in tasks of Spark or, without a context, in this thread; None if
    only Spark reads the source."""
    job = control.spec.job
    assert isinstance(job, MergeJob)
    if job.source_format not in merge_source.FORMATS:
        return None

    def round_(inputs: Sequence[InputFile], number: int) -> bool:
        live = sum(i.rows - cardinality(i) for i in inputs)
        try:
            with _held(control) as held:
                source = merge_source.load(control, *held)
                answer = execute(
                    control,
                    context,
                    source,
                    inputs if live else (),
                    number,
                    inserts=not _is_part(control, number),
                    most_recorded=MAX_RECORDED,
                )
        except NeedsSpark:
            return False
        _publish(control, number, live, answer, merge_source.copied(control, source, number))
        return True

    return round_


def _merge(
    control: Control,
    spark: SparkSession,
    job: MergeJob,
    inputs: Sequence[InputFile],
    round_: int,
    size: SourceSize | None,
) -> SourceSize | None:
    """Execute a round; returns the memory that the source takes, which does not change."""
    from tandem.spark.jobs.spark_merge import several_matches, sides_of  # imports Spark

    live = sum(i.rows - cardinality(i) for i in inputs)
    with _held(control) as held:
        part = _is_part(control, round_)
        sides = sides_of(control, spark, job, inputs if live else (), round_, held, part)
        if round_ == 0 and _is_small(sides):
            size = merge_source.measure(sides.plain, sides.statement)
        if size is not None and size.bytes <= BROADCAST_BYTES:
            sides = replace(sides, broadcast=True)
        copy = _copy(control, sides, size, round_)
        with reported_shares(control, "Merging", inputs, round_):
            found, identity = _write(control, sides, inputs, job.target_file_size)
        ids = SOURCE_IDS if sides.record else ()
        outputs, rows = joined([each.rows for each in found], round_, ids)
        again = rows.filter(pa.array(repeats(rows))).slice(0, 1).to_pylist()
        if again and sides.statement.one_match_only:
            place = again[0]["input"], again[0]["position"]
            raise several_matches(control, spark, sides, inputs, place)
    answer = answered(control, round_, found, (outputs, rows), (), MAX_RECORDED)
    _publish(control, round_, live, replace(answer, identity=identity), copy)
    return size


def _publish(
    control: Control, round_: int, live: int, answer: MergeAnswer, copy: SideFileRef | None
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
            identity=dict(answer.identity),
        )
    )


def _copy(
    control: Control, sides: Sides, size: SourceSize | None, round_: int
) -> SideFileRef | None:
    """Copy the source for the engine: whole in the first round, if it is small; else its bounds in
    the second round, which most merges do not have."""
    if round_ == 0 and size is not None:
        return merge_source.copy_all_rows(control, sides.plain, sides.statement, size, round_)
    if round_ == 1 and control.result(0).source is None:
        return merge_source.bounds(control, sides.plain, sides.statement, round_)
    return None


def _is_small(sides: Sides) -> bool:
    """Whether reading the source an additional time costs little."""
    if sides.size:
        return sides.size <= MEASURED_BYTES
    # The pin of a Delta table has no sizes; the size that one task reads is bounded.
    return sides.plain.rdd.getNumPartitions() <= 1


@contextmanager
def _held(control: Control) -> Iterator[Held]:
    """The pinned source, checked before and after it is read: an error in between may be a
    consequence of the change. Raises: SourceChanged."""
    found, source = readers.pinned(control)
    try:
        yield found, source
    except SourceChanged:
        raise
    except Exception:
        readers.check(control, found)
        raise
    readers.check(control, found)


def _write(
    control: Control,
    sides: Sides,
    inputs: Sequence[InputFile],
    target_file_size: int,
) -> tuple[list[MergedRows], dict[str, int]]:
    """What each task has written, and the last value of each identity column."""
    from tandem.spark.jobs.spark_merge import MergeWork, decided, write_decided

    tasks = int(sides.table.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    work = MergeWork(
        table=control.spec.table,
        data_prefix=control.spec.data_prefix,
        target_file_size=target_file_size,
        logged_values=logged_partition_values(control.spec.table, inputs),
        statement=sides.statement,
        most_recorded=min(MAX_RECORDED, UNEVEN * MAX_RECORDED // tasks),
    )
    last = LastValues(control.spec.table)
    rows = last.watch(decided(sides), sides.numbered)
    return write_decided(control, rows, work), last.found()


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
