"""The category of each file of a table, by its name alone. Pure."""

from __future__ import annotations

import re

from tandem.operations.attempt.paths import FACTS, ID, ROOT, split_attempt
from tandem.planning.cleaning import FileCategory, ListedFile
from tandem.storage.store import ObjectInfo
from tandem.timeline.holds import hold_at

_OURS = re.compile(
    rf"(?:(?P<folder>{ROOT}/dv/|{FACTS}/)?{ID}-(?P<number>[1-9][0-9]{{0,2}})/"
    rf"|{ROOT}/rowmaps/{ID}-(?P<map>[1-9][0-9]{{0,2}})\.rowmap\Z"
    rf"|{ROOT}/operations/{ID}/(?P<rest>.+)\Z)"
)
_BY_FOLDER = (
    (f"{ROOT}/probe/", FileCategory.PROBE),
    (f"{ROOT}/dv/", FileCategory.VECTORS),
    (f"{FACTS}/", FileCategory.FACTS),
)
_RECORDS = ("operation.json", "result.json", "source.json", "cutoff.json", "batches.json")


def listed(meta: ObjectInfo) -> ListedFile:
    """A file of the listing, with its category."""
    path, size, modified = meta.path, meta.size, meta.modified_ms
    match = _OURS.match(path)
    if match is None:
        part = next((p for start, p in _BY_FOLDER if path.startswith(start)), FileCategory.OTHER)
        if hold_at(path, modified) is not None:
            part = FileCategory.HOLD
        return ListedFile(path, size, modified, part)
    if match["number"]:
        part = dict(_BY_FOLDER).get(match["folder"], FileCategory.DATA)
        return ListedFile(path, size, modified, part, match[2], int(match["number"]))
    if match["map"]:
        return ListedFile(path, size, modified, FileCategory.ROW_MAP, match[4], int(match["map"]))
    split = split_attempt(path)
    if split is not None:
        part = FileCategory.ROUND if split[1].startswith("rounds/") else FileCategory.ATTEMPT
        return ListedFile(path, size, modified, part, match[6], split[0])
    parts = {"ending.json": FileCategory.ENDING, **dict.fromkeys(_RECORDS, FileCategory.RECORD)}
    return ListedFile(path, size, modified, parts.get(match["rest"], FileCategory.OTHER), match[6])
