"""The segments of a table at one version, as a function of its live files.

A segment is the data files that one operation added (docs/concepts.md). Files that Tandem writes
name it in their tags; every other file is a segment of its own. Segments are ordered by the
sequence in the tag, else by modification time, then by path. An invalid tag counts as absent: no
tag can make a table unreadable.

Names and order of the live files' segments are also read from the tags column alone.

Every round of the commit loop needs them, also for tables of a million files; whole segments are
for planning and display.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import AddFile, Commit, RemoveFile
from tandem.delta.clustering import CUBE_COLUMNS, CUBE_ID
from tandem.delta.log import files as files_
from tandem.distinct import BoolArray, IntArray
from tandem.intervals import TimeInterval
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK, TAG_LAYOUT, FileColumns
from tandem.timeline.lineage import Lineage, format_lineage, parse_lineage
from tandem.timeline.names import foreign_name, name_files, parse_name
from tandem.timeline.segment_files import SegmentFile, SegmentFiles

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
    def loads(self) -> str:
        """The numbers of the loads that it was made from, as `0-3,7`; empty if unknown."""
        files = SegmentFiles.of([self.files])
        return str(files.columns.roots.take(files.places)) if files is not None else ""

    @property
    def order(self) -> tuple[int, str]:
        return (self.sequence, self.files[0].path if self.files else self.name)


class Segments(Sequence[Segment]):
    """Live segments of one version, as indexes into columns, in their order. A `Segment` is created
    on access: one that no plan takes costs no Python object."""

    __slots__ = ("codes", "columns")

    def __init__(self, columns: SegmentColumns, codes: IntArray) -> None:
        self.columns, self.codes = columns, codes

    @classmethod
    def of(cls, found: Sequence[Segment]) -> Segments:
        """The same live segments of one version, whatever sequence holds them."""
        if isinstance(found, Segments):
            return found
        files = SegmentFiles.of(segment.files for segment in found)
        if files is None:
            return segments(files_.from_adds(()))
        starts = np.flatnonzero(np.diff(files.columns.segments, prepend=-1))
        codes = np.array([segment.files[0].segment_code for segment in found], np.int64)
        levels, sequences = np.zeros_like(starts), np.zeros_like(starts)
        levels[codes] = [segment.level for segment in found]
        sequences[codes] = [segment.sequence for segment in found]
        return cls(SegmentColumns(files.columns, starts, levels, sequences), codes)

    @property
    def files(self) -> SegmentFiles:
        """The files of all segments, in order of segments."""
        starts, counts = self.columns.starts[self.codes], self.columns.counts[self.codes]
        ends = np.cumsum(counts)
        shift = np.repeat(starts - ends + counts, counts)
        return SegmentFiles(self.columns.files, np.arange(len(shift)) + shift)

    @property
    def levels(self) -> IntArray:
        return self.columns.levels[self.codes]

    @property
    def sequences(self) -> IntArray:
        return self.columns.sequences[self.codes]

    @property
    def sizes(self) -> IntArray:
        return self.columns.sizes[self.codes]

    @property
    def major(self) -> BoolArray:
        return self.columns.major[self.codes]

    def where(self, mask: BoolArray) -> Segments:
        """The segments for which `mask` (one entry per segment) is true."""
        return Segments(self.columns, self.codes[mask])

    def named(self, names: Collection[str]) -> BoolArray:
        """Which of the segments have one of the names."""
        if not names:
            return np.zeros(len(self.codes), np.bool_)
        mask: BoolArray = self.columns.files.names.among(names)[self.codes]
        return mask

    def among(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that segments have."""
        return frozenset(self.columns.names_of(self.codes[self.named(names)]))

    def having(self, files: SegmentFiles) -> BoolArray:
        """Which of the segments have one of the files."""
        has = np.zeros(len(self.columns.starts), np.bool_)
        has[files.segments] = True
        mask: BoolArray = has[self.codes]
        return mask

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[Segment]:
        return map(self.columns.segment, self.codes.tolist())

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> Segments: ...
    def __getitem__(self, index: int | slice) -> Segment | Segments:
        if isinstance(index, slice):
            return Segments(self.columns, self.codes[index])
        return self.columns.segment(int(self.codes[index]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Segments({list(self)!r})"


class SegmentColumns:
    """The live segments of a version in their order, by the files of each: `files` holds those of
    segment `n` from `starts[n]` on, in order of their path."""

    def __init__(
        self, files: FileColumns, starts: IntArray, levels: IntArray, sequences: IntArray
    ) -> None:
        self.files, self.starts, self.levels, self.sequences = files, starts, levels, sequences
        self.counts = np.diff(np.append(starts, len(files.segments)))

    @cached_property
    def sizes(self) -> IntArray:
        found: IntArray = np.add.reduceat(self.files.size, self.starts)
        return found

    @cached_property
    def major(self) -> BoolArray:
        major = np.asarray(pc.fill_null(pc.equal(self.files.tags(TAG_TYPE), TYPE_MAJOR), False))
        found: BoolArray = np.logical_or.reduceat(major, self.starts)
        return found

    @cached_property
    def _loaded(self) -> IntArray:
        found: IntArray = np.minimum.reduceat(self.files.ordered("modified_ms"), self.starts)
        return found

    @cached_property
    def _parents(self) -> pa.Array:
        return self.files.tags(TAG_PARENTS).take(pa.array(self.starts))

    def names_of(self, codes: IntArray) -> list[str]:
        return list(self.files.names.take(codes).to_pylist())

    def segment(self, code: int) -> Segment:
        start = int(self.starts[code])
        files = SegmentFiles(self.files, np.arange(start, start + int(self.counts[code])))
        deleted = self.files.deleted[files.places].any()
        return Segment(
            name=self.files.names[code],
            level=int(self.levels[code]),
            sequence=int(self.sequences[code]),
            files=files,
            status=SegmentStatus.MARKED_FOR_UPDATE if deleted else SegmentStatus.SUCCESS,
            parents=parse_lineage(self._parents[code].as_py() or ""),
            major=bool(self.major[code]),
            interval=files.hull,
            load_ms=int(self._loaded[code]),
            size_bytes=int(self.sizes[code]),
        )


def segments(files: pa.Table, time: TimeColumn | None = None) -> Segments:
    """The live segments of a version in their order.

    Args:
        files: the working set of the version (`Snapshot.files`), in any order.
        time: the table's time column, if its LakeTable names one.
    """
    codes, names, levels = name_files(
        files_.tag(files, TAG_SEGMENT), files["path"].combine_chunks()
    )
    by_code = np.argsort(codes, kind="stable")
    starts = _starts(codes[by_code])
    sequences = sequences_of(files)[by_code]
    sequences = np.minimum.reduceat(sequences, starts) if len(starts) else sequences
    ranks = _ranks(files, by_code, starts, sequences)
    first = np.minimum.reduceat(ranks[by_code], starts) if len(starts) else ranks
    in_order = np.lexsort((first, sequences))
    used = codes[by_code[starts]][in_order]
    numbers = np.zeros(len(names), np.int64)
    numbers[used] = np.arange(len(used))
    codes = numbers[codes]
    order = np.lexsort((ranks, codes))
    codes = codes[order]
    starts = _starts(codes)
    columns = FileColumns(files, order, codes, names.ordered(used), time)
    found = SegmentColumns(columns, starts, levels[order[starts]], sequences[in_order])
    return Segments(found, np.arange(len(starts)))


def _starts(codes: IntArray) -> IntArray:
    """Where each code begins, in a column in order of codes."""
    return np.flatnonzero(np.diff(codes, prepend=-1))


def _ranks(files: pa.Table, by_code: IntArray, starts: IntArray, sequences: IntArray) -> IntArray:
    """The order of paths. It matters within segments of several files and between segments of one
    sequence; files of other segments have rank 0, since to sort all paths takes long."""
    counts = np.diff(np.append(starts, len(by_code)))
    in_order = np.sort(sequences)
    tied = in_order[1:][in_order[1:] == in_order[:-1]]
    chosen = by_code[np.repeat((counts > 1) | np.isin(sequences, tied), counts)]
    ranks = np.zeros(len(by_code), np.int64)
    by_path = pc.sort_indices(files["path"].take(pa.array(chosen))).to_numpy()
    ranks[chosen[by_path]] = np.arange(len(chosen))
    return ranks


def sequences_of(files: pa.Table) -> IntArray:
    """The order key of each file, in milliseconds."""
    text = files_.tag(files, TAG_SEQUENCE)
    valid = pc.fill_null(pc.match_substring_regex(text, f"^(?:{SEQUENCE_PATTERN})$"), False)
    number = pc.cast(pc.if_else(valid, text, None), pa.int64())
    found: IntArray = pc.coalesce(number, files["modified_ms"].combine_chunks()).to_numpy()
    return found


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


def layout_columns(label: str) -> tuple[str, ...]:
    """The columns that a value of `TAG_LAYOUT` names; none for a text of another form."""
    _, _, names = label.partition(":")
    return tuple(name.replace("%2C", ",").replace("%25", "%") for name in names.split(",") if name)


def successor_tags(add: AddFile, *, row_map: str, layout: str = "") -> dict[str, str]:
    """The tags of a file that replaces `add` within its segment: the same name, position in the
    order, lineage and chunk. A foreign file's segment keeps its name, too, although the new path
    would give another one (decision 0082). With `layout` its rows were sorted separately, so the
    order of the whole segment no longer holds."""
    ours = {key: value for key, value in add.tags.items() if key.startswith(_OURS)}
    if layout and ours.get(TAG_LAYOUT) != layout:
        ours.pop(TAG_LAYOUT, None)
    if TAG_LAYOUT in ours:
        ours |= {key: add.tags[key] for key in (CUBE_ID, CUBE_COLUMNS) if key in add.tags}
    return {
        **ours,
        TAG_SEGMENT: segment_name(add),
        TAG_SEQUENCE: str(sequence_of(add)),
        TAG_ROW_MAP: row_map,
    }


@dataclass(frozen=True, slots=True)
class LiveTags:
    """`names`: those of live tagged segments (the name `f-…` of a foreign segment cannot equal a
    name of ours). `mentioned`: these and the names of their parents. `newest`: the highest
    sequence in milliseconds, None for an empty table."""

    names: frozenset[str]
    mentioned: frozenset[str]
    newest: int | None

    def next_sequence(self, now_ms: int) -> int:
        """The sequence of a new segment: the time of its commit, but higher than every live one
        even if clocks disagree."""
        return now_ms if self.newest is None else max(now_ms, self.newest + 1)


def read_live_tags(files: pa.Table, *, without: Collection[str] = ()) -> LiveTags:
    """The tags of a working set (`Snapshot.files`), except for the logged paths in `without`."""
    files = _left(files, without)
    names = _names(files)
    return LiveTags(names, _mentioned(files, names), _newest(files))


def live_names(files: pa.Table, *, without: Collection[str] = ()) -> frozenset[str]:
    """`names` of `read_live_tags` only: reading its other columns takes longer."""
    return _names(_left(files, without))


def mentioned_names(files: pa.Table) -> frozenset[str]:
    """`mentioned` of `read_live_tags` only."""
    return _mentioned(files, _names(files))


def _left(files: pa.Table, without: Collection[str]) -> pa.Table:
    if not without:
        return files
    return files.filter(pc.invert(pc.is_in(files["path"], pa.array(without, pa.string()))))


def _names(files: pa.Table) -> frozenset[str]:
    return frozenset(
        name for name in _values(files, TAG_SEGMENT) if name and parse_name(name) is not None
    )


def _mentioned(files: pa.Table, names: frozenset[str]) -> frozenset[str]:
    parents = (parse_lineage(text).mentioned() for text in _values(files, TAG_PARENTS) if text)
    return names.union(*parents)


def _values(files: pa.Table, key: str) -> list[str | None]:
    return list(pc.unique(files_.tag(files, key)).to_pylist())


def _newest(files: pa.Table) -> int | None:
    sequence = files_.tag(files, TAG_SEQUENCE)
    valid = pc.fill_null(pc.match_substring_regex(sequence, f"^(?:{SEQUENCE_PATTERN})$"), False)
    found = [
        pc.max(pc.cast(pc.filter(sequence, valid), pa.int64())).as_py(),
        pc.max(pc.filter(files["modified_ms"], pc.invert(valid))).as_py(),
    ]
    return max((value for value in found if value is not None), default=None)


# Former segments, reconstructed from recent commits and the lineage of live segments.
#
# Log clean-up deletes commits, so this is for display and messages ("was compacted") only: plans
# use live segments.


@dataclass(slots=True)
class _GoneSegment:
    """What is known of a segment whose files were removed."""

    sequence: int
    load_ms: int
    size_bytes: int = 0
    parents: Lineage = field(default_factory=Lineage)
    major: bool = False
    rows_live_on: bool = True


def retired(live: Sequence[Segment], commits: Iterable[Commit] = ()) -> tuple[Segment, ...]:
    """Segments that are no longer live, in segment order, with status and without files.

    `Compacted`: the commit that removed the last files changed no data (a compaction, by Tandem
    or another writer), or it is no longer in the log and a known segment names this one as its
    parent. `MarkedForDelete`: all others.

    Args:
        live: the live segments of the version.
        commits: the commits up to that version that are still in the log, ascending. Without
            them only parents of live segments are known (by name).
    """
    live = tuple(live)  # a `Segments` creates its segments whenever it is iterated
    alive = {segment.name for segment in live}
    added: dict[str, AddFile] = {}
    gone: dict[str, _GoneSegment] = {}
    for commit in commits:
        for add in commit.adds:
            added[add.logged_path] = add
        readded = {add.logged_path for add in commit.adds}
        keeps_rows = not any(add.data_change for add in commit.adds)
        # A segment rewritten under its own name is still live and must not be listed twice.
        renewed = {segment_name(add) for add in commit.adds}
        for remove in commit.removes:
            if remove.logged_path not in readded:
                name = _name(remove, added)
                if name not in alive and name not in renewed:
                    _note(gone, name, remove, added, keeps_rows and not remove.data_change)
    for child in [*((s.parents, s.sequence) for s in live), *_children(gone)]:
        for name in child[0]:
            if name not in alive and name not in gone:
                gone[name] = _GoneSegment(sequence=child[1], load_ms=0)
    found = [_segment(name, facts) for name, facts in gone.items()]
    return tuple(sorted(found, key=lambda segment: (segment.sequence, _natural(segment.name))))


def _children(gone: Mapping[str, _GoneSegment]) -> list[tuple[Lineage, int]]:
    return [(facts.parents, facts.sequence) for facts in gone.values()]


def _note(
    gone: dict[str, _GoneSegment],
    name: str,
    remove: RemoveFile,
    added: Mapping[str, AddFile],
    rows_live_on: bool,
) -> None:
    tags = _tags(remove, added)
    add = added.get(remove.logged_path)
    modified = add.modified_ms if add is not None else 0
    facts = gone.get(name)
    if facts is None:
        sequence = parse_sequence(tags, modified)
        facts = gone[name] = _GoneSegment(sequence=sequence, load_ms=modified)
    facts.size_bytes += remove.size or (add.size if add is not None else 0)
    facts.parents = facts.parents or parse_lineage(tags.get(TAG_PARENTS, ""))
    facts.major = facts.major or tags.get(TAG_TYPE) == TYPE_MAJOR
    # The removal of the last files determines the segment's status.
    facts.rows_live_on = rows_live_on


def _name(remove: RemoveFile, added: Mapping[str, AddFile]) -> str:
    text = _tags(remove, added).get(TAG_SEGMENT, "")
    return text if parse_name(text) is not None else foreign_name(remove.logged_path)


def _tags(remove: RemoveFile, added: Mapping[str, AddFile]) -> Mapping[str, str]:
    """Tags of a removed file: of its `remove` if the writer repeated them, else of its `add`."""
    own = remove.extra.get("tags")
    if isinstance(own, Mapping) and own:
        return own
    add = added.get(remove.logged_path)
    return add.tags if add is not None else {}


def _segment(name: str, facts: _GoneSegment) -> Segment:
    parsed = parse_name(name)
    status = SegmentStatus.COMPACTED if facts.rows_live_on else SegmentStatus.MARKED_FOR_DELETE
    return Segment(
        name=name,
        level=parsed.level if parsed else 0,
        sequence=facts.sequence,
        files=(),
        status=status,
        parents=facts.parents,
        major=facts.major,
        load_ms=facts.load_ms,
        size_bytes=facts.size_bytes,
    )


def _natural(name: str) -> tuple[int, int, str]:
    parsed = parse_name(name)
    if parsed is None or parsed.number is None:
        return (1 << 62, 0, name)
    return (parsed.number, parsed.level, name)
