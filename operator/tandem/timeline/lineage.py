"""Where a segment comes from: its direct parents, as short text in the tag `tandem.parents`, and
the loads that a file was made from, its root ranges.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log import files as files_
from tandem.distinct import IntArray
from tandem.timeline.names import MAX_MINOR, MAX_NUMBER, parse_name

# Lineage: the direct parents of a segment, as short text in the tag `tandem.parents`.
#
# Plain numbers are written as ranges (`0-3`), other names one by one (`0-3,5.1,f-0123456789ab`).
# Only direct parents are kept, never all ancestors, and the text has a maximum length: a
# compaction of a hundred thousand foreign files must not add a megabyte to every `add`. Names that
# do not fit are only counted (`+99000`); foreign names are written last, so they are omitted
# first.


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
    parts = [(_text(lo, hi), hi - lo + 1) for lo, hi in lineage.ranges]
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


# Root ranges: which loads a file was made from, by its tags.
#
# A load is a segment that was committed under a plain number, and has that number as its root. A
# compaction of adjacent loads writes the range of their numbers, `12-15`, with a minor version
# above those of its inputs. A loader of single segments needs both to know which parts stand for
# the same rows (`examples/serving.py`), and people see which loads a segment holds.
#
# Any writer can set tags, so no tag decides about rows (I-56): an invalid one counts as absent.


TAG_ROOT = "tandem.root"
TAG_MINOR = "tandem.minor"
TAG_GROUP = "tandem.group"
"""How many files a compaction wrote for its root range in one time chunk and partition."""

_TAG_SEGMENT = "tandem.segment"
_NUMBER = "0|[1-9][0-9]{0,15}"
_ROOT_RANGE = f"^(?P<first>{_NUMBER})(?:-(?P<last>{_NUMBER}))?$"


@dataclass(frozen=True, slots=True)
class Root:
    """Loads `first` to `last`, and the minor version: 0 for a load."""

    first: int
    last: int
    minor: int = 0

    def __str__(self) -> str:
        return _text(self.first, self.last)

    def tags(self, group_size: int) -> dict[str, str]:
        return {TAG_ROOT: str(self), TAG_MINOR: str(self.minor), TAG_GROUP: str(group_size)}


@dataclass(frozen=True, slots=True)
class Roots:
    """Those of several files, as columns; `first` is -1 for a file without one."""

    first: IntArray
    last: IntArray
    minor: IntArray

    def take(self, places: IntArray) -> Roots:
        return Roots(self.first[places], self.last[places], self.minor[places])

    @property
    def all_known(self) -> bool:
        return bool((self.first >= 0).all())

    @property
    def merged(self) -> Root | None:
        """The root of a file that is made from these; None if one of them has none, or the minor
        version would exceed its limit."""
        if not len(self.first) or not self.all_known or int(self.minor.max()) >= MAX_MINOR:
            return None
        return Root(int(self.first.min()), int(self.last.max()), int(self.minor.max()) + 1)

    def __str__(self) -> str:
        """The loads, as `0-3,7`; empty if a file has no root."""
        if not self.all_known:
            return ""
        ranges = _joined(zip(self.first.tolist(), self.last.tolist(), strict=True))
        return ",".join(_text(first, last) for first, last in ranges)


def read_roots(files: pa.Table) -> Roots:
    """The roots of files (as `Snapshot.files`)."""
    first, last = _range(files_.tag(files, TAG_ROOT))
    minor = _number(files_.tag(files, TAG_MINOR), _NUMBER)
    own = _number(files_.tag(files, _TAG_SEGMENT), _NUMBER)
    valid = (first >= 0) & (first <= last) & (last <= MAX_NUMBER)
    valid &= (minor >= 0) & (minor <= MAX_MINOR)
    own[own > MAX_NUMBER] = -1
    return Roots(np.where(valid, first, own), np.where(valid, last, own), np.where(valid, minor, 0))


def root_of(tags: Mapping[str, str]) -> Root | None:
    """The root of one file."""
    table = pa.table({"tags": pa.array([list(tags.items())], pa.map_(pa.string(), pa.string()))})
    found = read_roots(table)
    if not found.all_known:
        return None
    return Root(int(found.first[0]), int(found.last[0]), int(found.minor[0]))


def group_size_of(tags: Mapping[str, str]) -> int | None:
    """How many files the group of a file has; None if its tags do not say."""
    text = tags.get(TAG_GROUP, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 10 else None


def _number(text: pa.Array, pattern: str) -> IntArray:
    valid = pc.fill_null(pc.match_substring_regex(text, f"^(?:{pattern})$"), False)
    number = pc.cast(pc.if_else(valid, text, None), pa.int64())
    found: IntArray = pc.fill_null(number, -1).to_numpy(zero_copy_only=False).copy()
    return found


def _range(text: pa.Array) -> tuple[IntArray, IntArray]:
    parts = pc.extract_regex(text, _ROOT_RANGE)
    first, last = (pc.struct_field(parts, name) for name in ("first", "last"))
    last = pc.if_else(pc.equal(last, ""), first, last)
    return _number(first, _NUMBER), _number(last, _NUMBER)


def _text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
