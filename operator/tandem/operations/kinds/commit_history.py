"""The commits since a version, and the live files at the versions in between, as reconciliation
reads them.

What a table allows an operation to do, and what happens to it when the table's metadata or
protocol changes: the rules are a table in `tandem.reconcile.rules`, and become decisions here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import AddFile, Commit, DeletionVector, Metadata, Protocol
from tandem.delta.datafiles.conform import missing, unreadable
from tandem.delta.log import files as files_
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.protocol import OperationKind
from tandem.delta.stats import num_records_of
from tandem.errors import (
    CorruptLog,
    DataFileMissing,
    DeletionVectorsDisabled,
    LogGap,
    ObjectNotFound,
    Reason,
    RowMapInvalid,
    VersionNotFound,
)
from tandem.jobs.formats import InputFile
from tandem.operations import attempt_files
from tandem.operations.explain import of_row_edits
from tandem.operations.machine.events import Verdict
from tandem.operations.model import Decision, Table, Work
from tandem.reconcile.classify import TableState, check_table, classify, gap
from tandem.reconcile.model import CommitSummary, FileState, RowMapLike
from tandem.reconcile.rules import Response
from tandem.remedies import ENABLE_VECTORS
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap
from tandem.storage.store import Store, side_by_side

# The live files at one version as reconciliation reads them: by path, vectors loaded once.
#
# A data file and a deletion vector never change, so both may be kept for as long as an operation
# lives: every round of the commit loop pays only for what is new.


_NONE_DEAD = BitMap64()


@dataclass(slots=True)
class VectorCache:
    """Deletion vectors and row counts of immutable files. Not thread-safe.

    `parallel`: so many requests are made at once.
    """

    store: Store
    parallel: int = 1
    vectors: dict[str, BitMap64] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Store, log: DeltaLog) -> VectorCache:
        """A cache that makes as many requests at once as a log."""
        return cls(store, log.parallel_reads)

    def load(self, vectors: Iterable[DeletionVector]) -> None:
        """Make sure that these are cached; the missing ones are read together."""
        unread = {v.unique_id: v for v in vectors if v.unique_id not in self.vectors}
        loaded = dv.load_many(self.store, list(unread.values()), parallel=self.parallel)
        self.vectors.update(zip(unread, loaded, strict=True))

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
        DataFileMissing; StorageError if it cannot be read."""
        known = self.rows.get(add.logged_path)
        if known is None:
            known = num_records_of(add.stats)
            if known is None:
                try:
                    source = self.store.open_input(add.path)
                except ObjectNotFound as error:
                    raise missing(add.path) from error
                with source:
                    try:
                        known = pq.ParquetFile(source).metadata.num_rows
                    except MemoryError:
                        raise  # pyarrow's is an ArrowException, too
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


# The commits since a version, and the live files at the versions in between.
#
# The reading side of reconciling a statement: commits, views and row maps, each read once. A row
# map that is lost or damaged counts as missing (C6b), and so does a version that the log can no
# longer reconstruct; a store that does not answer is an error.


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
        where = attempt_files.row_map(operation_id, attempt)
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


MOST_LOST_EDITS: Final = 5
"""Rounds of edits without progress that end an operation which has no `conflict.maxAttempts`."""


def planned_edits(
    work: Work,
    files: Sequence[AddFile] | Sequence[InputFile],
    columns: Sequence[str] | None = None,
    share: float | None = None,
    *,
    of: str = "a match",
) -> str | None:
    """What a plan says of files that have to be made again; None where deletion vectors hide rows,
    and where edits are not allowed. Args: as `of_row_edits`."""
    table = work.table
    if not files or table.vectors_only or table.will_write_vectors(work.snapshot):
        return None
    return of_row_edits(len(files), sum(file.size for file in files), columns, share, of=of)


def verdict_of_table(work: Work, kind: OperationKind, *, needs_vectors: bool) -> Decision | None:
    """The verdict if the table changed since the plan in a way that matters; None to continue.

    `needs_vectors`: the commit deletes rows of live files, and may do so by deletion vectors alone.
    """
    plan, job = work.frozen
    table, features = job.table, plan.protocol
    read = TableState(
        version=plan.read_version,
        metadata=Metadata(
            id=table.table_id,
            schema_string=table.schema_string,
            partition_columns=table.partition_columns,
            configuration=table.configuration,
        ),
        protocol=Protocol(
            features.min_reader,
            features.min_writer,
            frozenset(features.reader_features),
            frozenset(features.writer_features),
        ),
    )
    rules, metadata = work.rules
    latest = TableState(work.snapshot.version, metadata, rules)
    verdict = check_table(read, latest, kind, needs_vectors=needs_vectors)
    if verdict.response is Response.CONFLICT:
        return Decision(Verdict.CONFLICT, verdict.why, verdict.reason)
    if verdict.response is Response.VALIDATE:
        # A new attempt plans, and with it validates, on the table as it is now.
        return Decision(Verdict.REPLAN, verdict.why)
    if needs_vectors and not work.writes_vectors:
        # A plan may precede the commit that enables them.
        return Decision(Verdict.CONFLICT, _OFF, Reason.DELETION_VECTORS_DISABLED)
    return None


def require_vectors_or_edits(
    table: Table, snapshot: Snapshot, resource: str, field: str = "spec.tableRef"
) -> None:
    """Check that rows of live files may be deleted: by deletion vectors, or, unless the LakeTable
    forbids them, by edits.

    Raises: DeletionVectorsDisabled.
    """
    if not table.vectors_only or table.will_write_vectors(snapshot):
        return
    raise DeletionVectorsDisabled(
        _OFF,
        resource=resource,
        field=field,
        found="delta.enableDeletionVectors is not true, and vectors: Only",
        expected="a table with deletion vectors, or vectors: Auto",
        remedy=f"{ENABLE_VECTORS.in_resource} (old readers may then refuse the table), or "
        "vectors: Auto there, which rewrites files instead",
    )


_OFF = "deletion vectors are off on this table, and its LakeTable allows nothing else"
