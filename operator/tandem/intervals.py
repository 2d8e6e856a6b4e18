"""Intervals of time, and sets of them: one type for locks, plans, replaces and the timeline.

Half-open, in UTC, in Unix milliseconds. Pure. Must not know calendars, granularities or files:
those are `tandem.timeline`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, order=True)
class TimeInterval:
    """`[start_ms, end_ms)`, never empty where it describes data."""

    start_ms: int
    end_ms: int

    def overlaps(self, other: TimeInterval) -> bool:
        return self.start_ms < other.end_ms and other.start_ms < self.end_ms

    def __str__(self) -> str:
        return f"{_iso(self.start_ms)}/{_iso(self.end_ms)}"


ALWAYS = TimeInterval(-(1 << 62), 1 << 62)
"""All of time: the one chunk of granularity `All`, and the only interval that holds rows without a
time. An interval with an open side begins or ends where it does."""


class IntervalSet:
    """A set of moments as the fewest intervals: ascending, disjoint, none adjacent to another.

    Immutable. Equal sets have equal `pieces`, however they were made.
    """

    __slots__ = ("_starts", "pieces")

    pieces: tuple[TimeInterval, ...]

    def __init__(self, intervals: Iterable[TimeInterval] = ()) -> None:
        """Empty intervals, and those that end before their start, hold no moment."""
        merged: list[TimeInterval] = []
        for each in sorted(intervals):
            if each.end_ms <= each.start_ms:
                continue
            if merged and each.start_ms <= merged[-1].end_ms:
                if each.end_ms > merged[-1].end_ms:
                    merged[-1] = TimeInterval(merged[-1].start_ms, each.end_ms)
            else:
                merged.append(each)
        self.pieces = tuple(merged)
        self._starts = [each.start_ms for each in merged]

    def __or__(self, other: IntervalSet) -> IntervalSet:
        if not self.pieces or not other.pieces:
            return self if self.pieces else other
        return IntervalSet((*self.pieces, *other.pieces))

    def __and__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet(
            TimeInterval(max(each.start_ms, with_.start_ms), min(each.end_ms, with_.end_ms))
            for each in self.pieces
            for with_ in other.meeting(each)
        )

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        left = []
        for each in self.pieces:
            start = each.start_ms
            for gone in other.meeting(each):
                left.append(TimeInterval(start, gone.start_ms))
                start = gone.end_ms
            left.append(TimeInterval(start, each.end_ms))
        return IntervalSet(left)

    def meeting(self, interval: TimeInterval) -> tuple[TimeInterval, ...]:
        """The pieces that have a moment in common with an interval, whole."""
        first = bisect_right(self._starts, interval.start_ms) - 1
        if first < 0 or self.pieces[first].end_ms <= interval.start_ms:
            first += 1
        last = first
        while last < len(self.pieces) and self.pieces[last].start_ms < interval.end_ms:
            last += 1
        return self.pieces[first:last] if interval.start_ms < interval.end_ms else ()

    def overlaps(self, interval: TimeInterval) -> bool:
        return bool(self.meeting(interval))

    def covers(self, interval: TimeInterval) -> bool:
        """Whether it has each moment of an interval."""
        found = self.meeting(interval)
        return interval.end_ms <= interval.start_ms or (
            len(found) == 1
            and found[0].start_ms <= interval.start_ms
            and interval.end_ms <= found[0].end_ms
        )

    def first_meeting(self, other: IntervalSet) -> TimeInterval | None:
        """The first piece that has a moment in common with another set; None if none has."""
        return next((each for each in self.pieces if other.overlaps(each)), None)

    def includes(self, other: IntervalSet) -> bool:
        """Whether it has each moment of another set."""
        return all(map(self.covers, other.pieces))

    def coalesced(self, most: int) -> IntervalSet:
        """The set with its smallest gaps filled, so that at most `most` (1 or more) pieces are
        left. It has every moment of this one; of equal gaps, the first ones are filled."""
        filled = len(self.pieces) - most
        if filled <= 0:
            return self
        gaps = [TimeInterval(one.end_ms, next_.start_ms) for one, next_ in pairwise(self.pieces)]
        gaps.sort(key=lambda gap: gap.end_ms - gap.start_ms)
        return IntervalSet((*self.pieces, *gaps[:filled]))

    def to_json(self) -> list[list[int | None]]:
        """`[[start, end], …]` in milliseconds, null for an open side."""
        return [
            [
                each.start_ms if each.start_ms > ALWAYS.start_ms else None,
                each.end_ms if each.end_ms < ALWAYS.end_ms else None,
            ]
            for each in self.pieces
        ]

    @classmethod
    def from_json(cls, found: object) -> IntervalSet:
        """The set that `to_json` wrote. Raises: ValueError if it is nothing of that form."""
        if not isinstance(found, list | tuple):
            raise ValueError("not a list of intervals")
        return cls(map(_from_json, found))

    @property
    def hull(self) -> TimeInterval | None:
        """From the first moment to the last; None of the empty set."""
        if not self.pieces:
            return None
        return TimeInterval(self.pieces[0].start_ms, self.pieces[-1].end_ms)

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def __iter__(self) -> Iterator[TimeInterval]:
        return iter(self.pieces)

    def __len__(self) -> int:
        return len(self.pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)

    def __str__(self) -> str:
        return ", ".join("all" if each == ALWAYS else str(each) for each in self.pieces) or "never"

    def __repr__(self) -> str:
        return f"IntervalSet({self})"


EVERYWHERE = IntervalSet((ALWAYS,))
"""All of time, as a set."""
NEVER = IntervalSet()
"""No moment."""


def _from_json(pair: object) -> TimeInterval:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError("not a pair of a start and an end")
    start, end = pair
    if any(side is not None and type(side) is not int for side in pair):
        raise ValueError("not a number of milliseconds")
    found = TimeInterval(
        ALWAYS.start_ms if start is None else start, ALWAYS.end_ms if end is None else end
    )
    if found.end_ms <= found.start_ms:
        raise ValueError("an interval ends before it starts")
    return found


def _iso(ms: int) -> str:
    try:
        moment = (_EPOCH + timedelta(milliseconds=ms)).replace(tzinfo=None)
        return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds") + "Z"
    except OverflowError:
        return "-" if ms < 0 else "+"
