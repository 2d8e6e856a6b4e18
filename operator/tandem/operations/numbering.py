"""Names, numbers and order of new segments on top of a version. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.delta.snapshot import Snapshot
from tandem.timeline.names import SegmentNumbers
from tandem.timeline.segments import known_names, next_sequence, segments


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A fresh segment: its name, its place in the order, and the numbers taken."""

    name: str
    sequence: int
    numbers: SegmentNumbers


def new_segment(snapshot: Snapshot, now_ms: int) -> NewSegment:
    """The segment that an ingest or an update makes if it commits right after `snapshot`."""
    live = segments(snapshot.adds())
    numbers = SegmentNumbers.at(snapshot.txns, known_names(live))
    return NewSegment(str(numbers.take()), next_sequence(now_ms, live), numbers)


def numbers_at(snapshot: Snapshot) -> SegmentNumbers:
    """The high-water mark as it is: for commits that make no segment."""
    return SegmentNumbers.at(snapshot.txns)
