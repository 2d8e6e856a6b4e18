"""Semi-major compaction: everything in a chunk at the read version, laid out as one.

A chunk is an interval of the time column, else a partition, else the whole table. A file that
spans chunks links them: what it links is one run. Appends go on meanwhile and are not in it:
the plan's read version is where "everything" ends. Files that are as they should be (full,
hardly a deleted row) stay where they are, since packing them again only costs; with a layout
they are sorted with the others, unless all lie in that order already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.errors import InvalidSpec
from tandem.planning.bins import by_chunk, is_full, partition_of
from tandem.planning.layout import bins_of, usefulness
from tandem.planning.model import CompactionRequest, Run
from tandem.planning.runs import Part, build_run
from tandem.spec.table import Granularity
from tandem.timeline.chunks import Interval, parse_chunk
from tandem.timeline.segments import Segment, SegmentFile


def semi_major_runs(
    segments: Sequence[Segment],
    request: CompactionRequest,
    granularity: Granularity | None,
    *,
    young: frozenset[str] = frozenset(),
) -> list[Run]:
    """One run for each chunk where something is to be gained. `young` are paths of files to
    leave alone.

    Raises InvalidSpec for a chunk that is none. With chunks given, a file that spans one of
    them and others is taken along; the others' own files are not.
    """
    owners = {file.path: segment for segment in segments for file in segment.files}
    runs: list[Run] = []
    chosen = chosen_files(segments, request, granularity)
    for group in _groups([file for file in chosen if file.path not in young], granularity):
        loose = [
            file
            for file in group
            if request.layout_label or not is_full(file, request.target_file_size)
        ]
        useful = tuple(filter(usefulness(request), bins_of(loose, request)))
        if useful:
            parts = _parts([file for each in useful for file in each.files], owners)
            runs.append(build_run(parts, request.target_file_size, bins=useful))
    return runs


def chosen_files(
    segments: Sequence[Segment], request: CompactionRequest, granularity: Granularity | None
) -> list[SegmentFile]:
    """The files of the chosen chunks (all by default) whose segments nobody else holds."""
    free = [segment for segment in segments if segment.name not in request.excluded]
    return _wanted([file for segment in free for file in segment.files], request, granularity)


def _wanted(
    files: Sequence[SegmentFile], request: CompactionRequest, granularity: Granularity | None
) -> list[SegmentFile]:
    if not request.chunks:
        return list(files)
    if granularity is None:
        return _wanted_partitions(files, request)
    intervals = [parse_chunk(text, granularity) for text in request.chunks]
    return [
        file
        for file in files
        if file.interval is not None
        and any(file.interval.overlaps(interval) for interval in intervals)
    ]


def _wanted_partitions(
    files: Sequence[SegmentFile], request: CompactionRequest
) -> list[SegmentFile]:
    """Without a time column a chunk is a partition: `a=1/b=x`, or the first of these parts."""
    known = {partition_label(file): file for file in files}
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
    return [
        file
        for file in files
        if any(
            partition_label(file) == text or partition_label(file).startswith(text + "/")
            for text in request.chunks
        )
    ]


def partition_label(file: SegmentFile) -> str:
    """`a=1/b=x` in the order that the log gives; "" for a table without partitions."""
    values: Mapping[str, str | None] = file.partition_values
    return "/".join(f"{column}={value}" for column, value in values.items())


def _groups(
    files: Sequence[SegmentFile], granularity: Granularity | None
) -> list[list[SegmentFile]]:
    if granularity is not None:
        by_time: dict[Interval | None, list[SegmentFile]] = by_chunk(files)
        return list(by_time.values())
    partitions: dict[tuple[tuple[str, str | None], ...], list[SegmentFile]] = {}
    for file in files:
        partitions.setdefault(partition_of(file), []).append(file)
    return list(partitions.values())


def _parts(files: Sequence[SegmentFile], owners: Mapping[str, Segment]) -> list[Part]:
    chosen: dict[str, tuple[Segment, list[SegmentFile]]] = {}
    for file in files:
        owner = owners[file.path]
        chosen.setdefault(owner.name, (owner, []))[1].append(file)
    parts = [Part(segment, tuple(mine)) for segment, mine in chosen.values()]
    return sorted(parts, key=lambda part: part.segment.order)
