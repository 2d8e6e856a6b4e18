"""Major, semi-major and custom compaction: which segments or files make one run; and the files that
a segment rewrite names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.distinct import BoolArray, IntArray
from tandem.errors import InvalidSpec, UnknownSegment
from tandem.intervals import IntervalSet, TimeInterval
from tandem.planning.layout import bins_of, may_gain, rewrite_criterion, useful_bins
from tandem.planning.plans import (
    Bin,
    CompactionRequest,
    SegmentRun,
    build_run,
    by_chunk,
    by_partition,
    full_files,
    is_worth_rewriting,
    pack,
    partition_of,
)
from tandem.spec.compaction import CompactionType, SegmentRewriteSpec
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TAG_MASKED, parse_chunk, parse_masked
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segment, Segments

# Major compaction: one contiguous run of segments up to a size.
#
# CarbonData's rule (`identifySegmentsToBeMergedBasedOnSize`): collect segments in order while
# their sum stays below the target. A single segment over the target ends the run if it has two or
# more segments, else collecting starts again after it; a segment that would make the sum too big
# ends the run if it has two or more, else collecting starts again with it. One pass, one run:
# segments loaded meanwhile wait for the next one. The output is marked `Major`.
#
# With a layout, segments that CarbonData would leave alone are runs of one: also a single segment
# is rewritten to be sorted, whatever its size, unless its rows are in that order already.


def major_runs(
    segments: Segments,
    request: CompactionRequest,
    *,
    young: frozenset[str] = frozenset(),
) -> list[SegmentRun]:
    """The first contiguous run that is worth rewriting, or none. A segment with one of the files
    in `young` is left out."""
    kept = segments[: max(len(segments) - request.preserve, 0)]
    excluded = kept.named(request.excluded)
    files = kept.files
    if young:
        excluded |= kept.having(files.where(files.among(young)))
    sorts = bool(request.layout_label)
    target = request.target_segment_size
    spans = list(size_runs(kept.sizes, target, excluded, singles=sorts))
    runs = np.full(len(segments.columns.starts), -1, np.int64)
    for number, (start, stop) in enumerate(spans):
        runs[kept.codes[start:stop]] = number
    for _, chosen in may_gain(files, runs[files.segments], request):
        bins = bins_of(chosen, request)
        if any(map(rewrite_criterion(request), bins)):
            return [build_run(segments, chosen, bins, major=True)]
    return []


def size_runs(
    sizes: IntArray, target: int, excluded: BoolArray, *, singles: bool = False
) -> Iterator[tuple[int, int]]:
    """Contiguous runs of two or more segments (start, stop), in order; CarbonData takes the first.

    An excluded segment breaks contiguity like one that is too big.

    Args:
        singles: a segment without a neighbour to join is a run, too, even one that is too big.
    """
    least = 1 if singles else 2
    start = total = 0
    for at, (size, out) in enumerate(zip(sizes.tolist(), excluded.tolist(), strict=True)):
        if size > target or out:
            if at - start >= least:
                yield start, at
            if singles and not out:
                yield at, at + 1
            start, total = at + 1, 0
        elif total + size < target:
            total += size
        else:
            if at - start >= least:
                yield start, at
            start, total = at, size
    if len(sizes) - start >= least:
        yield start, len(sizes)


# Semi-major compaction: everything in a chunk at the read version is rewritten as one.
#
# A chunk is an interval of the time column, else a partition, else the whole table. A file that
# spans chunks links them, and linked chunks are one run. Appends continue meanwhile and are not
# included: the plan's read version defines "everything". Files that need no rewriting (full, few
# deleted rows) are left out, since rewriting them only costs; with a layout they are sorted with
# the others, unless all are in that order already.
#
# Rows may be divided by time: outputs then end at the borders of a granularity. A file that spans
# such a border is rewritten in any case. With `cuts`, only the rows of the chosen chunks are taken
# from it, and its other rows stay in it; its hint tag (`timeline.chunks`) keeps later plans from
# taking what is gone.


def semi_major_runs(
    segments: Segments,
    request: CompactionRequest,
    granularity: Granularity | None,
    *,
    young: frozenset[str] = frozenset(),
    divided: Segments | None = None,
) -> list[SegmentRun]:
    """One run for each chunk in which rewriting gains something. `young` are paths of files to
    leave out. `divided`: the segments at the granularity at whose borders outputs end.

    Raises: InvalidSpec if a name is not that of a chunk. If chunks are given, a file that spans
    one of them and others is included; the other files of the others are not.
    """
    runs: list[SegmentRun] = []
    chosen = chosen_files(segments, request, granularity)
    if young:
        chosen = chosen.where(~chosen.among(young))
    if divided is not None:
        assert granularity is not None
        return _divided_runs(divided, chosen.paths, request, taken_intervals(request, granularity))
    for group in _groups(chosen, granularity):
        useful = useful_bins_of(group, request)
        taken = SegmentFiles.of(each.files for each in useful)
        if taken is not None:
            runs.append(build_run(segments, taken, useful))
    return runs


def useful_bins_of(group: SegmentFiles, request: CompactionRequest) -> tuple[Bin, ...]:
    """The bins of a chunk's files that are worth rewriting."""
    if not request.layout_label:
        group = group.where(~full_files(group, request.target_file_size))
    return useful_bins(group, request)


def taken_intervals(request: CompactionRequest, granularity: Granularity) -> IntervalSet | None:
    """The intervals of which rows are taken; None for all rows. Raises: InvalidSpec."""
    if not (request.cuts and request.chunks):
        return None
    return IntervalSet(_wanted(request, granularity))


def _wanted(request: CompactionRequest, granularity: Granularity) -> list[TimeInterval]:
    """Raises: InvalidSpec."""
    return [parse_chunk(text, granularity, resource=request.resource) for text in request.chunks]


def _divided_runs(
    segments: Segments,
    paths: frozenset[str],
    request: CompactionRequest,
    take: IntervalSet | None,
) -> list[SegmentRun]:
    """Runs whose outputs end at the borders of the granularity of `segments`."""
    runs: list[SegmentRun] = []
    chosen = segments.files.where(segments.files.among(paths))
    if take is not None:
        kept = [not file.spans or _has_rows_in(file, take) for file in chosen]
        chosen = chosen.where(np.array(kept, np.bool_))
    for group in by_chunk(chosen):
        # A file of unknown times may span borders or not.
        spans = group.spans & (group.interval_codes >= 0)
        loose = group.where(~full_files(group, request.target_file_size) | spans)
        useful = tuple(
            each
            for each in pack(loose, request.target_file_size)
            if is_worth_rewriting(each) or any(file.spans and file.interval for file in each.files)
        )
        taken = SegmentFiles.of(each.files for each in useful)
        if taken is not None:
            runs.append(within(build_run(segments, taken, useful), take))
    return runs


def within(run: SegmentRun, take: IntervalSet | None) -> SegmentRun:
    """A run of which only the rows in these intervals are taken; None: all rows."""
    if take is None or run.interval is None:
        return run
    return replace(run, interval=(IntervalSet([run.interval]) & take).hull)


def _has_rows_in(file: SegmentFile, take: IntervalSet) -> bool:
    """Whether a file may have live rows in these intervals."""
    if file.interval is None:
        return False
    gone = parse_masked(file.add.tags.get(TAG_MASKED, ""), file.deleted)
    return bool((IntervalSet([file.interval]) & take) - gone)


def chosen_files(
    segments: Segments, request: CompactionRequest, granularity: Granularity | None
) -> SegmentFiles:
    """The files of the chosen chunks (all by default) whose segments no other operation holds."""
    files = segments.where(~segments.named(request.excluded)).files
    if not request.chunks:
        return files
    if granularity is None:
        return _of_partitions(files, request)
    wanted = _wanted(request, granularity)
    chosen = [
        time is not None and any(time.overlaps(interval) for interval in wanted)
        for time in files.columns.intervals
    ]
    return files.where(np.array(chosen, np.bool_)[files.interval_codes])


def _of_partitions(files: SegmentFiles, request: CompactionRequest) -> SegmentFiles:
    """Without a time column a chunk is a partition: `a=1/b=x`, or a prefix of its parts."""
    labels = [partition_label(values) for values in files.columns.partitions]
    known = {labels[code] for code in np.unique(files.partition_codes).tolist()}
    for text in request.chunks:
        if not any(label == text or label.startswith(text + "/") for label in known):
            raise InvalidSpec(
                "There is no such chunk",
                resource=request.resource,
                field="spec.semiMajor.chunks",
                found=text,
                expected="a partition of the table, written `column=value/column=value`",
                remedy="Set `time` in the LakeTable to name chunks by time.",
            )
    chosen = [
        any(label == text or label.startswith(text + "/") for text in request.chunks)
        for label in labels
    ]
    return files.where(np.array(chosen, np.bool_)[files.partition_codes])


def partition_label(values: Mapping[str, str | None]) -> str:
    """`a=1/b=x` in the order of the log; "" for a table without partitions."""
    return "/".join(f"{column}={value}" for column, value in values.items())


def _groups(files: SegmentFiles, granularity: Granularity | None) -> list[SegmentFiles]:
    if granularity is not None:
        return by_chunk(files)
    return [members for _, members in by_partition(files)]


# Custom compaction: the segments, or the files, that a request names.
#
# The messages are CarbonData's (C13), so that users can search for them.


def check_selection(request: CompactionRequest) -> None:
    """Raises: InvalidSpec if segments are named for another kind of compaction, or none for this
    one. Needs no table."""
    custom = request.type is CompactionType.CUSTOM
    kind = request.type.value.upper()
    if not custom and (request.segments or request.selected is not None):
        raise InvalidSpec(
            f"Custom segments not supported when doing {kind} compaction",
            resource=request.resource,
            field="spec.custom",
            found=", ".join(request.segments) or "where",
            expected="no `custom`",
            remedy="Use `type: Custom` to choose segments.",
        )
    if custom and not request.segments and request.selected is None:
        raise InvalidSpec(
            f"Segment ids should not be empty when doing {kind} compaction",
            resource=request.resource,
            field="spec.custom.segments",
            found="none",
            expected="names of segments, or a `where`",
            remedy="`tandem table segments` lists them.",
        )
    if custom and request.segments and request.selected is not None:
        raise InvalidSpec(
            "Segments can be chosen by name or by `where`, not both",
            resource=request.resource,
            field="spec.custom",
            found="segments and where",
            expected="one of them",
        )


def custom_runs(
    segments: Segments,
    request: CompactionRequest,
    past: Sequence[Segment] = (),
    *,
    young: frozenset[str] = frozenset(),
) -> list[SegmentRun]:
    """The one run of the chosen segments or files, or none if there is nothing to merge.

    Named segments are rewritten whole, however big. A single segment is rewritten to be sorted, if
    its rows are in another order; without a sort, CarbonData skips it silently and we report
    nothing to do. Of the files that a `where` selects, those that gain nothing and those in
    `young` are left out.

    Args:
        past: segments that are no longer live, for the message about a named one.

    Raises:
        UnknownSegment: a name is not that of a live segment.
    """
    check_selection(request)
    if request.selected is None:
        return _by_name(segments, request, past)
    files = segments.where(~segments.named(request.excluded)).files
    chosen = files.among(request.selected)
    files = files.where(chosen & ~files.among(young) if young else chosen)
    bins = useful_bins(files, request)
    taken = SegmentFiles.of(each.files for each in bins)
    return [build_run(segments, taken, bins)] if taken is not None else []


def _by_name(
    segments: Segments, request: CompactionRequest, past: Sequence[Segment]
) -> list[SegmentRun]:
    require_live(
        request.segments,
        segments,
        past,
        resource=request.resource,
        field="spec.custom.segments",
    )
    wanted = segments.where(segments.named(set(request.segments) - request.excluded))
    if not wanted:
        return []
    files = wanted.files
    bins = bins_of(files, request)
    if request.layout_label:
        useful = any(map(rewrite_criterion(request), bins))
    else:
        useful = len(wanted) > 1
    taken = SegmentFiles.of(each.files for each in bins)
    return [build_run(segments, taken, bins)] if useful and taken is not None else []


def require_live(
    names: Iterable[str],
    segments: Segments,
    past: Sequence[Segment] = (),
    *,
    resource: str,
    field: str,
) -> None:
    """Check that all names are those of live segments. `past` are those that are no longer live,
    for the message. Raises: UnknownSegment."""
    names = tuple(names)
    live = segments.among(set(names))
    for name in names:
        if name not in live:
            status = next((gone.status.value for gone in past if gone.name == name), "unknown")
            raise UnknownSegment(
                f"Segment {name} does not exist or is not valid",
                resource=resource,
                field=field,
                found=f"{name} ({status})",
                expected="live segments of the table",
                remedy="`tandem table segments` lists them.",
            )


# The plan of a segment rewrite: which files of the named segments are rewritten.
#
# Every file is a bin of its own and becomes one file of the same segment, so a plan never moves
# rows between files or segments, and keeps the order of segments.


_SHOWN = 5
"""Names in a message."""


@dataclass(frozen=True, slots=True)
class SegmentRewriteRequest:
    """A SegmentRewrite's spec as planning needs it.

    Attributes:
        segments: names, as in the spec.
        every_file: whether the request concerns all files; else only those with
            deleted rows are taken.
        planned_before: whether an earlier plan of the same operation found all of them live: a
            segment that is no longer live was rewritten by another operation, and not misspelled.
        resource: the resource of the request, for messages: `SegmentRewrite/purge`.
    """

    segments: tuple[str, ...]
    every_file: bool = False
    resource: str = ""
    planned_before: bool = False

    @classmethod
    def of(
        cls, spec: SegmentRewriteSpec, *, resource: str = "", planned_before: bool = False
    ) -> SegmentRewriteRequest:
        rewrite = spec.rewrite
        filters = rewrite.add_bloom_filters is not None
        every_file = rewrite.recompress is not None or bool(rewrite.sort_by) or filters
        return cls(spec.segments, every_file, resource, planned_before)


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Some or all files of one segment: the part that a plan takes."""

    segment: Segment
    files: Sequence[SegmentFile]

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def live_bytes(self) -> int:
        return sum(file.live_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class SegmentRewritePlan:
    """`parts` are the files taken of each segment, in table order. Without parts, `nothing` is one
    sentence that says why, and `superseded`: all named segments are gone since an earlier plan.
    All bytes are of files as stored; `expected_*` are estimates."""

    parts: tuple[SegmentPart, ...]
    nothing: str = ""
    superseded: bool = False

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments of which files are taken: the resources to lock."""
        return tuple(part.name for part in self.parts)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(file for part in self.parts for file in part.files)

    @property
    def bins(self) -> tuple[Bin, ...]:
        return tuple(_bin_of(file) for file in self.files)

    @property
    def input_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def expected_files(self) -> int:
        return sum(each.expected_files for each in self.bins)

    @property
    def expected_bytes(self) -> int:
        return sum(part.live_bytes for part in self.parts)

    @property
    def steps(self) -> tuple[str, ...]:
        """The files taken, in words: `7: 1 of 3 files, 12 deleted rows`."""
        return tuple(_step(part) for part in self.parts)


def plan_segment_rewrite(
    segments: Sequence[Segment],
    request: SegmentRewriteRequest,
    past: Sequence[Segment] = (),
) -> SegmentRewritePlan:
    """What a segment rewrite would rewrite, deterministically.

    Args:
        segments: the live segments at the read version, in order (`timeline.segments`).
        past: segments that are no longer live (`timeline.segments`), for the message about a named
            one.

    Raises:
        UnknownSegment: a name is not that of a live segment.
    """
    live = Segments.of(segments)
    wanted = set(request.segments)
    if request.planned_before:
        wanted &= live.among(wanted)
    else:
        require_live(request.segments, live, past, resource=request.resource, field="spec.segments")
    parts = tuple(
        SegmentPart(segment, files)
        for segment in live.where(live.named(wanted))
        if (files := tuple(f for f in segment.files if request.every_file or f.deleted))
    )
    if parts:
        return SegmentRewritePlan(parts)
    if not wanted:
        gone = f"Of {_named(request.segments)} no file is live: other operations rewrote them."
        return SegmentRewritePlan((), gone, superseded=True)
    return SegmentRewritePlan(
        (), f"No file of {_named(request.segments)} has deleted rows to purge."
    )


def _named(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"segment {names[0]}"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"segments {', '.join(names[:_SHOWN])}{more}"


def _bin_of(file: SegmentFile) -> Bin:
    gone = bool(file.rows) and file.deleted >= (file.rows or 0)
    return Bin((file,), partition_of(file), file.live_bytes, 0 if gone else 1)


def _step(part: SegmentPart) -> str:
    taken, all_ = len(part.files), len(part.segment.files)
    deleted = sum(file.deleted for file in part.files)
    files = f"{taken} of {all_} file{'s' if all_ != 1 else ''}"
    rows = f", {deleted:,} deleted row{'s' if deleted != 1 else ''}" if deleted else ""
    return f"{part.name}: {files}{rows}"
