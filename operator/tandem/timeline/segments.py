"""The segments of a table at one version, as a function of its live files.

A segment is the data files that one operation added (design, section 2). Files that Tandem writes
name it in their tags; every other file is a segment of its own. Segments are ordered by the
sequence in the tag, else by modification time, then by path. An invalid tag counts as absent: no
tag can make a table unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import AddFile
from tandem.distinct import IntArray
from tandem.timeline.chunks import TimeColumn, TimeInterval
from tandem.timeline.lineage import Lineage, format_lineage, parse_lineage
from tandem.timeline.names import foreign_name, parse_name
from tandem.timeline.segment_files import (
    TAG_CHUNK,
    TAG_LAYOUT,
    FileColumns,
    SegmentFile,
    SegmentFiles,
)

_OURS = "tandem."
TAG_SEGMENT = "tandem.segment"
TAG_SEQUENCE = "tandem.sequence"
TAG_PARENTS = "tandem.parents"
TAG_ROW_MAP = "tandem.rowMap"
TAG_TYPE = "tandem.type"
TYPE_MAJOR = "Major"

SEQUENCE_PATTERN = "-?[0-9]{1,15}"  # up to the year 33658; a next one stays below 18 digits
_SEQUENCE = re.compile(SEQUENCE_PATTERN)


class SegmentStatus(StrEnum):
    """CarbonData's names for the status of a segment.

    `MarkedForUpdate` is a live segment that carries deletion vectors: valid input of every
    plan (decision 0013). Segments of the last two are not in the working set: the rows of a
    `Compacted` one live on in another segment, those of a `MarkedForDelete` one do not.
    """

    SUCCESS = "Success"
    MARKED_FOR_UPDATE = "MarkedForUpdate"
    COMPACTED = "Compacted"
    MARKED_FOR_DELETE = "MarkedForDelete"


@dataclass(frozen=True, slots=True)
class Segment:
    """A live segment, or a former one (see `history`). Files are in order of their path."""

    name: str
    level: int
    sequence: int
    files: Sequence[SegmentFile]
    status: SegmentStatus = SegmentStatus.SUCCESS
    parents: Lineage = field(default_factory=Lineage)
    major: bool = False
    interval: TimeInterval | None = None
    load_ms: int = 0
    size_bytes: int = 0

    @property
    def rows(self) -> int | None:
        """Physical rows; None if the number is unknown for a file."""
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


def segments(files: pa.Table, time: TimeColumn | None = None) -> tuple[Segment, ...]:
    """The live segments of a version in their order.

    Args:
        files: the working set of the version (`Snapshot.files`), in any order.
        time: the table's time column, if its LakeTable names one.
    """
    if not files.num_rows:
        return ()
    codes, names, levels = _names(files)
    by_path = pc.sort_indices(files["path"]).to_numpy().astype(np.int64)
    order = by_path[np.argsort(codes[by_path], kind="stable")]
    codes = codes[order]
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    stops = np.append(starts[1:], len(codes))
    columns = FileColumns(files, order, codes, names, time)
    every = np.arange(len(order))
    first = files.select(["path", "tags"]).take(pa.array(order[starts]))
    modified = files["modified_ms"].to_numpy()[order]
    major = pc.fill_null(pc.equal(_tag(files, TAG_TYPE), TYPE_MAJOR), False)
    facts = zip(
        codes[starts].tolist(),
        starts.tolist(),
        stops.tolist(),
        np.minimum.reduceat(_sequences(files)[order], starts).tolist(),
        np.maximum.reduceat(columns.deleted, starts).tolist(),
        np.logical_or.reduceat(np.asarray(major)[order], starts).tolist(),
        np.minimum.reduceat(modified, starts).tolist(),
        np.add.reduceat(columns.size, starts).tolist(),
        _parents(_tag(first, TAG_PARENTS)),
        _hulls(columns, starts),
        strict=True,
    )
    found = [
        Segment(
            name=names[code],
            level=levels[code] if code < len(levels) else 0,
            sequence=sequence,
            files=SegmentFiles(columns, every[start:stop]),
            status=SegmentStatus.MARKED_FOR_UPDATE if deleted else SegmentStatus.SUCCESS,
            parents=parents,
            major=is_major,
            interval=hull,
            load_ms=load_ms,
            size_bytes=size,
        )
        for code, start, stop, sequence, deleted, is_major, load_ms, size, parents, hull in facts
    ]
    paths = first["path"].to_pylist()
    places = sorted(range(len(found)), key=lambda at: (found[at].sequence, paths[at]))
    return tuple(found[at] for at in places)


def _names(files: pa.Table) -> tuple[IntArray, list[str], list[int]]:
    """The segment of each file as a code, the names by code, and the levels of the first names;
    the levels of the others are 0."""
    tags = _tag(files, TAG_SEGMENT).dictionary_encode("encode")
    texts = tags.dictionary.to_pylist()
    parsed = [parse_name(text) if text is not None else None for text in texts]
    ours = np.array([name is not None for name in parsed], bool)
    codes = tags.indices.to_numpy().astype(np.int64)
    foreign = np.flatnonzero(~ours[codes])
    names = {text: code for code, text in enumerate(texts)}
    paths = files["path"].take(pa.array(foreign)).to_pylist()
    codes[foreign] = [names.setdefault(foreign_name(path), len(names)) for path in paths]
    return codes, list(names), [name.level if name is not None else 0 for name in parsed]


def _sequences(files: pa.Table) -> IntArray:
    """The order key of each file, in milliseconds."""
    text = _tag(files, TAG_SEQUENCE)
    valid = pc.fill_null(pc.match_substring_regex(text, f"^(?:{SEQUENCE_PATTERN})$"), False)
    number = pc.cast(pc.if_else(valid, text, None), pa.int64())
    found: IntArray = pc.coalesce(number, files["modified_ms"].combine_chunks()).to_numpy()
    return found


def _hulls(columns: FileColumns, starts: IntArray) -> Iterator[TimeInterval | None]:
    """The interval that all files of each segment cover; None if one of them is unknown."""
    codes = columns.interval_codes
    known = np.minimum.reduceat(codes, starts) >= 0
    ends = [(i.start_ms, i.end_ms) if i is not None else (0, 0) for i in columns.intervals]
    start_ms, end_ms = np.array(ends, np.int64)[codes].T
    starts_ms = np.minimum.reduceat(start_ms, starts)
    ends_ms = np.maximum.reduceat(end_ms, starts)
    for each, low, high in zip(known.tolist(), starts_ms.tolist(), ends_ms.tolist(), strict=True):
        yield TimeInterval(low, high) if each else None


def _parents(tags: pa.Array) -> list[Lineage]:
    texts = tags.dictionary_encode("encode")
    found = [parse_lineage(text or "") for text in texts.dictionary.to_pylist()]
    return [found[code] for code in texts.indices.to_pylist()]


def _tag(files: pa.Table, key: str) -> pa.Array:
    return pc.map_lookup(files["tags"], key, "first").combine_chunks()


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
    """The sequence in the tags, `otherwise` if they hold none."""
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
    """The tags of an output file. `row_map` is the path of the published row map, `layout` a
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
    """`ZOrder:carrier,hour`: the value of `TAG_LAYOUT`. Characters of a name that would act as
    separators are percent-encoded."""
    names = (name.replace("%", "%25").replace(",", "%2C") for name in columns)
    return f"{strategy}:{','.join(names)}"


def successor_tags(add: AddFile, *, row_map: str, layout: str = "") -> dict[str, str]:
    """The tags of a file that replaces `add` within its segment: the same name, position in the
    order, lineage and chunk. A foreign file's segment keeps its name, too, although the new path
    would give another one (decision 0082). With `layout` its rows were sorted separately, so the
    order of the whole segment no longer holds."""
    ours = {key: value for key, value in add.tags.items() if key.startswith(_OURS)}
    if layout and ours.get(TAG_LAYOUT) != layout:
        ours.pop(TAG_LAYOUT, None)
    return {
        **ours,
        TAG_SEGMENT: segment_name(add),
        TAG_SEQUENCE: str(sequence_of(add)),
        TAG_ROW_MAP: row_map,
    }
