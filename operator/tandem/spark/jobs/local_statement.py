"""An update or delete over Arrow: the work of a task, where its meaning is proven equal to Spark's.

A task reads the columns that the condition names, and whole rows only of row groups in which it is
true for a row. The rows never become Spark's rows. It must not import Spark; it raises `NeedsSpark`
for rows on which Spark raises, or may do so: Spark then evaluates all rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import BATCH_ROWS, DataFileReader, TableFormat
from tandem.delta.dv import from_base64
from tandem.errors import InvalidStatement, TandemError
from tandem.jobs.formats import InputFile, JobSpec, StatementJob
from tandem.spark.runtime.control import (
    Control,
    Counter,
    Counters,
    job_table_format,
)
from tandem.spark.runtime.frames import each_in_a_task, reported_splits
from tandem.spark.runtime.row_files import (
    HIDDEN,
    INPUT,
    POSITION,
    InputSplit,
    RowFiles,
    RowsWork,
    TaskRows,
    logged_partition_values,
    open_input,
)
from tandem.statements.local import LocalStatement, NeedsSpark, compile_statement
from tandem.statements.local.kernels import BOUNDED
from tandem.statements.statement import Statement, parse_statement, referenced
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark import SparkContext


# Work over Arrow on the inputs of a round, cut into tasks: Spark's, or one in this thread.
#
# Spark only hands the inputs out, and shows progress; no row becomes one of Spark's. It must not
# decide what a task does, nor whether Spark evaluates the round instead.


A = TypeVar("A")

MOST_ROWS_HERE: Final = 16_000_000
"""Rows that are evaluated without Spark: each that matches takes about 60 bytes until the round has
its result, and a file of few bytes may have many rows."""

Task = Callable[[int, Sequence[InputSplit]], A]
"""The work of a task, given its number and what it reads."""


def in_tasks(
    control: Control,
    context: SparkContext | None,
    inputs: Sequence[InputFile],
    round_: int,
    stage: str,
    work: Task[A],
) -> list[A]:
    """The answers of all tasks, in their order.

    Args:
        context: hands the tasks out; None: there is one task, in this thread.
        stage: what is going on, for people.
        work: it must not refer to `control`, which stays with the driver.
    Raises: NeedsSpark, also for too many rows for this thread; the TandemError of a task.
    """
    if context is None and sum(i.rows for i in inputs) > MOST_ROWS_HERE:
        raise NeedsSpark("too many rows for one thread")
    tasks = _tasks(inputs, on_spark=context is not None)

    def task(number: int) -> A:
        return work(number, tasks[number])

    with reported_splits(control, stage, inputs, tasks, round_):
        order = range(len(tasks))
        if context is None:
            return [task(number) for number in order]
        return each_in_a_task(context, order, task, known=(NeedsSpark, TandemError))


def _tasks(inputs: Sequence[InputFile], *, on_spark: bool) -> list[tuple[InputSplit, ...]]:
    """What each task reads."""
    if not on_spark:
        return [tuple(map(InputSplit, range(len(inputs))))]
    from tandem.spark.runtime.datasource import shares

    return [share.splits for share in shares(inputs)]


# The work of a task.


BATCH_BYTES: Final = 32 << 20
"""Bytes that the rows of a batch take, as far as the footer tells."""


def compiled(spec: JobSpec) -> tuple[Statement, LocalStatement] | None:
    """The statement of a job over Arrow; None if only Spark can evaluate it."""
    job = spec.job
    assert isinstance(job, StatementJob)
    special = _checked_by_spark(spec.table.schema_string)
    if special and job.set and not job.set_only:
        return None  # whole rows are written again
    try:
        statement = parse_statement(
            job.where,
            dict(job.set) or None,
            spec.table.schema_string,
            resource=spec.operation_id,
            field="job.json",
            exact_names=True,
        )
    except InvalidStatement:
        return None  # the engine has checked it, so it is a matter between two versions
    if special & (statement.columns | job.set.keys()):
        return None
    local = compile_statement(statement)
    if local is not None and job.set_only:
        local = replace(local, kept=frozenset((*spec.table.partition_columns, *HIDDEN)))
    return None if local is None else (statement, local)


def _checked_by_spark(schema_string: str) -> frozenset[str]:
    """The columns whose values only Spark checks, those inside them included."""
    if BOUNDED not in schema_string:
        return frozenset()
    fields = json.loads(schema_string)["fields"]
    return frozenset(field["name"] for field in fields if BOUNDED in json.dumps(field))


def find_rows(
    store: Store,
    spec: JobSpec,
    inputs: Sequence[InputFile],
    task: int,
    splits: Sequence[InputSplit],
    counters: Counters | None = None,
) -> TaskRows:
    """Evaluate the statement on splits of the inputs, and write the new rows of an update.

    Raises:
        NeedsSpark: Spark evaluates the round as a whole; what was written is left to clean.
        StatementFailed, DataFileMissing, StorageError, CountMismatch.
    """
    job = spec.job
    assert isinstance(job, StatementJob)
    found = compiled(spec)
    if found is None:
        raise NeedsSpark("an expression that only Spark evaluates")
    chosen = [name.lower() for name in job.set]
    table = job_table_format(spec.table)
    to = spec.new_rows_table
    names = (*job_table_format(to).names_of_updated, *HIDDEN) if chosen else HIDDEN
    work = RowsWork(
        table=to,
        data_prefix=spec.data_prefix,
        target_file_size=job.target_file_size,
        logged_values=logged_partition_values(spec.table, inputs, chosen),
        new_columns=tuple(n for n in table.schema.names if n.lower() in chosen),
    )
    # Nullability is checked on writing, as on Spark.
    loose = replace(table, schema=all_nullable(table.schema))
    counter = Counter(counters, task)
    search = _Search(store, loose, *found)
    try:
        with closing(changed_rows(search.changed, inputs, splits, counter)) as batches:
            return RowFiles(store, work, names, task).write_all(batches).sent()
    except pa.ArrowException as error:  # such as texts of more than 2 GiB in one array
        raise NeedsSpark(str(error)) from error


Changed = Callable[[InputFile, InputSplit], Iterator[pa.Table]]
"""The new rows of a split of an input, with `HIDDEN`."""


def changed_rows(
    changed: Changed, inputs: Sequence[InputFile], splits: Sequence[InputSplit], counter: Counter
) -> Generator[pa.RecordBatch]:
    """Those of all splits of a task."""
    for split in splits:
        for rows in changed(inputs[split.input], split):
            yield from rows.combine_chunks().to_batches()
        counter.add()
    counter.show()


@dataclass(frozen=True)
class _Search:
    """Finds the rows of files that a statement affects, and what becomes of them."""

    store: Store
    table: TableFormat
    statement: Statement
    local: LocalStatement

    def changed(self, input_: InputFile, split: InputSplit) -> Iterator[pa.Table]:
        """For an update the new rows, with `HIDDEN`; for a delete these alone."""
        where = self.statement.where
        named = frozenset() if where is None else referenced(where)
        searched = self._columns(named)
        updates = bool(self.local.assignments)
        names = self._of_new_rows() if updates else []
        in_one_pass = not searched or named.issuperset(names)
        first = self._columns(named.union(names)) if in_one_pass else searched
        with open_input(self.store, self.table, input_, first) as reader:
            groups = split.of(len(reader.row_groups))
            if in_one_pass:
                for rows in live_rows(reader, input_, split.input, groups):
                    found = self.local.matching(rows)
                    if len(found):
                        yield self._new_rows(rows, found)
                return
            matched = self._positions(live_rows(reader, input_, split.input, groups))
            starts = np.cumsum((0, *reader.row_groups))
        if not len(matched):
            return
        needed = np.unique(np.searchsorted(starts, matched, side="right") - 1)
        with open_input(self.store, self.table, input_, names) as reader:
            for together in runs(needed):
                batches = live_rows(reader, input_, split.input, together)
                yield from self._whole_rows(batches, matched)

    def _of_new_rows(self) -> list[str]:
        """The columns of which new rows are made."""
        kept = self.local.kept
        if kept is None:
            return list(self.table.names_of_updated)
        values = (referenced(item.value) for item in self.statement.assignments)
        return self._columns(kept.union(*values))

    def _columns(self, among: frozenset[str]) -> list[str]:
        return [name for name in self.table.schema.names if name in among]

    def _positions(self, batches: Iterable[pa.Table]) -> Any:
        parts = [np.empty(0, np.int64)]
        for rows in batches:
            parts.append(rows[POSITION].take(self.local.matching(rows)).to_numpy())
        return np.concatenate(parts)

    def _whole_rows(self, batches: Iterable[pa.Table], positions: Any) -> Iterator[pa.Table]:
        for rows in batches:
            places = rows[POSITION].to_numpy()
            first, last = np.searchsorted(positions, (places[0], places[-1] + 1))
            if last > first:
                found = np.searchsorted(places, positions[first:last])
                yield self._new_rows(rows, pa.array(found, pa.int64()))

    def _new_rows(self, rows: pa.Table, found: Any) -> pa.Table:
        if not self.local.assignments:
            return rows.select(HIDDEN).take(found)
        return self.local.written(rows.take(found))


def runs(numbers: Any) -> list[range]:
    """Ascending numbers as ranges."""
    if not len(numbers):
        return []
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [range(int(part[0]), int(part[-1]) + 1) for part in parts]


def live_rows(
    reader: DataFileReader, input_: InputFile, number: int, groups: range
) -> Iterator[pa.Table]:
    """The live rows of row groups of input `number`, with `HIDDEN`."""
    batches = reader.batches(
        dead=from_base64(input_.dv) if input_.dv else None,
        positions=POSITION,
        row_groups=groups,
        batch_rows=max(1, min(BATCH_ROWS, BATCH_BYTES // reader.row_bytes)),
    )
    for batch in batches:
        which = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
        yield pa.Table.from_batches([batch]).append_column(INPUT, which)
