"""Deletion vectors between us and Spark + Delta, the second oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyroaring import BitMap64

from support.lake.vectors import encode_inline
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 200


def create(root: Path) -> list[dict[str, Any]]:
    """Three files of `ROWS` rows each; returns their `add` actions."""
    for first in range(0, 3 * ROWS, ROWS):
        write_deltalake(
            str(root),
            pa.table({"id": pa.array(range(first, first + ROWS), pa.int64())}),
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"},
        )
    return adds(root)


def adds(root: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for commit in sorted((root / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        found += [action["add"] for action in actions if "add" in action]
    return found


def spark_ids(spark: SparkSession, root: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(root)).collect())


def test_spark_hides_the_rows_that_we_delete(delta_spark: SparkSession, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    sets = [BitMap64([0, 7]), BitMap64(range(50, 150)), BitMap64(range(0, ROWS, 3))]
    ours = dv.write_file(store, "_tandem/dv/0123456789abcdef-1", sets[:2])
    ours.append(encode_inline(sets[2]))
    lines = []
    gone: set[int] = set()
    for add, vector, bitmap in zip(create(tmp_path), ours, sets, strict=True):
        described: dict[str, Any] = {
            "storageType": vector.storage,
            "pathOrInlineDv": vector.path_or_inline,
            "sizeInBytes": vector.size,
            "cardinality": vector.cardinality,
        }
        if vector.offset is not None:
            described["offset"] = vector.offset
        stats = {**json.loads(add["stats"]), "tightBounds": False}
        lines.append({"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}})
        lines.append({"add": {**add, "stats": json.dumps(stats), "deletionVector": described}})
        ids = pq.ParquetFile(tmp_path / add["path"]).read().column("id").to_pylist()
        gone |= {ids[position] for position in bitmap}
    text = "\n".join(json.dumps(line) for line in lines)
    store.put_if_absent(f"_delta_log/{3:020}.json", text.encode())
    assert spark_ids(delta_spark, tmp_path) == sorted(set(range(3 * ROWS)) - gone)


def test_tandem_hides_the_rows_that_spark_deletes(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    create(tmp_path)
    delta_spark.sql(f"DELETE FROM delta.`{tmp_path}` WHERE id % 7 = 0 OR id BETWEEN 20 AND 90")
    store = open_store(str(tmp_path))
    live: list[int] = []
    latest = {add["path"]: add for add in adds(tmp_path)}
    assert any("deletionVector" in add for add in latest.values())
    for path, add in latest.items():
        ids = pq.ParquetFile(tmp_path / path).read().column("id").to_pylist()
        logged = add.get("deletionVector")
        bitmap = BitMap64()
        if logged:
            bitmap = dv.load(
                store,
                DeletionVector(
                    logged["storageType"],
                    logged["pathOrInlineDv"],
                    logged["sizeInBytes"],
                    logged["cardinality"],
                    logged.get("offset"),
                ),
            )
        assert not bitmap or bitmap.max() < len(ids)
        live += [row for position, row in enumerate(ids) if position not in bitmap]
    assert sorted(live) == spark_ids(delta_spark, tmp_path)
    assert sorted(live) == [n for n in range(3 * ROWS) if n % 7 and not 20 <= n <= 90]
