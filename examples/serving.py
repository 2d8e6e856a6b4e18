"""Which of its parts a loader of single segments shows.

A log hides and shows files atomically, and decides alone what a table shows. A loader gets there
step by step: a cache, an index server, or a copy of a table holds some parts of a new generation
while others are still on their way. This library tells at each step which of its parts to show, so
that no row is shown twice, and for which ranges to ask the table. It never decides what a table
shows.

The encoding is that of Druid's segment locking. Loads have numbers; a part of a compaction carries
the range of the loads that it was made from, its *root range*, and a *minor* version above those
of its inputs. The parts that one operation wrote for a range are a *group*: they appear together,
once all of them are there. A group overshadows the groups within its range that are older.

A `ServingTimeline` has the parts that a loader holds and who holds each, `_Chunk` the groups of one
time chunk; `StandIns` tells which rows of which parts show a version of a table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from operator import attrgetter
from typing import NamedTuple, Protocol

from pyroaring import BitMap64

from tandem.timeline.names import MAX_MINOR, MAX_NUMBER

Order = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """What a loader holds of a segment.

    Attributes:
        name: the loader's own name for it, such as a file's path; unique.
        first, end: the root range: it was made from loads `first` to `end - 1`.
        minor: 0 for a load; for what a compaction wrote, 1 above the highest of its inputs.
        group_size: how many parts its group has.
        chunk: only parts of one chunk meet: the label of its time chunk and partition.

    Raises: ValueError beyond the limits of numbers.
    """

    name: str
    first: int
    end: int
    minor: int = 0
    group_size: int = 1
    chunk: str = ""
    order: Order = field(init=False, repr=False, compare=False)
    """Equal for the parts of a group. A group comes before those that it overshadows."""

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.end <= MAX_NUMBER + 1:
            raise ValueError(
                f"part {self.name}: the root range {self.first} to {self.end} is not one of loads "
                f"0 to {MAX_NUMBER}"
            )
        if not 0 <= self.minor <= MAX_MINOR:
            raise ValueError(f"part {self.name}: the minor version {self.minor} is not 0 to 2^31-1")
        if self.group_size < 1:
            raise ValueError(f"part {self.name}: a group of {self.group_size} parts")
        order = (self.first, -self.end, -self.minor, -self.group_size)
        object.__setattr__(self, "order", order)


class RootRange(NamedTuple):
    """Loads `first` to `end - 1` of a chunk."""

    chunk: str
    first: int
    end: int


class PartState(Enum):
    VISIBLE = "visible"
    STANDBY = "standby"
    """Its group waits for other parts, and an older generation is shown, or nothing."""
    HIDDEN = "hidden"
    """A group that is visible overshadows it."""


class Partial(StrEnum):
    """What to do with a group of which parts are missing, if older groups do not cover its range.

    `NEVER`: show the older groups that are there, and report the rest of the range as missing: what
    is shown are rows of one version. `SHOW`: show the parts that are there, as Druid does: more
    rows are shown, but no reader can tell which are missing.
    """

    NEVER = "Never"
    SHOW = "Show"


class StateChange(NamedTuple):
    """The parts that became visible, standby and hidden; among them a new part."""

    visible: tuple[Part, ...] = ()
    standby: tuple[Part, ...] = ()
    hidden: tuple[Part, ...] = ()


NO_CHANGE = StateChange()


# The groups of one chunk, and which of them are visible.
#
# One rule: go through the groups by their first load, longer ranges first, then newer ones. A
# group is hidden if it begins within the range of a visible one. Else it is visible if all of its
# parts are there, and on standby if not. So visible ranges never overlap, whatever tags claim, and
# in a history of compactions (where two ranges are disjoint, or the newer contains the older) this
# is: full groups that no full group overshadows. The state depends on the set of parts alone.
#
# A change follows the rule from the group that changed to the first one beyond it that nothing has
# covered before or covers now; all others keep their state. `Partial.SHOW` looks at the whole
# chunk.

_by_order = attrgetter("order")
_VISIBLE, _STANDBY, _HIDDEN = PartState.VISIBLE, PartState.STANDBY, PartState.HIDDEN

_BEYOND = 1 << 62
_FEW = 8
"""A chunk keeps its index if fewer than an eighth as many parts are loaded as it has groups."""

Range = tuple[int, int]


class _Group:
    __slots__ = ("end", "order", "parts", "size", "state")

    def __init__(self, order: Order) -> None:
        self.order, self.end, self.size = order, -order[1], -order[3]
        self.parts: dict[str, Part] = {}
        self.state: PartState | None = None

    @property
    def full(self) -> bool:
        """Never with more parts than its size: some of them are wrong, and it is unknown which."""
        return len(self.parts) == self.size


class _Chunk:
    """Parts of one chunk.

    Parts that were loaded in bulk are sorted and looked at once, without an index; the index is
    made before the first single change.
    """

    __slots__ = ("_groups", "_loaded", "_orders", "_show", "_shown", "_sorted")

    def __init__(self, *, show_partial: bool) -> None:
        self._show = show_partial
        self._loaded: list[Part] | None = []
        self._sorted = True
        self._groups: dict[Order, _Group] = {}
        self._orders: list[Order] = []
        self._shown: list[Order] = []
        """The visible groups; ranges do not overlap."""

    def load(self, parts: list[Part]) -> None:
        """Add parts that it does not have."""
        if self._loaded is None:
            if len(parts) * _FEW < len(self._orders):
                for part in parts:
                    self.add(part)
                return
            groups = self._groups.values()
            self._loaded = [part for group in groups for part in group.parts.values()]
            self._groups, self._orders, self._shown = {}, [], []
        self._loaded += parts
        self._sorted = False

    def add(self, part: Part) -> StateChange:
        """Add a part that it does not have."""
        self._make_index()
        order = part.order
        group = self._groups.get(order)
        if group is None:
            group = self._groups[order] = _Group(order)
            insort(self._orders, order)
        was_full, before = group.full, group.state
        group.parts[part.name] = part
        if before is None and not self._show and not group.full:
            group.state = _HIDDEN if self._is_covered(order) else _STANDBY
            return _only(part, group.state)
        if before is not None and group.full is was_full:
            return _only(part, before)
        if self._show:
            found = self._settle_all()
        elif before is _HIDDEN or (before is None and self._is_covered(order)):
            group.state = _HIDDEN
            return _only(part, _HIDDEN)
        else:
            found = self._settle(order, group.end)
        if before is None or group.state is not before:
            return found
        mine = _only(part, before)
        return StateChange(*(one + other for one, other in zip(found, mine, strict=True)))

    def remove(self, part: Part) -> StateChange:
        """Remove a part that it has."""
        self._make_index()
        order = part.order
        group = self._groups[order]
        was_full, was_visible = group.full, group.state is _VISIBLE
        del group.parts[part.name]
        if not group.parts:
            del self._groups[order]
            del self._orders[bisect_left(self._orders, order)]
        elif group.full is was_full:
            return NO_CHANGE
        if self._show:
            return self._settle_all()
        if was_visible or (group.full and group.state is not _HIDDEN):
            return self._settle(order, group.end)
        return NO_CHANGE

    def visible(self) -> list[Part]:
        """In the order of loads."""
        if self._loaded is not None and not self._show:
            return self._visible_of_loaded(self._loaded)
        self._make_index()
        return [part for order in self._shown for part in self._groups[order].parts.values()]

    def in_state(self, state: PartState) -> Iterator[Part]:
        self._make_index()
        for order in self._orders:
            if self._groups[order].state is state:
                yield from self._groups[order].parts.values()

    def state_of(self, part: Part) -> PartState:
        self._make_index()
        state = self._groups[part.order].state
        assert state is not None
        return state

    def ranges(self) -> list[Range]:
        """The root ranges of all groups."""
        self._make_index()
        return [(order[0], -order[1]) for order in self._orders]

    def complete(self) -> list[Range]:
        """The ranges of which every row is shown, ascending, without overlaps."""
        self._make_index()
        return [(order[0], -order[1]) for order in self._shown if self._groups[order].full]

    def __bool__(self) -> bool:
        return bool(self._groups or self._loaded)

    def _visible_of_loaded(self, parts: list[Part]) -> list[Part]:
        """The rule, for parts of which nothing is known yet."""
        if not self._sorted:
            parts.sort(key=_by_order)
            self._sorted = True
        found: list[Part] = []
        covered, at, count = 0, 0, len(parts)
        while at < count:
            part = parts[at]
            first = at
            at += 1
            if part.first < covered:
                continue
            order = part.order
            while at < count and parts[at].order == order:
                at += 1
            if at - first == part.group_size:
                found += parts[first:at]
                covered = part.end
        return found

    def _make_index(self) -> None:
        if self._loaded is None:
            return
        groups = self._groups
        for part in self._loaded:
            group = groups.get(part.order)
            if group is None:
                group = groups[part.order] = _Group(part.order)
            group.parts[part.name] = part
        self._loaded = None
        self._orders = sorted(groups)
        self._settle_all()

    def _is_covered(self, order: Order) -> bool:
        """Whether a visible group hides one of this order."""
        at = bisect_right(self._shown, order) - 1
        return at >= 0 and self._shown[at] != order and -self._shown[at][1] > order[0]

    def _settle_all(self) -> StateChange:
        return self._settle((-1, 0, 0, 0), _BEYOND)

    def _settle(self, start: Order, high: int) -> StateChange:
        """Apply the rule from a place at which nothing covers, at least up to load `high`."""
        orders, groups = self._orders, self._groups
        changed: dict[PartState, list[Part]] = {state: [] for state in PartState}
        shown: list[Order] = []
        covered, stop = 0, _BEYOND
        for at in range(bisect_left(orders, start), len(orders)):
            order = orders[at]
            first = order[0]
            if first >= high and first >= covered:
                stop = first
                break
            group = groups[order]
            if group.state is _VISIBLE and group.end > high:
                high = group.end  # what it covered may be free now
            if first < covered:
                state = _HIDDEN
            elif group.full or (self._show and not self._is_tiled(at)):
                state = _VISIBLE
                covered = group.end
                shown.append(order)
            else:
                state = _STANDBY
            if state is not group.state:
                group.state = state
                changed[state] += group.parts.values()
        low = bisect_left(self._shown, start)
        self._shown[low : bisect_left(self._shown, (stop, -_BEYOND, 0, 0))] = shown
        return StateChange(*(tuple(changed[state]) for state in PartState))

    def _is_tiled(self, at: int) -> bool:
        """Whether full groups after this place cover its range without a gap."""
        end = -self._orders[at][1]
        covered = self._orders[at][0]
        for order in self._orders[at + 1 :]:
            if order[0] > covered or covered >= end:
                break
            if order[0] == covered and -order[1] <= end and self._groups[order].full:
                covered = -order[1]
        return covered >= end


def _only(part: Part, state: PartState) -> StateChange:
    if state is _VISIBLE:
        return StateChange(visible=(part,))
    return StateChange(standby=(part,)) if state is _STANDBY else StateChange(hidden=(part,))


class ServingTimeline:
    """Which parts to show. Its state is a function of the set of parts that have a holder, not of
    the order in which they came. Not safe for several threads.

    A part may have several holders (a hand-off, a replica); it is available while it has one.
    """

    __slots__ = ("_chunks", "_holders", "_parts", "_show")

    def __init__(self, partial: Partial = Partial.NEVER) -> None:
        self._show = partial is Partial.SHOW
        self._parts: dict[str, Part] = {}
        self._holders: dict[str, tuple[str, ...]] = {}
        self._chunks: dict[str, _Chunk] = {}

    def announce(self, part: Part, holder: str = "") -> StateChange:
        """A holder has a part now. Announced again, nothing changes (S14).

        Raises: ValueError if another part has this name.
        """
        known = self._parts.get(part.name)
        if known is not None:
            self._require_same(known, part)
            held = self._holders[part.name]
            if holder not in held:
                self._holders[part.name] = (*held, holder)
            return NO_CHANGE
        self._parts[part.name] = part
        self._holders[part.name] = (holder,)
        return self._chunk(part.chunk).add(part)

    def withdraw(self, part: Part, holder: str = "") -> StateChange:
        """A holder has a part no more. Of a part that it did not have, nothing changes."""
        held = self._holders.get(part.name, ())
        if holder not in held:
            return NO_CHANGE
        if len(held) > 1:
            self._holders[part.name] = tuple(each for each in held if each != holder)
            return NO_CHANGE
        del self._holders[part.name]
        known = self._parts.pop(part.name)
        chunk = self._chunks[known.chunk]
        change = chunk.remove(known)
        if not chunk:
            del self._chunks[known.chunk]
        return change

    def load(self, parts: Iterable[Part], holder: str = "") -> None:
        """As `announce` of each, without the changes: faster for many parts.

        Raises: ValueError if two parts have one name; then nothing is loaded.
        """
        parts = list(parts)
        new = {part.name: part for part in parts}
        if len(new) < len(parts) or not self._parts.keys().isdisjoint(new):
            for part in parts:
                self._require_same(new[part.name], part)
                self._require_same(self._parts.get(part.name, part), part)
            for name in new.keys() & self._parts.keys():
                self.announce(new.pop(name), holder)
        self._parts.update(new)
        self._holders.update(dict.fromkeys(new, (holder,)))
        lists: dict[str, list[Part]] = {}
        for part in new.values():
            try:
                lists[part.chunk].append(part)
            except KeyError:
                lists[part.chunk] = [part]
        for name, several in lists.items():
            self._chunk(name).load(several)

    def visible(self) -> list[Part]:
        """The parts to show, chunk by chunk, in the order of loads."""
        found: list[Part] = []
        for chunk in self._chunks.values():
            found += chunk.visible()
        return found

    def in_state(self, state: PartState) -> frozenset[Part]:
        return frozenset(part for chunk in self._chunks.values() for part in chunk.in_state(state))

    def state_of(self, name: str) -> PartState:
        """Raises: KeyError if it has no holder."""
        part = self._parts[name]
        return self._chunks[part.chunk].state_of(part)

    def holders(self, name: str) -> tuple[str, ...]:
        """In the order in which they announced it; empty if it has none."""
        return self._holders.get(name, ())

    def missing(self, expected: Iterable[RootRange] | None = None) -> tuple[RootRange, ...]:
        """The ranges of which not all rows are shown: to be asked of the table, or waited for.

        Args:
            expected: the ranges of a version's segments. By default those of all available parts:
                then ranges of which nothing at all is available are not reported.

        Returns: by chunk, ascending. Between the loads of a chunk there may be numbers of other
            chunks; a range that was compacted across them includes them.
        """
        ranges: dict[str, list[Range]] = {}
        if expected is None:
            ranges = {name: chunk.ranges() for name, chunk in self._chunks.items()}
        for chunk, first, end in expected or ():
            ranges.setdefault(chunk, []).append((first, end))
        found = []
        for name in sorted(ranges):
            known = self._chunks.get(name)
            complete = known.complete() if known is not None else []
            found += [RootRange(name, *each) for each in _gaps(ranges[name], complete)]
        return tuple(found)

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __len__(self) -> int:
        """The number of available parts."""
        return len(self._parts)

    def _chunk(self, name: str) -> _Chunk:
        found = self._chunks.get(name)
        if found is None:
            found = self._chunks[name] = _Chunk(show_partial=self._show)
        return found

    @staticmethod
    def _require_same(known: Part, part: Part) -> None:
        if known is not part and known != part:
            raise ValueError(f"two parts are named {part.name}: {known} and {part}")


def _gaps(ranges: Iterable[Range], complete: Iterable[Range]) -> Iterator[Range]:
    """The loads of `ranges` that are in none of the complete ones (ascending, disjoint)."""
    done = iter([*complete, (1 << 62, 1 << 62)])
    first, end = next(done)
    reached = 0
    open_: Range | None = None
    for low, high in sorted(ranges):
        low = max(low, reached)
        reached = max(reached, high)
        while low < high:
            while end <= low:
                first, end = next(done)
            stop = min(high, first)
            if low < stop:
                if open_ is not None and open_[1] == low:
                    open_ = (open_[0], stop)
                else:
                    if open_ is not None:
                        yield open_
                    open_ = (low, stop)
            low = max(stop, min(high, end))
    if open_ is not None:
        yield open_


# Which rows of which parts show a version, with older generations in place of parts that are still
# being loaded.
#
# The log says which parts a version has, and which rows of each are deleted. A part that is loaded
# shows itself. For one that is not, a *stand-in* is shown: the rows that it was made from, in
# parts that are loaded. Rows that were deleted since are carried back through the row map, so that
# a stand-in shows exactly the live rows of the part. Without a valid row map only a whole group
# has a stand-in, and only while nothing was deleted from it: then all rows that were live before
# it was written.
#
# What a rewrite read and wrote comes from row maps and the log, never from tags (I-56).

Rows = Mapping[str, BitMap64]
"""Positions of rows, by part."""


class Origins(Protocol):
    """A row map (`tandem.rowmap.rowmap.RowMap`), as this module needs it."""

    def backward(self, output: str, positions: BitMap64) -> Rows:
        """Positions of an output → the positions that its rows came from, by input."""
        ...


@dataclass(frozen=True, slots=True)
class LivePart:
    """A part of a version, and its live rows, by position."""

    part: Part
    live: BitMap64


@dataclass(frozen=True, slots=True)
class RewrittenParts:
    """A commit that wrote parts from others and changed no row, such as an `OPTIMIZE`: the live
    rows of its inputs just before it, and those of its outputs right after it."""

    inputs: Rows
    outputs: Rows


class Shown(NamedTuple):
    """The rows to show, by part, and the parts of the version of which no row is shown: to be asked
    of the table, or waited for. What is shown are all other rows of the version, each once."""

    rows: dict[str, BitMap64]
    missing: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class StandIns:
    """What is known of rewrites.

    Attributes:
        row_maps: part → the map of the rewrite that wrote it, if that is valid.
        rewrites: those without a map are used; the newest of a part counts.
    """

    row_maps: Mapping[str, Origins]
    rewrites: Iterable[RewrittenParts] = ()
    _by_output: dict[str, RewrittenParts] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for rewrite in self.rewrites:
            self._by_output.update(dict.fromkeys(rewrite.outputs, rewrite))

    def show(self, version: Iterable[LivePart], loaded: Container[str]) -> Shown:
        """A function of the version and of the set of loaded parts (a `ServingTimeline` is one)."""
        parts = {each.part.name: each for each in version}
        found: dict[str, BitMap64] = {}
        missing: list[Part] = []
        for unit in self._units(parts, loaded):
            rows = {name: parts[name].live for name in unit if parts[name].live}
            shown = self._cover(rows, loaded)
            if shown is None:
                missing += [parts[name].part for name in rows if name not in loaded]
                shown = {name: rows[name] for name in rows if name in loaded}
            _add(found, shown)
        return Shown(found, tuple(missing))

    def _units(self, parts: Mapping[str, LivePart], loaded: Container[str]) -> Iterator[list[str]]:
        """Parts that are covered together: single ones, and groups of which one is not loaded and
        has no row map."""
        done: set[str] = set()
        for name in parts:
            if name in done:
                continue
            unit = [name]
            rewrite = self._by_output.get(name)
            if rewrite is not None:
                group = [each for each in rewrite.outputs if each in parts]
                if any(each not in loaded and each not in self.row_maps for each in group):
                    unit = group
            done.update(unit)
            yield unit

    def _cover(self, rows: Rows, loaded: Container[str]) -> dict[str, BitMap64] | None:
        """The same rows in loaded parts; None if there are none."""
        found: dict[str, BitMap64] = {}
        stuck: dict[str, BitMap64] = {}
        todo = dict(rows)
        while todo:
            name, positions = todo.popitem()
            if name in loaded:
                _add(found, {name: positions})
            elif name in self.row_maps:
                _add(todo, self.row_maps[name].backward(name, positions))
            else:
                _add(stuck, {name: positions})
        while stuck:
            rewrite = self._by_output.get(next(iter(stuck)))
            if rewrite is None:
                return None
            for name, positions in rewrite.outputs.items():
                if positions != (stuck.pop(name, None) or found.pop(name, None) or BitMap64()):
                    return None  # rows were deleted since, or it is needed in part only
            before = self._cover(rewrite.inputs, loaded)
            if before is None:
                return None
            _add(found, before)
        return found


def _add(rows: dict[str, BitMap64], more: Rows) -> None:
    for name, positions in more.items():
        rows[name] = rows[name] | positions if name in rows else positions
