"""Values: resources, modes, requests and entries. Pure data, serializable as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval
from tandem.spec.common import Mode as Mode  # each kind has its own


class EntryState(StrEnum):
    WAITING = "waiting"
    HELD = "held"
    COMMITTING = "committing"


MOST_INTERVALS = 64
"""So many intervals an entry has; of more, those with the smallest gaps are taken as one."""
MOST_NAMED = 1_000
"""An operation that can lock intervals instead names no more segments than this."""


class LockResource(NamedTuple):
    """A segment, or (without a name) an interval of the table: a part of what an entry locks."""

    segment: str = ""
    interval: TimeInterval = ALWAYS

    def __str__(self) -> str:
        """As messages and plans name it: `segment 7`, `interval 2013-03-02T00:00:00Z/…`."""
        if self.segment:
            return f"segment {self.segment}"
        return "the table" if self.interval == ALWAYS else f"interval {described(self.interval)}"


@dataclass(frozen=True, slots=True)
class LockResources:
    """What one entry locks: segments by name, or all that lies in intervals.

    `names` are the segments, each once; `intervals` is where they lie, all of time if that is
    unknown. Without names, `intervals` are locked whole. Two entries with names meet in a common
    name, all others where their intervals overlap: so an unknown time meets everything.

    Intervals are absolute (UTC, milliseconds): another granularity of the table changes no lock.
    There are at most `MOST_INTERVALS`. Fewer pieces hold more time, never less, so that an entry
    may meet too much, but overlooks nothing.
    """

    names: tuple[str, ...] = ()
    intervals: IntervalSet = EVERYWHERE
    _set: frozenset[str] | None = field(default=None, init=False, repr=False, compare=False)
    _bounds: tuple[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.names and not self.intervals:
            object.__setattr__(self, "intervals", EVERYWHERE)
        if len(self.intervals) > MOST_INTERVALS:
            object.__setattr__(self, "intervals", self.intervals.coalesced(MOST_INTERVALS))

    @property
    def segments(self) -> frozenset[str]:
        """The names as a set. Cached, like the next one: a plan may name thousands."""
        if self._set is None:
            found = frozenset(self.names)
            object.__setattr__(self, "_set", found)
            return found
        return self._set

    @property
    def bounds(self) -> tuple[str, str]:
        """The least and the greatest name as text, "" if there is none."""
        if self._bounds is None:
            found = (min(self.names, default=""), max(self.names, default=""))
            object.__setattr__(self, "_bounds", found)
            return found
        return self._bounds

    def common(self, other: LockResources) -> LockResource | None:
        """The first part of `other` that both lock; None if there is none."""
        if self.names and other.names:
            if self._share_no_name(other):
                return None
            return next(LockResource(name) for name in other.names if name in self.segments)
        met = other.intervals.first_meeting(self.intervals)
        if met is None:
            return None
        if other.names and met == ALWAYS:
            return LockResource(other.names[0])  # of unknown time: any of them may be the one
        return LockResource(interval=met)

    def _share_no_name(self, other: LockResources) -> bool:
        """The bounds alone decide for plans of neighbouring segments."""
        first, last = self.bounds
        others_first, others_last = other.bounds
        if last < others_first or others_last < first:
            return True
        return self.segments.isdisjoint(other.segments)

    def covers(self, other: LockResources) -> bool:
        """Whether who holds these holds `other`, too."""
        if self == other:
            return True
        if self.names and not other.names:
            return not other
        named = not self.names or other.segments <= self.segments
        return named and self.intervals.includes(other.intervals)

    def __or__(self, other: LockResources) -> LockResources:
        """Both. Segments together with intervals become intervals: those in which they lie."""
        if not other or not self:
            return self or other
        names: tuple[str, ...] = ()
        if self.names and other.names:
            names = tuple(dict.fromkeys((*self.names, *other.names)))
        return LockResources(names, self.intervals | other.intervals)

    def __bool__(self) -> bool:
        return bool(self.intervals)

    def __len__(self) -> int:
        return len(self.names or self.intervals)

    def __iter__(self) -> Iterator[LockResource]:
        """The segments, or else the intervals."""
        if self.names:
            return map(LockResource, self.names)
        return (LockResource(interval=each) for each in self.intervals)


WHOLE_TABLE = LockResources()
NOTHING = LockResources(intervals=IntervalSet())


def segment(name: str, intervals: IntervalSet = EVERYWHERE) -> LockResources:
    """The lock on one segment."""
    return LockResources((name,), intervals)


def named(names: Iterable[str], intervals: IntervalSet = EVERYWHERE) -> LockResources:
    """Locks on segments by name, however many; `intervals` is where they lie."""
    found = tuple(dict.fromkeys(names))
    return LockResources(found, intervals) if found else NOTHING


def named_or_within(names: Iterable[str], intervals: IntervalSet = EVERYWHERE) -> LockResources:
    """Locks on segments by name; of more than `MOST_NAMED` on all that lies where they do: the
    whole table if that is unknown."""
    found = named(names, intervals)
    return found if len(found.names) <= MOST_NAMED else within(found.intervals)


def within(intervals: IntervalSet) -> LockResources:
    """Locks on all that lies in these intervals, now and later."""
    return LockResources(intervals=intervals)


def described(interval: TimeInterval) -> str:
    """An interval for people: `2013-03-02T00:00:00Z/2013-03-03T00:00:00Z`, `…` for a side that is
    open or beyond the calendar's years."""
    return "/".join("…" if side in ("-", "+") else side for side in str(interval).split("/"))


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
    resources: LockResources
    owner: str = ""
    priority: int = 0
    display: str = ""
    row_concurrency: bool = True


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
