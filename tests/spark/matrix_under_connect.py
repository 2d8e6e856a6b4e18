"""Under Spark Connect every way to read gives the rows of `format("delta")`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from index.test_exact_numbers import spark_delta
from tandem.spark.runtime.session import launch_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).resolve().parents[1]


def test_every_way_to_read_gives_the_rows_of_delta(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    parted, mapped = tmp_path / "parted", tmp_path / "mapped"
    for first in (0, 10, 20):
        ids = range(first, first + 10)
        rows = pa.table({"i32": pa.array(ids, pa.int32()), "p": [f"p{n % 2}" for n in ids]})
        write_deltalake(parted, rows, mode="append", partition_by=["p"])
    spark_delta(delta_spark, mapped, **{"delta.columnMapping.mode": "name"})
    where = "i32 < 15 OR i32 IS NULL"
    path = [TESTS.parent / "operator", TESTS, TESTS.parent / "tools"]
    ran = subprocess.run(
        [sys.executable, TESTS / "spark/connect_session.py", where, parted, mapped],
        env={
            **os.environ,
            **launch_environment(),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found.pop("session").startswith("pyspark.sql.connect")
    assert found.keys() == {"parted", "mapped"}
    assert len(found["parted"]["delta"]) == 15
    assert len(found["mapped"]["delta"]) > 2
    for rows in found.values():
        for way in ("tandem", "view", "read", "in tasks"):
            assert rows[way] == rows["delta"], way
