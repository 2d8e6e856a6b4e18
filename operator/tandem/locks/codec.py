"""The encoding of locks in etcd: keys, and human-readable values. Pure.

    <prefix>/tables/<id>/head                   bumped by every grant and every new waiter
    <prefix>/tables/<id>/operations/<operation> one entry, under its holder's lease

`<id>` is the beginning of the SHA-256 of the table's location, which the values repeat in full.
`version` in a value is the version of its format; a reader refuses a later one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

from tandem.errors import LocksUnavailable
from tandem.locks.model import (
    EVERYTHING,
    EntryState,
    LockEntry,
    LockInterval,
    LockRequest,
    LockResource,
    Mode,
)

VERSION = 1
PLACES = 1 << 10
"""Entries created in one transaction share a revision; their places within it are below this."""

_ID_LENGTH = 16
_TEXTS = ("table", "operation", "display", "owner")
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
    """The resources as JSON. A plan may name thousands of segments and nothing else: those are
    quoted all at once, which is faster."""
    names = request.names
    text = '","'.join(names)
    quotes = 2 * (len(names) - 1)
    if not names or "\\" in text or text.count('"') != quotes or not text.isprintable():
        return _dump([_resource(resource) for resource in request.resources])
    return f'["{text}"]'.encode()


def decode(value: bytes, *, created: int, modified: int) -> tuple[LockEntry, int]:
    """An entry and its place, from a value and the revisions of its key.

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
            found=value[:200].decode(errors="replace"),
            expected="JSON as written by tandem",
            remedy="Remove the key if no program needs it, or use another prefix",
        ) from error
    raise LocksUnavailable(
        "a lock in etcd was written by a later version of tandem",
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
        resources=tuple(
            LockResource(r) if type(r) is str else LockResource(r[0], LockInterval(r[1], r[2]))
            for r in found["resources"]
        ),
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


def _resource(resource: LockResource) -> str | list[str]:
    if resource.segment and resource.interval == EVERYTHING:
        return resource.segment
    return [resource.segment, resource.interval.start, resource.interval.end]


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
