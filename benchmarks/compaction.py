"""Compacting 40 files of 7 MB: how many MB of input a second, against engines that re-encode.

Ours copies row groups; a second line has it encode every row as the others do. Beside each speed
stand two things that a copy might worsen: the size of what was written, and the CPU time of
reading it. Every engine writes zstd at level 1, and files of up to 128 MB if it has such a setting.
The measured time is the engine's own call on a warm session. Spark's start is shown separately, and
so is `tandem run` as typed in a terminal, with its start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import PATHS, Report, Samples, Table, WrongResult, in_child, progress, timed

FILES = 40
ROWS = {"toy": 200, "small": 10_000, "full": 262_144}
TIMES = {"toy": 1, "small": 1, "full": 3}
RUNS = {"toy": 1, "small": 1, "full": 3}
"""Runs of `tandem run` and `spark-submit`, which start a JVM each."""
SCANS = 5
TARGET_BYTES = 128 << 20
DELETED = "l_orderkey % 100 = 7"
"""One row of a hundred, in every file."""


def _outcome(
    seconds: list[float], files: list[Path], *, without: str = "", **more: Any
) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in files)
    scan = min(_scan(files) for _ in range(SCANS))
    truth = list(data.checksum(files, without=without))
    found = {"truth": truth, "files": len(files), "bytes": size, "scan": scan}
    return {"seconds": seconds, **found, **more}


def _scan(files: list[Path]) -> float:
    """Seconds of CPU to read all columns, by pyarrow on one core."""
    import pyarrow.parquet as pq

    before = time.process_time()
    for file in files:
        pq.read_table(file, use_threads=False)
    return time.process_time() - before


def compaction_manifests(root: Path, name: str) -> list[dict[str, Any]]:
    """The resources that compact a whole table once."""
    return _manifests(root, name, "TableCompaction", type="Major", targetFileSize="128Mi")


def _manifests(root: Path, name: str, kind: str, **spec: Any) -> list[dict[str, Any]]:
    api = "tandem.dev/v1alpha1"
    return [
        {
            "apiVersion": api,
            "kind": "LakeTable",
            "metadata": {"name": "lineitem"},
            "spec": {"location": root.as_uri()},
        },
        {
            "apiVersion": api,
            "kind": kind,
            "metadata": {"name": name},
            "spec": {"tableRef": {"name": "lineitem"}, **spec},
        },
    ]


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
    import dataclasses

    import yaml

    from benchmarks.warm import start_ours
    from support.jobs.inline_runner import InlineRunner, as_it_is
    from tandem.jobs.runner import JobRequest
    from tandem.operations import runner as engine
    from tandem.operations.ports import Ports
    from tandem.spark.runtime.control import Control
    from tandem.spec import load
    from tandem.spec.status import Phase

    def encoding(_request: JobRequest, opened: Control) -> Control:
        job = opened.spec.job.model_copy(update={"reencode": True})
        return dataclasses.replace(opened, spec=opened.spec.model_copy(update={"job": job}))

    start, spark = timed(start_ours)
    runner = InlineRunner(spark, as_it_is if copies else encoding)
    options = engine.RunOptions(Ports(jobs=runner), poll_ms=20)

    def perform(manifests: list[dict[str, Any]]) -> float:
        manifest = Path(work, "tandem.yaml")
        manifest.write_text(yaml.safe_dump_all(manifests))
        took, outcomes = timed(engine.run, load([manifest]), options)
        status = outcomes[-1].status
        if status.phase is not Phase.SUCCEEDED:
            raise WrongResult(status.model_dump_json())
        return took

    begin = Path(source)
    if deleted:
        begin = data.copy_table(begin, Path(work, "deleted"))
        perform(_manifests(begin, "delete", "TableUpdate", delete={"where": deleted}))
        runner.seconds.clear()
    seconds = []
    for index in range(times + 1):
        root = data.copy_table(begin, Path(work, "tandem"))
        seconds.append(perform(compaction_manifests(root, f"bench-{index}")))
    jobs = list(runner.seconds.values())
    spark.stop()
    return _outcome(
        seconds[1:],
        data.data_files(root),
        without=deleted,
        jobs=jobs[1:],
        first=seconds[0],
        start=start,
    )


def _ran(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def tandem_run(source: str, work: str, times: int) -> dict[str, Any]:
    """`tandem run -f compaction.yaml`, as typed in a terminal: a new JVM each time."""
    import yaml

    seconds = []
    for index in range(times):
        root = data.copy_table(Path(source), Path(work, "tandem-run"))
        manifest = Path(work, "run.yaml")
        manifest.write_text(yaml.safe_dump_all(compaction_manifests(root, f"run-{index}")))
        command = [sys.executable, "-c", "from tandem.cli.main import main; main()"]
        command += ["run", "-f", str(manifest), "-q"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
        took, done = timed(_ran, command, env)
        if done.returncode:
            raise WrongResult(done.stdout[-1500:] + done.stderr[-1500:])
        seconds.append(took)
    return _outcome(seconds, data.data_files(root))


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
    (tandem_run, "`tandem run`, the JVM's start included", RUNS),
    (polars, "Polars sink_parquet (no table)", TIMES),
    (duckdb_unordered, "DuckDB COPY, order of rows not kept (no table)", TIMES),
    (duckdb, "DuckDB COPY (no table)", TIMES),
    (deltalake, "deltalake optimize.compact", TIMES),
    (spark_delta, "Spark + Delta OPTIMIZE, warm", RUNS),
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
            f"after one that is not counted; {RUNS[size]} of `tandem run` and of Spark + Delta."
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
    )
