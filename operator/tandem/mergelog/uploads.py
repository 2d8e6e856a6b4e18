"""An append whose blocks several processes write, and one commits: `LogWriter.append_uploaded`.

Rows have no order across processes, nor within one: a key that occurs twice is refused unless the
ordering column decides. Without a commit nothing refers to the blocks; cleaning deletes them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tandem.delta.actions import AddFile
from tandem.delta.log.snapshot import Snapshot
from tandem.mergelog.rows.blocks import arrange, read_block, records_of, write_blocks
from tandem.mergelog.rows.duplicates import require_decided
from tandem.mergelog.rows.parts import MEMORY, parts_of_keys
from tandem.mergelog.rows.records import concatenate
from tandem.mergelog.rows.winners import RECORD_BYTES, no_records
from tandem.mergelog.state.log_table import (
    LogSettings,
    MergeLog,
    block_format,
    require_columns,
    require_mergeable,
    settings_of,
)
from tandem.mergelog.state.model import Block, upload_folder
from tandem.storage.store import Store

UPLOAD = 1
"""The number of the one upload of a session of this kind."""


def layout_of(base: Snapshot, log: Snapshot) -> tuple[object, ...]:
    """What the files of a block depend on: the columns of the base table, and the log, which may
    have been removed with its blocks and recreated, with other keys."""
    settings = settings_of(log)
    return (
        log.metadata.id,
        settings.keys,
        settings.ordering_column,
        base.metadata.schema_string,
        base.partition_columns,
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
