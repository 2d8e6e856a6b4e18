"""Names and order of the live files' segments, read from the tags column.

Every round of the commit loop needs them, also for tables of a million files;
`tandem.timeline.segments` builds whole segments, for planning and display.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log import files as files_
from tandem.timeline.lineage import parse_lineage
from tandem.timeline.names import parse_name
from tandem.timeline.segments import SEQUENCE_PATTERN, TAG_PARENTS, TAG_SEGMENT, TAG_SEQUENCE


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
