"""The parts of a row map: files, runs, sorted groups, and lookup arrays for positions.

Everything derived from runs is an array computed once; the checks here ensure that a map is
complete (see `rowmap`, which other modules use).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid
from tandem.rowmap.permutation import Indexes, Permutation, SortedGroup
from tandem.rowmap.positions import Positions, to_array


class RunKind(IntEnum):
    """The order of a run's rows in the output. Reordered rows are not in runs (`permutation`)."""

    ORDERED = 0


@dataclass(frozen=True, slots=True)
class RowMapIdentity:
    """Identifies a map: the rewrite that wrote the outputs, and the version that it read."""

    table_id: str
    operation_id: str
    attempt: int
    read_version: int


@dataclass(frozen=True, slots=True)
class MapInput:
    """A file that was rewritten: its logged path, physical rows, and rows dead when read."""

    path: str
    rows: int
    dead: BitMap64

    @property
    def live(self) -> int:
        return self.rows - len(self.dead)


@dataclass(frozen=True, slots=True)
class MapOutput:
    """A file that was written: its logged path and physical rows."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class RowRun:
    """The live rows of `[in_start, in_end)` of an input are, in order, the rows of the output
    from `out_start` on. `input` and `output` are indexes into the map's lists."""

    input: int
    in_start: int
    in_end: int
    output: int
    out_start: int
    kind: RunKind = RunKind.ORDERED


class RunTable:
    """Inputs, outputs, runs and sorted groups that fit together, and the positions of their rows.
    The rows of a file belong to runs, or to one sorted group. `changed` are rows of outputs, by
    path, that have other values than the rows that they come from (R-6).

    Raises:
        RowMapInvalid: if they contradict each other in any way.
    """

    def __init__(
        self,
        identity: RowMapIdentity,
        inputs: Sequence[MapInput],
        outputs: Sequence[MapOutput],
        runs: Sequence[RowRun],
        sorted_groups: Sequence[SortedGroup] = (),
        changed: Mapping[str, BitMap64] | None = None,
    ) -> None:
        self.identity = identity
        self.changed: Mapping[str, BitMap64] = {
            path: rows for path, rows in (changed or {}).items() if rows
        }
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.runs = tuple(sorted(runs, key=lambda run: (run.input, run.in_start, run.in_end)))
        self._input_index = {file.path: index for index, file in enumerate(self.inputs)}
        self._output_index = {file.path: index for index, file in enumerate(self.outputs)}
        self.sorted_groups = tuple(sorted_groups)
        self._check_files()
        self._permutation_of_input: dict[int, Permutation] = {}
        self._permutation_of_output: dict[int, Permutation] = {}
        self._check_sorted_groups()
        self._check_inputs()
        self._check_outputs()

    @cached_property
    def _run_input(self) -> Indexes:
        return np.array([run.input for run in self.runs], dtype=np.int32)

    @cached_property
    def _run_output(self) -> Indexes:
        return np.array([run.output for run in self.runs], dtype=np.int32)

    @cached_property
    def _in_start(self) -> Positions:
        return np.array([run.in_start for run in self.runs], dtype=np.int64)

    @cached_property
    def _in_end(self) -> Positions:
        return np.array([run.in_end for run in self.runs], dtype=np.int64)

    @cached_property
    def _out_start(self) -> Positions:
        return np.array([run.out_start for run in self.runs], dtype=np.int64)

    @cached_property
    def _dead_offset(self) -> Positions:
        return np.concatenate(
            ([0], np.cumsum([len(file.dead) for file in self.inputs], dtype=np.int64))
        ).astype(np.int64)

    @cached_property
    def _dead(self) -> Positions:
        """The dead rows of all inputs, concatenated."""
        return np.concatenate([*(to_array(f.dead) for f in self.inputs), np.empty(0, np.int64)])

    @cached_property
    def _band(self) -> Positions:
        """The start of the keys of each input in `_dead_keys`: bands never overlap."""
        widths = np.array([0, *(file.live + 1 for file in self.inputs)], dtype=np.int64)
        return np.cumsum(widths)[:-1]

    @cached_property
    def _dead_keys(self) -> Positions:
        counts = np.diff(self._dead_offset)
        within = np.arange(len(self._dead)) - np.repeat(self._dead_offset[:-1], counts)
        return self._dead - within + np.repeat(self._band, counts)

    def _rank(self, bounds: Positions) -> Positions:
        """How many live rows of each run's input precede each of `bounds`."""
        result = bounds.copy()
        for index in range(len(self.inputs)):
            runs = self._runs_of_input[index]
            dead = self._dead[self._dead_offset[index] : self._dead_offset[index + 1]]
            if len(dead):
                result[runs] -= np.searchsorted(dead, bounds[runs])
        return result

    @cached_property
    def _in_rank(self) -> Positions:
        return self._rank(self._in_start)

    @cached_property
    def _run_live(self) -> Positions:
        return self._rank(self._in_end) - self._in_rank

    @cached_property
    def _runs_of_input(self) -> list[npt.NDArray[np.intp]]:
        found: list[list[int]] = [[] for _ in self.inputs]
        for index, run in enumerate(self.runs):
            found[run.input].append(index)
        return [np.array(runs, dtype=np.intp) for runs in found]

    @cached_property
    def _runs_of_output(self) -> list[npt.NDArray[np.intp]]:
        """By position in the output; runs without live rows are left out."""
        found: list[list[int]] = [[] for _ in self.outputs]
        for index, run in enumerate(self.runs):
            if self._run_live[index]:
                found[run.output].append(index)
        return [
            np.array(sorted(runs, key=lambda i: self.runs[i].out_start), dtype=np.intp)
            for runs in found
        ]

    def locate(self, input_: str, positions: Positions) -> tuple[Indexes, Positions]:
        """Positions of an input, in any order → (index into `outputs`, position there).

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
        permutation = self._permutation_of_input.get(index)
        if permutation is not None and file.live:
            # A dead row has the rank of the next live one, if there is one; it is not used.
            ranks = np.minimum(positions - before, file.live - 1)
            outputs, placed = permutation.output_positions(permutation.of_input(index)[ranks])
            outputs[is_dead] = -1
            placed[is_dead] = -1
            return outputs, placed
        runs = self._runs_of_input[index]
        if not len(runs):  # no row was live, or the check in the constructor would have failed
            return (np.full(len(positions), -1, np.int32), np.full(len(positions), -1, np.int64))
        run = runs[np.searchsorted(self._in_start[runs], positions, side="right") - 1]
        outputs = self._run_output[run]
        placed = self._out_start[run] + (positions - before) - self._in_rank[run]
        outputs[is_dead] = -1
        placed[is_dead] = -1
        return outputs, placed

    def trace(self, output: str, positions: Positions) -> tuple[Indexes, Positions]:
        """Positions of an output, in any order → (index into `inputs`, position there).

        Raises KeyError for a file that is no output, RowMapInvalid for a position beyond it.
        """
        index = self._output_index[output]
        file = self.outputs[index]
        if len(positions) and (positions.min() < 0 or positions.max() >= file.rows):
            raise _beyond(file.path, file.rows, int(positions.max()))
        permutation = self._permutation_of_output.get(index)
        runs = self._runs_of_output[index]
        if permutation is not None:
            inputs, rank = permutation.input_ranks(index, positions)
        elif not len(runs):
            return (np.empty(0, np.int32), np.empty(0, np.int64))
        else:
            run = runs[np.searchsorted(self._out_start[runs], positions, side="right") - 1]
            inputs = self._run_input[run]
            rank = self._in_rank[run] + (positions - self._out_start[run])
        # The row of live rank r follows the dead rows d_j with d_j - j <= r; all inputs are looked
        # up at once, each in its own band of keys.
        skipped = np.searchsorted(self._dead_keys, self._band[inputs] + rank, side="right")
        return inputs, rank + (skipped - self._dead_offset[inputs])

    def _live_rank(self, index: int, positions: Positions) -> Positions:
        """How many live rows of an input precede each of these positions, which are live."""
        dead = self._dead[self._dead_offset[index] : self._dead_offset[index + 1]]
        return positions - np.searchsorted(dead, positions) if len(dead) else positions

    def _physical(self, index: int, ranks: Positions) -> Positions:
        """The inverse of `_live_rank`: see `trace`."""
        keys = self._dead_keys[self._dead_offset[index] : self._dead_offset[index + 1]]
        if not len(keys):
            return ranks
        skipped = np.searchsorted(keys, ranks + self._band[index], side="right")
        found: Positions = ranks + skipped
        return found

    def _check_files(self) -> None:
        names = len(self._input_index) + len(self._output_index)
        if len({*self._input_index, *self._output_index}) != names or names != len(
            self.inputs
        ) + len(self.outputs):
            raise self._invalid("a file appears twice among inputs and outputs")
        for file in self.inputs:
            if file.rows < 0 or (file.dead and file.dead.max() >= file.rows):
                raise self._invalid(f"dead rows lie beyond the {file.rows} rows of {file.path}")
        for run in self.runs:
            if not (0 <= run.input < len(self.inputs) and 0 <= run.output < len(self.outputs)):
                raise self._invalid(f"a run names a file that is not there: {run}")
            if not 0 <= run.in_start <= run.in_end <= self.inputs[run.input].rows:
                raise self._invalid(f"a run lies beyond its input: {run}")
            if run.kind is not RunKind.ORDERED:
                raise self._invalid(f"a run of kind {run.kind} is not known")
        for path, rows in self.changed.items():
            index = self._output_index.get(path)
            if index is None or rows.max() >= self.outputs[index].rows:
                raise self._invalid(f"a changed row of {path} is not there")

    def _check_sorted_groups(self) -> None:
        """Every live row of a sorted group's inputs has exactly one place, every place one row."""
        for group in self.sorted_groups:
            for found, known, files in (
                (group.inputs, self._permutation_of_input, self.inputs),
                (group.outputs, self._permutation_of_output, self.outputs),
            ):
                if len(set(found)) != len(found) or not known.keys().isdisjoint(found):
                    raise self._invalid("a file was sorted twice")
                if not all(0 <= index < len(files) for index in found):
                    raise self._invalid("a file that is not there was sorted")
            permutation = Permutation(
                group,
                [self.inputs[index].live for index in group.inputs],
                [self.outputs[index].rows for index in group.outputs],
            )
            why = permutation.contradiction()
            if why:
                raise self._invalid(why)
            self._permutation_of_input.update(dict.fromkeys(group.inputs, permutation))
            self._permutation_of_output.update(dict.fromkeys(group.outputs, permutation))
        for run in self.runs:
            if run.input in self._permutation_of_input or run.output in self._permutation_of_output:
                raise self._invalid(f"rows of a file are in a run and sorted: {run}")

    def _check_inputs(self) -> None:
        """Every live row of every input belongs to exactly one run."""
        for index, file in enumerate(self.inputs):
            if index in self._permutation_of_input:
                continue
            runs = [self.runs[run] for run in self._runs_of_input[index].tolist()]
            if any(b.in_start < a.in_end for a, b in pairwise(runs)):
                raise self._invalid(f"runs overlap in {file.path}")
            covered = int(self._run_live[self._runs_of_input[index]].sum())
            if covered != file.live:
                raise self._invalid(
                    f"{covered} rows of {file.path} are mapped, {file.live} were live"
                )

    def _check_outputs(self) -> None:
        """Every row of every output belongs to exactly one run."""
        for index, file in enumerate(self.outputs):
            if index in self._permutation_of_output:
                continue
            end = 0
            for run in self._runs_of_output[index].tolist():
                if self._out_start[run] != end:
                    raise self._invalid(f"row {end} of {file.path} is in no run, or in two")
                end += int(self._run_live[run])
            if end != file.rows:
                raise self._invalid(f"{end} rows are mapped to {file.path}, it has {file.rows}")

    def _invalid(self, message: str) -> RowMapInvalid:
        return RowMapInvalid(
            f"The row map contradicts itself: {message}",
            resource=f"operation {self.identity.operation_id}, attempt {self.identity.attempt}",
            remedy="The rewrite must be done again",
        )


def check_range(path: str, rows: int, positions: BitMap64) -> None:
    """Raises: RowMapInvalid for a position beyond the rows of a file."""
    if positions and positions.max() >= rows:
        raise _beyond(path, rows, positions.max())


def _beyond(path: str, rows: int, position: int) -> RowMapInvalid:
    return RowMapInvalid(
        "A position lies beyond its file",
        resource=path,
        found=position,
        expected=f"below {rows}",
        remedy="The deletion vector or the row map is not of this file",
    )
