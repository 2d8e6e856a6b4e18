"""What row tracking costs: the same rewrites of a table without it and with it, in turns.

A rewrite of a table with row tracking keeps the id and the commit version of each row in two
columns. A bin-pack copies row groups as bytes, and adds the columns to them; if they are there, as
in the outputs of an earlier bin-pack, it copies them, too, or fills what is NULL in them, as after
an update. A sort encodes all rows anyway.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, in_child, progress

FILES = {"toy": 4, "small": 8, "full": 40}
SORTED_FILES = {"toy": 2, "small": 4, "full": 12}
ROWS = {"toy": 200, "small": 262_144, "full": 262_144}
TIMES = {"toy": 1, "small": 3, "full": 5}
BIN_PACK, WHOLE, FILLED, SORT = "bin-pack", "bin-pack, whole", "bin-pack, filled", "sort"
TITLES = {
    BIN_PACK: "bin-pack of {} files of 7 MB: row groups are copied, columns added",
    WHOLE: "the same, of files that have the columns",
    FILLED: "the same, of files that have them for all rows but one",
    SORT: "sort of {} files by a date",
}
AIMS = {BIN_PACK: 1.3, WHOLE: 1.3, SORT: 1.15}
SPECS: dict[str, dict[str, Any]] = {
    BIN_PACK: {"targetFileSize": "128Mi"},
    WHOLE: {"targetFileSize": "128Mi"},
    FILLED: {"targetFileSize": "128Mi"},
    SORT: {"layout": {"strategy": "Sort", "columns": ["l_shipdate"]}},
}
WITHOUT, WITH = "without", "with"


def measured(source: str, work: str, what: str, times: int) -> dict[str, Any]:
    """In a separate process: seconds, CPU seconds and bytes of both tables, in turns."""
    from support.jobs import quick_lake
    from support.lake.tracking import track

    begin = {WITHOUT: Path(source), WITH: data.copy_table(Path(source), Path(work, WITH))}
    track(quick_lake.at(begin[WITH].as_uri()))
    if what in (WHOLE, FILLED):
        begin[WITHOUT] = data.copy_table(begin[WITHOUT], Path(work, WITHOUT))
        for name, root in begin.items():
            _written_again(root, ids=name == WITH, some_null=what == FILLED)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in begin}
    for number in range(times + 1):
        for name, root in begin.items():
            lake = quick_lake.at(data.copy_table(root, Path(work, "table")).as_uri())
            lake.first_version = number
            operation = lake.compaction("Major", **SPECS[what])
            gc.collect()
            began, cpu = time.perf_counter(), time.process_time()
            lake.do(operation)
            took, cpu = time.perf_counter() - began, time.process_time() - cpu
            files = data.data_files(lake.path)
            size = sum(file.stat().st_size for file in files)
            runs[name].append({"seconds": took, "cpu": cpu, "bytes": size})
            if number == times:
                runs[name][-1]["truth"] = list(_checksum(files))
                runs[name][-1]["ids"] = _ids(files) if name == WITH else []
    # The first runs load modules, and warm the disk.
    return {name: each[1:] for name, each in runs.items()}


def _written_again(root: Path, *, ids: bool, some_null: bool) -> None:
    """All files of a table, by Arrow, with the columns of ids and versions if `ids`."""
    import dataclasses

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from support.jobs import quick_lake
    from support.lake.tracking import NAMES
    from tandem.delta.log.codec import encode_action
    from tandem.delta.log.snapshot import remove_of

    lake = quick_lake.at(root.as_uri())
    actions = []
    for add in lake.log.snapshot().adds():
        rows = pq.read_table(root / add.path)
        if ids:
            first, version = add.extra["baseRowId"], add.extra["defaultRowCommitVersion"]
            found = np.arange(first, first + len(rows)), np.full(len(rows), version)
            null = np.arange(len(rows)) < some_null
            for name, numbers in zip(NAMES.values(), found, strict=True):
                rows = rows.append_column(name, pa.array(numbers, mask=null))
        path = f"again-{add.path}"
        # As our writer encodes ids.
        delta = {"_Id": "DELTA_BINARY_PACKED"} if ids else None
        texts = [name for name in rows.column_names if name != "_Id"]
        pq.write_table(
            rows, root / path, compression="zstd", compression_level=1, use_dictionary=texts,
            column_encoding=delta,
        )  # fmt: skip
        size = (root / path).stat().st_size
        new = dataclasses.replace(add, logged_path=path, size=size)
        gone = remove_of(add, deletion_ms=1, data_change=False)
        actions += [encode_action(gone), encode_action(new)]
    lake.log_raw(*actions)


def _checksum(files: list[Path]) -> tuple[int, str]:
    """Of the columns of the table."""
    names = ", ".join(f"'{file}'" for file in files)
    found = data.query(
        "SELECT count(*), sum(hash(t)::HUGEINT) FROM (SELECT COLUMNS('^l_') FROM "
        f"read_parquet([{names}])) t"
    )
    [(rows, total)] = found.fetchall()
    return int(rows), str(total)


def _ids(files: list[Path]) -> list[int]:
    """How many rows, ids and versions there are in the columns, the least id and the highest."""
    names = ", ".join(f"'{file}'" for file in files)
    found = data.query(
        'SELECT count(*), count(DISTINCT "_Id"), count(DISTINCT "_CommitVersion"), min("_Id"), '
        f'max("_Id") FROM read_parquet([{names}])'
    )
    return [int(each) for each in found.fetchall()[0]]


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    sources = {}
    for name, files in (("packed", FILES[size]), ("sorted", SORTED_FILES[size])):
        progress(f"a table of {files} files")
        sources[name] = work / name
        data.write_lineitem(sources[name], files=files, rows=ROWS[size])
    rows, raw = [], {}
    ratios: dict[str, tuple[str, Samples]] = {}
    for what in SPECS:
        progress(what)
        source = sources["sorted" if what == SORT else "packed"]
        out = work / what.replace(", ", "-")
        out.mkdir()
        found = in_child(
            measured, source=str(source), work=str(out), what=what, times=TIMES[size], timeout=3600
        )
        inputs = data.data_files(source)
        _require(what, found, list(_checksum(inputs)), len(inputs) * ROWS[size])
        title = TITLES[what].format(len(inputs))
        for kind, unit in (("seconds", "seconds"), ("cpu", "CPU seconds")):
            each = {name: Samples.of(one[kind] for one in found[name]) for name in found}
            pairs = zip(each[WITH].values, each[WITHOUT].values, strict=True)
            ratio = Samples.of(a / b for a, b in pairs)
            rows.append((title, unit, each[WITHOUT].text(), each[WITH].text(), ratio.text()))
            if kind == "seconds":
                ratios[what] = title, ratio
        sizes = [found[name][-1]["bytes"] for name in (WITHOUT, WITH)]
        more = sizes[1] - sizes[0]
        texts = [f"{each / 1e6:,.2f}" for each in sizes]
        rows.append((title, "MB written", *texts, f"{sizes[1] / sizes[0]:.3f}, {more:,} bytes"))
        raw[what] = found
    return Report(
        name="row_tracking",
        title="Rewrites of tables with row tracking",
        setting=f"16 columns, zstd at level 1, {ROWS[size]:,} rows a file; plan, job and commit in "
        f"one process, without Spark. {TIMES[size]} pairs of runs, in turns: ratios are of the two "
        "of a pair.",
        tables=(
            Table(
                "The same rewrites",
                ("rewrite", "", "without row tracking", "with row tracking", "with ÷ without"),
                tuple(rows),
            ),
        ),
        checks=(
            "DuckDB finds the rows of the inputs in the outputs, and with row tracking as many "
            "different ids as rows, from 0 on without a gap, and one version.",
        ),
        raw=raw,
        figures=tuple(
            Figure(
                f"{ratios[what][0]}: seconds with row tracking ÷ without",
                ratios[what][1].text(),
                f"at most {aim}",
                ratios[what][1].median <= aim,
            )
            for what, aim in AIMS.items()
        ),
    )


def _require(what: str, found: dict[str, Any], truth: list[Any], rows: int) -> None:
    """Raises: WrongResult."""
    for name, runs in found.items():
        if runs[-1]["truth"] != truth:
            raise WrongResult(f"{what}, {name}: {runs[-1]['truth']}, the input has {truth}")
    ids = found[WITH][-1]["ids"]
    if ids != [rows, rows, 1, 0, rows - 1]:
        raise WrongResult(f"{what}: rows, ids, versions, first and last id are {ids}")
