"""Whether and when statements commit alongside a writer with many commits a second.

A table of 120,000 rows in twelve files and four partitions. One `deltalake` process commits at a
fixed rate: small commits (ten rows appended, then one of them deleted), or an update that rewrites
a file of 10,000 rows. Alongside it an update, a delete and a merge with inserts run, one after the
other, each on a separate table, with the default `maxAttempts`. Half of the rows that the writer
appends match the statement's condition, and their keys are between those of the merge's source, so
that statistics rule out no file. For the merge also with matching keys: the rows that the writer
appends have keys of the source's new rows, so that what the merge inserts is determined again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.engine import Engine
from benchmarks.goodput import Arena
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    await_child,
    in_child,
    progress,
    start_child,
    timed,
)

FILES, PARTITIONS = 12, 4
NEW, NEW_FROM = 1_000, 1_000_000
"""Rows that the merge inserts: even ids. The writer appends odd ids from the same range, unless the
keys are to match."""
STATEMENTS = ("update", "delete", "merge")
MATCHING = "matching keys"
SHAPES = ("small commits", "copy-on-write", MATCHING)
FACTOR, EXTRA_S = 2.0, 5.0
MANY, LONGEST_S = 50, 60.0
"""Beside so many commits a second a statement may give up, without deletion vectors, within so many
seconds."""


@dataclass(frozen=True)
class Setting:
    """`rates` are commits a second."""

    rows_per_file: int
    rates: tuple[int, ...]
    times: int
    vectors: bool = True


SETTINGS = {
    "toy": (Setting(100, (10,), 1), Setting(100, (10,), 1, vectors=False)),
    "small": (Setting(10_000, (10,), 1), Setting(10_000, (10,), 1, vectors=False)),
    "full": (
        Setting(10_000, (1, 10, 50), 3),
        Setting(10_000, (1, 10, 50), 3, vectors=False),
    ),
}


def shapes_of(statement: str) -> tuple[str, ...]:
    return tuple(shape for shape in SHAPES if shape != MATCHING or statement == "merge")


def rows(ids: Any) -> pa.Table:
    """Conditions read `k`, the statement changes `v`, the writer changes `w`."""
    ids = np.asarray(ids, dtype=np.int64)
    zeros = np.zeros_like(ids)
    part = pa.array(ids // 10 % PARTITIONS)
    names = ["id", "k", "v", "w", "part"]
    columns = [pa.array(a) for a in (ids, ids % 10, zeros, zeros)]
    return pa.table([*columns, part], names=names)


def source(setting: Setting) -> pa.Table:
    """Every tenth row of the table, and the new ones."""
    old = np.arange(0, FILES * setting.rows_per_file, 10)
    return rows([*old, *range(NEW_FROM, NEW_FROM + 2 * NEW, 2)])


def write_table(root: Path, setting: Setting) -> None:
    from deltalake import write_deltalake

    for number in range(FILES):
        # A file is in one partition.
        ids = np.arange(setting.rows_per_file) + number * setting.rows_per_file
        part = pa.array(np.full(len(ids), number % PARTITIONS))
        content = rows(ids).set_column(4, "part", part)
        write_deltalake(
            root,
            content,
            mode="append",
            partition_by=["part"],
            configuration={"delta.enableDeletionVectors": "true"} if setting.vectors else None,
        )


def matching(number: int) -> pa.Table:
    """Nine rows with keys of the source's new rows, in turn, and one with a key of its own that the
    writer deletes. `w` says which append, from 1, they come from."""
    keys = [NEW_FROM + 2 * ((9 * (number - 1) + n) % NEW) for n in range(9)]
    ten = rows([*keys, NEW_FROM + 2 * number - 1])
    return ten.set_column(3, "w", pa.array(np.full(10, number)))


def write_beside(folder: str, rows_per_file: int, shape: str, rate: int) -> dict[str, Any]:
    """In a separate process, until `stop`: times of its commits, and commits lost to us."""
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError

    arena = Arena(Path(folder), rows_per_file)
    made: list[float] = []
    lost = 0
    appended = count(1) if shape == MATCHING else count(NEW_FROM + 1, 20)
    fresh: list[int] = []
    table = DeltaTable(arena.table.as_uri())
    begun = time.monotonic()
    for number in count():
        if arena.stopped:
            break
        try:
            table.update_incremental()
            if shape == "copy-on-write":
                file = number % FILES
                one = file * rows_per_file + number % rows_per_file
                here = f"part = {file % PARTITIONS} and id = {one}"
                table.update(updates={"w": "w + 1"}, predicate=here)
            elif fresh:
                victim = fresh.pop()
                table.delete(f"part = {victim // 10 % PARTITIONS} and id = {victim}")
            else:
                first = next(appended)
                ten = matching(first) if shape == MATCHING else rows(range(first, first + 20, 2))
                fresh.append(ten["id"][-1].as_py() if shape == MATCHING else first)
                part = pa.array(np.full(10, fresh[-1] // 10 % PARTITIONS))
                write_deltalake(table, ten.set_column(4, "part", part), mode="append")
        except DeltaError:
            lost += 1
        else:
            made.append(time.monotonic() - begun)
        if len(made) == 3:
            arena.ready("beside")
        time.sleep(max(0.0, (number + 1) / rate - (time.monotonic() - begun)))
    return {"commits": len(made), "lost": lost, "seconds": time.monotonic() - begun}


def statement_of(engine: Engine, name: str, table: Path, source_: Path) -> Callable[[], str]:
    if name == "update":
        return lambda: engine.update("k = 1", table, v="v + 1")
    if name == "delete":
        return lambda: engine.remove("k = 1", table)
    return lambda: engine.merge(source_, table)


def wrong(name: str, root: Path, setting: Setting, shape: str, ended: bool) -> int:
    """Rows that differ from the statement's result, or from the table before if it failed: read by
    deltalake. Rows that were appended at the same time may or may not count as earlier."""
    from deltalake import DeltaTable

    found = pa.table(DeltaTable(root.as_uri()).scan())
    faults = 0
    if shape == MATCHING:
        new = pc.greater_equal(found["id"], NEW_FROM)
        faults = wrong_of_matching(found.filter(new), ended)
        found = found.filter(pc.invert(new))
    ids, k, v = (found[c].to_numpy() for c in ("id", "k", "v"))
    old = FILES * setting.rows_per_file
    seen = np.bincount(ids[ids < old], minlength=old)
    of_old = np.arange(old)
    doubled = len(ids) - len(np.unique(ids))
    beside = ids % 2 == 1
    inserted = (ids >= NEW_FROM) & ~beside
    if name == "delete":
        kept = (of_old % 10 != 1) | (not ended)
        return int(doubled + (seen != kept).sum() + inserted.sum())
    touched = (ids % 10 == 0) if name == "merge" else (k == 1)
    added = touched & ended & (ids < old)
    bad = ((v != added) & (ids < old)).sum() + ((v > 1) & (ids >= old)).sum()
    news = NEW if name == "merge" and ended and shape != MATCHING else 0
    return int(faults + doubled + (seen != 1).sum() + bad + abs(int(inserted.sum()) - news))


def wrong_of_matching(found: pa.Table, ended: bool) -> int:
    """Of rows with new ids: the merge changes all that were appended before some point, none that
    came later, and inserts each source row without one before that point once."""
    even = found.filter(pc.equal(pc.bit_wise_and(found["id"], 1), 0))
    ids, v, w = (even[c].to_numpy() for c in ("id", "v", "w"))
    keys = (ids - NEW_FROM) // 2
    theirs = w > 0
    changed, later = theirs & (v == 1), theirs & (v == 0)
    # The writer's rows are all there, once: of each of its appends nine or, if it failed, none.
    of_append = np.bincount(w[theirs])
    faults = int(((of_append != 9) & (of_append != 0)).sum() + (v > 1).sum())
    faults += int(theirs.sum()) - len(np.unique(np.stack([ids, w])[:, theirs], axis=1).T)
    if not ended:
        return faults + int(changed.sum() + (~theirs).sum())
    inserts = np.bincount(keys[~theirs], minlength=NEW)
    matched = np.bincount(keys[changed], minlength=NEW) > 0
    faults += int((inserts + matched != 1).sum() + v[~theirs].sum())
    late = changed & (w >= w[later].min(initial=np.iinfo(np.int64).max))
    return faults + int(late.sum())


def measure(folder: str, size: str, number: int) -> list[dict[str, Any]]:
    """In a separate process: each statement alone, and alongside each writer."""
    setting = SETTINGS[size][number]
    base = Path(folder)
    write_table(base / "master", setting)
    pq.write_table(source(setting), base / "source.parquet")
    engine = Engine(base / "master")
    found: list[dict[str, Any]] = []
    for turn in range(-1, setting.times):  # the first one warms up
        for name in STATEMENTS:
            cases = [("", 0), *((s, r) for s in shapes_of(name) for r in setting.rates)]
            for shape, rate in cases if turn >= 0 else cases[:1]:
                progress(f"{name} beside {rate} {shape} a second")
                result = contest(engine, base / "arena", base, setting, name, shape, rate)
                if turn >= 0:
                    found.append({**result, "vectors": setting.vectors})
    engine.close()
    return found


def contest(
    engine: Engine, folder: Path, base: Path, setting: Setting, name: str, shape: str, rate: int
) -> dict[str, Any]:
    """One statement on a new table. Raises: ChildFailed."""
    folder.mkdir()
    arena = Arena(folder, setting.rows_per_file)
    shutil.copytree(base / "master", arena.table)
    work = statement_of(engine, name, arena.table, base / "source.parquet")
    met: dict[str, Any] = {"commits": 0, "lost": 0, "seconds": 1.0}
    if not rate:
        seconds, outcome = timed(work)
    else:
        answer = folder / "answer.json"
        process = start_child(
            write_beside,
            answer,
            folder=str(folder),
            rows_per_file=setting.rows_per_file,
            shape=shape,
            rate=rate,
        )
        try:
            while not arena.is_ready("beside"):
                if process.poll() is not None:
                    await_child(process, answer, 1)
                time.sleep(0.01)
            seconds, outcome = timed(work)
        finally:
            arena.stop()
        met = await_child(process, answer, 60)
    faults = wrong(name, arena.table, setting, shape, outcome == "ok")
    shutil.rmtree(folder)
    return {
        "statement": name,
        "shape": shape,
        "rate": rate,
        "seconds": seconds,
        "outcome": outcome[:300],
        "wrong": faults,
        "beside": met,
    }


def run(size: str, work: Path) -> Report:
    """Raises: ChildFailed."""
    settings = SETTINGS[size]
    found: list[dict[str, Any]] = []
    tables = []
    for number, setting in enumerate(settings):
        folder = work / "converge"
        folder.mkdir()
        runs = in_child(measure, folder=str(folder), size=size, number=number, timeout=3600)
        shutil.rmtree(folder)
        tables.append(_table(runs, setting))
        found += runs
    setting = settings[0]
    faults = sum(f["wrong"] for f in found)
    return Report(
        name="converge",
        title="Statements alongside a busy writer",
        setting=(
            f"A table of {FILES} files of {setting.rows_per_file:,} rows, partitioned; one "
            "`deltalake` process commits alongside each statement of ours, with the default "
            f"`maxAttempts`; {setting.times} turns. Rows wrong: {faults}."
        ),
        tables=tuple(tables),
        checks=(
            "Each row of the table exists once, is changed once if the statement matches it, and "
            "each new row of the source exists once; read by deltalake.",
        ),
        figures=tuple(figure for vectors in (True, False) for figure in _figures(found, vectors)),
        raw={"runs": found},
    )


def _table(found: list[dict[str, Any]], setting: Setting) -> Table:
    lines = []
    for name in STATEMENTS:
        alone = _seconds(found, name, "", 0)
        lines.append((name, "alone", "", alone.text(), "1.00", "", ""))
        for shape in shapes_of(name):
            for rate in setting.rates:
                of = _runs(found, name, shape, rate)
                took = _seconds(found, name, shape, rate)
                committed = sum(f["outcome"] == "ok" for f in of)
                made = [f["beside"]["commits"] / f["beside"]["seconds"] for f in of]
                lost = sum(f["beside"]["lost"] for f in of)
                lines.append(
                    (
                        name,
                        f"{shape}, {rate}/s wanted",
                        Samples.of(made).text(1),
                        took.text(),
                        f"{took.median / alone.median:.2f}",
                        f"{committed} of {len(of)}",
                        f"{lost}",
                    )
                )
    return Table(
        f"Seconds to the commit{_where(setting.vectors)} (aim: {FACTOR:g} × alone + {EXTRA_S:g} s)",
        ("statement", "writer", "commits/s", "seconds", "times", "committed", "it lost"),
        tuple(lines),
    )


def _where(vectors: bool) -> str:
    return "" if vectors else ", without deletion vectors"


def _figures(found: list[dict[str, Any]], vectors: bool) -> list[Figure]:
    runs = [f for f in found if f["vectors"] is vectors]
    beside = [f for f in runs if f["rate"]]
    must = [f for f in beside if vectors or f["rate"] < MANY]
    ended = sum(f["outcome"] == "ok" for f in must)
    late = sum(
        f["seconds"] > FACTOR * _seconds(runs, f["statement"], "", 0).median + EXTRA_S for f in must
    )
    figures = [
        Figure(
            f"Statements that committed alongside a busy writer{_where(vectors)}",
            f"{ended} of {len(must)}",
            "all",
            ended == len(must),
        ),
        Figure(
            f"… that took longer than {FACTOR:g} × alone + {EXTRA_S:g} s{_where(vectors)}",
            f"{late} of {len(must)}",
            "0",
            not late,
        ),
    ]
    if not vectors:
        longest = max((f["seconds"] for f in beside), default=0.0)
        figures.append(
            Figure(
                f"… the longest of all, alongside {MANY} commits a second, too",
                f"{longest:.1f} s",
                f"≤ {LONGEST_S:g} s",
                longest <= LONGEST_S,
            )
        )
    return figures


def _runs(found: list[dict[str, Any]], name: str, shape: str, rate: int) -> list[dict[str, Any]]:
    wanted = (name, shape, rate)
    return [f for f in found if (f["statement"], f["shape"], f["rate"]) == wanted]


def _seconds(found: list[dict[str, Any]], name: str, shape: str, rate: int) -> Samples:
    return Samples.of(f["seconds"] for f in _runs(found, name, shape, rate))
