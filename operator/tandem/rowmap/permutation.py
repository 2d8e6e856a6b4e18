"""Rows that a rewrite reordered, by a sort or z-order.

Files that were sorted together are a *sorted group*: each live row of its inputs has a *rank*,
its place among all rows of the group's outputs, one output after the other. Ranks take four bytes
per row in memory; the reverse direction is the inverse permutation, computed on first use. Like
`rowmap`, which it belongs to, it does no I/O, and nothing here loops over rows in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tandem.rowmap.positions import Positions

Ranks = npt.NDArray[np.uint32]
Indexes = npt.NDArray[np.int32]

MOST_ROWS = 2**32
"""The number of distinct ranks of four bytes: a bin must not have more rows."""


@dataclass(frozen=True, slots=True, eq=False)
class SortedGroup:
    """Files that were sorted together, by index into the map's lists, in row order.

    `ranks`: the places of the live rows of the first input in order, then of the second, …, among
    the rows of all `outputs`.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    ranks: Ranks

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SortedGroup):
            return NotImplemented
        same_files = (self.inputs, self.outputs) == (other.inputs, other.outputs)
        return same_files and bool(np.array_equal(self.ranks, other.ranks))

    __hash__ = None  # type: ignore[assignment]


class Permutation:
    """The positions of the rows of one sorted group. `live` counts the live rows of each of its
    inputs when it was read, `rows` the rows of each of its outputs."""

    def __init__(self, group: SortedGroup, live: Sequence[int], rows: Sequence[int]) -> None:
        self.inputs = group.inputs
        self.outputs = group.outputs
        self.ranks = group.ranks
        self.live = tuple(live)
        self.rows = tuple(rows)
        self._in_slot = {index: slot for slot, index in enumerate(self.inputs)}
        self._out_slot = {index: slot for slot, index in enumerate(self.outputs)}
        self._in_start = starts(live)
        self._out_start = starts(rows)
        self._inputs = np.array(self.inputs, dtype=np.int32)
        self._outputs = np.array(self.outputs, dtype=np.int32)

    def contradiction(self) -> str:
        """Why this is not a one-to-one map of all rows onto all rows; "" if it is one."""
        count = len(self.ranks)
        if count >= MOST_ROWS:
            return f"{count} rows were sorted together, the maximum is {MOST_ROWS - 1}"
        if count != sum(self.live):
            return f"{count} rows are mapped, {sum(self.live)} were live"
        if count != sum(self.rows):
            return f"{count} rows are mapped to outputs of {sum(self.rows)} rows"
        if count and int(self.ranks.max()) >= count:
            return f"a row is mapped to place {int(self.ranks.max())} of {count}"
        taken = np.zeros(count, dtype=bool)
        taken[self.ranks] = True
        if not bool(taken.all()):
            return f"place {int(np.argmin(taken))} of the sorted rows is held by no row"
        return ""

    @cached_property
    def origins(self) -> Ranks:
        """The inverse: for each place the index of its row among the inputs' live rows."""
        found = np.empty_like(self.ranks)
        found[self.ranks] = np.arange(len(self.ranks), dtype=np.uint32)
        return found

    def of_input(self, index: int) -> Ranks:
        """The ranks of an input's live rows, in order."""
        slot = self._in_slot[index]
        return self.ranks[self._in_start[slot] : self._in_start[slot + 1]]

    def output_positions(self, ranks: Ranks) -> tuple[Indexes, Positions]:
        """Ranks → (output, position in it), in the order given."""
        slot = np.searchsorted(self._out_start[1:], ranks, side="right")
        return self._outputs[slot], ranks.astype(np.int64) - self._out_start[slot]

    def split_by_output(self, ranks: Ranks) -> list[tuple[int, Positions]]:
        """A set of ranks → each output that has some of them, with ascending positions."""
        return _split(np.sort(ranks), self._out_start, self.outputs)

    def input_ranks(self, output: int, positions: Positions) -> tuple[Indexes, Positions]:
        """Positions of an output → (input, rank among its live rows), in the order given."""
        slot = self._out_slot[output]
        rows = self.origins[self._out_start[slot] + positions]
        source = np.searchsorted(self._in_start[1:], rows, side="right")
        return self._inputs[source], rows.astype(np.int64) - self._in_start[source]

    def split_by_input(self, output: int, positions: Positions) -> list[tuple[int, Positions]]:
        """A set of positions of an output → each input that has some of their rows, with
        ascending ranks among its live rows."""
        rows = self.origins[self._out_start[self._out_slot[output]] + positions]
        return _split(np.sort(rows), self._in_start, self.inputs)

    @cached_property
    def sources(self) -> dict[int, tuple[int, ...]]:
        """Output → the inputs that have rows in it, in order."""
        return {
            output: tuple(
                index for index, _ in self.split_by_input(output, np.arange(rows, dtype=np.int64))
            )
            for output, rows in zip(self.outputs, self.rows, strict=True)
        }


def starts(counts: Sequence[int]) -> Positions:
    """The starts of adjacent ranges of these lengths, and the end of the last one."""
    return np.concatenate(([0], np.cumsum(np.array(counts, dtype=np.int64)))).astype(np.int64)


def _split(places: Ranks, begins: Positions, owners: Sequence[int]) -> list[tuple[int, Positions]]:
    """Split ascending places where each owner's places begin: (owner, places within it), without
    empty ones."""
    cuts = np.searchsorted(places, begins.astype(np.uint32)).tolist()
    return [
        (owner, places[cuts[slot] : cuts[slot + 1]].astype(np.int64) - begins[slot])
        for slot, owner in enumerate(owners)
        if cuts[slot + 1] > cuts[slot]
    ]
