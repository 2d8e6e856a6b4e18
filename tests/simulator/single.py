"""A world with one operation and a scheduler that only goes on: for tests of single crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simulator.actor import as_opened, cut, day, in_batches, operation
from simulator.checker import LOG, Checker
from simulator.foreign_mix import BY_NAME
from simulator.jobs import INGEST_ROWS
from simulator.merge_log import Appender, log_event, some_keys
from simulator.statements import MERGES
from simulator.world import Vectors, World
from support.cases import APPENDS, JOBLESS, ON_LOG
from support.lake.faults import Call, ProcessDied
from support.present import present
from tandem.errors import Reason
from tandem.operations import attempt_files
from tandem.operations.execute import ExecutionOptions, open_session
from tandem.operations.kinds.batches import batch_resource, load
from tandem.operations.machine.events import Effect, Ending, Event, Point
from tandem.operations.model import Table
from tandem.operations.registry import table_of
from tandem.operations.rounds import NoSmallRounds
from tandem.operations.session.options import Interceptor, passthrough
from tandem.operations.session.session import Session
from tandem.spec.common import Mode
from tandem.spec.resources import Operation, TableCompaction, spec_hash
from tandem.timeline.segments import segment_name

SERIALIZABLE = "serializable"
"""An update that is evaluated again, in another round, on rows that come in between."""
CUT = "cut"
"""A compaction that takes the rows of one day out of each file: another commit of one kind."""
REPLACE_DAY, DROP_DAY = STRADDLING = ("replace of a day", "drop of a day")
"""Of a day of which every file may have rows: their jobs read the times of all files."""
DAY = 2
UPSERT, DELETE_KEYS, INGEST_BY_KEY = APPENDS
EXCLUSIVE = "exclusive"
"""A compaction that yields to a commit beside it, and is done again."""
BATCHES = "batches"
"""A compaction that is committed in batches: the operations that come before it, and itself."""
BATCH_COUNT = 3
OFF = ", vectors off"
"""Of a kind that is done to a table without deletion vectors."""
BY_JOB = ", edited by its job"
"""The same, where the driver of the job makes the edits."""
MOST_YIELDS = 2
MOST_STEPS = 2_000
BATCH = "file:///batches/0.csv"
"""Where the rows are that an operation appends."""
ALL = {"intervals": ["all"]}
RECORDS = "file:///records/0.csv"
"""Where those are that it appends to a log."""


class Single:
    """Six loads, or two and three blocks of a log; and one operation of a kind. Foreign commits
    may be made in between."""

    def __init__(
        self, kind: str, *, seed: int = 7, vectors: Vectors | None = None, managed: bool = False
    ) -> None:
        self.kind = kind
        kind, comma, how = kind.partition(", ")
        vectors = vectors or (Vectors.OFF if how else Vectors.ON)
        self.world = World(
            seed, vectors, merge_on_read=kind in (*ON_LOG, *APPENDS), managed=managed
        )
        self.world.edits.by_job = f"{comma}{how}" == BY_JOB
        self.checker = Checker(self.world)
        self.merge = MERGES[0]
        self.base = Table(self.world.store, self.world.log, "LakeTable/simulated")
        for _ in range(6 if self.world.merge_log is None else 2):
            self._foreign("append")
        for _ in range(0 if self.world.merge_log is None else 3):
            self._append_to_log()
        self.checker.catch_up()
        self.job_count = 0 if kind in JOBLESS else BATCH_COUNT if kind == BATCHES else 1
        self.resource = MAKERS[kind](self)
        self.table = table_of(self.resource, self.base)
        """What the operation works on: the table, or its log."""
        self.operation_id = operation_id_of(self.resource)
        if kind == "merge":
            self.checker.merges[self.operation_id] = self.merge
        if kind == SERIALIZABLE:
            self.checker.serializable.add(self.operation_id)
        if kind in STRADDLING:
            self.checker.days[self.operation_id] = DAY
        if kind == EXCLUSIVE:
            self.checker.exclusive[self.operation_id] = MOST_YIELDS
        if kind in APPENDS:
            self.checker.upserts[self.operation_id] = self.world.jobs.upserts[RECORDS]
        elif self.resource.mode in (Mode.APPEND, Mode.REPLACE):
            self.checker.batches[self.operation_id] = self.world.jobs.batches.get(BATCH, [])

    @property
    def operation_ids(self) -> tuple[str, ...]:
        """That of the operation, and those of the batches before it."""
        record = load(self.table.store, self.operation_id)
        if record is None:
            return (self.operation_id,)
        assert isinstance(self.resource, TableCompaction)
        batches = (
            batch_resource(self.resource, self.operation_id, record, number)
            for number in range(1, len(record.batches))
        )
        return (*map(operation_id_of, batches), self.operation_id)

    def foreign(self, name: str) -> None:
        """Another system commits, e.g. `append` or `delete_with_vectors`."""
        self._foreign(name)
        self.checker.catch_up()

    def _foreign(self, name: str) -> None:
        if name == "delete_with_vectors" and not self.world.writes_vectors:
            name = "delete_some_by_rewrite"
        committed = BY_NAME[name](self.world)
        if committed is not None:
            self.checker.intents[committed[0]] = committed[1]

    def _append_to_log(self) -> None:
        """A writer appends a block."""
        assert self.world.merge_log is not None
        Appender.random(self.world.merge_log).run()

    def beside(self, name: str) -> None:
        """Another writer commits to what the operation works on."""
        if self.on_log:
            self._append_to_log()
        else:
            self._foreign(name)
        self.checker.catch_up()

    @property
    def on_log(self) -> bool:
        return self.table is not self.base

    @property
    def version(self) -> int:
        """The newest one of what the operation works on."""
        return self.checker.log_version if self.on_log else self.checker.version

    def limit(self, **fields: int) -> None:
        """Set fields of the operation's spec, such as `backoff_limit`."""
        spec = self.resource.spec.model_copy(update=fields)
        self.resource = self.resource.model_copy(update={"spec": spec})

    def session(
        self,
        interceptor: Interceptor = passthrough,
        *,
        again: bool = False,
        started_ms: int | None = None,
        resource: Operation | None = None,
    ) -> Session:
        """A new process for the operation, or for another one."""
        resource = resource or self.resource

        def perform(effect: Effect, call: Call) -> Event:
            return interceptor(effect, lambda: self.world.edits.perform(call))

        drive = ExecutionOptions(poll_ms=1, lock_wait_s=0, interceptor=perform, again=again)
        # Every round is the job's, so that operations reach all points.
        ports = replace(self.world.ports(), small_rounds=NoSmallRounds)
        base = as_opened(self.base, resource)
        found = open_session(resource, base, ports, drive, started_ms=started_ms)
        self.world.sessions[found.identity.operation_id] += 1
        return found

    def run(
        self,
        interceptor: Interceptor = passthrough,
        *,
        again: bool = False,
        jobs_live_on: bool = False,
    ) -> Ending | None:
        """Run a process to its end; None if it died. Jobs of a dead process die with it, or as
        in a cluster live on."""
        session = self.session(interceptor, again=again)
        try:
            return self.drive(session)
        except ProcessDied:
            self.world.living.clear()
            for pid in list(self.world.held):
                self.world.lose(pid)
            for operation_id in self.operation_ids:
                self.world.locks.expire(self.table.location, operation_id)
            for driver in self.world.jobs.running():
                if not jobs_live_on:
                    self.world.jobs.die(driver)
            return None
        finally:
            self.checker.catch_up()

    def end(
        self, interceptor: Interceptor = passthrough, *, again: bool = False,
        jobs_live_on: bool = False,
    ) -> Ending:  # fmt: skip
        """The same of one that does not die."""
        return present(self.run(interceptor, again=again, jobs_live_on=jobs_live_on))

    def die(self, interceptor: Interceptor = passthrough, *, jobs_live_on: bool = False) -> None:
        """The same of one that dies."""
        assert self.run(interceptor, jobs_live_on=jobs_live_on) is None

    def until(self, session: Session, point: Point) -> Effect:
        """Advance it, and every job, until this point is next."""
        while True:
            effect = present(session.next_effect)
            if effect.point is point:
                return effect
            session.advance()
            for driver in self.world.jobs.running():
                self.world.jobs.advance(driver)

    def at(self, point: Point, interceptor: Interceptor = passthrough) -> Session:
        """A process that stands still before this point."""
        session = self.session(interceptor)
        self.until(session, point)
        return session

    def succeed(self, session: Session | None = None, *, attempt: int = 0) -> Ending:
        """The session, or another process, ends with a commit, of this attempt if one is given."""
        ending = self.end() if session is None else self.drive(session)
        assert ending.reason is Reason.COMMITTED, ending
        assert attempt in (0, ending.attempt), ending
        return ending

    def drive(self, session: Session) -> Ending:
        for _ in range(MOST_STEPS):
            if not session.advance():
                assert session.ending is not None
                return session.ending
            self.checker.catch_up()
            for driver in self.world.jobs.running():
                self.world.jobs.advance(driver)
        raise AssertionError(f"it hangs at {session.next_effect}")

    def alternate(self, *sessions: Session) -> None:
        """Take turns until all have ended; jobs go on after each round."""
        going = list(sessions)
        for _ in range(MOST_STEPS):
            going = [session for session in going if session.advance()]
            self.checker.catch_up()
            for driver in self.world.jobs.running():
                self.world.jobs.advance(driver)
            if not going:
                return
        raise AssertionError("a session does not end")

    @property
    def commits(self) -> int:
        """How often the operation committed."""
        return 1 if self.operation_id in self.checker.succeeded else 0

    def files_left(self) -> list[str]:
        """Files of its attempts that no version ever named."""
        root = LOG if self.on_log else ""
        starts = tuple(f"{root}{operation_id}-" for operation_id in self.operation_ids)
        own = [p for p in self.world.store.paths() if p.startswith(starts)]
        return [p for p in own if p not in self.checker.named]

    def records(self, *, deletes: bool = False) -> dict[str, str]:
        """A source of records for the log."""
        log = present(self.world.merge_log)
        keys = some_keys(self.world)
        self.world.jobs.upserts[RECORDS] = tuple(
            log_event(log, key, deletes=deletes) for key in keys
        )
        return {"format": "Csv", "location": RECORDS}

    def batch(self) -> str:
        """The location of new rows to append."""
        self.world.jobs.batches[BATCH] = self.world.new_rows(INGEST_ROWS)
        return BATCH


def operation_id_of(resource: Operation) -> str:
    """That of its first run."""
    return attempt_files.operation_id(
        resource.namespace, resource.kind_name, resource.name, spec_hash(resource)
    )


def _compaction(name: str, layout: dict[str, Any] | None = None) -> Operation:
    spec = {"type": "Major"} if layout is None else {"type": "Major", "layout": layout}
    return operation("TableCompaction", name, spec)


def _exclusive() -> Operation:
    how = {"maxYields": MOST_YIELDS, "backoff": "1s"}
    spec = {"type": "Major", "lockMode": "Exclusive", "exclusive": how}
    return operation("TableCompaction", EXCLUSIVE, spec)


def _segment_rewrite(single: Single) -> Operation:
    first = sorted(single.world.log.snapshot().adds(), key=lambda add: add.logged_path)[:2]
    spec = {
        "segments": [segment_name(add) for add in first],
        "rewrite": {"recompress": {"codec": "zstd"}},
    }
    return operation("SegmentRewrite", "rewrite", spec)


def _ingest(single: Single) -> Operation:
    source = {"format": "Csv", "location": single.batch()}
    return operation("TableIngest", "ingest", {"source": source})


def _replace(single: Single) -> Operation:
    source = {"format": "Csv", "location": single.batch()}
    return operation("TableReplace", "replace", {"replace": ALL, "source": source})


def _drop(_single: Single) -> Operation:
    return operation("TableReplace", "drop", {"replace": ALL, "scope": "AtCommit"})


def _replace_day(single: Single) -> Operation:
    source = {"format": "Csv", "location": single.batch()}
    spec = {"replace": {"intervals": [day(DAY)]}, "source": source}
    return operation("TableReplace", "replace-day", spec)


def _drop_day(_single: Single) -> Operation:
    spec = {"replace": {"intervals": [day(DAY)]}, "scope": "AtCommit"}
    return operation("TableReplace", "drop-day", spec)


def _merge(single: Single) -> Operation:
    single.merge = MERGES[0].sourced(single.world.new_rows(2))
    location = "file:///sources/0.csv"
    single.world.jobs.merges[location] = single.merge
    source = {"format": "Csv", "location": location}
    what = {"merge": {"source": source, "on": "t.k = s.k", **single.merge.clauses}}
    return operation("TableUpdate", "merge", what)


def _update(name: str, **more: str) -> Operation:
    what = {"where": "v < 40", "set": {"v": "v + 7"}}
    return operation("TableUpdate", name, {"update": what, **more})


def _append(name: str, what: dict[str, Any]) -> Operation:
    return operation("TableUpdate", name, what)


def _delete(_single: Single) -> Operation:
    return operation("TableUpdate", "delete", {"delete": {"where": "k = 2"}})


MAKERS: Final[dict[str, Callable[[Single], Operation]]] = {
    "compaction": lambda _: _compaction("compact"),
    "sort": lambda _: _compaction("sort", {"strategy": "Sort", "columns": ["v"]}),
    "z-order": lambda _: _compaction("z-order", {"strategy": "ZOrder", "columns": ["v", "rid"]}),
    BATCHES: lambda single: in_batches(_compaction(BATCHES), single.world),
    EXCLUSIVE: lambda _: _exclusive(),
    CUT: lambda _: cut("cut", 0),
    "log merge": lambda _: operation("TableCompaction", "log-merge", {"type": "LogMerge"}),
    "log compaction": lambda _: operation("LogCompaction", "stitch", {"strategy": "AllBlocks"}),
    "segment rewrite": _segment_rewrite,
    "ingest": _ingest,
    "merge": _merge,
    "replace": _replace,
    "drop": _drop,
    REPLACE_DAY: _replace_day,
    DROP_DAY: _drop_day,
    "update": lambda _: _update("update"),
    UPSERT: lambda single: _append(UPSERT, {"upsert": {"source": single.records()}}),
    DELETE_KEYS: lambda single: _append(
        "delete-keys", {"deleteKeys": {"source": single.records(deletes=True)}}
    ),
    INGEST_BY_KEY: lambda single: operation(
        "TableIngest", "ingest-by-key", {"source": single.records()}
    ),
    SERIALIZABLE: lambda _: _update(SERIALIZABLE, isolation="Serializable"),
    "delete": _delete,
}
"""How each case is made."""

EDITING: Final = (
    *(
        f"{kind}{OFF}"
        for kind in (
            "compaction",
            "sort",
            "segment rewrite",
            BATCHES,
            CUT,
            "update",
            "delete",
            "merge",
            SERIALIZABLE,
            *STRADDLING,
            "log merge",
        )
    ),
    *(f"{kind}{BY_JOB}" for kind in ("compaction", "sort", "update", "merge")),
)
"""Those that make edits: some always, others if their files change meanwhile."""
