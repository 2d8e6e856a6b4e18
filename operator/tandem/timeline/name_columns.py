"""Names of segments for all files at once; the same rules as `tandem.timeline.names`."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray
from tandem.timeline.names import FOREIGN_PATTERN, LEVEL_PATTERN, NUMBER_PATTERN

_NAME = rf"^(?:{FOREIGN_PATTERN}|(?:{NUMBER_PATTERN})(?:\.(?P<level>{LEVEL_PATTERN}))?)$"
_PREFIX = np.frombuffer(b"f-", np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_DIGEST, _BYTES = 32, 6


def levels_of(texts: pa.Array) -> IntArray:
    """The level in each name; -1 for what `parse_name` refuses."""
    found = pc.extract_regex(texts, _NAME)
    level = pc.struct_field(found, "level")
    number = pc.cast(pc.if_else(pc.equal(level, ""), "0", level), pa.int64())
    levels: IntArray = pc.fill_null(number, -1).to_numpy(zero_copy_only=False)
    return levels


def foreign_names(logged_paths: pa.Array) -> pa.Array:
    """`foreign_name` of each path. Only digests are computed one by one: two paths with the same
    name are one segment, so that the names are needed even if no plan takes their files."""
    sha256 = hashlib.sha256
    paths = logged_paths.cast(pa.binary()).to_pylist()
    digests = np.frombuffer(b"".join([sha256(path).digest() for path in paths]), np.uint8)
    first = digests.reshape(-1, _DIGEST)[:, :_BYTES]
    text = np.empty((len(paths), len(_PREFIX) + 2 * _BYTES), np.uint8)
    text[:, : len(_PREFIX)] = _PREFIX
    text[:, len(_PREFIX) :: 2] = _HEX[first >> 4]
    text[:, len(_PREFIX) + 1 :: 2] = _HEX[first & 15]
    offsets = np.arange(len(paths) + 1, dtype=np.int32) * np.int32(text.shape[1])
    return pa.StringArray.from_buffers(len(paths), pa.py_buffer(offsets), pa.py_buffer(text))


def name_files(tags: pa.Array, logged_paths: pa.Array) -> tuple[IntArray, pa.Array, IntArray]:
    """The segment of each file.

    Args:
        tags: for each file the name in its tags, or null. What is not a name counts as null: the
            file is a foreign segment.

    Returns: for each file a code; the name of each code, of which some may be unused; and the
    level of each file.
    """
    encoded = tags.dictionary_encode("encode")
    indices = encoded.indices.to_numpy().astype(np.int64)
    levels = levels_of(encoded.dictionary)[indices]
    foreign = np.flatnonzero(levels < 0)
    if not len(foreign):
        return indices, encoded.dictionary, levels
    names = [encoded.dictionary, foreign_names(logged_paths.take(pa.array(foreign)))]
    # A tag may hold the name of a foreign file that was rewritten: the same segment.
    unified = pa.concat_arrays(names).dictionary_encode("encode")
    indices[foreign] = len(encoded.dictionary) + np.arange(len(foreign))
    codes: IntArray = unified.indices.to_numpy().astype(np.int64)[indices]
    return codes, unified.dictionary, np.maximum(levels, 0)
