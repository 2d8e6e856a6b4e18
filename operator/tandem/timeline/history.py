"""Former segments, reconstructed from recent commits and the lineage of live segments.

Log clean-up deletes commits, so this is for display and messages ("was compacted") only: plans
use live segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tandem.delta.actions import AddFile, Commit, RemoveFile
from tandem.timeline.lineage import Lineage, parse_lineage
from tandem.timeline.names import foreign_name, parse_name
from tandem.timeline.segments import (
    TAG_PARENTS,
    TAG_SEGMENT,
    TAG_TYPE,
    TYPE_MAJOR,
    Segment,
    SegmentStatus,
    parse_sequence,
    segment_name,
)


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
