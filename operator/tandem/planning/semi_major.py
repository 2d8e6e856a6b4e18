"""Semi-major compaction: everything in a chunk at the read version is rewritten as one.

A chunk is an interval of the time column, else a partition, else the whole table. A file that
spans chunks links them, and linked chunks are one run. Appends continue meanwhile and are not
included: the plan's read version defines "everything". Files that need no rewriting (full, few
deleted rows) are left out, since rewriting them only costs; with a layout they are sorted with the
others, unless all are in that order already.

Rows may be divided by time: outputs then end at the borders of a granularity. A file that spans
such a border is rewritten in any case. With `cuts`, only the rows of the chosen chunks are taken
from it, and its other rows stay in it; its hint tag (`timeline.masks`) keeps later plans from
taking what is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tandem.errors import InvalidSpec
from tandem.intervals import IntervalSet, TimeInterval
from tandem.planning.bins import by_chunk, by_partition, full_files, is_worth_rewriting, pack
from tandem.planning.layout import useful_bins
from tandem.planning.model import Bin, CompactionRequest, SegmentRun
from tandem.planning.runs import build_run
from tandem.spec.table import Granularity
from tandem.timeline.chunks import parse_chunk
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segments
from tandem.timeline.working_set.masks import TAG_MASKED, parse_masked


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
