"""Names, numbers and order of the new segments of a commit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.delta.log.snapshot import Snapshot
from tandem.timeline.live_tags import read_live_tags
from tandem.timeline.names import SegmentNumbers


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A fresh segment: its name, its place in the order, and the numbers taken."""

    name: str
    sequence: int
    numbers: SegmentNumbers


def new_segment(snapshot: Snapshot, now_ms: int) -> NewSegment:
    """The segment that an ingest or an update creates if it commits right after `snapshot`."""
    marks = snapshot.derived(read_live_tags)
    numbers = SegmentNumbers.at(snapshot.txns, marks.mentioned)
    return NewSegment(str(numbers.take()), marks.next_sequence(now_ms), numbers)


def numbers_at(snapshot: Snapshot) -> SegmentNumbers:
    """The unchanged high-water mark, for commits that create no segment."""
    return SegmentNumbers.at(snapshot.txns)
