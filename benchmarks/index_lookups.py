"""What the index is worth to those who read: a key looked up through Spark, and by a reader among
row groups with bloom filters; mixed queries of DuckDB; and executors that are killed.

Every row that is found is compared with what was written.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import lookup_engines, lookup_kills, lookup_spark
from benchmarks.harness import Figure, Report, Samples, Table, in_child, progress
from benchmarks.lookup_tables import (
    FALSE_POSITIVES,
    GROUP_ROWS,
    PER_FILE,
    looked_up,
    write_clustered,
    write_unclustered,
)

SPARK_FILES = {"toy": (5, 20), "small": (120, 10_000), "full": (120, 100_000)}
SPARK_TIMES = {"toy": 1, "small": 3, "full": 5}
FILES = {"toy": 12, "small": 12, "full": 60}
PER_UNCLUSTERED = {"toy": 60_000, "small": 200_000, "full": 200_000}
TIMES = {"toy": 3, "small": 20, "full": 60}
MIXED_TIMES = {"toy": 2, "small": 7, "full": 15}
KILLS = {"toy": 1, "small": 1, "full": 3}
SAMPLES = 20
SNAPSHOT_PARTITIONS = (50, 1)
"""Delta's default, and its fastest setting for small tables."""
ENGINES = {
    "Tandem": lookup_engines.by_tandem,
    "DuckDB": lookup_engines.by_duckdb,
    "Polars": lookup_engines.by_polars,
    "pyarrow": lookup_engines.by_pyarrow,
}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if an engine finds another row than was written."""
    root = work / "unclustered"
    files = FILES[size]
    progress("write the tables")
    made = write_unclustered(root, files, PER_UNCLUSTERED[size], min(SAMPLES, files))
    tables = {}
    for count in SPARK_FILES[size]:
        keys = looked_up(count, SPARK_TIMES[size] + 1)
        write_clustered(work / f"files-{count}", count, keys)
        tables[f"{count:,}"] = (str(work / f"files-{count}"), keys)
    samples = made["samples"]
    found: dict[str, Any] = {}
    for name, engine in ENGINES.items():
        progress(f"an unclustered key: {name}")
        found[name] = in_child(engine, root=str(root), samples=samples, times=TIMES[size])
    progress("an unclustered key in the S3 test server")
    store = in_child(lookup_engines.from_store, root=str(root), samples=samples)
    progress("mixed queries of DuckDB")
    mixed = in_child(lookup_engines.mixed, root=str(root), samples=samples, times=MIXED_TIMES[size])
    spark: dict[str, Any] = {}
    for partitions in SNAPSHOT_PARTITIONS:
        progress(f"Spark with Delta, snapshotPartitions {partitions}")
        spark[f"Delta, {partitions}"] = in_child(
            lookup_spark.with_delta, tables=tables, snapshot_partitions=partitions
        )
    progress("tandem.spark.read")
    spark["Tandem"] = in_child(
        lookup_spark.with_tandem, tables=tables, snapshot_partitions=SNAPSHOT_PARTITIONS[0]
    )
    progress("executors that are killed")
    kills = in_child(lookup_kills.killed, times=KILLS[size])
    return _report(size, made, {"engines": found, "store": store, "mixed": mixed, "spark": spark,
                                "killed": kills})  # fmt: skip


def _report(size: str, made: dict[str, Any], raw: dict[str, Any]) -> Report:
    small, large = SPARK_FILES[size]
    tables = (
        *_spark_tables(raw["spark"]),
        _engines_table(made, raw["engines"]),
        _store_table(made, raw["store"]),
        _mixed_table(raw["mixed"]),
        _kills_table(raw["killed"]),
    )
    return Report(
        name="index_lookups",
        title="Looking up keys by the index",
        setting=(
            f"Through Spark: tables of {small:,} and {large:,} files of {PER_FILE:,} rows in the "
            "order of the key; of the files only those exist that are looked up. Elsewhere: "
            f"{made['rows']:,} rows in {FILES[size]} files ({made['bytes'] / 1e6:,.0f} MB), random "
            f"64-bit keys, row groups of {GROUP_ROWS:,} rows with bloom filters of the key, by "
            f"pyarrow for {FALSE_POSITIVES:.1%} false positives, and facts beside the table as "
            "Tandem's jobs store them. All engines are warm, local files and, for executors, "
            "Flight on loopback without TLS."
        ),
        tables=tables,
        checks=(
            "Each lookup gives exactly the row that was written.",
            "Each query of DuckDB gives the same with the index and without it.",
            "While executors are killed, every answer has the rows that were written.",
        ),
        figures=(
            *_spark_figures(raw["spark"]),
            *_engine_figures(made, raw["engines"], raw["store"]),
            *_kill_figures(raw["killed"]),
            _mixed_figure(raw["mixed"]),
        ),
        raw=raw | {"made": {name: made[name] for name in ("rows", "bytes")}},
    )


def _spark_tables(spark: dict[str, Any]) -> list[Table]:
    found = []
    for files in spark["Tandem"]:
        rows = []
        for session, by_table in spark.items():
            partitions = session.removeprefix("Delta, ")
            for way, each in by_table[files].items():
                name = way if session == "Tandem" else f"{way}, snapshotPartitions {partitions}"
                rows.append((name, f"{each['first']:.2f}", Samples.of(each["seconds"]).text()))
        title = f"A key through Spark, {files} files, seconds"
        found.append(Table(title, ("way", "first", "warm"), tuple(rows)))
    return found


def _spark_figures(spark: dict[str, Any]) -> list[Figure]:
    found = []
    for files, ways in spark["Tandem"].items():
        ours = statistics.median(ways[lookup_spark.READ]["seconds"])
        for partitions in SNAPSHOT_PARTITIONS:
            theirs = spark[f"Delta, {partitions}"][files][lookup_spark.DELTA]["seconds"]
            ratio = statistics.median(theirs) / ours
            what = f"{files} files: a key by Spark with Delta ÷ by tandem.spark.read"
            if partitions != SNAPSHOT_PARTITIONS[0]:
                what = f"… with snapshotPartitions {partitions}"
            found.append(Figure(what, f"{ratio:.1f}", "≥ 5", ratio >= 5))
    return found


def _engines_table(made: dict[str, Any], engines: dict[str, Any]) -> Table:
    ours = statistics.median(engines["Tandem"]["seconds"])
    return Table(
        f"An unclustered key in {made['rows']:,} rows, milliseconds",
        ("engine", "first", "warm", "÷ Tandem"),
        tuple(
            (
                name,
                f"{_ms(each['first']):,.0f}",
                Samples.of(each["seconds"]).map(_ms).text(),
                f"{statistics.median(each['seconds']) / ours:.1f}",
            )
            for name, each in engines.items()
        ),
    )


def _store_table(made: dict[str, Any], store: dict[str, Any]) -> Table:
    def row(name: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
        return (
            name,
            Samples.of(each["groups"] for each in runs).text(0),
            Samples.of(each["requests"] for each in runs).text(0),
            Samples.of(each["others"] for each in runs).text(0),
            Samples.of(each["bytes"] / 1e6 for each in runs).text(),
            f"{statistics.median(each['bytes'] for each in runs) / made['bytes']:.2%}",
        )

    return Table(
        "The same in the S3 test server",
        (
            "lookup",
            "row groups read",
            "requests for data files",
            "for the log and facts",
            "MB of data files",
            "of their bytes",
        ),
        (row("nothing held", [store["cold"]]), row("footers and filters held", store["warm"])),
    )


def _engine_figures(
    made: dict[str, Any], engines: dict[str, Any], store: dict[str, Any]
) -> list[Figure]:
    ours, theirs = (statistics.median(engines[name]["seconds"]) for name in ("Tandem", "DuckDB"))
    ratio = theirs / ours
    share = max(each["bytes"] for each in store["warm"]) / made["bytes"]
    most = max(each["requests"] / each["groups"] for each in store["warm"])
    return [
        Figure(
            f"An unclustered key in {made['rows']:,} rows with bloom filters: DuckDB ÷ Tandem",
            f"{ratio:.1f}",
            "≥ 5",
            ratio >= 5,
        ),
        Figure("… most bytes of the data files read, warm", f"{share:.2%}", "≤ 1 %", share <= 0.01),
        Figure("… most store requests for a row group, warm", f"{most:.1f}", "≤ 2", most <= 2),
    ]


def _mixed_table(mixed: dict[str, Any]) -> Table:
    return Table(
        "Queries of DuckDB over all files, and over those that the index chooses, milliseconds",
        ("query", "files chosen", "without", "with, choosing included", "with ÷ without"),
        tuple(
            (
                name,
                str(each["files"]),
                Samples.of(each["without"]).map(_ms).text(1),
                Samples.of(each["with"]).map(_ms).text(1),
                f"{_ratio(each):.2f}",
            )
            for name, each in mixed.items()
        ),
    )


def _mixed_figure(mixed: dict[str, Any]) -> Figure:
    worst = max(mixed, key=lambda name: _ratio(mixed[name]))
    ratio = _ratio(mixed[worst])
    return Figure(
        f"{len(mixed)} queries of DuckDB with the index ÷ without: the greatest ratio",
        f"{ratio:.2f} ({worst})",
        "≤ 1.02",
        ratio <= 1.02,
    )


def _ratio(each: dict[str, Any]) -> float:
    with_, without = (statistics.median(each[way]) for way in ("with", "without"))
    return float(with_ / without)


def _kills_table(kills: dict[str, Any]) -> Table:
    return Table(
        "One of two executors is killed, seconds",
        ("killed", "until all its shards are served", "until it is back"),
        tuple(
            (
                what,
                Samples.of(each["served"] for each in kills[what]).text(1),
                Samples.of(each["back"] for each in kills[what]).text(1),
            )
            for what in ("worker", "JVM")
        ),
    )


def _kill_figures(kills: dict[str, Any]) -> list[Figure]:
    found = []
    for what in ("worker", "JVM"):
        most = max(each["served"] for each in kills[what])
        name = f"A {what} of an executor is killed: until its shards are served, most"
        found.append(Figure(name, f"{most:.1f} s", "≤ 15 s", most <= 15))
    failed = len(kills["failed"])
    text = f"{failed} of {kills['calls']:,}"
    found.append(Figure(f"… failed calls of {lookup_kills.ASKERS} clients", text, "0", failed == 0))
    return found


def _ms(seconds: float) -> float:
    return seconds * 1_000
