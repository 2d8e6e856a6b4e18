"""Tables with columns of each kind, jobs that sort them, and the rows that these write."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyroaring import BitMap64

from support.jobs import job_files as jobs
from tandem.delta.dv import to_base64
from tandem.jobs.formats import InputFile, JobBin, JobLayout, RewriteJob
from tandem.spark.jobs import sorted_bins
from tandem.spark.runtime.control import Control

FILES = 3
ROWS = 200
ATTEMPTS = itertools.count(1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def rows(start: int, count: int) -> pa.Table:
    """A column of each kind, in no order, with ties and some nulls."""
    chance = random.Random(start)

    def some(value: Any) -> Any:
        return None if chance.random() < 0.1 else value

    numbers = [chance.randrange(-40, 40) for _ in range(count)]
    doubles = [math.nan, 0.0, -0.0, math.inf]
    return pa.table(
        {
            "id": pa.array(range(start, start + count), pa.int64()),
            "name": pa.array([some(f"n{n % 7}é") for n in numbers], pa.string()),
            "other": pa.array([f"{chance.random()}" for _ in numbers], pa.string()),
            "price": pa.array([some(Decimal(n) / 4) for n in numbers], pa.decimal128(9, 2)),
            "sum": pa.array([some(Decimal(n) * 10**25) for n in numbers], pa.decimal128(38, 2)),
            "day": pa.array([some(START.date() + dt.timedelta(n)) for n in numbers]),
            "at": pa.array(
                [some(START + dt.timedelta(seconds=n)) for n in numbers], pa.timestamp("us", "UTC")
            ),
            "share": pa.array([some([*doubles, n / 7][n % 5]) for n in numbers], pa.float64()),
            "raw": pa.array([some(bytes([n % 256, 1])) for n in numbers], pa.binary()),
            "yes": pa.array([some(n % 2 == 0) for n in numbers], pa.bool_()),
            "void": pa.array([None] * count, pa.int32()),
            "box": pa.array([some({"n.m": some(n), "other": "x"}) for n in numbers]),
            "tags": pa.array([[{"k": n, "v": None}] if n % 3 else None for n in numbers]),
        }
    )


def a_job(
    path: Path,
    strategy: Literal["Sort", "ZOrder", "Clustering"],
    columns: Sequence[str],
    *,
    parts: int = 1,
    dead: Sequence[BitMap64] = (),
) -> Control:
    """All of a table; one bin for each partition, of so many parts in all."""
    store, snapshot = jobs.snapshot_of(path)
    inputs = list(jobs.input_files(store, snapshot))
    for number, positions in enumerate(dead):
        inputs[number] = inputs[number].model_copy(update={"dv": to_base64(positions)})
    members: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
    for number, input_ in enumerate(inputs):
        members.setdefault(tuple(input_.partition_values.items()), []).append(number)
    size = sum(i.size * sorted_bins.live_rows(i) // max(i.rows, 1) for i in inputs)
    job = RewriteJob(
        inputs=tuple(inputs),
        bins=tuple(
            JobBin(inputs=tuple(each), partition_values=dict(values), run=run)
            for run, (values, each) in enumerate(members.items())
        ),
        target_file_size=size // parts if parts > 1 else 0,
        layout=JobLayout(strategy=strategy, columns=tuple(columns)),
    )
    return jobs.control(store, snapshot, job, next(ATTEMPTS))


def inputs_of(job: Control) -> tuple[InputFile, ...]:
    assert isinstance(job.spec.job, RewriteJob)
    return job.spec.job.inputs


def content(job: Control, path: str, values: Any) -> list[str]:
    """Rows as text: NaN is equal to itself there, and -0.0 is not 0.0."""
    return [str(row) for row in jobs.read_output(job, path, values).to_pylist()]


def some_dead() -> list[BitMap64]:
    return [BitMap64(range(0, ROWS, 3)), BitMap64(), BitMap64([0, ROWS - 1])]
