"""Compacting small files: whole commands, since their start is most of what such a job takes.

Each engine is a new process that imports what it needs, reads all files and writes one. Beside the
seconds stand the size of what was written, and the CPU time of reading it, against all rows encoded
at once by pyarrow.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import data, operations
from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, progress

CASES = {"400 files of 10,000 rows": (400, 10_000), "2,000 files of 1,000 rows": (2_000, 1_000)}
SIZES = {"toy": 40, "small": 10, "full": 1}
"""By how much there are fewer files."""
TIMES = {"toy": 1, "small": 1, "full": 5}
AIM_S, AIM_SCAN, AIM_SIZE = 1.0, 1.05, 1.1

OF_DELTALAKE = """
import sys
from deltalake import DeltaTable, WriterProperties
properties = WriterProperties(compression="ZSTD", compression_level=1)
DeltaTable(sys.argv[1]).optimize.compact(target_size=128 << 20, writer_properties=properties)
"""
OF_POLARS = """
import pathlib, sys
import polars as pl
files = sorted(pathlib.Path(sys.argv[1]).glob("*.parquet"))
pl.scan_parquet(files).sink_parquet(sys.argv[2], compression="zstd", compression_level=1)
"""
OF_DUCKDB = """
import sys
import duckdb
duckdb.sql(f"COPY (SELECT * FROM read_parquet('{sys.argv[1]}/*.parquet')) TO '{sys.argv[2]}' "
           "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)")
"""
OF_PYARROW = """
import pathlib, sys
import pyarrow as pa
import pyarrow.parquet as pq
files = sorted(pathlib.Path(sys.argv[1]).glob("*.parquet"))
rows = pa.concat_tables(pq.read_table(file) for file in files)
pq.write_table(rows, sys.argv[2], compression="zstd", compression_level=1)
"""


def _of_table(perform: Callable[[Path, Path], float], source: Path, work: Path) -> Any:
    root = data.copy_table(source, work / "table")
    return perform(root, work), data.data_files(root)


def _of_file(code: str, source: Path, work: Path) -> Any:
    target = work / "out.parquet"
    return operations.script(code, str(source), str(target)), [target]


def tandem(source: Path, work: Path) -> Any:
    def perform(root: Path, work: Path) -> float:
        spec = {"type": "Major", "targetFileSize": "128Mi"}
        described = operations.resources(root, "small-files", "TableCompaction", **spec)
        return operations.command(described, work)

    return _of_table(perform, source, work)


def deltalake(source: Path, work: Path) -> Any:
    def perform(root: Path, _work: Path) -> float:
        return operations.script(OF_DELTALAKE, str(root))

    return _of_table(perform, source, work)


def polars(source: Path, work: Path) -> Any:
    return _of_file(OF_POLARS, source, work)


def duckdb(source: Path, work: Path) -> Any:
    return _of_file(OF_DUCKDB, source, work)


def encoded(source: Path, work: Path) -> Any:
    return _of_file(OF_PYARROW, source, work)


ENGINES = (
    (tandem, "`tandem run`"),
    (deltalake, "deltalake optimize.compact"),
    (polars, "Polars sink_parquet (no table)"),
    (duckdb, "DuckDB COPY (no table)"),
    (encoded, "pyarrow, all rows encoded at once (no table)"),
)


def _measure(source: Path, work: Path, times: int) -> dict[str, Any]:
    """Engines by turns. Raises: WrongResult."""
    truth = data.checksum(data.data_files(source))
    seconds: dict[str, list[float]] = {engine.__name__: [] for engine, _ in ENGINES}
    found: dict[str, Any] = {}
    for turn in range(times):
        for engine, title in ENGINES:
            work.mkdir()
            took, files = engine(source, work)
            seconds[engine.__name__].append(took)
            if data.checksum(files) != truth:
                raise WrongResult(f"{title}: {data.checksum(files)}, the input has {truth}")
            if turn == times - 1:
                found[engine.__name__] = operations.cost(files)
            shutil.rmtree(work)
    return {name: {"seconds": seconds[name], **each} for name, each in found.items()}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if an engine's output has other rows than the input."""
    raw: dict[str, Any] = {}
    tables, figures = [], []
    for case, (files, rows) in CASES.items():
        progress(case)
        source = work / "source"
        data.write_small_files(source, files=files // SIZES[size], rows=rows)
        raw[case] = found = _measure(source, work / "out", TIMES[size])
        shutil.rmtree(source)
        tables.append(_table(case, found))
        figures += _figures(case, found)
    return Report(
        name="small_files",
        title="Compaction of small files",
        setting=(
            "Files of six columns (two numbers, a decimal, a date, two texts), written by DuckDB "
            f"with zstd; every engine writes zstd level 1. {TIMES[size]} runs, engines by turns, "
            "each a new process with its imports. What was written is read by pyarrow on one "
            "core, all columns; the last line of each table is a re-encoded output."
        ),
        tables=tuple(tables),
        checks=(
            "The outputs of every run have the input's number of rows and the same sum over "
            "DuckDB's hashes of whole rows.",
        ),
        raw=raw,
        figures=tuple(figures),
    )


def _table(case: str, found: dict[str, Any]) -> Table:
    base = Samples.of(found["tandem"]["seconds"]).median
    rows = []
    for engine, title in ENGINES:
        each = found[engine.__name__]
        seconds = Samples.of(each["seconds"])
        times = f"{seconds.median / base:.2f}"
        cost = f"{each['bytes'] / 1e6:,.1f}", f"{each['scan']:.3f}"
        rows.append((title, seconds.text(), times, f"{each['files']}", *cost))
    columns = ("engine", "seconds", "times tandem's time", "files out", "MB out",
               "CPU s to scan it")  # fmt: skip
    return Table(case, columns, tuple(rows))


def _figures(case: str, found: dict[str, Any]) -> list[Figure]:
    ours, again = found["tandem"], found["encoded"]
    seconds = Samples.of(ours["seconds"])
    scan, size = ours["scan"] / again["scan"], ours["bytes"] / again["bytes"]
    return [
        Figure(
            f"{case}: `tandem run`", f"{seconds.text()} s", f"≤ {AIM_S} s", seconds.median <= AIM_S
        ),
        Figure(
            "… CPU time of a scan ÷ of a re-encoded output",
            f"{scan:.2f}",
            f"≤ {AIM_SCAN}",
            scan <= AIM_SCAN,
        ),
        Figure("… size ÷ of a re-encoded output", f"{size:.2f}", f"≤ {AIM_SIZE}", size <= AIM_SIZE),
    ]
