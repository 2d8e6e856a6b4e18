"""`LogWriter`: appends upserts and deletes to the log of a merge-on-read table.

Needs no lock and no cluster, and writes below `_tandem/log` only. A batch counts once, however
often it is appended. An append looks at the base table after it began, and has read each version of
the log below its own: so it has a place in the one order of both.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import random
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import pyarrow as pa

from tandem.delta.actions import Action, AddFile, Txn
from tandem.delta.log.maintenance import maintain
from tandem.delta.log.snapshot import Snapshot, commit_info
from tandem.delta.properties import checkpoint_interval
from tandem.delta.protocol import constraints
from tandem.errors import (
    CommitConflict,
    DataFileMissing,
    DuplicateKeys,
    InvalidSpec,
    StatementFailed,
    TandemError,
    UnsupportedFeature,
)
from tandem.mergelog.base_history import BaseHistory, base_of, require_same_table
from tandem.mergelog.blocks import arrange, read_block, records_of, tagged, write_blocks
from tandem.mergelog.boundaries import transition
from tandem.mergelog.by_key import MEMORY, concatenate, parts_of_keys, require_decided
from tandem.mergelog.log_table import (
    LogSettings,
    MergeLog,
    block_format,
    put_after,
    require_columns,
    require_mergeable,
    settings_of,
)
from tandem.mergelog.versions import ROLLBACK, WRITER, Block, block_of, upload_folder
from tandem.mergelog.winners import RECORD_BYTES, no_records
from tandem.storage.store import Store

# An append whose blocks several processes write, and one commits: `LogWriter.append_uploaded`.
#
# Rows have no order across processes, nor within one: a key that occurs twice is refused unless
# the ordering column decides. Without a commit nothing refers to the blocks; cleaning deletes
# them.


UPLOAD = 1
"""The number of the one upload of a session of this kind."""


def layout_of(base: Snapshot, log: Snapshot) -> tuple[object, ...]:
    """What the files of a block depend on: columns and rules of the base table, the log, which may
    have been removed with its blocks and recreated, with other keys."""
    settings = settings_of(log)
    return (
        log.metadata.id,
        settings.keys,
        settings.ordering_column,
        base.metadata.schema_string,
        base.partition_columns,
        *constraints(base.metadata.configuration).items(),
    )


@dataclass(frozen=True, slots=True)
class Uploaded:
    """Blocks that a process wrote.

    Attributes:
        session: that of the upload.
        layout: a digest of the layout that the blocks were written for.
        adds: the blocks, without instants.
        memory: bytes that their keys take in memory.
    """

    session: str
    layout: str
    adds: tuple[AddFile, ...] = ()
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Upload:
    """Writes blocks for one append. Picklable and small: each process has a copy.

    `base` is a version of the base table without its files, `layout` as in `Uploaded`.
    """

    base: Snapshot
    settings: LogSettings
    session: str
    layout: str

    @classmethod
    def begin(cls, log: MergeLog) -> Upload:
        """Raises: NotMergeOnRead, UnsupportedFeature, InvalidSpec."""
        snapshot = log.snapshot()
        settings = settings_of(snapshot)
        base = log.base.snapshot()
        require_columns(base, settings)
        require_mergeable(base)
        header = replace(base, files=base.files.slice(0, 0), txns={}, domains={}, info=None)
        return cls(header, settings, secrets.token_hex(8), digest(base, snapshot))

    def arrange(self, rows: pa.Table, deletes: pa.Table | None) -> pa.Table:
        """Rows and deletes in the columns of the log. Raises: InvalidSpec, DuplicateKeys."""
        return arrange(self.base, self.settings, rows, deletes, unordered=True)

    def write(self, store: Store, rows: pa.Table, deletes: pa.Table | None) -> Uploaded:
        """Write rows and deletes as blocks, one for each group.

        Args:
            store: that of the log.
            rows, deletes: as in `LogWriter.append`.
        Raises: InvalidSpec, DuplicateKeys, before anything is written; StorageError.
        """
        arranged = self.arrange(rows, deletes)
        if not arranged.num_rows:
            return Uploaded(self.session, self.layout)
        adds = write_blocks(
            store,
            upload_folder(self.session, UPLOAD),
            block_format(self.base, self.settings),
            arranged,
            task=UPLOAD,
        )
        keys = sum(arranged[name].nbytes for name in self.settings.columns)
        memory = int(keys) + RECORD_BYTES * arranged.num_rows
        return Uploaded(self.session, self.layout, tuple(adds), memory)


def digest(base: Snapshot, log: Snapshot) -> str:
    return hashlib.sha256(repr(layout_of(base, log)).encode()).hexdigest()


def require_distinct(
    store: Store, base: Snapshot, settings: LogSettings, parts: Sequence[Uploaded]
) -> None:
    """Check the keys of blocks against each other.

    Args:
        store: that of the log.
    Raises: DuplicateKeys, DataFileMissing, StorageError.
    """
    adds = [add for part in parts for add in part.adds]
    if len(adds) < 2:
        return
    table = block_format(base, settings)
    passes = 1 + sum(part.memory for part in parts) // MEMORY
    for number in range(passes):
        found = [no_records(table, settings)]
        for add in adds:
            values = tuple(sorted(add.partition_values.items()))
            block = Block(add.path, 0, 0, add.size, group=values)
            rows = read_block(store, block, table, settings.columns)
            records = records_of(rows, table, settings, block.path)
            if passes > 1:
                mine = np.flatnonzero(parts_of_keys(records.keys, passes) == number)
                records = records.take(mine)
            found.append(records)
        require_decided(concatenate(found), settings, base.location)


_LOG = logging.getLogger(__name__)

LAST_BATCH = 2**63 - 1
"""The greatest number of a batch: Delta keeps it as a 64-bit integer."""

FAIRNESS = 2.0
"""After a commit a writer pauses for a random time, at most this many times as long as the commit
took with all lost rounds: on average half of the writers of a saturated log compete for a version.
Without the pause, the 99th percentile of 16 saturated writers is twice as long."""

LATE_MS = 3_600_000
"""A commit that took so long is checked: the process may have been paused. Cleaning leaves each
commit of a log for a day at least (`tandem.operations.clean_log`)."""

_REFUSALS = (InvalidSpec, DuplicateKeys, CommitConflict, UnsupportedFeature, StatementFailed)

SEARCHED = 1_000
"""In so many of the newest commits a repeated batch is searched: a log may have a million."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append.

    Attributes:
        instant: the version of the log; None for a batch that had been appended before, and whose
            commit is not among the newest ones (`SEARCHED`).
        repeated: whether the batch had been appended before.
    """

    instant: int | None
    repeated: bool = False


class LogWriter:
    """Appends batches under a writer's name. Not thread-safe; any number of writers may append at
    the same time, each under a name of its own.

    Args:
        name: identifies the writer for all time, across processes.
    Raises: NotMergeOnRead, UnsupportedFeature, InvalidSpec.
    """

    def __init__(
        self,
        log: MergeLog,
        name: str,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if not name or not name.isprintable():
            raise InvalidSpec(
                "a log writer needs a name",
                resource=log.store.location,
                field="name",
                found=repr(name),
                expected="printable text",
                remedy="Give each writer a unique, stable name",
            )
        self._log, self._name = log, name
        self._now_ms, self._monotonic, self._pause = now_ms, monotonic, pause
        self._session = secrets.token_hex(8)
        self._uploads = 0
        self._resume_at = 0.0
        self._snapshot = log.snapshot()
        self._base = log.base.snapshot()
        self._history = BaseHistory(log, self._snapshot)
        self._checkpointed = self._snapshot.checkpoint_version or 0
        # Two requests of an append, and a checkpoint.
        self._pool = ThreadPoolExecutor(3, "tandem-log")

    @property
    def last_batch(self) -> int | None:
        """The number of the last batch that is in the log, None if there is none."""
        self._snapshot = self._log.update(self._snapshot)
        txn = self._snapshot.txns.get(WRITER + self._name)
        return None if txn is None else txn.version

    def append(
        self,
        rows: pa.Table | pa.RecordBatch | None = None,
        deletes: pa.Table | pa.RecordBatch | None = None,
        *,
        batch: int,
    ) -> Appended:
        """Append upserts and deletes as one instant.

        Args:
            rows: columns of the table, in any order; absent ones are NULL. The later row of a key
                wins, unless the ordering column decides.
            deletes: keys, and the ordering column if there is one; they follow the rows.
            batch: number of the batch, greater than that of the writer's last one. A batch that
                is in the log already is not appended again. From 0 to `LAST_BATCH`.
        Raises: InvalidSpec: for wrong rows before anything is written, and if the keys or the
            ordering column have changed in the base table; UnsupportedFeature, if the base table
            refuses merges since; ValueError for the number of the batch;
            TypeError for rows that are no Arrow table;
            BaseReplaced, BaseHistoryGap, CorruptLog, OutcomeUnknown, StorageError. After an error,
            append the same batch again.
        """
        return self._append(batch, lambda: self._upload(self._arrange(rows, deletes)))

    def append_uploaded(self, parts: Sequence[Uploaded], *, batch: int) -> Appended | None:
        """Append blocks that other processes wrote for one `Upload`, as one instant.

        Returns: None if there are no blocks; such a batch leaves no trace.
        Raises: as `append`; DuplicateKeys; CommitConflict, if the blocks can no longer be used.
        """
        adds = [add for part in parts for add in part.adds]
        if not adds:
            return None
        (self._session,) = {part.session for part in parts}
        self._uploads = UPLOAD

        def uploaded() -> list[AddFile]:
            if {part.layout for part in parts} != {digest(self._base, self._snapshot)}:
                found = "the columns of the base table have changed, or the log was made again"
                raise _void(self._log, found)
            if self._rolled_back():
                raise _void(self._log, "cleaning removed it as the upload of a dead writer")
            settings = settings_of(self._snapshot)
            try:
                require_distinct(self._log.store, self._base, settings, parts)
            except DataFileMissing as error:
                raise _void(self._log, "a file of it was deleted") from error
            return adds

        return self._append(batch, uploaded)

    def _append(self, batch: int, upload: Callable[[], list[AddFile]]) -> Appended:
        """Append what `upload` writes; it is called again if the files cannot be committed."""
        batch = operator.index(batch)
        if not 0 <= batch <= LAST_BATCH:
            raise ValueError(f"batch {batch}: batches are numbered from 0 to {LAST_BATCH}")
        if self._knows(batch):
            # The log may have been made again since, without the batch.
            self._snapshot = self._log.update(self._snapshot)
            done = self._find(batch)
            if done is not None:
                return done
        adds: list[AddFile] = []
        layout: tuple[object, ...] = ()  # that of `adds`
        waited = max(0.0, self._resume_at - self._monotonic())
        if waited:
            self._pause(waited)
        lost, started = False, 0.0
        while True:
            began_ms, began = self._now_ms(), self._monotonic()
            refused: TandemError | None = None
            if not lost:  # else it has looked, and the lost put has read the newest version
                base = self._pool.submit(self._log.base.update, self._base)
                newest = self._pool.submit(self._log.update, self._snapshot)
                if not adds:
                    layout = self._layout
                    try:
                        require_mergeable(self._base)
                        adds = upload()
                    except _REFUSALS as error:
                        refused = error
                self._base, self._snapshot = base.result(), newest.result()
            if self._base.version < base_of(self._snapshot):
                # Listed before the other writer did. A base that is older still was replaced.
                self._base = self._log.base.update(self._base)
            done = self._find(batch)
            if done is not None:
                return done
            if refused is not None and self._layout == layout:
                raise refused
            if self._layout != layout or self._rolled_back():
                adds, lost = [], False
                continue
            started = started or self._monotonic()
            instant = self._commit(adds, batch)
            lost = instant is None
            # One clock may have been set back meanwhile, the other stops while a machine sleeps.
            elapsed_ms = (self._monotonic() - began) * 1000
            late = max(self._now_ms() - began_ms, elapsed_ms) >= LATE_MS
            if instant is not None and not (late and self._fills_a_hole(instant, batch)):
                now = self._monotonic()
                self._resume_at = now + random.uniform(0, FAIRNESS * (now - started))
                self._maintain(instant)
                return Appended(instant)

    @property
    def _layout(self) -> tuple[object, ...]:
        """What an upload, or its refusal, depends on."""
        base = self._base
        return (base.protocol, base.metadata, *layout_of(base, self._snapshot))

    def _arrange(
        self, rows: pa.Table | pa.RecordBatch | None, deletes: pa.Table | pa.RecordBatch | None
    ) -> pa.Table:
        settings = settings_of(self._snapshot)
        require_columns(self._base, settings)
        found = arrange(self._base, settings, _table(rows), _table(deletes))
        if not found.num_rows:
            raise InvalidSpec(
                "an append has no rows",
                resource=self._base.location,
                field="rows",
                found="none",
                expected="at least one row or delete",
                remedy="Append rows or deletes",
            )
        return found

    def _upload(self, rows: pa.Table) -> list[AddFile]:
        self._uploads += 1
        return write_blocks(
            self._log.store,
            upload_folder(self._session, self._uploads),
            block_format(self._base, settings_of(self._snapshot)),
            rows,
            task=self._uploads,
        )

    def _knows(self, batch: int) -> bool:
        txn = self._snapshot.txns.get(WRITER + self._name)
        return txn is not None and txn.version >= batch

    def _find(self, batch: int) -> Appended | None:
        """The outcome of a batch that is in the log."""
        txn = self._snapshot.txns.get(WRITER + self._name)
        if txn is None or txn.version < batch:
            return None
        newest = self._snapshot.version
        for version in range(newest, max(-1, newest - SEARCHED), -1):
            commit = self._log.log.commit(version)
            if commit is None:
                break  # cleaned up
            found = [
                action.version
                for action in commit.actions
                if isinstance(action, Txn) and action.app_id == WRITER + self._name
            ]
            if found and found[-1] <= batch:
                instant = version if found[-1] == batch else None
                return Appended(instant, repeated=True)
        return Appended(None, repeated=True)

    def _rolled_back(self) -> bool:
        """Whether a clean-up has taken this session for dead, and may delete its files."""
        txn = self._snapshot.txns.get(ROLLBACK + self._session)
        return txn is not None and txn.version >= self._uploads

    def _commit(self, adds: list[AddFile], batch: int) -> int | None:
        """The instant; None if another writer was faster, whose version is read then."""
        instant = self._snapshot.version + 1
        history = self._history = self._history.following(self._snapshot)
        state = history.at(self._base.version)
        require_same_table(self._base, state)
        mine = {add.logged_path: tagged(add, instant, instant) for add in adds}
        live = dict(state.live)
        live |= {
            path: block_of(path, add.size, add.tags, add.partition_values, instant)
            for path, add in mine.items()
        }

        def added(path: str) -> AddFile:
            return mine[path] if path in mine else history.restored(path)

        now = self._now_ms()
        actions: list[Action] = [
            commit_info(
                "WRITE",
                {"mode": "Append"},
                now_ms=now,
                previous=self._snapshot,
                blind_append=False,
            ),
            Txn(WRITER + self._name, batch, now),
            *transition(
                self._snapshot,
                replace(state, live=live),
                added,
                base=self._base,
                now_ms=now,
            ),
        ]
        token = f"{self._session}.{self._uploads}.{instant}"
        newest = put_after(self._log, self._snapshot, actions, token, beside=self._pool)
        if newest is not None:
            self._snapshot = newest
            return None
        return instant

    def _fills_a_hole(self, instant: int, batch: int) -> bool:
        """Whether cleaning had removed this version before our put: then no reader sees our
        commit, which is removed, too."""
        self._snapshot = self._log.snapshot()
        if (self._snapshot.checkpoint_version or -1) < instant:
            return False
        # The checkpoint says whether ours was among the versions. Commits around it do not: a store
        # deletes many at once in any order, and a killed cleaning leaves some.
        txn = self._snapshot.txns.get(WRITER + self._name)
        if txn is not None and txn.version >= batch:
            return False
        self._log.log.commit_log.withdraw(instant)
        return True

    def _maintain(self, instant: int) -> None:
        """Write a checkpoint in the background, if one is due."""
        interval = checkpoint_interval(self._snapshot.configuration)
        # It was after this instant if the log was made again since.
        if not 0 <= instant - self._checkpointed < interval:
            self._checkpointed = instant
            self._pool.submit(self._checkpoint)

    def _checkpoint(self) -> None:
        try:
            notes = maintain(self._log.log, self._log.snapshot(), now_ms=self._now_ms()).notes
        except TandemError as error:
            notes = (f"checkpoint failed: {error}",)
        for note in notes:
            # The append has succeeded. Without checkpoints, each reader reads more commits.
            _LOG.warning("%s: %s", self._log.store.location, note)

    def close(self) -> None:
        self._pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _table(rows: pa.Table | pa.RecordBatch | None) -> pa.Table | None:
    if rows is not None and not isinstance(rows, pa.Table | pa.RecordBatch):
        found = f"{type(rows).__module__}.{type(rows).__qualname__}"
        raise TypeError(f"an append takes a pyarrow.Table or RecordBatch, not a {found}")
    return pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows


def _void(log: MergeLog, found: str) -> CommitConflict:
    return CommitConflict(
        "an upload of blocks cannot be committed",
        resource=log.store.location,
        found=found,
        remedy="Repeat the batch: restart the stream, or the write",
    )
