"""The winners of a log's blocks, and what they do to the rows of a file of the base table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.delta.char_types import comparable
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.log.snapshot import Snapshot
from tandem.distinct import BoolArray, IntArray
from tandem.mergelog.blocks import read_block, records_of
from tandem.mergelog.by_key import (
    MOST_PARTS,
    Overlay,
    Records,
    concatenate,
    in_force,
    parts_of_keys,
    winners,
)
from tandem.mergelog.log_table import DELETED, INSTANT, LogSettings
from tandem.mergelog.versions import Block
from tandem.pruning.predicate import bounds_of
from tandem.pruning.selection import keys_of
from tandem.statements.types import Schema
from tandem.storage.store import Store

# Which files of the base table can have rows of the keys of a log, by their statistics. Pure.


MOST_KEYS: Final = 100_000
"""Of more keys only the least and the greatest are compared with statistics."""


def may_hold(
    base: Snapshot, settings: LogSettings, records: Records, files: pa.Table | None = None
) -> BoolArray:
    """For each of some files, by default all of `base`, whether it can have rows of the keys of
    some records."""
    types = {c.name: c.type for c in Schema.from_json(base.metadata.schema_string).columns}
    keys = []
    for name, values in zip(settings.keys, records.keys, strict=True):
        complete = len(values) <= MOST_KEYS
        if not complete:
            ascending = pc.array_sort_indices(values)
            values = values.take(ascending.take(pa.array([0, len(values) - 1])))
        found = keys_of(name, types[name], values, complete=complete)
        if found is not None:
            keys.append(found)
    wanted = {key.column: key.type for key in keys}
    known = bounds_of(
        base.files if files is None else files, base.schema, base.partition_columns, wanted
    )
    mask: BoolArray = ~known.empty
    for key in keys:
        mask &= key.may_occur(known)
    return mask


_POSITION = "__tandem_position"
NO_ID: Final = -1
"""In place of the id of a row that has none yet."""
RECORD_BYTES = 64
"""Estimated bytes of a record in the index, besides its key."""


@dataclass(frozen=True, slots=True)
class LogWinners:
    """The winners among one part of the keys.

    Attributes:
        overlay: the winners, and how they compare with rows.
        blocks: for each winner its block, as an index.
        rows: for each winner its row in that block.
    """

    overlay: Overlay
    blocks: IntArray
    rows: IntArray


@dataclass(frozen=True, slots=True)
class MatchedRows:
    """Rows of a file whose key has a winner; entries of `positions` and `winners` correspond.

    Attributes:
        positions: in the file, ascending.
        winners: indexes of the winners.
        hidden: whether the winner hides the row; if not, the row may be greater than the winner.
        greater: whether the row is greater, so that the winner is not shown.
        row_ids: the ids of the rows, if they keep them.
    """

    positions: IntArray
    winners: IntArray
    hidden: BoolArray
    greater: BoolArray
    row_ids: IntArray | None = None


def winners_of(
    store: Store,
    blocks: Sequence[Block],
    table: TableFormat,
    settings: LogSettings,
    mark: int,
    *,
    part: int = 0,
    parts: int = 1,
    memory: int | None = None,
) -> LogWinners | None:
    """The winners among part `part` of `parts` of the keys.

    Args:
        store: that of the log.
        table: how blocks are read.
        memory: bytes that the index may take.
    Returns: None if the first part exceeds the memory; the others are about as large.
    Raises: DataFileMissing, StorageError.
    """
    found, numbers, rows = [no_records(table, settings)], [], []
    size = 0
    for number, block in enumerate(blocks):
        read = read_block(store, block, table, settings.columns)
        records = records_of(read, table, settings, block.path)
        used = in_force(records, mark)
        if parts > 1:
            used = used[parts_of_keys(records.take(used).keys, parts) == part]
        found.append(records.take(used))
        numbers.append(np.full(len(used), number, np.int64))
        rows.append(used)
        size += found[-1].nbytes + RECORD_BYTES * len(used)
        if memory is not None and size > memory and part == 0 and parts < MOST_PARTS:
            return None
    records = concatenate(found)
    won = winners(records)
    empty = np.empty(0, np.int64)
    return LogWinners(
        Overlay.of(records.take(won), mark),
        np.concatenate([empty, *numbers])[won],
        np.concatenate([empty, *rows])[won],
    )


class WinnerPasses:
    """The winners of blocks, in as many passes over the keys as the memory requires. The winners of
    one pass are kept: what reads several files one after the other finds them once.

    Args: as in `winners_of`.
    """

    def __init__(
        self,
        store: Store,
        blocks: Sequence[Block],
        table: TableFormat,
        settings: LogSettings,
        mark: int,
        memory: int,
    ) -> None:
        self.blocks = blocks
        self._store, self._table, self._settings = store, table, settings
        self._mark, self._memory = mark, memory
        self._only: LogWinners | None = None

    def __iter__(self) -> Iterator[LogWinners]:
        """Winners that no row of the base table was compared with yet."""
        if self._only is not None:
            yield self._unmatched(self._only)
            return
        part, parts = 0, 1
        while part < parts and self.blocks:
            found = winners_of(
                self._store,
                self.blocks,
                self._table,
                self._settings,
                self._mark,
                part=part,
                parts=parts,
                memory=self._memory,
            )
            if found is None:
                parts *= 2
                continue
            if parts == 1:
                self._only = found
            yield self._unmatched(found)
            part += 1

    def _unmatched(self, found: LogWinners) -> LogWinners:
        none = np.zeros(len(found.rows), bool)
        return replace(found, overlay=replace(found.overlay, beaten=none))


def match(
    reader: DataFileReader,
    overlay: Overlay,
    dead: BitMap64,
    row_groups: range | None = None,
    *,
    with_ids: bool = False,
) -> MatchedRows:
    """The rows of an open base file, or of some row groups of it, whose key has a winner. Deleted
    rows are not rows. The reader has the columns of the settings, and `with_ids` that of row ids
    after them."""
    parts: list[MatchedRows] = []
    for batch in reader.batches(dead=dead, positions=_POSITION, row_groups=row_groups):
        columns = [comparable(batch.column(at), field) for at, field in enumerate(reader.fields)]
        ids = columns.pop() if with_ids else None
        keys = columns[: len(overlay.records.keys)]
        order = columns[len(keys)] if len(columns) > len(keys) else None
        compared = overlay.compare(keys, order)
        positions = batch.column(batch.num_columns - 1).to_numpy()[compared.rows]
        of_rows = None if ids is None else ids.to_numpy()[compared.rows]
        found = compared.winners, compared.hidden, compared.greater
        parts.append(MatchedRows(positions, *found, of_rows))
    if not parts:
        none = np.empty(0, np.int64)
        false = none.astype(bool)
        return MatchedRows(none, none, false, false, none if with_ids else None)
    return MatchedRows(
        np.concatenate([each.positions for each in parts]),
        np.concatenate([each.winners for each in parts]),
        np.concatenate([each.hidden for each in parts]),
        np.concatenate([each.greater for each in parts]),
        np.concatenate([e.row_ids for e in parts if e.row_ids is not None]) if with_ids else None,
    )


def no_records(table: TableFormat, settings: LogSettings) -> Records:
    """No records, of the types of the log."""
    wanted = (*settings.columns, DELETED, INSTANT)
    return records_of(arrow_schema(table, wanted).empty_table(), table, settings)


# What a log merge records of rows and winners: one Arrow table, and its reading. Pure.
#
# A row of the table says that a row of the base table has a winner (`input`, `position`, `winner`,
# `hidden`, `greater`), or where a winner was written (`winner`, `output`, `output_position`). Where
# rows keep their ids, `row_id` is that of the row, or the one that the winner was written with.


MATCHES = pa.schema(
    [
        ("input", pa.int32()),
        ("position", pa.int64()),
        ("winner", pa.int64()),
        ("hidden", pa.bool_()),
        ("greater", pa.bool_()),
        ("output", pa.int32()),
        ("output_position", pa.int64()),
    ]
)
MATCHES_WITH_IDS = MATCHES.append(pa.field("row_id", pa.int64()))


def of_matches(input_: int, rows: MatchedRows) -> pa.Table:
    """Rows of input `input_` that have a winner."""
    count = len(rows.positions)
    columns = [
        pa.array(np.full(count, input_, np.int32)),
        pa.array(rows.positions),
        pa.array(rows.winners),
        pa.array(rows.hidden),
        pa.array(rows.greater),
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.int64()),
    ]
    return _matches(columns, rows.row_ids)


def of_places(output: int, winners: IntArray, row_ids: IntArray | None = None) -> pa.Table:
    """The winners whose rows are those of output `output`, in order."""
    count = len(winners)
    columns = [
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.int64()),
        pa.array(winners),
        pa.nulls(count, pa.bool_()),
        pa.nulls(count, pa.bool_()),
        pa.array(np.full(count, output, np.int32)),
        pa.array(np.arange(count)),
    ]
    return _matches(columns, row_ids)


def _matches(columns: list[pa.Array], row_ids: IntArray | None) -> pa.Table:
    if row_ids is None:
        return pa.table(columns, schema=MATCHES)
    return pa.table([*columns, pa.array(row_ids)], schema=MATCHES_WITH_IDS)


@dataclass(frozen=True, slots=True)
class MergeMatches:
    """What a job found: for each input its rows with a winner, and for each output the winners of
    its rows, in order; `row_ids` are those that the rows of an output have, -1 for none."""

    inputs: Mapping[int, MatchedRows]
    outputs: Mapping[int, IntArray]
    row_ids: Mapping[int, IntArray] = field(default_factory=dict)


def read(table: pa.Table) -> MergeMatches:
    """Raises: ValueError if it is not a table of `MATCHES`, with ids or without."""
    with_ids = table.schema.equals(MATCHES_WITH_IDS)
    if not with_ids and not table.schema.equals(MATCHES):
        raise ValueError(f"columns {table.schema.names}")
    of_rows = table.filter(pc.is_valid(table["input"]))
    of_outputs = table.filter(pc.is_valid(table["output"]))
    inputs = {}
    for number, part in _parts(of_rows, "input"):
        inputs[number] = MatchedRows(
            part["position"].to_numpy(),
            part["winner"].to_numpy(),
            part["hidden"].to_numpy().astype(bool),
            part["greater"].to_numpy().astype(bool),
            part["row_id"].to_numpy() if with_ids else None,
        )
    outputs, row_ids = {}, {}
    for number, part in _parts(of_outputs, "output"):
        in_order = part.sort_by("output_position")
        outputs[number] = in_order["winner"].to_numpy()
        if with_ids:
            row_ids[number] = in_order["row_id"].to_numpy()
    return MergeMatches(inputs, outputs, row_ids)


def _parts(table: pa.Table, column: str) -> Sequence[tuple[int, pa.Table]]:
    numbers = table[column].unique().to_pylist()
    return [(number, table.filter(pc.equal(table[column], number))) for number in numbers]


def _no_numbers() -> IntArray:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge changes at a version of the base table.

    Attributes:
        hidden: positions by logged path, of rows that are not deleted yet.
        beaten: winners that are not shown.
        replacing, row_ids: winners that hide rows, ascending, and for each the id of the row that
            it hides, where rows keep theirs: the least one if it hides several.
    """

    hidden: Mapping[str, BitMap64]
    beaten: frozenset[int]
    replacing: IntArray = field(default_factory=_no_numbers, compare=False)
    row_ids: IntArray = field(default_factory=_no_numbers, compare=False)

    def ids_of(self, winners: IntArray) -> IntArray:
        """The ids that the rows of these winners get, `NO_ID` for a row that is new."""
        if not len(self.replacing):
            return np.full(len(winners), NO_ID)
        at = np.minimum(np.searchsorted(self.replacing, winners), len(self.replacing) - 1)
        return np.where(self.replacing[at] == winners, self.row_ids[at], NO_ID)


def at_version(matches: Mapping[str, MatchedRows], dead: Mapping[str, BitMap64]) -> MergeResult:
    """What a merge changes where these rows are deleted: both by logged path of the live files."""
    hidden: dict[str, BitMap64] = {}
    beaten: set[int] = set()
    none = np.empty(0, np.int64)
    winners, row_ids = [none], [none]
    for path, rows in matches.items():
        gone = dead.get(path, BitMap64())
        positions = BitMap64(rows.positions[rows.hidden].astype(np.uint64)) - gone
        if positions:
            hidden[path] = positions
        if rows.row_ids is not None:
            deleted = np.asarray(gone.to_array()).astype(np.int64)
            replaced = rows.hidden & ~np.isin(rows.positions, deleted)
            winners.append(rows.winners[replaced])
            row_ids.append(rows.row_ids[replaced])
        for position, winner in zip(
            rows.positions[rows.greater].tolist(), rows.winners[rows.greater].tolist(), strict=True
        ):
            if position not in gone:
                beaten.add(winner)
    of_rows, ids = np.concatenate(winners), np.concatenate(row_ids)
    order = np.lexsort((ids, of_rows))
    replacing, first = np.unique(of_rows[order], return_index=True)
    return MergeResult(hidden, frozenset(beaten), replacing, ids[order][first])
