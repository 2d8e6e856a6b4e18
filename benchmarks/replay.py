"""Moving deletes onto files that were compacted meanwhile: remap against rerun.

Compaction has read 40 files, and 1 % of their rows were deleted before it commits. Either the
positions go through the row map, or the deletes are evaluated again on the outputs. The row
map's own size is measured, too: clean inputs, and inputs of which 1 % was dead when read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from benchmarks import data
from benchmarks.harness import Report, Samples, Table, WrongResult, in_child, repeat, timed

FILES = 40
ROWS = {"toy": 500, "small": 10_000, "full": 262_144}
TIMES = {"toy": 1, "small": 3, "full": 15}
SPARK_TIMES = {"toy": 1, "small": 2, "full": 5}
TARGET_BYTES = {"toy": 1 << 18, "small": 1 << 20, "full": 128 << 20}
"""Size of an output, so that inputs are cut in the middle."""

DELETED = "l_partkey % 100 = 37"
DEAD_WHEN_READ = "l_partkey % 100 = 61"

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
    from tandem.delta.log import DeltaLog
    from tandem.spark.job import Bin, InputFile, JobSpec, RewriteJob
    from tandem.spark.job import Table as JobTable
    from tandem.spark.rewrite import bin_row_map, rewrite_bin
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
    whole = Bin(inputs=tuple(range(len(inputs))))
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


def remap(row_map: Any, deleted: Positions) -> dict[str, BitMap64]:
    """What reconciliation does: each input's positions through the map, joined by output."""
    found: dict[str, BitMap64] = {}
    for path, positions in deleted.items():
        for output, landed in row_map.forward(path, positions).items():
            found[output] = found[output] | landed if output in found else landed
    return found


def read_and_remap(stored: bytes, deleted: Positions) -> dict[str, BitMap64]:
    """The same from the bytes of the map."""
    from tandem.reconcile.rowmap import RowMap

    return remap(RowMap.from_bytes(stored), deleted)


def rerun_in_spark(root: str, paths: list[str], where: str, times: int) -> dict[str, Any]:
    """In a process of its own: a warm session with the product's settings evaluates the delete
    and brings the positions to the driver, as the statement job must."""
    from tandem.spark.session import build_conf, launch_environment, session

    os.environ.update(launch_environment())
    spark = session("tandem-bench", build_conf(short=False))

    def work() -> dict[str, int]:
        frame = spark.read.parquet(*[str(Path(root, path)) for path in paths])
        found = (
            frame.where(where)
            .selectExpr("_metadata.file_name AS name", "_metadata.row_index AS position")
            .toArrow()
        )
        names = {Path(path).name: path for path in paths}
        grouped = _grouped(found["name"], found["position"], names)
        return {path: len(rows) for path, rows in grouped.items()}

    work()
    samples = []
    counts: dict[str, int] = {}
    for _ in range(times):
        seconds, counts = timed(work)
        samples.append(seconds)
    spark.stop()
    return {"seconds": samples, "counts": counts}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if remap and rerun disagree about a single row."""
    root = work / "replay"
    data.write_lineitem(root, files=FILES, rows=ROWS[size])
    total = FILES * ROWS[size]
    paths = [path.name for path in data.data_files(root)]
    deleted = duckdb_positions(root, paths, DELETED)
    dead = duckdb_positions(root, paths, DEAD_WHEN_READ)
    raw: dict[str, Any] = {}
    rows = []
    sizes = []
    spark_rerun: Samples | None = None
    for title, dead_then in (("clean inputs", {}), ("1 % dead when read", dead)):
        row_map, inputs = compacted(root, TARGET_BYTES[size], dead_then)
        outputs = sorted(row_map.output_paths)
        if sorted(inputs) != sorted(paths):
            raise WrongResult(f"the rewrite read {inputs}, the table has {paths}")
        moved = sum(len(b) for b in deleted.values())
        truth = duckdb_positions(root, outputs, DELETED)
        if remap(row_map, deleted) != truth:
            raise WrongResult(f"remap and rerun disagree ({title})")
        stored = row_map.to_bytes()

        samples = {
            "remap": repeat(TIMES[size], partial(remap, row_map, deleted)),
            "remap, with reading the map": repeat(
                TIMES[size], partial(read_and_remap, stored, deleted)
            ),
            "rerun in DuckDB": repeat(
                TIMES[size], partial(duckdb_positions, root, outputs, DELETED)
            ),
        }
        if not dead_then:
            answer = in_child(
                rerun_in_spark,
                root=str(root),
                paths=outputs,
                where=DELETED,
                times=SPARK_TIMES[size],
            )
            if answer["counts"] != {path: len(rows_) for path, rows_ in truth.items()}:
                raise WrongResult("Spark's rerun finds other rows")
            spark_rerun = Samples.of(answer["seconds"])
            samples["rerun in Spark, warm"] = spark_rerun
        base = samples["remap"].median
        for way, found in samples.items():
            rows.append(
                (
                    title,
                    way,
                    found.map(lambda s: s * 1000).text(1),
                    f"{moved / found.median / 1e6:,.1f}",
                    f"{found.median / base:,.1f}",
                )
            )
        sizes.append(
            (title, f"{len(row_map.runs)}", f"{len(stored):,}", f"{len(stored) / total:.6f}")
        )
        raw[title] = {k: list(v.values) for k, v in samples.items()} | {
            "bytes": len(stored),
            "rows": total,
            "deleted": moved,
        }
    return Report(
        name="replay",
        title=f"Replay of 1 % deleted rows of {total:,}",
        setting=(
            f"{FILES} files of {ROWS[size]:,} rows, like TPC-H's lineitem, compacted into "
            f"{len(outputs)}; then {moved:,} rows of all inputs are deleted (`{DELETED}`) and "
            f"their deletes moved onto the outputs. {TIMES[size]} runs; {SPARK_TIMES[size]} in "
            "Spark, after one that is not counted."
        ),
        tables=(
            Table(
                "",
                ("inputs", "way", "milliseconds", "million deletes/s", "times remap's time"),
                tuple(rows),
            ),
            Table(
                "Row maps of bin-packing (aim: less than 0.05 bytes a row)",
                ("inputs", "runs", "bytes", "bytes per row"),
                tuple(sizes),
            ),
        ),
        checks=(
            "Remap gives exactly the positions at which DuckDB finds the deleted rows in the "
            "outputs; Spark's counts are the same.",
        ),
        raw=raw,
    )
