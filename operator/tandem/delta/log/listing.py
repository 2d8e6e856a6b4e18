"""Lists `_delta_log`: commits and complete checkpoints, and the `_last_checkpoint` hint.

A bad hint (absent, truncated, stale, or of a checkpoint that is gone) only costs a longer listing.

Names of the objects in `_delta_log` are pure text (protocol, "File Types" and "Checkpoint Naming
Scheme"). Version numbers are zero-padded to 20 digits, so the lexicographic order of a listing is
the order of versions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.errors import ObjectNotFound
from tandem.storage.store import ObjectInfo, Store

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
SIDECARS = f"{LOG}/_sidecars"
STAGED = f"{LOG}/_staged_commits"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKSUM = re.compile(r"(\d{20})\.crc")
_STAGED = re.compile(r"(\d{20})\.[0-9A-Fa-f-]{36}\.json")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_V2 = re.compile(r"(\d{20})\.checkpoint\.([0-9A-Fa-f-]{36})\.(json|parquet)")


class LogFileKind(StrEnum):
    COMMIT = "commit"
    STAGED = "staged commit"
    CHECKSUM = "checksum"
    COMPACTED = "compacted"
    CLASSIC = "classic checkpoint"
    PART = "part of a checkpoint"
    V2 = "V2 checkpoint"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A parsed name. `part` and `parts` are set for parts of a multi-part checkpoint (from 1); for
    a compacted file `version` is its first and `end` its last version."""

    kind: LogFileKind
    version: int
    part: int = 0
    parts: int = 0
    end: int = 0


def parse(name: str) -> LogFile | None:
    """Parse a file name within `_delta_log`; None if it is not one of the log's."""
    if match := _COMMIT.fullmatch(name):
        return LogFile(LogFileKind.COMMIT, int(match[1]))
    if match := _STAGED.fullmatch(name):
        return LogFile(LogFileKind.STAGED, int(match[1]))
    if match := _CLASSIC.fullmatch(name):
        return LogFile(LogFileKind.CLASSIC, int(match[1]))
    if match := _PART.fullmatch(name):
        return LogFile(LogFileKind.PART, int(match[1]), int(match[2]), int(match[3]))
    if match := _V2.fullmatch(name):
        return LogFile(LogFileKind.V2, int(match[1]))
    if match := _COMPACTED.fullmatch(name):
        return LogFile(LogFileKind.COMPACTED, int(match[1]), end=int(match[2]))
    if match := _CHECKSUM.fullmatch(name):
        return LogFile(LogFileKind.CHECKSUM, int(match[1]))
    return None


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def listing_start(version: int) -> str:
    """A path that sorts just before every object of `version`."""
    return f"{LOG}/{version:020d}"


_HINT_BYTES = 1 << 20
"""Of a hint that is read: other writers add the schema of the checkpoint, or its sidecars."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: one file, or all parts of a multi-part one in order."""

    version: int
    kind: LogFileKind
    files: tuple[ObjectInfo, ...]

    @property
    def _rank(self) -> tuple[int, int]:
        # Of several at one version the one that was written atomically is preferred.
        order = (LogFileKind.PART, LogFileKind.CLASSIC, LogFileKind.V2)
        return (self.version, order.index(self.kind))


@dataclass(frozen=True)
class LogPosition:
    """The commit file that a snapshot ends with, to detect a log that was replaced meanwhile. None
    if that file is gone and only a checkpoint is left."""

    modified_ms: int
    size: int


VOUCHED = LogPosition(0, 0)
"""Of every version of a table in a catalog. The catalog replaces none: a table that is made again
has another uuid, and its commits keep neither time nor path when they are published."""


@dataclass(frozen=True, slots=True)
class Listing:
    """`start` is the version that the listing began at: earlier ones are unknown. `checkpoints`
    are the complete ones, the most useful last. `vouched` is the latest version as the table's
    catalog has it; None if the listing says what there is."""

    start: int
    commits: Mapping[int, ObjectInfo] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    vouched: int | None = None

    @property
    def latest(self) -> int:
        """The newest version, -1 if there is none."""
        newest = self.newest_commit
        return max(newest, self.checkpoints[-1].version if self.checkpoints else -1)

    @property
    def newest_commit(self) -> int:
        """The newest version that has a commit, -1 if there is none."""
        return max(self.commits, default=-1) if self.vouched is None else self.vouched

    def position(self, version: int) -> LogPosition | None:
        """That of a listed version; None if its commit is gone."""
        if self.vouched is not None:
            return VOUCHED
        found = self.commits.get(version)
        return None if found is None else LogPosition(found.modified_ms, found.size)

    def continues(self, version: int, position: LogPosition | None) -> bool:
        """Whether this is still the log of a version that was at this position."""
        here = self.position(version)
        return here is not None and here == position

    @property
    def earliest(self) -> int:
        """The oldest version that can be rebuilt from the listed objects, -1 if none can.

        Only versions from which the commits are complete up to the latest count."""
        first = self.latest
        while first in self.commits:
            first -= 1
        bases = [c.version for c in self.checkpoints if c.version >= first]
        if first < 0 <= self.latest:
            bases.append(0)
        return min(bases, default=-1)

    def missing(self, first: int, last: int) -> int | None:
        """The first version in [first, last] without a commit file, None if there is none."""
        return next((v for v in range(first, last + 1) if v not in self.commits), None)


def read_log(store: Store, start: int = 0) -> Listing:
    """List `_delta_log` from version `start`. An absent folder is an empty listing."""
    commits: dict[int, ObjectInfo] = {}
    checkpoints: list[Checkpoint] = []
    parts: dict[tuple[int, int], dict[int, ObjectInfo]] = {}
    skip = len(LOG) + 1
    after = listing_start(start) if start else ""
    try:
        for meta in store.list(LOG, start_after=after):
            name = meta.path[skip:]
            if name[:1] > "9":
                break  # `_last_checkpoint`, `_sidecars/…`: objects with a version sort before these
            file = parse(name)
            if file is None:
                continue
            if file.kind is LogFileKind.COMMIT:
                commits[file.version] = meta
            elif file.kind in (LogFileKind.CLASSIC, LogFileKind.V2):
                checkpoints.append(Checkpoint(file.version, file.kind, (meta,)))
            elif file.kind is LogFileKind.PART:
                parts.setdefault((file.version, file.parts), {})[file.part] = meta
    except ObjectNotFound:
        return Listing(start)
    for (version, count), found in parts.items():
        # A reader must ignore multi-part checkpoints with missing parts.
        if sorted(found) == list(range(1, count + 1)):
            files = tuple(found[i] for i in range(1, count + 1))
            checkpoints.append(Checkpoint(version, LogFileKind.PART, files))
    checkpoints.sort(key=lambda c: (*c._rank, c.files[0].path))
    return Listing(start, commits, tuple(checkpoints))


def read_hint(store: Store) -> int | None:
    """The version in `_last_checkpoint`, None if the file is absent, invalid or huge."""
    try:
        text = store.get_range(LAST_CHECKPOINT, 0, _HINT_BYTES + 1)
        if len(text) > _HINT_BYTES:
            return None
        body = json.loads(text)
        version = body["version"]
    except (ObjectNotFound, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, int) and version >= 0 else None
