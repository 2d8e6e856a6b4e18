"""Sorts, and changes of 1 % of the rows: 24 files of six columns, against engines that do the same.

Seconds are those of the engine's own call on a warm session or in its own process; Spark's start is
not in them, but `tandem run` as typed in a terminal has its own line. Beside each stand the bytes
that were written and the CPU time of reading the files that the table has then. Every engine writes
zstd at level 1. The rows that change are in every file. The changes are measured again on a table
without deletion vectors, where files are made again, and there as whole commands of deltalake, too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
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
from benchmarks.of_deltalake import AT, BY, MODE, SOME

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
CHANGES = (UPDATE, DELETE, MERGE)
COLUMNS = "l_id, l_partkey, l_extendedprice, l_shipdate, l_shipmode, l_comment"
WITH, WITHOUT = "with deletion vectors", "without deletion vectors"
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


def tandem_warm(source: str, work: str, times: int, names: list[str]) -> Found:
    """The engine with planning and commit, and its job alone, on a warm session."""
    warm = operations.Warm(Path(work))
    found: Found = {}
    for name in names:
        kind, spec = _operations(source)[name]
        seconds, before = [], len(warm.jobs)
        for index in range(times + 1):
            root = data.copy_table(Path(source), Path(work, "tandem"))
            described = operations.resources(root, f"{name}-{index}", kind, **spec)
            seconds.append(warm.perform(described))
        jobs = warm.jobs[before:][-times:]
        found[name] = _of_table(name, root, source, seconds[1:], jobs=jobs)
    warm.stop()
    return found


def tandem_run(source: str, work: str, times: int, names: list[str]) -> Found:
    """`tandem run -f`, as typed in a terminal: a new process each time."""
    found: Found = {}
    for name in names:
        kind, spec = _operations(source)[name]
        seconds = []
        for index in range(times):
            root = data.copy_table(Path(source), Path(work, "tandem-run"))
            described = operations.resources(root, f"{name}-{index}", kind, **spec)
            seconds.append(operations.command(described, Path(work)))
        found[name] = _of_table(name, root, source, seconds)
    return found


def duckdb(source: str, work: str, times: int, names: list[str]) -> Found:  # noqa: ARG001
    target = Path(work, "duckdb.parquet")
    text = (
        f"COPY ({_old(Path(source))} ORDER BY {AT}) TO '{target}' "
        "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
    )
    import duckdb as engine

    seconds = [timed(engine.sql, text)[0] for _ in range(times + 1)]
    return {SORT: _of_files([target], seconds[1:])}


def polars(source: str, work: str, times: int, names: list[str]) -> Found:  # noqa: ARG001
    import polars as pl

    files, target = data.data_files(Path(source)), Path(work, "polars.parquet")

    def sort() -> None:
        rows = pl.scan_parquet(files).sort(AT)
        rows.sink_parquet(target, compression="zstd", compression_level=1)

    seconds = [timed(sort)[0] for _ in range(times + 1)]
    return {SORT: _of_files([target], seconds[1:])}


def deltalake(source: str, work: str, times: int, names: list[str]) -> Found:
    from benchmarks import of_deltalake

    def perform(name: str, root: Path) -> None:
        of_deltalake.change(name, str(root), str(_source(source)))

    possible = [name for name in names if name in of_deltalake.CHANGES]
    return _each(possible, perform, source, Path(work, "deltalake"), times)


def deltalake_command(source: str, work: str, times: int, names: list[str]) -> Found:
    """A new process each time, with its imports."""
    code = "import sys; from benchmarks.of_deltalake import change; change(*sys.argv[1:])"

    def perform(name: str, root: Path) -> None:
        operations.script(code, name, str(root), str(_source(source)))

    return _each(names, perform, source, Path(work, "deltalake-command"), times)


def spark_delta(source: str, work: str, times: int, names: list[str]) -> Found:
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

    found: Found = {}
    if SORT in names:
        seconds = [timed(sort)[0] for _ in range(times + 1)]
        found[SORT] = _of_files(sorted(target.glob("*.parquet")), seconds[1:])
    statements = [name for name in names if name in texts]
    found |= _each(statements, perform, source, Path(work, "spark"), times)
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
OF_CHANGES = (
    (tandem_warm, "tandem, warm Spark: plan, job, edits, commit", TIMES),
    (tandem_run, "`tandem run`, the start of the process included", TIMES),
    (deltalake, "deltalake", TIMES),
    (deltalake_command, "deltalake, the start of the process included", TIMES),
    (spark_delta, "Spark + Delta, warm", SLOW),
)
"""Engines that change rows of a table without deletion vectors."""
JOB = "tandem, of that the job"


def _measured(
    source: Path, work: Path, engines: Any, names: Sequence[str], size: str
) -> dict[str, Found]:
    """Raises: WrongResult."""
    expected = _expected(source)
    raw: dict[str, Found] = {}
    for function, title, times in engines:
        progress(title)
        folder = work / "out"
        folder.mkdir()
        found = in_child(
            function, source=str(source), work=str(folder), times=times[size], names=list(names)
        )
        shutil.rmtree(folder)
        for name, each in found.items():
            if each["truth"] != expected[name]:
                raise WrongResult(f"{title}, {name}: {each['truth']}, expected {expected[name]}")
        raw[function.__name__] = found
    return raw


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if an engine's output has other rows than DuckDB computes."""
    rows = FILES * ROWS[size]
    raw: dict[str, dict[str, Found]] = {}
    for vectors in (True, False):
        progress("the table" if vectors else "the table without deletion vectors")
        source = work / "source"
        data.write_lineitem(
            source, files=FILES, rows=ROWS[size], columns=data.SIX_COLUMNS, vectors=vectors
        )
        _write_source(source, rows)
        megabytes = sum(file.stat().st_size for file in data.data_files(source)) / 1e6
        if vectors:
            raw[WITH] = _measured(source, work, ENGINES, list(TITLES), size)
        else:
            raw[WITHOUT] = _measured(source, work, OF_CHANGES, CHANGES, size)
        shutil.rmtree(source)
    columns = ("engine", "seconds", "times tandem's (warm) time", "MB written",
               "files of the table", "CPU s to scan them")  # fmt: skip
    tables = [
        Table(title, columns, _rows(name, raw[WITH], ENGINES)) for name, title in TITLES.items()
    ]
    tables += [
        Table(f"{TITLES[name]}, {WITHOUT}", columns, _rows(name, raw[WITHOUT], OF_CHANGES))
        for name in CHANGES
    ]
    return Report(
        name="rewrites",
        title="Sorts, and changes of 1 % of the rows",
        setting=(
            f"{FILES} files, {megabytes:,.0f} MB, {rows:,} rows of six columns (two numbers, a "
            "decimal, a date, two texts), written by deltalake with zstd; every engine writes zstd "
            f"level 1. {TIMES[size]} runs after one that is not counted; of the slower ones, "
            f"`tandem run`, deltalake and Spark, {SLOW[size]} where the table has deletion "
            "vectors. Files are read by pyarrow on one core, without their deletion vectors. An "
            "engine that writes whole files for a change of 1 % has a re-encoded output: compare "
            "its scan."
        ),
        tables=tuple(tables),
        checks=(
            "The tables of every engine, read by deltalake, have the number of rows and the sum "
            "over the hashes of whole rows that DuckDB computes; sorted files are in order.",
        ),
        raw=raw,
        figures=(*_figures(raw[WITH]), *_figures_without(raw[WITHOUT])),
    )


def _rows(name: str, raw: dict[str, Found], engines: Any) -> tuple[tuple[str, ...], ...]:
    ours = raw["tandem_warm"][name]
    base = Samples.of(ours["seconds"]).median
    lines = [(JOB, ours["jobs"], ours)] + [
        (title, raw[function.__name__][name]["seconds"], raw[function.__name__][name])
        for function, title, _ in engines
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


def _median(raw: dict[str, Found], engine: str, name: str, of: str = "seconds") -> float:
    return Samples.of(raw[engine][name][of]).median


def _at_most(what: str, found: float, aim: float, unit: str = " s") -> Figure:
    return Figure(what, f"{found:.2f}{unit}", f"≤ {aim:g}{unit}", found <= aim)


def _at_least(what: str, found: float, aim: float) -> Figure:
    return Figure(what, f"{found:.2f}", f"≥ {aim:g}", found >= aim)


def _figures(raw: dict[str, Found]) -> tuple[Figure, ...]:
    """The aims, on medians of this run."""
    median = partial(_median, raw)
    z_order = median("tandem_warm", Z_ORDER, "jobs")
    figures = [
        _at_most(
            f"{TITLES[SORT]}: warm job ÷ DuckDB",
            median("tandem_warm", SORT, "jobs") / median("duckdb", SORT),
            2,
            "",
        ),
        _at_most(f"{TITLES[Z_ORDER]}: warm job", z_order, 5),
        _at_least("… deltalake ÷ it", median("deltalake", Z_ORDER) / z_order, 1),
    ]
    if "spark_delta" in raw:
        figures.append(
            _at_least("… Spark + Delta ÷ it", median("spark_delta", Z_ORDER) / z_order, 1)
        )
    figures += [
        _at_most(f"{TITLES[UPDATE]}: warm", median("tandem_warm", UPDATE), 1.5),
        _at_most(f"{TITLES[DELETE]}: warm", median("tandem_warm", DELETE), 1),
    ]
    if "spark_delta" in raw:
        merge = median("spark_delta", MERGE) / median("tandem_warm", MERGE)
        figures.append(_at_least(f"{TITLES[MERGE]}: warm, Spark + Delta ÷ it", merge, 3))
    aims = {SORT: 10.0, Z_ORDER: 12.0, UPDATE: 8.0}
    figures += [
        _at_most(f"{TITLES[name]}: `tandem run`", median("tandem_run", name), aim)
        for name, aim in aims.items()
    ]
    return tuple(figures)


def _figures_without(raw: dict[str, Found]) -> tuple[Figure, ...]:
    """The same on a table without deletion vectors: whole commands beside each other."""
    median = partial(_median, raw)
    figures = [
        _at_most(
            f"{TITLES[name]}, {WITHOUT}: `tandem run` ÷ deltalake's process",
            median("tandem_run", name) / median("deltalake_command", name),
            aim,
            "",
        )
        for name, aim in {UPDATE: 0.6, DELETE: 1.1}.items()
    ]
    if "spark_delta" in raw:
        merge = median("spark_delta", MERGE) / median("tandem_warm", MERGE)
        what = f"{TITLES[MERGE]}, {WITHOUT}: warm, Spark + Delta ÷ it"
        figures.append(_at_least(what, merge, 3))
    return tuple(figures)
