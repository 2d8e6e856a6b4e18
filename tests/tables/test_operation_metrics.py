"""What DESCRIBE HISTORY shows of our commits: what Spark + Delta counts for the same statement."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import DELETION_VECTORS
from support.lake.rows import rows
from tandem.delta.actions import AddFile
from tandem.operations.model import CommitContent, OutputFileChange
from tandem.operations.session.commit_actions import operation_metrics
from tandem.spec.resources import Operation
from tandem.spec.status import RowsAffected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = rows(range(28, 33))
"""Two rows of the third of three files, and three new ones."""
IN_SQL = "SELECT id, id % 5 k, id * 100 v FROM range(28, 33)"
MERGE = f"MERGE INTO TABLE t USING ({IN_SQL}) s ON t.id = s.id "
UNKNOWN = {
    "executionTimeMs",
    "materializeSourceTimeMs",
    "numSourceRows",
    "rewriteTimeMs",
    "scanTimeMs",
}
"""What we do not know, and leave out."""
ENCODED = {"numAddedBytes", "numOutputBytes", "numTargetBytesAdded", "numAddedFiles", "numFiles",
           "numTargetFilesAdded", "minFileSize", "p25FileSize", "p50FileSize", "p75FileSize",
           "maxFileSize"}  # fmt: skip
"""What depends on who encodes the new files, and in how many tasks."""


def deleted(lake: QuickLake) -> QuickLake:
    lake.do(lake.delete("k = 1"))
    return lake


def replaced(lake: QuickLake) -> Operation:
    source = {"format": "Parquet", "location": lake.source(SOURCE).as_uri()}
    body = {"replace": {"segments": [lake.names[2]]}, "source": source}
    return lake.resource("TableReplace", {**body, "scope": "AtStart"})


def dropped(lake: QuickLake) -> Operation:
    body = {"replace": {"partitions": [{"k": "3"}]}, "scope": "AtCommit"}
    return lake.resource("TableReplace", body)


Case = tuple[Callable[[QuickLake], Operation], str]
"""What we do, and what Spark + Delta does; TABLE is the table."""
CASES: dict[str, Case] = {
    "ingest": (lambda lake: lake.ingest(SOURCE), f"INSERT INTO TABLE {IN_SQL}"),
    "delete": (lambda lake: lake.delete("k = 1"), "DELETE FROM TABLE WHERE k = 1"),
    "delete again": (
        lambda lake: deleted(lake).delete("k = 2"),
        "DELETE FROM TABLE WHERE k = 1; DELETE FROM TABLE WHERE k = 2",
    ),
    "update": (lambda lake: lake.update("k = 1", v="7"), "UPDATE TABLE SET v = 7 WHERE k = 1"),
    "merge": (
        lambda lake: lake.merge(
            SOURCE,
            whenMatched=[{"where": "s.id = 28", "delete": {}}, {"updateAll": {}}],
            whenNotMatched=[{"insertAll": {}}],
        ),
        MERGE + "WHEN MATCHED AND s.id = 28 THEN DELETE WHEN MATCHED THEN UPDATE SET * "
        "WHEN NOT MATCHED THEN INSERT *",
    ),
    "merge by source": (
        lambda lake: lake.merge(
            SOURCE, whenNotMatchedBySource=[{"where": "k = 1", "update": {"set": {"v": "5"}}}]
        ),
        MERGE + "WHEN NOT MATCHED BY SOURCE AND t.k = 1 THEN UPDATE SET v = 5",
    ),
    "compaction": (lambda lake: lake.compaction("Major"), "OPTIMIZE TABLE"),
    "compaction after a delete": (
        lambda lake: deleted(lake).compaction("Major"),
        "DELETE FROM TABLE WHERE k = 1; OPTIMIZE TABLE",
    ),
    "drop of a partition": (dropped, "DELETE FROM TABLE WHERE k = 3"),
    # Of a whole file that goes, Spark counts the bytes only without vectors.
    "replace without vectors": (replaced, f"INSERT INTO TABLE REPLACE WHERE id >= 20 {IN_SQL}"),
}


def history(spark: SparkSession, lake: QuickLake) -> dict[str, str]:
    """As Spark + Delta shows it of the last commit."""
    [row] = spark.sql(f"DESCRIBE HISTORY {lake.sql_name} LIMIT 1").collect()
    return dict(row["operationMetrics"])


@pytest.mark.part(3)
@pytest.mark.parametrize("case", CASES)
def test_history_shows_the_figures_of_spark(
    delta_spark: SparkSession, tmp_path: Path, case: str
) -> None:
    ours, theirs = CASES[case]
    lake = quick_lake.make(
        tmp_path / "ours",
        3,
        properties={} if "without vectors" in case else DELETION_VECTORS,
        partition_by=["k"] if "partition" in case else [],
    )
    other = quick_lake.copy(lake, tmp_path / "theirs")
    lake.do(ours(lake))
    for statement in theirs.split("; "):
        delta_spark.sql(statement.replace("TABLE", other.sql_name)).collect()
    found, expected = history(delta_spark, lake), history(delta_spark, other)
    assert lake.foreign().history(1)[0]["operationMetrics"] == found
    assert found.keys() == expected.keys() - UNKNOWN
    same = found.keys() - ENCODED
    assert {name: found[name] for name in same} == {name: expected[name] for name in same}
    assert_encoded(lake, found)


def assert_encoded(lake: QuickLake, found: dict[str, str]) -> None:
    """The figures of new files are those of the log."""
    before = {add.path for add in lake.log.snapshot(lake.version - 1).adds()}
    sizes = [add.size for add in lake.log.snapshot().adds() if add.path not in before]
    for name in found.keys() & ENCODED:
        # The compactions here make one file: all percentiles are its size.
        expected = len(sizes) if name.endswith(("Files", "FilesAdded")) else sum(sizes)
        assert found[name] == str(expected), name


def output(number: int, size: int, count: int = 10, dead: int = 0) -> OutputFileChange:
    add = AddFile(f"{number}.parquet", {}, size, 0, True)
    return OutputFileChange(add, count, BitMap64(range(dead)))


def test_percentiles_are_those_of_the_sorted_sizes() -> None:
    outputs = tuple(output(n, size) for n, size in enumerate((50, 10, 40, 20, 30)))
    found = operation_metrics(CommitContent("OPTIMIZE", {}, outputs))
    names = ("minFileSize", "p25FileSize", "p50FileSize", "p75FileSize", "maxFileSize")
    assert [found[name] for name in names] == ["10", "20", "30", "40", "50"]
    assert not operation_metrics(CommitContent("OPTIMIZE", {})).keys() & set(names)


def test_rows_that_are_neither_new_nor_changed_are_copied() -> None:
    """A file that an update wrote: two of its rows were deleted by others meanwhile."""
    rows_affected = RowsAffected(updated=3)
    change = CommitContent("UPDATE", {}, (output(0, 50, dead=2),), rows=rows_affected)
    found = operation_metrics(change)
    assert found["numUpdatedRows"] == "3"
    assert found["numCopiedRows"] == "5"
    assert found["numDeletionVectorsAdded"] == "1"


def test_a_merge_with_clauses_of_both_kinds_does_not_say_which_changed_how_many() -> None:
    clauses = {"matchedPredicates": '["x"]', "notMatchedBySourcePredicates": '["y"]'}
    change = CommitContent("MERGE", clauses, rows=RowsAffected(updated=3))
    found = operation_metrics(change)
    assert found["numTargetRowsUpdated"] == "3"
    assert not [name for name in found if "Matched" in name]
