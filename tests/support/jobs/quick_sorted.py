"""Sorted bins without Spark: the same files and row maps as of
`tandem.spark.jobs.rewrite.reordered`, in the calling thread. A z-order is some order by all of its
columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.jobs.formats import JobLayout, RewriteJob
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.frames import dead_rows

Written = list[tuple[WrittenFile, int]]
"""Files, each with its bin's run."""


def rewrite_sorted(
    opened: Control, job: RewriteJob, layout: JobLayout, rows: pa.Table
) -> tuple[Written, RowMap]:
    """`rows` are all live rows of all inputs, with `__input` and `__position`."""
    spec = opened.spec
    builder = RowMapBuilder(
        RowMapIdentity(spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version)
    )
    written: Written = []
    for number, bin_ in enumerate(job.bins):
        of_bin = rows.filter(pc.is_in(rows["__input"], pa.array(bin_.inputs, pa.int32())))
        ordered = _ordered(of_bin, layout)
        writer = ParquetDataWriter(
            opened.store,
            spec.data_prefix,
            opened.table,
            partition_values=bin_.partition_values,
            target_size=job.target_file_size,
            task=number,
            codec=job.codec,
            codec_level=job.codec_level,
        )
        with writer:
            for batch in ordered.select(opened.table.data_schema.names).to_batches():
                writer.write(batch)
        written += [(file, bin_.run) for file in writer.files]
        inputs = [job.inputs[n] for n in bin_.inputs]
        for input_ in inputs:
            builder.add_input(input_.logged_path, input_.rows, dead_rows(input_))
        slot = {n: index for index, n in enumerate(bin_.inputs)}
        builder.add_sorted(
            [input_.logged_path for input_ in inputs],
            [MapOutput(file.path, file.rows) for file in writer.files],
            origins=(
                _integers([slot[n] for n in ordered["__input"].to_pylist()]),
                _integers(ordered["__position"].to_pylist()),
            ),
            destinations=(
                _integers([n for n, file in enumerate(writer.files) for _ in range(file.rows)]),
                _integers([n for file in writer.files for n in range(file.rows)]),
            ),
        )
    return written, builder.build()


def _ordered(rows: pa.Table, layout: JobLayout) -> pa.Table:
    keys = [(name, "ascending") for name in layout.columns]
    if layout.strategy == "ZOrder":
        ranks = [pc.rank(rows[name], tiebreaker="dense") for name in layout.columns]
        total: Any = ranks[0]
        for rank in ranks[1:]:
            total = pc.add(total, rank)
        rows = rows.append_column("__z", total)
        keys = [("__z", "ascending")]
    return rows.sort_by([*keys, ("__input", "ascending"), ("__position", "ascending")])


def _integers(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)
