"""The merged view of a base table and its log: rows as of one version of each.

Reads the log before the base table. The base table is read as by a plain scan, with one more bitmap
for each file; then follow the winners of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import AddFile, Metadata
from tandem.delta.datafiles.reader import DataFileReader, arrow_schema
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.files import to_adds
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.partitions import given_back
from tandem.delta.scan import RowFilter, check_rows, named_columns, table_format
from tandem.distinct import BoolArray, IntArray
from tandem.mergelog.base_history import BaseHistory, require_same_table
from tandem.mergelog.blocks import rows_at
from tandem.mergelog.by_key import MEMORY, Overlay, Records
from tandem.mergelog.log_table import (
    LogSettings,
    MergeLog,
    block_format,
    log_partitions,
    require_columns,
    settings_of,
    state_of,
)
from tandem.mergelog.versions import Block, BlockLogState, in_order
from tandem.mergelog.winners import MatchedRows, WinnerPasses, match, may_hold
from tandem.pruning.selection import Selection
from tandem.statements.tree import Expr
from tandem.storage import open_store


@dataclass(frozen=True, slots=True)
class FilePart:
    """Part `part` of `parts` of the row groups of a file: `file` is an index into
    `Snapshot.files`."""

    file: int
    part: int = 0
    parts: int = 1

    def of(self, row_groups: int) -> range:
        return range(
            row_groups * self.part // self.parts, row_groups * (self.part + 1) // self.parts
        )


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a view that is read by itself: rows of the base table, and the winners that are in
    some blocks, by path."""

    files: tuple[FilePart, ...]
    blocks: frozenset[str]


def _state_at(
    log: MergeLog, snapshot: Snapshot, base: Snapshot, *, newest: bool
) -> tuple[int, BlockLogState]:
    """What the log says of a version of the base table, and the version of the log that says it."""
    history = BaseHistory(log, snapshot)
    if newest or base.version >= state_of(snapshot).base:
        return snapshot.version, history.at(base.version)
    return history.instant_before(base.version)


@dataclass(frozen=True, slots=True)
class MergedView:
    """One version of a merge-on-read table.

    Attributes:
        base: the version of the base table.
        instant: the version of the log, -1 before its first one.
        state: the log as of that version of the base table.
        log_id: the id of the log; "" if it is left out.
    """

    log: MergeLog
    base: Snapshot
    instant: int
    state: BlockLogState
    settings: LogSettings
    log_id: str = ""

    @classmethod
    def open(
        cls, log: MergeLog, version: int | None = None, *, timestamp_ms: int | None = None
    ) -> MergedView:
        """The newest version, or that of a version or time of the base table.

        Raises: NotMergeOnRead, VersionNotFound, BaseReplaced, BaseHistoryGap; InvalidSpec, if the
            keys or the ordering column of live records have changed.
        """
        # In this order: records that were acknowledged before are in the log, or in the base table.
        snapshot = log.snapshot()
        base = log.base.snapshot(version, timestamp_ms=timestamp_ms)
        newest = version is None and timestamp_ms is None
        instant, state = _state_at(log, snapshot, base, newest=newest)
        if state.mark > snapshot.version:
            # A merge has come in between. Its deletes may hide rows that came after it.
            snapshot = log.update(snapshot)
            instant, state = _state_at(log, snapshot, base, newest=newest)
        require_same_table(base, state)
        settings = settings_of(snapshot)
        if state.live:
            require_columns(base, settings)
        return cls(log, base, instant, state, settings, snapshot.metadata.id)

    @classmethod
    def at(cls, log: MergeLog, base_version: int, instant: int) -> MergedView:
        """The view that another process has opened, by its `base.version` and `instant`.

        Raises: VersionNotFound, if cleaning has removed one of them; as `open`.
        """
        if instant < 0:
            return cls.of_base(log, base_version)
        snapshot = log.snapshot(instant)
        base = log.base.snapshot(base_version)
        state = BaseHistory(log, snapshot).at(base.version)
        return cls(log, base, instant, state, settings_of(snapshot), snapshot.metadata.id)

    @classmethod
    def of_base(cls, log: MergeLog, version: int | None = None) -> MergedView:
        """The base table without its log, which need not exist. Raises: VersionNotFound."""
        base = log.base.snapshot(version)
        return cls(log, base, -1, BlockLogState(base.metadata.id, base.version), LogSettings(()))

    @property
    def blocks(self) -> tuple[Block, ...]:
        return in_order(self.state.live.values())

    def narrowed(self, where: Expr) -> MergedView:
        """The view without the files and blocks that hold no key for which a condition on the keys
        is true. What the condition is not true for is arbitrary: filter the rows."""
        files = Selection(where, self.base).of(self.base.files)
        found = self.log.snapshot(self.instant).files if self.state.live else None
        if found is None:
            return replace(self, base=replace(self.base, files=files))
        # Blocks that only an earlier version of the log has are kept: their bounds are not here.
        of_log = replace(self.base, files=found, metadata=self._log_metadata())
        gone = set(found["path"].to_pylist()) - Selection(where, of_log).paths(found)
        live = {path: block for path, block in self.state.live.items() if path not in gone}
        state = replace(self.state, live=live)
        return replace(self, base=replace(self.base, files=files), state=state)

    def _log_metadata(self) -> Metadata:
        return replace(
            self.base.metadata, partition_columns=log_partitions(self.base, self.settings)
        )

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
        every = Share(
            tuple(FilePart(at) for at in range(self.base.num_files)), frozenset(self.state.live)
        )

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in self.read(every, wanted, self.passes(memory)):
                yield row_filter(batch) if row_filter is not None else batch

        return pa.RecordBatchReader.from_batches(schema, batches())

    def passes(self, memory: int) -> WinnerPasses:
        """The winners of the log, for `read`; `memory` as in `scan`."""
        return WinnerPasses(
            self.log.store,
            self.blocks,
            block_format(self.base, self.settings),
            self.settings,
            self.state.mark,
            memory,
        )

    def read(
        self, share: Share, wanted: Sequence[str], passes: WinnerPasses
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a share. Shares that have each file and each block once are the whole view.

        Args:
            wanted: columns as the base table spells them.
        """
        own = [number for number, block in enumerate(passes.blocks) if block.path in share.blocks]
        hidden: dict[str, BitMap64] = {}
        parts = self._own_files(share)
        for found in passes:
            mine = np.isin(found.blocks, own)
            self._match(found.overlay, share, mine, hidden)
            shown = found.overlay.shown
            shown = shown[mine[shown]]
            yield from self._log_rows(wanted, passes.blocks, found.blocks[shown], found.rows[shown])
        for part, add in parts:
            dead = self._deleted(add) | hidden.get(add.logged_path, BitMap64())
            with self._open(add, wanted) as reader:
                yield from reader.batches(dead=dead, row_groups=part.of(len(reader.row_groups)))

    def _own_files(self, share: Share) -> list[tuple[FilePart, AddFile]]:
        """The share's files, in its order."""
        files = self.base.files.take(pa.array([part.file for part in share.files], pa.int64()))
        return list(zip(share.files, to_adds(files), strict=True))

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

    def _match(
        self, overlay: Overlay, share: Share, mine: BoolArray, hidden: dict[str, BitMap64]
    ) -> None:
        """Add the rows of the share that the winners hide, by logged path, and find which of the
        winners that are `mine` rows of the base table beat."""
        if not len(overlay.records):
            return
        for part, add in self._candidates(share.files, overlay.records):
            found = self._matched(add, overlay, part)
            positions = BitMap64(found.positions[found.hidden].astype(np.uint64))
            if positions:
                hidden[add.logged_path] = hidden.get(add.logged_path, BitMap64()) | positions
        whole = {part.file for part in share.files if part.parts == 1}
        others = [FilePart(at) for at in range(self.base.num_files) if at not in whole]
        if self.settings.ordered and mine.any() and others:
            records = overlay.records.take(np.flatnonzero(mine))
            for part, add in self._candidates(others, records):
                self._matched(add, overlay, part)

    def _candidates(
        self, parts: Sequence[FilePart], records: Records
    ) -> list[tuple[FilePart, AddFile]]:
        """The files that can have the keys of some records."""
        files = self.base.files.take(pa.array([part.file for part in parts], pa.int64()))
        mask = may_hold(self.base, self.settings, records, files)
        held = [part for part, holds in zip(parts, mask, strict=True) if holds]
        return list(zip(held, to_adds(files.filter(pa.array(mask))), strict=True))

    def _matched(self, add: AddFile, overlay: Overlay, part: FilePart) -> MatchedRows:
        with self._open(add, self.settings.columns) as reader:
            groups = part.of(len(reader.row_groups))
            found = match(reader, overlay, self._deleted(add), groups)
        overlay.beaten[found.winners[found.greater]] = True
        return found

    def _log_rows(
        self, wanted: Sequence[str], blocks: Sequence[Block], numbers: IntArray, rows: IntArray
    ) -> Iterator[pa.RecordBatch]:
        """Rows of blocks, by the index of the block and the row in it."""
        table = block_format(self.base, self.settings)
        for number, block in enumerate(blocks):
            mine = np.sort(rows[numbers == number])
            if len(mine):
                for batch, _ in rows_at(self.log.store, block, table, wanted, mine):
                    yield self._as_merged(batch)

    def _as_merged(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the log as the base table gives them back after a merge."""
        for name in self.base.partition_columns:
            at = rows.schema.get_field_index(name)
            if at >= 0:
                rows = rows.set_column(at, rows.schema.field(at), given_back(rows.column(at)))
        return rows


# `open_log`, `open_view` and `scan`: the log and the merged view of a table, by its location.


def open_log(location: str, options: Mapping[str, str] | None = None) -> MergeLog:
    """The log of the table at a location, which may have none yet.

    Args:
        location: a URL, or an absolute path.
        options: settings of the object store that are not secret. Credentials come from the
            environment.
    Raises: InvalidSpec.
    """
    return MergeLog(DeltaLog(open_store(location, options)))


def open_view(log: MergeLog, version: int | None = None, *, base: bool = False) -> MergedView:
    """The merged view of a table; its base table alone if it has no log, or for `base`.

    Args:
        version: of the base table; None for the newest.
    Raises: as `MergedView.open`; TableNotFound.
    """
    if base or not log.exists():
        return MergedView.of_base(log, version)
    return MergedView.open(log, version)


def scan(
    location: str,
    columns: Sequence[str] | None = None,
    *,
    version: int | None = None,
    options: Mapping[str, str] | None = None,
    memory: int = MEMORY,
) -> pa.RecordBatchReader:
    """The rows of a merge-on-read table as a stream of Arrow batches: for DuckDB, Polars, pandas.

    Args:
        columns: names, in the order wanted; None for all.
        version: of the base table; None for the newest.
        memory: bytes that the index of the log may take; a larger log is read in passes.
    Raises: NotMergeOnRead, VersionNotFound, InvalidSpec, BaseReplaced, BaseHistoryGap.
    """
    return MergedView.open(open_log(location, options), version).scan(columns, memory=memory)
