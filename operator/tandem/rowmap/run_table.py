"""The parts of a row map: files, runs, sorted groups, and lookup arrays for positions.

Everything derived from runs is an array computed once; the checks here ensure that a map is
complete (see `rowmap`, which other modules use).

Files that a sort or z-order reordered together are a *sorted group*: each live row of its inputs
has a *rank*, its place among all rows of the group's outputs, one output after the other. Ranks
take four bytes per row in memory; the reverse direction is the inverse permutation, computed on
first use. There is no I/O, and nothing here loops over rows in Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from tandem.errors import RowMapInvalid

# Sets of row positions: conversion between roaring bitmaps and numpy arrays, without Python loops.
#
# A caller's bitmap is never modified: every function here returns a new one.


Positions = npt.NDArray[np.int64]
EMPTY: Positions = np.empty(0, dtype=np.int64)


def to_array(bitmap: BitMap64) -> Positions:
    """The positions in ascending order."""
    if not bitmap:
        return EMPTY
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)


def to_bitmap(positions: Positions) -> BitMap64:
    """The set of these positions, which must not be negative."""
    if not len(positions):
        return BitMap64()
    return BitMap64(array("Q", positions.astype(np.uint64).tobytes()))


def span(start: int, end: int) -> BitMap64:
    """All positions in `[start, end)`."""
    return BitMap64(range(start, end))


def group_bitmaps(keys: npt.NDArray[np.int32], positions: Positions) -> dict[int, BitMap64]:
    """Split positions by their key: key → set. Negative keys are left out."""
    if not len(keys):
        return {}
    order = np.argsort(keys, kind="stable")
    keys, positions = keys[order], positions[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    ends = np.append(starts[1:], len(keys))
    return {
        int(keys[start]): to_bitmap(positions[start:end])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if keys[start] >= 0
    }


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


class RunKind(IntEnum):
    """The order of a run's rows in the output. Reordered rows are not in runs (`SortedGroup`)."""

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
