"""The ranks of sorted rows (`permutation`) as bytes: at most four per row, fewer in most cases.

Each of three encodings is the smallest for some data; a sample decides which one is used:

| encoding | what is stored | small where |
|---|---|---|
| `plain` | the ranks | the rows had no order: the bits that the number of rows needs |
| `forward` | differences of the ranks | the inputs were sorted already and are merged |
| `inverse` | differences of the inverse | few distinct values: equal rows keep their order |

Differences are modulo 2^32 and zigzag-encoded, so that small negative ones are small numbers.
Numbers are stored in byte planes (all lowest bytes first), which compress well, with zstd. `raw`
is four bytes per row, used if the encodings do not save space.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tandem.rowmap.permutation import Ranks

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
