"""A round of a merge over Arrow: all tasks, the rows that are inserted, and the round's answer.

Answers as the job on Spark does (`merge_writer`); it does not read the source, nor publish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import arrow_schema
from tandem.jobs.formats import SOURCE_IDS, InputFile, MergeJob
from tandem.jobs.results import OutputFile, SidecarRef
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs.arrow_tasks import in_tasks
from tandem.spark.jobs.local_merge.search import (
    ROWS,
    FoundMatches,
    find_matches,
    require_new_texts,
)
from tandem.spark.jobs.local_merge.source import ArrowSource
from tandem.spark.jobs.local_statement import TaskFiles
from tandem.spark.runtime.control import Control, job_table_format, output_file
from tandem.spark.runtime.ipc import to_file, to_stream
from tandem.spark.runtime.row_files import InputSplit, RowsWork
from tandem.spark.runtime.written_facts import store_facts
from tandem.statements.local import NeedsSpark

if TYPE_CHECKING:
    from pyspark import SparkContext

_RECORD = ("source_1", "source_2")
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class MergeAnswer:
    """What a round did; `matches` as in `JobResult`."""

    outputs: tuple[OutputFile, ...]
    matches: SidecarRef
    updated: int
    deleted: int
    inserted: int


def execute(
    control: Control,
    context: SparkContext | None,
    source: ArrowSource,
    inputs: Sequence[InputFile],
    round_: int,
    *,
    inserts: bool,
    most_recorded: int,
) -> MergeAnswer:
    """Merge the source into the live rows of `inputs`.

    Args:
        context: hands out the tasks; None to do all in this thread.
        inserts: whether `inputs` are all rows that may match, so that source rows without a match
            are inserted.
        most_recorded: of more matches the source rows are not recorded.
    Raises: NeedsSpark: Spark executes the round; what was written is left to clean. As
        `find_matches`.
    """
    store, spec = control.store, control.spec
    with _sent(context, source) as given:

        def task(number: int, splits: Sequence[InputSplit]) -> FoundMatches:
            return find_matches(store, spec, given(), inputs, round_, number, splits)

        found = in_tasks(control, context, inputs, round_, "Merging", task) if inputs else []
    outputs, rows = _joined(found, round_)
    fresh: tuple[OutputFile, ...] = ()
    if inserts and source.statement.when("NotMatched"):
        matched = np.zeros(source.rows.num_rows, bool)
        for each in found:
            bits = np.unpackbits(np.frombuffer(each.sources, np.uint8), count=len(matched))
            matched |= bits.astype(bool)
        fresh = _inserted(control, source, np.flatnonzero(~matched), round_, len(found))
    store_facts(store, spec.table.table_id, (file for each in found for file in each.files))
    records = (
        source.statement.records_matches
        and source.identified
        and len(rows) <= most_recorded
        and not any(each.doubled for each in found)
    )
    stays = pc.fill_null(pc.equal(rows["output"], pa.scalar(KEPT, pa.int32())), False)
    changed = rows.filter(pc.invert(stays))
    answer = _recorded(rows, source) if records else changed.drop_columns("source")
    updated = len(changed) - changed["output"].null_count
    return MergeAnswer(
        (*outputs, *fresh),
        control.sidecar(round_, "matches.arrow", to_file(answer)),
        updated,
        len(changed) - updated,
        sum(file.rows for file in fresh),
    )


@contextmanager
def _sent(
    context: SparkContext | None, source: ArrowSource
) -> Iterator[Callable[[], tuple[pa.Table, str]]]:
    """What a task calls for the columns of the source that the merge reads, and its schema."""
    rows, schema = source.rows.select(source.read_names), source.schema
    if context is None:
        yield lambda: (rows, schema)
        return
    sent = context.broadcast((to_stream(rows), schema))

    def given() -> tuple[pa.Table, str]:
        data, schema = sent.value
        return pa.ipc.open_stream(data).read_all(), schema

    try:
        yield given
    finally:  # else its file stays as long as Spark, which a pool's jobs share
        sent.destroy()


def _joined(found: Sequence[FoundMatches], round_: int) -> tuple[tuple[OutputFile, ...], pa.Table]:
    """The outputs of all tasks, and their rows (`ROWS`), ascending."""
    outputs: list[OutputFile] = []
    tables = [ROWS.empty_table()]
    for each in found:
        rows = pa.ipc.open_stream(each.rows).read_all()
        has_file = pc.greater_equal(rows["output"], pa.scalar(0, pa.int32()))
        shifted = pc.add(rows["output"], pa.scalar(len(outputs), pa.int32()))
        moved = pc.if_else(has_file, shifted, rows["output"])
        tables.append(rows.set_column(2, ROWS.field(2), moved))
        outputs += [output_file(file, round_=round_) for file in each.files]
    order = [("input", "ascending"), ("position", "ascending")]
    return tuple(outputs), pa.concat_tables(tables).sort_by(order)


def _recorded(rows: pa.Table, source: ArrowSource) -> pa.Table:
    """Matches with the identity of the source row of each, null for none."""
    which = rows["source"].to_numpy()
    none = which < 0
    answer = rows.drop_columns("source")
    for name, hidden in zip(_RECORD, SOURCE_IDS, strict=True):
        hashes = source.rows[hidden].to_numpy()
        values = hashes[np.maximum(which, 0)] if len(hashes) else np.zeros(len(which), np.int64)
        answer = answer.append_column(name, pa.array(values, pa.int64(), mask=none))
    return answer


def _inserted(
    control: Control, source: ArrowSource, missing: Any, round_: int, task: int
) -> tuple[OutputFile, ...]:
    """Write the rows that are inserted for source rows without a match.

    Raises: NeedsSpark, StatementFailed, StorageError.
    """
    spec, local = control.spec, source.local
    job = spec.job
    assert isinstance(job, MergeJob)
    table = job_table_format(spec.table)
    empty = arrow_schema(replace(table, schema=all_nullable(table.schema))).empty_table()
    given = local.unmatched_rows(source.rows, missing, "NotMatched")
    clauses = local.clause_numbers("NotMatched", given)
    batches: list[pa.RecordBatch] = []
    for clause in local.when("NotMatched"):
        chosen = missing[clauses == clause.number]
        if len(chosen):
            rows = local.unmatched_rows(source.rows, chosen, "NotMatched")
            written = clause.written(rows, empty, None)
            require_new_texts(written, clause, table.partition_columns)
            batches += written.combine_chunks().to_batches(_BATCH_ROWS)
    if not batches:
        return ()
    work = RowsWork(
        table=spec.table, data_prefix=spec.data_prefix, target_file_size=job.target_file_size
    )
    try:
        files = TaskFiles(control.store, work, tuple(table.schema.names), task).write_all(batches)
    except pa.ArrowException as error:  # such as texts of more than 2 GiB in one array
        raise NeedsSpark(str(error)) from error
    store_facts(control.store, spec.table.table_id, files.files)
    return tuple(
        output_file(file, round_=round_).model_copy(update={"fresh": True}) for file in files.files
    )
