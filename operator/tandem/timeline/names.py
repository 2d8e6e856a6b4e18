"""Names of segments, and the numbers in them.

A segment is called `7` (an ingest or an update), `0.1`, `0.2` (compactions that begin with
segment 0; the part after the dot is the level) or `f-` and twelve hex digits (a file of
another writer: one segment each). CarbonData names its segments the same way
(`getMergedLoadName`), which is why its users can read ours.

Numbers come from a high-water mark that every commit of ours carries as a `txn` action
(`tandem.segments`). `txn` survives checkpoints, log clean-up and restores, so a number is
never assigned twice (Z16, S25), even if all segments that carried it are gone. Numbers are
assigned in the commit loop, and again if the put loses: they never occur in a path.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tandem.delta.actions import Txn
from tandem.errors import UnsupportedFeature

MAX_NUMBER = 10**15
"""Numbers above this were not assigned but planted: counting on from them would exceed what a name
and the protocol's `long` can hold, and make the table unreadable."""

HIGH_WATER_APP = "tandem.segments"
"""`txn` application id whose version is the highest number ever assigned."""

NUMBER_PATTERN = "0|[1-9][0-9]{0,17}"
LEVEL_PATTERN = "[1-9][0-9]{0,8}"
FOREIGN_PATTERN = "f-[0-9a-f]{12}"

_NUMBERED = re.compile(rf"({NUMBER_PATTERN})(?:\.({LEVEL_PATTERN}))?")
FOREIGN = re.compile(FOREIGN_PATTERN)


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A parsed name: `number` is None for a foreign file; level 0 has not been compacted."""

    text: str
    number: int | None
    level: int

    @property
    def foreign(self) -> bool:
        return self.number is None


def parse_name(text: str) -> SegmentName | None:
    """The parts of a segment name, None if `text` is not one.

    Any writer can set tags, so text that does not look like a name is not an error: a table must
    stay readable whatever its tags contain.
    """
    if FOREIGN.fullmatch(text):
        return SegmentName(text, None, 0)
    match = _NUMBERED.fullmatch(text)
    if match is None:
        return None
    return SegmentName(text, int(match[1]), int(match[2] or 0))


def foreign_name(logged_path: str) -> str:
    """The name of the segment of a file without a tag: a function of its logged path alone."""
    return "f-" + hashlib.sha256(logged_path.encode()).hexdigest()[:12]


@dataclass(slots=True)
class SegmentNumbers:
    """Assigns segment numbers. `highest` is the highest one ever assigned, -1 for none.

    One object per try of a commit: the commit loop builds it again from the latest version.
    """

    highest: int = -1

    @classmethod
    def at(cls, txns: Mapping[str, Txn], known: Iterable[str] = ()) -> SegmentNumbers:
        """Numbers as of a version: from its `txn`s, and the names that its tags mention.

        The names protect tables whose tags were copied without their `txn`s (a clone, a
        conversion): a number in use is not assigned again.
        """
        recorded = txns.get(HIGH_WATER_APP)
        numbers = [-1] if recorded is None else [-1, recorded.version]
        for text in known:
            name = parse_name(text)
            if name is not None and name.number is not None:
                numbers.append(name.number)
        return cls(max(number for number in numbers if number <= MAX_NUMBER))

    def take(self) -> int:
        """Raises: UnsupportedFeature if all numbers have been assigned."""
        if self.highest >= MAX_NUMBER:
            raise UnsupportedFeature(
                "the table has no segment number left",
                field=HIGH_WATER_APP,
                found=str(self.highest),
                expected=f"at most {MAX_NUMBER}, as no table reaches by itself",
                remedy="Find the file whose tag tandem.segment or tandem.parents has this number: "
                "another writer set it. Rewrite the table into a new one if the number was ours",
            )
        self.highest += 1
        return self.highest

    def txn(self, now_ms: int) -> Txn:
        """The action that a commit must contain so that these numbers stay assigned."""
        return Txn(HIGH_WATER_APP, self.highest, now_ms)


@dataclass(frozen=True, slots=True)
class NameRequest:
    """What determines an output's name: the first input's name, and the level of the output."""

    first: str
    level: int


def derived_name(first: str, level: int) -> str | None:
    """CarbonData's name of a compaction that begins with `first`; None for a foreign file.

    `level` is the first input's level plus one, or more if several steps of the minor loop were
    collapsed into one.
    """
    name = parse_name(first)
    if name is None or name.number is None:
        return None
    return f"{name.number}.{level}"


def output_names(
    requests: Sequence[NameRequest], taken: Iterable[str], numbers: SegmentNumbers
) -> tuple[str, ...]:
    """Names for the outputs of one commit, in order.

    The derived name (`0.1`) if there is one and it is free; a new number with the same level
    (`17.1`) if the first input is foreign, or if the derived name is taken because a segment was
    compacted in parts. `taken` are the live names of the version to commit on; a caller that
    knows former names may add them.
    """
    used = set(taken)
    names: list[str] = []
    for request in requests:
        name = derived_name(request.first, request.level)
        while name is None or name in used:
            name = f"{numbers.take()}.{request.level}"
        used.add(name)
        names.append(name)
    return tuple(names)
