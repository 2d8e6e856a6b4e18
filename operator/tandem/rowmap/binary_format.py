"""Row maps as bytes: versioned, checksummed, with every count written twice.

    8   magic            TNDMROWS
    2   version          little-endian, as all numbers
    2   zero
    4   header bytes
    8   body bytes
    h   header           JSON: identity, inputs [path, rows, dead rows, dead bytes],
                         outputs [path, rows], number of runs; from version 2 also `shuffles`:
                         [inputs, outputs, encoding, bytes] of each sorted group; in version 3
                         `changed`: [output, rows, bytes] of each output with changed rows
    b   body             dead rows of each input (portable 64-bit roaring), then the runs, then
                         the ranks of each sorted group (`ranks_format`), then the changed rows
    32  SHA-256          of everything before it

Version 1 has no sorted groups, version 2 no changed rows; a map is written in the lowest version
that has its parts, so that older operators read it. To them a later version is a lost map.

A map that is truncated, modified, of another version or of another rewrite is rejected as a
whole: with a wrong map, rows would be lost or resurrected.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid
from tandem.rowmap import ranks_format
from tandem.rowmap.rowmap import (
    MapInput,
    MapOutput,
    RowMap,
    RowMapIdentity,
    RowRun,
    RunKind,
    SortedGroup,
)

MAGIC = b"TNDMROWS"

LARGE_ROWS = 1 << 26
"""Rows for which a map needs little memory, whatever its bytes decode to."""
ORDERED_VERSION, SORTED_VERSION, VERSION = 1, 2, 3
"""Of maps without sorted groups and changed rows, without the latter, and with both."""

_PREFIX = struct.Struct("<8sHHIQ")
_DIGEST_SIZE = 32
_RUN = np.dtype(
    [
        ("kind", "u1"),
        ("input", "<u4"),
        ("output", "<u4"),
        ("in_start", "<u8"),
        ("in_end", "<u8"),
        ("out_start", "<u8"),
    ]
)


def to_bytes(row_map: RowMap) -> bytes:
    """The persisted form; equal maps give equal bytes."""
    dead = [file.dead.serialize() if file.dead else b"" for file in row_map.inputs]
    runs = np.array(
        [(r.kind, r.input, r.output, r.in_start, r.in_end, r.out_start) for r in row_map.runs],
        dtype=_RUN,
    )
    identity = row_map.identity
    ranks = [ranks_format.encode(group.ranks) for group in row_map.sorted_groups]
    changed = {path: row_map.changed[path].serialize() for path in sorted(row_map.changed)}
    sorted_groups = {
        "shuffles": [
            [group.inputs, group.outputs, encoding, len(blob)]
            for group, (encoding, blob) in zip(row_map.sorted_groups, ranks, strict=True)
        ]
    }
    header = json.dumps(
        {
            "identity": {
                "tableId": identity.table_id,
                "operationId": identity.operation_id,
                "attempt": identity.attempt,
                "readVersion": identity.read_version,
            },
            "inputs": [
                [file.path, file.rows, len(file.dead), len(blob)]
                for file, blob in zip(row_map.inputs, dead, strict=True)
            ],
            "outputs": [[file.path, file.rows] for file in row_map.outputs],
            "runs": len(row_map.runs),
            **(sorted_groups if ranks or changed else {}),
            **(
                {
                    "changed": [
                        [row_map.output_number(path), len(row_map.changed[path]), len(blob)]
                        for path, blob in changed.items()
                    ]
                }
                if changed
                else {}
            ),
        },
        separators=(",", ":"),
    ).encode()
    body = b"".join([*dead, runs.tobytes(), *(blob for _, blob in ranks), *changed.values()])
    version = VERSION if changed else SORTED_VERSION if ranks else ORDERED_VERSION
    data = _PREFIX.pack(MAGIC, version, 0, len(header), len(body)) + header + body
    return data + hashlib.sha256(data).digest()


def from_bytes(
    data: bytes,
    *,
    expected: RowMapIdentity | None = None,
    resource: str = "row map",
    most_rows: Callable[[], int] | None = None,
) -> RowMap:
    """Read a map back. `resource` names it in errors, usually by its path.

    `most_rows` returns the most rows that the inputs can have; called only for a map of more than
    `LARGE_ROWS`. A few bytes may claim billions of rows, and memory is allocated for them.

    Raises:
        RowMapInvalid: truncated, another version, wrong checksum or counts, runs that contradict
            the files, or another identity than `expected`.
    """

    def invalid(message: str, found: object = "", wanted: str = "") -> RowMapInvalid:
        return RowMapInvalid(
            message,
            resource=resource,
            found=found,
            expected=wanted,
            remedy="Without its map a rewrite is done again, or counts as a change of its rows",
        )

    if len(data) < _PREFIX.size + _DIGEST_SIZE:
        raise invalid("The row map is truncated", f"{len(data)} bytes")
    magic, version, _, header_size, body_size = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise invalid("This is not a row map", magic, repr(MAGIC))
    if not ORDERED_VERSION <= version <= VERSION:
        raise invalid("The row map has another format version", version, f"at most {VERSION}")
    size = _PREFIX.size + header_size + body_size + _DIGEST_SIZE
    if len(data) != size:
        raise invalid(
            "The row map is truncated or has trailing bytes", f"{len(data)} bytes", f"{size}"
        )
    if hashlib.sha256(data[:-_DIGEST_SIZE]).digest() != data[-_DIGEST_SIZE:]:
        raise invalid("The row map's checksum does not match")
    try:
        header = json.loads(data[_PREFIX.size : _PREFIX.size + header_size])
        identity = _identity(header["identity"])
        _check_claim(header, most_rows)
        body = memoryview(data)[_PREFIX.size + header_size : -_DIGEST_SIZE]
        row_map = _decode(header, identity, body, version)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, MemoryError) as error:
        # The checksum is valid, so a writer other than Tandem made the map.
        raise invalid("The row map's header does not describe its body", error) from error
    if expected is not None and identity != expected:
        raise invalid("The row map belongs to another rewrite", identity, str(expected))
    return row_map


def _check_claim(header: dict[str, Any], most_rows: Callable[[], int] | None) -> None:
    for files in (header["inputs"], header["outputs"]):
        counts = [int(file[1]) for file in files]
        if min(counts, default=0) < 0:
            raise ValueError("a file has a negative number of rows")
        claimed = sum(counts)
        if most_rows is not None and claimed > LARGE_ROWS and claimed > most_rows():
            raise ValueError(f"{claimed} rows, and there are {most_rows()} at most")


def _identity(header: dict[str, Any]) -> RowMapIdentity:
    return RowMapIdentity(
        str(header["tableId"]),
        str(header["operationId"]),
        int(header["attempt"]),
        int(header["readVersion"]),
    )


def _decode(
    header: dict[str, Any], identity: RowMapIdentity, body: memoryview, version: int
) -> RowMap:
    inputs = []
    offset = 0
    for path, rows, dead_rows, dead_bytes in header["inputs"]:
        blob = bytes(body[offset : offset + dead_bytes])
        offset += dead_bytes
        dead = BitMap64.deserialize(blob) if blob else BitMap64()
        if len(dead) != dead_rows:
            raise ValueError(f"{path} has {len(dead)} dead rows, the header says {dead_rows}")
        inputs.append(MapInput(str(path), int(rows), dead))
    outputs = [MapOutput(str(path), int(rows)) for path, rows in header["outputs"]]
    named = header["shuffles"] if version >= SORTED_VERSION else []
    with_changes = header["changed"] if version >= VERSION else []
    after_runs = sum(int(size) for *_, size in (*named, *with_changes))
    records = np.frombuffer(body[offset : len(body) - after_runs], dtype=_RUN)
    if len(records) != header["runs"]:
        raise ValueError(f"{len(records)} runs, the header says {header['runs']}")
    offset = len(body) - after_runs
    sorted_groups = []
    for members, written, encoding, size in named:
        rows = sum(inputs[index].live for index in members)
        ranks = ranks_format.decode(encoding, body[offset : offset + size], rows)
        offset += size
        sorted_groups.append(SortedGroup(tuple(map(int, members)), tuple(map(int, written)), ranks))
    changed = {}
    for output, count, size in with_changes:
        positions = BitMap64.deserialize(bytes(body[offset : offset + size]))
        offset += size
        if len(positions) != count:
            raise ValueError(f"{len(positions)} changed rows, the header says {count}")
        changed[outputs[output].path] = positions
    runs = [
        RowRun(input_, in_start, in_end, output, out_start, RunKind(kind))
        for kind, input_, output, in_start, in_end, out_start in records.tolist()
    ]
    return RowMap(identity, inputs, outputs, runs, sorted_groups, changed)
