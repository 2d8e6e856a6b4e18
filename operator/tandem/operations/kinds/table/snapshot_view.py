"""The live files at one version as reconciliation reads them: by path, vectors loaded once.

A data file and a deletion vector never change, so both may be kept for as long as an operation
lives: every round of the commit loop pays only for what is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import AddFile, DeletionVector
from tandem.delta.budget import UNLIMITED, Account, TableBudget
from tandem.delta.datafiles.missing import unreadable
from tandem.delta.datafiles.pages import require_footer
from tandem.delta.log import files as files_
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.stats import num_records_of
from tandem.reconcile.model import FileState
from tandem.storage.store import Store

_NONE_DEAD = BitMap64()


@dataclass(slots=True)
class VectorCache:
    """Deletion vectors and row counts of immutable files. Not thread-safe.

    Its methods raise TooLarge for vectors, or a footer, beyond `budget`. `parallel`: so many
    requests are made at once.
    """

    store: Store
    budget: TableBudget = UNLIMITED
    parallel: int = 1
    vectors: dict[str, BitMap64] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    _account: Account | None = None

    @classmethod
    def of(cls, store: Store, log: DeltaLog) -> VectorCache:
        """A cache with the budget of a log, that makes as many requests at once."""
        return cls(store, log.budget, log.parallel_reads)

    def load(self, vectors: Iterable[DeletionVector]) -> None:
        """Make sure that these are cached; the missing ones are read together."""
        missing = {v.unique_id: v for v in vectors if v.unique_id not in self.vectors}
        if self._account is None:
            self._account = self.budget.account(self.store.location)
        unread = list(missing.values())
        loaded = dv.load_many(self.store, unread, self._account, parallel=self.parallel)
        self.vectors.update(zip(missing, loaded, strict=True))

    def dead(self, add: AddFile) -> BitMap64:
        """Positions deleted in a file. The caller must not modify the result."""
        vector = add.deletion_vector
        return _NONE_DEAD if vector is None else self.read(vector)

    def read(self, vector: DeletionVector) -> BitMap64:
        """Positions that a vector deletes. The caller must not modify the result."""
        if vector.unique_id not in self.vectors:
            self.load([vector])
        return self.vectors[vector.unique_id]

    def rows_of(self, add: AddFile) -> int:
        """The physical rows of a file, from its statistics or else its footer. Raises:
        DataFileMissing, TooLarge; StorageError if it cannot be read."""
        known = self.rows.get(add.logged_path)
        if known is None:
            known = num_records_of(add.stats)
            if known is None:
                with self.store.open_input(add.path) as source:
                    require_footer(source, self.budget.account(f"{self.store.location}/{add.path}"))
                    try:
                        known = pq.ParquetFile(source).metadata.num_rows
                    except (pa.ArrowException, OSError) as error:
                        raise unreadable(add.path, error) from error
            self.rows[add.logged_path] = known
        return known


class SnapshotView:
    """A `FileView` of one version. Call `prefetch` before reading many paths one by one."""

    def __init__(self, snapshot: Snapshot, cache: VectorCache) -> None:
        self.snapshot = snapshot
        self._cache = cache
        self._adds: dict[str, AddFile | None] = {}

    def prefetch(self, paths: Iterable[str]) -> None:
        """Look these up in one pass over the snapshot, and load their vectors together."""
        wanted = [path for path in paths if path not in self._adds]
        if not wanted:
            return
        found = self.snapshot.files_by_path(wanted)
        for path in wanted:
            self._adds[path] = found.get(path)
        self._cache.load(a.deletion_vector for a in found.values() if a.deletion_vector)

    def inherit(self, older: SnapshotView, changed: Collection[str]) -> None:
        """Copy from an earlier version what is known of files. The `changed` ones, to which a
        commit in between refers, and those with another deletion vector in this version are not
        copied, but looked up when they are needed."""
        known = {
            path: add
            for path, add in older._adds.items()
            if add is not None and path not in changed and path not in self._adds
        }
        change = self.snapshot.change
        if change is not None and change.follows(older.snapshot):
            self._adds |= {path: add for path, add in known.items() if path not in change.paths}
            return
        live = files_.with_paths(self.snapshot.files.select(["path", "deletion_vector"]), known)
        paths, vectors = live["path"].to_pylist(), vector_places(live)
        if len(set(paths)) != len(paths):
            return
        for path, vector in zip(paths, vectors, strict=True):
            ours = known[path].deletion_vector
            place = (None, None) if ours is None else (ours.path_or_inline, ours.offset)
            if vector == place:
                self._adds[path] = known[path]

    def add(self, path: str) -> AddFile | None:
        if path not in self._adds:
            self.prefetch([path])
        return self._adds[path]

    def vector_id(self, path: str) -> str | None:
        """Identifies a file's deletion vector: "" if it has none, None if it is not live."""
        add = self.add(path)
        if add is None:
            return None
        return add.deletion_vector.unique_id if add.deletion_vector is not None else ""

    def get(self, path: str) -> FileState | None:
        add = self.add(path)
        if add is None:
            return None
        return FileState(path, self._cache.rows_of(add), self._cache.dead(add))

    def paths(self) -> list[str]:
        """All live files, in a fixed order."""
        return sorted(self.snapshot.files["path"].to_pylist())


def vector_places(files: pa.Table) -> list[tuple[object, object]]:
    """The location of each file's deletion vector, (None, None) for none: it identifies a vector
    among those of the same file."""
    vector = files["deletion_vector"]
    parts = [pc.struct_field(vector, name).to_pylist() for name in ("pathOrInlineDv", "offset")]
    return list(zip(*parts, strict=True))
