"""The parts of a row map: files, runs, and the arrays in which positions are looked up.

Everything derived from runs is an array made once; the checks here are what makes a map
complete (see `rowmap`, which is what everybody else uses).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid
from tandem.reconcile.positions import Positions, to_array

Indexes = npt.NDArray[np.int32]


class RunKind(IntEnum):
    """How the rows of a run lie in the output. A place for permutations (sort, z-order)."""

    ORDERED = 0


@dataclass(frozen=True, slots=True)
class RowMapIdentity:
    """What a map maps: the rewrite that wrote the outputs, and the version that it read."""

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
class Run:
    """The live rows of `[in_start, in_end)` of an input are, in order, those of the output
    from `out_start` on. Inputs and outputs by index into the map's lists."""

    input: int
    in_start: int
    in_end: int
    output: int
    out_start: int
    kind: RunKind = RunKind.ORDERED


class RunTable:
    """Inputs, outputs and runs that fit together, and where each run lies.

    Raises:
        RowMapInvalid: if runs, inputs and outputs contradict each other in any way.
    """

    def __init__(
        self,
        identity: RowMapIdentity,
        inputs: Sequence[MapInput],
        outputs: Sequence[MapOutput],
        runs: Sequence[Run],
    ) -> None:
        self.identity = identity
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.runs = tuple(sorted(runs, key=lambda run: (run.input, run.in_start, run.in_end)))
        self._input_index = {file.path: index for index, file in enumerate(self.inputs)}
        self._output_index = {file.path: index for index, file in enumerate(self.outputs)}
        self._check_files()
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
        """The dead rows of all inputs, one input after the other."""
        return np.concatenate([*(to_array(f.dead) for f in self.inputs), np.empty(0, np.int64)])

    @cached_property
    def _band(self) -> Positions:
        """Where the keys of each input begin in `_dead_keys`: bands never overlap."""
        widths = np.array([0, *(file.live + 1 for file in self.inputs)], dtype=np.int64)
        return np.cumsum(widths)[:-1]

    @cached_property
    def _dead_keys(self) -> Positions:
        counts = np.diff(self._dead_offset)
        within = np.arange(len(self._dead)) - np.repeat(self._dead_offset[:-1], counts)
        return self._dead - within + np.repeat(self._band, counts)

    def _rank(self, bounds: Positions) -> Positions:
        """How many live rows of each run's input lie before each of `bounds`."""
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
        """By position in the output; runs without a live row are left out."""
        found: list[list[int]] = [[] for _ in self.outputs]
        for index, run in enumerate(self.runs):
            if self._run_live[index]:
                found[run.output].append(index)
        return [
            np.array(sorted(runs, key=lambda i: self.runs[i].out_start), dtype=np.intp)
            for runs in found
        ]

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

    def _check_inputs(self) -> None:
        """Every live row of every input in exactly one run."""
        for index, file in enumerate(self.inputs):
            runs = [self.runs[run] for run in self._runs_of_input[index].tolist()]
            if any(b.in_start < a.in_end for a, b in pairwise(runs)):
                raise self._invalid(f"runs overlap in {file.path}")
            covered = int(self._run_live[self._runs_of_input[index]].sum())
            if covered != file.live:
                raise self._invalid(
                    f"{covered} rows of {file.path} are mapped, {file.live} were live"
                )

    def _check_outputs(self) -> None:
        """Every row of every output in exactly one run."""
        for index, file in enumerate(self.outputs):
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
