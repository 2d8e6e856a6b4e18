"""Locks on a table: resources, modes, requests and entries; which of them are compatible, and the
effect of each call on the entries of a table. Pure: all stores apply these decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import NamedTuple

from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval
from tandem.spec.common import Mode as Mode  # each kind has its own

# Values: resources, modes, requests and entries. Pure data, serializable as JSON.


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


# Which locks are compatible: the matrix of docs/locks.md as a table, and one pure function.
#
# Every `LockStore` calls `decide` within an atomic read-decide-write (by a mutex in memory, by a
# compare on the table's head key in etcd).


class Compatibility(Enum):
    """Whether a request is compatible with a holder of an overlapping resource."""

    YES = "yes"
    NO = "no"
    ROWS = "yes: rows are checked at commit"  # "no" if either asks for segment concurrency


_YES, _NO, _ROWS = Compatibility.YES, Compatibility.NO, Compatibility.ROWS
_COLUMNS = (Mode.APPEND, Mode.UPDATE, Mode.REWRITE, Mode.REPLACE, Mode.EXCLUSIVE)

# fmt: off
MATRIX: dict[tuple[Mode, Mode], Compatibility] = {
    (requested, held): cell
    for requested, row in {
        # requested ↓ / held →   Append  Update  Rewrite Replace Exclusive
        Mode.APPEND:            (_YES,   _YES,   _YES,   _YES,   _NO),
        Mode.UPDATE:            (_YES,   _ROWS,  _YES,   _NO,    _NO),
        Mode.REWRITE:           (_YES,   _YES,   _NO,    _NO,    _NO),
        Mode.REPLACE:           (_YES,   _NO,    _YES,   _NO,    _NO),
        Mode.EXCLUSIVE:         (_NO,    _NO,    _NO,    _NO,    _NO),
    }.items()
    for held, cell in zip(_COLUMNS, row, strict=True)
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Grant:
    """The request is granted, provided that the entries of `revoke` are marked (all or none)."""

    revoke: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """The request is blocked by these entries, each with the first common resource."""

    blockers: tuple[tuple[LockEntry, LockResource], ...]


def conflict(request: LockRequest, other: LockRequest) -> LockResource | None:
    """The resource over which `request` conflicts with `other`; None if they are compatible."""
    beside = MATRIX[request.mode, other.mode]
    if beside is Compatibility.YES:
        return None
    if beside is Compatibility.ROWS and request.row_concurrency and other.row_concurrency:
        return None
    return request.resources.common(other.resources)


def decide(request: LockRequest, entries: Iterable[LockEntry], *, order: int) -> Grant | Wait:
    """Decide on a request, given all other entries of its table.

    `order` is the request's own place in the queue. It waits for holders that it conflicts
    with, and (fairness) for earlier waiters of at least its priority that it conflicts with.
    A strictly higher priority revokes all conflicting holders or none: none if one of them
    is inside its commit or as important as the request (S26, S27, S28, I-24).
    """
    blockers: list[tuple[LockEntry, LockResource]] = []
    revocable: list[str] = []
    for entry in entries:
        if entry.request.operation == request.operation or entry.revoked_by:
            continue
        if entry.state is EntryState.WAITING and not _goes_first(entry, request, order):
            continue
        resource = conflict(request, entry.request)
        if resource is None:
            continue
        if entry.state is EntryState.HELD and entry.request.priority < request.priority:
            revocable.append(entry.request.operation)
        else:
            blockers.append((entry, resource))
    if blockers:
        return Wait(tuple(blockers))
    return Grant(revoke=tuple(revocable))


def _goes_first(waiter: LockEntry, request: LockRequest, order: int) -> bool:
    if waiter.request.priority != request.priority:
        return waiter.request.priority > request.priority
    return waiter.order < order


# The effect of each call on the entries of a table. Pure: both stores apply these decisions.
#
# A store makes read, decide and write atomic, assigns places in the queue and tokens, and handles
# time; everything else about locks is in this module.


LAST = 2**63
"""The place of a new request: behind all others."""

WRITERS = frozenset({Mode.APPEND, Mode.UPDATE, Mode.REPLACE})
"""The modes of operations that change rows."""

Blockers = tuple[tuple[LockEntry, LockResource], ...]


@dataclass(frozen=True, slots=True)
class LockUpdate:
    """What to store for the operation, and the answer to it.

    `entry` is None if the stored entry stays as it is. Its `order` is `LAST` if it gets a new
    place, its `token` is 0 if a grant gets a new token. The request is granted if no entry blocks
    it. `revoke` names the operations to be marked in the same transaction as the grant.
    """

    entry: LockEntry | None
    blockers: Blockers = ()
    revoke: tuple[str, ...] = ()

    @property
    def granted(self) -> bool:
        return not self.blockers


def acquire(
    request: LockRequest,
    mine: LockEntry | None,
    entries: Collection[LockEntry],
    most_revoked: int | None = None,
) -> LockUpdate:
    """Take all resources or queue for all of them. `mine` is the operation's entry, if any.

    A revoked entry counts as none: the operation starts again at the end of the queue. Another
    owner gets the entry as it is, but not the state of being inside a commit. If more holders than
    `most_revoked` would have to be revoked, the request waits until some are gone.
    """
    if mine is not None and mine.revoked_by:
        mine = None
    if mine is not None and mine.state is not EntryState.WAITING and covers(mine, request):
        if mine.request.owner != request.owner:
            return LockUpdate(replace(mine, request=request, state=EntryState.HELD, token=0))
        return LockUpdate(None if mine.request == request else replace(mine, request=request))
    order = LAST if mine is None else mine.order
    decision = _decide(request, entries, order, most_revoked)
    if not isinstance(decision, Wait):
        return LockUpdate(LockEntry(request, EntryState.HELD, order), revoke=decision.revoke)
    if mine is not None and mine.state is EntryState.WAITING and mine.request == request:
        return LockUpdate(None, decision.blockers)
    # No request holds one resource while it waits for another: that could be a deadlock.
    return LockUpdate(LockEntry(request, EntryState.WAITING, order), decision.blockers)


def covers(held: LockEntry, request: LockRequest) -> bool:
    """Whether the held resources include the requested ones."""
    have = held.request
    return (
        have.mode is request.mode
        and have.row_concurrency <= request.row_concurrency
        and have.resources.covers(request.resources)
    )


def extend(
    mine: LockEntry | None,
    owner: str,
    resources: LockResources,
    entries: Iterable[LockEntry],
    most_revoked: int | None = None,
) -> LockUpdate | None:
    """Hold these as well, under the same token; None if `owner` holds nothing.

    It does not wait for waiters, since they may wait for us.
    """
    if mine is None or mine.request.owner != owner or mine.revoked_by:
        return None
    if mine.state is EntryState.WAITING:
        return None
    if mine.request.resources.covers(resources):
        return LockUpdate(None)
    wanted = replace(mine.request, resources=mine.request.resources | resources)
    holders = [e for e in entries if e.state is not EntryState.WAITING]
    decision = _decide(wanted, holders, mine.order, most_revoked)
    if isinstance(decision, Wait):
        return LockUpdate(None, decision.blockers)
    return LockUpdate(replace(mine, request=wanted), revoke=decision.revoke)


def may_commit(mine: LockEntry | None, owner: str) -> CommitLease:
    """The answer to `enter_commit` by the entry alone."""
    if mine is None or mine.request.owner != owner or mine.state is EntryState.WAITING:
        return CommitLease.LOST
    return CommitLease.REVOKED if mine.revoked_by else CommitLease.ENTERED


def is_inside_commit(mine: LockEntry | None, owner: str) -> bool:
    """Whether `leave_commit` has anything to do."""
    return mine is not None and mine.request.owner == owner and mine.state is EntryState.COMMITTING


def blockers_of(
    mine: LockEntry | None, entries: Collection[LockEntry], most_revoked: int | None = None
) -> Blockers:
    """Which entries block the owner of `mine`; none if it does not (or no longer) wait."""
    if mine is None or mine.revoked_by or mine.state is not EntryState.WAITING:
        return ()
    decision = _decide(mine.request, entries, mine.order, most_revoked)
    return decision.blockers if isinstance(decision, Wait) else ()


def _decide(
    request: LockRequest, entries: Collection[LockEntry], order: int, most_revoked: int | None
) -> Grant | Wait:
    decision = decide(request, entries, order=order)
    if isinstance(decision, Wait) or most_revoked is None or len(decision.revoke) <= most_revoked:
        return decision
    revoke = frozenset(decision.revoke)
    holders = [entry for entry in entries if entry.request.operation in revoke]
    met = ((h, request.resources.common(h.request.resources)) for h in holders)
    return Wait(tuple((h, resource or LockResource()) for h, resource in met))


def wanted_by(entries: Collection[LockEntry], operation: str, owner: str) -> str:
    """The writer that waits for what `operation` holds, or the operation that has revoked it, for
    messages; "" if there is none.

    A waiter of lower priority does not count: it would be revoked again.
    """
    mine = next((e for e in entries if e.request.operation == operation), None)
    if mine is None or mine.request.owner != owner or mine.state is EntryState.WAITING:
        return ""
    if mine.revoked_by:
        named = (_who(e) for e in entries if e.request.operation == mine.revoked_by)
        return next(named, f"operation {mine.revoked_by}")
    for entry in entries:
        request = entry.request
        waits = entry.state is EntryState.WAITING and request.mode in WRITERS
        weighs = request.priority >= mine.request.priority
        if waits and weighs and conflict(request, mine.request) is not None:
            return _who(entry)
    return ""


def waiting(blockers: Blockers) -> Waiting:
    """The blockers in a form for messages: which operation holds what."""
    return Waiting(tuple((_who(entry), str(resource)) for entry, resource in blockers))


def _who(entry: LockEntry) -> str:
    return entry.request.display or entry.request.operation
