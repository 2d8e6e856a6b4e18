"""The benchmarks that start Spark or many processes run to their end at toy size: `make matrix`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The benchmarks are no part of the product, so they are not on the path of other tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import (
    bigsort,
    catalog_commit,
    compaction,
    crowded,
    distance,
    goodput,
    index_lookups,
    mergelog,
    partcopy,
    replace,
    replay,
    rewrites,
    small_files,
)


def test_compaction_keeps_every_row_in_every_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark + Delta is the slowest to start, and no toy makes it faster.
    fast = tuple(e for e in compaction.ENGINES if e[0] is not compaction.spark_delta)
    monkeypatch.setattr(compaction, "ENGINES", fast)
    found = compaction.run("toy", tmp_path)
    assert found.raw["tandem_warm"]["truth"] == found.raw["deltalake"]["truth"]
    assert found.raw["tandem_warm"]["files"] == 1
    assert [figure.aim for figure in found.figures] == [
        "≥ 18",
        "≥ 15",
        "≥ 0.5",
        "≤ 1.05",
        "≤ 5.0 s",
    ]


def test_small_files_are_compacted_by_every_engine(tmp_path: Path) -> None:
    found = small_files.run("toy", tmp_path)
    names = {engine.__name__ for engine, _ in small_files.ENGINES}
    assert set(found.raw) == set(small_files.CASES)
    assert all(set(each) == names for each in found.raw.values())
    assert len(found.figures) == 3 * len(small_files.CASES)


def test_sorts_and_changes_leave_the_rows_that_duckdb_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENGINES", "OF_CHANGES"):
        fast = tuple(e for e in getattr(rewrites, name) if e[0] is not rewrites.spark_delta)
        monkeypatch.setattr(rewrites, name, fast)
    found = rewrites.run("toy", tmp_path)
    raw = found.raw[rewrites.WITH]
    assert set(raw["tandem_warm"]) == set(rewrites.TITLES)
    # A change writes the rows that change, and no file again.
    ours, theirs = (raw[name][rewrites.UPDATE] for name in ("tandem_warm", "deltalake"))
    assert ours["written"] < theirs["written"]
    assert set(found.raw[rewrites.WITHOUT]["tandem_run"]) == set(rewrites.CHANGES)


def test_goodput_ends_with_the_rows_of_the_model(tmp_path: Path) -> None:
    found = goodput.run("toy", tmp_path)
    contests = next(iter(found.raw.values()))
    for contest in contests.values():
        assert contest["wrong"] == {
            "lost": 0,
            "resurrected": 0,
            "doubled": 0,
            "readers_differ": False,
        }
    for name in ("tandem", "through_us"):
        assert contests[name]["compactions"]["aborted"] == 0, contests[name]["failures"]
    assert contests["through_us"]["deletes_aborted"] == 0


def test_a_log_of_blocks_gives_the_same_rows_through_each_way(tmp_path: Path) -> None:
    found = mergelog.run("toy", tmp_path)
    assert set(found.raw["amplification"]) == set(mergelog.WAYS)
    assert found.raw["foreign"]["failed"] == 0


def test_replay_agrees_with_rerun_in_two_engines(tmp_path: Path) -> None:
    found = replay.run("toy", tmp_path)
    ways = {replay.REMAP, replay.READ, replay.IN_DUCKDB, replay.IN_SPARK}
    assert {row[:2] for row in found.tables[0].rows} == {
        (files, way) for files in replay.AIMS_MS for way in ways
    }
    assert found.raw[replay.CLEAN]["deleted"] > 0


def test_replaces_end_with_the_rows_that_the_log_says(tmp_path: Path) -> None:
    found = replace.run("toy", tmp_path)
    contest = found.raw["contests"]["deltalake"]
    assert 0 < contest["committed"] <= contest["replaces"]
    assert contest["kept"] == contest["late"]
    assert all(len(each["wall"]) == replace.ROUNDS["toy"] for each in found.raw["rounds"].values())


def test_the_requests_of_a_commit_are_counted_at_a_distance(tmp_path: Path) -> None:
    found = distance.run("toy", tmp_path)
    assert len(found.tables) == len(distance.CASES)
    for runs in found.raw.values():
        for run in runs:
            assert 0 < run["commit in sequence"] <= run["commit requests"] < run["requests"]


def test_the_requests_of_a_commit_through_a_catalog_are_counted(tmp_path: Path) -> None:
    found = catalog_commit.run("toy", tmp_path)
    assert [len(found.raw[what]["requests"]) for what in catalog_commit.WHAT] == [5, 5]


def test_the_loop_is_watched_while_tables_are_adopted_and_compacted(tmp_path: Path) -> None:
    found = crowded.run("toy", tmp_path)
    assert [row[0] for row in found.tables[0].rows] == list(crowded.STAGES)
    assert all(0 <= each["median"] <= each["p99"] <= each["most"] for each in found.raw.values())


def test_row_groups_that_stay_in_the_store_are_those_of_the_inputs(tmp_path: Path) -> None:
    found = partcopy.run("toy", tmp_path)
    assert found.raw["copied, counted"]["copies"] == partcopy.FILES["toy"]
    assert found.raw["streamed, counted"]["copies"] == 0
    assert found.raw["copied, counted"]["truth"] == found.raw["streamed, counted"]["truth"]


def test_a_large_sort_writes_the_rows_of_its_inputs_in_order(tmp_path: Path) -> None:
    found = bigsort.run("toy", tmp_path)
    assert set(found.raw["engines"]) == {"tandem", "duckdb"}


def test_keys_are_found_by_each_engine_and_while_executors_die(tmp_path: Path) -> None:
    found = index_lookups.run("toy", tmp_path)
    assert set(found.raw["engines"]) == set(index_lookups.ENGINES)
    assert all(each["groups"] == 1 for each in found.raw["store"]["warm"])
    assert found.raw["killed"]["failed"] == []
