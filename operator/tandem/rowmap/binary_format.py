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
                         the ranks of each sorted group (below), then the changed rows
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
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid
from tandem.rowmap.rowmap import (
    MapInput,
    MapOutput,
    RowMap,
    RowMapIdentity,
    RowRun,
    RunKind,
    SortedGroup,
)
from tandem.rowmap.run_table import Ranks

# The ranks of sorted rows (`SortedGroup`) as bytes: at most four per row, fewer in most cases.
#
# Each of three encodings is the smallest for some data; a sample decides which one is used:
#
# | encoding | what is stored | small where |
# |---|---|---|
# | `plain` | the ranks | the rows had no order: the bits that the number of rows needs |
# | `forward` | differences of the ranks | the inputs were sorted already and are merged |
# | `inverse` | differences of the inverse | few distinct values: equal rows keep their order |
#
# Differences are modulo 2^32 and zigzag-encoded, so that small negative ones are small numbers.
# Numbers are stored in byte planes (all lowest bytes first), which compress well, with zstd. `raw`
# is four bytes per row, used if the encodings do not save space.


_SAMPLE = 1 << 16
"""The number of rows, from the middle of a sorted group, that the choice of encoding tests."""

_CODEC = "zstd"
_LEVEL = 1


def encode(ranks: Ranks) -> tuple[str, bytes]:
    """(name of the encoding, bytes); the same ranks give the same bytes."""
    inverse = np.empty_like(ranks)
    inverse[ranks] = np.arange(len(ranks), dtype=np.uint32)
    middle = max(0, len(ranks) - _SAMPLE) // 2
    part = slice(middle, middle + _SAMPLE)
    sizes = {
        "plain": len(_compressed(_planes(ranks[part]))),
        "forward": len(_compressed(_planes(_differences(ranks[part])))),
        "inverse": len(_compressed(_planes(_differences(inverse[part])))),
    }
    chosen = min(sizes, key=lambda name: sizes[name])
    values = {"plain": ranks, "forward": ranks, "inverse": inverse}[chosen]
    data = _compressed(_planes(values if chosen == "plain" else _differences(values)))
    if len(data) >= 4 * len(ranks):
        return "raw", ranks.astype("<u4").tobytes()
    return chosen, data


def decode(encoding: str, data: bytes | memoryview, rows: int) -> Ranks:
    """The ranks of `rows` rows. Raises: ValueError for bytes that `encode` does not write."""
    if encoding == "raw":
        found = np.frombuffer(data, dtype="<u4").astype(np.uint32)
    elif encoding not in ("plain", "forward", "inverse"):
        raise ValueError(f"ranks in encoding {encoding!r}")
    else:
        try:
            planes = pa.decompress(
                pa.py_buffer(data), decompressed_size=4 * rows, codec=_CODEC, asbytes=False
            )
        except OSError as error:
            raise ValueError(f"ranks cannot be decompressed: {error}") from error
        found = _joined(planes)
    if len(found) != rows:
        raise ValueError(f"{len(found)} ranks for {rows} rows")
    if encoding in ("forward", "inverse"):
        found = _summed(found)
    if encoding == "inverse":
        return _inverted(found)
    return found


def _inverted(rows: Ranks) -> Ranks:
    if len(rows) and int(rows.max()) >= len(rows):
        raise ValueError("sorted rows come from beyond the inputs")
    # If a row occurs twice, another one is missing: its entry is a number beyond the rows.
    found = np.full(len(rows), len(rows), dtype=np.uint32)
    found[rows] = np.arange(len(rows), dtype=np.uint32)
    return found


def _differences(values: Ranks) -> Ranks:
    steps = np.diff(values, prepend=np.uint32(0)).astype(np.uint32)
    signs = (steps.view(np.int32) >> 31).view(np.uint32)
    return (steps << np.uint32(1)) ^ signs


def _summed(zigzag: Ranks) -> Ranks:
    steps: Ranks = (zigzag >> np.uint32(1)) ^ (np.uint32(0) - (zigzag & np.uint32(1)))
    found: Ranks = np.cumsum(steps, dtype=np.uint32)
    return found


def _planes(values: Ranks) -> npt.NDArray[np.uint8]:
    columns = values.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(columns.T)


def _joined(planes: pa.Buffer) -> Ranks:
    rows = np.frombuffer(planes, dtype=np.uint8).reshape(4, -1)
    found: Ranks = rows[3].astype(np.uint32)
    for plane in (2, 1, 0):
        found <<= np.uint32(8)
        found |= rows[plane]
    return found


def _compressed(planes: npt.NDArray[np.uint8]) -> bytes:
    data: bytes = pa.Codec(_CODEC, _LEVEL).compress(pa.py_buffer(planes.tobytes()), asbytes=True)
    return data


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
    ranks = [encode(group.ranks) for group in row_map.sorted_groups]
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
        ranks = decode(encoding, body[offset : offset + size], rows)
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
