"""Tables whose log spells paths in ways that ours never does: with a dot, a colon, as a URL.

Spark and `deltalake` read them, and each repeats other spellings in its removes: Spark its own
(`tandem.storage.paths.path_identity`), deltalake those of the adds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake import rows as model
from support.lake.lake import DELETION_VECTORS
from support.lake.rows import id_in, k_is, plus, rows, without
from tandem.delta.log.listing import checkpoint_path, commit_path
from tandem.delta.log.maintenance import write_checkpoint
from tandem.operations.clean import CleaningOptions, clean
from tandem.planning.cleaning import DAY_MS, CleaningRules

ALL = rows(range(30))


@dataclass(frozen=True)
class Spelling:
    """Where a file is, what the log calls it, and what a remove by Spark calls it (None: the
    same). `root` is the table's path."""

    file: str
    logged: str
    by_spark: str | None = None

    def of(self, text: str, root: Path, number: int) -> str:
        return text.format(root=root, n=number)


SPELLINGS = {
    "plain": Spelling("part-{n}.parquet", "part-{n}.parquet"),
    "dot": Spelling("part-{n}.parquet", "./part-{n}.parquet", "part-{n}.parquet"),
    "dot within": Spelling("x/part-{n}.parquet", "x/./part-{n}.parquet", "x/part-{n}.parquet"),
    "up": Spelling("part-{n}.parquet", "x/../part-{n}.parquet", "part-{n}.parquet"),
    "encoded letter": Spelling("part-{n}.parquet", "%70art-{n}.parquet"),
    "colon in a folder": Spelling("run-10:00/part-{n}.parquet", "run-10%3A00/part-{n}.parquet"),
    "colon in a name": Spelling("aa:{n}.parquet", "aa%3A{n}.parquet"),
    "colon after a dot": Spelling("aa:{n}.parquet", "./aa:{n}.parquet"),
    "from the root": Spelling("part-{n}.parquet", "{root}/part-{n}.parquet",
                              "file://{root}/part-{n}.parquet"),
    "URL": Spelling("a b-{n}.parquet", "file://{root}/a%20b-{n}.parquet"),
    "URL with a dot": Spelling("x/part-{n}.parquet", "file://{root}/x/./part-{n}.parquet",
                               "file:{root}/x/part-{n}.parquet"),
}  # fmt: skip
NOT_ON_A_DISK = {"colon in a name", "colon after a dot"}
"""Hadoop's local file system cannot read `aa:0.parquet`: it looks for `.aa:0.parquet.crc`."""


def lake_of(
    folder: Path, spelling: Spelling, properties: Mapping[str, str] = DELETION_VECTORS
) -> QuickLake:
    """Three files of ten rows."""
    lake = quick_lake.make(folder, loads=0, properties=properties)
    for number in range(3):
        path = lake.path / spelling.of(spelling.file, lake.path, number)
        path.parent.mkdir(exist_ok=True)
        pq.write_table(model.table(rows(range(number * 10, number * 10 + 10))), path)
        lake.log_raw({"add": {
            "path": spelling.of(spelling.logged, lake.path, number),
            "partitionValues": {}, "size": path.stat().st_size, "modificationTime": 1,
            "dataChange": True, "stats": '{"numRecords":10}',
        }})  # fmt: skip
    lake.first_version = lake.version
    return lake


def removed_by_spark(lake: QuickLake, spelling: Spelling, number: int) -> dict[str, Any]:
    path = spelling.of(spelling.by_spark or spelling.logged, lake.path, number)
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}}


@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "edits"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_every_operation_takes_the_files_and_all_readers_see_its_rows(
    name: str, vectors: bool, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path, SPELLINGS[name], DELETION_VECTORS if vectors else {})
    lake.assert_rows(ALL)
    lake.do(lake.delete("id = 3"))
    lake.do(lake.update("k = 1", v="v + 7"))
    expected = plus(without(ALL, id_in([3])), k_is(1), 7)
    lake.assert_rows(expected)
    done = lake.do(lake.compaction("Major"))
    assert done.result is not None
    assert done.result.files_removed == (4 if vectors else 3)
    lake.assert_rows(expected)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_checkpoint_of_ours_has_the_spelling_of_the_log(name: str, tmp_path: Path) -> None:
    """Else the other readers would not find the file that a later remove names."""
    spelling = SPELLINGS[name]
    lake = lake_of(tmp_path, spelling)
    write_checkpoint(lake.log, lake.log.snapshot(), now_ms=1)
    logged = [spelling.of(spelling.logged, lake.path, number) for number in range(3)]
    adds = pq.read_table(lake.path / checkpoint_path(lake.version))["add"].to_pylist()
    assert sorted(add["path"] for add in adds if add) == sorted(logged)
    for version in range(lake.version + 1):
        lake.store.delete([commit_path(version)])
    lake = quick_lake.at(lake.location, tmp_path / "sources")
    lake.assert_rows(ALL)
    lake.do(lake.delete("id < 15"))
    assert sorted(gone["path"] for gone in removes_of(lake)) == sorted(logged)[:2]
    lake.assert_rows(rows(range(15, 30)))


def removes_of(lake: QuickLake) -> list[dict[str, Any]]:
    """The removes of the last commit, as they are logged."""
    text = lake.store.get(commit_path(lake.version)).decode()
    return [line["remove"] for line in map(json.loads, text.splitlines()) if "remove" in line]


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_spark_removed_is_gone(name: str, tmp_path: Path) -> None:
    spelling = SPELLINGS[name]
    lake = lake_of(tmp_path, spelling)
    lake.log_raw(removed_by_spark(lake, spelling, 0))
    assert lake.by_tandem() == rows(range(10, 30))
    write_checkpoint(lake.log, lake.log.snapshot(), now_ms=1)
    assert quick_lake.at(lake.location).by_tandem() == rows(range(10, 30))


@pytest.mark.part(4)
@pytest.mark.parametrize("name", sorted(SPELLINGS.keys() - NOT_ON_A_DISK))
def test_spark_agrees_before_and_after_changes_of_both(
    name: str, tmp_path: Path, spark: SparkSession
) -> None:
    """Without deletion vectors: Spark + Delta 4.4 fails to write them for most of these files."""
    spelling = SPELLINGS[name]
    lake = lake_of(tmp_path, spelling, {})
    lake.spark, lake.spark_reads = spark, True
    lake.assert_rows(ALL)
    lake.sql("DELETE FROM TABLE WHERE id < 10")
    expected = [spelling.of(spelling.by_spark or spelling.logged, lake.path, 0)]
    assert [gone["path"] for gone in removes_of(lake)] == expected
    assert lake.by_tandem() == lake.by_spark() == rows(range(10, 30))
    lake.do(lake.compaction("Major"))
    assert lake.by_tandem() == lake.by_spark() == rows(range(10, 30))


OF_ONE_FILE = [
    pytest.param(SPELLINGS[live], SPELLINGS[removed], id=f"{live}, {removed}")
    for live in SPELLINGS
    for removed in SPELLINGS
    if live != removed and SPELLINGS[live].file == SPELLINGS[removed].file
]


@pytest.mark.parametrize(("kept", "gone"), OF_ONE_FILE)
def test_a_file_that_is_live_stays_whatever_an_old_remove_calls_it(
    kept: Spelling, gone: Spelling, tmp_path: Path
) -> None:
    lake = lake_of(tmp_path, kept)
    for number in range(3):
        # A restore: the file is removed, and added again under its other name.
        lake.log_raw({"remove": {
            "path": gone.of(gone.logged, lake.path, number), "deletionTimestamp": 1,
            "dataChange": True,
        }})  # fmt: skip
    readded = [{"add": {
        "path": kept.of(kept.logged, lake.path, number), "partitionValues": {},
        "size": (lake.path / kept.of(kept.file, lake.path, number)).stat().st_size,
        "modificationTime": 1, "dataChange": True,
    }} for number in range(3)]  # fmt: skip
    lake.log_raw(*readded)
    assert swept(lake) == set()
    lake.assert_rows(ALL)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_file_that_is_removed_goes_whatever_it_is_called(name: str, tmp_path: Path) -> None:
    spelling = SPELLINGS[name]
    lake = lake_of(tmp_path, spelling)
    lake.log_raw(removed_by_spark(lake, spelling, 0))
    assert swept(lake) == {spelling.of(spelling.file, lake.path, 0)}
    assert lake.by_tandem() == rows(range(10, 30))


def swept(lake: QuickLake) -> set[str]:
    """Data files that a cleaning deletes, long after."""
    rules = CleaningRules(0, staging_ms=DAY_MS, dead_ms=DAY_MS)
    result = clean(lake.table(), rules, options=CleaningOptions())
    return {each.file.path for each in result.garbage if each.file.path.endswith(".parquet")}
