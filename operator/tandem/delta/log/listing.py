"""Lists `_delta_log`: commits and complete checkpoints, and the `_last_checkpoint` hint.

A bad hint (absent, truncated, stale, or of a checkpoint that is gone) only costs a longer
listing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.delta.log import names
from tandem.delta.log.names import LogFileKind
from tandem.errors import ObjectNotFound
from tandem.storage.store import ObjectInfo, Store

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


@dataclass(frozen=True, slots=True)
class Listing:
    """`start` is the version that the listing began at: earlier ones are unknown. `checkpoints`
    are the complete ones, the most useful last."""

    start: int
    commits: Mapping[int, ObjectInfo] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def latest(self) -> int:
        """The newest version, -1 if there is none."""
        newest = max(self.commits, default=-1)
        return max(newest, self.checkpoints[-1].version if self.checkpoints else -1)

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
    skip = len(names.LOG) + 1
    after = names.listing_start(start) if start else ""
    try:
        for meta in store.list(names.LOG, start_after=after):
            name = meta.path[skip:]
            if name[:1] > "9":
                break  # `_last_checkpoint`, `_sidecars/…`: objects with a version sort before these
            file = names.parse(name)
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
        text = store.get_range(names.LAST_CHECKPOINT, 0, _HINT_BYTES + 1)
        if len(text) > _HINT_BYTES:
            return None
        body = json.loads(text)
        version = body["version"]
    except (ObjectNotFound, ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, int) and version >= 0 else None
