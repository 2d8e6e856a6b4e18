"""One cell of the W matrix: an operation of ours, a foreign action, an order; then a look.

The rows afterwards must be those of a serial order of what succeeded, by three readers: Tandem,
`DeltaTable.scan()` of deltalake, Spark + Delta. Then our next operations must work. What was
met on the way is an `Outcome`, which `docs/compatibility.md` is made of.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from urllib.parse import unquote

from support.foreign.calls import Refused
from support.foreign.process import Engine
from support.jobs.quick_lake import just_before
from support.lake.lake import Lake, reason
from support.matrix.foreign import CONFLICT, FOREIGN, Foreign, Step
from support.matrix.ours import LOG_MERGE, NEXT, OURS, REFUSED_WITH_TRACKING, Ours
from support.matrix.row_ids import RowIds
from support.matrix.rows import COLUMNS, Model, Rows, columns_of, difference
from support.matrix.tables import (
    MADE_BY_SPARK,
    MatrixTables,
    add_unknown_feature,
    age_the_log,
    quickly,
)
from tandem.delta.actions import Protocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.protocol import writes_deletion_vectors
from tandem.delta.scan import scan
from tandem.errors import BaseHistoryGap, UnsupportedFeature
from tandem.mergelog import MergedView
from tandem.mergelog.log_table import MergeLog
from tandem.operations.machine.events import Point
from tandem.operations.ports import Ports
from tandem.spec.status import OperationStatus, Phase

ALL_ON_SPARK = os.environ.get("TANDEM_MATRIX_JOBS") == "spark"


class Order(StrEnum):
    FOREIGN_FIRST = "foreign first"
    OURS_FIRST = "ours first"


@dataclass(frozen=True)
class Cell:
    ours: str
    foreign: str
    order: Order
    vectors: bool = True
    tracking: bool = False

    def __str__(self) -> str:
        half = "" if self.vectors else ", vectors off"
        half += ", row tracking" if self.tracking else ""
        return f"{self.foreign}, {self.ours}, {self.order}{half}".replace(" ", "-")


@dataclass(frozen=True)
class Outcome:
    """`vectors`, `tracking`: "on" or "off" in the table that the cell begins with. `began` says
    where the foreign one stood when ours committed: "before" it had read the table, "after" it had
    not begun.
    `rows`: the serial order that the rows are of."""

    ours: str
    foreign: str
    order: str
    vectors: str
    tracking: str
    began: str
    our_end: str
    foreign_end: str
    rows: str
    next: str

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def cells() -> Iterator[Cell]:
    """All of them: on tables with deletion vectors, then on tables without; then the same with row
    tracking, but for operations that are refused there."""
    for tracking in (False, True):
        for vectors in (True, False):
            for name, foreign in FOREIGN.items():
                if vectors not in foreign.on or tracking not in foreign.tracking:
                    continue
                for ours in OURS:
                    if tracking and (ours, vectors) in REFUSED_WITH_TRACKING:
                        continue
                    for order in Order:
                        yield Cell(ours, name, order, vectors, tracking)


def needs_spark(cell: Cell) -> bool:
    """Whether Spark + Delta writes: the action, or the table that it is done to."""
    foreign = FOREIGN[cell.foreign]
    return foreign.engine == "spark" or foreign.shape in MADE_BY_SPARK or cell.tracking


@dataclass(frozen=True)
class Stage:
    """Where cells are played: tables, and the engines beside us."""

    tables: MatrixTables
    deltalake: Engine
    spark: Engine

    def play(self, cell: Cell) -> Outcome:
        """Raises: AssertionError if a row is lost, doubled or resurrected, if we are refused
        where nothing says so, or if our next operation does not work."""
        return _Play(self, cell).outcome()


class _Play:
    def __init__(self, stage: Stage, cell: Cell) -> None:
        self.stage, self.cell = stage, cell
        self.foreign: Foreign = FOREIGN[cell.foreign]
        self.ours: Ours = OURS[cell.ours]
        by_k = self.ours.partitioned
        self.lake: Lake = stage.tables.fresh(
            self.foreign.shape, partitioned=by_k, vectors=cell.vectors, tracking=cell.tracking
        )
        self.row_ids = RowIds(self.lake, stage.spark) if cell.tracking else None
        self.handle = uuid.uuid4().hex[:12]
        self.refused: list[str] = []
        self.done_by_foreign = False
        self.pending = False

    def outcome(self) -> Outcome:
        for step in self.foreign.prepare:
            self._open()
            self._perform(step)
        start = self.foreign.prepared(self.stage.tables.start(self.foreign.shape))
        if self.ours.prepare is not None:
            try:
                self.ours.prepare(self.lake)
            except UnsupportedFeature:
                return self._unprepared(start)
        self._open()
        self._look(ours=True)
        if self.cell.order is Order.FOREIGN_FIRST:
            done = self._foreign_first()
        else:
            done = self._ours_first()
        began = "before" if self._stale() else "after"
        if self._removed_files():
            self._assert_legal(done)
            return self._outcome(began, self._our_end(done), "removed live files", "nothing")
        rows, now = self._judge(start, done)
        after = self._next_ones(now)
        assert written_wrongly(self.lake.log) == [], self.cell
        assert self.row_ids is None or self.row_ids.wrong == [], self.cell
        return self._outcome(began, self._our_end(done), rows, after)

    def _look(self, *, ours: bool) -> None:
        """At row ids."""
        if self.row_ids is not None:
            self.row_ids.look(ours=ours)

    def _outcome(self, began: str, our_end: str, rows: str, after: str) -> Outcome:
        return Outcome(
            self.cell.ours,
            self.cell.foreign,
            self.cell.order.value,
            "on" if self.cell.vectors else "off",
            "on" if self.cell.tracking else "off",
            began,
            our_end,
            self._foreign_end(),
            rows,
            after,
        )

    def _unprepared(self, start: Rows) -> Outcome:
        """The table cannot have what our operation needs: only the foreign action takes place."""
        assert self.foreign.refuses.get(self.cell.ours) == UnsupportedFeature.reason
        self._open()
        self._act()
        rows = self.foreign.model(start)
        assert difference(self._found(), rows) == "", f"{self.cell}: the foreign action alone"
        refused = f"refused: {UnsupportedFeature.reason}"
        return self._outcome("after", refused, "foreign alone", self._next_ones(rows))

    # The two orders

    def _foreign_first(self) -> OperationStatus:
        """Just before our commit is decided, or put: which, is spread evenly over the cells."""
        even = sum(map(ord, str(self.cell))) % 2 == 0
        point = Point.READ_RESULT if even else Point.PUT_COMMIT
        interceptor = just_before(point, self._act)
        ports = self._ports(self.ours)
        done = self.lake.run(self.ours.make(self.lake), interceptor=interceptor, ports=ports)
        if not self.done_by_foreign and not self.refused:
            self._act()  # ours was refused before it came so far
        self._look(ours=True)
        return done

    def _ours_first(self) -> OperationStatus:
        if self.foreign.gated:
            self._begin()
        done = self.lake.run(self.ours.make(self.lake), ports=self._ports(self.ours))
        self._look(ours=True)
        self._act()
        if not self.done_by_foreign:
            self._open()
            self._act()  # its next try reads what is there
        return done

    def _stale(self) -> bool:
        """Whether the foreign one had begun when ours committed."""
        if self.cell.order is Order.FOREIGN_FIRST:
            return False
        return self.foreign.engine == "deltalake" or self.foreign.gated

    # The foreign one

    def _open(self) -> None:
        self.stage.deltalake.call("open", table=self.handle, location=self.lake.location)

    def _begin(self) -> None:
        [step] = self.foreign.steps
        gate = self._gate()
        text = self._sql(step, f"gate(id, '{gate}')")
        self.stage.spark.call("begin", statement=self.handle, text=text, gate=gate)
        self.pending = True

    def _act(self) -> None:
        try:
            for step in self.foreign.steps:
                self._perform(step)
        except Refused as error:
            self.refused.append(error.name)
        else:
            self.done_by_foreign = True
        self._look(ours=False)

    def _perform(self, step: Step) -> None:
        if step.engine == "harness":
            self._meddle(step.what)
        elif step.engine == "spark":
            if self.pending:
                self.pending = False
                self.stage.spark.call("let_go", statement=self.handle)
            else:
                self.stage.spark.call("sql", text=self._sql(step, "TRUE"))
        else:
            arguments = {
                name: self.lake.first_version if value == "FIRST" else value
                for name, value in step.arguments.items()
            }
            self.stage.deltalake.call("act", table=self.handle, what=step.what, arguments=arguments)

    def _meddle(self, what: str) -> None:
        match what:
            case "open again":
                self._open()
            case "age the log":
                age_the_log(self.lake.path)
            case "add an unknown feature":
                add_unknown_feature(self.lake.path)
            case "nothing":
                return
            case _:
                raise ValueError(what)

    def _gate(self) -> str:
        return str(self.lake.path.with_name(f"{self.lake.path.name}-gate"))

    def _sql(self, step: Step, gate: str) -> str:
        first = self.lake.first_version
        return step.what.format(table=self.lake.sql_name, gate=gate, first=first)

    # What came of it

    def _removed_files(self) -> bool:
        """Whether a vacuum without retention took files that the latest version names: only
        one that had looked before our commit may."""
        if not (self.foreign.removes_files and self._stale()):
            return False
        adds = self.lake.log.snapshot().adds()
        return not all((self.lake.path / unquote(add.path)).exists() for add in adds)

    def _judge(self, start: Rows, done: OperationStatus) -> tuple[str, Rows]:
        """Which serial order the rows are of, and the rows."""
        self._assert_legal(done)
        found = self._found()
        allowed = self._allowed(done)
        for name, model in allowed.items():
            if not difference(found, model(start)):
                rows = model(start)
                self._all_readers(rows)
                if self.ours.prepare is not None and done.phase is not Phase.FAILED:
                    assert self._view_differs(rows) == "", f"{self.cell}: the merged view"
                return name, rows
        name, model = next(iter(allowed.items()))
        raise AssertionError(
            f"{self.cell}: {done.phase}, {self._foreign_end()}; expected {name}: "
            f"{difference(found, model(start))}"
        )

    def _assert_legal(self, done: OperationStatus) -> None:
        named = self.foreign.refuses.get(self.cell.ours)
        conflicts = named == CONFLICT and self.cell.order is Order.FOREIGN_FIRST
        if done.phase is Phase.FAILED:
            assert reason(done) == named, f"{self.cell}: {done}"
            assert named != CONFLICT or conflicts, f"{self.cell}: {done}"
        else:
            assert done.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), f"{self.cell}: {done}"
            assert not conflicts, f"{self.cell}: {done}"

    def _computed(self, model: Model) -> Model:
        """With the table's generated column, which models do not know."""
        if self.foreign.shape != "generated":
            return model
        return lambda of: [{**row, "g": row["k"] * 2} for row in model(of)]

    def _allowed(self, done: OperationStatus) -> dict[str, Model]:
        """The rows that may be there, by what they mean."""
        ours, theirs = self._computed(self.ours.model), self.foreign.model
        if done.phase is Phase.FAILED:
            return {"foreign alone": theirs} if self.done_by_foreign else {"none": _same}
        if not self.done_by_foreign:
            return {"ours alone": ours}
        if self.cell.order is Order.FOREIGN_FIRST:
            if self.foreign.boundary and self.cell.ours == LOG_MERGE:
                return {"foreign alone": theirs}  # the records of the log are void
            orders: dict[str, Model] = {"foreign, ours": lambda of: ours(theirs(of))}
            if self.foreign.blind and not self.ours.serializable:
                orders["ours, foreign"] = lambda of: theirs(ours(of))
            return orders
        touched = self.ours.touches
        if self.foreign.stale_defect and touched is not None and not self.refused:
            # It must be just this: if deltalake mends it, the cell says so by failing.
            return {"its own defect": lambda of: [*theirs(of), *filter(touched, of)]}
        return {"ours, foreign": lambda of: theirs(ours(of))}

    def _found(self) -> Rows:
        """By Tandem."""
        found: Rows = scan(self.lake.log.snapshot(), self.lake.store).read_all().to_pylist()
        if self.foreign.shape == "identity":
            given = {row["n"] for row in found}
            assert len(given) == len(found), f"{self.cell}: {sorted(row['n'] for row in found)}"
            assert None not in given, self.cell
        return found

    def _view_differs(self, rows: Rows) -> str:
        """How the merged view differs from some rows."""
        try:
            found = MergedView.open(MergeLog(self.lake.log)).scan().read_all().to_pylist()
        except BaseHistoryGap as gap:
            return "" if self.foreign.loses_history else str(gap)
        return difference(found, rows)

    def _all_readers(self, rows: Rows) -> None:
        """deltalake and Spark + Delta: the same."""
        columns = columns_of(rows) or list(COLUMNS)
        if self.foreign.deltalake_reads:
            found = self.stage.deltalake.call("rows", location=self.lake.location, columns=columns)
            assert difference(found, rows) == "", f"{self.cell}: deltalake"
        found = self.stage.spark.call("rows", location=str(self.lake.path), columns=columns)
        assert difference(found, rows) == "", f"{self.cell}: Spark + Delta"
        if self.row_ids is not None:
            self.row_ids.judge()

    def _our_end(self, done: OperationStatus) -> str:
        if done.phase is Phase.FAILED:
            return f"refused: {reason(done)}"
        tries = f", attempt {done.attempt}" if done.attempt > 1 else ""
        return f"{done.phase.value.lower()}{tries}"

    def _foreign_end(self) -> str:
        tries = [f"refused: {name}" for name in self.refused]
        return ", then ".join([*tries, "committed"] if self.done_by_foreign else tries)

    # What comes after

    def _ports(self, ours: Ours) -> Ports:
        """Jobs without Spark wherever they can do the work: what is tested here is what becomes
        of it beside others. All on Spark: `TANDEM_MATRIX_JOBS=spark make matrix`."""
        partitioned = bool(self.lake.log.snapshot().metadata.partition_columns)
        given = self.foreign.shape == "identity"
        if ours.spark or ALL_ON_SPARK or ((partitioned or given) and ours.touches is None):
            # Jobs without Spark write updates of one partition, and give no identity values.
            return self.lake.ports()
        return quickly(self.lake)

    def _next_ones(self, rows: Rows) -> str:
        """Our next compaction and our next update."""
        ends = []
        for name, ours in NEXT.items():
            if self.cell.tracking and (name, self.cell.vectors) in REFUSED_WITH_TRACKING:
                continue
            done = self.lake.run(ours.make(self.lake), ports=self._ports(ours))
            self._look(ours=True)
            gap = self.foreign.loses_history and self.ours.prepare is not None
            if name in self.foreign.next_refused or (gap and reason(done) == "BaseHistoryGap"):
                assert reason(done) in _NAMED, f"{self.cell}: next {name}: {done}"
                ends.append(f"{name} refused: {reason(done)}")
                continue
            assert done.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), f"{self.cell}: {done}"
            rows = self._computed(ours.model)(rows)
        assert difference(self._found(), rows) == "", f"{self.cell}: after our next ones"
        if self.foreign.deltalake_reads:
            columns = columns_of(rows) or list(COLUMNS)
            found = self.stage.deltalake.call("rows", location=self.lake.location, columns=columns)
            assert difference(found, rows) == "", f"{self.cell}: deltalake, after our next ones"
        if not self.foreign.next_refused and self.lake.log.commit(0) is not None:
            self.lake.assert_clean()  # which needs the whole log
        return "; ".join(ends) or "ok"


_NAMED = frozenset({"UnsupportedFeature", "InvalidStatement", "BaseHistoryGap"})


def written_wrongly(log: DeltaLog) -> list[str]:
    """What no commit of ours may do: change the protocol, or add a deletion vector where the
    version before it has them off. Commits that the log no longer has are passed over."""
    wrong = []
    for version in range(1, log.latest_version() + 1):
        commit = log.commit(version)
        if commit is None or commit.info is None or "tandem" not in commit.info.body:
            continue
        wrong += [f"{version}: {each}" for each in commit.actions if isinstance(each, Protocol)]
        marked = [add.logged_path for add in commit.adds if add.deletion_vector is not None]
        if marked:
            before = log.snapshot(version - 1)
            if not writes_deletion_vectors(before.protocol, before.metadata):
                wrong += [f"{version}: a vector in {path}" for path in marked]
    return wrong


def _same(of: Rows) -> Rows:
    return of
