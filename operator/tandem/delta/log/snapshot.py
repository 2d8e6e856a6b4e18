"""The state of a table at one version: columnar files, and the few other actions.

Immutable; made by `tandem.delta.log.delta_log`. Nothing here does I/O.

Also actions of our commits: the `commitInfo` that each begins with, and the `remove` of a live
file. `DeltaLog.commit_after` and `DeltaLog.put_commit` publish a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tandem import __version__
from tandem.delta import schema as schema_
from tandem.delta import stats as stats_
from tandem.delta.actions import (
    BASE_ROW_ID,
    ROW_COMMIT_VERSION,
    AddFile,
    Commit,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from tandem.delta.log import files as files_
from tandem.delta.log.files import Replay, fold
from tandem.delta.log.listing import LogPosition
from tandem.delta.protocol import keeps_row_ids
from tandem.errors import CorruptLog
from tandem.json_types import Json

_T = TypeVar("_T")
_FEW_FILES = 10_000
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"


@dataclass(frozen=True)
class FilesChange:
    """How the files of a snapshot differ from those of the one that it was advanced from.

    Attributes:
        since, position: version and position of that one.
        paths: logged paths of all files that were added, removed or changed.
    """

    since: int
    position: LogPosition | None
    paths: frozenset[str]

    def follows(self, snapshot: Snapshot) -> bool:
        """Whether it is what changed since a snapshot: not another one of the same version, after
        the log was replaced."""
        same = (self.since, self.position) == (snapshot.version, snapshot.position)
        return same and self.position is not None


@dataclass(frozen=True)
class Snapshot:
    """A table's state at `version`.

    `files` has one row per live file (columns: `tandem.delta.log.files.SCHEMA`), in no particular
    order. `timestamp_ms` is the version's time in Unix milliseconds: its in-commit timestamp if
    the table has them, otherwise the commit file's modification time. `info` is the commitInfo of
    this version, if its commit file was read. `change` is what differs from the snapshot that this
    one was advanced from; None if it was loaded whole.
    """

    location: str
    version: int
    timestamp_ms: int
    metadata: Metadata
    protocol: Protocol
    txns: Mapping[str, Txn]
    domains: Mapping[str, DomainMetadata]
    files: pa.Table
    info: CommitInfo | None = None
    position: LogPosition | None = field(default=None, compare=False)
    checkpoint_version: int | None = field(default=None, compare=False)
    change: FilesChange | None = field(default=None, compare=False, repr=False)

    @cached_property
    def schema(self) -> schema_.StructType:
        """The table's schema, parsed. Raises: CorruptLog."""
        return schema_.parse(self.metadata.schema_string, resource=self.location)

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return self.metadata.partition_columns

    @property
    def configuration(self) -> Mapping[str, str]:
        return self.metadata.configuration

    @property
    def num_files(self) -> int:
        return int(self.files.num_rows)

    @cached_property
    def size_bytes(self) -> int:
        return int(pc.sum(self.files["size"]).as_py() or 0)

    @cached_property
    def num_records(self) -> pa.ChunkedArray:
        """int64, aligned with `files`: physical rows of each file by its statistics, null if they
        are absent."""
        return stats_.num_records(self.files["stats"])

    @cached_property
    def num_deleted(self) -> pa.ChunkedArray:
        """int64, aligned with `files`: rows that the file's deletion vector hides; 0 without."""
        cardinality = pc.struct_field(self.files["deletion_vector"], "cardinality")
        return pc.fill_null(cardinality, 0)

    @cached_property
    def _derived(self) -> dict[Callable[[pa.Table], Any], Any]:
        return {}

    def derived(self, of: Callable[[pa.Table], _T]) -> _T:
        """`of(files)`, kept with a snapshot of few files: to plan and to commit need the same."""
        if self.num_files > _FEW_FILES:
            return of(self.files)
        if of not in self._derived:
            self._derived[of] = of(self.files)
        found: _T = self._derived[of]
        return found

    def file(self, logged_path: str) -> AddFile | None:
        """The live file at a logged path."""
        return self.files_by_path([logged_path]).get(logged_path)

    def files_by_path(self, paths: Iterable[str]) -> dict[str, AddFile]:
        """The live ones of these logged paths, in one pass over the column.

        Raises: CorruptLog if one of them is live twice.
        """
        found = files_.with_paths(self.files, paths)
        self._require_once(found)
        return {add.logged_path: add for add in files_.to_adds(found)}

    def require_unique_paths(self) -> None:
        """A file may be live only once (protocol, "Add File and Remove File"). A reader can show
        such a table, but a writer would change one of the two and not the other.

        Raises: CorruptLog.
        """
        self._require_once(self.files)

    def _require_once(self, files: pa.Table) -> None:
        if pc.count_distinct(files["path"]).as_py() == files.num_rows:
            return
        counts = pc.value_counts(files["path"].combine_chunks())
        twice = next(entry["values"] for entry in counts.to_pylist() if entry["counts"] > 1)
        raise CorruptLog(
            "a data file is live more than once, with different deletion vectors",
            resource=self.location,
            field=twice,
            found=f"several add actions as of version {self.version}",
            expected="a remove action for the old vector with each add of a new one",
            remedy="A writer has damaged the log: restore the version before that",
        )

    def adds(self) -> Iterator[AddFile]:
        """All live files, built a batch at a time: for small tables, or for streaming."""
        return files_.to_adds(self.files)

    def replay(self) -> Replay:
        """The state without its files, as the start of a replay of further commits."""
        return Replay(self.protocol, self.metadata, self.txns, self.domains)

    def advance(self, commits: Iterable[Commit], position: LogPosition | None) -> Snapshot:
        """This state followed by the commits, which must be the versions right after it."""
        later = list(commits)
        if not later:
            return self
        expected = list(range(self.version + 1, self.version + 1 + len(later)))
        if [c.version for c in later] != expected:
            raise ValueError(f"commits {[c.version for c in later]} do not follow {self.version}")
        state = fold(self.replay(), later)
        assert state.metadata is not None
        assert state.protocol is not None
        kept = files_.without_keys(self.files, state.files)
        added = files_.from_adds(list(state.live.values()))
        last = later[-1]
        return Snapshot(
            location=self.location,
            version=last.version,
            timestamp_ms=last.timestamp_ms,
            metadata=state.metadata,
            protocol=state.protocol,
            txns=state.txns,
            domains=state.live_domains,
            files=files_.combine([kept, added]),
            info=last.info,
            position=position,
            checkpoint_version=self.checkpoint_version,
            change=FilesChange(
                self.version, self.position, frozenset(path for path, _ in state.files)
            ),
        )


def in_commit_timestamps(metadata: Metadata) -> bool:
    return metadata.configuration.get(IN_COMMIT_TIMESTAMPS, "").lower() == "true"


ENGINE = f"tandem/{__version__}"


def commit_info(
    operation: str,
    parameters: Mapping[str, str],
    *,
    now_ms: int,
    previous: Snapshot | None,
    blind_append: bool,
    isolation: str = "WriteSerializable",
    metrics: Mapping[str, str] | None = None,
    tandem: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> CommitInfo:
    """The `commitInfo` of the commit that follows `previous` (None: it creates the table).

    Args:
        operation: Delta's standard name: OPTIMIZE, UPDATE, DELETE, WRITE, …
        parameters: as text, as engines show them in the history.
        now_ms: the time of the attempt, Unix milliseconds.
        blind_append: the commit only adds files, and the table was not read for it.
        tandem: our own facts (operation id, attempt, …), under the key `tandem`.
        tags: what other engines are to know of the commit.
    """
    body: Json = {}
    if previous is not None and in_commit_timestamps(previous.metadata):
        # Protocol, "Writer Requirements for In-Commit Timestamps": the larger of the two.
        body["inCommitTimestamp"] = max(now_ms, previous.timestamp_ms + 1)
    body |= {
        "timestamp": now_ms,
        "operation": operation,
        "operationParameters": dict(parameters),
        "isolationLevel": isolation,
        "isBlindAppend": blind_append,
        "engineInfo": ENGINE,
    }
    if previous is not None:
        body["readVersion"] = previous.version
        if keeps_row_ids(previous.protocol, previous.metadata):
            # Operations that would lose ids are refused.
            tags = {"delta.rowTracking.preserved": "true", **(tags or {})}
    if tags:
        body["tags"] = dict(tags)
    if metrics:
        body["operationMetrics"] = dict(metrics)
    if tandem:
        body["tandem"] = dict(tandem)
    return CommitInfo(body)


IDENTITY = ("path", BASE_ROW_ID, ROW_COMMIT_VERSION)
"""Fields of `AddFile.extra` that are of this file, and of no other that replaces it."""


def remove_of(add: AddFile, *, deletion_ms: int, data_change: bool) -> RemoveFile:
    """The `remove` of a live file: with its path as logged, deletion vector and row ids."""
    extra = {k: v for k, v in add.extra.items() if k in IDENTITY}
    if add.stats is not None:
        extra["stats"] = add.stats
    if add.tags:
        extra["tags"] = dict(add.tags)
    return RemoveFile(
        logged_path=add.logged_path,
        deletion_ms=deletion_ms,
        data_change=data_change,
        deletion_vector=add.deletion_vector,
        partition_values=dict(add.partition_values),
        size=add.size,
        extra=extra,
    )
