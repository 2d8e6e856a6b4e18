"""What a clustering takes and leaves, which tags its files have while others write, and the target
size of files that the table's property names; without Spark, which `test_clustering` has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake, just_before
from support.lake.lake import DELETION_VECTORS, loads, message, reason
from support.lake.rows import k_is, plus, without
from tandem.delta.actions import AddFile
from tandem.delta.clustering import CUBE_COLUMNS, CUBE_ID, cube_tags, path_of, reference
from tandem.delta.log.codec import encode_action
from tandem.delta.properties import TARGET_FILE_SIZE, target_file_size
from tandem.operations.machine.events import Point
from tandem.planning import layout as layout_
from tandem.timeline.file_columns import TAG_LAYOUT

FOUR = loads(range(4))


def clustered(
    tmp_path: Path, *columns: str, properties: dict[str, str] = DELETION_VECTORS
) -> ArrowLake:
    made = quick_lake.make(tmp_path, 4, properties=properties)
    lake = quick_lake.of_kind(ArrowLake, (tmp_path / "lake").as_uri(), tmp_path / "sources")
    lake.first_version, lake.count = made.first_version, made.count
    if columns:
        cluster_by(lake, *columns)
    return lake


def cluster_by(lake: ArrowLake, *columns: str) -> None:
    """As Spark writes it, for columns that are not nested."""
    protocol = lake.log.snapshot().protocol
    named = json.dumps(
        {"domainName": "delta.clustering", "clusteringColumns": [[c] for c in columns]}
    )
    features = {"clustering", "domainMetadata", *protocol.writer_features}
    upgraded = {
        "minReaderVersion": protocol.min_reader,
        "minWriterVersion": 7,
        "writerFeatures": sorted(features),
    }
    if protocol.min_reader == 3:
        upgraded["readerFeatures"] = sorted(protocol.reader_features)
    domain = {"domain": "delta.clustering", "configuration": named, "removed": False}
    lake.log_raw({"protocol": upgraded}, {"domainMetadata": domain})


def clustering(lake: ArrowLake, **more: Any) -> Any:
    spec = {"type_": "SemiMajor", "layout": {"strategy": "Clustering"}, "targetFileSize": 1200}
    return lake.compaction(**{**spec, **more})


def adds(lake: ArrowLake) -> list[AddFile]:
    return sorted(lake.log.snapshot().adds(), key=lambda add: add.logged_path)


def cubes(lake: ArrowLake) -> set[str | None]:
    return {add.tags.get(CUBE_ID) for add in adds(lake)}


def log_as(lake: ArrowLake, add: AddFile, **changes: Any) -> None:
    lake.log_raw(encode_action(replace(add, **changes)))


@pytest.mark.parametrize("columns", [None, ()], ids=["never clustered", "CLUSTER BY NONE"])
def test_without_clustering_columns_it_is_refused_before_a_job(
    tmp_path: Path, columns: tuple[str, ...] | None
) -> None:
    lake = clustered(tmp_path)
    if columns is not None:
        cluster_by(lake)
    done = lake.run(clustering(lake))
    assert reason(done) == "InvalidSpec"
    text = message(done)
    assert "layout.strategy: Clustering needs a table with clustering columns" in text
    assert "found: none" in text
    assert "CLUSTER BY" in text
    lake.assert_states(FOUR)


def test_columns_that_change_while_it_runs_take_a_second_attempt(tmp_path: Path) -> None:
    lake = clustered(tmp_path, "k")
    changed = just_before(Point.PUT_COMMIT, lambda: cluster_by(lake, "v", "k"))
    done = lake.do(clustering(lake), interceptor=changed)
    assert (reason(done), done.attempt) == ("Committed", 2)
    assert {add.tags[CUBE_COLUMNS] for add in adds(lake)} == {'["v","k"]'}
    lake.assert_rows(FOUR)


def test_new_files_are_clustered_with_the_others_of_a_small_cube(tmp_path: Path) -> None:
    lake = clustered(tmp_path, "k", "v")
    lake.do(clustering(lake))
    [first] = cubes(lake)
    assert reason(lake.do(clustering(lake))) == "NothingToDo"
    lake.load(loads([4]))
    assert cubes(lake) == {first, None}
    lake.do(clustering(lake))
    [second] = cubes(lake)
    assert second not in (first, None)
    lake.assert_rows(loads(range(5)))


def test_a_cube_that_is_large_enough_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = clustered(tmp_path, "k", "v")
    lake.do(clustering(lake))
    before = {add.logged_path for add in adds(lake)}
    lake.load(loads([4]))
    monkeypatch.setattr(layout_, "STABLE_CUBE", sum(add.size for add in adds(lake)[:2]))
    lake.do(clustering(lake))
    assert before < {add.logged_path for add in adds(lake)}
    assert len(cubes(lake)) == 2
    lake.assert_rows(loads(range(5)))


@pytest.mark.parametrize(
    "changes",
    [{"tags": cube_tags("other", ["k"])}, {"extra": {"clusteringProvider": "other"}}],
    ids=["other columns", "other provider"],
)
@pytest.mark.parametrize("how", ["SemiMajor", "Custom"])
def test_files_that_others_clustered_are_left_alone(
    tmp_path: Path, changes: dict[str, Any], how: str
) -> None:
    lake = clustered(tmp_path, "k", "v")
    theirs = adds(lake)[0]
    log_as(lake, theirs, **changes)
    more = {"type_": "Custom", "custom": {"segments": list(lake.names)}} if how == "Custom" else {}
    lake.do(clustering(lake, **more))
    left = [add for add in adds(lake) if add.logged_path == theirs.logged_path]
    assert [(add.tags, add.extra) for add in left] == [
        (changes.get("tags", theirs.tags), changes.get("extra", theirs.extra))
    ]
    assert len(cubes(lake)) == 2
    lake.assert_rows(FOUR)


@pytest.mark.parametrize(
    "properties", [DELETION_VECTORS, {}], ids=["with vectors", "without vectors"]
)
def test_files_stay_clustered_unless_a_clustering_column_gets_new_values(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    lake = clustered(tmp_path, "k", properties=properties)
    delete = just_before(Point.PUT_COMMIT, lambda: lake.do(lake.delete("id = 3")))
    lake.do(clustering(lake), interceptor=delete)
    assert len(cubes(lake)) == 1
    rows = without(FOUR, lambda row: row[0] == 3)
    lake.assert_rows_so_far(rows)
    lake.do(lake.update("k = 1", v="v + 5"))
    rows = plus(rows, k_is(1), 5)
    lake.assert_rows_so_far(rows)
    # Values by a vector and a new file: this file is not clustered; others are, as they were.
    assert len(cubes(lake)) == (2 if properties else 1)
    lake.do(lake.update("k = 2", k="9"))
    assert None in cubes(lake)
    assert all(TAG_LAYOUT in add.tags for add in adds(lake) if CUBE_ID in add.tags)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("104857600", 100 << 20),
        ("100mb", 100 << 20),
        (" 2 MB ", 2 << 20),
        ("64k", 64 << 10),
        ("1gb", 1 << 30),
        ("1GiB", 1 << 30),
        *((text, None) for text in ("", "0", "-1", "ten", "1.5gb", "9" * 19 + "g", "1 b b")),
    ],
)
def test_the_target_size_of_a_table(text: str, size: int | None) -> None:
    assert target_file_size({TARGET_FILE_SIZE: text}) == size


@pytest.mark.parametrize(
    ("given", "explicit", "files", "shown"),
    [
        ("1200", None, 3, "1200: delta.targetFileSize of the table"),
        ("1200", "1Gi", 1, None),
        ("ten", None, 1, "128Mi: the default, since delta.targetFileSize = ten is no size"),
    ],
)
def test_a_compaction_honours_the_size_that_the_table_names(
    tmp_path: Path, given: str, explicit: str | None, files: int, shown: str | None
) -> None:
    lake = clustered(tmp_path, "k")
    metadata = lake.log.snapshot().metadata
    configuration = {**metadata.configuration, TARGET_FILE_SIZE: given}
    lake.log_raw(encode_action(replace(metadata, configuration=configuration)))
    done = lake.do(clustering(lake, targetFileSize=explicit))
    assert done.plan is not None
    assert done.plan.target_file_size == shown
    assert (len(adds(lake)) >= files) if files > 1 else (len(adds(lake)) == 1)
    lake.assert_rows(FOUR)


@pytest.mark.parametrize(
    ("names", "text"),
    [(["a"], "a"), (["a", "b"], "a.b"), (["é-b"], "`é-b`"), (["a`b", "c.d"], "`a``b`.`c.d`")],
)
def test_references(names: list[str], text: str) -> None:
    assert reference(names) == text
    assert path_of(text) == tuple(names)
