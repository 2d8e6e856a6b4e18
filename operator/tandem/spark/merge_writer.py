"""A Spark data source that takes in what a merge decided about rows (see `merge.py`).

Beside the table's columns each row says where it was, if it was in the table, and what becomes
of it: updated rows are written and matched to where they were, deleted ones only matched,
inserted ones only written, to files of their own. Rows that matched without anything to be done
are counted, so that a row which matched twice is noticed whatever the clauses say.
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

from tandem.spark.control import output_file
from tandem.spark.datasource import (
    INPUT,
    MATCHES,
    POSITION,
    Partitions,
    RowsWriter,
    Work,
    Written,
    discard,
    get_work,
)
from tandem.spark.ipc import to_file, to_stream
from tandem.spark.job import Format, OutputFile
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tandem-merge"
FATE = "__tandem_fate"
SHOWN = 3
"""So many rows that matched more than once are told."""

PLACES = pa.schema([("input", pa.int32()), ("position", pa.int64())])


class Fate(IntEnum):
    """What becomes of a row; values of the column `FATE`."""

    UPDATED = 0
    DELETED = 1
    INSERTED = 2
    KEPT = 3


class MergeWork(Work):
    """`one_match_only`: rows of the table that come twice are told, and nothing is agreed on;
    else they count once."""

    one_match_only: bool = True


class MergeAnswer(Format):
    """What a committed write answers. `doubled` has (input, position) of rows that came more
    than once; then the rest says nothing. Fresh outputs come last."""

    outputs: tuple[OutputFile, ...] = ()
    matches: str = ""
    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    doubled: tuple[tuple[int, int], ...] = ()


class MergeSink(DataSource):
    """`df.write.format("tandem-merge")`; options: see `put_work`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        store, data = get_work(self.options)
        names = tuple(name for name in schema.names if name not in (INPUT, POSITION, FATE))
        return MergeWriter(store, MergeWork.model_validate_json(data), names)


@dataclass
class Merged(WriterCommitMessage):
    """What one task wrote; `deleted` and `kept` are Arrow IPC streams of `PLACES`."""

    updated: Written
    fresh: Written
    deleted: bytes
    kept: bytes


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
        places: dict[Fate, list[pa.RecordBatch]] = {Fate.DELETED: [], Fate.KEPT: []}
        try:
            for batch in iterator:
                for fate in Fate:
                    rows = batch.filter(pc.equal(batch.column(FATE), pa.scalar(int(fate))))
                    if not rows.num_rows:
                        continue
                    if fate is Fate.UPDATED:
                        self._updates.take(updated, rows)
                    elif fate is Fate.INSERTED:
                        self._inserts.take(inserted, rows)
                    else:
                        places[fate].append(rows.select([INPUT, POSITION]))
            return Merged(
                self._updates.written(updated),
                self._inserts.written(inserted),
                _places(places[Fate.DELETED]),
                _places(places[Fate.KEPT]),
            )
        except BaseException as error:
            discard(updated, error)
            discard(inserted, error)
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Of all attempts at each task only the one that Spark accepted is in `messages`."""
        merged = [message for message in messages if isinstance(message, Merged)]
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
        gone = pa.concat_tables([PLACES.empty_table(), *(_stream(m.deleted) for m in merged)])
        none = (pa.nulls(len(gone), pa.int32()), pa.nulls(len(gone), pa.int64()))
        deleted = pa.table([gone["input"], gone["position"], *none], schema=MATCHES)
        touched = _sorted(pa.concat_tables([*tables, deleted]))
        if self._work.one_match_only:
            kept = [_stream(m.kept) for m in merged]
            doubled = _doubled(_sorted(pa.concat_tables([touched.select([0, 1]), *kept])))
        else:
            # Each of them is deleted, by whichever row it matched.
            touched, doubled = touched.filter(pa.array(~_repeats(touched))), ()
        path = f"{self._work.answer_path}.matches.arrow"
        self._control.put(path, to_file(touched))
        answer = MergeAnswer(
            outputs=(*outputs, *fresh),
            matches=path,
            updated=updated,
            deleted=len(touched) - updated,
            inserted=sum(message.fresh.rows for message in merged),
            doubled=doubled,
        )
        self._control.put(self._work.answer_path, answer.model_dump_json(by_alias=True).encode())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing refers to what was written; the engine cleans the attempt's folder."""


def _places(batches: Sequence[pa.RecordBatch]) -> bytes:
    inputs = pa.chunked_array([batch.column(INPUT) for batch in batches], pa.int32())
    positions = pa.chunked_array([batch.column(POSITION) for batch in batches], pa.int64())
    return to_stream(pa.table([inputs, positions], schema=PLACES))


def _stream(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _sorted(table: pa.Table) -> pa.Table:
    return table.sort_by([("input", "ascending"), ("position", "ascending")])


def _repeats(table: pa.Table) -> Any:
    """Which rows of a sorted table are at the place of the row before."""
    found = np.zeros(len(table), dtype=bool)
    inputs, positions = (table[name].to_numpy() for name in ("input", "position"))
    found[1:] = (inputs[1:] == inputs[:-1]) & (positions[1:] == positions[:-1])
    return found


def _doubled(table: pa.Table) -> tuple[tuple[int, int], ...]:
    repeated = table.filter(pa.array(_repeats(table)))
    places = zip(repeated["input"].to_pylist(), repeated["position"].to_pylist(), strict=True)
    return tuple(dict.fromkeys(places))[:SHOWN]
