"""Row maps: where every input row of a rewrite landed.

A rewrite that keeps rows in order needs very little to say so: rows `[in_start, in_end)` of an
input, without those that were dead when it was read, lie in order in an output from
`out_start` on. That is a *run*; an input may be cut into runs over several outputs, and an
output may hold runs of several inputs. Together with the dead rows of each input, ranks and
selects in sorted arrays answer both directions without a Python loop over rows.

A map is a fact about immutable files. It never says whether a row is live at some version, and
it must not do I/O; `rowmap_format` turns it into bytes and back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid
from tandem.reconcile.positions import Positions, group_bitmaps, span, to_array
from tandem.reconcile.runs import (
    Indexes,
    MapInput,
    MapOutput,
    RowMapIdentity,
    Run,
    RunKind,
    RunTable,
)

__all__ = [
    "Indexes",
    "MapInput",
    "MapOutput",
    "RowMap",
    "RowMapBuilder",
    "RowMapIdentity",
    "Run",
    "RunKind",
    "merge",
]


class RowMap(RunTable):
    """A complete map: every live row of every input lands once, every output row has one origin.

    Raises:
        RowMapInvalid: if runs, inputs and outputs contradict each other in any way.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowMap):
            return NotImplemented
        return (self.identity, self.inputs, self.outputs, self.runs) == (
            other.identity,
            other.inputs,
            other.outputs,
            other.runs,
        )

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def from_bytes(cls, data: bytes, *, expected: RowMapIdentity | None = None) -> RowMap:
        """See `rowmap_format.from_bytes`. Raises RowMapInvalid."""
        from tandem.reconcile import rowmap_format

        return rowmap_format.from_bytes(data, expected=expected)

    def to_bytes(self) -> bytes:
        """The persisted form (`rowmap_format`)."""
        from tandem.reconcile import rowmap_format

        return rowmap_format.to_bytes(self)

    # What there is.

    @property
    def input_paths(self) -> Collection[str]:
        return self._input_index.keys()

    @property
    def output_paths(self) -> Collection[str]:
        return self._output_index.keys()

    def input(self, path: str) -> MapInput:
        """Raises KeyError for a file that is no input of this map."""
        return self.inputs[self._input_index[path]]

    def output(self, path: str) -> MapOutput:
        """Raises KeyError for a file that is no output of this map."""
        return self.outputs[self._output_index[path]]

    def output_number(self, path: str) -> int:
        """Index into `outputs`. Raises KeyError for a file that is no output of this map."""
        return self._output_index[path]

    def sources(self, output: str) -> tuple[str, ...]:
        """The inputs that have rows in an output, each once, in the map's order."""
        runs = self._runs_of_output[self._output_index[output]]
        return tuple(self.inputs[i].path for i in dict.fromkeys(self._run_input[runs].tolist()))

    def bins(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Groups of (inputs, outputs) that share no row with each other, in input order.

        What a table without deletion vectors commits or drops as a whole. Files without a row
        that moved are groups of their own.
        """
        parent = list(range(len(self.inputs)))

        def root(index: int) -> int:
            while parent[index] != index:
                parent[index] = parent[parent[index]]
                index = parent[index]
            return index

        first_input: dict[int, int] = {}
        for run in self.runs:
            other = root(first_input.setdefault(run.output, run.input))
            mine = root(run.input)
            parent[max(mine, other)] = min(mine, other)
        groups: dict[int, tuple[list[str], list[str]]] = {}
        for index, file in enumerate(self.inputs):
            groups.setdefault(root(index), ([], []))[0].append(file.path)
        for index, written in enumerate(self.outputs):
            if index in first_input:
                groups[root(first_input[index])][1].append(written.path)
        return (
            *((tuple(inputs), tuple(outputs)) for inputs, outputs in groups.values()),
            *(
                ((), (written.path,))
                for index, written in enumerate(self.outputs)
                if index not in first_input
            ),
        )

    # Where rows are.

    def forward(self, input_: str, positions: BitMap64) -> dict[str, BitMap64]:
        """Positions of an input → where they are, by output. Rows dead when read are nowhere.

        Raises KeyError for a file that is no input, RowMapInvalid for a position beyond it.
        """
        index = self._input_index[input_]
        file = self.inputs[index]
        self._check_range(file.path, file.rows, positions)
        alive = positions - file.dead
        if 2 * len(alive) <= file.live:
            return self._forward_sparse(index, alive)
        missing = (span(0, file.rows) - file.dead) - alive
        return _subtract(self.landed(input_), self._forward_sparse(index, missing))

    def backward(self, output: str, positions: BitMap64) -> dict[str, BitMap64]:
        """Positions of an output → the rows they came from, by input.

        Raises KeyError for a file that is no output, RowMapInvalid for a position beyond it.
        """
        index = self._output_index[output]
        file = self.outputs[index]
        self._check_range(file.path, file.rows, positions)
        if 2 * len(positions) <= file.rows:
            return self._backward_sparse(index, positions)
        missing = span(0, file.rows) - positions
        return _subtract(self.origin(output), self._backward_sparse(index, missing))

    def landed(self, input_: str) -> dict[str, BitMap64]:
        """All rows of an input that were live when read → where they are, by output."""
        found: dict[str, BitMap64] = {}
        for run in self._runs_of_input[self._input_index[input_]].tolist():
            if self._run_live[run]:
                path = self.outputs[self._run_output[run]].path
                start = int(self._out_start[run])
                found.setdefault(path, BitMap64()).add_range(
                    start, start + int(self._run_live[run])
                )
        return found

    def origin(self, output: str) -> dict[str, BitMap64]:
        """All rows of an output → where they came from, by input."""
        found: dict[str, BitMap64] = {}
        for run in self._runs_of_output[self._output_index[output]].tolist():
            file = self.inputs[self._run_input[run]]
            rows = span(int(self._in_start[run]), int(self._in_end[run])) - file.dead
            if rows:
                found[file.path] = found[file.path] | rows if file.path in found else rows
        return found

    def locate(self, input_: str, positions: Positions) -> tuple[Indexes, Positions]:
        """Each position of an input, in any order → (index into `outputs`, position there).

        -1 and -1 for a row that was dead when read. Raises KeyError for a file that is no
        input, RowMapInvalid for a position beyond it.
        """
        index = self._input_index[input_]
        file = self.inputs[index]
        if len(positions) and (positions.min() < 0 or positions.max() >= file.rows):
            raise _beyond(file.path, file.rows, int(positions.max()))
        dead = self._dead[self._dead_offset[index] : self._dead_offset[index + 1]]
        before = np.searchsorted(dead, positions)
        is_dead = np.zeros(len(positions), dtype=bool)
        inside = before < len(dead)
        is_dead[inside] = dead[before[inside]] == positions[inside]
        runs = self._runs_of_input[index]
        if not len(runs):  # nothing of it was live, or the check in the constructor had failed
            return (np.full(len(positions), -1, np.int32), np.full(len(positions), -1, np.int64))
        run = runs[np.searchsorted(self._in_start[runs], positions, side="right") - 1]
        outputs = self._run_output[run]
        placed = self._out_start[run] + (positions - before) - self._in_rank[run]
        outputs[is_dead] = -1
        placed[is_dead] = -1
        return outputs, placed

    def trace(self, output: str, positions: Positions) -> tuple[Indexes, Positions]:
        """Each position of an output, in any order → (index into `inputs`, position there).

        Raises KeyError for a file that is no output, RowMapInvalid for a position beyond it.
        """
        index = self._output_index[output]
        file = self.outputs[index]
        if len(positions) and (positions.min() < 0 or positions.max() >= file.rows):
            raise _beyond(file.path, file.rows, int(positions.max()))
        runs = self._runs_of_output[index]
        if not len(runs):
            return (np.empty(0, np.int32), np.empty(0, np.int64))
        run = runs[np.searchsorted(self._out_start[runs], positions, side="right") - 1]
        inputs = self._run_input[run]
        rank = self._in_rank[run] + (positions - self._out_start[run])
        # The row of live rank r lies behind the dead rows d_j with d_j - j <= r; all inputs are
        # looked up at once, each in its own band of keys.
        skipped = np.searchsorted(self._dead_keys, self._band[inputs] + rank, side="right")
        return inputs, rank + (skipped - self._dead_offset[inputs])

    # Inside.

    def _forward_sparse(self, index: int, positions: BitMap64) -> dict[str, BitMap64]:
        if not positions:
            return {}
        outputs, placed = self.locate(self.inputs[index].path, to_array(positions))
        return {self.outputs[o].path: b for o, b in group_bitmaps(outputs, placed).items()}

    def _backward_sparse(self, index: int, positions: BitMap64) -> dict[str, BitMap64]:
        if not positions:
            return {}
        inputs, placed = self.trace(self.outputs[index].path, to_array(positions))
        return {self.inputs[i].path: b for i, b in group_bitmaps(inputs, placed).items()}

    @staticmethod
    def _check_range(path: str, rows: int, positions: BitMap64) -> None:
        if positions and positions.max() >= rows:
            raise _beyond(path, rows, positions.max())


class RowMapBuilder:
    """Collects a map run by run, as a task writes its outputs.

    Output rows follow from the runs: each run is put behind what its output holds already.
    """

    def __init__(self, identity: RowMapIdentity) -> None:
        self._identity = identity
        self._inputs: dict[str, MapInput] = {}
        self._input_index: dict[str, int] = {}
        self._output_index: dict[str, int] = {}
        self._output_rows: list[int] = []
        self._runs: list[Run] = []

    def add_input(self, path: str, rows: int, dead: BitMap64 | None = None) -> None:
        """`rows` are physical; `dead` those deleted at the read version. Inputs without a
        live row are named too."""
        if path in self._inputs:
            raise ValueError(f"input {path} is added twice")
        self._input_index[path] = len(self._inputs)
        self._inputs[path] = MapInput(path, rows, dead if dead is not None else BitMap64())

    def add_run(self, input_: str, in_start: int, in_end: int, output: str) -> int:
        """Append the live rows of `[in_start, in_end)` to `output`; returns how many they are.

        Raises KeyError if the input was not added.
        """
        file = self._inputs[input_]
        dead = file.dead.range_cardinality(in_start, in_end) if file.dead else 0
        live = in_end - in_start - dead
        index = self._output_index.setdefault(output, len(self._output_rows))
        if index == len(self._output_rows):
            self._output_rows.append(0)
        out_start = self._output_rows[index]
        self._output_rows[index] += live
        self._runs.append(Run(self._input_index[input_], in_start, in_end, index, out_start))
        return live

    def build(self) -> RowMap:
        """Raises RowMapInvalid if rows of an input are left over or used twice."""
        return RowMap(
            self._identity,
            tuple(self._inputs.values()),
            tuple(
                MapOutput(path, self._output_rows[index])
                for path, index in self._output_index.items()
            ),
            self._runs,
        )


def merge(parts: Sequence[RowMap]) -> RowMap:
    """One map of the parts that several tasks wrote: each a set of whole bins of one rewrite.

    Raises RowMapInvalid if they belong to different rewrites or share a file, ValueError if
    there is none.
    """
    if not parts:
        raise ValueError("no parts to merge")
    inputs: list[MapInput] = []
    outputs: list[MapOutput] = []
    runs: list[Run] = []
    for part in parts:
        if part.identity != parts[0].identity:
            raise RowMapInvalid(
                "Parts of different rewrites cannot be one row map",
                resource=f"operation {parts[0].identity.operation_id}",
                found=part.identity,
                expected=str(parts[0].identity),
            )
        runs.extend(
            Run(
                run.input + len(inputs),
                run.in_start,
                run.in_end,
                run.output + len(outputs),
                run.out_start,
                run.kind,
            )
            for run in part.runs
        )
        inputs.extend(part.inputs)
        outputs.extend(part.outputs)
    return RowMap(parts[0].identity, inputs, outputs, runs)


def _subtract(whole: dict[str, BitMap64], part: dict[str, BitMap64]) -> dict[str, BitMap64]:
    rest = {path: rows - part[path] if path in part else rows for path, rows in whole.items()}
    return {path: rows for path, rows in rest.items() if rows}


def _beyond(path: str, rows: int, position: int) -> RowMapInvalid:
    return RowMapInvalid(
        "A position lies beyond its file",
        resource=path,
        found=position,
        expected=f"below {rows}",
        remedy="The deletion vector or the row map is not of this file",
    )
