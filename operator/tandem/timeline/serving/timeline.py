"""The parts that a loader has, in all chunks, and who holds each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tandem.timeline.serving.chunk import Chunk, Range
from tandem.timeline.serving.parts import (
    NO_CHANGE,
    Part,
    Partial,
    PartState,
    RootRange,
    StateChange,
)


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
        self._chunks: dict[str, Chunk] = {}

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

    def _chunk(self, name: str) -> Chunk:
        found = self._chunks.get(name)
        if found is None:
            found = self._chunks[name] = Chunk(show_partial=self._show)
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
