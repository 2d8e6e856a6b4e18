"""Row tracking: the ids and the commit version that the files of a commit get (protocol, "Row
Tracking").

A file has a base id: its rows have the ids from there on, by physical position, unless a column of
the file says otherwise (`protocol.row_id_columns`). The high-water mark is the highest id ever
given. All of it is determined for each put, from the version that the commit follows: a commit
that lost the race for its version gets other ids. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import (
    BASE_ROW_ID,
    ROW_COMMIT_VERSION,
    Action,
    AddFile,
    DomainMetadata,
    RemoveFile,
)
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.protocol import keeps_row_ids, supports_row_tracking, suspends_row_ids
from tandem.errors import CorruptLog, RowTrackingIncomplete

DOMAIN = "delta.rowTracking"
_MARK = "rowIdHighWaterMark"
_HIGHEST = (1 << 63) - 1


def check(snapshot: Snapshot, *, resource: str) -> None:
    """Refuse a table whose files do not have the ids that they should.

    Raises: RowTrackingIncomplete; CorruptLog if the mark is not usable.
    """
    _mark(snapshot)
    if not keeps_row_ids(snapshot.protocol, snapshot.metadata):
        return
    files = snapshot.files
    lacks = pc.or_(*(pc.is_null(files[n]) for n in ("base_row_id", "default_row_commit_version")))
    paths = files["path"].filter(lacks)
    if not len(paths):
        return
    raise RowTrackingIncomplete(
        "row tracking is enabled, but files have no row ids",
        resource=resource,
        field=BASE_ROW_ID,
        found=f"none in {len(paths)} of {snapshot.num_files} files, for example {paths[0]}",
        expected=f"{BASE_ROW_ID} and {ROW_COMMIT_VERSION} in each add",
        remedy="Set delta.enableRowTracking to false and to true again with Spark, which then "
        "assigns them",
    )


def with_row_ids(
    snapshot: Snapshot, actions: Sequence[Action], rows: Mapping[str, int]
) -> list[Action]:
    """The actions of the commit that follows `snapshot`, with the ids that the table demands.

    New files get ids above all others; a live one that is added again keeps those that it has now,
    and so does its `remove`. While ids are suspended, no file that is added has any.

    Args:
        rows: the physical rows of each file that is added, by logged path.
    Raises: CorruptLog if no ids are left, or the mark is not usable.
    """
    if not supports_row_tracking(snapshot.protocol):
        return list(actions)
    paths = [a.logged_path for a in actions if isinstance(a, AddFile | RemoveFile)]
    live = snapshot.files_by_path(dict.fromkeys(paths))
    ids = {
        path: {
            name: add.extra[name] for name in (BASE_ROW_ID, ROW_COMMIT_VERSION) if name in add.extra
        }
        for path, add in live.items()
    }
    suspended = suspends_row_ids(snapshot.protocol, snapshot.metadata)
    assigned, further = dict[str, dict[str, int]](), list[Action]()
    if not suspended:
        adds = [a.logged_path for a in actions if isinstance(a, AddFile)]
        assigned = {
            path: {ROW_COMMIT_VERSION: snapshot.version + 1, **ids.get(path, {})} for path in adds
        }
        further = list(_assign(snapshot, assigned, rows))

    def with_ids(action: Action) -> Action:
        if not isinstance(action, AddFile | RemoveFile):
            return action
        own = {k: v for k, v in action.extra.items() if k not in (BASE_ROW_ID, ROW_COMMIT_VERSION)}
        of = assigned if isinstance(action, AddFile) else ids
        return replace(action, extra=own | of.get(action.logged_path, {}))

    return [*map(with_ids, actions), *further]


def _assign(
    snapshot: Snapshot, files: Mapping[str, dict[str, int]], rows: Mapping[str, int]
) -> Iterator[DomainMetadata]:
    """Give a base id to each file without one. Returns the mark if it rises. Raises: CorruptLog."""
    new = [path for path, ids in files.items() if BASE_ROW_ID not in ids]
    if not new:
        return
    mark, highest = _mark(snapshot), _highest(snapshot)
    for path in new:
        files[path][BASE_ROW_ID] = highest + 1
        highest += rows[path]
    if highest > _HIGHEST:
        raise _unusable(snapshot, str(mark), f"at most {_HIGHEST} after this commit")
    if highest > mark:
        body = json.dumps({_MARK: highest}, separators=(",", ":"))
        yield DomainMetadata(DOMAIN, body, removed=False)


def _highest(snapshot: Snapshot) -> int:
    """The highest id that was given: the mark, unless live files have higher ones. Raises:
    CorruptLog."""
    mark, bases, rows = _mark(snapshot), snapshot.files["base_row_id"], snapshot.num_records
    try:
        last = pc.max(pc.add_checked(bases, rows)).as_py()
    except pa.ArrowInvalid:
        last = _HIGHEST + 2
    unknown = pc.max(bases.filter(pc.is_null(rows))).as_py()
    if unknown is not None and unknown > mark:
        raise _unusable(snapshot, str(mark), f"at least {unknown}, the base id of a file")
    return mark if last is None else max(mark, last - 1)


def _mark(snapshot: Snapshot) -> int:
    """The high-water mark as the log has it; -1 if it has none. Raises: CorruptLog."""
    stored = snapshot.domains.get(DOMAIN)
    if stored is None or not supports_row_tracking(snapshot.protocol):
        return -1
    try:
        body = json.loads(stored.configuration)
    except (ValueError, RecursionError):
        body = None
    mark = body.get(_MARK) if isinstance(body, dict) else None
    if type(mark) is not int or mark > _HIGHEST:
        raise _unusable(snapshot, stored.configuration[:120], f"{_MARK}, a 64-bit number")
    return max(mark, -1)


def _unusable(snapshot: Snapshot, found: str, expected: str) -> CorruptLog:
    return CorruptLog(
        "the high-water mark of row ids is not usable",
        resource=snapshot.location,
        field=f"domainMetadata {DOMAIN}",
        found=found,
        expected=expected,
        remedy="Restore the table to a version with a valid mark, or drop the feature rowTracking "
        "with Spark",
    )
