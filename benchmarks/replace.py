"""Replaces and drops of a chunk: beside writers, on a table of many files, and in the last round of
a commit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import replace_commit, replace_contest
from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, in_child, progress

SECONDS = {"toy": 2, "small": 10, "full": 60}
CONTESTS = {
    "toy": ("deltalake",),
    "small": ("tandem", "deltalake"),
    "full": ("tandem", "deltalake", "spark_delta"),
}
DAYS = {"toy": 3, "small": 100, "full": 1_000}
TIMES = {"toy": 1, "small": 2, "full": 3}
ROWS = {"toy": 200, "small": 4_000, "full": 40_000}
MASKED = {"toy": 640, "small": 12_800, "full": 100_000}
ROUNDS = {"toy": 2, "small": 20, "full": 100}
DROP_AIM_S, ROUND_AIM_MS = 2, 15

NAMES = {
    "tandem": "Tandem, TableReplace AtStart",
    "deltalake": "delta-rs, overwrite with predicate",
    "spark_delta": "Spark + Delta, replaceWhere",
}
RIVALS = {"append": "appends a row of the day", "delete": "deletes a row of another day"}


def _drops(size: str, work: Path) -> dict[str, list[Any]]:
    days = DAYS[size]
    source = work / "log"
    progress(f"write the log of {days * replace_commit.FILES_A_DAY:,} files")
    replace_commit.write_log(source, days, days // 2)
    ways = {"tandem": replace_commit.drop, "deltalake": replace_commit.delete_with_deltalake}
    found: dict[str, list[Any]] = {way: [] for way in ways}
    left = days * replace_commit.FILES_A_DAY - replace_commit.FILES_A_DAY
    for turn in range(TIMES[size]):
        progress(f"drop {turn + 1} of {TIMES[size]}")
        for way, drop in ways.items():
            folder = work / f"{way}-{turn}"
            folder.mkdir()
            did = in_child(drop, source=str(source), folder=str(folder), dropped=days // 2)
            shutil.rmtree(folder)
            if did["files"] != left or did["jobs"]:
                raise WrongResult(f"{way}: {did}")
            found[way].append(did["seconds"])
    if size == "full":
        progress("drops by Spark + Delta")
        deletes = in_child(
            replace_commit.delete_with_spark,
            source=str(source),
            folder=str(work),
            dropped=days // 2,
            times=3,
        )
        found["spark_delta"] = [each["seconds"] for each in deletes]
    shutil.rmtree(source)
    return found


def _rounds(size: str, work: Path) -> dict[str, dict[str, list[float]]]:
    found = {}
    for rival in RIVALS:
        progress(f"rounds, the rival {RIVALS[rival]}")
        folder = work / f"rounds-{rival}"
        folder.mkdir()
        found[rival] = in_child(
            replace_commit.last_rounds,
            folder=str(folder),
            rival=rival,
            rows=ROWS[size],
            masked=MASKED[size],
            rounds=ROUNDS[size],
        )
        shutil.rmtree(folder)
    return found


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    contests = {}
    for engine in CONTESTS[size]:
        progress(f"contest of {SECONDS[size]} s: {engine}")
        folder = work / engine
        folder.mkdir()
        contests[engine] = replace_contest.contest(engine, folder, SECONDS[size])
    rounds = _rounds(size, work)
    drops = _drops(size, work)
    seconds = {way: Samples.of(each) for way, each in drops.items()}
    files = DAYS[size] * replace_commit.FILES_A_DAY
    return Report(
        name="replace",
        title="Replaces and drops of a chunk",
        setting=(
            f"For {SECONDS[size]} s one day of a table is replaced by 2,000 rows, again and again, "
            "while two processes of deltalake append 100 rows to it, with a pause of 0.1 s, and a "
            "compactor of the same engine compacts it. No one repeats what was aborted: deltalake "
            "aborts its own append if a commit that removes files came since it read, whichever "
            "engine made it. "
            "Tandem and Spark run on warm sessions. Then a day of a hundred files is dropped from "
            f"a table of {files:,} files, log reads from disk included, {TIMES[size]} times "
            "(Spark: 3). Then a replace AtCommit of a day that has rows in all of 64 files; a "
            f"rival lets each of {ROUNDS[size]} puts be lost."
        ),
        tables=(
            Table(
                "Beside two appenders and a compactor",
                ("engine", "replaces", "committed", "appends", "aborted", "late rows", "kept",
                 "compactions", "aborted"),
                tuple(
                    (
                        NAMES[engine],
                        *(f"{did[what]:,}" for what in (
                            "replaces", "committed", "appends", "appends_aborted", "late", "kept",
                            "compactions", "compactions_aborted")),
                    )
                    for engine, did in contests.items()
                ),
            ),
            Table(
                f"A drop of one of {DAYS[size]:,} days",
                ("engine", "seconds", "jobs"),
                tuple(
                    (NAMES[way].partition(",")[0] + {"tandem": ", TableReplace without a source"}
                     .get(way, ", DELETE"), each.text(2),
                     {"tandem": "0", "deltalake": "in process"}.get(way, "Spark"))
                    for way, each in seconds.items()
                ),
            ),
            Table(
                f"A round of a replace AtCommit, {MASKED[size]:,} masked rows, milliseconds",
                ("", *(f"the rival {text}" for text in RIVALS.values())),
                tuple(
                    (f"{title}, {name}", *(f"{np.percentile(rounds[r][clock], at):.1f}"
                                           for r in RIVALS))
                    for clock, title in (("wall", "to the put's response"), ("cpu", "CPU"))
                    for name, at in (("median", 50), ("p99", 99))
                ),
            ),
        ),
        checks=(
            "By the log: of each committed replace, which rows had come between the version that "
            "it read and its commit, and that the table showed no older ones, all rows of the "
            "source, and the other days unchanged.",
            "The drops removed the rows of the day and nothing else; deltalake reads the rows that "
            "a replace AtCommit leaves.",
        ),
        figures=_figures(size, contests, seconds, rounds),
        raw={"contests": contests, "drops": drops, "rounds": rounds},
    )  # fmt: skip


def _figures(
    size: str,
    contests: dict[str, Any],
    seconds: dict[str, Samples],
    rounds: dict[str, dict[str, list[float]]],
) -> tuple[Figure, ...]:
    found = [
        Figure(
            f"A drop of one aligned chunk of {DAYS[size]:,}, without a job",
            f"{seconds['tandem'].text(2)} s",
            f"≤ {DROP_AIM_S} s",
            seconds["tandem"].median <= DROP_AIM_S,
        )
    ]
    if "tandem" in contests:
        did = contests["tandem"]
        right = did["committed"] == did["replaces"] and did["kept"] == did["late"]
        found.append(
            Figure(
                "Replaces beside two appenders and a compactor",
                f"{did['committed']} of {did['replaces']} committed, {did['appends_aborted']} "
                f"appends aborted, {did['kept']:,} of {did['late']:,} late rows kept",
                "all, 0, all",
                right and not did["appends_aborted"],
            )
        )
    for rival, text in RIVALS.items():
        wall, cpu = (float(np.percentile(rounds[rival][clock], 99)) for clock in ("wall", "cpu"))
        found.append(
            Figure(
                f"A round of AtCommit, 64 straddling files, {MASKED[size]:,} masked rows, "
                f"the rival {text}, p99",
                f"{wall:.1f} ms, of CPU time {cpu:.1f} ms",
                f"≤ {ROUND_AIM_MS} ms",
                wall <= ROUND_AIM_MS,
            )
        )
    return tuple(found)
