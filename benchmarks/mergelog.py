"""Merge-on-read: what a log costs to write, to read, to compact and to merge.

Jobs run in the benchmark's process, by the functions that Spark's tasks run, so that the figures
are those of the format and not of a JVM's start; only the merge beside a TableUpdate runs on Spark.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

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
from benchmarks.logtable import KEY, LogTable, rows, written_bytes
from benchmarks.logwriters import crowd_of_writers, foreign_appends

KEYS: Final = {"toy": 2_000, "small": 20_000, "full": 200_000}
COMMITS: Final = {"toy": 20, "small": 50, "full": 100}
UPSERTS: Final = {"toy": 5, "small": 20, "full": 50}
TIMES: Final = {"toy": 1, "small": 3, "full": 9}
SECONDS: Final = {"toy": 0.5, "small": 4.0, "full": 20.0}
SHARE: Final = 100
"""A commit upserts every such part of the keys; an upsert of the read figures, every 40th."""
REQUEST_MS: Final = 30

SMALL_RUNS, ALL_BLOCKS, NONE = "SmallRuns after each commit", "AllBlocks every 5", "no compaction"
PURGED = f"{SMALL_RUNS}, half-dead files rewritten"
WAYS: Final = {
    NONE: (None, 0),
    SMALL_RUNS: ("SmallRuns", 1),
    PURGED: ("SmallRuns", 1),
    ALL_BLOCKS: ("AllBlocks", 5),
    "merge every 10": ("LogMerge", 10),
    "merge every 5": ("LogMerge", 5),
}


# Each function below runs in a separate process.


def amplification(folder: str, way: str, keys: int, commits: int) -> dict[str, Any]:
    """Commits of 1 % of the keys, a merge in the middle and one at the end.

    Raises: WrongResult.
    """
    service, every = WAYS[way]
    table = LogTable.made(Path(folder), keys)
    base, chance = written_bytes(table.folder), random.Random(7)
    expected = dict.fromkeys(range(keys), -1)
    ingested, blocks = 0, []
    reads = []
    for number in range(commits):
        chosen = chance.sample(range(keys), k=max(keys // SHARE, 1))
        expected.update(dict.fromkeys(chosen, number))
        before = written_bytes(table.folder)
        table.append(rows(chosen, number))
        ingested += written_bytes(table.folder) - before
        ends = (number + 1) in (commits // 2, commits)
        if service is not None and (number + 1) % every == 0:
            table.serve(service)
        blocks.append(table.live_blocks())
        if ends:
            reads.append(timed(table.read)[0])
            if service != "LogMerge":
                table.serve("LogMerge")
            if way == PURGED:
                table.purge_half_dead()
    found = table.read()
    if dict(zip(found[KEY].to_pylist(), found["c0"].to_pylist(), strict=True)) != expected:
        raise WrongResult(f"{way}: other rows than were written")
    return {
        "ingested": ingested,
        "written": written_bytes(table.folder) - base,
        "blocks": sum(blocks) / len(blocks),
        "reads": reads,
    }


def merged_reads(folder: str, keys: int, upserts: int, spread: bool, times: int) -> dict[str, Any]:
    """Seconds of reads before a log compaction, after it, and after a merge.

    Raises: WrongResult if the rows change.
    """
    table = LogTable.made(Path(folder), keys)
    size = max(keys // 40, 1)
    for number in range(upserts):
        first = number * keys // upserts if spread else 0
        table.append(rows([(first + key) % keys for key in range(size)], number))
    expected = table.read().sort_by(KEY)
    found: dict[str, Any] = {}
    for step, service in (("before", None), ("stitched", "AllBlocks"), ("merged", "LogMerge")):
        if service is not None:
            table.serve(service)
        if not table.read().sort_by(KEY).equals(expected):
            raise WrongResult(f"{step}: other rows than before")
        found[step] = [timed(table.read)[0] for _ in range(times)]
    return found


def appends(folder: str, times: int, request_ms: int) -> list[float]:
    """Seconds of appends of 1,000 rows of 10 columns; a first one is not counted."""
    table = LogTable.made(Path(folder), 10_000, request_ms=request_ms)
    batches = [rows(range(number, number + 1_000), number) for number in range(times + 1)]
    return [timed(table.append, batch)[0] for batch in batches][1:]


def stitching(folder: str, keys: int, times: int) -> dict[str, Any]:
    """Seconds to stitch ten blocks, half of whose keys are in the block before, too."""
    import pyarrow as pa

    from tandem.mergelog.log_table import block_format, settings_of, state_of
    from tandem.mergelog.stitch import StitchRequest, stitch
    from tandem.mergelog.versions import all_blocks

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    table = LogTable.made(Path(folder), 10)
    for number in range(10):
        table.append(rows(range(number * keys // 2, number * keys // 2 + keys), number))
    snapshot, base = table.log.snapshot(), table.log.base.snapshot()
    (run,) = all_blocks(state_of(snapshot))
    settings = settings_of(snapshot)
    request = StitchRequest(mark=-1, expired=-1, max_bytes=256 << 20)
    seconds = []
    for task in range(times):
        took, found = timed(
            stitch,
            table.log.store,
            run,
            request,
            block_format(base, settings),
            settings,
            prefix="blocks/bench",
            task=task,
        )
        if (found.records_in, found.records_out) != (10 * keys, 11 * keys // 2):
            raise WrongResult(f"stitched {found.records_in} records to {found.records_out}")
        seconds.append(took)
    return {"seconds": seconds, "records": 10 * keys}


def merges(folder: str, keys: int, times: int) -> dict[str, Any]:
    """Seconds of a LogMerge, and of a TableUpdate that merges the same rows, by turns on a warm
    Spark; a first one of each is not counted.

    Raises: WrongResult.
    """
    import pyarrow.parquet as pq

    from benchmarks.engine import Engine

    root = Path(folder)
    engine = Engine(root)
    found: dict[str, list[float]] = {"LogMerge": [], "TableUpdate": []}
    upserts = rows(range(keys // 2, keys // 2 + keys), 1)
    source = root / "source.parquet"
    for number in range(times + 1):
        log = LogTable.made(root / f"log-{number}", keys)
        log.append(upserts)
        plain = LogTable.made(root / f"plain-{number}", keys)
        pq.write_table(upserts, source)
        ways: dict[str, Callable[[], str]] = {
            "LogMerge": lambda log=log: engine.merge_log(log.folder),  # type: ignore[misc]
            "TableUpdate": lambda plain=plain: engine.upsert(  # type: ignore[misc]
                source, KEY, plain.folder
            ),
        }
        for way, merge in ways.items():
            seconds, outcome = timed(merge)
            if outcome != "ok":
                raise WrongResult(f"{way}: {outcome}")
            found[way].append(seconds)
        if not log.read().sort_by(KEY).equals(plain.read().sort_by(KEY)):
            raise WrongResult("LogMerge and TableUpdate give other rows")
    engine.close()
    return {way: seconds[1:] for way, seconds in found.items()}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    keys, times = KEYS[size], TIMES[size]
    places = iter(range(1_000))

    def measured(function: Callable[..., Any], **arguments: Any) -> Any:
        progress(f"{function.__name__} {arguments}")
        folder = work / f"table-{next(places)}"
        return in_child(function, folder=str(folder), timeout=3600, **arguments)

    raw: dict[str, Any] = {
        "amplification": {
            way: measured(amplification, way=way, keys=keys, commits=COMMITS[size]) for way in WAYS
        },
        "reads": {
            name: measured(
                merged_reads, keys=keys, upserts=UPSERTS[size], spread=spread, times=times
            )
            for name, spread in (("the same keys", False), ("keys spread", True))
        },
        "append": {
            name: measured(appends, times=10 * times, request_ms=request_ms)
            for name, request_ms in (("local", 0), (f"{REQUEST_MS} ms a request", REQUEST_MS))
        },
        "stitching": measured(stitching, keys=keys, times=times),
        "merges": measured(merges, keys=keys, times=times),
        "paced": measured(
            crowd_of_writers, seconds=SECONDS[size], every_s=2.0, request_ms=REQUEST_MS
        ),
        "saturated": measured(
            crowd_of_writers, seconds=SECONDS[size], every_s=0.0, request_ms=REQUEST_MS
        ),
        "foreign": measured(foreign_appends, seconds=SECONDS[size], request_ms=REQUEST_MS),
    }
    return Report(
        name="mergelog",
        title="A log of blocks beside a table",
        setting=(
            f"{keys:,} rows of 10 columns, an ordering column among them; {COMMITS[size]} commits "
            f"of 1 % of the keys, merged in the middle and at the end. Reads: {UPSERTS[size]} "
            f"upserts of {keys // 40:,} keys each, {times} reads. *{REQUEST_MS} ms a request*: a "
            "local store whose every call takes so much longer. Writers are threads, four to a "
            "process. Jobs run in the benchmark's process, except for the merge beside a "
            "TableUpdate, which runs on a warm Spark."
        ),
        tables=_tables(raw),
        checks=(
            "Each view has the last value that was written of each key.",
            "Log compaction and merge change no row.",
            "LogMerge and TableUpdate give the same rows.",
            "Every acknowledged row of the crowds is in the view.",
        ),
        figures=_figures(raw),
        raw=raw,
    )


def _tables(raw: dict[str, Any]) -> tuple[Table, ...]:
    costs = tuple(
        (
            way,
            f"{found['written'] / found['ingested']:.1f}",
            f"{found['blocks']:.1f}",
            Samples.of(found["reads"]).map(lambda s: s * 1e3).text(0),
        )
        for way, found in raw["amplification"].items()
    )
    reads = tuple(
        (name, *(Samples.of(found[step]).map(lambda s: s * 1e3).text(0) for step in found))
        for name, found in raw["reads"].items()
    )
    writers = tuple(
        (
            name,
            f"{raw[name]['appends']}",
            f"{raw[name]['instants_per_s']:.1f}",
            f"{raw[name]['p50_s']:.2f}",
            f"{raw[name]['p99_s']:.2f}",
            f"{raw[name]['compaction_s']:.2f}",
        )
        for name in ("paced", "saturated")
    )
    others = tuple(
        (name, Samples.of(seconds).map(lambda s: s * 1e3).text(0))
        for name, seconds in raw["append"].items()
    )
    return (
        Table(
            "Bytes written for each byte ingested",
            ("table services", "written ÷ ingested", "live blocks, mean", "ms of a merged read"),
            costs,
        ),
        Table(
            "Milliseconds of a merged read",
            ("upserts of", "before", "after log compaction", "after the merge"),
            reads,
        ),
        Table("Milliseconds of an append of 1,000 rows", ("store", "ms"), others),
        Table(
            "16 writers",
            (
                "writers",
                "appends",
                "instants/s",
                "p50, s",
                "p99, s",
                "s until LogCompaction commits",
            ),
            writers,
        ),
    )


def _figures(raw: dict[str, Any]) -> tuple[Figure, ...]:
    def figure(what: str, value: float, most: float, unit: str = "", digits: int = 2) -> Figure:
        found, aim = f"{value:,.{digits}f}{unit}", f"≤ {most:g}{unit}"
        return Figure(what, found, aim, value <= most)

    def amplified(way: str) -> float:
        found = raw["amplification"][way]
        return float(found["written"] / found["ingested"])

    same = {step: Samples.of(found).median for step, found in raw["reads"]["the same keys"].items()}
    stitched = raw["stitching"]["records"] / Samples.of(raw["stitching"]["seconds"]).median
    merged = {way: Samples.of(found).median for way, found in raw["merges"].items()}
    rate = raw["saturated"]["instants_per_s"]
    foreign = raw["foreign"]
    slow = Samples.of(raw["append"][f"{REQUEST_MS} ms a request"]).median * 1e3
    return (
        figure(
            "SmallRuns, merges in the middle and at the end: bytes written ÷ ingested",
            amplified(SMALL_RUNS),
            3.5,
        ),
        figure("… with rewrites of files more than half dead", amplified(PURGED), 4.0),
        figure(
            "Merged read after log compaction ÷ after the merge",
            same["stitched"] / same["merged"],
            1.3,
        ),
        figure(
            "LogWriter.append, 1,000 rows × 10 columns, local",
            Samples.of(raw["append"]["local"]).median * 1e3,
            25,
            " ms",
            1,
        ),
        # Two requests beside the upload, which is one.
        figure(f"… with {REQUEST_MS} ms a request", slow, 3 * REQUEST_MS + 25, " ms", 0),
        figure("16 writers, each one append in 2 s: p99", raw["paced"]["p99_s"], 1.5, " s"),
        Figure("16 saturated writers: instants/s", f"{rate:.1f}", "≥ 10", rate >= 10),
        figure("… until a LogCompaction commits", raw["saturated"]["compaction_s"], 10, " s", 1),
        figure(
            "Foreign appends beside 4 saturated writers ÷ alone",
            Samples.of(foreign["beside"]).median / Samples.of(foreign["alone"]).median,
            1.2,
        ),
        figure("… of them failed", float(foreign["failed"]), 0, digits=0),
        Figure("Stitched rows/s of one core", f"{stitched:,.0f}", "≥ 1,000,000", stitched >= 1e6),
        figure(
            "LogMerge ÷ a TableUpdate merge of the same rows",
            merged["LogMerge"] / merged["TableUpdate"],
            1.2,
        ),
    )
