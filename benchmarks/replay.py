"""Moving deletes onto concurrently compacted files: remap against rerun.

A compaction has read 40 files, and 1 % of their rows are deleted before it commits. Either the
positions go through the row map, or the deletes are evaluated again on the outputs. Both are
measured for bin-packed files, for inputs of which 1 % was dead when read, and for sorted ones.
The row map's size is measured, too, and separately the time to read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from benchmarks import data
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    in_child,
    progress,
    repeat,
    timed,
)

FILES = 40
ROWS = {"toy": 500, "small": 10_000, "full": 262_144}
TIMES = {"toy": 1, "small": 3, "full": 15}
SPARK_TIMES = {"toy": 1, "small": 2, "full": 5}
TARGET_BYTES = {"toy": 1 << 18, "small": 1 << 20, "full": 128 << 20}
"""Size of an output, so that inputs are cut in the middle."""

DELETED = "l_partkey % 100 = 37"
DEAD_WHEN_READ = "l_partkey % 100 = 61"

CLEAN = "bin-packed"
DIRTY = "bin-packed, 1 % dead when read"
SORTED_BY = ("l_shipdate", "l_suppkey")
SORTED_OUTPUTS = 10
SORTED = f"sorted by {', '.join(SORTED_BY)}"
AIMS_MS = {CLEAN: 0.3, DIRTY: 8.0, SORTED: 15.0}
"""Milliseconds of the pure part; the time to read its input is separate."""
REMAP, READ = "remap, the pure part", "apart: reading the row map"
IN_DUCKDB, IN_SPARK = "rerun in DuckDB", "rerun in Spark, warm"

Positions = Mapping[str, BitMap64]


def duckdb_positions(root: Path, paths: list[str], where: str) -> dict[str, BitMap64]:
    """Positions of matching rows by path: the delete, evaluated by DuckDB."""
    names = ", ".join(f"'{root / path}'" for path in paths)
    found = data.query(
        f"""SELECT filename, file_row_number FROM read_parquet([{names}], filename = true,
            file_row_number = true) WHERE {where}"""
    ).to_arrow_table()
    return _grouped(found["filename"], found["file_row_number"], {str(root / p): p for p in paths})


def _grouped(
    files: pa.ChunkedArray, positions: pa.ChunkedArray, names: Mapping[str, str]
) -> dict[str, BitMap64]:
    codes = files.combine_chunks().dictionary_encode()
    index = codes.indices.to_numpy(zero_copy_only=False)
    rows = positions.to_numpy()
    return {
        names[name]: BitMap64(rows[index == code].astype(np.uint64))
        for code, name in enumerate(codes.dictionary.to_pylist())
    }


def compacted(root: Path, target: int, dead: Positions) -> tuple[Any, list[str]]:
    """Rewrite the table's files as a task of the rewrite job does; (row map, inputs)."""
    from tandem.delta.dv import to_base64
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.jobs.formats import InputFile, JobBin, JobSpec, JobTable, RewriteJob
    from tandem.spark.jobs.bins import bin_row_map, rewrite_bin
    from tandem.storage import open_store

    store = open_store(root.as_uri())
    snapshot = DeltaLog(store).snapshot()
    adds = list(snapshot.adds())
    rows = dict(
        zip(snapshot.files["path"].to_pylist(), snapshot.num_records.to_pylist(), strict=True)
    )
    inputs = tuple(
        InputFile(
            logged_path=add.logged_path,
            size=add.size,
            rows=rows[add.logged_path],
            dv=to_base64(dead[add.logged_path]) if add.logged_path in dead else "",
        )
        for add in adds
    )
    whole = JobBin(inputs=tuple(range(len(inputs))))
    job = RewriteJob(inputs=inputs, bins=(whole,), target_file_size=target)
    spec = JobSpec(
        operation_id="0" * 16,
        attempt=1,
        table=JobTable(
            location=store.location,
            version=snapshot.version,
            table_id=snapshot.metadata.id,
            schema_string=snapshot.metadata.schema_string,
            partition_columns=(),
            configuration=dict(snapshot.configuration),
        ),
        data_prefix=f"out-{'dirty' if dead else 'clean'}",
        control_prefix="control",
        job=job,
    )
    result = rewrite_bin(store, spec, 0)
    return bin_row_map(spec, job, whole, result.files), [i.logged_path for i in inputs]


def sorted_anew(root: Path, paths: list[str]) -> tuple[Any, list[str]]:
    """The rows sorted by two columns, as a sorting rewrite maps them; (row map, inputs). Only the
    columns that the deletes and the order need are written."""
    from tandem.rowmap.rowmap import MapOutput, RowMapBuilder, RowMapIdentity

    names = {str(root / path): path for path in paths}
    listed = ", ".join(f"'{name}'" for name in names)
    rows = data.query(
        f"""SELECT l_partkey, filename, file_row_number FROM read_parquet([{listed}],
            filename = true, file_row_number = true)
            ORDER BY {", ".join(SORTED_BY)}, filename, file_row_number"""
    ).to_arrow_table()
    order = rows["filename"].combine_chunks().dictionary_encode()
    inputs = [names[name] for name in order.dictionary.to_pylist()]
    builder = RowMapBuilder(RowMapIdentity("bench", "0" * 16, 1, 0))
    for path in inputs:
        builder.add_input(path, pq.read_metadata(root / path).num_rows)
    each = -(-rows.num_rows // SORTED_OUTPUTS)
    outputs = []
    for number in range(SORTED_OUTPUTS):
        part = rows.slice(number * each, each).select(["l_partkey"])
        outputs.append(MapOutput(f"sorted-{number}.parquet", part.num_rows))
        pq.write_table(part, root / outputs[-1].path)
    place = np.arange(rows.num_rows)
    builder.add_sorted(
        inputs,
        outputs,
        origins=(
            order.indices.to_numpy().astype(np.int64),
            rows["file_row_number"].to_numpy().astype(np.int64),
        ),
        destinations=(place // each, place % each),
    )
    return builder.build(), inputs


def remap(row_map: Any, deleted: Positions) -> dict[str, BitMap64]:
    """As in reconciliation: each input's positions through the map, joined by output."""
    found: dict[str, BitMap64] = {}
    for path, positions in deleted.items():
        for output, landed in row_map.forward(path, positions).items():
            if output in found:
                found[output] |= landed
            else:
                found[output] = landed
    return found


def rerun_in_spark(
    root: str, outputs: dict[str, list[str]], where: str, times: int
) -> dict[str, Any]:
    """In a separate process: a warm session with the product's settings evaluates the delete and
    returns the positions to the driver, like the statement job; for each set of outputs."""
    from tandem.spark.runtime.session import build_conf, launch_environment, session

    os.environ.update(launch_environment())
    spark = session("tandem-bench", build_conf(short=False))

    def work(paths: list[str]) -> dict[str, int]:
        frame = spark.read.parquet(*[str(Path(root, path)) for path in paths])
        found = (
            frame.where(where)
            .selectExpr("_metadata.file_name AS name", "_metadata.row_index AS position")
            .toArrow()
        )
        names = {Path(path).name: path for path in paths}
        grouped = _grouped(found["name"], found["position"], names)
        return {path: len(rows) for path, rows in grouped.items()}

    answers = {}
    for title, paths in outputs.items():
        work(paths)
        found = [timed(work, paths) for _ in range(times)]
        answers[title] = {"seconds": [seconds for seconds, _ in found], "counts": found[-1][1]}
    spark.stop()
    return answers


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if remap and rerun disagree about any row."""
    from tandem.rowmap.binary_format import from_bytes, to_bytes

    root = work / "replay"
    data.write_lineitem(root, files=FILES, rows=ROWS[size])
    total = FILES * ROWS[size]
    paths = [path.name for path in data.data_files(root)]
    deleted = duckdb_positions(root, paths, DELETED)
    dead = duckdb_positions(root, paths, DEAD_WHEN_READ)
    samples: dict[str, dict[str, Samples]] = {}
    all_outputs: dict[str, list[str]] = {}
    counts: dict[str, dict[str, int]] = {}
    sizes = []
    variants: tuple[tuple[str, Callable[[], tuple[Any, list[str]]]], ...] = (
        (CLEAN, partial(compacted, root, TARGET_BYTES[size], {})),
        (DIRTY, partial(compacted, root, TARGET_BYTES[size], dead)),
        (SORTED, partial(sorted_anew, root, paths)),
    )
    moved = sum(len(b) for b in deleted.values())
    for title, rewritten in variants:
        progress(title)
        row_map, inputs = rewritten()
        outputs = all_outputs[title] = sorted(row_map.output_paths)
        if sorted(inputs) != sorted(paths):
            raise WrongResult(f"the rewrite read {inputs}, the table has {paths}")
        truth = duckdb_positions(root, outputs, DELETED)
        if remap(row_map, deleted) != truth:
            raise WrongResult(f"remap and rerun disagree ({title})")
        counts[title] = {path: len(rows) for path, rows in truth.items()}
        stored = to_bytes(row_map)
        samples[title] = {
            REMAP: repeat(TIMES[size], partial(remap, row_map, deleted)),
            READ: repeat(TIMES[size], partial(from_bytes, stored)),
            IN_DUCKDB: repeat(TIMES[size], partial(duckdb_positions, root, outputs, DELETED)),
        }
        sizes.append(
            (title, f"{len(row_map.runs)}", f"{len(stored):,}", f"{len(stored) / total:.6f}")
        )
    progress(IN_SPARK)
    answers = in_child(
        rerun_in_spark, root=str(root), outputs=all_outputs, where=DELETED, times=SPARK_TIMES[size]
    )
    rows = []
    for title, found in samples.items():
        if answers[title]["counts"] != counts[title]:
            raise WrongResult(f"Spark's rerun finds other rows ({title})")
        found[IN_SPARK] = Samples.of(answers[title]["seconds"])
        for way, times in found.items():
            milliseconds = times.map(lambda s: s * 1000)
            rows.append(
                (
                    title,
                    way,
                    milliseconds.text(2 if milliseconds.median < 10 else 0),
                    f"{AIMS_MS[title]:g}" if way == REMAP else "",
                    "" if way == READ else f"{moved / times.median / 1e6:,.2f}",
                    "" if way == READ else f"{times.median / found[REMAP].median:,.0f}",
                )
            )
    in_ms = {title: found[REMAP].map(lambda s: s * 1000) for title, found in samples.items()}
    return Report(
        name="replay",
        title=f"Replay of 1 % deleted rows of {total:,}",
        setting=(
            f"{FILES} files of {ROWS[size]:,} rows, like TPC-H's lineitem, compacted into "
            f"{len(all_outputs[CLEAN])} ({SORTED_OUTPUTS} where sorted); then "
            f"{moved:,} rows of all inputs are deleted (`{DELETED}`) and their deletes moved "
            f"onto the outputs. {TIMES[size]} runs; "
            f"{SPARK_TIMES[size]} in Spark, after one that does not count. The reruns read the "
            "outputs from the page cache."
        ),
        tables=(
            Table(
                "",
                ("files", "way", "milliseconds", "aim", "million deletes/s", "times remap's time"),
                tuple(rows),
            ),
            Table(
                "Row maps (aims: below 0.05 bytes a row for bin-packing, 4 where sorted)",
                ("files", "runs", "bytes", "bytes per row"),
                tuple(sizes),
            ),
        ),
        checks=(
            "Remap gives exactly the positions at which DuckDB finds the deleted rows in the "
            "outputs; Spark's counts are the same.",
        ),
        figures=tuple(
            Figure(
                f"Replay of {moved:,} deletes over {FILES} segments, {title}: the pure part",
                f"{found.text(2)} ms",
                f"≤ {AIMS_MS[title]:g} ms",
                found.median <= AIMS_MS[title],
            )
            for title, found in in_ms.items()
        ),
        raw={
            title: {way: list(times.values) for way, times in found.items()}
            | {"rows": total, "deleted": moved}
            for title, found in samples.items()
        },
    )
