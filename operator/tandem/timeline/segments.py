"""The segments of a table at one version, as a function of its live files.

A segment is the data files that one operation added (design, section 2). Files that we write
say so in their tags; every other file is a segment of its own. Order: the sequence of the
tag, else the modification time, then the path. An invalid tag counts as absent: no tag can make a
table unreadable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.delta.actions import AddFile
from tandem.timeline.chunks import (
    TimeColumn,
    TimeInterval,
    file_interval,
    is_one_chunk,
    parse_interval,
)
from tandem.timeline.lineage import Lineage, format_lineage, parse_lineage
from tandem.timeline.names import foreign_name, parse_name

_OURS = "tandem."
TAG_SEGMENT = "tandem.segment"
TAG_SEQUENCE = "tandem.sequence"
TAG_PARENTS = "tandem.parents"
TAG_ROW_MAP = "tandem.rowMap"
TAG_CHUNK = "tandem.chunk"
TAG_TYPE = "tandem.type"
TAG_LAYOUT = "tandem.layout"
"""In which order a compaction wrote its segment: `layout_label`."""
TYPE_MAJOR = "Major"

_NUM_RECORDS = re.compile(r'\{\s*"numRecords"\s*:\s*(\d+)\s*[,}]')
_MOST_DIGITS = 18
"""Of a number of rows: what is longer fits no column of ours, and says nothing."""
SEQUENCE_PATTERN = "-?[0-9]{1,15}"  # up to the year 33658; a next one stays below 18 digits
_SEQUENCE = re.compile(SEQUENCE_PATTERN)


class SegmentStatus(StrEnum):
    """CarbonData's words for what became of a segment.

    `MarkedForUpdate` is a live segment that carries deletion vectors: valid input of every
    plan (decision 0013). The last two are gone from the working set: `Compacted` lives on in
    another segment, `MarkedForDelete` does not.
    """

    SUCCESS = "Success"
    MARKED_FOR_UPDATE = "MarkedForUpdate"
    COMPACTED = "Compacted"
    MARKED_FOR_DELETE = "MarkedForDelete"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A live file as planning needs it. `rows` are physical ones, None where the log does not
    say; `deleted` those in its deletion vector. `interval` is None where unknown or without a
    time column; `spans` says that it covers several chunks (or unknown ones)."""

    add: AddFile
    rows: int | None
    interval: TimeInterval | None = None
    spans: bool = False

    @property
    def path(self) -> str:
        """The logged path: the file's identity."""
        return self.add.logged_path

    @property
    def size(self) -> int:
        return self.add.size

    @property
    def deleted(self) -> int:
        vector = self.add.deletion_vector
        return 0 if vector is None else vector.cardinality

    @property
    def deleted_share(self) -> float:
        """Deleted rows of all rows, 0 to 1; 1 where rows are deleted of an unknown number."""
        if not self.deleted:
            return 0.0
        return min(1.0, self.deleted / self.rows) if self.rows else 1.0

    @property
    def live_bytes(self) -> int:
        """Estimated bytes of the rows that are not deleted."""
        if not self.deleted or not self.rows:
            return self.size
        return self.size * max(self.rows - self.deleted, 0) // self.rows


@dataclass(frozen=True, slots=True)
class Segment:
    """A live segment (or one of the past: see `history`). Files are in order of their path."""

    name: str
    level: int
    sequence: int
    files: tuple[SegmentFile, ...]
    status: SegmentStatus = SegmentStatus.SUCCESS
    parents: Lineage = field(default_factory=Lineage)
    major: bool = False
    interval: TimeInterval | None = None
    load_ms: int = 0
    size_bytes: int = 0

    @property
    def rows(self) -> int | None:
        """Physical rows; None where a file does not say how many it has."""
        counts = [file.rows for file in self.files]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def deleted_rows(self) -> int:
        return sum(file.deleted for file in self.files)

    @property
    def live_bytes(self) -> int:
        return sum(file.live_bytes for file in self.files)

    @property
    def order(self) -> tuple[int, str]:
        return (self.sequence, self.files[0].path if self.files else self.name)


def segments(adds: Iterable[AddFile], time: TimeColumn | None = None) -> tuple[Segment, ...]:
    """The live segments of a version in their order.

    Args:
        adds: the working set of the version, in any order.
        time: the table's time column, if its LakeTable names one.
    """
    groups: dict[str, list[AddFile]] = {}
    for add in adds:
        groups.setdefault(segment_name(add), []).append(add)
    found = [_segment(name, members, time) for name, members in groups.items()]
    return tuple(sorted(found, key=lambda segment: segment.order))


def segment_name(add: AddFile) -> str:
    """The name of the segment that a file belongs to."""
    text = add.tags.get(TAG_SEGMENT)
    if text is not None and parse_name(text) is not None:
        return text
    return foreign_name(add.logged_path)


def sequence_of(add: AddFile) -> int:
    """The order key of a file, in milliseconds."""
    return parse_sequence(add.tags, add.modified_ms)


def parse_sequence(tags: Mapping[str, str], otherwise: int) -> int:
    """The sequence that tags hold, or `otherwise` where they hold none."""
    text = tags.get(TAG_SEQUENCE, "")
    return int(text) if _SEQUENCE.fullmatch(text) else otherwise


def output_tags(
    name: str,
    sequence: int,
    *,
    parents: Lineage | None = None,
    row_map: str = "",
    interval: TimeInterval | None = None,
    major: bool = False,
    layout: str = "",
) -> dict[str, str]:
    """The tags of a file of ours. `row_map` is the path of the published row map, `layout` a
    `layout_label`."""
    tags = {TAG_SEGMENT: name, TAG_SEQUENCE: str(sequence)}
    if parents:
        tags[TAG_PARENTS] = format_lineage(parents)
    if row_map:
        tags[TAG_ROW_MAP] = row_map
    if interval is not None:
        tags[TAG_CHUNK] = str(interval)
    if major:
        tags[TAG_TYPE] = TYPE_MAJOR
    if layout:
        tags[TAG_LAYOUT] = layout
    return tags


def layout_label(strategy: str, columns: Sequence[str]) -> str:
    """`ZOrder:carrier,hour`: the value of `TAG_LAYOUT`. What would be taken for a separator in
    a name is written as in a URL."""
    names = (name.replace("%", "%25").replace(",", "%2C") for name in columns)
    return f"{strategy}:{','.join(names)}"


def successor_tags(add: AddFile, *, row_map: str, layout: str = "") -> dict[str, str]:
    """The tags of a file that takes the place of `add` within its segment: the same name, place
    in the order, lineage and chunk. A foreign file's segment keeps its name, too, although that
    of the new path would be another (decision 0082). With `layout` its rows were sorted
    separately, so the order of the whole segment no longer holds."""
    ours = {key: value for key, value in add.tags.items() if key.startswith(_OURS)}
    if layout and ours.get(TAG_LAYOUT) != layout:
        ours.pop(TAG_LAYOUT, None)
    return {
        **ours,
        TAG_SEGMENT: segment_name(add),
        TAG_SEQUENCE: str(sequence_of(add)),
        TAG_ROW_MAP: row_map,
    }


def segment_file(add: AddFile, time: TimeColumn | None = None) -> SegmentFile:
    """A file with what its statistics, partition values and tags say about it."""
    rows = _rows(add.stats)
    if time is None:
        return SegmentFile(add, rows)
    interval = file_interval(add, time)
    if interval is None:
        interval = parse_interval(add.tags.get(TAG_CHUNK, ""))
    spans = interval is None or not is_one_chunk(interval, time.granularity)
    return SegmentFile(add, rows, interval, spans)


def _rows(stats: str | None) -> int | None:
    if not stats:
        return None
    # Every writer that we met puts it first; anywhere else it could be a column of that name.
    if match := _NUM_RECORDS.match(stats):
        digits = match[1]
        return int(digits) if len(digits) <= _MOST_DIGITS else None
    try:
        parsed = json.loads(stats)
    except (ValueError, RecursionError):
        return None
    rows = parsed.get("numRecords") if isinstance(parsed, dict) else None
    return rows if isinstance(rows, int) and 0 <= rows < 10**_MOST_DIGITS else None


def _segment(name: str, members: Sequence[AddFile], time: TimeColumn | None) -> Segment:
    members = sorted(members, key=lambda add: add.logged_path)
    files = tuple(segment_file(add, time) for add in members)
    parsed = parse_name(name)
    updated = any(file.deleted for file in files)
    return Segment(
        name=name,
        level=parsed.level if parsed else 0,
        sequence=min(sequence_of(add) for add in members),
        files=files,
        status=SegmentStatus.MARKED_FOR_UPDATE if updated else SegmentStatus.SUCCESS,
        parents=_parents(members[0].tags),
        major=any(add.tags.get(TAG_TYPE) == TYPE_MAJOR for add in members),
        interval=_hull(files),
        load_ms=min(add.modified_ms for add in members),
        size_bytes=sum(add.size for add in members),
    )


def _parents(tags: Mapping[str, str]) -> Lineage:
    return parse_lineage(tags.get(TAG_PARENTS, ""))


def _hull(files: Sequence[SegmentFile]) -> TimeInterval | None:
    """The interval that all files cover; None as soon as one of them is unknown."""
    intervals = [file.interval for file in files]
    known = [interval for interval in intervals if interval is not None]
    if not known or len(known) < len(intervals):
        return None
    return TimeInterval(min(i.start_ms for i in known), max(i.end_ms for i in known))
