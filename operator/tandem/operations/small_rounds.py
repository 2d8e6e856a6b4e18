"""Small rounds evaluated with Arrow, in the process of the engine; and the job's copy of a merge's
source, with which it does so.

Returns exactly what a round of the job would return, by `tandem.statements.local`, whose results
are proven equal to Spark's, and writes files as the job's tasks do. Whatever is not certain, and
every error of a row, is left to the job, which reports it best. One object serves one operation.

The job copies a source of few rows whole (the columns that the merge reads, and the identity of
each row), and of a larger one the least and the greatest key. The engine has neither credentials
for the source nor Spark's readers; with the copy it needs neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from tandem.jobs.results import OutputFile, SideFileRef
from tandem.operations.attempt.records import read_side_file
from tandem.operations.rounds import SmallRoundResult
from tandem.pruning.selection import KEY_TYPES, Keys, keys_of
from tandem.reconcile.matches import KEPT, Sources, unmatched_sources
from tandem.spark.jobs.local_statement import compiled
from tandem.spark.runtime.control import job_table_format, output_file
from tandem.spark.runtime.row_files import (
    HIDDEN,
    INPUT,
    MATCHES,
    POSITION,
    RowFiles,
    logged_partition_values,
    open_input,
    require_texts,
)
from tandem.spark.runtime.row_files import RowsWork as WriteWork
from tandem.spark.runtime.written_facts import store_facts
from tandem.statements.local import (
    LocalClause,
    LocalMerge,
    LocalRows,
    LocalStatement,
    NeedsSpark,
    compile_merge,
)
from tandem.statements.local.rows import COLLATED, NOT_OURS
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

    def has(self, *metadata: str) -> bool:
        """Whether a column of either side, at any level, has one of these metadata keys."""
        return any(key in schema for key in metadata for schema in self.schemas)

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
        """For each column that must equal one of the source, the values in the source. Empty if
        texts with different bytes may be equal."""
        if self.has(COLLATED):
            return ()
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
        with pa.ipc.open_file(pa.BufferReader(read_side_file(work.table.store, ref))) as reader:
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

_RECORD = [pa.field("source_1", pa.int64()), pa.field("source_2", pa.int64())]
_NOT_HERE = (NeedsSpark, StatementFailed, pa.ArrowException)
"""After these errors the job evaluates the round; it can also process values that Arrow cannot
(texts of more than 2 GiB in one array)."""


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
            return _joined([(first, evaluator.rows(part)) for first, part in parts])
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


def _parts(inputs: Sequence[InputFile]) -> list[tuple[int, Sequence[InputFile]]] | None:
    """The units of evaluation: the number of the first input, and the inputs. None if a round of
    them is not small, or if they are not the table's own files."""
    rows = [i.rows - (len(from_base64(i.dv)) if i.dv else 0) for i in inputs]
    large = any(r > PART_ROWS or i.size > PART_BYTES for r, i in zip(rows, inputs, strict=True))
    outside = any(is_absolute(object_path(i.logged_path)) for i in inputs)
    if large or outside or sum(rows) > MAX_ROWS:
        return None
    parts: list[tuple[int, Sequence[InputFile]]] = []
    first = in_rows = in_bytes = 0
    for number, (live, input_) in enumerate(zip(rows, inputs, strict=True)):
        if in_rows + live > PART_ROWS or in_bytes + input_.size > PART_BYTES:
            parts.append((first, inputs[first:number]))
            first, in_rows, in_bytes = number, 0, 0
        in_rows, in_bytes = in_rows + live, in_bytes + input_.size
    return [*parts, (first, inputs[first:])]


def _joined(answers: Sequence[tuple[int, SmallRoundResult]]) -> SmallRoundResult:
    """Merge answers on parts of the inputs into one on all. In each, `input` and `output` number
    its own files; there are no fresh ones."""
    if len(answers) == 1:
        return answers[0][1]
    outputs: list[OutputFile] = []
    tables = []
    for first, answer in answers:
        found = answer.matches
        which = pc.add(found["input"], pa.scalar(first, pa.int32()))
        has_output = pc.greater_equal(found["output"], 0)
        shifted = pc.add(found["output"], pa.scalar(len(outputs), pa.int32()))
        moved = pc.if_else(has_output, shifted, found["output"])
        tables.append(found.set_column(0, "input", which).set_column(2, "output", moved))
        outputs += answer.outputs
    return SmallRoundResult(pa.concat_tables(tables), tuple(outputs))


def _evaluator(work: Work, spec: JobSpec, copy: SourceCopy | None) -> _Statement | _Merge | None:
    files = _Files(work, spec)
    if isinstance(spec.job, StatementJob):
        found = compiled(spec)
        return None if found is None else _Statement(files, *found)
    if any(text in spec.table.schema_string for text in NOT_OURS):
        return None
    if copy is None or not copy.whole or copy.has(*NOT_OURS):
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

    def read(self, inputs: Sequence[InputFile], columns: Sequence[str]) -> pa.Table:
        """Live rows with their positions. Raises: NeedsSpark if they take too much memory;
        DataFileMissing, StorageError, CountMismatch."""
        batches: list[pa.RecordBatch] = []
        size = 0
        for number, input_ in enumerate(inputs):
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
        self, rows: pa.Table, inputs: Sequence[InputFile] = (), *, fresh: bool = False
    ) -> tuple[list[OutputFile], pa.Table]:
        """Write rows with all columns of the table to new files; returns these and each row's
        place in them. `inputs` are the rows' original files. Raises: StatementFailed,
        StorageError."""
        if not rows.num_rows:
            return [], MATCHES.empty_table()
        job = self.spec.job
        assert isinstance(job, StatementJob | MergeJob)
        new = {name.lower() for name in job.set} if isinstance(job, StatementJob) else set()
        to = WriteWork(
            table=self.spec.new_rows_table,
            data_prefix=self.spec.data_prefix,
            target_file_size=job.target_file_size,
            logged_values=logged_partition_values(
                self.spec.table,
                inputs,
                [name.lower() for name in new],
            ),
            new_columns=tuple(n for n in rows.column_names if n.lower() in new),
        )
        writer = RowFiles(self.work.table.store, to, tuple(rows.column_names))
        written = writer.write_all(rows.combine_chunks().to_batches())
        store_facts(self.work.table.store, self.spec.table.table_id, written.files)
        outputs = [output_file(f) for f in written.files]
        if fresh:
            outputs = [output.model_copy(update={"fresh": True}) for output in outputs]
        return outputs, written.matches


@dataclass(frozen=True)
class _Statement:
    files: _Files
    statement: Statement
    local: LocalStatement

    def rows(self, inputs: Sequence[InputFile]) -> SmallRoundResult:
        """Raises: NeedsSpark, StatementFailed; DataFileMissing, StorageError."""
        table = self.files.read(inputs, self._columns)
        data = table.drop_columns(list(HIDDEN))
        found = self.local.evaluate(data)
        places = table.select(list(HIDDEN)).take(found.matched)
        if found.written is None:
            return SmallRoundResult(_sorted(_deleted(places)))
        rows = found.written
        for name in HIDDEN:
            rows = rows.append_column(name, places[name])
        outputs, matches = self.files.write(rows, inputs)
        return SmallRoundResult(_sorted(matches), tuple(outputs))

    @cached_property
    def _columns(self) -> list[str]:
        names = list(self.files.format.schema.names)
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

    def rows(self, inputs: Sequence[InputFile]) -> SmallRoundResult:
        """Raises: NeedsSpark, StatementFailed; DataFileMissing, StorageError."""
        if self.copy.statement.records_matches and not self.copy.identified:
            raise NeedsSpark("source rows have no identity")
        names = list(self.files.format.schema.names)
        table = self.files.read(inputs, names)
        target = table.select(names)
        found = self.local.match(target, self.copy.rows)
        if len(np.unique(found.target)) < len(found.target):
            raise NeedsSpark("several rows of the source match one row of the table")
        # For each row of the table its source row, -1 for none, and the clause that applies.
        sources = np.full(table.num_rows, -1, dtype=np.int64)
        sources[found.target] = found.source
        clauses = np.full(table.num_rows, -1, dtype=np.int64)
        pairs = self.local.matched_rows(target, self.copy.rows, found)
        clauses[found.target] = self.local.clause_numbers("Matched", pairs)
        unmatched = np.flatnonzero(sources < 0)
        left = self.local.unmatched_rows(target, unmatched, "NotMatchedBySource")
        clauses[unmatched] = self.local.clause_numbers("NotMatchedBySource", left)
        updated, deleted = [], []
        for clause in self.local.clauses:
            places = np.flatnonzero(clauses == clause.number)
            if not len(places):
                continue
            if clause.action == "Delete":
                deleted.append(places)
                continue
            if clause.when == "Matched":
                chosen = found.take(np.flatnonzero(clauses[found.target] == clause.number))
                rows, places = (
                    self.local.matched_rows(target, self.copy.rows, chosen),
                    chosen.target,
                )
            else:
                rows = self.local.unmatched_rows(target, places, clause.when)
            written = _written(clause, rows, target, places)
            for name in HIDDEN:
                written = written.append_column(name, table[name].take(pa.array(places)))
            updated.append(written)
        after = pa.concat_tables(updated) if updated else table.slice(0, 0)
        outputs, matches = self.files.write(after, inputs)
        parts = [matches]
        hidden = table.select(list(HIDDEN))
        parts += [_deleted(hidden.take(pa.array(places))) for places in deleted]
        if self.copy.statement.records_matches:
            stays = np.flatnonzero((clauses < 0) & (sources >= 0))
            parts.append(_deleted(hidden.take(pa.array(stays)), output=KEPT))
        answer = _sorted(pa.concat_tables(parts))
        if self.copy.statement.records_matches:
            answer = self._recorded(answer, hidden, sources)
        return SmallRoundResult(answer, tuple(outputs))

    def _recorded(self, answer: pa.Table, hidden: pa.Table, sources: Any) -> pa.Table:
        """Add the identity of the source row that each row matched, null for none."""
        order = np.lexsort((hidden[POSITION].to_numpy(), hidden[INPUT].to_numpy()))
        places = hidden.take(pa.array(order))
        answered = _positions_in(places, answer)
        matched = sources[order][answered]
        ids = self.copy.identities[np.maximum(matched, 0)] if len(self.copy.rows) else None
        for number, field in enumerate(_RECORD):
            values = np.zeros(len(matched), np.int64) if ids is None else ids[:, number]
            answer = answer.append_column(field, pa.array(values, mask=matched < 0))
        return answer

    def inserts(self, matched: Sources) -> SmallRoundResult:
        """Raises: NeedsSpark, StatementFailed; StorageError."""
        if not (self.copy.statement.records_matches and self.copy.identified):
            raise NeedsSpark("source rows have no identity")
        missing = unmatched_sources(self.copy.identities, matched)
        rows = self.local.unmatched_rows(self.copy.rows, missing, "NotMatched")
        clauses = self.local.clause_numbers("NotMatched", rows)
        empty = arrow_schema(self.files.format).empty_table()
        written = []
        for clause in self.local.when("NotMatched"):
            chosen = missing[clauses == clause.number]
            if len(chosen):
                unmatched = self.local.unmatched_rows(self.copy.rows, chosen, "NotMatched")
                written.append(_written(clause, unmatched, empty, chosen))
        outputs = self.files.write(pa.concat_tables(written), fresh=True)[0] if written else []
        return SmallRoundResult(MATCHES.empty_table(), tuple(outputs))


def _written(clause: LocalClause, rows: LocalRows, table: pa.Table, places: Any) -> pa.Table:
    """Raises: StatementFailed for a new text that is not UTF-8; NeedsSpark."""
    found = clause.written(rows, table, places)
    for name in clause.assignments:
        for chunk in found[name].chunks:
            require_texts(chunk, name)
    return found


def _deleted(places: pa.Table, *, output: int | None = None) -> pa.Table:
    """Matches of rows that are deleted (no `output`), or stay unchanged."""
    which = pa.repeat(pa.scalar(output, pa.int32()), len(places))
    nowhere = pa.nulls(len(places), pa.int64())
    return pa.table([places[INPUT], places[POSITION], which, nowhere], schema=MATCHES)


def _sorted(matches: pa.Table) -> pa.Table:
    return matches.sort_by([("input", "ascending"), ("position", "ascending")])


def _positions_in(places: pa.Table, matches: pa.Table) -> Any:
    """The index of each match in `places`, which is sorted by input and position."""
    width = np.int64(1 + (pc.max(places[POSITION]).as_py() or 0))
    place_keys = places[INPUT].to_numpy().astype(np.int64) * width + places[POSITION].to_numpy()
    match_keys = (
        matches["input"].to_numpy().astype(np.int64) * width + matches["position"].to_numpy()
    )
    return np.searchsorted(place_keys, match_keys)
