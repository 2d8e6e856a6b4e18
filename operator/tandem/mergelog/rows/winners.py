"""The winners of a log's blocks, and what they do to the rows of a file of the base table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap64

from tandem.delta.char_types import comparable
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.distinct import BoolArray, IntArray
from tandem.mergelog.rows.blocks import read_block, records_of
from tandem.mergelog.rows.parts import MOST_PARTS, parts_of_keys
from tandem.mergelog.rows.records import (
    Overlay,
    Records,
    concatenate,
    in_force,
    winners,
)
from tandem.mergelog.state.log_table import DELETED, INSTANT, LogSettings
from tandem.mergelog.state.model import Block
from tandem.storage.store import Store

_POSITION = "__tandem_position"
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
    """

    positions: IntArray
    winners: IntArray
    hidden: BoolArray
    greater: BoolArray


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
    reader: DataFileReader, overlay: Overlay, dead: BitMap64, row_groups: range | None = None
) -> MatchedRows:
    """The rows of an open base file, or of some row groups of it, whose key has a winner. Deleted
    rows are not rows."""
    parts: list[MatchedRows] = []
    for batch in reader.batches(dead=dead, positions=_POSITION, row_groups=row_groups):
        columns = [comparable(batch.column(at), field) for at, field in enumerate(reader.fields)]
        keys = columns[: len(overlay.records.keys)]
        order = columns[len(keys)] if len(columns) > len(keys) else None
        compared = overlay.compare(keys, order)
        positions = batch.column(batch.num_columns - 1).to_numpy()[compared.rows]
        parts.append(MatchedRows(positions, compared.winners, compared.hidden, compared.greater))
    if not parts:
        none = np.empty(0, np.int64)
        return MatchedRows(none, none, none.astype(bool), none.astype(bool))
    return MatchedRows(
        np.concatenate([each.positions for each in parts]),
        np.concatenate([each.winners for each in parts]),
        np.concatenate([each.hidden for each in parts]),
        np.concatenate([each.greater for each in parts]),
    )


def no_records(table: TableFormat, settings: LogSettings) -> Records:
    """No records, of the types of the log."""
    wanted = (*settings.columns, DELETED, INSTANT)
    return records_of(arrow_schema(table, wanted).empty_table(), table, settings)
