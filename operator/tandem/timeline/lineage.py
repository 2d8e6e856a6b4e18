"""Lineage: the direct parents of a segment, as short text in the tag `tandem.parents`.

Plain numbers are written as ranges (`0-3`), other names one by one (`0-3,5.1,f-0123456789ab`).
Only direct parents are kept, never all ancestors, and the text has a maximum length: a compaction
of a hundred thousand foreign files must not add a megabyte to every `add`. Names that do not fit
are only counted (`+99000`); foreign names are written last, so they are omitted first.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tandem.timeline.names import parse_name

MAX_LENGTH = 4096
"""Characters of one tag. A log with 1,000 such adds stays near 4 MB."""

_RANGE = re.compile(r"(0|[1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_MORE = re.compile(r"\+([1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class Lineage:
    """Direct parents: inclusive, disjoint `ranges` of plain numbers in ascending order, other
    `names`, and the number of `more` parents that did not fit into the text."""

    ranges: tuple[tuple[int, int], ...] = ()
    names: frozenset[str] = frozenset()
    more: int = 0

    def __contains__(self, name: str) -> bool:
        parsed = parse_name(name)
        if parsed is None or parsed.number is None or parsed.level:
            return name in self.names
        at = bisect.bisect_right(self.ranges, (parsed.number, 1 << 62)) - 1
        return at >= 0 and parsed.number <= self.ranges[at][1]

    def __len__(self) -> int:
        return sum(hi - lo + 1 for lo, hi in self.ranges) + len(self.names) + self.more

    def __bool__(self) -> bool:
        return bool(self.ranges or self.names or self.more)

    def __iter__(self) -> Iterator[str]:
        """The names in the text; names that are only counted are missing."""
        for lo, hi in self.ranges:
            yield from map(str, range(lo, hi + 1))
        yield from sorted(self.names, key=_order)

    def mentioned(self) -> Iterator[str]:
        """A few names that include the one with the highest number."""
        for _, hi in self.ranges[-1:]:
            yield str(hi)
        yield from self.names


def of(names: Iterable[str]) -> Lineage:
    """The lineage of a segment whose direct parents are `names`."""
    numbers: set[int] = set()
    others: set[str] = set()
    for name in names:
        parsed = parse_name(name)
        if parsed is not None and parsed.number is not None and not parsed.level:
            numbers.add(parsed.number)
        else:
            others.add(name)
    return Lineage(_ranges(numbers), frozenset(others))


def format_lineage(lineage: Lineage, limit: int = MAX_LENGTH) -> str:
    """Text of at most `limit` characters: ranges, merged names, foreign names, `+` the rest."""
    parts = [(f"{lo}-{hi}" if lo < hi else str(lo), hi - lo + 1) for lo, hi in lineage.ranges]
    parts += [(name, 1) for name in sorted(lineage.names, key=_order)]
    left = sum(count for _, count in parts) + lineage.more
    room = limit - len(f",+{left}")
    chosen: list[str] = []
    length = 0
    for at, (text, count) in enumerate(parts):
        fits_whole = at == len(parts) - 1 and not lineage.more
        length += len(text) + (1 if chosen else 0)
        if length > (limit if fits_whole else room):
            break
        chosen.append(text)
        left -= count
    if left:
        chosen.append(f"+{left}")
    return ",".join(chosen)


def parse_lineage(text: str) -> Lineage:
    """Parse the output of `format_lineage`. Invalid parts are ignored: any writer can set tags,
    and lineage only shows where a segment came from."""
    numbers: list[tuple[int, int]] = []
    names: set[str] = set()
    more = 0
    for part in text.split(","):
        if match := _RANGE.fullmatch(part):
            lo, hi = int(match[1]), int(match[2])
            if lo <= hi:
                numbers.append((lo, hi))
        elif match := _MORE.fullmatch(part):
            more += int(match[1])
        elif (parsed := parse_name(part)) is not None:
            if parsed.number is not None and not parsed.level:
                numbers.append((parsed.number, parsed.number))
            else:
                names.add(part)
    return Lineage(_joined(numbers), frozenset(names), more)


def _order(name: str) -> tuple[int, int, int, str]:
    parsed = parse_name(name)
    if parsed is None or parsed.number is None:
        return (1, 0, 0, name)
    return (0, parsed.number, parsed.level, name)


def _ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    return _joined((number, number) for number in numbers)


def _joined(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if joined and lo <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(hi, joined[-1][1]))
        else:
            joined.append((lo, hi))
    return tuple(joined)
