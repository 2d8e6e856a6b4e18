"""A `Lake` whose jobs are not Spark's: real files, log, engine and foreign writers in
milliseconds, for tests that try many things against the engine (`support.jobs.quick_jobs`)."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from support.jobs.quick_jobs import QuickJobs
from support.lake import rows as model
from support.lake.lake import DELETION_VECTORS, Lake, QuickClock, batch
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_action
from tandem.delta.log.delta_log import DeltaLog
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports
from tandem.operations.session.options import Interceptor
from tandem.spark.in_process import InProcessJobs
from tandem.storage import open_store


class QuickLake(Lake):
    def __post_init__(self) -> None:
        self.log = DeltaLog(self.store)
        self.jobs = QuickJobs()  # type: ignore[assignment]
        self.spark_reads = False

    def ports(self, **changes: Any) -> Ports:
        """Jobs and locks of its own for every run, as if each were a process of its own."""
        return super().ports(**{"jobs": QuickJobs(), "locks": InProcessLocks(), **changes})

    @property
    def first_add(self) -> AddFile:
        return next(iter(self.log.snapshot().adds()))

    def file(self, path: str) -> pa.Table:
        """All rows of a data file, live or not."""
        return pq.ParquetFile(self.path / path).read()

    def log_raw(self, *actions: Mapping[str, Any], **info: Any) -> None:
        """A commit of whatever content, as a foreign writer may put it."""
        body = [{"commitInfo": {"timestamp": 1, "operation": "WRITE", **info}}, *actions]
        text = "\n".join(json.dumps(action) for action in body) + "\n"
        (self.path / f"_delta_log/{self.version + 1:020d}.json").write_text(text)

    def log_again(self, **changes: Any) -> None:
        """All live files once more, with other fields."""
        adds = [dataclasses.replace(add, **changes) for add in self.log.snapshot().adds()]
        self.log_raw(*(encode_action(add) for add in adds))


class ArrowLake(QuickLake):
    """Its jobs are the real ones, without Spark."""

    def ports(self, **changes: Any) -> Ports:
        return arrow_ports(**changes)


def arrow_ports(**changes: Any) -> Ports:
    """Of a process in which jobs run without Spark."""
    given: dict[str, Any] = {"jobs": InProcessJobs(None), "locks": InProcessLocks()}
    return Ports(**{**given, "clock": QuickClock(), **changes})


Q = TypeVar("Q", bound=QuickLake)


def make(folder: Path, loads: int = 4, *, schema: pa.Schema = model.SCHEMA,
         properties: Mapping[str, str] = DELETION_VECTORS,
         partition_by: Sequence[str] = ()) -> QuickLake:  # fmt: skip
    """A table of deltalake, with `loads` appends of ten rows by it."""
    location = (folder / "lake").as_uri()
    DeltaTable.create(
        location, schema, configuration=dict(properties), partition_by=list(partition_by) or None
    )
    lake = at(location, folder / "sources")
    for number in range(loads):
        lake.append(batch(number))
    lake.first_version = lake.version
    return lake


def at(location: str, sources: Path = Path()) -> QuickLake:
    """The table at a location; files that operations read go below `sources`."""
    return of_kind(QuickLake, location, sources)


def of_kind(kind: type[Q], location: str, sources: Path = Path()) -> Q:
    """As `at`."""
    return kind(location, None, sources, open_store(location))  # type: ignore[arg-type]


def copy(lake: QuickLake, folder: Path) -> QuickLake:
    """The same table elsewhere, whose scenario begins with its last version."""
    shutil.copytree(lake.path, folder / "lake")
    location = (folder / "lake").as_uri()
    made = at(location, folder / "sources")
    made.first_version, made.count = lake.version, lake.count
    return made


def just_before(point: Point, act: Callable[[], object]) -> Interceptor:
    """Call `act` before `point` is performed for the first time."""
    acted: list[Point] = []

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is point and not acted:
            acted.append(point)
            act()
        return call()

    return interceptor


# A table that Spark made, twice: for Tandem, and for Spark to carry out the same statement on.


def twins(spark: SparkSession, template: Path, folder: Path, *, arrow: bool) -> Lake:
    """A copy for Tandem, whose jobs run over Arrow or on Spark; `theirs` is Spark's."""
    for name in ("t", "theirs"):
        shutil.copytree(template, folder / name)
    location = (folder / "t").as_uri()
    of_kind = ArrowLake if arrow else Lake
    made = of_kind(location, spark, folder / "sources", open_store(location), backoff_limit=2)
    made.first_version = made.version
    return made


def theirs(lake: Lake) -> Path:
    return lake.path.with_name("theirs")


def rows_by_spark(lake: Lake, path: Path) -> list[str]:
    return sorted(map(repr, lake.delta_spark.read.format("delta").load(str(path)).collect()))
