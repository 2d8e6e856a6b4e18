"""The new values of some rows of a file, and how they take the place of its own. No I/O.

Positions are physical: they count the rows of the file, deleted ones included.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandem.delta.datafiles.conform import conform
from tandem.delta.schema import StructType

_MOST_SLICES: Final = 32
"""Of a batch: more are sooner filtered than put together."""
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NewValues:
    """New values of some rows of a file.

    Attributes:
        positions: of the rows in the file, ascending.
        rows: row k takes the place of that at position k.
        columns: physical names of the top-level columns that `rows` has: of those in
            `TableFormat.data_schema` whose values may differ from those in the file; None for all.
    """

    positions: Positions
    rows: pa.Table
    columns: frozenset[str] | None = None


@dataclass(frozen=True)
class Replacement:
    """What becomes of some rows: `dropped` are the positions of those that are left out, and
    `columns` the new values of the rows at `positions`, which are others, by logical name."""

    dropped: Positions
    positions: Positions
    columns: dict[str, Any]

    @classmethod
    def of(
        cls, rows: int, dropped: Positions, new: NewValues | None, schema: StructType
    ) -> Replacement:
        """Args: rows: of the file. Raises: ValueError for positions that are not ascending, or not
        in the file, for columns that the table does not have, and for rows without them."""
        if new is None or not len(new.positions):
            return cls(dropped, np.empty(0, np.int64), {})
        positions = np.asarray(new.positions, np.int64)
        if positions[0] < 0 or positions[-1] >= rows or (np.diff(positions) <= 0).any():
            raise ValueError(f"positions that are not ascending, below {rows}")
        if len(positions) != new.rows.num_rows:
            raise ValueError(f"{new.rows.num_rows} rows for {len(positions)} positions")
        names = {field.physical_name for field in schema}
        wanted = names if new.columns is None else new.columns
        wanted_names = {field.name for field in schema if field.physical_name in wanted}
        lacking = wanted_names - {*new.rows.column_names}
        if not wanted <= names or lacking:
            raise ValueError(f"columns {sorted({*(wanted - names), *lacking})} are not in both")
        if not wanted:
            return cls(dropped, np.empty(0, np.int64), {})
        live = ~_among(positions, dropped)
        found = {
            field.name: conform(_one_array(new.rows.column(field.name)), field.type)
            for field in schema
            if field.physical_name in wanted
        }
        if not live.all():
            keep = pa.array(live)
            positions, found = positions[live], {n: v.filter(keep) for n, v in found.items()}
        return cls(dropped, positions, found)

    def between(self, start: int, end: int) -> Replacement:
        """The part of it for the positions [start, end)."""
        first, last = np.searchsorted(self.dropped, (start, end))
        low, high = np.searchsorted(self.positions, (start, end))
        found = {name: values.slice(low, high - low) for name, values in self.columns.items()}
        return Replacement(self.dropped[first:last], self.positions[low:high], found)

    def apply(self, batch: pa.RecordBatch, start: int) -> pa.RecordBatch:
        """The rows of a file from position `start`, with new values, without those that are
        dropped."""
        part = self.between(start, start + batch.num_rows)
        if len(part.positions):
            at = part.positions - start
            columns = [
                replaced(array, at, part.columns[name]) if name in part.columns else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        if len(part.dropped):
            batch = _without(batch, part.dropped - start)
        return batch

    def digest(self) -> bytes:
        """Equal for equal replacements alone, by positions and values."""
        found = blake2b(self.dropped.tobytes(), digest_size=32)
        found.update(len(self.dropped).to_bytes(8, "little") + self.positions.tobytes())
        sink = pa.BufferOutputStream()
        table = pa.table(self.columns)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        found.update(sink.getvalue())
        return found.digest()


def _without(batch: pa.RecordBatch, dropped: Positions) -> pa.RecordBatch:
    """The batch without rows, whose indexes ascend: in slices where they are together, as those of
    an input that is gone."""
    gaps = np.flatnonzero(np.diff(dropped) > 1)
    if len(gaps) >= _MOST_SLICES:
        keep = np.ones(batch.num_rows, np.bool_)
        keep[dropped] = False
        return batch.filter(pa.array(keep))
    starts = [0, *(dropped[gaps] + 1).tolist(), int(dropped[-1]) + 1]
    ends = [int(dropped[0]), *dropped[gaps + 1].tolist(), batch.num_rows]
    kept = [
        batch.slice(start, end - start)
        for start, end in zip(starts, ends, strict=True)
        if start < end
    ]
    return pa.concat_batches(kept) if len(kept) > 1 else kept[0] if kept else batch.slice(0, 0)


def replaced(array: Any, at: Positions, values: Any) -> Any:
    """The array with `values` at the indexes `at`, which are ascending."""
    if pa.types.is_dictionary(array.type):
        both = pa.chunked_array([array, values.dictionary_encode().cast(array.type)])
        old, new = both.unify_dictionaries().chunks
        indices = replaced(old.indices, at, new.indices)
        return pa.DictionaryArray.from_arrays(indices, old.dictionary)
    if pa.types.is_nested(array.type) or pa.types.is_null(array.type):
        order = np.arange(len(array), dtype=np.int64)
        order[at] = len(array) + np.arange(len(at), dtype=np.int64)
        return pa.concat_arrays([array, values.cast(array.type)]).take(pa.array(order))
    mask = np.zeros(len(array), np.bool_)
    mask[at] = True
    return pc.replace_with_mask(array, pa.array(mask), values.cast(array.type))


def _among(positions: Positions, others: Positions) -> NDArray[np.bool_]:
    """Which positions are among others; both are ascending."""
    if not len(others):
        return np.zeros(len(positions), np.bool_)
    at = np.minimum(np.searchsorted(others, positions), len(others) - 1)
    found: NDArray[np.bool_] = others[at] == positions
    return found


def _one_array(column: pa.ChunkedArray) -> Any:
    """Its values in one array; `combine_chunks` returns several of dictionaries that differ."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        return pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
    return found
