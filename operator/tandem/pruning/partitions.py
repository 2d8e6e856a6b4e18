"""Partition values of many files, by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MISSING = -1


def partition_codes(
    column: pa.ChunkedArray, physical: str
) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """A partition column as codes and distinct texts; `MISSING` if a file does not have it."""
    codes = np.full(len(column), MISSING, np.int64)
    found: list[Any] = []
    start = 0
    for chunk in column.chunks:
        at = np.flatnonzero(pc.equal(chunk.keys, physical).to_numpy(zero_copy_only=False))
        row = np.searchsorted(chunk.offsets.to_numpy(), at, side="right") - 1
        mine = (row >= 0) & (row < len(chunk))
        found.append((row[mine] + start, chunk.items.take(pa.array(at[mine]))))
        start += len(chunk)
    if not found:
        return codes, []
    texts = pa.concat_arrays([items for _, items in found]).dictionary_encode("encode")
    codes[np.concatenate([rows for rows, _ in found])] = texts.indices.to_numpy()
    return codes, texts.dictionary.to_pylist()
