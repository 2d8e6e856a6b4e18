"""The commits since a version, and the live files at the versions in between.

The reading side of reconciling a statement: commits, views and row maps, each read once. A row
map that is lost or damaged counts as missing (C6b), and so does a version that the log can no
longer reconstruct; a store that does not answer is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.delta.actions import Commit, DeletionVector
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import (
    CorruptLog,
    DataFileMissing,
    LogGap,
    ObjectNotFound,
    RowMapInvalid,
    VersionNotFound,
)
from tandem.operations.attempt import paths
from tandem.operations.kinds.table.snapshot_view import SnapshotView, VectorCache, vector_places
from tandem.reconcile.classify import classify, gap
from tandem.reconcile.model import CommitSummary, RowMapLike
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap
from tandem.storage.store import Store, side_by_side

_OURS = re.compile(r"([0-9a-f]{16}(?:r\d+)?)-(\d+)/")


class PublishedRowMaps(Mapping[str, RowMapLike]):
    """Output path → row map, for files that our compactions wrote.

    The path of a file identifies the attempt that wrote it, and so its map: no tag is needed, and
    the map of a file that a restore brought back is found, too. A map of more than `most_rows`
    rows counts as damaged. `parallel`: so many maps are read at once.
    """

    def __init__(
        self, store: Store, table_id: str, most_rows: Callable[[], int], parallel: int = 1
    ) -> None:
        self._store = store
        self._table_id = table_id
        self._most_rows = most_rows
        self._parallel = parallel
        self._maps: dict[tuple[str, int], RowMap | None] = {}

    def __getitem__(self, path: str) -> RowMapLike:
        attempt = _attempt_of(path)
        if attempt is None:
            raise KeyError(path)
        if attempt not in self._maps:
            self._maps[attempt] = self._load(*attempt)
        found = self._maps[attempt]
        if found is None or path not in found.output_paths:
            raise KeyError(path)
        return found

    def prefetch(self, files: Iterable[str]) -> None:
        """Read the maps of these files together."""
        attempts = dict.fromkeys(filter(None, map(_attempt_of, files)))
        unread = [attempt for attempt in attempts if attempt not in self._maps]
        found = side_by_side([partial(self._load, *each) for each in unread], self._parallel)
        self._maps.update(zip(unread, found, strict=True))

    def __iter__(self) -> Iterator[str]:
        for found in self._maps.values():
            yield from found.output_paths if found is not None else ()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load(self, operation_id: str, attempt: int) -> RowMap | None:
        where = paths.row_map(operation_id, attempt)
        try:
            data = self._store.get(where)
            found = binary_format.from_bytes(data, resource=where, most_rows=self._most_rows)
        except (ObjectNotFound, RowMapInvalid):
            return None
        mine = (self._table_id, operation_id, attempt)
        identity = found.identity
        return (
            found if (identity.table_id, identity.operation_id, identity.attempt) == mine else None
        )


class CommitHistory:
    """The versions of one table that one operation has read. Not thread-safe.

    Args:
        new_commits: commits that were read already, each by its version: those by which a snapshot
            was advanced to the latest one. They are taken out.
    """

    def __init__(
        self,
        log: DeltaLog,
        cache: VectorCache,
        table_id: str,
        new_commits: dict[int, Commit] | None = None,
    ) -> None:
        self._log = log
        self._cache = cache
        self._new = {} if new_commits is None else new_commits
        self._views: dict[int, SnapshotView] = {}
        self._summaries: dict[int, CommitSummary] = {}
        self._inherited: set[int] = set()
        self.row_maps = PublishedRowMaps(log.store, table_id, self._most_rows, log.parallel_reads)

    def remember(self, snapshot: Snapshot) -> SnapshotView:
        """Keep a version that has been read already: log clean-up may delete it."""
        if snapshot.version not in self._views:
            self._views[snapshot.version] = SnapshotView(snapshot, self._cache)
        return self._views[snapshot.version]

    def _most_rows(self) -> int:
        """The rows of all files together, in the versions that were read."""
        return max((_rows(view.snapshot) for view in self._views.values()), default=0)

    def forget(self, keep: set[int]) -> None:
        """Drop all versions except `keep`."""
        self._views = {v: view for v, view in self._views.items() if v in keep}

    def view(self, version: int) -> SnapshotView | None:
        """The live files at a version, None if the log can no longer reconstruct it."""
        if version not in self._views:
            try:
                self.remember(self._read(version))
            except (VersionNotFound, CorruptLog):
                return None
        return self._views[version]

    def _read(self, version: int) -> Snapshot:
        older = [v for v in self._views if v < version]
        if not older:
            return self._log.snapshot(version)
        return self._log.update(self._views[max(older)].snapshot, version)

    def since(self, version: int, latest: Snapshot) -> list[CommitSummary]:
        """All commits after `version`, up to the latest, without a hole: commits that log
        clean-up deleted are one gap, with every file in which the versions around it differ.

        New commits are read together with the last known one: if that one is gone from the log,
        a file of the right name may be another commit, of a recreated table. Those by which the
        latest version was read follow the one before them for certain.
        """
        known = version
        while known + 1 in self._summaries:
            known += 1
        if known < latest.version:
            try:
                self._classify(self._after(known, latest.version))
            except LogGap as hole:
                return self._around(version, hole.first_available, latest)
        self._inherit(version, latest)
        return [self._summaries[v] for v in range(version + 1, latest.version + 1)]

    def _after(self, known: int, latest: int) -> list[Commit]:
        """The commits after a known version, maybe together with that. Raises: LogGap."""
        taken = {v: self._new.pop(v) for v in sorted(self._new) if v <= latest}
        wanted = range(known + 1, latest + 1)
        if all(version in taken for version in wanted):
            return [taken[version] for version in wanted]
        return self._log.commits(known, latest)

    def _classify(self, commits: Sequence[Commit]) -> None:
        self.row_maps.prefetch(
            add.logged_path
            for commit in commits
            if commit.removes and commit.info is not None and commit.info.operation == "OPTIMIZE"
            for add in commit.adds
        )
        for commit in commits:
            self._summaries[commit.version] = classify(commit, self.row_maps, self._vector)

    def _vector(self, vector: DeletionVector) -> BitMap64 | None:
        try:
            return self._cache.read(vector)
        except DataFileMissing:  # cleaned
            return None

    def _inherit(self, version: int, latest: Snapshot) -> None:
        """Copy from the newest view since `version` to the latest one what is known of files that
        no commit in between refers to. Files never change, so a round looks up only new ones."""
        older = max((v for v in self._views if version <= v < latest.version), default=None)
        if older is None or latest.version in self._inherited:
            return
        self._inherited.add(latest.version)
        between = range(older + 1, latest.version + 1)
        changed = frozenset().union(*(self._summaries[v].files for v in between))
        self.remember(latest).inherit(self._views[older], changed)

    def _around(self, version: int, available: int, latest: Snapshot) -> list[CommitSummary]:
        after = self.view(available) if available <= latest.version else None
        if after is None:
            return [gap(latest.version, self._differing(version, latest))]
        rest = self._log.commits(available + 1, latest.version)
        lost = gap(available, self._differing(version, after.snapshot))
        return [lost, *(classify(commit, self.row_maps, self._vector) for commit in rest)]

    def _differing(self, version: int, after: Snapshot) -> frozenset[str]:
        before = self.view(version)
        if before is None:
            return frozenset(after.files["path"].to_pylist())
        keys = [_keys(snapshot) for snapshot in (before.snapshot, after)]
        return frozenset(path for path, _ in keys[0] ^ keys[1])


def _attempt_of(path: str) -> tuple[str, int] | None:
    """The operation and the attempt that wrote a file; None for other writers' files."""
    match = _OURS.match(path)
    return None if match is None else (match[1], int(match[2]))


def _rows(snapshot: Snapshot) -> int:
    # A file without statistics is assumed to have at most one row per bit.
    bits = pc.multiply(snapshot.files["size"], 8)
    return pc.sum(pc.coalesce(snapshot.num_records, bits)).as_py() or 0


def _keys(snapshot: Snapshot) -> set[tuple[str, object]]:
    files = snapshot.files
    return set(zip(files["path"].to_pylist(), vector_places(files), strict=True))
