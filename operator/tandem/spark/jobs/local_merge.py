"""A merge over Arrow, where its meaning is proven equal to Spark's (`statements.local`).

Must not import Spark, so that a small merge needs none. Everything that is not certain, and each
row on which Spark raises, or may do so, is left to Spark as `NeedsSpark`: it then executes the
whole round (`spark.jobs.merge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import all_nullable
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.datafiles.writer import WrittenFile
from tandem.jobs.formats import SOURCE_IDS, InputFile, JobSpec, MergeJob
from tandem.jobs.results import OutputFile, SideFileRef
from tandem.pruning.selection import KEY_TYPES
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs.local_statement import changed_rows, in_tasks, live_rows, runs
from tandem.spark.jobs.merge_source import ArrowSource, compiled
from tandem.spark.runtime.control import (
    Control,
    Counter,
    Counters,
    job_table_format,
    output_file,
    to_file,
    to_stream,
)
from tandem.spark.runtime.identity import last_values, numbered_rows
from tandem.spark.runtime.row_files import (
    HIDDEN,
    MATCHES,
    POSITION,
    InputSplit,
    RowFiles,
    RowsWork,
    TaskRows,
    joined,
    logged_partition_values,
    open_input,
    require_texts,
    unwritten,
)
from tandem.spark.runtime.written_facts import store_facts
from tandem.statements.local import LocalClause, LocalMerge, LocalRows, NeedsSpark, RowPairs
from tandem.statements.local.merge import NO_CLAUSE
from tandem.statements.merge import MergeStatement
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark import SparkContext


# A task: the rows of some inputs that match, and what becomes of them.
#
# The search decodes the columns that `on` names, of row groups that may have a key of the source;
# whole rows are decoded only of row groups with a match. It does not insert: which source rows
# match nothing is known only after all tasks.


SOURCE_ROW: Final = "__tandem_source"
"""The index of the source row of a match, -1 for none."""


@dataclass(frozen=True)
class MergedRows:
    """The answer of a task of a merge.

    Attributes:
        rows: the updated rows, and the matches of all rows that matched or change: those that stay
            have the output `KEPT`. Beside them is what is known of the source row of each.
        fresh: the files of inserted rows.
        sources: which source rows matched, as packed bits; of tasks over Arrow.
        complete: whether the one source row of each match is known.
    """

    rows: TaskRows
    fresh: tuple[WrittenFile, ...] = ()
    sources: bytes = b""
    complete: bool = True


def find_matches(
    store: Store,
    spec: JobSpec,
    source: tuple[pa.Table, str],
    inputs: Sequence[InputFile],
    task: int,
    splits: Sequence[InputSplit],
    counters: Counters | None = None,
) -> MergedRows:
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
    merge = ArrowMerge(*found, source[0], table.partition_columns)
    search = _Search(store, loose, merge)
    counter = Counter(counters, task)
    names = (*table.names_of_updated, *HIDDEN, SOURCE_ROW)
    try:
        with closing(changed_rows(search.changed, inputs, splits, counter)) as batches:
            written = RowFiles(store, work, names, task).write_all(batches)
        matches = pa.concat_tables([written.matches, *merge.unwritten])
    except pa.ArrowException as error:  # such as texts of more than 2 GiB in one array
        raise NeedsSpark(str(error)) from error
    return MergedRows(
        replace(written, matches=matches).sent(),
        sources=np.packbits(merge.matched).tobytes(),
        complete=not merge.doubled,
    )


@dataclass
class ArrowMerge:
    """A merge of some rows of the table after the other, over Arrow.

    Attributes:
        partitioned: the table's partition columns.
        unwritten: the matches of rows that are deleted, or stay.
        matched: which rows of the source match.
        doubled: whether several of them match one row of the table.
    """

    statement: MergeStatement
    local: LocalMerge
    source: pa.Table
    partitioned: Sequence[str]
    unwritten: list[pa.Table] = field(default_factory=list)
    doubled: bool = False

    @cached_property
    def matched(self) -> npt.NDArray[np.bool_]:
        return np.zeros(self.source.num_rows, bool)

    @cached_property
    def _sought(self) -> Any:
        return self.local.sought(self.source)

    def candidates(self, rows: pa.Table) -> pa.Table:
        """The rows that may match."""
        places = self.local.may_match(rows, self._sought)
        return rows if len(places) == rows.num_rows else rows.take(pa.array(places))

    def pairs(self, rows: pa.Table) -> RowPairs:
        """The pairs of rows that match, each row of the table once. Raises: NeedsSpark if it has
        several, and it matters which."""
        places = self.local.may_match(rows, self._sought)
        pairs = self.local.match(rows.take(pa.array(places)), self.source)
        self.matched[pairs.source] = True
        again = pairs.target[1:] == pairs.target[:-1]
        if again.any():
            if self.statement.one_match_only:
                raise NeedsSpark("several rows of the source match one row of the table")
            self.doubled = True
            pairs = pairs.take(np.flatnonzero(np.concatenate(([True], ~again))))
        return RowPairs(places[pairs.target], pairs.source)

    def updated(self, rows: pa.Table, pairs: RowPairs) -> Iterator[pa.Table]:
        """The new contents of rows that an update changes, with `HIDDEN` and `SOURCE_ROW`; the
        others that matched or change are added to `unwritten`. All of those without a pair are
        unmatched, if there are clauses for them."""
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
        written = []
        for clause in self.local.clauses:
            places = np.flatnonzero(clauses == clause.number)
            if len(places) and clause.action == "Update":
                new = self._written(clause, rows, places, sources)
                written.append(new.append_column(SOURCE_ROW, pa.array(sources[places])))
            elif len(places):
                self._leave(rows, places, sources, None)
        stays = np.flatnonzero((sources >= 0) & (clauses == NO_CLAUSE))
        if len(stays):
            self._leave(rows, stays, sources, KEPT)
        if written:
            together = pa.concat_tables(written)
            # In the order of the table, of which its files may make use.
            order = [(name, "ascending") for name in HIDDEN]
            yield together if len(written) == 1 else together.sort_by(order)

    def _leave(self, rows: pa.Table, places: Any, sources: Any, output: int | None) -> None:
        """Note that rows are deleted, or stay."""
        left = rows.select(HIDDEN).take(pa.array(places))
        left = left.append_column(SOURCE_ROW, pa.array(sources[places]))
        self.unwritten.append(unwritten(left, output, [SOURCE_ROW]))

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
        require_new_texts(written, clause, self.partitioned)
        return written


@dataclass(frozen=True)
class _Search:
    """Finds the rows of files that match, or that a clause changes because they do not."""

    store: Store
    table: TableFormat
    merge: ArrowMerge

    @property
    def statement(self) -> MergeStatement:
        return self.merge.statement

    @cached_property
    def updates(self) -> bool:
        return any(clause.action == "Update" for clause in self.statement.clauses)

    def changed(self, input_: InputFile, split: InputSplit) -> Iterator[pa.Table]:
        """As `ArrowMerge.updated`."""
        merge, number = self.merge, split.input
        of_source = not merge.local.when("NotMatchedBySource")
        first = self._searched if of_source else self._columns(*self._searched, *self._decided)
        with open_input(self.store, self.table, input_, first) as reader:
            if not of_source:
                for rows in live_rows(reader, input_, number, split.of(len(reader.row_groups))):
                    yield from merge.updated(rows, merge.pairs(rows))
                return
            groups = self._groups(reader, split)
            parts = [
                among
                for together in groups
                for rows in live_rows(reader, input_, number, together)
                if (among := merge.candidates(rows)).num_rows
            ]
            starts = np.cumsum((0, *reader.row_groups))
        if not parts:
            return
        rows = pa.concat_tables(parts)
        pairs = merge.pairs(rows)
        if not len(pairs):
            return
        if set(self._decided) <= set(self._searched):
            yield from merge.updated(rows, pairs)
            return
        positions = rows[POSITION].to_numpy()[pairs.target]
        needed = np.unique(np.searchsorted(starts, positions, side="right") - 1)
        with open_input(self.store, self.table, input_, self._decided) as reader:
            for together in runs(needed):
                for batch in live_rows(reader, input_, number, together):
                    places = batch[POSITION].to_numpy()
                    begin, end = np.searchsorted(positions, (places[0], places[-1] + 1))
                    if end > begin:
                        chosen = np.searchsorted(places, positions[begin:end])
                        here = RowPairs(chosen, pairs.source[begin:end])
                        yield from merge.updated(batch, here)

    @cached_property
    def _searched(self) -> list[str]:
        return self._columns(*self.statement.keys_of_table())

    @cached_property
    def _decided(self) -> list[str]:
        """The columns by which the fate of a row is decided: those of conditions, and all if rows
        are written."""
        if self.updates:
            return list(self.table.names_of_updated)
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
            column.parts[1]: pc.unique(self.merge.source[of_source.parts[1]]).drop_null()
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


# A round of a merge over Arrow: all tasks, the rows that are inserted, and the round's answer.
#
# It does not read the source, nor publish.


_RECORD = ("source_1", "source_2")
_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class MergeAnswer:
    """What a round did; `matches` and `identity` as in `JobResult`."""

    outputs: tuple[OutputFile, ...]
    matches: SideFileRef
    updated: int
    deleted: int
    inserted: int
    identity: Mapping[str, int] = field(default_factory=dict)


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
    store, spec, counters = control.store, control.spec, control.counters(round_)
    with _sent(context, source) as given:

        def task(number: int, splits: Sequence[InputSplit]) -> MergedRows:
            return find_matches(store, spec, given(), inputs, number, splits, counters)

        found = in_tasks(control, context, inputs, round_, "Merging", task) if inputs else []
    outputs, rows = joined([each.rows for each in found], round_, [SOURCE_ROW])
    fresh, identity = tuple[WrittenFile, ...](), dict[str, int]()
    if inserts and source.statement.when("NotMatched"):
        matched = np.zeros(source.rows.num_rows, bool)
        for each in found:
            bits = np.unpackbits(np.frombuffer(each.sources, np.uint8), count=len(matched))
            matched |= bits.astype(bool)
        fresh, identity = _inserted(control, source, np.flatnonzero(~matched), len(found))
    if source.statement.records_matches and source.identified:
        rows = identified(rows, source.rows)
    answer = answered(control, round_, found, (outputs, rows), fresh, most_recorded)
    return replace(answer, identity=identity)


def answered(
    control: Control,
    round_: int,
    found: Sequence[MergedRows],
    of_all: tuple[tuple[OutputFile, ...], pa.Table],
    inserted: Sequence[WrittenFile],
    most_recorded: int,
) -> MergeAnswer:
    """The answer of a round, whatever has evaluated it.

    Args:
        found: the answers of its tasks, and `of_all` what they have `joined`. If the matches have
            the columns `SOURCE_IDS`, they are recorded unless they are too many.
        inserted: files of rows that were inserted without a task.
    """
    outputs, rows = of_all
    fresh = [*(file for each in found for file in each.fresh), *inserted]
    written = (*(file for each in found for file in each.rows.files), *fresh)
    store_facts(control.store, control.spec.table.table_id, written)
    again = repeats(rows)
    is_recorded = (
        SOURCE_IDS[0] in rows.column_names
        and len(rows) <= most_recorded
        and all(each.complete for each in found)
        and not again.any()
    )
    changes = changed(rows)
    # A row that is deleted is so whichever row it matched.
    changes = changes.filter(pa.array(~repeats(changes)))
    updated = len(changes) - changes["output"].null_count
    matches = recorded(rows) if is_recorded else changes.select(MATCHES.names)
    new = (output_file(file, round_=round_) for file in fresh)
    return MergeAnswer(
        (*outputs, *(each.model_copy(update={"fresh": True}) for each in new)),
        control.side_file(round_, "matches.arrow", to_file(matches)),
        updated,
        len(changes) - updated,
        sum(file.rows for file in fresh),
    )


def recorded(rows: pa.Table) -> pa.Table:
    """Matches with `SOURCE_IDS` as results have them."""
    return rows.rename_columns([*MATCHES.names, *_RECORD])


def changed(rows: pa.Table) -> pa.Table:
    """Matches without those of rows that stay."""
    stays = pc.fill_null(pc.equal(rows["output"], pa.scalar(KEPT, pa.int32())), False)
    return rows.filter(pc.invert(stays))


def repeats(rows: pa.Table) -> npt.NDArray[np.bool_]:
    """Which of some matches, in order, are of the same row as the one before."""
    found = np.zeros(len(rows), dtype=bool)
    inputs, positions = (rows[name].to_numpy() for name in ("input", "position"))
    found[1:] = (inputs[1:] == inputs[:-1]) & (positions[1:] == positions[:-1])
    return found


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
    finally:  # else its file stays as long as Spark, which other jobs share
        sent.destroy()


def identified(rows: pa.Table, source: pa.Table) -> pa.Table:
    """Matches with the identity of the source row of each, null for none."""
    which = rows[SOURCE_ROW].to_numpy()
    none = which < 0
    answer = rows.select(MATCHES.names)
    for name in SOURCE_IDS:
        hashes = source[name].to_numpy()
        values = hashes[np.maximum(which, 0)] if len(hashes) else np.zeros(len(which), np.int64)
        answer = answer.append_column(name, pa.array(values, pa.int64(), mask=none))
    return answer


def _inserted(
    control: Control, source: ArrowSource, missing: Any, task: int
) -> tuple[tuple[WrittenFile, ...], dict[str, int]]:
    """Write the rows that are inserted for source rows without a match; the files, and the last
    value of each identity column.

    Raises: NeedsSpark, StatementFailed, StorageError.
    """
    spec, local = control.spec, source.local
    job = spec.job
    assert isinstance(job, MergeJob)
    table = job_table_format(spec.table).without_row_ids
    empty = arrow_schema(replace(table, schema=all_nullable(table.schema))).empty_table()
    given = local.unmatched_rows(source.rows, missing, "NotMatched")
    clauses = local.clause_numbers("NotMatched", given)
    batches: list[pa.RecordBatch] = []
    numbered = dict.fromkeys(spec.table.identity, 0)
    for clause in local.when("NotMatched"):
        chosen = missing[clauses == clause.number]
        if len(chosen):
            rows = local.unmatched_rows(source.rows, chosen, "NotMatched")
            written = clause.written(rows, empty, None)
            for name in spec.table.identity.keys() - clause.assignments.keys():
                written = numbered_rows(written, spec.table, [name], numbered[name])
                numbered[name] += written.num_rows
            require_new_texts(written, clause, table.partition_columns)
            batches += written.combine_chunks().to_batches(_BATCH_ROWS)
    if not batches:
        return (), {}
    work = RowsWork(
        table=spec.table, data_prefix=spec.data_prefix, target_file_size=job.target_file_size
    )
    try:
        files = RowFiles(control.store, work, tuple(table.schema.names), task).write_all(batches)
    except pa.ArrowException as error:  # such as texts of more than 2 GiB in one array
        raise NeedsSpark(str(error)) from error
    return files.files, last_values(spec.table, numbered)
