"""Benchmarks run to their end at toy size, and their own checks of the results pass.

Nothing is asserted about time: that is what the benchmarks are for. Those that start Spark or
many processes are in `matrix_benchmarks_run.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

# The benchmarks are no part of the product, so they are not on the path of other tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import (
    compaction,
    critical,
    exclusive,
    harness,
    planning,
    report,
    run,
    snapshot,
    timeline,
)


@pytest.mark.matrix
def test_snapshot_counts_as_duckdb_does(tmp_path: Path) -> None:
    found = snapshot.run("toy", tmp_path)
    engines = {row[1] for row in found.tables[0].rows}
    assert engines == {"tandem", "deltalake"}


def test_planning_selects_the_files_that_are_found_file_by_file(tmp_path: Path) -> None:
    found = planning.run("toy", tmp_path)
    ways = set(found.raw) - {planning.MILLION_FILES}
    assert {row[0] for row in found.tables[0].rows} == ways
    assert 0 < found.raw[planning.MILLION_FILES]["taken"] <= planning.MILLION["toy"]


def test_the_timeline_answers_as_a_search_of_everything(tmp_path: Path) -> None:
    found = timeline.run("toy", tmp_path)
    assert {row[1] for row in found.tables[0].rows} == set(found.raw)


@pytest.mark.matrix
def test_exclusive_compactions_beside_late_rows_end(tmp_path: Path) -> None:
    found = exclusive.run("toy", tmp_path)
    assert len(found.tables[0].rows) == len(found.raw) == 18
    assert all(each["attempts"] <= 6 for runs in found.raw.values() for each in runs)


@pytest.mark.matrix
def test_the_last_round_of_a_commit_replays_nothing_again(tmp_path: Path) -> None:
    found = critical.run("toy", tmp_path)
    effects = {"ReadTable", "Reconcile", "WriteSidecars", "PutCommit", critical.ALL}
    assert all(effects <= set(parts) for parts in found.raw.values())
    # A rival that touched no input costs the put alone; another one the masks' file, too.
    written = {rival: parts["objects written"] for rival, parts in found.raw.items()}
    assert written == {"append": [1], "delete": [2]}


@pytest.mark.matrix
def test_compaction_notices_an_engine_that_loses_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing = ((compaction.polars, "loses rows", {"toy": 1}),)
    monkeypatch.setattr(compaction, "ENGINES", losing)
    monkeypatch.setattr(compaction, "in_child", lambda *_, **__: {"truth": [1, "0"]})
    with pytest.raises(harness.WrongResult, match="loses rows"):
        compaction.run("toy", tmp_path)


def test_the_page_is_written_from_the_results(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    figures = {
        "title": "A title",
        "setting": "As it was.",
        "tables": [{"title": "", "columns": ["engine", "seconds"], "rows": [["tandem", "1.00"]]}],
        "checks": ["All of it."],
        "figures": [{"what": "Speed", "found": "2 ms", "aim": "≤ 1 ms", "met": False}],
        "machine": {
            "versions": {"cores": "2", "processor": "p", "memory": "1 GiB", "system": "s"},
            "day": "2026-01-01",
            "others_before": 2.0,
        },
    }
    (results / "replay.json").write_text(json.dumps(figures))
    (results / "goodput.json").write_text(json.dumps(figures | {"title": "Another"}))
    page, measurements = tmp_path / "page.md", tmp_path / "measurements.md"
    report.write_page(results, page, measurements)
    compared, alone = page.read_text(), measurements.read_text()
    missed = "| 0 of 1 | Speed: 2 ms, aim ≤ 1 ms |"
    assert f"| [Another](#another) {missed}" in compared
    assert f"| [A title](../benchmarks/measurements.md#a-title) {missed}" in compared
    aim = "| 2 ms | ≤ 1 ms | **no** |"
    assert f"| [Speed](../docs/benchmarks.md#another) {aim}" in alone
    assert f"| [Speed](#a-title) {aim}" in alone
    assert "All runs: 2 cores, p, 1 GiB of memory, s." in compared
    assert "## A title" not in compared
    for text in (compared, alone):
        assert "| tandem | 1.00 |" in text
        assert "The machine was shared: 2.0 other processes" in text


def test_the_page_has_a_place_for_every_benchmark() -> None:
    assert sorted(report.ORDER) == sorted(run.NAMES)


def test_samples_give_median_and_spread() -> None:
    assert harness.Samples.of([3.0, 1.0, 2.0]).text(1) == "2.0 (1.0 to 3.0)"
