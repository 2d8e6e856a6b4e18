"""The encoding of locks in etcd: keys, and human-readable values. Pure.

    <prefix>/tables/<id>/head                   bumped by every grant and every new waiter
    <prefix>/tables/<id>/operations/<operation> one entry, under its holder's lease

`<id>` is the beginning of the SHA-256 of the table's location, which the values repeat in full.
`version` in a value is the version of its format; a reader refuses a later one.

Resources are `"resources": ["0", "0.1"]`, the names of segments, and `"intervals": [[start, end],
…]`, in milliseconds with null for an open side; without that field, all of time. An entry that
locks intervals has no names, but `"resources": [["", "", ""]]`.

The version is still 1. An operator that does not know `intervals` takes the segments for segments
of unknown time, and intervals for the whole table: in a rolling upgrade it waits where it need not,
and overlooks no lock. What it wrote is understood: `[name, start, end]` is a segment with an
interval as text (ISO 8601, "" for an open side), or an interval if the name is "".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

from tandem.errors import LocksUnavailable
from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval
from tandem.locks.rules import EntryState, LockEntry, LockRequest, LockResources, Mode

VERSION = 1
PLACES = 1 << 10
"""Entries created in one transaction share a revision; their places within it are below this."""

_ID_LENGTH = 16
_TEXTS = ("table", "operation", "display", "owner")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_HEAD = b"head"
_OPERATIONS = b"operations/"


def table_id(table: str) -> bytes:
    """The part of the keys that identifies a table."""
    return sha256(table.encode()).hexdigest()[:_ID_LENGTH].encode()


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The keys of one table. `start` and `end` enclose all of them (end excluded)."""

    start: bytes
    end: bytes
    head: bytes
    operations: bytes
    operations_end: bytes

    def of(self, operation: str) -> bytes:
        return self.operations + quote(operation, safe="").encode()

    def operation(self, key: bytes) -> str | None:
        """The operation whose entry a key of the table holds; None for the head."""
        if not key.startswith(self.operations):
            return None
        return unquote(key[len(self.operations) :].decode())


class LockKeys:
    """All keys below a prefix."""

    def __init__(self, prefix: str) -> None:
        self.start = f"{prefix.rstrip('/')}/tables/".encode()
        self.end = after(self.start)

    def table(self, table: str) -> TableKeys:
        return self.by_id(table_id(table))

    def by_id(self, identifier: bytes) -> TableKeys:
        start = self.start + identifier + b"/"
        operations = start + _OPERATIONS
        return TableKeys(start, after(start), start + _HEAD, operations, after(operations))

    def id_of(self, key: bytes) -> bytes:
        """The part of a key that identifies the table."""
        first = len(self.start)
        return key[first : first + _ID_LENGTH]


def after(prefix: bytes) -> bytes:
    """The end of the range of all keys that start with `prefix`, which does not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def head(table: str) -> bytes:
    """The head's value: for readability, and for listing tables."""
    return _dump({"version": VERSION, "table": table})


def encode(entry: LockEntry, place: int = 0, resources: bytes | None = None) -> bytes:
    """The value of an entry. `place` is its place among the entries created in the same revision;
    `resources` is the result of `encode_resources` on its request, if there is one already."""
    request = entry.request
    value: dict[str, Any] = {
        "version": VERSION,
        "table": request.table,
        "operation": request.operation,
        "display": request.display,
        "owner": request.owner,
        "mode": request.mode.value,
        "state": entry.state.value,
        "priority": request.priority,
    }
    if not request.row_concurrency:
        value["rowConcurrency"] = False
    if entry.token:
        value["token"] = entry.token
    if place:
        value["place"] = place
    if entry.revoked_by:
        value["revokedBy"] = entry.revoked_by
    # Last, since it may be long: it is inserted as text.
    start = _dump(value)[:-1]
    return start + b',"resources":' + (resources or encode_resources(request)) + b"}"


def encode_resources(request: LockRequest) -> bytes:
    """The resources as JSON, and the intervals as another field. A plan may name thousands of
    segments: they are quoted all at once, which is faster."""
    names, intervals = request.resources.names, request.resources.intervals
    if names:
        text = '","'.join(names)
        quotes = 2 * (len(names) - 1)
        plain = "\\" not in text and text.count('"') == quotes and text.isprintable()
        found = f'["{text}"]'.encode() if plain else _dump(names)
    else:
        found = _dump([["", "", ""]] if intervals else [])
    return (
        found if intervals == EVERYWHERE else found + b',"intervals":' + _dump(intervals.to_json())
    )


def decode(value: bytes, *, created: int, modified: int, key: bytes = b"") -> tuple[LockEntry, int]:
    """An entry and its place, from a value and the revisions of its key, which errors name.

    The fencing token of a grant is the revision of the grant: it is stored explicitly only when
    the key is put again.

    Raises: LocksUnavailable if the value is not ours or in a later format.
    """
    try:
        found = json.loads(value)
        version = found["version"]
        if version == VERSION:
            return _entry(found, created, modified)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LocksUnavailable(
            "a lock in etcd cannot be read",
            resource=key.decode(errors="replace"),
            found=value[:200].decode(errors="replace"),
            expected="JSON as written by tandem",
            remedy="Remove the key if no program needs it, or use another prefix",
        ) from error
    raise LocksUnavailable(
        "a lock in etcd was written by a later version of tandem",
        resource=key.decode(errors="replace"),
        found=version,
        expected=f"version {VERSION}",
        remedy="Upgrade this operator, too",
    )


def _entry(found: dict[str, Any], created: int, modified: int) -> tuple[LockEntry, int]:
    texts = [found[name] for name in _TEXTS]
    if any(type(text) is not str for text in texts) or type(found["priority"]) is not int:
        raise TypeError
    request = LockRequest(
        table=found["table"],
        operation=found["operation"],
        mode=Mode(found["mode"]),
        resources=_resources(found["resources"], found.get("intervals")),
        owner=found["owner"],
        priority=found["priority"],
        display=found["display"],
        row_concurrency=found.get("rowConcurrency", True),
    )
    state = EntryState(found["state"])
    place = found.get("place", 0)
    token = 0 if state is EntryState.WAITING else found.get("token", modified)
    return LockEntry(
        request, state, order(created, place), token, found.get("revokedBy", "")
    ), place


def order(created: int, place: int) -> int:
    """The place in the queue, from the revision that created a key and the place within it."""
    return created * PLACES + place


def _resources(listed: list[Any], intervals: object) -> LockResources:
    names = [each if type(each) is str else each[0] for each in listed]
    if any(type(name) is not str for name in names):
        raise TypeError
    if intervals is None:
        # A set, since it is quicker: most entries name segments of unknown time.
        found = {ALWAYS if type(each) is str else _from_text(*each[1:]) for each in listed}
        where = IntervalSet(found)
    else:
        where = IntervalSet.from_json(intervals)
    return LockResources(() if "" in names else tuple(names), where)


def _from_text(start: str, end: str) -> TimeInterval:
    """An interval of an earlier version. A side that cannot be read counts as open: that is more
    than was locked."""
    low, high = _moment(start), _moment(end)
    found = TimeInterval(
        ALWAYS.start_ms if low is None else (low - _EPOCH) // _MILLISECOND,
        ALWAYS.end_ms if high is None else -((_EPOCH - high) // _MILLISECOND),  # rounded up
    )
    return found if found.start_ms < found.end_ms else ALWAYS


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
