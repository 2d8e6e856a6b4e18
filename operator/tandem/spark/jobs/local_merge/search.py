"""A task of a merge over Arrow: the rows of some inputs that match, and what becomes of them.

The search decodes the columns that `on` names, of row groups that may have a key of the source;
whole rows are decoded only of row groups with a match. It does not insert: which source rows match
nothing is known only after all tasks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.writer import WrittenFile
from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, JobSpec, MergeJob
from tandem.pruning.selection import KEY_TYPES
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs.local_merge.source import compiled
from tandem.spark.jobs.local_statement import TaskFiles, live_rows, rows_of_input, runs
from tandem.spark.runtime.control import job_table_format
from tandem.spark.runtime.counters import Counter, prefix_of
from tandem.spark.runtime.ipc import to_stream
from tandem.spark.runtime.row_files import (
    HIDDEN,
    MATCHES,
    POSITION,
    InputSplit,
    RowsWork,
    logged_partition_values,
    open_input,
    require_texts,
)
from tandem.statements.local import LocalClause, LocalMerge, LocalRows, NeedsSpark, RowPairs
from tandem.statements.local.merge import NO_CLAUSE
from tandem.statements.merge import MergeStatement
from tandem.storage import Store

_UPDATED: Final = 0
"""The output of a row that an update writes, until its file is known."""
ROWS: Final = MATCHES.append(pa.field("source", pa.int64()))
"""Rows that matched or change: as matches, with the index of the source row, -1 for none. Rows that
stay are included, with the output `KEPT`."""


@dataclass(frozen=True)
class FoundMatches:
    """The answer of a task: the files of updated rows; an Arrow IPC stream of `ROWS`, whose
    `output` is an index into these files; which source rows matched, as packed bits; whether a row
    matched several times."""

    files: tuple[WrittenFile, ...]
    rows: bytes
    sources: bytes
    doubled: bool


def find_matches(
    store: Store,
    spec: JobSpec,
    source: tuple[pa.Table, str],
    inputs: Sequence[InputFile],
    round_: int,
    task: int,
    splits: Sequence[InputSplit],
) -> FoundMatches:
    """Match splits of the inputs with the source, and write the new contents of updated rows.

    Args:
        source: the rows, at least with the columns that the merge reads, and its schema.
    Raises:
        NeedsSpark: Spark evaluates the round as a whole; what was written is left to clean.
        StatementFailed, DataFileMissing, StorageError, CountMismatch.
    """
    job = spec.job
    assert isinstance(job, MergeJob)
    found = compiled(spec, source[1])
    if found is None:
        raise NeedsSpark("an expression that only Spark evaluates")
    table = job_table_format(spec.table)
    # Nullability is checked on writing, as on Spark.
    loose = replace(table, schema=all_nullable(table.schema))
    work = RowsWork(
        table=spec.table,
        data_prefix=spec.data_prefix,
        target_file_size=job.target_file_size,
        logged_values=logged_partition_values(spec.table, inputs),
    )
    search = _Search(store, loose, *found, source[0])
    counter = Counter(store, prefix_of(spec.control_prefix, round_), task)
    try:
        with closing(_updated(search, inputs, splits, counter)) as batches:
            if search.updates:
                names = (*table.schema.names, *HIDDEN)
                written = TaskFiles(store, work, names, task).write_all(batches)
                files, places = written.files, written.matches
            else:
                files, places = (), MATCHES.empty_table()
                for _ in batches:
                    raise CountMismatch("a merge without an update changed a row")
        rows = search.found.rows(places)
    except pa.ArrowException as error:  # such as texts of more than 2 GiB in one array
        raise NeedsSpark(str(error)) from error
    matched = np.packbits(search.found.sources).tobytes()
    return FoundMatches(files, to_stream(rows), matched, search.found.doubled)


def _updated(
    search: _Search, inputs: Sequence[InputFile], splits: Sequence[InputSplit], counter: Counter
) -> Generator[pa.RecordBatch]:
    for split in splits:
        for rows in search.updated(inputs[split.input], split):
            yield from rows_of_input(rows, split.input)
        counter.add()
    counter.show()


@dataclass
class _Found:
    """What a task has found: for each row its input, position, output (`_UPDATED`, `KEPT`, or -1 if
    it is deleted) and source row."""

    sources: Any
    doubled: bool = False
    parts: list[tuple[Any, ...]] = field(default_factory=list)

    def add(self, input_: int, positions: Any, outputs: Any, sources: Any) -> None:
        inputs = np.full(len(positions), input_, np.int32)
        self.parts.append((inputs, positions, outputs, sources))

    def rows(self, written: pa.Table) -> pa.Table:
        """`ROWS`, ascending, with the places that `written` (`MATCHES`) has for updated ones.

        Raises: CountMismatch.
        """
        none = (np.empty(0, np.int32), *(np.empty(0, np.int64) for _ in range(3)))
        columns = [np.concatenate(each) for each in zip(none, *self.parts, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        inputs, positions, outputs, sources = (column[order] for column in columns)
        written = written.sort_by([("input", "ascending"), ("position", "ascending")])
        updated = np.flatnonzero(outputs == _UPDATED)
        if not (
            np.array_equal(inputs[updated], written["input"].to_numpy())
            and np.array_equal(positions[updated], written["position"].to_numpy())
        ):
            raise CountMismatch(
                "a merge wrote other rows than it updates",
                found=len(written),
                expected=f"{len(updated)} rows",
            )
        places = np.full(len(outputs), -1, np.int64)
        outputs[updated] = written["output"].to_numpy()
        places[updated] = written["output_position"].to_numpy()
        return pa.table(
            [
                pa.array(inputs),
                pa.array(positions),
                pa.array(outputs.astype(np.int32), mask=outputs == -1),
                pa.array(places, mask=places == -1),
                pa.array(sources),
            ],
            schema=ROWS,
        )


@dataclass(frozen=True)
class _Search:
    """Finds the rows of files that match, or that a clause changes because they do not."""

    store: Store
    table: TableFormat
    statement: MergeStatement
    local: LocalMerge
    source: pa.Table

    @cached_property
    def found(self) -> _Found:
        return _Found(np.zeros(self.source.num_rows, bool))

    @cached_property
    def updates(self) -> bool:
        return any(clause.action == "Update" for clause in self.local.clauses)

    def updated(self, input_: InputFile, split: InputSplit) -> Iterator[pa.Table]:
        """The new contents of rows that an update changes, with their positions; all rows that
        matched or change are added to `found`."""
        of_source = not self.local.when("NotMatchedBySource")
        first = self._searched if of_source else self._columns(*self._searched, *self._decided)
        with open_input(self.store, self.table, input_, first) as reader:
            if not of_source:
                for rows in live_rows(reader, input_, split.of(len(reader.row_groups))):
                    yield from self._fates(rows, self._pairs(rows), split.input)
                return
            rows = self._candidates(reader, input_, self._groups(reader, split))
            starts = np.cumsum((0, *reader.row_groups))
        if rows is None:
            return
        pairs = self._pairs(rows)
        if not len(pairs):
            return
        if set(self._decided) <= set(self._searched):
            yield from self._fates(rows, pairs, split.input)
            return
        positions = rows[POSITION].to_numpy()[pairs.target]
        needed = np.unique(np.searchsorted(starts, positions, side="right") - 1)
        with open_input(self.store, self.table, input_, self._decided) as reader:
            for together in runs(needed):
                for batch in live_rows(reader, input_, together):
                    places = batch[POSITION].to_numpy()
                    begin, end = np.searchsorted(positions, (places[0], places[-1] + 1))
                    if end > begin:
                        chosen = np.searchsorted(places, positions[begin:end])
                        here = RowPairs(chosen, pairs.source[begin:end])
                        yield from self._fates(batch, here, split.input)

    @cached_property
    def _searched(self) -> list[str]:
        return self._columns(*self.statement.keys_of_table())

    @cached_property
    def _decided(self) -> list[str]:
        """The columns by which the fate of a row is decided: those of conditions, and all if rows
        are written."""
        if self.updates:
            return list(self.table.schema.names)
        return self._columns(*self.statement.columns_of_conditions())

    def _columns(self, *names: str) -> list[str]:
        return [name for name in self.table.schema.names if name in names]

    def _groups(self, reader: DataFileReader, split: InputSplit) -> list[range]:
        """Row groups of a split that may have a key of the source."""
        groups = np.array(split.of(len(reader.row_groups)), np.int64)
        for name, values in self._keys.items():
            constant = reader.constant(name)
            if constant is not None:
                if not pc.is_in(constant, values).as_py():
                    return []
                continue
            bounds = reader.integer_bounds(name) if name in self._integers else None
            if bounds is not None and len(groups):
                sought = self._integers[name]
                groups = groups[[_may_have(sought, bounds[group]) for group in groups]]
        return runs(groups)

    @cached_property
    def _keys(self) -> dict[str, Any]:
        """By column of the table, the distinct values of the source that it must have to match."""
        return {
            column.parts[1]: pc.unique(self.source[of_source.parts[1]]).drop_null()
            for column, of_source in self.statement.equal_columns()
            if column.type.name in KEY_TYPES
        }

    @cached_property
    def _integers(self) -> dict[str, Any]:
        """The integers and dates (as days) among `_keys`, ascending."""
        found = {}
        for name, values in self._keys.items():
            if pa.types.is_date32(values.type):
                values = values.cast(pa.int32())
            if pa.types.is_signed_integer(values.type):
                found[name] = np.sort(values.cast(pa.int64()).to_numpy())
        return found

    @cached_property
    def _sought(self) -> Any:
        return self.local.sought(self.source)

    def _candidates(
        self, reader: DataFileReader, input_: InputFile, groups: Sequence[range]
    ) -> pa.Table | None:
        """The rows that may match, with the columns of the search and their positions."""
        parts = []
        for together in groups:
            for rows in live_rows(reader, input_, together):
                places = self.local.may_match(rows, self._sought)
                if len(places):
                    parts.append(rows if len(places) == rows.num_rows else rows.take(places))
        return pa.concat_tables(parts) if parts else None

    def _pairs(self, rows: pa.Table) -> RowPairs:
        """The pairs of rows that match, each row of the table once. Raises: NeedsSpark if it has
        several, and it matters which."""
        places = self.local.may_match(rows, self._sought)
        pairs = self.local.match(rows.take(pa.array(places)), self.source)
        self.found.sources[pairs.source] = True
        again = pairs.target[1:] == pairs.target[:-1]
        if again.any():
            if self.statement.one_match_only:
                raise NeedsSpark("several rows of the source match one row of the table")
            self.found.doubled = True
            pairs = pairs.take(np.flatnonzero(np.concatenate(([True], ~again))))
        return RowPairs(places[pairs.target], pairs.source)

    def _fates(self, rows: pa.Table, pairs: RowPairs, input_: int) -> Iterator[pa.Table]:
        """Decide what becomes of rows; all of those without a pair are unmatched, if there are
        clauses for them."""
        clauses = np.full(rows.num_rows, NO_CLAUSE, np.int64)
        sources = np.full(rows.num_rows, -1, np.int64)
        sources[pairs.target] = pairs.source
        clauses[pairs.target] = self.local.clause_numbers(
            "Matched", self.local.matched_rows(rows, self.source, pairs)
        )
        if self.local.when("NotMatchedBySource"):
            alone = np.flatnonzero(sources < 0)
            left = self.local.unmatched_rows(rows, alone, "NotMatchedBySource")
            clauses[alone] = self.local.clause_numbers("NotMatchedBySource", left)
        outputs = np.full(rows.num_rows, KEPT, np.int64)
        written = []
        for clause in self.local.clauses:
            places = np.flatnonzero(clauses == clause.number)
            outputs[places] = -1 if clause.action == "Delete" else _UPDATED
            if len(places) and clause.action == "Update":
                written.append(self._written(clause, rows, places, sources))
        concerned = np.flatnonzero((sources >= 0) | (clauses != NO_CLAUSE))
        positions = rows[POSITION].to_numpy()[concerned]
        self.found.add(input_, positions, outputs[concerned], sources[concerned])
        if written:
            together = pa.concat_tables(written)
            # In the order of the table, of which its files may make use.
            yield together if len(written) == 1 else together.sort_by(POSITION)

    def _written(self, clause: LocalClause, rows: pa.Table, places: Any, sources: Any) -> pa.Table:
        """The new contents of rows. Raises: NeedsSpark; StatementFailed for a new text that is not
        UTF-8."""
        given: LocalRows
        if clause.when == "Matched":
            pairs = RowPairs(places, sources[places])
            given = self.local.matched_rows(rows, self.source, pairs)
        else:
            given = self.local.unmatched_rows(rows, places, clause.when)
        written = clause.written(given, rows, places)
        require_new_texts(written, clause, self.table.partition_columns)
        return written


def require_new_texts(rows: pa.Table, clause: LocalClause, partitioned: Sequence[str]) -> None:
    """Raises: StatementFailed for a text that a clause sets and that is not UTF-8. Values of
    partition columns are checked on writing."""
    for name in clause.assignments:
        if name not in partitioned:
            for chunk in rows[name].chunks:
                require_texts(chunk, name)


def _may_have(values: Any, bounds: tuple[int, int] | None) -> bool:
    """Whether one of the ascending values lies within the bounds."""
    if bounds is None:
        return True
    first, end = np.searchsorted(values, bounds[0]), np.searchsorted(values, bounds[1], "right")
    return bool(first < end)
