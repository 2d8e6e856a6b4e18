"""Compacting 40 files of 7 MB: how many MB of input a second, against engines that re-encode.

Ours copies row groups; a second line has it encode every row as the others do. Beside each speed
stand two things that a copy might worsen: the size of what was written, and the CPU time of
reading it. Every engine writes zstd at level 1, and files of up to 128 MB if it has such a setting.
The measured time is the engine's own call on a warm session. Spark's start is shown separately, and
so is `tandem run` as typed in a terminal, with its start. `cp` shows what the disk can do.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from benchmarks import data, operations
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    in_child,
    progress,
    timed,
)

FILES = 40
ROWS = {"toy": 200, "small": 10_000, "full": 262_144}
TIMES = {"toy": 1, "small": 1, "full": 3}
SLOW = {"toy": 1, "small": 1, "full": 1}
"""Runs of Spark + Delta, each of which takes more than a minute."""
AIM_OF_POLARS, AIM_OF_POLARS_DELETED, AIM_OF_CP, AIM_SCAN, AIM_RUN_S = 18, 15, 0.5, 1.05, 5.0
TARGET_BYTES = 128 << 20
DELETED = "l_orderkey % 100 = 7"
"""One row of a hundred, in every file."""


def _outcome(
    seconds: list[float], files: list[Path], *, without: str = "", **more: Any
) -> dict[str, Any]:
    truth = list(data.checksum(files, without=without))
    return {"seconds": seconds, "truth": truth, **operations.cost(files), **more}


def _compaction(root: Path, name: str) -> operations.Resources:
    """What compacts a whole table once."""
    spec = {"type": "Major", "targetFileSize": "128Mi"}
    return operations.resources(root, name, "TableCompaction", **spec)


# Each function below is one engine in a separate process.


def tandem_warm(source: str, work: str, times: int) -> dict[str, Any]:
    """The engine with planning and commit, and its job alone, on a warm session."""
    return _warm(source, work, times)


def tandem_encoding(source: str, work: str, times: int) -> dict[str, Any]:
    """The same, but the job copies no row group."""
    return _warm(source, work, times, copies=False)


def tandem_deleted(source: str, work: str, times: int) -> dict[str, Any]:
    """The same as `tandem_warm`, where one row of a hundred is deleted in every file."""
    return _warm(source, work, times, deleted=DELETED)


def _warm(
    source: str, work: str, times: int, *, copies: bool = True, deleted: str = ""
) -> dict[str, Any]:
    warm = operations.Warm(Path(work), copies=copies)
    begin = Path(source)
    if deleted:
        begin = data.copy_table(begin, Path(work, "deleted"))
        delete = {"delete": {"where": deleted}}
        warm.perform(operations.resources(begin, "delete", "TableUpdate", **delete))
    before = len(warm.jobs)
    seconds = []
    for index in range(times + 1):
        root = data.copy_table(begin, Path(work, "tandem"))
        seconds.append(warm.perform(_compaction(root, f"bench-{index}")))
    warm.stop()
    return _outcome(
        seconds[1:],
        data.data_files(root),
        without=deleted,
        jobs=warm.jobs[before + 1 :],
        first=seconds[0],
        start=warm.start,
    )


def tandem_run(source: str, work: str, times: int) -> dict[str, Any]:
    """`tandem run -f compaction.yaml`, as typed in a terminal: a new process each time."""
    seconds = []
    for index in range(times):
        root = data.copy_table(Path(source), Path(work, "tandem-run"))
        seconds.append(operations.command(_compaction(root, f"run-{index}"), Path(work)))
    return _outcome(seconds, data.data_files(root))


def cp(source: str, work: str, times: int) -> dict[str, Any]:
    """What no compaction can beat: the same bytes, copied file by file."""
    return _copied(source, work, times)


def cp_synced(source: str, work: str, times: int) -> dict[str, Any]:
    """The same, until the bytes are on the disk, as a commit must have them."""
    return _copied(source, work, times, "sync")


def _copied(source: str, work: str, times: int, *after: str) -> dict[str, Any]:
    files = data.data_files(Path(source))
    target = Path(work, "copied")

    def copy() -> None:
        subprocess.run(["cp", *map(str, files), str(target)], check=True)
        if after:
            subprocess.run([*after, *map(str, target.iterdir())], check=True)

    seconds = []
    for _ in range(times + 1):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        seconds.append(timed(copy)[0])
    return _outcome(seconds[1:], list(target.iterdir()), first=seconds[0])


def deltalake(source: str, work: str, times: int) -> dict[str, Any]:
    from deltalake import DeltaTable, WriterProperties

    properties = WriterProperties(compression="ZSTD", compression_level=1)
    seconds = []
    for _ in range(times + 1):
        root = data.copy_table(Path(source), Path(work, "deltalake"))
        optimize = DeltaTable(root.as_uri()).optimize
        took, _ = timed(optimize.compact, target_size=TARGET_BYTES, writer_properties=properties)
        seconds.append(took)
    return _outcome(seconds[1:], data.data_files(root), first=seconds[0])


def duckdb(source: str, work: str, times: int) -> dict[str, Any]:
    from duckdb import sql

    names = ", ".join(f"'{file}'" for file in data.data_files(Path(source)))
    target = Path(work, "duckdb.parquet")
    seconds = [
        timed(
            lambda: sql(
                f"COPY (SELECT * FROM read_parquet([{names}])) TO '{target}' "
                "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
            )
        )[0]
        for _ in range(times + 1)
    ]
    return _outcome(seconds[1:], [target], first=seconds[0])


def duckdb_unordered(source: str, work: str, times: int) -> dict[str, Any]:
    from duckdb import sql

    sql("SET preserve_insertion_order = false")
    return duckdb(source, work, times)


def polars(source: str, work: str, times: int) -> dict[str, Any]:
    import polars as pl

    files = data.data_files(Path(source))
    target = Path(work, "polars.parquet")
    seconds = [
        timed(
            lambda: pl.scan_parquet(files).sink_parquet(
                target, compression="zstd", compression_level=1
            )
        )[0]
        for _ in range(times + 1)
    ]
    return _outcome(seconds[1:], [target], first=seconds[0])


def spark_delta(source: str, work: str, times: int) -> dict[str, Any]:
    """OPTIMIZE in a warm session with the optimizing compiler; a first run is not counted."""
    from benchmarks.warm import start_delta

    start, spark = timed(start_delta)
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(TARGET_BYTES))
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(TARGET_BYTES))
    seconds = []
    for index in range(times + 1):
        root = data.copy_table(Path(source), Path(work, f"spark-{index}"))
        took, _ = timed(lambda: spark.sql(f"OPTIMIZE delta.`{root}`").collect())  # noqa: B023
        seconds.append(took)
    spark.stop()
    return _outcome(seconds[1:], data.data_files(root), first=seconds[0], start=start)


ENGINES = (
    (tandem_warm, "tandem, warm Spark: plan, job, commit", TIMES),
    (tandem_deleted, "the same, one row of 100 deleted in every file", TIMES),
    (tandem_encoding, "the same, every row encoded", TIMES),
    (tandem_run, "`tandem run`, the start of the process included", TIMES),
    (cp, "`cp`, 40 files (no table)", TIMES),
    (cp_synced, "`cp` and `sync` (no table)", TIMES),
    (polars, "Polars sink_parquet (no table)", TIMES),
    (duckdb_unordered, "DuckDB COPY, order of rows not kept (no table)", TIMES),
    (duckdb, "DuckDB COPY (no table)", TIMES),
    (deltalake, "deltalake optimize.compact", TIMES),
    (spark_delta, "Spark + Delta OPTIMIZE, warm", SLOW),
)


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if an engine's output has other rows than the input."""
    source = work / "source"
    data.write_lineitem(source, files=FILES, rows=ROWS[size])
    inputs = data.data_files(source)
    megabytes = sum(file.stat().st_size for file in inputs) / 1e6
    truth = list(data.checksum(inputs))
    left = list(data.checksum(inputs, without=DELETED))
    raw: dict[str, Any] = {"input": {"files": len(inputs), "megabytes": megabytes}}
    for function, title, times in ENGINES:
        progress(title)
        folder = work / "out"
        folder.mkdir()
        found = in_child(function, source=str(source), work=str(folder), times=times[size])
        shutil.rmtree(folder)
        expected = left if function is tandem_deleted else truth
        if found["truth"] != expected:
            raise WrongResult(f"{title}: {found['truth']}, the input has {expected}")
        raw[function.__name__] = found
    base = Samples.of(raw["tandem_warm"]["seconds"])
    jobs = Samples.of(raw["tandem_warm"]["jobs"])
    lines = [("tandem, of that the rewrite job", jobs, raw["tandem_warm"])] + [
        (title, Samples.of(raw[function.__name__]["seconds"]), raw[function.__name__])
        for function, title, _ in ENGINES
    ]
    rows = tuple(
        (
            title,
            seconds.map(lambda s: megabytes / s).text(0),
            seconds.text(),
            f"{seconds.median / base.median:.2f}",
            f"{found['files']}",
            f"{found['bytes'] / 1e6:,.0f}",
            f"{found['scan']:.2f}",
        )
        for title, seconds, found in lines
    )
    starts = tuple(
        (title, f"{raw[name]['start']:.1f}", f"{raw[name]['first']:.1f}")
        for name, title in (
            ("tandem_warm", "tandem"),
            ("spark_delta", "Spark + Delta"),
        )
        if name in raw
    )
    return Report(
        name="compaction",
        title=f"Compaction of {len(inputs)} files of {megabytes / len(inputs):.1f} MB",
        setting=(
            f"{truth[0]:,} rows like TPC-H's lineitem (16 columns), written by deltalake with "
            f"zstd, {megabytes:,.0f} MB; every engine writes zstd level 1. {TIMES[size]} runs "
            f"after one that is not counted; of Spark + Delta {SLOW[size]}, since one takes more "
            "than a minute. What was written is read by pyarrow on one core, all columns: the size "
            "and the CPU seconds of *every row encoded* are those of a re-encoded output."
        ),
        tables=(
            Table(
                "",
                (
                    "engine",
                    "MB/s of input",
                    "seconds",
                    "times tandem's (warm) time",
                    "files out",
                    "MB out",
                    "CPU s to scan it",
                ),
                rows,
            ),
            Table(
                "Separately: the cost of a start",
                ("engine", "seconds until Spark's session is up", "seconds of the first run on it"),
                starts,
            ),
        ),
        checks=(
            "The outputs of every engine have the input's number of rows and the same sum over "
            "DuckDB's hashes of whole rows; those with deleted rows have those of the others.",
        ),
        raw=raw,
        figures=_figures(raw),
    )


def _figures(raw: dict[str, Any]) -> tuple[Figure, ...]:
    """The aims: ratios of medians of this run."""

    def times(job: str, peer: str) -> float:
        ours = Samples.of(raw[job]["jobs"]).median
        return Samples.of(raw[peer]["seconds"]).median / ours

    scan = raw["tandem_warm"]["scan"] / raw["tandem_encoding"]["scan"]
    whole = Samples.of(raw["tandem_run"]["seconds"])
    least = (
        ("rewrite job, times as fast as Polars", times("tandem_warm", "polars"), AIM_OF_POLARS),
        (
            "… one row of 100 deleted in every file",
            times("tandem_deleted", "polars"),
            AIM_OF_POLARS_DELETED,
        ),
        ("… times as fast as `cp`", times("tandem_warm", "cp"), AIM_OF_CP),
    )
    title = f"Bin-pack of {FILES} files: "
    return (
        *(
            Figure(
                what if what.startswith("…") else title + what,
                f"{found:.2f}",
                f"≥ {aim}",
                found >= aim,
            )
            for what, found, aim in least
        ),
        Figure(
            f"{title}CPU time of a scan, copied ÷ encoded",
            f"{scan:.2f}",
            f"≤ {AIM_SCAN}",
            scan <= AIM_SCAN,
        ),
        Figure(
            f"{title}`tandem run`",
            f"{whole.text()} s",
            f"≤ {AIM_RUN_S} s",
            whole.median <= AIM_RUN_S,
        ),
    )
