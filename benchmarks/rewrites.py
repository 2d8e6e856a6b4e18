"""Sorts, and changes of 1 % of the rows: 24 files of six columns, against engines that do the same.

Seconds are those of the engine's own call on a warm session or in its own process; Spark's start is
not in them, but `tandem run` as typed in a terminal has its own line. Beside each stand the bytes
that were written and the CPU time of reading the files that the table has then. Every engine writes
zstd at level 1. The rows that change are in every file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
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

FILES = 24
ROWS = {"toy": 400, "small": 20_000, "full": 262_144}
TIMES = {"toy": 1, "small": 1, "full": 3}
SLOW = {"toy": 1, "small": 1, "full": 1}
"""Runs of Spark and of deltalake."""
NEW = 1_000
SORT, Z_ORDER, UPDATE, DELETE, MERGE = "sort", "z-order", "update", "delete", "merge"
TITLES = {
    SORT: "Sort by one column, a date",
    Z_ORDER: "Z-order by two columns, the date and a number",
    UPDATE: "Update of 1 % of the rows",
    DELETE: "Delete of 1 % of the rows",
    MERGE: f"Merge: 1 % of the rows updated, {NEW:,} inserted",
}
AT, BY = "l_shipdate", "l_partkey"
SOME = "l_id % 100 = 7"
MODE = "CHANGED"
COLUMNS = "l_id, l_partkey, l_extendedprice, l_shipdate, l_shipmode, l_comment"
Found = dict[str, dict[str, Any]]


def _source(source: str) -> Path:
    """The rows that are merged, beside the table."""
    return Path(source).with_name("merged.parquet")


def _write_source(source: Path, rows: int) -> None:
    new = data.lineitem(rows, rows + NEW, columns=data.SIX_COLUMNS)
    data.query(f"SELECT * REPLACE ('{MODE}' AS l_shipmode) FROM ({_old(source)}) WHERE {SOME} "
               f"UNION ALL {new}").write_parquet(str(_source(str(source))))  # fmt: skip


def _old(source: Path) -> str:
    names = ", ".join(f"'{file}'" for file in data.data_files(source))
    return f"SELECT {COLUMNS} FROM read_parquet([{names}])"


def _expected(source: Path) -> dict[str, list[Any]]:
    """The rows that each operation must leave, by DuckDB."""
    old = _old(source)
    changed = f"SELECT * REPLACE (CASE WHEN {SOME} THEN '{MODE}' ELSE l_shipmode END AS l_shipmode)"
    merged = f"SELECT * FROM read_parquet('{_source(str(source))}') WHERE NOT ({SOME}) OR l_id >= "
    total = f"(SELECT count(*) FROM ({old}))"
    texts = {
        SORT: old,
        Z_ORDER: old,
        UPDATE: f"{changed} FROM ({old})",
        DELETE: f"SELECT * FROM ({old}) WHERE NOT ({SOME})",
        MERGE: f"{changed} FROM ({old}) UNION ALL {merged}{total}",
    }
    return {name: _sum(f"({text})") for name, text in texts.items()}


def _sum(rows: str) -> list[Any]:
    found = data.query(f"SELECT count(*), sum(hash(t)::HUGEINT) FROM {rows} t").fetchall()[0]
    return [int(found[0]), str(found[1])]


def _sum_of_files(files: list[Path]) -> list[Any]:
    names = ", ".join(f"'{file}'" for file in files)
    return _sum(f"(SELECT {COLUMNS} FROM read_parquet([{names}]))")


def _sum_of_table(root: Path) -> list[Any]:
    """By deltalake, which applies deletion vectors."""
    import duckdb
    import pyarrow as pa
    from deltalake import DeltaTable

    live = pa.table(DeltaTable(root.as_uri()).scan())
    duckdb.register("live", live)
    return _sum(f"(SELECT {COLUMNS} FROM live)")


def _in_order(files: list[Path]) -> bool:
    """Whether the rows of the files are ordered by `AT`, the files one after the other."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = [pq.read_table(file, columns=[AT])[AT].combine_chunks() for file in files]
    columns = sorted((c for c in columns if len(c)), key=lambda c: (c[0].as_py(), c[-1].as_py()))
    return all(
        pc.all(pc.less_equal(c.slice(0, len(c) - 1), c.slice(1))).as_py() is not False
        for c in columns
    ) and all(a[-1].as_py() <= b[0].as_py() for a, b in pairwise(columns))


def _of_table(name: str, root: Path, source: str, seconds: list[float], **more: Any) -> Any:
    files = data.data_files(root)
    old = {file.name for file in data.data_files(Path(source))}
    written = sum(file.stat().st_size for file in files if file.name not in old)
    if name == SORT and not _in_order(files):
        raise WrongResult(f"{files[:2]} … are not in order")
    found = {"seconds": seconds, "truth": _sum_of_table(root), "written": written}
    return {**found, **operations.cost(files), **more}


def _of_files(files: list[Path], seconds: list[float]) -> Any:
    if not _in_order(files):
        raise WrongResult(f"{files[:2]} … are not in order")
    cost = operations.cost(files)
    truth = _sum_of_files(files)
    return {"seconds": seconds, "truth": truth, "written": cost["bytes"], **cost}


# Each function below is one engine in a separate process.


def _operations(source: str) -> dict[str, tuple[str, dict[str, Any]]]:
    def compaction(strategy: str, *columns: str) -> tuple[str, dict[str, Any]]:
        layout = {"strategy": strategy, "columns": list(columns)}
        return "TableCompaction", {"type": "Major", "targetFileSize": "128Mi", "layout": layout}

    merge = {
        "source": {"format": "Parquet", "location": _source(source).as_uri()},
        "on": "t.l_id = s.l_id",
        "whenMatched": [{"updateAll": {}}],
        "whenNotMatched": [{"insertAll": {}}],
    }
    update = {"where": SOME, "set": {"l_shipmode": f"'{MODE}'"}}
    return {
        SORT: compaction("Sort", AT),
        Z_ORDER: compaction("ZOrder", AT, BY),
        UPDATE: ("TableUpdate", {"update": update}),
        DELETE: ("TableUpdate", {"delete": {"where": SOME}}),
        MERGE: ("TableUpdate", {"merge": merge}),
    }


def tandem_warm(source: str, work: str, times: int) -> Found:
    """The engine with planning and commit, and its job alone, on a warm session."""
    warm = operations.Warm(Path(work))
    found: Found = {}
    for name, (kind, spec) in _operations(source).items():
        seconds, before = [], len(warm.jobs)
        for index in range(times + 1):
            root = data.copy_table(Path(source), Path(work, "tandem"))
            described = operations.resources(root, f"{name}-{index}", kind, **spec)
            seconds.append(warm.perform(described))
        jobs = warm.jobs[before:][-times:]
        found[name] = _of_table(name, root, source, seconds[1:], jobs=jobs)
    warm.stop()
    return found


def tandem_run(source: str, work: str, times: int) -> Found:
    """`tandem run -f`, as typed in a terminal: a new process each time."""
    found: Found = {}
    for name, (kind, spec) in _operations(source).items():
        seconds = []
        for index in range(times):
            root = data.copy_table(Path(source), Path(work, "tandem-run"))
            described = operations.resources(root, f"{name}-{index}", kind, **spec)
            seconds.append(operations.command(described, Path(work)))
        found[name] = _of_table(name, root, source, seconds)
    return found


def duckdb(source: str, work: str, times: int) -> Found:
    target = Path(work, "duckdb.parquet")
    text = (
        f"COPY ({_old(Path(source))} ORDER BY {AT}) TO '{target}' "
        "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )
    import duckdb as engine

    seconds = [timed(engine.sql, text)[0] for _ in range(times + 1)]
    return {SORT: _of_files([target], seconds[1:])}


def polars(source: str, work: str, times: int) -> Found:
    import polars as pl

    files, target = data.data_files(Path(source)), Path(work, "polars.parquet")

    def sort() -> None:
        rows = pl.scan_parquet(files).sort(AT)
        rows.sink_parquet(target, compression="zstd", compression_level=1)

    seconds = [timed(sort)[0] for _ in range(times + 1)]
    return {SORT: _of_files([target], seconds[1:])}


def deltalake(source: str, work: str, times: int) -> Found:
    import pyarrow.parquet as pq
    from deltalake import DeltaTable, WriterProperties

    properties = WriterProperties(compression="ZSTD", compression_level=1)

    def z_order(table: DeltaTable) -> None:
        table.optimize.z_order([AT, BY], target_size=128 << 20, writer_properties=properties)

    def update(table: DeltaTable) -> None:
        table.update({"l_shipmode": f"'{MODE}'"}, predicate=SOME, writer_properties=properties)

    def delete(table: DeltaTable) -> None:
        table.delete(SOME, writer_properties=properties)

    def merge(table: DeltaTable) -> None:
        table.merge(
            pq.read_table(_source(source)),
            "t.l_id = s.l_id",
            source_alias="s",
            target_alias="t",
            writer_properties=properties,
        ).when_matched_update_all().when_not_matched_insert_all().execute()

    ways = {Z_ORDER: z_order, UPDATE: update, DELETE: delete, MERGE: merge}

    def perform(name: str, root: Path) -> None:
        ways[name](DeltaTable(root.as_uri()))

    return _each(ways, perform, source, Path(work, "deltalake"), times)


def spark_delta(source: str, work: str, times: int) -> Found:
    """Delta's statements in a warm session with the optimizing compiler, and Spark's own sort of
    the files; a first run of each is not counted."""
    from benchmarks.warm import start_delta

    spark = start_delta()
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(128 << 20))
    spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(128 << 20))
    files, target = [str(file) for file in data.data_files(Path(source))], Path(work, "sorted")

    def sort() -> None:
        rows = spark.read.parquet(*files).sort(AT)
        rows.write.mode("overwrite").parquet(str(target))

    texts = {
        Z_ORDER: f"OPTIMIZE {{}} ZORDER BY ({AT}, {BY})",
        UPDATE: f"UPDATE {{}} SET l_shipmode = '{MODE}' WHERE {SOME}",
        DELETE: f"DELETE FROM {{}} WHERE {SOME}",
        MERGE: (
            f"MERGE INTO {{}} t USING parquet.`{_source(source)}` s ON t.l_id = s.l_id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ),
    }

    def perform(name: str, root: Path) -> None:
        spark.sql(texts[name].format(f"delta.`{root}`")).collect()

    seconds = [timed(sort)[0] for _ in range(times + 1)]
    found = {SORT: _of_files(sorted(target.glob("*.parquet")), seconds[1:])}
    found |= _each(texts, perform, source, Path(work, "spark"), times)
    spark.stop()
    return found


def _each(
    names: Any, perform: Callable[[str, Path], None], source: str, root: Path, times: int
) -> Found:
    """Each operation on copies of the table, one run more than is counted."""
    found: Found = {}
    for name in names:
        seconds = []
        for index in range(times + 1):
            # Another path each time: a session may remember what it read of a table.
            copy = data.copy_table(Path(source), root.with_name(f"{root.name}-{name}-{index}"))
            seconds.append(timed(perform, name, copy)[0])
        found[name] = _of_table(name, copy, source, seconds[1:])
    return found


ENGINES = (
    (tandem_warm, "tandem, warm Spark: plan, job, commit", TIMES),
    (tandem_run, "`tandem run`, the start of the process included", SLOW),
    (duckdb, "DuckDB COPY … ORDER BY (no table)", TIMES),
    (polars, "Polars sort, sink_parquet (no table)", TIMES),
    (deltalake, "deltalake", SLOW),
    (spark_delta, "Spark + Delta, warm; its sort is Spark's (no table)", SLOW),
)
JOB = "tandem, of that the job"


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if an engine's output has other rows than DuckDB computes."""
    source = work / "source"
    progress("the table")
    data.write_lineitem(source, files=FILES, rows=ROWS[size], columns=data.SIX_COLUMNS)
    rows = FILES * ROWS[size]
    _write_source(source, rows)
    megabytes = sum(file.stat().st_size for file in data.data_files(source)) / 1e6
    expected = _expected(source)
    raw: dict[str, Any] = {}
    for function, title, times in ENGINES:
        progress(title)
        folder = work / "out"
        folder.mkdir()
        found = in_child(function, source=str(source), work=str(folder), times=times[size])
        shutil.rmtree(folder)
        for name, each in found.items():
            if each["truth"] != expected[name]:
                raise WrongResult(f"{title}, {name}: {each['truth']}, expected {expected[name]}")
        raw[function.__name__] = found
    columns = ("engine", "seconds", "times tandem's (warm) time", "MB written",
               "files of the table", "CPU s to scan them")  # fmt: skip
    tables = tuple(Table(title, columns, _rows(name, raw)) for name, title in TITLES.items())
    return Report(
        name="rewrites",
        title="Sorts, and changes of 1 % of the rows",
        setting=(
            f"{FILES} files, {megabytes:,.0f} MB, {rows:,} rows of six columns (two numbers, a "
            "decimal, a date, two texts) with deletion vectors, written by deltalake with zstd; "
            f"every engine writes zstd level 1. {TIMES[size]} runs after one that is not counted; "
            f"of the slower ones, `tandem run`, deltalake and Spark, {SLOW[size]}. Files are read "
            "by pyarrow on one core, without their deletion vectors. An engine that writes whole "
            "files for a change of 1 % has a re-encoded output: compare its scan."
        ),
        tables=tables,
        checks=(
            "The tables of every engine, read by deltalake, have the number of rows and the sum "
            "over the hashes of whole rows that DuckDB computes; sorted files are in order.",
        ),
        raw=raw,
        figures=_figures(raw),
    )


def _rows(name: str, raw: dict[str, Any]) -> tuple[tuple[str, ...], ...]:
    ours = raw["tandem_warm"][name]
    base = Samples.of(ours["seconds"]).median
    lines = [(JOB, ours["jobs"], ours)] + [
        (title, raw[function.__name__][name]["seconds"], raw[function.__name__][name])
        for function, title, _ in ENGINES
        if name in raw.get(function.__name__, {})
    ]
    return tuple(
        (
            title,
            Samples.of(seconds).text(),
            f"{Samples.of(seconds).median / base:.2f}",
            f"{found['written'] / 1e6:,.1f}",
            f"{found['files']}",
            f"{found['scan']:.2f}",
        )
        for title, seconds, found in lines
    )


def _figures(raw: dict[str, Any]) -> tuple[Figure, ...]:
    """The aims, on medians of this run."""

    def median(engine: str, name: str, of: str = "seconds") -> float:
        return Samples.of(raw[engine][name][of]).median

    def at_most(what: str, found: float, aim: float, unit: str = " s") -> Figure:
        return Figure(what, f"{found:.2f}{unit}", f"≤ {aim:g}{unit}", found <= aim)

    def at_least(what: str, found: float, aim: float) -> Figure:
        return Figure(what, f"{found:.2f}", f"≥ {aim:g}", found >= aim)

    z_order = median("tandem_warm", Z_ORDER, "jobs")
    figures = [
        at_most(
            f"{TITLES[SORT]}: warm job ÷ DuckDB",
            median("tandem_warm", SORT, "jobs") / median("duckdb", SORT),
            2,
            "",
        ),
        at_most(f"{TITLES[Z_ORDER]}: warm job", z_order, 5),
        at_least("… deltalake ÷ it", median("deltalake", Z_ORDER) / z_order, 1),
    ]
    if "spark_delta" in raw:
        figures.append(
            at_least("… Spark + Delta ÷ it", median("spark_delta", Z_ORDER) / z_order, 1)
        )
    figures += [
        at_most(f"{TITLES[UPDATE]}: warm", median("tandem_warm", UPDATE), 1.5),
        at_most(f"{TITLES[DELETE]}: warm", median("tandem_warm", DELETE), 1),
    ]
    if "spark_delta" in raw:
        merge = median("spark_delta", MERGE) / median("tandem_warm", MERGE)
        figures.append(at_least(f"{TITLES[MERGE]}: warm, Spark + Delta ÷ it", merge, 3))
    aims = {SORT: 10.0, Z_ORDER: 12.0, UPDATE: 8.0}
    figures += [
        at_most(f"{TITLES[name]}: `tandem run`", median("tandem_run", name), aim)
        for name, aim in aims.items()
    ]
    return tuple(figures)
