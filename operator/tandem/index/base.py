"""Bases of a table: the entries of a version with what was decoded of them, written down.

    _tandem/index/base/<version>-<hash>.base

A base is never needed: one that is gone, cannot be read or is not believed costs the time to read
the log. It continues the log of this table only if the commit of its version is still the file that
it was: size, time and beginning.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import structlog

from tandem.delta.actions import Commit, Metadata, Protocol
from tandem.delta.log import codec
from tandem.delta.log import files as files_
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import LogPosition
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import CorruptLog, FactsRefused, ObjectNotFound, StorageError
from tandem.index.entries import FOREVER, Entries
from tandem.index.packed import PREFIX, Form, PackedSection, count_in, flags, numbers, require_end
from tandem.index.statistics import UNKNOWN, ColumnName, HeldStatistics, PackedTexts
from tandem.index.window import View, Window
from tandem.pruning.bounds import (
    HeldBounds,
    NumberBounds,
    TextBounds,
    statistics_bounds,
    statistics_type,
)
from tandem.statements.types import SqlType, type_named
from tandem.storage.store import ObjectInfo

FOLDER: Final = "_tandem/index/base"
MOST_COMMITS: Final = 1_000
"""A base with more commits after it is not begun with: a checkpoint is nearer."""
_KEPT: Final = 2
"""Bases that are left, so that one that another process reads is not deleted meanwhile."""
_COMMIT_BYTES: Final = 65_536
"""Bytes of a commit that tell it from others: its provenance, and paths of files."""
_NAME: Final = re.compile(r"(\d{20})-[0-9a-f]{32}\.base")

_log = structlog.get_logger("tandem.index.base")


LIMIT: Final = 2 << 30
"""Bytes of a base at most, packed or not: some five million files."""
_MOST_RUN: Final = 256 << 20
"""Bytes of a run of texts."""

FORM: Final = Form(
    b"TNDMBASE",
    3,
    1 << 20,
    "a base is not believed",
    "The log is read instead. Files below _tandem/index can be deleted at any time",
)
BEGINNING: Final = PREFIX.size + FORM.most_header
"""Bytes that have the head of a base."""


@dataclass(frozen=True)
class BaseHead:
    """What a base says of its version.

    Attributes:
        timestamp_ms: of the version, Unix milliseconds.
        position: of its commit file.
        commit: a digest of the beginning of that file.
        files: so many.
    """

    version: int
    timestamp_ms: int
    position: LogPosition
    commit: str
    metadata: Metadata
    protocol: Protocol
    files: int


@dataclass(frozen=True)
class Base:
    """A version's files, as in `Snapshot.files` but without statistics, and these."""

    head: BaseHead
    files: pa.Table
    statistics: HeldStatistics


def pack(base: Base) -> bytes | None:
    """The persisted form; None if it would be too large."""
    held = [name for name in files_.SCHEMA.names if base.files[name].null_count < base.head.files]
    statistics, texts = base.statistics, base.statistics.packed
    columns = {
        (name, type_): column
        for (name, type_), column in statistics.decoded.items()
        if isinstance(column, NumberBounds | TextBounds) and type_named(_type_name(type_)) == type_
    }
    sections = [PackedSection.of(base.files[name]) for name in held]
    frames = pa.array([bytes(run.section.frame) for run in texts], pa.large_binary())
    sections.append(PackedSection.of(frames))
    sections.append(PackedSection.of(statistics.rows, statistics.tight))
    for column in columns.values():
        sections.append(PackedSection.of(*column.arrow(), column.some_null, column.some_value))
    if sum(section.size for section in sections) > LIMIT:
        return None
    head = base.head
    header = {
        "tableId": head.metadata.id,
        "version": head.version,
        "timestampMs": head.timestamp_ms,
        "commit": {
            "modifiedMs": head.position.modified_ms,
            "size": head.position.size,
            "sha256": head.commit,
        },
        "protocol": codec.encode_action(head.protocol)["protocol"],
        "metaData": codec.encode_action(head.metadata)["metaData"],
        "files": head.files,
        "held": held,
        "texts": [[run.count, run.section.size] for run in texts],
        "columns": [[name, _type_name(type_)] for name, type_ in columns],
    }
    data = FORM.pack(header, sections)
    header_size = PREFIX.unpack_from(data)[3]
    return data if header_size <= FORM.most_header else None


def head_of(data: bytes, *, resource: str = "base") -> BaseHead:
    """The head of a base by its beginning of `BEGINNING` bytes, or by all of it: as yet without a
    look at its checksum. Raises: FactsRefused."""
    header = FORM.header(data, resource)
    with FORM.content(resource):
        return _head(header)


def unpack(data: bytes, *, resource: str = "base", limit: int = LIMIT) -> Base:
    """Read a base back.

    Args:
        resource: names it in errors, usually by its path.
        limit: bytes at most, when it is not compressed.
    Raises: FactsRefused.
    """
    header, sections = FORM.unpack(data, resource, limit)
    with FORM.content(resource):
        head = _head(header)
        count = head.files
        columns: dict[str, pa.Array] = {}
        for name in header["held"]:
            type_ = files_.SCHEMA.field(name).type
            [columns[name]] = sections.popleft().opened([type_], count)
        if "path" not in columns or columns["path"].null_count or columns["size"].null_count:
            raise ValueError("a file without a path or a size")
        statistics = _statistics(header, sections, count)
        require_end(sections)
        files = [columns.get(field.name, pa.nulls(count, field.type)) for field in files_.SCHEMA]
        return Base(head, pa.table(files, schema=files_.SCHEMA), statistics)


def _head(header: Mapping[str, Any]) -> BaseHead:
    commit = header["commit"]
    metadata = codec.decode_action("metaData", header["metaData"], path="base")
    protocol = codec.decode_action("protocol", header["protocol"], path="base")
    if not isinstance(metadata, Metadata) or not isinstance(protocol, Protocol):
        raise ValueError("no metadata or no protocol")
    if metadata.id != header["tableId"] or type(commit["sha256"]) is not str:
        raise ValueError("the table id is not that of the metadata")
    position = LogPosition(count_in(commit["modifiedMs"]), count_in(commit["size"]))
    return BaseHead(
        count_in(header["version"]), count_in(header["timestampMs"]), position, commit["sha256"],
        metadata, protocol, count_in(header["files"]),
    )  # fmt: skip


def _statistics(
    header: Mapping[str, Any], sections: deque[PackedSection], count: int
) -> HeldStatistics:
    sizes = header["texts"]
    [frames] = sections.popleft().opened([pa.large_binary()], len(sizes))
    texts = [
        PackedTexts(count_in(number), PackedSection(frame.as_buffer(), count_in(size)))
        for frame, (number, size) in zip(frames, sizes, strict=True)
    ]
    if sum(map(len, texts)) != count or any(run.section.size > _MOST_RUN for run in texts):
        raise ValueError("texts that are not those of the files")
    for run in texts:
        run.texts()
    found, whole = sections.popleft().opened([pa.int64(), pa.bool_()], count)
    rows, tight = numbers(found), flags(whole)
    if (rows < UNKNOWN).any():
        raise ValueError("a number of rows that is none")
    columns: dict[ColumnName, HeldBounds | None] = {}
    for name, type_name in header["columns"]:
        type_ = type_named(str(type_name))
        form = statistics_type(type_)
        if form is None:
            raise ValueError(f"a column of {type_name} has no bounds")
        columns[str(name), type_] = _column(sections.popleft(), type_, form, count)
    return HeldStatistics(texts, rows=rows, tight=tight, columns=columns)


def _column(packed: PackedSection, type_: SqlType, form: pa.DataType, count: int) -> HeldBounds:
    bounds = pa.binary() if type_.name == "string" else _bounds_type(form)
    low, high, *nulls = packed.opened([bounds, bounds, pa.bool_(), pa.bool_()], count)
    return statistics_bounds(type_, low, high, *map(flags, nulls))


def _bounds_type(form: pa.DataType) -> pa.DataType:
    """The type of bounds of a column whose statistics are read as `form`."""
    if pa.types.is_floating(form):
        return pa.float64()
    return pa.int64()


def _type_name(type_: SqlType) -> str:
    if type_.name == "decimal":
        return f"decimal({type_.precision},{type_.scale})"
    return type_.name


# Which of the bases in a table's store to begin with, and when a new one is written.


LEAST_FILES: Final = 20_000
"""Of a table of fewer files no base is written: a checkpoint of it is read in a second."""
_CHANGED: Final = 10
"""A base is replaced when one in so many entries has changed."""
_REST_S: Final = 60.0
"""Bases are not written more often."""
_FAILED_S: Final = 600.0
"""After a failure none is tried for so many seconds."""


@dataclass(frozen=True)
class _Mark:
    """What the last base had: which version, the changes of the window then, and the columns."""

    version: int
    changes: int
    columns: frozenset[ColumnName]


class Bases:
    """The bases of the table of a log. Thread-safe.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, log: DeltaLog, *, now: Callable[[], float]) -> None:
        self._log, self._now = log, now
        self.not_believed: Counter[str] = Counter()
        """How many were not believed, by the field that was wrong."""
        self._wrong: set[str] = set()
        self._mark: _Mark | None = None
        self._not_before = -float("inf")
        self._writing = threading.Lock()

    def load(self) -> tuple[Window, LogPosition | None] | None:
        """The newest version by the newest base that the log continues and the commits after it;
        None if there is none."""
        self._mark = None
        for meta in reversed(self._list()):
            try:
                found = self._one(meta)
            except FactsRefused as error:
                self._not_believed(meta.path, error.field)
                if error.field != "version":  # that of a newer program is not ours to delete
                    self._wrong.add(meta.path)
            except (StorageError, CorruptLog) as error:
                # The log itself may be readable, by a checkpoint after a broken commit.
                _log.info("a base cannot be used now", path=meta.path, problem=str(error))
            else:
                if found is not None:
                    return self._window(*found)
        return None

    def due(self, window: Window) -> bool:
        """Whether a window is worth a new base."""
        if len(window) < LEAST_FILES or self._now() < self._not_before:
            return False
        mark = self._mark
        return (
            mark is None
            or _CHANGED * (window.changes - mark.changes) >= len(window)
            or 2 * (window.latest - mark.version) >= MOST_COMMITS
            or not window.decoded <= mark.columns
        )

    def write(self, window: Window, view: View, position: LogPosition | None) -> bool:
        """Write the base of a view, and delete those that it replaces, unless another thread does,
        or the log does not have the version's commit any more, or the table has outgrown `LIMIT`;
        returns whether it is there.

        Args:
            position: of the view's version.
        Raises: AccessDenied, StorageError.
        """
        if position is None or not self._writing.acquire(blocking=False):
            return False
        try:
            changes = window.changes
            self._not_before = self._now() + _FAILED_S
            base = self._base_of(view, position)
            data = None if base is None else pack(base)
            if base is None or data is None:
                return False
            self._put(base.head.version, data)
            self._mark = _Mark(view.version, changes, frozenset(base.statistics.decoded))
            self._not_before = self._now() + _REST_S
            return True
        finally:
            self._writing.release()

    def _list(self) -> list[ObjectInfo]:
        """Oldest version first."""
        try:
            found = list(self._log.store.list(FOLDER))
        except StorageError as error:
            _log.debug("bases cannot be listed", problem=str(error))
            return []
        return [meta for meta in found if _NAME.fullmatch(meta.path[len(FOLDER) + 1 :])]

    def _one(self, meta: ObjectInfo) -> tuple[Base, list[Commit], LogPosition | None] | None:
        """A base, the commits after it, oldest first, and the position of the last version; None if
        the log does not continue it. Raises: FactsRefused, StorageError, CorruptLog."""
        if meta.size > LIMIT:
            raise FactsRefused("a base is too large", resource=meta.path, field="size")
        store = self._log.store
        start = store.get_range(meta.path, 0, BEGINNING)
        head = head_of(start, resource=meta.path)
        later = self._log.later(head.version, head.position, most=MOST_COMMITS)
        if later is None or self._commit_digest(head.version) != head.commit:
            self._not_believed(meta.path, "commit")
            return None
        data = start if len(start) >= meta.size else store.get(meta.path)
        return unpack(data, resource=meta.path), *later

    def _window(
        self, base: Base, commits: Sequence[Commit], position: LogPosition | None
    ) -> tuple[Window, LogPosition | None]:
        head = base.head
        snapshot = Snapshot(
            location=self._log.store.location,
            version=head.version,
            timestamp_ms=head.timestamp_ms,
            metadata=head.metadata,
            protocol=head.protocol,
            txns={},
            domains={},
            files=base.files,
        )
        born, died = np.full(head.files, head.version), np.full(head.files, FOREVER)
        window = Window(snapshot, Entries(base.files, born, died, base.statistics))
        self._mark = _Mark(head.version, window.changes, frozenset(base.statistics.decoded))
        window.follow(commits)
        window.forget(window.latest)
        return window, position

    def _base_of(self, view: View, position: LogPosition) -> Base | None:
        if self._log.later(view.version, position, most=MOST_COMMITS) is None:
            return None
        try:
            digest = self._commit_digest(view.version)
        except ObjectNotFound:
            return None
        parts = [_live(entries, view.version) for entries in view.parts]
        files = pa.concat_tables([table for table, _ in parts])
        head = BaseHead(
            version=view.version,
            timestamp_ms=view.head.timestamp_ms,
            position=position,
            commit=digest,
            metadata=view.head.metadata,
            protocol=view.head.protocol,
            files=files.num_rows,
        )
        return Base(head, files, HeldStatistics.together([held for _, held in parts]))

    def _put(self, version: int, data: bytes) -> None:
        path = f"{FOLDER}/{version:020d}-{hashlib.sha256(data).hexdigest()[:32]}.base"
        self._log.store.put(path, data)
        others = [meta for meta in self._list() if meta.path != path]
        others.sort(key=lambda meta: meta.modified_ms)
        old = {meta.path for meta in others[: len(others) - _KEPT + 1]}
        self._log.store.delete(sorted(old | self._wrong - {path}))
        self._wrong.clear()

    def _commit_digest(self, version: int) -> str:
        """A digest of the beginning of a commit. Raises: ObjectNotFound, StorageError."""
        path = self._log.commit_log.path(version)
        if path is None:
            raise ObjectNotFound("no such version", resource=self._log.store.location)
        return hashlib.sha256(self._log.store.get_range(path, 0, _COMMIT_BYTES)).hexdigest()

    def _not_believed(self, path: str, field: str) -> None:
        self.not_believed[field] += 1
        _log.info("a base is not used", path=path, field=field)


def _live(entries: Entries, version: int) -> tuple[pa.Table, HeldStatistics]:
    visible = entries.visible(version)
    if visible.all():
        return entries.files, entries.statistics
    return entries.files.filter(pa.array(visible)), entries.statistics.keep(visible)
