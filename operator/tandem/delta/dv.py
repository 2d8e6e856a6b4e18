"""Deletion vectors: which rows of a data file are deleted (protocol, "Deletion Vectors" and
"Deletion Vector Format").

A vector is a set of row positions, `pyroaring.BitMap64`. It is stored inline in the log (`i`, Z85
text), in a file below the table (`u`) or in a file at an absolute path (`p`). A vector is verified
as far as possible when it is read, before memory is allocated for it: one that is read wrongly
silently loses or resurrects rows. Files have a checksum. Inline vectors have none, so damage that
leaves a well-formed set of the right cardinality is not detected there. `serialize`
and `deserialize` have the encoding of the set itself.
"""

from __future__ import annotations

import base64
import math
import struct
import uuid
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from operator import add
from typing import NoReturn

from pyroaring import BitMap64

from tandem.delta.actions import DeletionVector
from tandem.delta.datafiles.conform import missing
from tandem.errors import (
    AlreadyExists,
    CorruptDeletionVector,
    ObjectNotFound,
    OutcomeUnknown,
)
from tandem.storage.paths import object_path
from tandem.storage.store import Store, side_by_side

# The bytes of a deletion vector: magic number, portable roaring bitmap, Z85 text.
#
# Only the format that the protocol specifies is accepted (magic 1681511377). Delta's sources also
# have an older "native" one (1681511376; the protocol's third JSON example still shows it, in
# big-endian order). Released versions write only the portable one, and Delta's Rust kernel, which
# delta-rs and DuckDB use, does not read the native one either: it is refused by name. No I/O here;
# all functions raise `ValueError`, which `load` turns into an error that names the file.


MAGIC = 1681511377
NATIVE_MAGIC = 1681511376
_NATIVE = (struct.pack("<I", NATIVE_MAGIC), struct.pack(">I", NATIVE_MAGIC))

# Z85 is the base 85 encoding of RFC 1924, which the standard library has, with another alphabet.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_Z85 = bytes.maketrans(_B85, _Z85)
_FROM_Z85 = bytes.maketrans(_Z85, _B85)
# The first call makes a table of the library, which other threads would see half made.
base64.b85decode(b"")


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
    the values themselves, for vectors without a checksum; by container, since a few bytes of runs
    can stand for billions of positions.
    """
    if len(data) < 12:
        raise ValueError(f"{len(data)} bytes are too few")
    (magic,) = struct.unpack_from("<I", data)
    if data[:4] in _NATIVE:
        raise ValueError(f"magic number {NATIVE_MAGIC}: the native format, not the portable one")
    if magic != MAGIC:
        raise ValueError(f"magic number {magic} instead of {MAGIC}")
    counted = _walk(data, ordered=ordered)
    if cardinality is not None and counted != cardinality:
        return BitMap64(), counted
    return BitMap64.deserialize(data[4:]), counted


def _walk(data: bytes, *, ordered: bool) -> int:
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
            at, cardinality = _walk_bucket(data, at + 4, ordered=ordered)
            counted += cardinality
    except (struct.error, IndexError) as error:
        raise ValueError("cut off") from error
    if at != len(data):
        raise ValueError(f"{len(data)} bytes where the headers say {at}")
    return counted


def _walk_bucket(data: bytes, at: int, *, ordered: bool) -> tuple[int, int]:
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
            if ordered:
                numbers = struct.unpack_from(f"<{2 * count}H", data, at + 2)
                _require_order(numbers[::2], map(add, numbers[::2], numbers[1::2]))
            at += 2 + 4 * count
        elif cardinality <= 4096:
            if ordered:
                numbers = struct.unpack_from(f"<{cardinality}H", data, at)
                _require_order(numbers, numbers)
            at += 2 * cardinality
        else:
            at += 8192  # a bit for each position: they have no order
    return at, counted


def _require_order(starts: Iterable[int], ends: Iterable[int]) -> None:
    """That each run of a container begins after the one before, and ends within the container."""
    last = -1
    for start, end in zip(starts, ends, strict=True):
        if not last < start <= end < 1 << 16:
            raise ValueError(f"positions {start} to {end} after {last}")
        last = end


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


FILE_VERSION = 1
# A vector has at most about one bit per row: enough for two billion scattered rows in a file.
MAX_BYTES = 256 * 1024 * 1024
_UUID_CHARS = 20
# Vectors of one file that are at most so far apart are read in one request.
_GAP = 64 * 1024
_REMEDY = (
    "The table is damaged: restore this version's predecessor, or the file from a backup; "
    "nothing was changed"
)


def load(store: Store, vector: DeletionVector) -> BitMap64:
    """The deleted row positions that `vector` describes.

    Raises:
        CorruptDeletionVector: cut off, or wrong in size, checksum, magic, structure or
            cardinality.
        DataFileMissing: its file is absent.
        LocationNotAllowed: it points outside the table and its allowed prefixes.
        StorageError: the store failed.
    """
    return load_many(store, [vector])[0]


def load_many(
    store: Store, vectors: Sequence[DeletionVector], *, parallel: int = 1
) -> list[BitMap64]:
    """Like `load`, in the order of `vectors`; those that share a file are read together.

    Args:
        parallel: so many requests are made at once.
    Raises: as `load`.
    """
    found: list[BitMap64 | None] = [None] * len(vectors)
    by_file: dict[str, list[int]] = defaultdict(list)
    for index, vector in enumerate(vectors):
        _check_size(vector)
        if vector.storage == "i":
            found[index] = _load_inline(vector)
        else:
            by_file[file_path(vector)].append(index)
    order: list[int] = []
    reads = []
    for path, indexes in by_file.items():
        indexes.sort(key=lambda index: _offset(vectors[index]))
        order += indexes
        for group in _groups([vectors[index] for index in indexes]):
            reads.append(partial(_load_group, store, path, group))
    bitmaps = (bitmap for group in side_by_side(reads, parallel) for bitmap in group)
    for index, bitmap in zip(order, bitmaps, strict=True):
        found[index] = bitmap
    return [bitmap for bitmap in found if bitmap is not None]


def file_path(vector: DeletionVector) -> str:
    """The path of a vector's file: relative to the table's root (`u`), or absolute (`p`).

    Raises:
        CorruptDeletionVector: an inline vector, an unknown storage type or a bad UUID.
    """
    text = vector.path_or_inline
    if vector.storage == "p":
        return object_path(text)  # logged like the path of an `add`
    if vector.storage != "u":
        _corrupt(vector, "storageType", "unknown storage type", vector.storage, "u, i or p")
    if len(text) < _UUID_CHARS:
        _corrupt(vector, "pathOrInlineDv", "too short for an id", text, "20 characters or more")
    prefix = text[:-_UUID_CHARS]
    try:
        file_id = uuid.UUID(bytes=z85_decode(text[-_UUID_CHARS:]))
    except ValueError as error:
        _corrupt(vector, "pathOrInlineDv", "not the Z85 text of an id", text, str(error))
    name = f"deletion_vector_{file_id}.bin"
    return f"{prefix}/{name}" if prefix else name


def write_file(
    store: Store,
    prefix: str,
    bitmaps: Sequence[BitMap64],
    *,
    file_id: uuid.UUID | None = None,
) -> list[DeletionVector]:
    """Write `bitmaps` into one new file, in their order, and return their descriptors.

    Args:
        prefix: the folder, relative to the table's root, without slashes at its ends; "" for
            the root. Ours begins with `_tandem/`, which vacuum ignores.
        file_id: part of the file's name; a new UUID by default.

    If the answer of the put is lost, the file is looked up: its name is unique. Without bitmaps no
    file is written.

    Raises:
        StorageFull, AccessDenied, StorageError: the store's.
        ValueError: more than 2 GiB in all, which the descriptors cannot address.
    """
    if not bitmaps:
        return []
    file_id = file_id or uuid.uuid4()
    located = prefix.strip("/") + z85_encode(file_id.bytes)
    content = bytearray([FILE_VERSION])
    vectors = []
    for bitmap in bitmaps:
        data = serialize(bitmap)
        vectors.append(
            DeletionVector(
                storage="u",
                path_or_inline=located,
                size=len(data),
                cardinality=len(bitmap),
                offset=len(content),
            )
        )
        content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    if len(content) >= 2**31:
        raise ValueError(f"{len(content)} bytes of deletion vectors do not fit into one file")
    _put_own(store, file_path(vectors[0]), bytes(content))
    return vectors


def _put_own(store: Store, path: str, content: bytes) -> None:
    try:
        store.put_if_absent(path, content)
    except (OutcomeUnknown, AlreadyExists):
        try:
            present = store.get(path)
        except ObjectNotFound:
            store.put_if_absent(path, content)
            return
        if present != content:
            raise


def to_base64(bitmap: BitMap64) -> str:
    """`serialize` in base 64, for job files."""
    return base64.b64encode(serialize(bitmap)).decode("ascii")


def from_base64(text: str) -> BitMap64:
    """The reverse of `to_base64`. Raises `ValueError`."""
    data = base64.b64decode(text, validate=True)
    return deserialize(data, ordered=True)[0]


def _check_size(vector: DeletionVector) -> None:
    if not 0 <= vector.size <= MAX_BYTES:
        _corrupt(vector, "sizeInBytes", "impossible size", vector.size, f"0 to {MAX_BYTES}")
    if vector.offset is not None and not 0 <= vector.offset < 2**31:
        _corrupt(vector, "offset", "impossible offset", vector.offset, "0 to 2^31 - 1")
    if vector.cardinality < 0:
        _corrupt(vector, "cardinality", "impossible cardinality", vector.cardinality, "0 or more")


def _load_inline(vector: DeletionVector) -> BitMap64:
    text = vector.path_or_inline
    if vector.size == 0 and vector.cardinality == 0 and not text:
        return BitMap64()  # Spark's constant for "nothing is deleted"
    chars = math.ceil(vector.size / 4) * 5
    if len(text) != chars:
        _corrupt(
            vector, "sizeInBytes", "another size than the text", f"{len(text)} characters", chars
        )
    try:
        data = z85_decode(text)[: vector.size]
    except ValueError as error:
        _corrupt(vector, "pathOrInlineDv", "not Z85 text", text, str(error))
    return _checked(data, vector, "inline", ordered=True)


def _offset(vector: DeletionVector) -> int:
    # Byte 0 is the file's version: an absent offset (protocol: 0) can only mean the first one.
    return vector.offset or 1


def _end(vector: DeletionVector) -> int:
    return _offset(vector) + 4 + vector.size + 4


def _groups(vectors: Sequence[DeletionVector]) -> list[list[DeletionVector]]:
    """Vectors of one file, sorted by offset, cut where reading on would waste much or hold
    more than `MAX_BYTES`."""
    groups: list[list[DeletionVector]] = []
    for vector in vectors:
        last = groups[-1] if groups else None
        if (
            last
            and _offset(vector) - _end(last[-1]) <= _GAP
            and _end(vector) - _offset(last[0]) <= MAX_BYTES
        ):
            last.append(vector)
        else:
            groups.append([vector])
    return groups


def _load_group(store: Store, path: str, group: Sequence[DeletionVector]) -> list[BitMap64]:
    data, start = _read_group(store, path, group)
    return [_from_record(data, _offset(vector) - start, vector, path) for vector in group]


def _read_group(store: Store, path: str, group: Sequence[DeletionVector]) -> tuple[bytes, int]:
    start = _offset(group[0])
    end = max(_end(vector) for vector in group)
    if start <= _GAP:
        start = 0
    try:
        data = store.get_range(path, start, end - start)
        version = data[:1] if start == 0 else store.get_range(path, 0, 1)
    except ObjectNotFound as error:
        raise missing(
            path, "the file of a deletion vector is absent", field="deletionVector"
        ) from error
    if version != bytes([FILE_VERSION]):
        _corrupt(group[0], "version", "unknown file version", version.hex(), "01", path)
    return data, start


def _from_record(data: bytes, at: int, vector: DeletionVector, path: str) -> BitMap64:
    record = data[at : at + 8 + vector.size]
    if len(record) < 8 + vector.size:
        _corrupt(vector, "sizeInBytes", "cut off", len(record), f"{8 + vector.size} bytes", path)
    (size,) = struct.unpack_from(">I", record)
    if size != vector.size:
        _corrupt(vector, "sizeInBytes", "another size in the file", size, vector.size, path)
    body = record[4 : 4 + size]
    (expected,) = struct.unpack_from(">I", record, 4 + size)
    if zlib.crc32(body) != expected:
        found = f"{zlib.crc32(body):08x}"
        _corrupt(vector, "checksum", "wrong checksum", found, f"{expected:08x}", path)
    return _checked(body, vector, path, ordered=False)


def _checked(data: bytes, vector: DeletionVector, path: str, *, ordered: bool) -> BitMap64:
    try:
        bitmap, counted = deserialize(data, ordered=ordered, cardinality=vector.cardinality)
    except ValueError as error:
        _corrupt(vector, "bitmapData", "malformed", str(error), "a 64-bit roaring bitmap", path)
    if counted != vector.cardinality or len(bitmap) != vector.cardinality:
        _corrupt(vector, "cardinality", "wrong count", counted, vector.cardinality, path)
    return bitmap


def _corrupt(
    vector: DeletionVector,
    field: str,
    message: str,
    found: object,
    expected: object,
    path: str | None = None,
) -> NoReturn:
    text = str(found)
    raise CorruptDeletionVector(
        f"corrupt deletion vector: {message}",
        resource=path or f"deletion vector {vector.unique_id[:80]}",
        field=f"deletionVector.{field}",
        found=text if len(text) <= 120 else text[:117] + "…",
        expected=str(expected),
        remedy=_REMEDY,
    )
