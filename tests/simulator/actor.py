"""One operation in a simulated world: its processes, which die, stall and come back."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field, replace
from typing import Any

from simulator import rows
from simulator.catalog import Struck
from simulator.world import LOCATION, World
from support.documents import document
from support.lake.faults import Call, Fault, ProcessDied, strike
from support.lake.memory_catalog import CatalogCall
from tandem.operations.execute import ExecutionOptions, open_session
from tandem.operations.machine.events import Effect, Ending, Event
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.registry import table_of
from tandem.operations.session.session import Session
from tandem.spec.compaction import Spanning
from tandem.spec.loader import parse
from tandem.spec.resources import LakeTable, Operation, TableCompaction, TableReplace

MOST_FAULTS = 3
"""An operation that is struck more often would not end within its backoff limit."""


@dataclass
class Process:
    """A process that drives an operation. `stalled`: it does nothing for now, and no process can
    know whether it lives."""

    pid: int
    session: Session
    stalled: bool = False


@dataclass
class Actor:
    """An operation, and the processes that drive it: one, and zombies of earlier ones."""

    world: World
    table: Table
    resource: Operation
    faults: float = 0.0
    process: Process | None = None
    zombies: list[Process] = field(default_factory=list)
    ended: Ending | None = None
    struck: int = 0
    operation_id: str = ""
    log_version: int = -1
    """The newest instant that was acknowledged when it began."""

    @property
    def on_log(self) -> bool:
        return self.target is not self.table

    @property
    def target(self) -> Table:
        """What it works on: the table, or its log."""
        return table_of(self.resource, self.table)

    @property
    def name(self) -> str:
        return self.resource.id

    def start(self) -> None:
        """Start a process for it, the first or another."""
        ports = self.world.ports()
        pid = ports.processes.me().pid
        session = self._open(ports)
        if not self.operation_id and self.world.merge_log is not None:
            self.log_version = self.world.merge_log.version
        self.operation_id = session.identity.operation_id
        self.world.sessions[self.operation_id] += 1
        self.process = Process(pid, session)
        self.world.say(f"{self.name}: process {pid} starts")

    def _open(self, ports: Ports) -> Session:
        return open_session(
            self.resource,
            as_opened(self.table, self.resource),
            ports,
            ExecutionOptions(poll_ms=1, lock_wait_s=0, interceptor=self._interceptor),
        )

    def open_again(self) -> Session:
        """What a later `tandem run` of the same file does, without faults."""
        self.faults = 0
        return self._open(self.world.ports())

    def advance(self) -> None:
        assert self.process is not None
        self._advance(self.process)
        if self.process is not None and self.process.session.ending is not None:
            ending = self.process.session.ending
            if not ending.elsewhere:
                self.ended = ending
            self.world.living.discard(self.process.pid)
            self.world.departed.add(self.process.pid)
            self.world.lose(self.process.pid)
            self.world.say(f"{self.name}: ends {ending.phase} ({ending.reason})")
            self.process = None

    def advance_zombie(self, zombie: Process) -> None:
        self._advance(zombie)
        if zombie.session.ending is not None and zombie in self.zombies:
            ending = zombie.session.ending
            self.zombies.remove(zombie)
            self.world.departed.add(zombie.pid)
            self.world.lose(zombie.pid)
            self.world.say(
                f"{self.name}: zombie {zombie.pid} ends {ending.phase} ({ending.reason})"
            )

    def _advance(self, process: Process) -> None:
        effect = process.session.next_effect
        try:
            process.session.advance()
        except ProcessDied as died:
            self._die(process, str(died))
            return
        state = process.session.state
        if effect is not None and effect.point not in _QUIET and not state.locks.blockers:
            self.world.say(f"{self.name} [{process.pid}]: {effect} → {state.phase}")

    def _die(self, process: Process, how: str) -> None:
        world = self.world
        world.living.discard(process.pid)
        world.say(f"{self.name} [{process.pid}]: DIES {how}")
        if process in self.zombies:
            self.zombies.remove(process)
        else:
            self.process = None
        world.lose(process.pid)
        if world.rng.random() < 0.5:
            for name, drivers in world.jobs.drivers.items():
                if self.operation_id in name:
                    for driver in drivers:
                        world.jobs.die(driver)

    def stall(self) -> None:
        """The process stops for a while, and is taken for dead (Z1)."""
        assert self.process is not None
        self.world.say(f"{self.name} [{self.process.pid}]: stalls")
        self.world.living.discard(self.process.pid)
        self.zombies.append(self.process)
        self.process = None

    def _interceptor(self, effect: Effect, call: Call) -> Event:
        rng = self.world.rng
        fault = None
        if self.struck < MOST_FAULTS and rng.random() < self.faults:
            fault = rng.choice(list(Fault))
            self.struck += 1
            self.world.say(f"{self.name}: {fault} {effect}")

        def perform() -> Event:
            return self.world.edits.perform(call)

        catalog = self.world.catalog
        if catalog is None:
            return strike(fault, effect, perform)
        return strike(fault, effect, lambda: catalog.perform(self._strike_catalog, perform))

    def _strike_catalog(self, call: CatalogCall) -> None:
        """Reads of the catalog are struck less often than effects, what is written more often."""
        world = self.world
        often = self.faults * (0.3 if call.name == "load" else 5)
        if self.struck >= MOST_FAULTS or world.rng.random() >= often:
            return
        assert world.catalog is not None
        struck = world.rng.choice(list(Struck))
        self.struck += 1
        world.say(f"{self.name}: {struck} {call.name}")
        if not world.catalog.strike(struck, call):
            self.struck -= 1


_QUIET = frozenset({"PollJob", "AwaitLocks"})


ALL = (None, ("all",))
TIMED = parse(document("LakeTable", "simulated", {"location": LOCATION, "time": {"column": "t"}}))


def as_opened(table: Table, resource: Operation) -> Table:
    """The table of an operation: one that cuts, or replaces a day, finds a LakeTable with a time
    column."""
    cuts = (
        isinstance(resource, TableCompaction)
        and resource.spec.semi_major_options.spanning is Spanning.CUT
    )
    of_day = isinstance(resource, TableReplace) and resource.spec.replace.intervals not in ALL
    if not cuts and not of_day:
        return table
    assert isinstance(TIMED, LakeTable)
    return replace(table, spec=TIMED)


def day(key: int) -> str:
    """The interval of the rows with this `k`."""
    return (rows.FIRST_DAY + dt.timedelta(key)).isoformat()


def cut(name: str, key: int) -> Operation:
    """A compaction that takes the rows of one day from every file."""
    options = {"chunks": [day(key)], "spanning": "Cut"}
    return operation("TableCompaction", name, {"type": "SemiMajor", "semiMajor": options})


def in_batches(resource: Operation, world: World) -> Operation:
    """The same compaction, with a commit for each bin of about two files."""
    small = {"target_file_size": 2 * world.file_bytes, "max_bytes_per_commit": 1}
    spec = resource.spec.model_copy(update=small)
    return resource.model_copy(update={"spec": spec})


def operation(kind: str, name: str, spec: dict[str, Any]) -> Operation:
    """A resource as `tandem run` would load it."""
    found = parse(
        document(kind, name, {"tableRef": {"name": "simulated"}, "backoffLimit": 30, **spec})
    )
    assert isinstance(found, Operation)
    return found
