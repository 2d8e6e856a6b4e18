"""A Spark data source that writes a merge's decisions on rows (see `merge.py`).

In addition to the table's columns each row has its position, if it was in the table, and its fate:
updated rows are written, with a match at their old position; deleted ones are only matched,
inserted ones only written, to files of their own. Rows that matched without any effect are counted,
so that a row that matched twice is detected whatever the clauses are. A merge that inserts records
which source row each row matched, unless there are too many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from tandem.errors import CountMismatch
from tandem.jobs.formats import SOURCE_IDS, Format
from tandem.jobs.results import OutputFile
from tandem.reconcile.matches import KEPT
from tandem.spark.runtime.control import output_file, to_file, to_stream
from tandem.spark.runtime.datasource import RowsWriter, TaskOutput, as_message, get_work
from tandem.spark.runtime.row_files import (
    INPUT,
    MATCHES,
    POSITION,
    Partitions,
    RowsWork,
    discard,
    require_texts,
)
from tandem.spark.runtime.written_facts import store_facts
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tandem-merge"
FATE = "__tandem_fate"
CLAUSE = "__tandem_clause"
"""The number of the clause that applies to a row."""
SHOWN = 3
"""How many rows that matched more than once are reported."""

PLACES = pa.schema([("input", pa.int32()), ("position", pa.int64())])
IDS = (pa.field("source_1", pa.int64()), pa.field("source_2", pa.int64()))
RECORD = pa.schema([*PLACES, pa.field("stays", pa.bool_()), *IDS])


class RowFate(IntEnum):
    """What happens to a row; values of the column `FATE`."""

    UPDATED = 0
    DELETED = 1
    INSERTED = 2
    KEPT = 3


class MergeWork(RowsWork):
    """`one_match_only`: rows of the table that occur twice are reported, and nothing is written;
    otherwise they count once. `record`: record which source row each row matched, in the columns of
    `SOURCE_IDS`, if at most this many rows matched, and in each task at most `record_of_task`.
    `set_by_clause`: the columns whose texts are new in rows of each clause."""

    one_match_only: bool = True
    record: int = 0
    record_of_task: int = 0
    set_by_clause: tuple[tuple[str, ...], ...] = ()


class MergeWriteResult(Format):
    """The result of a committed write. `doubled` has (input, position) of rows that occurred more
    than once; then the other fields are not valid. Fresh outputs come last."""

    outputs: tuple[OutputFile, ...] = ()
    matches: str = ""
    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    doubled: tuple[tuple[int, int], ...] = ()


_HIDDEN = (INPUT, POSITION, CLAUSE, FATE, *SOURCE_IDS)


class MergeSink(DataSource):
    """`df.write.format("tandem-merge")`; options: see `put_work`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        store, data = get_work(self.options)
        names = tuple(name for name in schema.names if name not in _HIDDEN)
        return MergeWriter(store, MergeWork.model_validate_json(data), names)


@dataclass
class MergeTaskOutput(WriterCommitMessage):
    """The output of one task; `deleted` and `kept` are Arrow IPC streams of `PLACES`, `record` one
    of `RECORD`, None if there is none, or if it has too many rows."""

    updated: TaskOutput
    fresh: TaskOutput
    deleted: bytes
    kept: bytes
    record: bytes | None


class MergeWriter(DataSourceArrowWriter):
    def __init__(self, control: Store, work: MergeWork, columns: tuple[str, ...]) -> None:
        super().__init__()
        self._control = control
        self._work = work
        self._updates = RowsWriter(control, work, (*columns, INPUT, POSITION))
        self._inserts = RowsWriter(control, work, columns)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        updated: Partitions = {}
        inserted: Partitions = {}
        places: dict[RowFate, list[pa.RecordBatch]] = {RowFate.DELETED: [], RowFate.KEPT: []}
        record = _Record(self._work.record_of_task) if self._work.record else None
        try:
            for batch in iterator:
                self._require_texts(batch)
                for fate in RowFate:
                    rows = batch.filter(pc.equal(batch.column(FATE), pa.scalar(int(fate))))
                    if not rows.num_rows:
                        continue
                    if fate is RowFate.UPDATED:
                        self._updates.take(updated, rows)
                    elif fate is RowFate.INSERTED:
                        self._inserts.take(inserted, rows)
                    elif fate is RowFate.DELETED or self._work.one_match_only:
                        places[fate].append(rows.select([INPUT, POSITION]))
                    if record is not None and fate is not RowFate.INSERTED:
                        record.add(rows, stays=fate is RowFate.KEPT)
            return MergeTaskOutput(
                as_message(self._updates.written(updated), hidden=True),
                as_message(self._inserts.written(inserted), hidden=False),
                _places(places[RowFate.DELETED]),
                _places(places[RowFate.KEPT]),
                None if record is None else record.serialized(),
            )
        except BaseException:
            discard(updated)
            discard(inserted)
            raise

    def _require_texts(self, batch: pa.RecordBatch) -> None:
        """Raises: StatementFailed. A column is new in rows of a clause that sets it alone."""
        for number, names in enumerate(self._work.set_by_clause):
            if not names:
                continue
            rows = batch.select([*names, CLAUSE])
            rows = rows.filter(pc.equal(rows.column(CLAUSE), pa.scalar(number)))
            for name in names:
                require_texts(rows.column(name), name)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """`messages` has, of all attempts at each task, only the one that Spark accepted."""
        merged = [message for message in messages if isinstance(message, MergeTaskOutput)]
        outputs: list[OutputFile] = []
        tables = [MATCHES.empty_table()]
        for message in merged:
            table = _stream(message.updated.matches)
            shifted = pc.add(table["output"], pa.scalar(len(outputs), pa.int32()))
            tables.append(table.set_column(2, MATCHES.field(2), shifted))
            outputs += [output_file(f, round_=self._work.round) for f in message.updated.files]
        updated = sum(len(table) for table in tables)
        fresh = [
            output_file(file, round_=self._work.round).model_copy(update={"fresh": True})
            for message in merged
            for file in message.fresh.files
        ]
        files = (f for m in merged for f in (*m.updated.files, *m.fresh.files))
        store_facts(self._control, self._work.table.table_id, files)
        gone = pa.concat_tables([PLACES.empty_table(), *(_stream(m.deleted) for m in merged)])
        none = (pa.nulls(len(gone), pa.int32()), pa.nulls(len(gone), pa.int64()))
        deleted = pa.table([gone["input"], gone["position"], *none], schema=MATCHES)
        touched = _sorted(pa.concat_tables([*tables, deleted]))
        if self._work.one_match_only:
            kept = [_stream(m.kept) for m in merged]
            doubled = _doubled(_sorted(pa.concat_tables([touched.select([0, 1]), *kept])))
        else:
            # Each of them is deleted, whichever row it matched.
            touched, doubled = touched.filter(pa.array(~_repeats(touched))), ()
        path = f"{self._work.answer_path}.matches.arrow"
        recorded = _recorded(merged, self._work.record) if not doubled else None
        self._control.put(path, to_file(touched if recorded is None else _with(touched, recorded)))
        answer = MergeWriteResult(
            outputs=(*outputs, *fresh),
            matches=path,
            updated=updated,
            deleted=len(touched) - updated,
            inserted=sum(message.fresh.rows for message in merged),
            doubled=doubled,
        )
        self._control.put(self._work.answer_path, answer.model_dump_json(by_alias=True).encode())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing refers to the files written; the engine cleans the attempt's folder."""


class _Record:
    """A task's record of matches, up to a limit: so that many tasks do not send a driver what it
    would discard."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[pa.Table] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch, *, stays: bool) -> None:
        self._rows += rows.num_rows
        if self._rows > self._limit:
            self._parts.clear()
            return
        columns = [rows.column(name) for name in (INPUT, POSITION, *SOURCE_IDS)]
        columns.insert(2, pa.repeat(pa.scalar(stays), rows.num_rows))
        self._parts.append(pa.table(columns, schema=RECORD))

    def serialized(self) -> bytes | None:
        if self._rows > self._limit:
            return None
        return to_stream(pa.concat_tables([RECORD.empty_table(), *self._parts]))


def _recorded(merged: Sequence[MergeTaskOutput], limit: int) -> pa.Table | None:
    """The records of all tasks, if complete and with one source row for each match."""
    if not limit:
        return None
    parts = [_stream(message.record) for message in merged if message.record is not None]
    if len(parts) < len(merged) or sum(len(part) for part in parts) > limit:
        return None
    record = _sorted(pa.concat_tables([RECORD.empty_table(), *parts]))
    return None if _repeats(record).any() else record


def _with(touched: pa.Table, record: pa.Table) -> pa.Table:
    """Matches with their records, and with the rows that stay. Raises: CountMismatch."""
    stay = record.filter(record["stays"])
    output = pa.repeat(pa.scalar(KEPT, pa.int32()), len(stay))
    nowhere = pa.nulls(len(stay), pa.int64())
    kept = pa.table([stay["input"], stay["position"], output, nowhere], schema=MATCHES)
    found = _sorted(pa.concat_tables([touched, kept]))
    if not found.select([0, 1]).equals(record.select([0, 1])):
        raise CountMismatch(
            "a merge recorded different rows from those it matched",
            found=len(record),
            expected=f"{len(found)}",
        )
    for field in IDS:
        found = found.append_column(field, record[field.name])
    return found


def _places(batches: Sequence[pa.RecordBatch]) -> bytes:
    inputs = pa.chunked_array([batch.column(INPUT) for batch in batches], pa.int32())
    positions = pa.chunked_array([batch.column(POSITION) for batch in batches], pa.int64())
    return to_stream(pa.table([inputs, positions], schema=PLACES))


def _stream(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([("input", "ascending"), ("position", "ascending")])


def _repeats(table: pa.Table) -> Any:
    """Which rows of a sorted table have the same position as the previous row."""
    found = np.zeros(len(table), dtype=bool)
    inputs, positions = (table[name].to_numpy() for name in ("input", "position"))
    found[1:] = (inputs[1:] == inputs[:-1]) & (positions[1:] == positions[:-1])
    return found


def _doubled(table: pa.Table) -> tuple[tuple[int, int], ...]:
    repeated = table.filter(pa.array(_repeats(table)))
    places = zip(repeated["input"].to_pylist(), repeated["position"].to_pylist(), strict=True)
    return tuple(dict.fromkeys(places))[:SHOWN]
