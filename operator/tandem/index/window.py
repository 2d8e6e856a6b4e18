"""The entries of one table over a window of versions, and a view of one of them.

Pure: fed with commits that were read elsewhere. A view stays what it is while later commits come:
it names a version, and entries that come or go later are not of that version.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tandem.delta import protocol
from tandem.delta import schema as schema_
from tandem.delta.actions import AddFile, Commit, Metadata, Protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.files import EMPTY_REPLAY, fold
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.properties import files_kept_ms
from tandem.distinct import BoolArray, IntArray
from tandem.errors import InvalidSpec, LogGap, UnknownSegment, VersionNotFound, closest_name
from tandem.index.entries import FOREVER, UNKNOWN_ROWS, Entries, exact_sum
from tandem.index.statistics import ColumnName
from tandem.statements.tree import Expr
from tandem.timeline.names import Hold, hold_at, path_of

# How long a version stays readable, and holds, by which a reader keeps it longer.
#
# A commit removes no file; cleaning does, once the file was removed for as long as the table keeps
# it. A hold is a file beside the table that cleaning of Tandem respects until its end. `VACUUM` of
# other engines does not know it.


_AT_ONCE = 500
"""Commits in memory at a time."""
_MARGIN_MS = 60_000
"""Clocks may differ, and requests take time: a version this close to its end is not held."""


def _now_ms() -> int:
    return int(time.time() * 1000)


class Holds:
    """Places holds on the versions of a table. Thread-safe.

    Args:
        kept_ms: how long its LakeTable keeps removed files (`retention.files`), in milliseconds;
            None without a LakeTable, or without that field.
        now_ms: Unix milliseconds.
    """

    def __init__(
        self, log: DeltaLog, *, kept_ms: int | None = None, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        self._log, self._kept_ms, self._now_ms = log, kept_ms, now_ms
        self._placed: dict[tuple[str, int], Hold] = {}

    def readable_until_ms(self, head: Head, window: Window | None = None) -> int:
        """Until when cleaning leaves a version whole, if it is not held: Unix milliseconds, at
        least. The past if that cannot be known.

        Args:
            window: knows the version and all later ones; without it the log is read.
        Raises: StorageError, CorruptLog.
        """
        if window is not None and window.first <= head.version <= window.latest:
            removed_ms = window.first_removal_ms(head.version)
        else:
            removed_ms = self._first_removal_ms(head.version)
        try:
            return (self._now_ms() if removed_ms is None else removed_ms) + self._kept(head)
        except ValueError:
            return 0

    def place(self, head: Head, seconds: int) -> Hold:
        """Hold a version. It is held in fact on return. Holds last half as long again, so that
        many callers need few.

        Args:
            seconds: from now, at least; `names.LONGEST_S` at most.
        Raises: VersionNotFound if files of it may be gone already; InvalidSpec if a property of the
            table is invalid; AccessDenied, StorageError.
        """
        try:
            kept_ms = self._kept(head)
        except ValueError as error:
            raise InvalidSpec(
                "a property of the table is invalid",
                resource=head.location,
                field="delta.deletedFileRetentionDuration",
                found=str(error),
                expected="an interval, as in interval 7 days",
            ) from error
        key = head.metadata.id, head.version
        known = self._placed.get(key)
        if known is not None and known.end_ms >= self._now_ms() + seconds * 1000:
            return known
        store = self._log.store
        path = path_of(head.version, seconds + seconds // 2, secrets.token_hex(8))
        store.put(path, b"")
        # Only now: whatever is removed later is removed after the hold was there.
        removed_ms = self._first_removal_ms(head.version)
        least_ms = self._now_ms() + _MARGIN_MS
        if removed_ms is not None and removed_ms + kept_ms < least_ms:
            store.delete([path])
            raise VersionNotFound(
                f"version {head.version} cannot be held any more",
                resource=head.location,
                field="hold",
                found="files of it were removed longer ago than the table keeps them, or soon are",
                expected="a version within the retention of files",
                remedy="Hold the newest version, or raise retention.files of the LakeTable",
            )
        hold = hold_at(path, store.head(path).modified_ms)
        assert hold is not None
        now_ms = self._now_ms()
        live = {at: each for at, each in self._placed.items() if each.end_ms > now_ms}
        self._placed = {**live, key: hold}
        return hold

    def _kept(self, head: Head) -> int:
        return files_kept_ms(head.metadata.configuration, self._kept_ms)

    def _first_removal_ms(self, version: int) -> int | None:
        """When a file was first removed after a version, by the time of the commit, which is never
        later than what cleaning counts from; long ago if the log does not say any more."""
        try:
            removals = (each for each in self._after(version) if any(each.removes))
            return next((each.timestamp_ms for each in removals), None)
        except LogGap:
            return 0

    def _after(self, version: int) -> Iterator[Commit]:
        latest = self._log.latest_version(version)
        for first in range(version + 1, latest + 1, _AT_ONCE):
            yield from self._log.commits(first, min(first + _AT_ONCE - 1, latest))


_LATELY = 256
"""Conditions of which it is known what they chose."""
_LATELY_BYTES = 8 << 20
"""Bytes of that at most."""
_SMALL_PARTS = 8
"""Parts of few entries, as each commit adds one, before they are merged into one."""
_SMALL = 16_384
"""Entries of a part that is merged with others."""


@dataclass(frozen=True)
class Head:
    """What a version says beside its files. `timestamp_ms` in Unix milliseconds."""

    location: str
    version: int
    timestamp_ms: int
    metadata: Metadata
    protocol: Protocol

    @classmethod
    def of(cls, snapshot: Snapshot) -> Head:
        return cls(
            snapshot.location,
            snapshot.version,
            snapshot.timestamp_ms,
            snapshot.metadata,
            snapshot.protocol,
        )

    @cached_property
    def schema(self) -> schema_.StructType:
        """Raises: CorruptLog."""
        return schema_.parse(self.metadata.schema_string, resource=self.location)

    @cached_property
    def readable(self) -> bool:
        """Whether rows of the version can be read. Raises: UnsupportedFeature if not."""
        protocol.check(
            self.protocol, self.metadata, protocol.OperationKind.READ, resource=self.location
        )
        return True


@dataclass(frozen=True)
class Chosen:
    """Some entries of one part: their indexes, ascending, and whether a condition is true on all
    rows of each."""

    entries: Entries
    rows: IntArray
    certain: BoolArray

    def only(self, keep: BoolArray) -> Chosen:
        """Those where `keep` is true."""
        return Chosen(self.entries, self.rows[keep], self.certain[keep])


class Lately:
    """What conditions chose lately: many askers have the same question, and a version does not
    change. Conditions are known by identity. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[int, int], tuple[Expr, list[Chosen]]] = {}
        self.nbytes = 0

    def get(self, version: int, where: Expr) -> list[Chosen] | None:
        """None if that is not known."""
        with self._lock:
            found = self._found.get((version, id(where)))
        return None if found is None else found[1]

    def put(self, version: int, where: Expr, chosen: list[Chosen]) -> None:
        size = sum(part.rows.nbytes + part.certain.nbytes for part in chosen)
        if size > _LATELY_BYTES // 8:
            return
        with self._lock:
            if len(self._found) >= _LATELY or self.nbytes + size > _LATELY_BYTES:
                self._found, self.nbytes = {}, 0
            # The condition is kept with it: no other one has its identity meanwhile.
            self._found[version, id(where)] = where, chosen
            self.nbytes += size


@dataclass(frozen=True)
class View:
    """One version of a table.

    Attributes:
        totals: the live rows of versions, as far as they are known.
        lately: what conditions chose lately.
    """

    head: Head
    parts: tuple[Entries, ...]
    totals: dict[int, int | None] = field(default_factory=dict, compare=False, repr=False)
    lately: Lately = field(default_factory=lambda: Lately(), compare=False, repr=False)

    @property
    def total(self) -> int | None:
        """The live rows, None if the log does not say them."""
        if self.version not in self.totals:
            self.totals[self.version] = _total(self.parts, self.version)
        return self.totals[self.version]

    @property
    def version(self) -> int:
        return self.head.version

    def chosen(self, where: Expr | None = None, segments: Collection[str] = ()) -> list[Chosen]:
        """The entries on whose rows a condition may be true.

        Args:
            segments: only files of these; empty for all.
        Raises: UnknownSegment.
        """
        if where is None or segments:
            return self._chosen(where, segments)
        known = self.lately.get(self.version, where)
        if known is None:
            known = self._chosen(where, ())
            self.lately.put(self.version, where, known)
        return known

    def _chosen(self, where: Expr | None, segments: Collection[str]) -> list[Chosen]:
        schema, partitions = self.head.schema, self.head.metadata.partition_columns
        found = []
        for entries, mine in zip(self.parts, self._of_segments(segments), strict=True):
            rows = entries.survivors(where, self.version, schema, partitions)
            if mine is not None:
                rows = rows[mine[rows]]
            if where is None:
                certain = np.ones(len(rows), bool)
            else:
                certain = entries.certain(where, rows, schema, partitions)
            found.append(Chosen(entries, rows, certain))
        return found

    def _of_segments(self, names: Collection[str]) -> Sequence[BoolArray | None]:
        if not names:
            return [None] * len(self.parts)
        masks = [
            entries.of_segments(names) & entries.visible(self.version) for entries in self.parts
        ]
        pairs = zip(self.parts, masks, strict=True)
        there = set[str]().union(*(entries.segments_at(np.flatnonzero(m)) for entries, m in pairs))
        missing = sorted(set(names) - there)
        if missing:
            live = set[str]().union(
                *(b.segments_at(np.flatnonzero(b.visible(self.version))) for b in self.parts)
            )
            meant = closest_name(missing[0], sorted(live))
            raise UnknownSegment(
                f"version {self.version} has no such segment",
                resource=self.head.location,
                field="segments",
                found=", ".join(missing[:5]),
                expected=f"perhaps {meant}" if meant else "segments of this version",
                remedy="A compaction gives its rows to a new segment: `tandem table segments` "
                "lists those that are live, and with --all what has become of the others",
            )
        return masks


class Window:
    """The versions of a table that can be viewed, beginning with that of a snapshot. Thread-safe.

    A version that was not seen, because it lies before `first`, has to be loaded by itself.
    """

    def __init__(self, snapshot: Snapshot, entries: Entries | None = None) -> None:
        self._lock = threading.Lock()
        self._heads = [Head.of(snapshot)]
        if entries is None:
            entries = Entries.live_since(snapshot.files, snapshot.version)
        self._parts: tuple[Entries, ...] = (entries,)
        self._totals: dict[int, int | None] = {}
        self._lately = Lately()
        self.changes = 0
        """Files that came or went since it was made."""

    @property
    def first(self) -> int:
        return self._heads[0].version

    @property
    def latest(self) -> int:
        return self._heads[-1].version

    @property
    def nbytes(self) -> int:
        return self._lately.nbytes + sum(entries.nbytes for entries in self._parts)

    def __len__(self) -> int:
        """Entries that are held, of all versions."""
        return sum(map(len, self._parts))

    @property
    def decoded(self) -> set[ColumnName]:
        """The columns by statistics that are decoded in all large parts."""
        large = [part.statistics.decoded for part in self._parts if len(part) >= _SMALL]
        return set(large[0]).intersection(*large) if large else set()

    def view(self, version: int | None = None) -> View:
        """A version, the latest by default. Raises: VersionNotFound if it is not in the window."""
        with self._lock:
            heads, parts = self._heads, self._parts
            version = heads[-1].version if version is None else version
            if not heads[0].version <= version <= heads[-1].version:
                raise VersionNotFound(
                    f"there is no version {version} here",
                    resource=heads[-1].location,
                    field="version",
                    found=version,
                    expected=f"a version from {heads[0].version} to {heads[-1].version}",
                )
            head = heads[version - heads[0].version]
            return View(head, parts, self._totals, self._lately)

    def first_removal_ms(self, version: int) -> int | None:
        """When a file of a version was first removed, by the time of the commit (Unix
        milliseconds); None if all are live."""
        with self._lock:
            heads, parts = self._heads, self._parts
            if version == heads[-1].version:
                return None
            gone = min((entries.first_removal(version) for entries in parts), default=FOREVER)
            return None if gone == FOREVER else heads[gone - heads[0].version].timestamp_ms

    def follow(self, commits: Iterable[Commit]) -> None:
        """Add the versions after the latest one, oldest first."""
        for commit in commits:
            self._follow(commit)

    def forget(self, before: int) -> None:
        """View no version before this one any more, and drop entries that only they had, once these
        are half of all."""
        with self._lock:
            keep = max(0, min(before - self._heads[0].version, len(self._heads) - 1))
            self._heads = self._heads[keep:]
            first = self._heads[0].version
            # Views add to it meanwhile.
            known = list(self._totals.items())
            self._totals = {version: total for version, total in known if version >= first}
            kept = tuple(
                entries.keep(entries.died > first) if entries.mostly_gone(first) else entries
                for entries in self._parts
            )
            if any(new is not old for new, old in zip(kept, self._parts, strict=True)):
                self._parts, self._lately = kept, Lately()

    def _follow(self, commit: Commit) -> None:
        with self._lock:
            last = self._heads[-1]
            if commit.version != last.version + 1:
                raise ValueError(f"commit {commit.version} does not follow {last.version}")
            state = fold(EMPTY_REPLAY, [commit])
            # A file that is added again is another entry: its statistics may differ.
            gone = set(state.files)
            self.changes += len(gone)
            total = self._totals.get(last.version)
            for entries in reversed(self._parts):
                if not gone:
                    break
                total = _plus(total, -1, entries, entries.remove(gone, commit.version))
            adds = [action for action in state.files.values() if isinstance(action, AddFile)]
            if adds:
                new = Entries.added(adds, commit.version)
                total = _plus(total, 1, new, np.arange(len(new)))
                self._parts = _merged((*self._parts, new))
            if total is not None:
                self._totals[commit.version] = total
            head = Head(
                last.location,
                commit.version,
                commit.timestamp_ms,
                state.metadata or last.metadata,
                state.protocol or last.protocol,
            )
            self._heads = [*self._heads, head]
            # It may hold entries that are merged now; a view that is held adds to its own.
            self._lately = Lately()


def _total(parts: Sequence[Entries], version: int) -> int | None:
    """The live rows of a version; None if a file's are unknown."""
    total: int | None = 0
    for entries in parts:
        total = _plus(total, 1, entries, np.flatnonzero(entries.visible(version)))
    return total


def _plus(total: int | None, sign: int, entries: Entries, rows: IntArray) -> int | None:
    if total is None or not len(rows):
        return total
    live = entries.live(rows)
    if (live == UNKNOWN_ROWS).any():
        return None
    return total + sign * exact_sum(live)


def _merged(parts: tuple[Entries, ...]) -> tuple[Entries, ...]:
    """With the small ones at the end as one, once there are too many."""
    first = len(parts)
    while first > 1 and len(parts[first - 1]) < _SMALL:
        first -= 1
    small = parts[first:]
    if len(small) <= _SMALL_PARTS:
        return parts
    return (*parts[:first], Entries.together(small))
