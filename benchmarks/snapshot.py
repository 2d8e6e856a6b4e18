"""Time and memory to read a table of a million files from its checkpoint.

Three questions, since engines defer work: open the table; list its files with their sizes;
count its rows, which needs every file's statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import (
    Report,
    Samples,
    Table,
    WrongResult,
    in_child,
    peak_bytes,
    resident_bytes,
    timed,
)

FILES = {"toy": 300, "small": 20_000, "full": 1_000_000}
TIMES = {"toy": 1, "small": 2, "full": 5}

STEPS = {
    "open": "open",
    "files": "open, list files and sizes",
    "rows": "open, list, count rows",
}


@dataclass(frozen=True)
class Opened:
    """A table opened by one engine, with the answers to the questions."""

    files: Callable[[], tuple[int, int]]
    """(number of files, their bytes)"""
    rows: Callable[[], int]


def open_with_tandem(root: Path) -> Opened:
    import pyarrow.compute as pc

    from tandem.delta.log.delta_log import DeltaLog
    from tandem.storage import open_store

    snapshot = DeltaLog(open_store(root.as_uri())).snapshot()
    return Opened(
        files=lambda: (snapshot.files.num_rows, snapshot.size_bytes),
        rows=lambda: int(pc.sum(snapshot.num_records).as_py()),
    )


def open_with_deltalake(root: Path) -> Opened:
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    table = DeltaTable(root.as_uri())

    def actions() -> pa.Table:
        return pa.table(table.get_add_actions(flatten=True))

    def files() -> tuple[int, int]:
        found = actions()
        return found.num_rows, int(pc.sum(found["size_bytes"]).as_py())

    return Opened(files=files, rows=lambda: int(pc.sum(actions()["num_records"]).as_py()))


OPENERS = {"tandem": open_with_tandem, "deltalake": open_with_deltalake}


def measure(engine: str, step: str, root: str) -> dict[str, Any]:
    """In a separate process: once, cold except for the page cache."""
    import deltalake  # noqa: F401 - both processes begin with the same imports
    import pyarrow.compute  # noqa: F401

    import tandem.delta.log.delta_log
    import tandem.storage  # noqa: F401

    before = resident_bytes()
    answer: dict[str, int] = {}

    def work() -> Opened:
        opened = OPENERS[engine](Path(root))
        if step != "open":
            answer["files"], answer["bytes"] = opened.files()
        if step == "rows":
            answer["rows"] = opened.rows()
        return opened

    seconds, _ = timed(work)
    return {"seconds": seconds, "before": before, "peak": peak_bytes(), "answer": answer}


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if an engine's counts are not those of DuckDB."""
    files, times = FILES[size], TIMES[size]
    checkpoint = data.write_checkpoint(work / "snapshot", files)
    row = data.query(
        f"""SELECT count(*), sum(add.size), sum((add.stats ->> 'numRecords')::BIGINT)
            FROM read_parquet('{checkpoint}') WHERE add.path IS NOT NULL"""
    ).fetchall()[0]
    truth = dict(zip(("files", "bytes", "rows"), map(int, row), strict=True))
    raw: dict[str, Any] = {}
    rows = []
    for step, title in STEPS.items():
        found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in OPENERS}
        for _ in range(times):
            # In turn, so that other load on the machine affects both.
            for engine in OPENERS:
                measured = in_child(measure, engine=engine, step=step, root=str(work / "snapshot"))
                for key, value in measured["answer"].items():
                    if value != truth[key]:
                        raise WrongResult(f"{engine}: {key} {value}, DuckDB says {truth[key]}")
                found[engine].append(measured)
        raw[step] = found
        seconds = {e: Samples.of(m["seconds"] for m in found[e]) for e in OPENERS}
        peak = {e: Samples.of((m["peak"] - m["before"]) / 2**20 for m in found[e]) for e in OPENERS}
        for engine in OPENERS:
            rows.append(
                (
                    title,
                    engine,
                    seconds[engine].text(),
                    f"{seconds['deltalake'].median / seconds[engine].median:.2f}",
                    peak[engine].text(0),
                    f"{peak['deltalake'].median / max(peak[engine].median, 1):.2f}",
                )
            )
    imports = Samples.of(m["before"] / 2**20 for e in OPENERS for m in raw["open"][e])
    return Report(
        name="snapshot",
        title=f"Snapshot of {files:,} files from a checkpoint",
        setting=(
            f"A table partitioned by day, statistics of three columns, one classic checkpoint of "
            f"{checkpoint.stat().st_size / 1e6:,.0f} MB; {times} processes each, in turn. "
            f"Peak memory excludes the {imports.median:.0f} MiB that the imports of both "
            "libraries take."
        ),
        tables=(
            Table(
                "",
                (
                    "question",
                    "engine",
                    "seconds",
                    "times as fast as deltalake",
                    "peak MiB",
                    "times as small as deltalake",
                ),
                tuple(rows),
            ),
        ),
        checks=("Files, bytes and rows equal those that DuckDB finds in the checkpoint.",),
        raw=raw,
    )
