"""The bytes of a deletion vector: magic number, portable roaring bitmap, Z85 text.

Only the format that the protocol specifies is accepted (magic 1681511377). Delta's sources also
have an older "native" one (1681511376; the protocol's third JSON example still shows it, in
big-endian order). Released versions write only the portable one, and Delta's Rust kernel, which
delta-rs and DuckDB use, does not read the native one either: it is refused by name. No I/O here;
all functions raise `ValueError`, which `tandem.delta.dv` turns into an error that names the file.
"""

from __future__ import annotations

import base64
import struct

from pyroaring import BitMap64

MAGIC = 1681511377
NATIVE_MAGIC = 1681511376
_NATIVE = (struct.pack("<I", NATIVE_MAGIC), struct.pack(">I", NATIVE_MAGIC))

# Z85 is the base 85 encoding of RFC 1924, which the standard library has, with another alphabet.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
_FROM_Z85 = bytes.maketrans(_Z85, _B85)


def serialize(bitmap: BitMap64) -> bytes:
    """Magic number and portable 64-bit roaring bitmap, runs compressed.

    Raises:
        ValueError: a position of 2^63 or more, which the protocol rules out.
    """
    compact = bitmap.copy()
    compact.run_optimize()
    if len(compact) and compact.max() >= 2**63:
        raise ValueError(f"row position {compact.max()} is out of range")
    return struct.pack("<I", MAGIC) + bytes(compact.serialize())


def deserialize(
    data: bytes, *, ordered: bool, cardinality: int | None = None
) -> tuple[BitMap64, int]:
    """The set, and its cardinality by the headers; raises `ValueError`.

    The headers are verified first: the library ignores bytes after the end, and trusts any
    header. A set whose headers do not add up to `cardinality` is not built. `ordered` also checks
    the values themselves, for vectors without a checksum.
    """
    if len(data) < 12:
        raise ValueError(f"{len(data)} bytes are too few")
    (magic,) = struct.unpack_from("<I", data)
    if data[:4] in _NATIVE:
        raise ValueError(f"magic number {NATIVE_MAGIC}: the native format, not the portable one")
    if magic != MAGIC:
        raise ValueError(f"magic number {magic} instead of {MAGIC}")
    counted = _walk(data)
    if cardinality is not None and counted != cardinality:
        return BitMap64(), counted
    bitmap = BitMap64.deserialize(data[4:])
    if ordered:
        last = -1
        # One by one: a few bytes of runs can stand for billions of positions.
        for position in bitmap:
            if position <= last:
                raise ValueError(f"position {position} after {last}")
            last = position
    return bitmap, counted


def _walk(data: bytes) -> int:
    """Check that headers and lengths of a serialised bitmap fit `data`; returns the sum of the
    cardinalities in the headers. RoaringFormatSpec, "General layout" and "64-bit"."""
    try:
        (buckets,) = struct.unpack_from("<Q", data, 4)
        at, counted, last_key = 12, 0, -1
        if buckets * 8 > len(data):
            raise ValueError(f"{buckets} buckets in {len(data)} bytes")
        for _ in range(buckets):
            (key,) = struct.unpack_from("<I", data, at)
            if not last_key < key < 2**31:
                raise ValueError(f"bucket {key} after {last_key}")
            last_key = key
            at, cardinality = _walk_bucket(data, at + 4)
            counted += cardinality
    except (struct.error, IndexError) as error:
        raise ValueError("cut off") from error
    if at != len(data):
        raise ValueError(f"{len(data)} bytes where the headers say {at}")
    return counted


def _walk_bucket(data: bytes, at: int) -> tuple[int, int]:
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = b""
    if cookie & 0xFFFF == 12347:
        containers = (cookie >> 16) + 1
        runs = data[at : at + (containers + 7) // 8]
        at += len(runs)
        has_offsets = containers >= 4
    elif cookie == 12346:
        (containers,) = struct.unpack_from("<I", data, at)
        at += 4
        has_offsets = True
    else:
        raise ValueError(f"container cookie {cookie}")
    if containers > 65536 or at + containers * 4 > len(data):
        raise ValueError(f"{containers} containers")
    header = struct.unpack_from(f"<{containers * 2}H", data, at)
    at += containers * (8 if has_offsets else 4)
    if any(first >= second for first, second in zip(header[::2], header[2::2], strict=False)):
        raise ValueError("container keys out of order")
    counted = 0
    for index, less_one in enumerate(header[1::2]):
        cardinality = less_one + 1
        counted += cardinality
        if runs and runs[index // 8] >> (index % 8) & 1:
            (count,) = struct.unpack_from("<H", data, at)
            at += 2 + 4 * count
        else:
            at += 2 * cardinality if cardinality <= 4096 else 8192
    return at, counted


def z85_encode(data: bytes) -> str:
    padded = data + b"\0" * (-len(data) % 4)
    return base64.b85encode(padded).translate(_TO_Z85).decode("ascii")


def z85_decode(text: str) -> bytes:
    """Raises `ValueError` for other characters, another length or a group above 2^32 - 1."""
    try:
        raw = text.encode("ascii")
    except UnicodeEncodeError as error:
        raise ValueError("characters beyond ASCII") from error
    if len(raw) % 5:
        raise ValueError(f"{len(raw)} characters, not a multiple of 5")
    strange = raw.translate(None, _Z85)
    if strange:
        raise ValueError(f"characters that Z85 does not have: {strange[:10]!r}")
    return base64.b85decode(raw.translate(_FROM_Z85))
