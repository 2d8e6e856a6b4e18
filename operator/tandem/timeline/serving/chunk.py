"""The groups of one chunk, and which of them are visible.

One rule: go through the groups by their first load, longer ranges first, then newer ones. A group
is hidden if it begins within the range of a visible one. Else it is visible if all of its parts are
there, and on standby if not. So visible ranges never overlap, whatever tags claim, and in a history
of compactions (where two ranges are disjoint, or the newer contains the older) this is: full groups
that no full group overshadows. The state depends on the set of parts alone.

A change follows the rule from the group that changed to the first one beyond it that nothing has
covered before or covers now; all others keep their state. `Partial.SHOW` looks at the whole chunk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import attrgetter

from tandem.timeline.serving.parts import (
    NO_CHANGE,
    Order,
    Part,
    PartState,
    StateChange,
)

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


class Chunk:
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
