"""Custom compaction: the segments, or the files, that a request names.

The messages are CarbonData's (C13), so that users can search for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.errors import InvalidSpec, UnknownSegment
from tandem.planning.layout import bins_of, rewrite_criterion, useful_bins
from tandem.planning.model import CompactionRequest, SegmentRun
from tandem.planning.runs import build_run
from tandem.spec.compaction import CompactionType
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segment, Segments


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
    return [build_run(segments, files, bins)] if useful else []


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
