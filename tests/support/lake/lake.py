"""A small language for scenarios on real tables: make one, run operations, hold them, look.

    lake = lakes.loaded(4)                              # segments 0 to 3, by four TableIngests
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.run(lake.update("k = 1", v="v + 15"))          # commits while the compaction waits
    done = compaction.finish()
    lake.assert_rows(plus(before, k_is(1), 15))         # by our reader, deltalake, Spark + Delta

The engine runs in this process with everything real but the clusters: real files, the real
log, real Spark on the session that tests share.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from delta_session import interpreting
from support.documents import document
from support.jobs.runners import Jobs
from support.lake import rows as model
from support.lake.held import Held
from support.lake.rows import Rows
from support.present import present
from tandem import spec
from tandem.delta import dv
from tandem.delta.actions import Commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.locks.store import InProcessLocks
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.kinds.time_column import time_column
from tandem.operations.machine.events import Point
from tandem.operations.model import Table
from tandem.operations.ports import Ports, ProcessId, SystemClock, SystemProcesses
from tandem.operations.rounds import NoSmallRounds
from tandem.operations.session.job_control import FileJobs
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.resources import LakeTable, Operation
from tandem.spec.status import OperationResult, OperationStatus, Phase, Reconciled
from tandem.storage import Store, open_store
from tandem.timeline.segments import TAG_ROW_MAP, Segment, retired, segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.lake.s3 import S3Server

POLL_MS = 10
_OURS = re.compile(
    r"((?:_change_data/tandem-)?[0-9a-f]{16}(?:r\d+)?-\d+|_tandem/dv|_tandem/rowmaps)/"
)
DELETION_VECTORS = {"delta.enableDeletionVectors": "true"}
INSERT_ALL: dict[str, Any] = {"whenNotMatched": [{"insertAll": {}}]}


@dataclass
class Lake:
    """One table. `environ` and `options` are for S3, `spark_reads` whether Spark can, `spark_works`
    whether it does the jobs. `small`: the engine evaluates small rounds, else the job all of
    them. `vectors`: that of the LakeTable."""

    location: str
    spark: SparkSession
    sources: Path
    store: Store
    options: Mapping[str, str] = field(default_factory=dict)
    foreign_options: Mapping[str, str] = field(default_factory=dict)
    spark_reads: bool = True
    spark_works: bool = True
    time: Mapping[str, Any] | None = None
    index: Mapping[str, Any] | None = None
    locks: InProcessLocks = field(default_factory=InProcessLocks)
    first_version: int = 0
    backoff_limit: int = 0
    small: bool = True
    vectors: str = "Auto"
    count: int = 0

    def __post_init__(self) -> None:
        self.jobs = self.new_jobs()
        self.log = DeltaLog(self.store)

    def new_jobs(self) -> Jobs:
        """A cluster in which nothing runs yet."""
        return Jobs(self.spark if self.spark_works else None, self.store)

    # Resources

    def compaction(self, type_: str = "Minor", **more: Any) -> Operation:
        return self.resource("TableCompaction", {"type": type_, **more})

    def update(self, where: str, *, isolation: str = "WriteSerializable", **set_: str) -> Operation:
        body = {"update": {"where": where, "set": set_}, "isolation": isolation}
        return self.resource("TableUpdate", body)

    def delete(self, where: str, **more: Any) -> Operation:
        return self.resource("TableUpdate", {"delete": {"where": where}, **more})

    def source(self, rows: Rows | pa.Table) -> Path:
        """A new Parquet file with these rows."""
        self.sources.mkdir(parents=True, exist_ok=True)
        source = self.sources / f"{len(list(self.sources.iterdir())):04d}.parquet"
        pq.write_table(rows if isinstance(rows, pa.Table) else model.table(rows), source)
        return source

    def ingest(self, rows: Rows, **more: Any) -> Operation:
        source = {"format": "Parquet", "location": self.source(rows).as_uri()}
        return self.resource("TableIngest", {"source": source, **more})

    def merge(self, source: Rows | pa.Table | Path, *, on: str = "t.id = s.id", isolation: str =
              "WriteSerializable", **clauses: Any) -> Operation:  # fmt: skip
        """An upsert of all columns, unless there are clauses, as in the resource."""
        path = source if isinstance(source, Path) else self.source(source)
        upsert: dict[str, Any] = {"whenMatched": [{"updateAll": {}}], **INSERT_ALL}
        body = {"source": {"format": "Parquet", "location": path.as_uri()}, "on": on}
        merge = {"merge": {**body, **(clauses or upsert)}, "isolation": isolation}
        return self.resource("TableUpdate", merge)

    def resource(self, kind: str, body: Mapping[str, Any]) -> Operation:
        self.count += 1
        # By the version too: the tables of a template go on counting apart.
        name = f"op-{self.first_version}-{self.count}"
        more = {"tableRef": {"name": "lake"}, "backoffLimit": self.backoff_limit, **body}
        parsed = spec.parse(document(kind, name, more))
        assert isinstance(parsed, Operation)
        return parsed

    # Running

    def ports(self, **changes: Any) -> Ports:
        given: dict[str, Any] = {"jobs": self.jobs, "locks": self.locks, "clock": QuickClock()}
        if not self.small:
            given["small_rounds"] = NoSmallRounds
        given |= changes
        return Ports(**{**given, "jobs": FileJobs(given["jobs"])})

    def table(self) -> Table:
        resource = spec.parse(
            document(
                "LakeTable",
                "lake",
                {
                    "location": self.location,
                    "storage": {"options": dict(self.options)},
                    "vectors": self.vectors,
                    **({"time": dict(self.time)} if self.time else {}),
                    **({"index": dict(self.index)} if self.index else {}),
                },
            )
        )
        assert isinstance(resource, LakeTable)
        return Table(
            store=self.store,
            log=DeltaLog(self.store),
            display="LakeTable/lake",
            spec=resource,
            storage_options=dict(self.options),
        )

    def run(self, operation: Operation, *, interceptor: Interceptor = passthrough,
            again: bool = False, ports: Ports | None = None) -> OperationStatus:  # fmt: skip
        """Run to the end, whatever that is."""
        ports = ports or self.ports()
        execution = ExecutionOptions(again=again, poll_ms=POLL_MS, interceptor=interceptor)
        session = open_session(operation, self.table(), ports, execution)
        return finish(session, operation, ports)

    def do(self, operation: Operation, **more: Any) -> OperationStatus:
        """Run to the end, which must be a success."""
        status = self.run(operation, **more)
        assert status.phase is Phase.SUCCEEDED, status
        return status

    def hold(self, operation: Operation, at: Point, *, after: bool = False, skip: int = 0,
             ports: Ports | None = None) -> Held:  # fmt: skip
        """Start, and come back when it is about to perform `at` (or has just done so)."""

        def run(interceptor: Interceptor) -> OperationStatus:
            return self.run(operation, interceptor=interceptor, ports=ports)

        name = f"{operation.id} {at}"
        return Held(name, run).start(at, after=after, skip=skip)

    def load(self, *batches: Rows) -> None:
        """Our own ingests, one after the other."""
        for batch in batches:
            self.do(self.ingest(batch))

    # Foreign writers

    def foreign(self, version: int | None = None) -> DeltaTable:
        return DeltaTable(self.location, version=version, storage_options=self._foreign())

    def append(self, rows: Rows | pa.Table, *, schema_mode: Literal["merge"] | None = None) -> None:
        """By deltalake."""
        table = rows if isinstance(rows, pa.Table) else model.table(rows)
        write_deltalake(
            self.location,
            table,
            mode="append",
            schema_mode=schema_mode,
            storage_options=self._foreign(),
        )

    def _foreign(self) -> dict[str, str] | None:
        return dict(self.foreign_options) or None

    def vacuum(self) -> None:
        """By deltalake: all that no version names, at once."""
        self.foreign().vacuum(
            retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
        )

    @property
    def delta_spark(self) -> SparkSession:
        """Where Spark + Delta reads and writes; jobs run on `spark`."""
        return interpreting(self.spark)

    @property
    def sql_name(self) -> str:
        return f"delta.`{self.path}`"

    def sql(self, text: str) -> None:
        """A statement by Spark + Delta; `TABLE` stands for the table."""
        self.delta_spark.sql(text.replace("TABLE", self.sql_name))

    @property
    def path(self) -> Path:
        return Path(unquote(self.location.removeprefix("file://")))

    # Looking

    @property
    def version(self) -> int:
        return self.log.latest_version()

    def by_tandem(self, version: int | None = None) -> Rows:
        snapshot = self.log.snapshot(version)
        return _rows(pa.table(scan(snapshot, self.store)))

    def by_deltalake(self, version: int | None = None) -> Rows:
        return _rows(pa.table(self.foreign(version).scan()))

    def by_spark(self) -> Rows:
        found = self.delta_spark.read.format("delta").load(str(self.path)).select("id", "k", "v")
        return tuple(sorted((r.id, r.k, r.v) for r in found.collect()))

    def assert_rows(self, expected: Rows) -> None:
        """All readers give exactly these rows, each once, at the latest version. Spark reads in
        tests that are marked `whole`, and in all of them under `make matrix`."""
        self.assert_rows_so_far(expected)
        if self.spark_reads:
            assert difference(self.by_spark(), tuple(sorted(expected))) == "", "Spark + Delta"

    def assert_rows_so_far(self, expected: Rows) -> None:
        """The same without Spark, which takes its time: for what is not yet the end."""
        expected = tuple(sorted(expected))
        assert difference(self.by_deltalake(), expected) == "", "deltalake"
        assert difference(self.by_tandem(), expected) == "", "tandem"

    def assert_states(self, *states: Rows) -> None:
        """Every version since the scenario began shows one of these states, in this order: none
        is mixed, none comes back (C16). Read by deltalake; then the last one by all. Nothing is
        left behind."""
        self.assert_states_so_far(*states)
        self.assert_clean()
        if self.spark_reads:
            last = tuple(sorted(states[-1]))
            assert difference(self.by_spark(), last) == "", "Spark + Delta"

    def assert_states_so_far(self, *states: Rows) -> None:
        """The same without Spark."""
        found: list[Rows] = []
        for version in range(self.first_version, self.version + 1):
            shown = self.by_deltalake(version)
            if not found or found[-1] != shown:
                found.append(shown)
        wanted = [tuple(sorted(state)) for state in states]
        for number, (shown, state) in enumerate(zip(found, wanted, strict=False)):
            assert difference(shown, state) == "", f"state {number}"
        assert len(found) == len(wanted)
        assert difference(self.by_tandem(), wanted[-1]) == "", "tandem"

    @property
    def live(self) -> Sequence[Segment]:
        snapshot = self.log.snapshot()
        return segments(snapshot.files, time_column(self.table().spec, snapshot))

    @property
    def names(self) -> list[str]:
        """Live segments, in their order."""
        return [segment.name for segment in self.live]

    def statuses(self) -> dict[str, str]:
        """Status of every segment that the log still knows."""
        live = self.live
        commits = self.log.commits(0, self.version)
        return {s.name: s.status.value for s in (*retired(live, commits), *live)}

    def deleted(self) -> dict[str, int]:
        """Deleted rows of live segments that have some."""
        return {s.name: s.deleted_rows for s in self.live if s.deleted_rows}

    def commit(self, version: int | None = None) -> Commit:
        return present(self.log.commit(self.version if version is None else version))

    def data_files(self) -> set[str]:
        """What Tandem wrote and commits may name: data, vectors, change files, row maps."""
        return {m.path for m in self.store.list("") if _OURS.match(m.path)}

    def unreachable(self) -> set[str]:
        """What Tandem wrote and no version names."""
        named: set[str] = set()
        for version in range(self.version + 1):
            commit = self.commit(version)
            named.update(file.path for file in commit.change_files)
            for add in commit.adds:
                named.add(add.path)
                named.add(add.tags.get(TAG_ROW_MAP, ""))
                if add.deletion_vector is not None and add.deletion_vector.storage == "u":
                    named.add(dv.file_path(add.deletion_vector))
        return self.data_files() - named

    def assert_clean(self) -> None:
        """Whatever failed or lost a race has left nothing (I-5), and nothing that a version
        names is gone."""
        assert self.unreachable() == set()
        for add in self.log.snapshot().adds():
            self.store.head(add.path)


def reason(status: OperationStatus) -> str:
    """Why an operation ended as it did."""
    [found] = [c.reason for c in status.conditions if c.type.value == "Succeeded"]
    return found


def message(status: OperationStatus) -> str:
    """What it says of its end."""
    [found] = [c.message for c in status.conditions if c.type.value == "Succeeded"]
    return found


def result(status: OperationStatus) -> OperationResult:
    assert status.result is not None, status
    return status.result


def reconciled(status: OperationStatus) -> Reconciled:
    return present(result(status).reconciled)


def difference(found: Rows, expected: Rows) -> str:
    """ "" if they are the same rows; else a few of what is lost, doubled or changed."""
    if found == expected:
        return ""
    ids = [row[0] for row in found]
    return json.dumps(
        {
            "lost": sorted({r[0] for r in expected} - set(ids))[:20],
            "too many": sorted({r[0] for r in found} - {r[0] for r in expected})[:20],
            "doubled": sorted({n for n in ids if ids.count(n) > 1})[:20],
            "other values": sorted(set(found) - set(expected))[:10],
            "instead of": sorted(set(expected) - set(found))[:10],
        }
    )


def _rows(table: pa.Table) -> Rows:
    columns = [table.column(name).to_pylist() for name in ("id", "k", "v")]
    return tuple(sorted(zip(*columns, strict=True)))


class QuickClock(SystemClock):
    """Does not wait seconds for the next try."""

    def sleep(self, ms: int, wake: threading.Event) -> None:
        super().sleep(min(ms, POLL_MS), wake)


@dataclass
class Process:
    """`Processes` of an engine in a process of its own; `living` says who lives."""

    pid: int
    living: set[int]

    def me(self) -> ProcessId:
        return ProcessId(SystemProcesses().me().host, self.pid, "")

    def alive(self, process: ProcessId) -> bool:
        return process.pid in self.living


class Lakes:
    """Makes tables below a folder. Those that begin with loads are made once and copied.
    `spark_reads`: whether Spark is one of their readers; `spark_works`: whether it does our
    jobs."""

    def __init__(
        self, spark: SparkSession, root: Path, templates: Path, *, spark_reads: bool = True,
        spark_works: bool = True,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._root = root
        self._templates = templates
        self._spark_reads = spark_reads
        self._spark_works = spark_works
        self._made = 0

    def empty(self, *, properties: Mapping[str, str] = DELETION_VECTORS,
              partition_by: Sequence[str] = (), time: Mapping[str, Any] | None = None,
              schema: pa.Schema = model.SCHEMA) -> Lake:  # fmt: skip
        """A table that deltalake made, without rows."""
        self._made += 1
        path = self._root / f"lake-{self._made}"
        DeltaTable.create(
            path.as_uri(), schema, partition_by=list(partition_by) or None,
            configuration=dict(properties),
        )  # fmt: skip
        return self._lake(path, time=time)

    def loaded(self, loads: int, *, size: int = 10) -> Lake:
        """Segments 0 to `loads` - 1 of `size` rows each, made by TableIngests of ours; row ids
        go from 0."""
        by = "spark" if self._spark_works else "quick"
        template = self._templates / f"{loads}x{size}-{by}"
        if not template.exists():
            maker = Lakes(
                self._spark, self._templates / "new", self._templates,
                spark_works=self._spark_works,
            )  # fmt: skip
            lake = maker.empty()
            for number in range(loads):
                lake.load(batch(number, size))
            shutil.move(lake.path, template)
            shutil.rmtree(lake.sources)
        self._made += 1
        path = self._root / f"lake-{self._made}"
        shutil.copytree(template, path)
        return self._lake(path)

    def foreign(self, loads: int, *, size: int = 10,
                properties: Mapping[str, str] = DELETION_VECTORS) -> Lake:  # fmt: skip
        """The same rows, appended by deltalake: one foreign segment a load."""
        lake = self.empty(properties=properties)
        for number in range(loads):
            lake.append(batch(number, size))
        lake.first_version = lake.version
        return lake

    def on_s3(self, server: S3Server) -> Lake:
        self._made += 1
        location = server.fresh_location()
        DeltaTable.create(
            location, model.SCHEMA, configuration=DELETION_VECTORS,
            storage_options=server.storage_options,
        )  # fmt: skip
        return Lake(
            location,
            self._spark,
            self._root / f"sources-{self._made}",
            server.open(location),
            options=server.options,
            foreign_options=server.storage_options,
            spark_reads=False,  # needs Hadoop's S3 jar, which we do not use
        )

    def _lake(self, path: Path, *, time: Mapping[str, Any] | None = None) -> Lake:
        location = path.as_uri()
        lake = Lake(
            location,
            self._spark,
            path.with_name(f"{path.name}-sources"),
            open_store(location),
            spark_reads=self._spark_reads,
            spark_works=self._spark_works,
            time=time,
        )
        lake.first_version = lake.version
        return lake


def batch(number: int, size: int = 10) -> Rows:
    """The rows of load `number`."""
    return model.rows(range(number * size, (number + 1) * size))


def loads(numbers: Iterable[int], size: int = 10) -> Rows:
    return model.join(*(batch(number, size) for number in numbers))
