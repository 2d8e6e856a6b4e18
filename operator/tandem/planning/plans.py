"""The values of planning: the request, and the plan.

A *run* becomes one output segment; its *bins* become Spark tasks. A plan only proposes names for
outputs (`SegmentRun.output`); the commit loop assigns them (`tandem.timeline.names`).

Runs of segments, and the bins into which their files are packed: units of rewriting, and
whether rewriting one pays. Shared by all kinds of compaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.distinct import BoolArray, IntArray
from tandem.intervals import ALWAYS, TimeInterval
from tandem.spec.compaction import (
    DEFAULT_TARGET_FILE_SIZE,
    CompactionTemplate,
    CompactionType,
    LayoutStrategy,
    Spanning,
)
from tandem.timeline import lineage
from tandem.timeline.chunks import components
from tandem.timeline.file_columns import Partition
from tandem.timeline.lineage import Lineage
from tandem.timeline.names import derived_name
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segments, layout_label

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A TableCompaction's spec as planning needs it; sizes in bytes.

    Attributes:
        thresholds: how many segments of level 0, and of level 1, make a minor compaction.
        preserve: how many of the latest segments are left out (`Minor`, `Major`).
        max_segment_size: `Minor` skips segments of this size or more; None for no limit.
        target_segment_size: `Major` collects segments to less than this in total.
        chunks: `SemiMajor`: names of chunks; () for all.
        cuts: `SemiMajor` takes from files that span a chunk and others only the rows of the chunks.
        segments: `Custom`: names of segments.
        selected: `Custom`: paths of the files that a `where` selects; exclusive with `segments`.
        layout, layout_columns: the order in which rows are written (`layout`).
        among: `Minor` considers these segments only; None for all.
        adjacent_only: `Minor` plans only runs of adjacent loads (`adjacency`).
        skip_offset_ms: files this close to the newest data are left out (`skip_offset`).
        excluded: segments that another operation holds now. The plan ignores them: its names, sizes
            and minimum counts are right for the others (I-28).
        resource: the resource of the request, for messages: `TableCompaction/nightly`.
    """

    type: CompactionType
    thresholds: tuple[int, ...] = (4, 3)
    preserve: int = 0
    max_segment_size: int | None = None
    target_segment_size: int = GIB
    chunks: tuple[str, ...] = ()
    cuts: bool = False
    segments: tuple[str, ...] = ()
    selected: frozenset[str] | None = None
    target_file_size: int = 128 * MIB
    layout: LayoutStrategy = LayoutStrategy.BIN_PACK
    layout_columns: tuple[str, ...] = ()
    among: frozenset[str] | None = None
    adjacent_only: bool = False
    skip_offset_ms: int = 0
    excluded: frozenset[str] = frozenset()
    resource: str = ""

    @classmethod
    def of(
        cls,
        spec: CompactionTemplate,
        *,
        selected: frozenset[str] | None = None,
        excluded: frozenset[str] = frozenset(),
        target_file_size: int = DEFAULT_TARGET_FILE_SIZE,
        resource: str = "",
    ) -> CompactionRequest:
        """The request of a resource. `selected` are the files that its `custom.where` selects; the
        caller determines them, since that needs the table's schema. `target_file_size` is that of
        the table, for a resource without one."""
        minor, custom = spec.minor_options, spec.custom
        return cls(
            type=spec.type,
            thresholds=minor.thresholds,
            preserve=minor.preserve if spec.type is CompactionType.MINOR else 0,
            max_segment_size=minor.max_segment_size,
            target_segment_size=spec.major_options.target_segment_size,
            chunks=spec.semi_major_options.chunks or (),
            cuts=spec.semi_major_options.spanning is Spanning.CUT,
            segments=(custom.segments or ()) if custom else (),
            selected=selected,
            target_file_size=spec.target_file_size or target_file_size,
            layout=spec.layout.strategy,
            layout_columns=spec.layout.columns,
            among=frozenset(minor.segments) if minor.segments is not None else None,
            adjacent_only=bool(minor.adjacent_only),
            skip_offset_ms=spec.skip_offset_from_latest or 0,
            excluded=excluded,
            resource=resource,
        )

    @property
    def layout_label(self) -> str:
        """The value of the outputs' layout tag; "" if rows keep their order."""
        if self.layout is LayoutStrategy.BIN_PACK:
            return ""
        return layout_label(self.layout.value, self.layout_columns)


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One iteration of CarbonData's loop: exactly these segments in this order become `output`.

    `output` is CarbonData's name if it has one. After a foreign first input, whose output gets a
    new number in the commit loop, it is a stand-in: the first input's name, `.` and the level.
    """

    inputs: tuple[str, ...]
    output: str
    level: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition (and one chunk, with a time column) that are rewritten together, in
    segment order. `live_bytes` is an estimate."""

    files: Sequence[SegmentFile]
    partition: tuple[tuple[str, str | None], ...]
    live_bytes: int
    expected_files: int


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments that are rewritten as one.

    Attributes:
        segments: names of the existing inputs, in order. The first determines output name, level
            and sequence.
        output: the proposed name, None if only the commit loop can determine it.
        sequence: order key of the output: that of its first input.
        steps: the steps of CarbonData that a minor run combines; else one.
        interval: the interval of the inputs; None without a time column or if unknown.
        major: the output is marked as CarbonData's majorCompacted: minor plans skip it.
    """

    segments: tuple[str, ...]
    output: str | None
    level: int
    sequence: int
    steps: tuple[MergeStep, ...]
    bins: tuple[Bin, ...]
    interval: TimeInterval | None = None
    major: bool = False

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(file for each in self.bins for file in each.files)

    @property
    def input_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def parents(self) -> Lineage:
        """The lineage of its output."""
        return lineage.of(self.segments)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Runs that share no file. Without runs, `nothing` is one sentence that says why.

    All bytes are of files as stored; `expected_*` are estimates.
    """

    runs: tuple[SegmentRun, ...]
    nothing: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of all inputs, in order, without duplicates: the resources to lock."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.segments))

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(file for run in self.runs for file in run.files)

    @property
    def input_bytes(self) -> int:
        return sum(run.input_bytes for run in self.runs)

    @property
    def expected_files(self) -> int:
        return sum(each.expected_files for run in self.runs for each in run.bins)

    @property
    def expected_bytes(self) -> int:
        return sum(each.live_bytes for run in self.runs for each in run.bins)


# Builds runs from chosen files of segments. Shared by all kinds of compaction.


def build_run(
    segments: Segments,
    files: SegmentFiles,
    bins: tuple[Bin, ...],
    *,
    level: int | None = None,
    steps: tuple[MergeStep, ...] = (),
    major: bool = False,
) -> SegmentRun:
    """The run that merges `files` (at least one, of any order), packed as `bins`.

    `level` is by default one more than that of the first segment, `steps` the run as a single step.
    """
    columns = segments.columns
    codes = np.unique(files.segments)
    names = tuple(columns.names_of(codes))
    first = codes[0]
    level = int(columns.levels[first]) + 1 if level is None else level
    return SegmentRun(
        segments=names,
        output=derived_name(names[0], level),
        level=level,
        sequence=int(columns.sequences[first]),
        steps=steps or (MergeStep(names, step_name(names[0], level), level),),
        bins=bins,
        interval=files.hull,
        major=major,
    )


def step_name(first: str, level: int) -> str:
    """The name of a step's output within a plan: see `MergeStep.output`."""
    return derived_name(first, level) or f"{first}.{level}"


def proposed_names(runs: Sequence[SegmentRun], live: Segments) -> Iterator[SegmentRun]:
    """The runs, with `output` only if the commit loop would assign that name at this version."""
    used = set(live.among({run.output for run in runs if run.output is not None}))
    for run in runs:
        if run.output is None or run.output in used:
            yield replace(run, output=None)
        else:
            used.add(run.output)
            yield run


# Packs the files of a run into bins: units of rewriting; and whether rewriting one pays.


FULL_SHARE = 0.75
"""A file of at least this share of the target size is full: rewriting it gains nothing. The
remaining quarter allows for compression that is better in one big file than estimated."""

OVERRUN = 1.25
"""How far a bin may exceed the target size, if the alternative is a bin that is not full."""

MOST_SORTED_ROWS = 2**32 - 1
"""The most rows of a sorted bin: its row map has ranks of four bytes (`rowmap.run_table`)."""

DELETED_SHARE = 0.05
"""A file with a larger share of deleted rows is worth rewriting alone (Delta Lake's OPTIMIZE uses
the same limit)."""


def pack(
    files: SegmentFiles, target_file_size: int, *, useful_only: bool = False
) -> tuple[Bin, ...]:
    """Bins of about `target_file_size` estimated live bytes.

    Files of different partitions never share a bin, nor do files of different time chunks unless a
    file that spans them is among the files. Within a group the given order (segment order) is
    kept; if a file spans chunks, its group is ordered by time first. A file larger than the target
    gets a bin of its own.

    A bin that is not full yet may exceed the target by a quarter: otherwise files of a little over
    half the target would stay alone forever. So may the last but one, to include a remainder. A
    writer must not cut such an overrun off into a small file: a bin is written as
    `Bin.expected_files` files.

    With `useful_only` the result has only bins for which `is_worth_rewriting` is true.
    """
    bins: list[Bin] = []
    for partition, members in _groups(files):
        sizes = members.live_bytes.tolist()
        cuts = _cuts(sizes, target_file_size)
        if useful_only:
            stale = (members.deleted_shares > DELETED_SHARE).tolist()
            cuts = [cut for cut in cuts if cut[1] - cut[0] > 1 or stale[cut[0]]]
        for start, stop in cuts:
            chosen = members[start:stop]
            found = _bin(chosen, partition, sum(sizes[start:stop]), target_file_size)
            if not useful_only or is_worth_rewriting(found):
                bins.append(found)
    return tuple(bins)


def bin_of(files: SegmentFiles, target_file_size: int) -> Bin:
    """These files of one partition, at least one, as one bin in this order."""
    live_bytes = int(files.live_bytes.sum())
    return _bin(files, partition_of(files[0]), live_bytes, target_file_size)


def can_change(files: SegmentFiles, runs: IntArray, target_file_size: int) -> BoolArray:
    """For each file whether it can make a bin of `pack` useful, if each run is packed separately.

    False only if it cannot: no two files of its run and partition are small enough to share a bin,
    and few of its rows are deleted. So a run none of whose files can change anything needs no bins.
    """
    partitions, distinct = files.columns.by_partition
    groups = runs * len(distinct) + partitions[files.places]
    sizes = files.live_bytes
    order = np.lexsort((sizes, groups))
    groups, sizes = groups[order], sizes[order]
    # `_fits` adds no file to another if both together exceed this.
    pairs = (groups[1:] == groups[:-1]) & (sizes[1:] + sizes[:-1] <= OVERRUN * target_file_size)
    found = files.deleted_shares > DELETED_SHARE
    found[order[1:][pairs]] = True
    return found


def one_bin_per_group(files: SegmentFiles, target_file_size: int) -> tuple[Bin, ...]:
    """One bin of all files of a partition and chunk, however large: the files to sort are sorted
    together, and the result is cut into files."""
    return tuple(
        _bin(chosen, partition, int(chosen.live_bytes.sum()), target_file_size)
        for partition, members in _groups(files)
        for chosen in _countable(members)
    )


def _countable(members: SegmentFiles) -> Iterator[SegmentFiles]:
    """All of them, unless they have more rows than the ranks of one row map can number."""
    start = rows = 0
    for at, count in enumerate(np.maximum(members.row_counts, 0).tolist()):
        rows += count
        if rows > MOST_SORTED_ROWS and at > start:
            yield members[start:at]
            start, rows = at, count
    yield members[start:]


def is_in_order(each: Bin, label: str) -> bool:
    """Whether a bin's rows are in the order of a layout: one operation wrote them together, and
    few of them were deleted since."""
    files = each.files
    assert isinstance(files, SegmentFiles)
    return bool(
        (files.segments == files.segments[0]).all()
        and (files.deleted_shares <= DELETED_SHARE).all()
        and files.have_layout(label).all()
    )


def _cuts(sizes: Sequence[int], target: int) -> list[tuple[int, int]]:
    """Where the files of a group, of these live bytes, are cut into consecutive bins."""
    starts = [0]
    totals = [0]
    for at, size in enumerate(sizes):
        if at > starts[-1] and not _fits(totals[-1], size, target):
            starts.append(at)
            totals.append(0)
        totals[-1] += size
    if (
        len(starts) > 1
        and totals[-1] < FULL_SHARE * target
        and sum(totals[-2:]) <= OVERRUN * target
    ):
        # A remainder would be one more task, and a small file to compact again.
        starts.pop()
    return list(zip(starts, [*starts[1:], len(sizes)], strict=True))


def _fits(size: int, more: int, target: int) -> bool:
    if size < FULL_SHARE * target:
        return size + more <= OVERRUN * target
    return size + more <= target


def is_worth_rewriting(each: Bin) -> bool:
    """Whether rewriting a bin leaves fewer files, or removes many deleted rows."""
    if len(each.files) > each.expected_files:
        return True
    if isinstance(each.files, SegmentFiles):
        return bool((each.files.deleted_shares > DELETED_SHARE).any())
    return any(file.deleted_share > DELETED_SHARE for file in each.files)


def full_files(files: SegmentFiles, target_file_size: int) -> BoolArray:
    """Which files need no rewriting: big enough and with few deleted rows."""
    big: BoolArray = files.live_bytes >= FULL_SHARE * target_file_size
    return big & (files.deleted_shares <= DELETED_SHARE)


def partition_of(file: SegmentFile) -> Partition:
    return tuple(sorted(file.partition_values.items()))


def by_partition(files: SegmentFiles) -> list[tuple[Partition, SegmentFiles]]:
    """Files by partition, in the order of the first file of each."""
    numbers, partitions = files.columns.by_partition
    found = files.grouped(numbers[files.places])
    return [(partitions[number], members) for number, members in found]


def by_chunk(files: SegmentFiles) -> list[SegmentFiles]:
    """Files by time chunk, or by the hull of chunks that a file among them links; in order of
    time, those of unknown time last (all of them if no time column is set)."""
    intervals = files.columns.intervals
    chunks = files.grouped(files.interval_codes)
    if len(chunks) < 2:
        return [group for _, group in chunks]
    hulls = components(time for code, _ in chunks if (time := intervals[code]) is not None)
    linked: dict[TimeInterval | None, dict[int, SegmentFiles]] = {}
    for code, group in chunks:
        time = intervals[code]
        linked.setdefault(hulls[time] if time is not None else None, {})[code] = group
    by_time = sorted(linked.items(), key=lambda each: (each[0] is None, each[0] or ALWAYS))
    return [_together(files, groups) for _, groups in by_time]


def _together(files: SegmentFiles, groups: Mapping[int, SegmentFiles]) -> SegmentFiles:
    """The files of these groups, by code of their interval. If there are several groups, a file
    spans chunks: then files are in order of time, those with the same start in their own order."""
    if len(groups) == 1:
        return next(iter(groups.values()))
    found = files.where(np.isin(files.interval_codes, list(groups)))
    starts = np.array([0 if i is None else i.start_ms for i in files.columns.intervals], np.int64)
    order = np.argsort(starts[found.interval_codes], kind="stable")
    return SegmentFiles(found.columns, found.places[order])


def _groups(files: SegmentFiles) -> Iterator[tuple[Partition, SegmentFiles]]:
    for partition, members in by_partition(files):
        for group in by_chunk(members):
            yield partition, group


def _bin(files: SegmentFiles, partition: Partition, live_bytes: int, target: int) -> Bin:
    # A bin whose rows are all deleted leaves no file.
    gone = not live_bytes and all(
        file.deleted and file.rows and file.deleted >= file.rows for file in files
    )
    expected = 0 if gone else max(1, round(live_bytes / target))
    return Bin(files, partition, live_bytes, expected)
