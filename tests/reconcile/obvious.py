"""A row map that is easy to check: a list of where each row went.

Slow, and in memory only. It stands beside the real ones to show that they say the same, and
that reconciliation does not care which of them it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64

from tandem.rowmap.rowmap import Indexes, MapInput, MapOutput
from tandem.rowmap.run_table import Positions


class Place(NamedTuple):
    """A row of an input, and where it is in an output."""

    input: str
    position: int
    output: str
    output_position: int


class ObviousMap:
    """A `RowMapLike`. `inputs`: path → (physical rows, rows dead when read)."""

    def __init__(
        self,
        inputs: Mapping[str, tuple[int, BitMap64]],
        places: Sequence[Place],
        changed: Mapping[str, BitMap64] | None = None,
    ) -> None:
        self.places = tuple(places)
        self.changed: Mapping[str, BitMap64] = changed or {}
        self.inputs = tuple(MapInput(path, *file) for path, file in inputs.items())
        rows: dict[str, int] = {}
        for place in places:
            rows[place.output] = rows.get(place.output, 0) + 1
        self.outputs = tuple(MapOutput(path, count) for path, count in rows.items())

    @property
    def input_paths(self) -> Collection[str]:
        return [file.path for file in self.inputs]

    @property
    def output_paths(self) -> Collection[str]:
        return [file.path for file in self.outputs]

    def input(self, path: str) -> MapInput:
        return next(file for file in self.inputs if file.path == path)

    def output_number(self, path: str) -> int:
        return [file.path for file in self.outputs].index(path)

    def bins(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Files that share a row, one way or another, are of one bin."""
        groups: list[set[str]] = [{path} for path in (*self.input_paths, *self.output_paths)]
        for place in self.places:
            sharing = [group for group in groups if group & {place.input, place.output}]
            groups = [group for group in groups if group not in sharing]
            groups.append(set().union(*sharing))
        return tuple(
            (
                tuple(path for path in self.input_paths if path in group),
                tuple(path for path in self.output_paths if path in group),
            )
            for group in sorted(groups, key=min)
        )

    def sources(self, output: str) -> tuple[str, ...]:
        holding = {place.input for place in self.places if place.output == output}
        return tuple(path for path in self.input_paths if path in holding)

    def backward(self, output: str, positions: BitMap64) -> dict[str, BitMap64]:
        if output not in self.output_paths:
            raise KeyError(output)
        found: dict[str, BitMap64] = {}
        for place in self.places:
            if place.output == output and place.output_position in positions:
                found.setdefault(place.input, BitMap64()).add(place.position)
        return found

    def forward(self, input_: str, positions: BitMap64) -> dict[str, BitMap64]:
        if input_ not in self.input_paths:
            raise KeyError(input_)
        found: dict[str, BitMap64] = {}
        for place in self.places:
            if place.input == input_ and place.position in positions:
                found.setdefault(place.output, BitMap64()).add(place.output_position)
        return found

    def forward_all(self, input_: str) -> dict[str, BitMap64]:
        return self.forward(input_, BitMap64(range(self.input(input_).rows)))

    def trace(self, output: str, positions: Positions) -> tuple[Indexes, Positions]:
        numbers = {file.path: number for number, file in enumerate(self.inputs)}
        at = {
            place.output_position: (numbers[place.input], place.position)
            for place in self.places
            if place.output == output
        }
        found = [at[position] for position in positions.tolist()]
        return (
            np.array([number for number, _ in found], dtype=np.int32),
            np.array([position for _, position in found], dtype=np.int64),
        )

    def locate(self, input_: str, positions: Positions) -> tuple[Indexes, Positions]:
        at = {
            place.position: (self.output_number(place.output), place.output_position)
            for place in self.places
            if place.input == input_
        }
        found = [at.get(position, (-1, -1)) for position in positions.tolist()]
        return (
            np.array([output for output, _ in found], dtype=np.int32),
            np.array([place for _, place in found], dtype=np.int64),
        )
