"""Names of segments for all files at once; the same rules as `tandem.timeline.names`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray
from tandem.timeline.names import (
    FOREIGN,
    FOREIGN_PATTERN,
    LEVEL_PATTERN,
    NUMBER_PATTERN,
    foreign_name,
)

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


class SegmentNames:
    """Names of segments by code. Those of foreign files are computed when they are needed: a plan
    takes few files, and a digest of each path takes longer than all else that planning does.

    Args:
        known: the names of the first codes.
        paths: for each further code the logged path of its foreign file.
        order: for each code of the caller the code here; by default the same.
    """

    def __init__(self, known: pa.Array, paths: pa.Array, order: IntArray | None = None) -> None:
        self._known, self._paths = known, paths
        self._order = np.arange(len(known) + len(paths)) if order is None else order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers."""
        return int(self._known.nbytes + self._paths.nbytes + self._order.nbytes)

    def ordered(self, codes: IntArray) -> SegmentNames:
        """Those of the codes, numbered in this order."""
        return SegmentNames(self._known, self._paths, self._order[codes])

    def __getitem__(self, code: int) -> str:
        at = int(self._order[code])
        if at < len(self._known):
            return str(self._known[at].as_py())
        return foreign_name(self._paths[at - len(self._known)].as_py())

    def take(self, codes: IntArray) -> pa.Array:
        """The names of some codes."""
        wanted = self._order[codes]
        foreign = wanted >= len(self._known)
        names = foreign_names(self._paths.take(pa.array(wanted[foreign] - len(self._known))))
        places = np.where(foreign, len(self._known) + np.cumsum(foreign) - 1, wanted)
        return pa.concat_arrays([self._known, names]).take(pa.array(places))

    def among(self, wanted: Collection[str]) -> BoolArray:
        """For each code, whether its name is one of the wanted ones."""
        values = pa.array(list(wanted), pa.string())
        found: list[BoolArray] = [np.asarray(pc.is_in(self._known, value_set=values))]
        if any(FOREIGN.fullmatch(name) for name in wanted):
            found.append(np.asarray(pc.is_in(foreign_names(self._paths), value_set=values)))
        else:
            found.append(np.zeros(len(self._paths), np.bool_))
        mask: BoolArray = np.concatenate(found)[self._order]
        return mask


def foreign_names(logged_paths: pa.Array) -> pa.Array:
    """`foreign_name` of each path."""
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


def name_files(tags: pa.Array, logged_paths: pa.Array) -> tuple[IntArray, SegmentNames, IntArray]:
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
    none = pa.array([], pa.string())
    if not len(foreign):
        return indices, SegmentNames(encoded.dictionary, none), levels
    paths = logged_paths.take(pa.array(foreign))
    tagged = len(encoded.dictionary)
    if not pc.any(pc.starts_with(encoded.dictionary, "f-")).as_py():
        distinct = paths.dictionary_encode()
        indices[foreign] = tagged + distinct.indices.to_numpy()
        return indices, SegmentNames(encoded.dictionary, distinct.dictionary), np.maximum(levels, 0)
    # A tag may hold the name of a foreign file that was rewritten: the same segment.
    names = pa.concat_arrays([encoded.dictionary, foreign_names(paths)])
    unified = names.dictionary_encode("encode")
    indices[foreign] = tagged + np.arange(len(foreign))
    codes: IntArray = unified.indices.to_numpy().astype(np.int64)[indices]
    return codes, SegmentNames(unified.dictionary, none), np.maximum(levels, 0)
