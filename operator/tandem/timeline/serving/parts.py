"""Parts that a loader holds, and the states that they have. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from tandem.timeline.names import MAX_NUMBER

MAX_MINOR = 2**31 - 1
"""Druid's limits are 16 bits (S23); ours end far beyond what a table can reach."""

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
