"""Compacting 40 files of 7 MB: how many MB of input a second, against engines that re-encode.

Every engine writes zstd at level 1, and files of up to 128 MB if it has such a setting. The
measured time is the engine's own call on a warm session. Spark's start is shown separately, and so
is `tandem run` as typed in a terminal, with its start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import PATHS, Report, Samples, Table, WrongResult, in_child, progress, timed

FILES = 40
ROWS = {"toy": 200, "small": 10_000, "full": 262_144}
TIMES = {"toy": 1, "small": 1, "full": 3}
RUNS = {"toy": 1, "small": 1, "full": 3}
"""Runs of `tandem run` and `spark-submit`, which start a JVM each."""
TARGET_BYTES = 128 << 20


def _truth(files: list[Path]) -> list[Any]:
    return list(data.checksum(files))


def _outcome(seconds: list[float], files: list[Path], **more: Any) -> dict[str, Any]:
    size = sum(file.stat().st_size for file in files)
    return {"seconds": seconds, "truth": _truth(files), "files": len(files), "bytes": size, **more}


def compaction_manifests(root: Path, name: str) -> list[dict[str, Any]]:
    """The resources that compact a whole table once."""
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
            "kind": "TableCompaction",
            "metadata": {"name": name},
            "spec": {
                "tableRef": {"name": "lineitem"},
                "type": "Major",
                "targetFileSize": "128Mi",
            },
        },
    ]


# Each function below is one engine in a separate process.


def tandem_warm(source: str, work: str, times: int) -> dict[str, Any]:
    """The engine with planning and commit, and its job alone, on a warm session."""
    import yaml

    from benchmarks.warm import start_ours
    from support.jobs.inline_runner import InlineRunner
    from tandem.operations import runner as engine
    from tandem.operations.ports import Ports
    from tandem.spec import load
    from tandem.spec.status import Phase

    start, spark = timed(start_ours)
    runner = InlineRunner(spark)
    options = engine.RunOptions(Ports(jobs=runner), poll_ms=20)
    seconds = []
    for index in range(times + 1):
        root = data.copy_table(Path(source), Path(work, "tandem"))
        manifest = Path(work, "tandem.yaml")
        manifest.write_text(yaml.safe_dump_all(compaction_manifests(root, f"bench-{index}")))
        resources = load([manifest])
        took, outcomes = timed(engine.run, resources, options)
        status = outcomes[-1].status
        if status.phase is not Phase.SUCCEEDED:
            raise WrongResult(status.model_dump_json())
        seconds.append(took)
    jobs = list(runner.seconds.values())
    spark.stop()
    return _outcome(
        seconds[1:], data.data_files(root), jobs=jobs[1:], first=seconds[0], start=start
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
    truth = _truth(inputs)
    raw: dict[str, Any] = {"input": {"files": len(inputs), "megabytes": megabytes}}
    for function, title, times in ENGINES:
        progress(title)
        folder = work / "out"
        folder.mkdir()
        found = in_child(function, source=str(source), work=str(folder), times=times[size])
        shutil.rmtree(folder)
        if found["truth"] != truth:
            raise WrongResult(f"{title}: {found['truth']}, the input has {truth}")
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
            "DuckDB's hashes of whole rows.",
        ),
        raw=raw,
    )
