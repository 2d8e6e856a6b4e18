"""What simulated jobs do with rows: lay them out, and say where each of them went."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from simulator import rows
from tandem.delta import dv
from tandem.jobs.formats import InputFile, ReplaceJob, RewriteJob
from tandem.jobs.results import SideFileRef
from tandem.rowmap.rowmap import MapOutput, RowMapBuilder

FILE_ROWS = 8
"""A rewrite's output holds no more: bins are split into several files."""


def dead_rows(file: InputFile) -> BitMap64:
    return dv.from_base64(file.dv) if file.dv else BitMap64()


def side_file(path: str, data: bytes) -> SideFileRef:
    return SideFileRef(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def layout_key(job: RewriteJob) -> Callable[[rows.Row], tuple[int, ...]] | None:
    """How the layout that was asked for arranges rows; None keeps them as they are."""
    layout = job.layout
    if layout is None:
        return None
    if layout.strategy == "Sort":
        return lambda row: tuple(getattr(row, column) for column in layout.columns)
    return lambda row: (
        sum(
            (getattr(row, column) >> bit & 1) << (bit * len(layout.columns) + place)
            for bit in range(8)
            for place, column in enumerate(layout.columns)
        ),
    )


def map_bin(
    builder: RowMapBuilder,
    inputs: list[str],
    found: list[tuple[int, int, rows.Row]],
    paths: list[str],
    size: int,
    *,
    permuted: bool,
) -> None:
    """Say where the rows of a bin went: `size` of them to each of `paths`, in this order."""
    if permuted and found:
        counts = [min(size, len(found) - at) for at in range(0, len(found), size)]
        numbers = np.arange(len(found), dtype=np.int64)
        builder.add_sorted(
            inputs,
            [MapOutput(path, count) for path, count in zip(paths, counts, strict=True)],
            origins=(
                np.array([number for number, _, _ in found], dtype=np.int64),
                np.array([position for _, position, _ in found], dtype=np.int64),
            ),
            destinations=(numbers // size, numbers % size),
        )
        return
    for (number, output), group in groupby(
        enumerate(found), key=lambda at: (at[1][0], at[0] // size)
    ):
        positions = [position for _, (_, position, _) in group]
        builder.add_run(inputs[number], positions[0], positions[-1] + 1, paths[output])


Found = tuple[int, int, rows.Row]
"""The number of an input, a position in it, and the row."""


def is_taken(job: RewriteJob, row: rows.Row) -> bool:
    """Whether a job that cuts its inputs takes a row; others take all."""
    return job.take is None or any(low <= rows.time_ms(row) < high for low, high in job.take)


def is_in_scope(job: ReplaceJob, row: rows.Row) -> bool:
    """Whether a row of the table lies in the intervals of a replace."""
    bounds = [(low or 0, high or 0) for low, high in job.scope.intervals]
    return any(low <= rows.time_ms(row) < high for low, high in bounds)


def by_day(found: list[Found]) -> list[list[Found]]:
    """The rows of each day, in their order."""
    days: dict[int, list[Found]] = {}
    for each in found:
        days.setdefault(rows.time_ms(each[2]), []).append(each)
    return [days[day] for day in sorted(days)]


def map_parts(
    builder: RowMapBuilder, inputs: list[str], parts: list[tuple[str, list[Found]]]
) -> None:
    """Say where the rows of a bin went: to these files, in this order."""
    if not parts:
        return
    flat = [each for _, part in parts for each in part]
    counts = [len(part) for _, part in parts]
    builder.add_sorted(
        inputs,
        [MapOutput(path, len(part)) for path, part in parts],
        origins=(
            np.array([number for number, _, _ in flat], dtype=np.int64),
            np.array([position for _, position, _ in flat], dtype=np.int64),
        ),
        destinations=(
            np.repeat(np.arange(len(parts), dtype=np.int64), counts),
            np.concatenate([np.arange(count, dtype=np.int64) for count in counts]),
        ),
    )


def placed(
    changed: list[rows.Row | None], columns: tuple[str, ...]
) -> list[tuple[int | None, int | None]]:
    """(output, place there) of each row that was written, as `SimulatedJobs._outputs` does."""
    parts = rows.by_partition([row for row in changed if row is not None], columns)
    at = {
        row.rid: (number, place)
        for number, (_, part) in enumerate(parts)
        for place, row in enumerate(part)
    }
    return [(None, None) if row is None else at[row.rid] for row in changed]


class Matched(NamedTuple):
    """A row that a source row of this key matches, or none; `stays`: nothing is done to it."""

    input: int
    position: int
    key: int | None
    stays: bool


def recorded(
    columns: dict[str, list[int | None]], matched: list[Matched]
) -> dict[str, list[int | None]]:
    """The same with which source row each row matched, and with rows that stay."""
    acted = iter(list(zip(*columns.values(), strict=True)))
    lines = [
        ((row.input, row.position, -2, None) if row.stays else next(acted))
        + ((None, None) if row.key is None else (row.key + 1, 1))
        for row in matched
    ]
    names = (*columns, "source_1", "source_2")
    return {name: [line[i] for line in lines] for i, name in enumerate(names)}


def matches_file(columns: dict[str, list[int | None]]) -> bytes:
    types = {
        "input": pa.int32(),
        "position": pa.int64(),
        "output": pa.int32(),
        "output_position": pa.int64(),
        "source_1": pa.int64(),
        "source_2": pa.int64(),
    }
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
