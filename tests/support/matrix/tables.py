"""The tables that the W matrix begins with, by shape: made once, copied for every cell.

Where nothing speaks against it there are three loads of ours, a few rows deleted by us, and a
load by deltalake: segments of ours with and without deletion vectors, and a foreign one. Without
vectors, a table has the protocol and the properties that its engine gives it by default. With row
tracking, Spark has enabled it, and moved two rows.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from support.foreign.process import Engine
from support.jobs.quick_jobs import QuickJobs
from support.lake.lake import DELETION_VECTORS, Lake
from support.matrix.rows import SQL_MOMENT, Rows, deleted, id_in, rows
from tandem.locks.store import InProcessLocks
from tandem.operations.ports import Ports
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GONE = (13, 27)
_MOVED = (32, 33)
START: Rows = deleted(id_in(_GONE))(rows(range(40)))
"""Rows of every shape, but for columns that it has besides."""

MADE_BY_SPARK = ("mapped", "generated", "identity")
"""Shapes that deltalake cannot make."""

_TIME = {"column": "ts", "granularity": "Year"}
"""All rows are in one chunk: they are compacted as those of a table without a time column."""

_AGE_S = 60 * 86400
_COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("k", pa.int64()),
        ("v", pa.int64()),
        ("ts", pa.timestamp("us", tz="UTC")),
    ]
)


class MatrixTables:
    """`spark` runs our jobs; `sql` is the engine that makes what only Spark + Delta can make."""

    def __init__(self, root: Path, spark: SparkSession, sql: Engine) -> None:
        self._root = root
        self._spark = spark
        self.sql = sql
        self._made = 0

    def fresh(
        self, shape: str, *, partitioned: bool = False, vectors: bool = True, tracking: bool = False
    ) -> Lake:
        """`partitioned`: by `k`, whatever its shape is. `vectors`: with deletion vectors.
        `tracking`: with row tracking."""
        name = shape.replace(" ", "-") + ("-by-k" if partitioned else "")
        name += ("" if vectors else "-vectors-off") + ("-tracked" if tracking else "")
        template = self._root / "templates" / name
        if not template.exists():
            by = ["k"] if partitioned else []
            maker = _Maker(self, template, by, vectors)
            maker.make(shape)
            if tracking:
                maker.track(shape)
        self._made += 1
        path = self._root / f"cell-{self._made}"
        shutil.copytree(template, path)
        return self.lake(path)

    def start(self, shape: str) -> Rows:
        match shape:
            case "mapped":
                return [{**row, "x": row["id"] + 1} for row in START]
            case "generated":
                return [{**row, "g": row["k"] * 2} for row in START]
            case _:
                return START

    def lake(self, path: Path) -> Lake:
        location = path.as_uri()
        sources = path.with_name(f"{path.name}-sources")
        lake = Lake(
            location, self._spark, sources, open_store(location), time=_TIME, backoff_limit=2
        )
        lake.first_version = lake.version
        return lake


@dataclass(frozen=True)
class _Maker:
    """Makes one table, partitioned by the columns `by`."""

    tables: MatrixTables
    path: Path
    by: list[str]
    vectors: bool

    def make(self, shape: str) -> None:
        self.path.parent.mkdir(exist_ok=True)
        match shape:
            case "plain":
                self._of_ours()
            case "partitioned":
                replace(self, by=["k"])._by_deltalake()
            case "append-only":
                self._by_deltalake(**{"delta.appendOnly": "true"})
            case "change data feed":
                self._by_deltalake(**{"delta.enableChangeDataFeed": "true"})
            case "unknown feature":
                self._of_ours()
                add_unknown_feature(self.path)
            case "mapped":
                self._by_spark("x BIGINT", "'delta.columnMapping.mode' = 'name'")
            case "generated":
                self._by_spark("g BIGINT GENERATED ALWAYS AS (k * 2)")
            case "identity":
                self._by_spark("n BIGINT GENERATED ALWAYS AS IDENTITY")
            case _:
                raise ValueError(shape)

    def track(self, shape: str) -> None:
        """Enable row tracking: files get base ids by a backfill. Then Spark moves two rows, so that
        one file has their ids in columns."""
        self._sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
        if shape != "append-only":
            self._sql(f"UPDATE {{table}} SET v = v WHERE id IN {_MOVED}")

    @property
    def _lake(self) -> Lake:
        return self.tables.lake(self.path)

    def _sql(self, text: str) -> None:
        self.tables.sql.call("sql", text=text.format(table=f"delta.`{self.path}`"))

    def _of_ours(self) -> None:
        if self.by:
            self._by_deltalake()  # jobs without Spark write one partition
            return
        self._create()
        lake = self._lake
        for number in range(3):
            lake.do(lake.ingest(_batch(number)), ports=quickly(lake))
        lake.do(lake.delete(f"id IN {_GONE}"), ports=quickly(lake))
        lake.append(_batch(3))
        shutil.rmtree(lake.sources)

    def _by_deltalake(self, **properties: str) -> None:
        self._create(**properties)
        lake = self._lake
        for number in range(4):
            lake.append(_batch(number, without=_GONE))

    def _create(self, **properties: str) -> None:
        found = {**(DELETION_VECTORS if self.vectors else {}), **properties}
        DeltaTable.create(
            self.path.as_uri(), _COLUMNS, partition_by=self.by or None, configuration=found or None
        )

    def _by_spark(self, column: str, *properties: str) -> None:
        found = [*(["'delta.enableDeletionVectors' = 'true'"] if self.vectors else []), *properties]
        set_ = f"TBLPROPERTIES ({', '.join(found)})" if found else ""
        partitions = f"PARTITIONED BY ({', '.join(self.by)}) " if self.by else ""
        columns, values = "(id, k, v, ts)", f"id, id % 5, id * 100, {SQL_MOMENT}"
        if column.startswith("x "):
            columns, values = "", f"{values}, id + 1"
        for statement in (
            f"CREATE TABLE {{table}} (id BIGINT, k BIGINT, v BIGINT, ts TIMESTAMP, {column}) "
            f"USING delta {partitions}{set_}",
            *(
                f"INSERT INTO {{table}} {columns} SELECT {values} FROM range({n}, {n + 10})"
                for n in range(0, 40, 10)
            ),
            f"DELETE FROM {{table}} WHERE id IN {_GONE}",
        ):
            self._sql(statement)


def _batch(number: int, without: tuple[int, ...] = ()) -> pa.Table:
    """Ten rows."""
    found = deleted(id_in(without))(rows(range(10 * number, 10 * number + 10)))
    return pa.Table.from_pylist(found, _COLUMNS)


def quickly(lake: Lake) -> Ports:
    """Jobs without Spark, in a process of their own as far as locks know."""
    return lake.ports(jobs=QuickJobs(), locks=InProcessLocks())


def add_unknown_feature(path: Path) -> None:
    """A commit by a writer of the future: it needs a feature that no reader knows yet."""
    log = path / "_delta_log"
    versions = sorted(int(file.stem) for file in log.glob("*.json"))
    protocol = next(
        json.loads(line)["protocol"]
        for version in reversed(versions)
        for line in (log / f"{version:020d}.json").read_text().splitlines()
        if "protocol" in json.loads(line)
    )
    known = protocol.get("writerFeatures", ["appendOnly", "invariants"])  # those of version 2
    protocol["minWriterVersion"] = 7
    protocol["writerFeatures"] = [*known, "timeTravelInsurance"]
    body = [{"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}}]
    text = "".join(json.dumps(action) + "\n" for action in [*body, {"protocol": protocol}])
    (log / f"{versions[-1] + 1:020d}.json").write_text(text)


def age_the_log(path: Path) -> None:
    """As if all that is in the log were two months old: engines go by the files' times."""
    for file in (path / "_delta_log").iterdir():
        before = file.stat().st_mtime - _AGE_S
        os.utime(file, (before, before))
