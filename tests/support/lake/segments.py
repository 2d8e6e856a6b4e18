"""Makes files and segments of tables that never were, for pure tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from tandem.delta.actions import AddFile, DeletionVector
from tandem.delta.log import files
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segment, Segments, output_tags
from tandem.timeline.segments import segments as segments_of

KIB = 1 << 10
MIB = 1 << 20


def segments(adds: Iterable[AddFile], time: TimeColumn | None = None) -> Segments:
    """The segments of these files."""
    return segments_of(files.from_adds(list(adds)), time)


def files_of(table: Iterable[Segment]) -> SegmentFiles:
    """The files of all segments, of which there is one at least."""
    found = SegmentFiles.of(segment.files for segment in table)
    assert found is not None
    return found


def add_file(
    path: str,
    *,
    segment: str | None = None,
    sequence: int = 0,
    size: int = MIB,
    rows: int | None = 1000,
    deleted: int = 0,
    times: tuple[str, str] | None = None,
    partition: Mapping[str, str | None] | None = None,
    major: bool = False,
    tags: Mapping[str, str] | None = None,
    data_change: bool = True,
    layout: str = "",
) -> AddFile:
    """A live file; of `segment` if given, else foreign. `times` are min and max of column `t`."""
    stats: dict[str, object] = {} if rows is None else {"numRecords": rows}
    if times is not None:
        stats |= {"minValues": {"t": times[0]}, "maxValues": {"t": times[1]}}
    if tags is None:
        tags = {} if segment is None else output_tags(segment, sequence, major=major, layout=layout)
    vector = DeletionVector("i", f"dv-{path}", 40, deleted) if deleted else None
    return AddFile(
        logged_path=path,
        partition_values=dict(partition or {}),
        size=size,
        modified_ms=sequence,
        data_change=data_change,
        stats=json.dumps(stats) if stats else None,
        tags=tags,
        deletion_vector=vector,
    )


def loads(
    names: Iterable[str | int],
    *,
    sizes: Mapping[str, int] | None = None,
    deleted: Mapping[str, int] | None = None,
    major: Iterable[str] = (),
    time: TimeColumn | None = None,
    times: Mapping[str, tuple[str, str]] | None = None,
    layout: str = "",
) -> Segments:
    """Segments of one file each, in the order of `names`."""
    marked = set(major)
    return segments(
        [
            add_file(
                f"data-{name}.parquet",
                segment=str(name),
                sequence=1000 + at,
                size=(sizes or {}).get(str(name), MIB),
                deleted=(deleted or {}).get(str(name), 0),
                major=str(name) in marked,
                times=(times or {}).get(str(name)),
                layout=layout,
            )
            for at, name in enumerate(names)
        ],
        time,
    )
