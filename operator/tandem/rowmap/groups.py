"""Groups the inputs and outputs of a row map that share rows. A group is committed or dropped
as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.rowmap.permutation import SortedGroup
from tandem.rowmap.run_table import MapInput, MapOutput, RowRun

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
