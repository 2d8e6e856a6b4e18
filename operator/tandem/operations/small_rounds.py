"""Small rounds evaluated with Arrow, in the process of the engine; and the job's copy of a merge's
source, with which it does so.

Returns exactly what a round of the job would return, by `tandem.statements.local`, whose results
are proven equal to Spark's, and merges and writes as the job's tasks do. Other than these it takes
the rows of many files at once, and few in all. Whatever is not certain, and every error of a row,
is left to the job, which reports it best. One object serves one operation.

The job copies a source of few rows whole (the columns that the merge reads, and the identity of
each row), and of a larger one the least and the greatest key. The engine has neither credentials
for the source nor Spark's readers; with the copy it needs neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.delta.dv import from_base64
from tandem.errors import ManifestInvalid, StatementFailed
from tandem.jobs.formats import (
    SOURCE_IDS,
    SOURCE_IS_WHOLE,
    SOURCE_SCHEMA,
    InputFile,
    JobSpec,
    MergeJob,
    StatementJob,
)
from tandem.jobs.results import SideFileRef
from tandem.operations.rounds import SmallRoundResult
from tandem.pruning.selection import KEY_TYPES, Keys, keys_of
from tandem.reconcile.matches import Sources, unmatched_sources
from tandem.spark.jobs.local_merge import (
    SOURCE_ROW,
    ArrowMerge,
    changed,
    identified,
    recorded,
    require_new_texts,
)
from tandem.spark.jobs.local_statement import compiled
from tandem.spark.runtime.control import job_table_format, output_file
from tandem.spark.runtime.row_files import (
    HIDDEN,
    IN_ORDER,
    INPUT,
    MATCHES,
    POSITION,
    RowFiles,
    RowsWork,
    RowsWritten,
    logged_partition_values,
    open_input,
)
from tandem.spark.runtime.written_facts import store_facts
from tandem.statements.local import (
    LocalMerge,
    LocalStatement,
    NeedsSpark,
    compile_merge,
)
from tandem.statements.local.kernels import BOUNDED
from tandem.statements.merge import MergeStatement, parse_merge
from tandem.statements.statement import Statement, referenced
from tandem.statements.types import Schema
from tandem.storage.paths import is_absolute, object_path

if TYPE_CHECKING:
    from tandem.operations.model import Work


@dataclass(frozen=True)
class SourceCopy:
    """`rows` have the columns that the merge reads; if `whole` all rows, else the least and the
    greatest value of each column. `statement` is the merge, resolved with the source's columns.
    `schemas` are those of the table and of the source, as JSON with the columns' metadata."""

    rows: pa.Table
    whole: bool
    statement: MergeStatement
    schemas: tuple[str, str]

    @property
    def bounded(self) -> bool:
        """Whether a column of either side, at any level, is a CHAR or VARCHAR."""
        return any(BOUNDED in schema for schema in self.schemas)

    @cached_property
    def identities(self) -> Sources:
        """The identity of each row as matches record it; shape (rows, 2). Only if `identified`: a
        merge may need none."""
        return np.stack([self.rows[name].to_numpy() for name in SOURCE_IDS], axis=1)

    @property
    def identified(self) -> bool:
        return self.whole and set(SOURCE_IDS) <= set(self.rows.column_names)

    @cached_property
    def keys(self) -> tuple[Keys, ...]:
        """For each column that must equal one of the source, the values in the source."""
        found = []
        for column, source_column in self.statement.equal_columns():
            if column.type.name not in KEY_TYPES:
                continue
            values = self.rows[source_column.parts[1]]
            keys = keys_of(column.parts[1], column.type, values, complete=self.whole)
            if keys is not None:
                found.append(keys)
        return tuple(found)


def newest_copy(work: Work, before: int | None = None) -> SourceCopy | None:
    """The copy of the newest result that has one; if `before` is given, of the rounds before it.
    Raises: ManifestInvalid."""
    for round_ in sorted(work.results, reverse=True):
        ref = work.results[round_].source
        if ref is not None and (before is None or round_ < before):
            if ref.path not in work.sources:
                work.sources[ref.path] = _load(work, ref)
            return work.sources[ref.path]
    return None


def _load(work: Work, ref: SideFileRef) -> SourceCopy:
    _, spec = work.frozen
    assert isinstance(spec.job, MergeJob)
    try:
        with pa.ipc.open_file(pa.BufferReader(work.read(ref))) as reader:
            rows = reader.read_all()
        metadata = rows.schema.metadata or {}
        schema = metadata[SOURCE_SCHEMA].decode()
        columns = Schema.from_json(schema)
        whole = metadata[SOURCE_IS_WHOLE] == b"true"
    except (pa.ArrowInvalid, KeyError, ValueError) as error:
        raise ManifestInvalid(
            "the copy of the source cannot be read",
            resource=ref.path,
            found=f"{type(error).__name__}: {error}"[:300],
            expected="an Arrow file with the source's schema",
        ) from error
    statement = parse_merge(
        spec.job.on,
        spec.job.clauses,
        Schema.from_json(spec.table.schema_string),
        columns,
        resource=work.identity.display,
    )
    return SourceCopy(rows, whole, statement, (spec.table.schema_string, schema))


MAX_ROWS = 1_000_000
"""Rows of a round: about a second of work, a tenth of the time that a job needs for them."""
PART_ROWS = 100_000
PART_BYTES = 32 << 20
"""Rows and size of the files that are in memory at once."""
READ_ROWS = 4_096
READ_BYTES = 256 << 20
"""A part that takes more memory is left to the job. A file of few bytes may hold gigabytes of one
text, so it is read in batches of this size, and abandoned in time."""

TIME_BYTES = 64 << 20
"""Times of files that a replace reads here: eight million rows, or 256 files."""

_NOT_HERE = (NeedsSpark, StatementFailed, pa.ArrowException)
"""After these errors the job evaluates the round; it can also process values that Arrow cannot
(texts of more than 2 GiB in one array)."""


Parts = list[tuple[int, Sequence[InputFile]]]
"""The inputs of a round, of which each part is in memory at once; with the number of its first."""


class ArrowRounds:
    """The implementation of `SmallRounds`."""

    time_bytes = TIME_BYTES

    def __init__(self) -> None:
        self._of: tuple[str, int, str] | None = None
        self._evaluator: _Statement | _Merge | None = None

    def can_evaluate(self, work: Work) -> bool:
        return self._current(work) is not None

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallRoundResult | None:
        evaluator = self._current(work)
        parts = _parts(inputs)
        if evaluator is None or parts is None:
            return None
        try:
            return evaluator.rows(parts)
        except _NOT_HERE:
            return None

    def inserts(self, work: Work, matched: Sources) -> SmallRoundResult | None:
        evaluator = self._current(work)
        if not isinstance(evaluator, _Merge):
            return None
        try:
            return evaluator.inserts(matched)
        except _NOT_HERE:
            return None

    def _current(self, work: Work) -> _Statement | _Merge | None:
        _, spec = work.frozen
        copy = newest_copy(work) if isinstance(spec.job, MergeJob) else None
        which = (spec.operation_id, spec.attempt, "" if copy is None else str(id(copy)))
        if which != self._of:
            self._of, self._evaluator = which, _evaluator(work, spec, copy)
        return self._evaluator


def _parts(inputs: Sequence[InputFile]) -> Parts | None:
    """The parts of a round; None if one of these inputs is not small, or if they are not the
    table's own files."""
    rows = [i.rows - (len(from_base64(i.dv)) if i.dv else 0) for i in inputs]
    large = any(r > PART_ROWS or i.size > PART_BYTES for r, i in zip(rows, inputs, strict=True))
    outside = any(is_absolute(object_path(i.logged_path)) for i in inputs)
    if large or outside or sum(rows) > MAX_ROWS:
        return None
    parts: Parts = []
    first = in_rows = in_bytes = 0
    for number, (live, input_) in enumerate(zip(rows, inputs, strict=True)):
        if in_rows + live > PART_ROWS or in_bytes + input_.size > PART_BYTES:
            parts.append((first, inputs[first:number]))
            first, in_rows, in_bytes = number, 0, 0
        in_rows, in_bytes = in_rows + live, in_bytes + input_.size
    return [*parts, (first, inputs[first:])]


def _evaluator(work: Work, spec: JobSpec, copy: SourceCopy | None) -> _Statement | _Merge | None:
    files = _Files(work, spec)
    if isinstance(spec.job, StatementJob):
        found = compiled(spec)
        return None if found is None else _Statement(files, *found)
    if copy is None or not copy.whole or copy.bounded:
        return None
    merge = compile_merge(copy.statement)
    return None if merge is None else _Merge(files, copy, merge)


@dataclass(frozen=True)
class _Files:
    """Data files: reads those of the table, writes those of the attempt."""

    work: Work
    spec: JobSpec

    @cached_property
    def format(self) -> TableFormat:
        table = job_table_format(self.spec.table)
        # Nullability is checked on writing, as in the job.
        return replace(table, schema=all_nullable(table.schema))

    def read(self, parts: Parts, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The live rows of each part, with `HIDDEN`. Raises: NeedsSpark if they take too much
        memory; DataFileMissing, StorageError, CountMismatch."""
        for first, inputs in parts:
            yield self._read(first, inputs, columns)

    def _read(self, first: int, inputs: Sequence[InputFile], columns: Sequence[str]) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        size = 0
        for number, input_ in enumerate(inputs, first):
            for batch in self._batches(number, input_, columns):
                batches.append(batch)
                size += batch.nbytes
                if size > READ_BYTES:
                    raise NeedsSpark(f"{input_.logged_path}: more than {READ_BYTES} bytes of rows")
        hidden = [pa.field(INPUT, pa.int32()), pa.field(POSITION, pa.int64())]
        empty = pa.schema([*arrow_schema(self.format, columns), *hidden]).empty_table()
        return pa.Table.from_batches(batches) if batches else empty

    def _batches(
        self, number: int, input_: InputFile, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        with open_input(self.work.table.store, self.format, input_, columns) as reader:
            for batch in reader.batches(
                dead=from_base64(input_.dv) if input_.dv else None,
                positions=POSITION,
                batch_rows=READ_ROWS,
            ):
                which = pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows)
                arrays = [*(batch.column(n) for n in columns), which, batch.column(POSITION)]
                yield pa.RecordBatch.from_arrays(arrays, names=[*columns, *HIDDEN])

    def write(
        self, tables: Iterable[pa.Table], names: Sequence[str], inputs: Sequence[InputFile] = ()
    ) -> RowsWritten:
        """Write rows to new files, and return each row's place in them.

        Args:
            names: the columns of the rows: all of the table, or none, and hidden ones.
            inputs: the rows' original files.
        Raises: StatementFailed, StorageError.
        """
        job = self.spec.job
        assert isinstance(job, StatementJob | MergeJob)
        new = {name.lower() for name in job.set} if isinstance(job, StatementJob) else set()
        to = RowsWork(
            table=self.spec.new_rows_table,
            data_prefix=self.spec.data_prefix,
            target_file_size=job.target_file_size,
            logged_values=logged_partition_values(self.spec.table, inputs, [*new]),
            new_columns=tuple(n for n in names if n.lower() in new),
        )
        batches = (b for t in tables if len(t) for b in t.combine_chunks().to_batches())
        written = RowFiles(self.work.table.store, to, tuple(names)).write_all(batches)
        store_facts(self.work.table.store, self.spec.table.table_id, written.files)
        return written


@dataclass(frozen=True)
class _Statement:
    files: _Files
    statement: Statement
    local: LocalStatement

    def rows(self, parts: Parts) -> SmallRoundResult:
        """Raises: NeedsSpark, StatementFailed; DataFileMissing, StorageError."""
        updates = bool(self.local.assignments)
        to = job_table_format(self.files.spec.new_rows_table)
        names = (*to.names_of_updated, *HIDDEN) if updates else HIDDEN

        def affected() -> Iterator[pa.Table]:
            for table in self.files.read(parts, self._columns):
                found = table.take(self.local.matching(table))
                yield self.local.written(found) if updates else found

        return _result(self.files.write(affected(), names, _inputs(parts)))

    @cached_property
    def _columns(self) -> list[str]:
        names = list(self.files.format.names_of_updated)
        where, kept = self.statement.where, self.local.kept
        read = frozenset[str]() if where is None else referenced(where)
        if self.local.assignments:
            if kept is None:
                return names
            read = read.union(kept, *(referenced(a.value) for a in self.statement.assignments))
        # A batch without columns would not have a number of rows.
        return [name for name in names if name in read] or names[:1]


@dataclass(frozen=True)
class _Merge:
    files: _Files
    copy: SourceCopy
    local: LocalMerge

    def rows(self, parts: Parts) -> SmallRoundResult:
        """Raises: NeedsSpark, StatementFailed; DataFileMissing, StorageError."""
        of_all = self.copy.statement.records_matches
        if of_all and not self.copy.identified:
            raise NeedsSpark("source rows have no identity")
        names, partitioned = self.files.format.names_of_updated, self.files.format.partition_columns
        merge = ArrowMerge(self.copy.statement, self.local, self.copy.rows, partitioned)

        def updated() -> Iterator[pa.Table]:
            for table in self.files.read(parts, names):
                yield from merge.updated(table, merge.pairs(table))

        written = self.files.write(updated(), (*names, *HIDDEN, SOURCE_ROW), _inputs(parts))
        if merge.doubled:
            raise NeedsSpark("several rows of the source match one row of the table")
        matches = pa.concat_tables([written.matches, *merge.unwritten])
        if of_all:
            matches = recorded(identified(matches, self.copy.rows))
        else:
            matches = changed(matches).select(MATCHES.names)
        return _result(replace(written, matches=matches))

    def inserts(self, matched: Sources) -> SmallRoundResult:
        """Raises: NeedsSpark, StatementFailed; StorageError."""
        if not (self.copy.statement.records_matches and self.copy.identified):
            raise NeedsSpark("source rows have no identity")
        if self.files.spec.table.identity:
            raise NeedsSpark("the job gives the values of identity columns")
        missing = unmatched_sources(self.copy.identities, matched)
        rows = self.local.unmatched_rows(self.copy.rows, missing, "NotMatched")
        clauses = self.local.clause_numbers("NotMatched", rows)
        empty = arrow_schema(self.files.format.without_row_ids).empty_table()
        tables = []
        for clause in self.local.when("NotMatched"):
            chosen = missing[clauses == clause.number]
            if len(chosen):
                unmatched = self.local.unmatched_rows(self.copy.rows, chosen, "NotMatched")
                tables.append(clause.written(unmatched, empty, None))
                require_new_texts(tables[-1], clause, self.files.format.partition_columns)
        written = self.files.write(tables, empty.column_names)
        return _result(replace(written, matches=MATCHES.empty_table()), fresh=True)


def _inputs(parts: Parts) -> list[InputFile]:
    return [input_ for _, inputs in parts for input_ in inputs]


def _result(written: RowsWritten, *, fresh: bool = False) -> SmallRoundResult:
    outputs = (output_file(file) for file in written.files)
    return SmallRoundResult(
        written.matches.sort_by(IN_ORDER),
        tuple(each.model_copy(update={"fresh": True}) if fresh else each for each in outputs),
    )
