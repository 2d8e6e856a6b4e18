"""What row tracking costs: the same changes of a table without it and with it, in turns.

With deletion vectors, an update or merge writes the ids of the rows that it updates beside them.
Without vectors files are made again, and each of their rows needs an id and a commit version.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, in_child, progress

FILES = {"toy": 2, "small": 4, "full": 12}
ROWS = {"toy": 200, "small": 262_144, "full": 262_144}
TIMES = {"toy": 1, "small": 3, "full": 5}
WITHOUT, WITH = "without", "with"
UPDATE, MERGE, DELETE = "update", "merge", "delete"
CHANGES = (UPDATE, MERGE, DELETE)
SOME = "l_id % 100 = 7"
MODE = "CHANGED"
AIM = 1.15


def changed(source: str, work: str, what: str, times: int) -> dict[str, Any]:
    """In a separate process: seconds and CPU seconds of a change of 1 % of the rows in both tables,
    in turns."""
    from support.jobs import quick_lake
    from support.lake.tracking import track

    begin = {WITHOUT: Path(source), WITH: data.copy_table(Path(source), Path(work, WITH))}
    track(quick_lake.at(begin[WITH].as_uri()))
    rows = Path(work, "merged.parquet")
    names = ", ".join(f"'{file}'" for file in data.data_files(Path(source)))
    new = data.lineitem(1 << 32, (1 << 32) + 1_000, columns=data.SIX_COLUMNS)
    old = f"SELECT * REPLACE ('{MODE}' AS l_shipmode) FROM read_parquet([{names}]) WHERE {SOME}"
    data.query(f"{old} UNION ALL {new}").write_parquet(str(rows))
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in begin}
    for number in range(times + 1):
        for name, root in begin.items():
            table = data.copy_table(root, Path(work, "table")).as_uri()
            lake = quick_lake.of_kind(quick_lake.ArrowLake, table)
            lake.first_version = number
            operation = lake.delete(SOME)
            if what == UPDATE:
                operation = lake.update(SOME, l_shipmode=f"'{MODE}'")
            elif what == MERGE:
                operation = lake.merge(rows, on="t.l_id = s.l_id")
            gc.collect()
            began, cpu = time.perf_counter(), time.process_time()
            lake.do(operation)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            runs[name].append({"seconds": took, "cpu": cpu})
            if number == times:
                runs[name][-1]["truth"] = list(_live(lake))
    return {name: each[1:] for name, each in runs.items()}


def _live(lake: Any) -> tuple[int, str]:
    """Of the rows of a table."""
    import duckdb
    import pyarrow as pa

    from tandem.delta.scan import scan

    live = pa.table(scan(lake.log.snapshot(), lake.store))
    with duckdb.connect() as engine:
        engine.register("live", live)
        found = engine.sql("SELECT count(*), sum(hash(live)::HUGEINT) FROM live").fetchall()
    [(rows, total)] = found
    return int(rows), str(total)


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    rows, figures, raw = [], [], {}
    for vectors in (True, False):
        kind = "with" if vectors else "without"
        progress(f"a table {kind} deletion vectors")
        source, files = work / f"changed-{kind}", FILES[size]
        data.write_lineitem(
            source, files=files, rows=ROWS[size], columns=data.SIX_COLUMNS, vectors=vectors
        )
        for what in CHANGES:
            title = f"{what}, {files} files, {kind} deletion vectors"
            progress(title)
            out = work / f"{what}-{kind}"
            out.mkdir()
            found = in_child(
                changed, source=str(source), work=str(out), what=what, times=TIMES[size],
                timeout=3600,
            )  # fmt: skip
            if found[WITH][-1]["truth"] != found[WITHOUT][-1]["truth"]:
                raise WrongResult(f"{title}: {found[WITH][-1]['truth']}")
            for unit in ("seconds", "cpu"):
                each = {name: Samples.of(one[unit] for one in found[name]) for name in found}
                pairs = zip(each[WITH].values, each[WITHOUT].values, strict=True)
                ratio = Samples.of(a / b for a, b in pairs)
                texts = each[WITHOUT].text(), each[WITH].text(), ratio.text()
                rows.append((title, "CPU seconds" if unit == "cpu" else unit, *texts))
                if unit == "seconds":
                    figures.append(
                        Figure(
                            f"{title}: seconds with row tracking ÷ without",
                            ratio.text(),
                            f"at most {AIM}",
                            ratio.median <= AIM,
                        )
                    )
            raw[title] = found
    return Report(
        name="tracked_changes",
        title="Changes of tables with row tracking",
        setting=f"{FILES[size]} files of {ROWS[size]:,} rows of six columns, zstd, level 1; plan, "
        f"job and commit in one process, without Spark. {TIMES[size]} pairs of runs, in turns: "
        "ratios are of the two of a pair.",
        tables=(
            Table(
                "The same changes of 1 % of the rows, in all files",
                ("change", "", "without row tracking", "with row tracking", "with ÷ without"),
                tuple(rows),
            ),
        ),
        checks=("Both tables have the same rows then, by DuckDB's sum over hashes of rows.",),
        raw=raw,
        figures=tuple(figures),
    )
