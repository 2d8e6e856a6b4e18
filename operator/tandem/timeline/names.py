"""Names of segments, and the numbers in them.

A segment is called `7` (an ingest or an update), `0.1`, `0.2` (compactions that begin with
segment 0; the part after the dot is the level) or `f-` and twelve hex digits (a file of
another writer: one segment each). CarbonData names its segments the same way
(`getMergedLoadName`), which is why its users can read ours.

Numbers come from a high-water mark that every commit of ours carries as a `txn` action
(`tandem.segments`). `txn` survives checkpoints, log clean-up and restores, so a number is
never assigned twice (Z16, S25), even if all segments that carried it are gone. Numbers are
assigned in the commit loop, and again if the put loses: they never occur in a path.

Holds are pins of versions by readers, each with an end.

    _tandem/holds/<version>-<seconds>-<nonce>.hold

A hold lasts so many seconds from its time in the store: no clock of a reader counts, and a listing
is enough for cleaning. Pure text; `tandem.index.window` places them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import Txn
from tandem.distinct import BoolArray, IntArray
from tandem.errors import UnsupportedFeature

MAX_NUMBER = 10**15
"""Numbers above this were not assigned but planted: counting on from them would exceed what a name
and the protocol's `long` can hold, and make the table unreadable."""

MAX_MINOR = 2**31 - 1
"""Druid's limits are 16 bits (S23); ours end far beyond what a table can reach."""

HIGH_WATER_APP = "tandem.segments"
"""`txn` application id whose version is the highest number ever assigned."""

NUMBER_PATTERN = "0|[1-9][0-9]{0,17}"
LEVEL_PATTERN = "[1-9][0-9]{0,8}"
FOREIGN_PATTERN = "f-[0-9a-f]{12}"

_NUMBERED = re.compile(rf"({NUMBER_PATTERN})(?:\.({LEVEL_PATTERN}))?")
FOREIGN = re.compile(FOREIGN_PATTERN)


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A parsed name: `number` is None for a foreign file; level 0 has not been compacted."""

    text: str
    number: int | None
    level: int

    @property
    def foreign(self) -> bool:
        return self.number is None


def parse_name(text: str) -> SegmentName | None:
    """The parts of a segment name, None if `text` is not one.

    Any writer can set tags, so text that does not look like a name is not an error: a table must
    stay readable whatever its tags contain.
    """
    if FOREIGN.fullmatch(text):
        return SegmentName(text, None, 0)
    match = _NUMBERED.fullmatch(text)
    if match is None:
        return None
    return SegmentName(text, int(match[1]), int(match[2] or 0))


def foreign_name(logged_path: str) -> str:
    """The name of the segment of a file without a tag: a function of its logged path alone."""
    return "f-" + hashlib.sha256(logged_path.encode()).hexdigest()[:12]


@dataclass(slots=True)
class SegmentNumbers:
    """Assigns segment numbers. `highest` is the highest one ever assigned, -1 for none.

    One object per try of a commit: the commit loop builds it again from the latest version.
    """

    highest: int = -1

    @classmethod
    def at(cls, txns: Mapping[str, Txn], known: Iterable[str] = ()) -> SegmentNumbers:
        """Numbers as of a version: from its `txn`s, and the names that its tags mention.

        The names protect tables whose tags were copied without their `txn`s (a clone, a
        conversion): a number in use is not assigned again.
        """
        recorded = txns.get(HIGH_WATER_APP)
        numbers = [-1] if recorded is None else [-1, recorded.version]
        for text in known:
            name = parse_name(text)
            if name is not None and name.number is not None:
                numbers.append(name.number)
        return cls(max(number for number in numbers if number <= MAX_NUMBER))

    def take(self) -> int:
        """Raises: UnsupportedFeature if all numbers have been assigned."""
        if self.highest >= MAX_NUMBER:
            raise UnsupportedFeature(
                "the table has no segment number left",
                field=HIGH_WATER_APP,
                found=str(self.highest),
                expected=f"at most {MAX_NUMBER}, as no table reaches by itself",
                remedy="Find the file whose tag tandem.segment or tandem.parents has this number: "
                "another writer set it. Rewrite the table into a new one if the number was ours",
            )
        self.highest += 1
        return self.highest

    def txn(self, now_ms: int) -> Txn:
        """The action that a commit must contain so that these numbers stay assigned."""
        return Txn(HIGH_WATER_APP, self.highest, now_ms)


@dataclass(frozen=True, slots=True)
class NameRequest:
    """What determines an output's name: the first input's name, and the level of the output."""

    first: str
    level: int


def derived_name(first: str, level: int) -> str | None:
    """CarbonData's name of a compaction that begins with `first`; None for a foreign file.

    `level` is the first input's level plus one, or more if several steps of the minor loop were
    collapsed into one.
    """
    name = parse_name(first)
    if name is None or name.number is None:
        return None
    return f"{name.number}.{level}"


def output_names(
    requests: Sequence[NameRequest], taken: Iterable[str], numbers: SegmentNumbers
) -> tuple[str, ...]:
    """Names for the outputs of one commit, in order.

    The derived name (`0.1`) if there is one and it is free; a new number with the same level
    (`17.1`) if the first input is foreign, or if the derived name is taken because a segment was
    compacted in parts. `taken` are the live names of the version to commit on; a caller that
    knows former names may add them.
    """
    used = set(taken)
    names: list[str] = []
    for request in requests:
        name = derived_name(request.first, request.level)
        while name is None or name in used:
            name = f"{numbers.take()}.{request.level}"
        used.add(name)
        names.append(name)
    return tuple(names)


# Names of segments for all files at once; the same rules as `tandem.timeline.names`.


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


HOLDS: Final = "_tandem/holds"
LONGEST_S: Final = 7 * 86_400
"""No hold lasts longer, whatever its name says."""

_HOLD = re.compile(rf"{HOLDS}/(\d{{1,19}})-(\d{{1,9}})-[0-9a-f]{{1,64}}\.hold", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hold:
    """Until `end_ms` (Unix milliseconds), cleaning keeps what was live at a version."""

    version: int
    end_ms: int
    path: str


def path_of(version: int, seconds: int, nonce: str) -> str:
    """The path of a hold, relative to the table. `nonce`: hexadecimal digits, unique."""
    return f"{HOLDS}/{version}-{seconds}-{nonce}.hold"


def hold_at(path: str, written_ms: int) -> Hold | None:
    """The hold that a file is, by the time at which it was written; None for another file."""
    match = _HOLD.fullmatch(path)
    if match is None:
        return None
    seconds = min(int(match[2]), LONGEST_S)
    return Hold(int(match[1]), written_ms + seconds * 1000, path)
