"""Row maps: where each input row of a rewrite is in its outputs.

A rewrite that keeps the row order is described by a few numbers: the rows `[in_start, in_end)` of
an input, except those that were dead when it was read, lie in order in an output from `out_start`
on. That is a *run*; an input may be cut into runs over several outputs, and an output may hold runs
of several inputs. Together with the dead rows of each input, ranks and selects in sorted arrays
answer lookups in both directions without a Python loop over rows. Rows that were sorted have ranks
instead (`SortedGroup`); a map may hold both.

An output may be an *edit* of one input: its rows in order, some with other values. Those are
`changed`: no rule may take such a row for the one that it comes from.

A map is a fact about immutable files. It never says whether a row is live at some version, and
it must not do I/O; `binary_format` turns it into bytes and back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid
from tandem.rowmap.run_table import (
    MOST_ROWS,
    Positions,
    Ranks,
    RunTable,
    check_range,
    group_bitmaps,
    span,
    starts,
    to_array,
    to_bitmap,
)
from tandem.rowmap.run_table import Indexes as Indexes
from tandem.rowmap.run_table import MapInput as MapInput
from tandem.rowmap.run_table import MapOutput as MapOutput
from tandem.rowmap.run_table import RowMapIdentity as RowMapIdentity
from tandem.rowmap.run_table import RowRun as RowRun
from tandem.rowmap.run_table import RunKind as RunKind
from tandem.rowmap.run_table import SortedGroup as SortedGroup

_FEW_RUNS = 64
"""An input with more runs is looked up row by row."""


class RowMap(RunTable):
    """A complete map: every live row of every input has one place, every output row one origin.

    Raises:
        RowMapInvalid: if runs, inputs and outputs contradict each other in any way.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowMap):
            return NotImplemented
        mine = (self.identity, self.inputs, self.outputs, self.runs, self.sorted_groups)
        return self.changed == other.changed and mine == (
            other.identity,
            other.inputs,
            other.outputs,
            other.runs,
            other.sorted_groups,
        )

    __hash__ = None  # type: ignore[assignment]

    # Files

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
        index = self._output_index[output]
        permutation = self._permutation_of_output.get(index)
        if permutation is not None:
            return tuple(self.inputs[i].path for i in permutation.sources[index])
        runs = self._runs_of_output[index]
        return tuple(self.inputs[i].path for i in dict.fromkeys(self._run_input[runs].tolist()))

    def bins(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Groups of (inputs, outputs) that share no row with each other. A table
        without deletion vectors commits or drops each group as a whole."""
        return groups(self.inputs, self.outputs, self.runs, self.sorted_groups)

    # Lookups

    def forward(self, input_: str, positions: BitMap64) -> dict[str, BitMap64]:
        """Positions of an input → positions by output. Rows that were dead when read have none.

        Raises KeyError for a file that is no input, RowMapInvalid for a position beyond it.
        """
        index = self._input_index[input_]
        file = self.inputs[index]
        check_range(file.path, file.rows, positions)
        alive = positions - file.dead if file.dead else positions
        permutation = self._permutation_of_input.get(index)
        if permutation is not None:
            ranks = permutation.of_input(index)[self._live_rank(index, to_array(alive))]
            return self._by_output(permutation.split_by_output(ranks))
        if 2 * len(alive) <= file.live:
            return self._forward_sparse(index, alive)
        missing = (span(0, file.rows) - file.dead) - alive
        return _subtract(self.forward_all(input_), self._forward_sparse(index, missing))

    def backward(self, output: str, positions: BitMap64) -> dict[str, BitMap64]:
        """Positions of an output → the positions that its rows came from, by input.

        Raises KeyError for a file that is no output, RowMapInvalid for a position beyond it.
        """
        index = self._output_index[output]
        file = self.outputs[index]
        check_range(file.path, file.rows, positions)
        permutation = self._permutation_of_output.get(index)
        if permutation is not None:
            found = permutation.split_by_input(index, to_array(positions))
            return {self.inputs[i].path: to_bitmap(self._physical(i, r)) for i, r in found}
        if 2 * len(positions) <= file.rows:
            return self._backward_sparse(index, positions)
        missing = span(0, file.rows) - positions
        return _subtract(self.origin(output), self._backward_sparse(index, missing))

    def forward_all(self, input_: str) -> dict[str, BitMap64]:
        """All rows of an input that were live when read → their positions by output."""
        index = self._input_index[input_]
        permutation = self._permutation_of_input.get(index)
        if permutation is not None:
            return self._by_output(permutation.split_by_output(permutation.of_input(index)))
        found: dict[str, BitMap64] = {}
        for run in self._runs_of_input[index].tolist():
            if self._run_live[run]:
                path = self.outputs[self._run_output[run]].path
                start = int(self._out_start[run])
                found.setdefault(path, BitMap64()).add_range(
                    start, start + int(self._run_live[run])
                )
        return found

    def origin(self, output: str) -> dict[str, BitMap64]:
        """All rows of an output → the positions that they came from, by input."""
        index = self._output_index[output]
        if index in self._permutation_of_output:
            return self.backward(output, span(0, self.outputs[index].rows))
        found: dict[str, BitMap64] = {}
        for run in self._runs_of_output[index].tolist():
            file = self.inputs[self._run_input[run]]
            rows = span(int(self._in_start[run]), int(self._in_end[run])) - file.dead
            if rows:
                found[file.path] = found[file.path] | rows if file.path in found else rows
        return found

    # Implementation

    def _by_output(self, found: Iterable[tuple[int, Positions]]) -> dict[str, BitMap64]:
        return {self.outputs[o].path: to_bitmap(placed) for o, placed in found}

    def _forward_sparse(self, index: int, positions: BitMap64) -> dict[str, BitMap64]:
        if not positions:
            return {}
        if not self.inputs[index].dead and len(self._runs_of_input[index]) <= _FEW_RUNS:
            return self._shifted(index, positions)
        outputs, placed = self.locate(self.inputs[index].path, to_array(positions))
        return {self.outputs[o].path: b for o, b in group_bitmaps(outputs, placed).items()}

    def _shifted(self, index: int, positions: BitMap64) -> dict[str, BitMap64]:
        """Without dead rows all rows of a run move by the same distance: a bitmap operation."""
        found: dict[str, BitMap64] = {}
        for run in map(self.runs.__getitem__, self._runs_of_input[index].tolist()):
            moved = (positions & span(run.in_start, run.in_end)).shift(run.out_start - run.in_start)
            if moved:
                path = self.outputs[run.output].path
                found[path] = found[path] | moved if path in found else moved
        return found

    def _backward_sparse(self, index: int, positions: BitMap64) -> dict[str, BitMap64]:
        if not positions:
            return {}
        inputs, placed = self.trace(self.outputs[index].path, to_array(positions))
        return {self.inputs[i].path: b for i, b in group_bitmaps(inputs, placed).items()}


class RowMapBuilder:
    """Builds a map run by run, as a task writes its outputs.

    Output positions follow from the runs: each run is appended to its output.
    """

    def __init__(self, identity: RowMapIdentity) -> None:
        self._identity = identity
        self._inputs: dict[str, MapInput] = {}
        self._input_index: dict[str, int] = {}
        self._output_index: dict[str, int] = {}
        self._output_rows: list[int] = []
        self._runs: list[RowRun] = []
        self._sorted_groups: list[SortedGroup] = []
        self._changed: dict[str, BitMap64] = {}

    @property
    def input_paths(self) -> Collection[str]:
        return self._inputs.keys()

    def add_input(self, path: str, rows: int, dead: BitMap64 | None = None) -> None:
        """`rows`: physical rows. `dead`: those deleted at the read version. Inputs without live
        rows are added, too."""
        if path in self._inputs:
            raise ValueError(f"input {path} is added twice")
        self._input_index[path] = len(self._inputs)
        self._inputs[path] = MapInput(path, rows, dead if dead is not None else BitMap64())

    def add_run(self, input_: str, in_start: int, in_end: int, output: str) -> int:
        """Append the live rows of `[in_start, in_end)` to `output`; returns their number.

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
        self._runs.append(RowRun(self._input_index[input_], in_start, in_end, index, out_start))
        return live

    def add_changed(self, output: str, rows: BitMap64) -> None:
        """Rows of an output that have other values than those that they come from."""
        self._changed[output] = rows

    def add_sorted(
        self,
        inputs: Sequence[str],
        outputs: Sequence[MapOutput],
        *,
        origins: tuple[Positions, Positions],
        destinations: tuple[Positions, Positions],
    ) -> None:
        """Add a bin whose rows were reordered.

        The row at position `origins[1][k]` of `inputs[origins[0][k]]` is row
        `destinations[1][k]` of `outputs[destinations[0][k]]`. The arrays are in any order, and
        contain every live row of the inputs, which were added before, and every row of the outputs.

        Raises:
            RowMapInvalid: a row is dead, or beyond its file. `build` detects rows that are missing
                or occur twice.
        """
        files = [self._inputs[path] for path in inputs]
        in_start, out_start = starts([f.rows for f in files]), starts([f.rows for f in outputs])
        is_live = np.ones(in_start[-1], dtype=bool)
        for slot, file in enumerate(files):
            is_live[in_start[slot] + to_array(file.dead)] = False
        place = self._flat(*destinations, out_start)
        if len(place) >= MOST_ROWS:
            raise self._not_one_to_one(f"{len(place)} rows", f"less than {MOST_ROWS}")
        # A missing row keeps a place that no row has.
        by_row = np.full(in_start[-1], len(place), dtype=np.uint32)
        row = self._flat(*origins, in_start)
        if len(row) != len(place) or not bool(is_live[row].all()):
            raise self._not_one_to_one("rows that are dead, or have no place", "live rows")
        by_row[row] = place
        self.add_ranks(inputs, outputs, by_row[is_live])

    def add_ranks(self, inputs: Sequence[str], outputs: Sequence[MapOutput], ranks: Ranks) -> None:
        """Add a bin whose rows were reordered, by the ranks of its rows (`SortedGroup`). `build`
        detects ranks that are missing or occur twice."""
        first = len(self._output_rows)
        for file in outputs:
            if file.path in self._output_index:
                raise ValueError(f"output {file.path} is added twice")
            self._output_index[file.path] = len(self._output_rows)
            self._output_rows.append(file.rows)
        self._sorted_groups.append(
            SortedGroup(
                tuple(self._input_index[path] for path in inputs),
                tuple(range(first, first + len(outputs))),
                ranks,
            )
        )

    def _flat(self, files: Positions, positions: Positions, begins: Positions) -> Positions:
        """Positions in several files as positions in their concatenation."""
        if len(files) and not 0 <= int(files.min()) <= int(files.max()) < len(begins) - 1:
            raise self._not_one_to_one(f"a row of file {int(files.max())}", "files of the bin")
        rows = np.diff(begins)
        if not bool(((positions >= 0) & (positions < rows[files])).all()):
            raise self._not_one_to_one(f"a row {int(positions.max())}", "rows of its file")
        found: Positions = begins[files] + positions
        return found

    def _not_one_to_one(self, found: str, expected: str) -> RowMapInvalid:
        return RowMapInvalid(
            "Sorted rows are not the live rows of the inputs",
            resource=f"operation {self._identity.operation_id}, attempt {self._identity.attempt}",
            found=found,
            expected=expected,
            remedy="The rewrite must be done again",
        )

    def build(self) -> RowMap:
        """Raises: RowMapInvalid if rows of an input are missing or used twice."""
        return RowMap(
            self._identity,
            tuple(self._inputs.values()),
            tuple(
                MapOutput(path, self._output_rows[index])
                for path, index in self._output_index.items()
            ),
            self._runs,
            self._sorted_groups,
            self._changed,
        )


def merge(parts: Sequence[RowMap]) -> RowMap:
    """Merge the maps that several tasks wrote, each for a set of whole bins of one rewrite.

    Raises RowMapInvalid if they belong to different rewrites or share a file, ValueError if
    there is none.
    """
    if not parts:
        raise ValueError("no parts to merge")
    inputs: list[MapInput] = []
    outputs: list[MapOutput] = []
    runs: list[RowRun] = []
    sorted_groups: list[SortedGroup] = []
    changed: dict[str, BitMap64] = {}
    for part in parts:
        if part.identity != parts[0].identity:
            raise RowMapInvalid(
                "Parts of different rewrites cannot be one row map",
                resource=f"operation {parts[0].identity.operation_id}",
                found=part.identity,
                expected=str(parts[0].identity),
            )
        runs.extend(
            RowRun(
                run.input + len(inputs),
                run.in_start,
                run.in_end,
                run.output + len(outputs),
                run.out_start,
                run.kind,
            )
            for run in part.runs
        )
        sorted_groups.extend(
            SortedGroup(
                tuple(index + len(inputs) for index in group.inputs),
                tuple(index + len(outputs) for index in group.outputs),
                group.ranks,
            )
            for group in part.sorted_groups
        )
        inputs.extend(part.inputs)
        outputs.extend(part.outputs)
        changed.update(part.changed)
    return RowMap(parts[0].identity, inputs, outputs, runs, sorted_groups, changed)


def _subtract(whole: dict[str, BitMap64], part: dict[str, BitMap64]) -> dict[str, BitMap64]:
    rest = {path: rows - part[path] if path in part else rows for path, rows in whole.items()}
    return {path: rows for path, rows in rest.items() if rows}


# Groups the inputs and outputs of a row map that share rows. A group is committed or dropped as a
# whole.


FileGroup = tuple[tuple[str, ...], tuple[str, ...]]


def groups(
    inputs: Sequence[MapInput],
    outputs: Sequence[MapOutput],
    runs: Iterable[RowRun],
    sorted_groups: Iterable[SortedGroup],
) -> tuple[FileGroup, ...]:
    """Groups of (inputs, outputs) that share no row with each other, in input order.

    A file that shares no row with another one is a group of its own. Files that were sorted
    together are one group, whether or not their rows mingled.
    """
    parent = list(range(len(inputs)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first_input: dict[int, int] = {}

    def join(input_: int, output: int) -> None:
        other = root(first_input.setdefault(output, input_))
        mine = root(input_)
        parent[max(mine, other)] = min(mine, other)

    for run in runs:
        join(run.input, run.output)
    for group in sorted_groups:
        moved = [index for index in group.inputs if inputs[index].live]
        written = [index for index in group.outputs if outputs[index].rows]
        for index in written:
            join(moved[0], index)
        for index in moved:
            join(index, written[0])
    found: dict[int, tuple[list[str], list[str]]] = {}
    for index, file in enumerate(inputs):
        found.setdefault(root(index), ([], []))[0].append(file.path)
    for index, written_file in enumerate(outputs):
        if index in first_input:
            found[root(first_input[index])][1].append(written_file.path)
    return (
        *((tuple(members), tuple(written)) for members, written in found.values()),
        *(((), (file.path,)) for index, file in enumerate(outputs) if index not in first_input),
    )
