"""Values: resources, modes, requests and entries. Pure data, serializable as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tandem.spec.common import Mode as Mode  # each kind has its own


class EntryState(StrEnum):
    WAITING = "waiting"
    HELD = "held"
    COMMITTING = "committing"


class LockInterval(NamedTuple):
    """Half-open `[start, end)` of comparable text (an ISO instant); "" leaves a side open."""

    start: str = ""
    end: str = ""

    def overlaps(self, other: LockInterval) -> bool:
        return (not self.end or not other.start or other.start < self.end) and (
            not other.end or not self.start or self.start < other.end
        )


EVERYTHING = LockInterval()


class LockResource(NamedTuple):
    """A segment, or (without a name) an interval of the table.

    A segment of unknown interval may be anywhere: it overlaps every interval, but never another
    segment.
    """

    segment: str = ""
    interval: LockInterval = EVERYTHING

    def overlaps(self, other: LockResource) -> bool:
        if self.segment and other.segment:
            return self.segment == other.segment
        return self.interval.overlaps(other.interval)


WHOLE_TABLE = LockResource()


def segment(name: str, interval: LockInterval = EVERYTHING) -> LockResource:
    """The lock on one segment."""
    return LockResource(segment=name, interval=interval)


class ResourceBounds(NamedTuple):
    """A summary of the resources of a request, for fast comparisons."""

    first: str
    """The least of the segments as text, "" if there is none; `last` is the greatest."""
    last: str
    wide: tuple[LockResource, ...]
    """The resources without a name."""


@dataclass(frozen=True, slots=True)
class LockRequest:
    """What one operation requests on one table.

    `operation` makes requests idempotent: the same operation never holds two entries. `owner` is
    a nonce of the requesting process: a later process of the same operation takes the entry over,
    and the earlier one, perhaps a zombie, can then neither commit nor release under it. `display`
    is the name for messages (`TableCompaction/nightly`). With `row_concurrency` False, two updates
    of one segment exclude each other (`Segment` concurrency).
    """

    table: str
    operation: str
    mode: Mode
    resources: tuple[LockResource, ...]
    owner: str = ""
    priority: int = 0
    display: str = ""
    row_concurrency: bool = True
    _names: list[str] | None = field(default=None, init=False, repr=False, compare=False)
    _span: ResourceBounds | None = field(default=None, init=False, repr=False, compare=False)
    _segments: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """The segments in their order; empty if any resource is more than a segment's name.
        Cached, like the next ones: a plan may name thousands."""
        if self._names is None:
            names = [name for name, interval in self.resources if name and interval is EVERYTHING]
            if len(names) < len(self.resources):
                names = []
            object.__setattr__(self, "_names", names)
            return names
        return self._names

    @property
    def span(self) -> ResourceBounds:
        if self._span is None:
            names = self.names or [r.segment for r in self.resources if r.segment]
            wide = () if self.names else tuple(r for r in self.resources if not r.segment)
            found = ResourceBounds(min(names, default=""), max(names, default=""), wide)
            object.__setattr__(self, "_span", found)
            return found
        return self._span

    @property
    def segments(self) -> frozenset[str]:
        """All segments that are named."""
        if self._segments is None:
            found = frozenset(self.names or [r.segment for r in self.resources if r.segment])
            object.__setattr__(self, "_segments", found)
            return found
        return self._segments


@dataclass(frozen=True, slots=True)
class LockEntry:
    """One operation's lock as it is stored. `order` is the creation order (in etcd, the create
    revision), which makes waiting fair; `token` is the fencing token of the grant, 0 while it
    waits; `revoked_by` names the operation of higher priority that took the resources over."""

    request: LockRequest
    state: EntryState
    order: int
    token: int = 0
    revoked_by: str = ""


@dataclass(frozen=True, slots=True)
class Granted:
    """`token` increases with every grant on a table; it is put into the commit for diagnosis."""

    token: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queued behind `blockers`: pairs of (holder, resource) for messages."""

    blockers: tuple[tuple[str, str], ...]


class CommitLease(StrEnum):
    """The answer to "may I commit now?"."""

    ENTERED = "Entered"
    REVOKED = "Revoked"
    LOST = "Lost"
