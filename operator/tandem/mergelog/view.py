"""The merged view of a base table and its log: rows as of one version of each.

Reads the log before the base table. The base table is read as by a plain scan, with one more bitmap
for each file; then follow the winners of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import DataFileReader, arrow_schema
from tandem.delta.log.files import to_adds
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.scan import RowFilter, check_rows, named_columns, table_format
from tandem.distinct import IntArray
from tandem.mergelog.rows.blocks import read_block
from tandem.mergelog.rows.parts import MEMORY
from tandem.mergelog.rows.pruned import may_hold
from tandem.mergelog.rows.records import Overlay
from tandem.mergelog.rows.winners import match, winners_of
from tandem.mergelog.state.base_history import BaseHistory, require_same_table
from tandem.mergelog.state.log_table import (
    DELETED,
    INSTANT,
    LogSettings,
    MergeLog,
    block_format,
    check_settings,
    settings_of,
    state_of,
)
from tandem.mergelog.state.model import Block, LogState, in_order


@dataclass(frozen=True, slots=True)
class MergedView:
    """One version of a merge-on-read table.

    Attributes:
        base: the version of the base table.
        instant: the version of the log, -1 before its first one.
        state: the log as of that version of the base table.
    """

    log: MergeLog
    base: Snapshot
    instant: int
    state: LogState
    settings: LogSettings

    @classmethod
    def open(
        cls, log: MergeLog, version: int | None = None, *, timestamp_ms: int | None = None
    ) -> MergedView:
        """The newest version, or that of a version or time of the base table.

        Raises: NotMergeOnRead, VersionNotFound, BaseReplaced, BaseHistoryGap.
        """
        # In this order: instants that the base table holds must not be missing in the log.
        snapshot = log.snapshot()
        base = log.base.snapshot(version, timestamp_ms=timestamp_ms)
        history = BaseHistory(log, snapshot)
        newest = version is None and timestamp_ms is None
        if newest or base.version >= state_of(snapshot).base:
            instant, state = snapshot.version, history.at(base.version)
        else:
            instant, state = history.instant_before(base.version)
        require_same_table(base, state)
        settings = settings_of(snapshot)
        if state.live:
            check_settings(base, settings)
        return cls(log, base, instant, state, settings)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        row_filter: RowFilter | None = None,
        *,
        memory: int = MEMORY,
    ) -> pa.RecordBatchReader:
        """All rows, in no particular order; nothing is read before it is requested.

        Args:
            columns, row_filter: as in `tandem.delta.scan.scan`.
            memory: bytes that the index of the log may take. A larger log is read in several
                passes, each of which has a part of the keys and reads the keys of the base table.
        Raises: as `tandem.delta.scan.scan`.
        """
        check_rows(self.base)
        names = self.base.schema.names
        wanted = names if columns is None else named_columns(self.base, columns)
        schema = arrow_schema(table_format(self.base), wanted)

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self._rows(wanted, memory):
                yield row_filter(batch) if row_filter is not None else batch

        return pa.RecordBatchReader.from_batches(schema, batches())

    def _rows(self, wanted: Sequence[str], memory: int) -> Iterator[pa.RecordBatch]:
        blocks = in_order(self.state.live.values())
        hidden: dict[str, BitMap64] = {}
        part, parts = 0, 1
        table = block_format(self.base, self.settings)
        while part < parts:
            found = winners_of(
                self.log.store,
                blocks,
                table,
                self.settings,
                self.state.mark,
                part=part,
                parts=parts,
                memory=memory,
            )
            if found is None:
                parts *= 2
                continue
            self._hide(found.overlay, hidden)
            shown = found.overlay.shown
            yield from self._log_rows(wanted, blocks, found.blocks[shown], found.rows[shown])
            part += 1
        for add in self.base.adds():
            dead = self._deleted(add) | hidden.get(add.logged_path, BitMap64())
            with self._open(add, wanted) as reader:
                yield from reader.batches(dead=dead)

    def _open(self, add: AddFile, columns: Sequence[str]) -> DataFileReader:
        """A file of the base table."""
        return DataFileReader(
            self.log.base.store,
            add.path,
            table_format(self.base),
            partition_values=add.partition_values,
            columns=columns,
        )

    def _deleted(self, add: AddFile) -> BitMap64:
        vector = add.deletion_vector
        return BitMap64() if vector is None else dv.load(self.log.base.store, vector)

    def _hide(self, overlay: Overlay, hidden: dict[str, BitMap64]) -> None:
        """Add the rows that the winners hide, by logged path."""
        if not len(overlay.records):
            return
        mask = may_hold(self.base, self.settings, overlay.records)
        for add in to_adds(self.base.files.filter(pa.array(mask))):
            with self._open(add, self.settings.columns) as reader:
                found = match(reader, overlay, self._deleted(add))
            overlay.beaten[found.winners[found.greater]] = True
            positions = BitMap64(found.positions[found.hidden].astype(np.uint64))
            if positions:
                hidden[add.logged_path] = hidden.get(add.logged_path, BitMap64()) | positions

    def _log_rows(
        self, wanted: Sequence[str], blocks: Sequence[Block], numbers: IntArray, rows: IntArray
    ) -> Iterator[pa.RecordBatch]:
        """Rows of blocks, by the index of the block and the row in it."""
        table = block_format(self.base, self.settings)
        for number, block in enumerate(blocks):
            mine = np.sort(rows[numbers == number])
            if len(mine):
                found = read_block(self.log.store, block, table, wanted)
                found = found.drop_columns([DELETED, INSTANT]).take(pa.array(mine))
                yield from found.to_batches()
