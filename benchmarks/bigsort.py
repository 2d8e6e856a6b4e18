"""A sort of more than memory: `tandem run` of a table of about 10 GB decoded, by one column, with
the heap of 1 GiB that Spark has by default, beside DuckDB with 2 GB.

Peaks of resident memory are those of each process by the kernel: the JVM, and Python's workers.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import data, operations
from benchmarks.harness import Figure, Report, Table, WrongResult, in_child, progress, timed

FILES = {"toy": 1, "small": 8, "full": 80}
ROWS = {"toy": 100_000, "small": 1_000_000, "full": 1_000_000}
COLUMN = "l_partkey"
WORKER_AIM = 1 << 30
"""Bytes of memory that the manifests of jobs give to each of Python's workers."""
HOURS = 3600.0


def tandem(source: str, work: str) -> dict[str, Any]:
    """`tandem run` of a sort, as typed in a terminal."""
    root = data.copy_table(Path(source), Path(work, "tandem"))
    layout = {"strategy": "Sort", "columns": [COLUMN]}
    everything = {"type": "Major", "major": {"targetSegmentSize": "1Ti"}}
    described = operations.resources(root, "sort", "TableCompaction", layout=layout, **everything)
    with _peaks() as peaks:
        took = operations.command(described, Path(work))
    return {"seconds": took, "peaks": peaks, **_written(data.data_files(root))}


def duckdb(source: str, work: str) -> dict[str, Any]:
    import duckdb as engine

    names = ", ".join(f"'{file}'" for file in data.data_files(Path(source)))
    target = Path(work, "duckdb.parquet")
    connection = engine.connect(config={"memory_limit": "2GB", "temp_directory": f"{work}/spilled"})
    copy = (
        f"COPY (SELECT * FROM read_parquet([{names}]) ORDER BY {COLUMN}) TO '{target}' "
        "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )
    with _peaks(own=True) as peaks:
        took, _ = timed(connection.execute, copy)
    return {"seconds": took, "peaks": peaks, **_written([target])}


def _written(files: list[Path]) -> dict[str, Any]:
    return {
        "truth": list(data.checksum(files)),
        "bytes": sum(file.stat().st_size for file in files),
        "files": len(files),
        "ranges": [list(each) for each in sorted(map(_bounds, files))],
    }


def _bounds(file: Path) -> tuple[int, int]:
    """The least and the greatest value of the column, and that they are those of its ends."""
    found = data.query(
        f"SELECT min({COLUMN}), max({COLUMN}), count(*) FILTER (before > {COLUMN}) FROM (SELECT "
        f"{COLUMN}, lag({COLUMN}) OVER (ORDER BY file_row_number) AS before "
        f"FROM read_parquet('{file}', file_row_number = true))"
    ).fetchall()[0]
    if found[2]:
        raise WrongResult(f"{file.name} is not sorted: {found[2]} rows")
    return int(found[0]), int(found[1])


@contextmanager
def _peaks(*, own: bool = False) -> Iterator[dict[str, list[int]]]:
    """Peak bytes of the processes that this one starts, or of itself, by kind."""
    found: dict[str, list[int]] = {}
    seen: dict[int, tuple[str, int]] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            for pid in [os.getpid()] if own else _descendants(os.getpid()):
                kind, peak = _kind_and_peak(pid)
                if peak > seen.get(pid, ("", 0))[1]:
                    seen[pid] = kind, peak

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        for kind, peak in seen.values():
            found.setdefault(kind, []).append(peak)


def _kind_and_peak(pid: int) -> tuple[str, int]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return "", 0
    peak = [int(line.split()[1]) * 1024 for line in status.splitlines() if "VmHWM" in line]
    is_worker = any(b"pyspark" in word for word in words[1:4]) and b"java" not in words[0]
    kind = "JVM" if words[0].endswith(b"java") else "worker" if is_worker else "Python"
    return kind, sum(peak)


def _descendants(parent: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, left = [], [parent]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    source = work / "source"
    progress("the table")
    data.write_lineitem(source, files=FILES[size], rows=ROWS[size])
    inputs = data.data_files(source)
    truth = list(data.checksum(inputs))
    total = sum(file.stat().st_size for file in inputs)
    memory = data.query(f"SELECT * FROM read_parquet('{inputs[0]}')").to_arrow_table().nbytes
    memory *= len(inputs)
    found = {}
    for engine in (tandem, duckdb):
        progress(engine.__name__)
        out = work / engine.__name__
        out.mkdir()
        one = in_child(engine, timeout=4 * HOURS, source=str(source), work=str(out))
        shutil.rmtree(out)
        if one["truth"] != truth:
            raise WrongResult(f"{engine.__name__} wrote other rows")
        ends = [value for bounds in one["ranges"] for value in bounds]
        if ends != sorted(ends):
            raise WrongResult(f"files of {engine.__name__} overlap")
        found[engine.__name__] = one
    ours, theirs = found["tandem"], found["duckdb"]
    ratio = ours["seconds"] / theirs["seconds"]
    rows = []
    for name, one in found.items():
        peaks = {kind: max(values) / 2**20 for kind, values in one["peaks"].items()}
        cells = [f"{one['seconds']:,.1f}", f"{one['seconds'] / theirs['seconds']:.2f}"]
        cells += [f"{peaks.get(k, 0):,.0f}" for k in ("JVM", "worker", "Python")]
        rows.append((name, *cells, f"{one['files']}", f"{one['bytes'] / 2**20:,.0f}"))
    worst = max(ours["peaks"].get("worker", [0]))
    return Report(
        name="bigsort",
        title="A sort of more than memory",
        setting=f"{truth[0]:,} rows like TPC-H's lineitem (16 columns) in {len(inputs)} files of "
        f"{total / 2**20:,.0f} MiB, {memory / 2**30:.1f} GiB decoded, sorted by {COLUMN}: by the "
        "whole command, its JVM's start included, and by DuckDB with a `memory_limit` of 2 GB.",
        tables=(
            Table(
                "Seconds, and peaks of resident memory in MiB",
                (
                    "engine",
                    "seconds",
                    "÷ DuckDB",
                    "JVM",
                    "largest worker",
                    "largest other Python",
                    "files",
                    "MiB written",
                ),
                tuple(rows),
            ),
        ),
        checks=(
            "the rows of each are those of the inputs",
            "each file is sorted, and no two files overlap",
        ),
        raw={"engines": found, "decoded": memory},
        figures=(
            Figure("time ÷ DuckDB's", f"{ratio:.2f}", "it ends", met=True),
            Figure(
                "peak of a worker", f"{worst / 2**20:,.0f} MiB", "1,024 MiB", worst <= WORKER_AIM
            ),
        ),
    )
