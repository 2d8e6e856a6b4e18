"""Edits in the simulation: made by the engine itself, or by the driver of a job, of real Parquet;
one after the other, under names that come from the seed. Each is looked at when it is made.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from unittest.mock import patch

from simulator import rows
from simulator.invariants import Violation
from simulator.rows import Row
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call
from tandem.delta.datafiles.edited_files import EditedFile
from tandem.errors import StorageError
from tandem.operations.kinds import rewrite
from tandem.operations.machine.events import Event
from tandem.operations.session import carry_out
from tandem.spark.jobs import edits
from tandem.spark.jobs.edits import EditMaker, WantedEdit

if TYPE_CHECKING:
    from simulator.world import World


@dataclass
class StrikeInEdits:
    """Strikes once, when `after` files of a round of edits are there: the process dies, or the
    store fails. `struck` says whether it came to that."""

    after: int
    dies: bool
    struck: bool = False

    def __call__(self, made: int) -> None:
        if made == self.after and not self.struck:
            self.struck = True
            if self.dies:
                raise ProcessDied(f"with {made} edits of a round")
            raise StorageError(f"the store fails with {made} edits of a round")


@dataclass
class SimulatedEdits:
    """`made` are the edits by their path. `by_job`: drivers of jobs make them, as if all files
    were large. `strike` is asked before each file of a round, with the number of those before."""

    world: World
    by_job: bool = False
    made: dict[str, WantedEdit] = field(default_factory=dict)
    strike: Callable[[int], None] = lambda _: None
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.world.seed + 2)

    @contextmanager
    def here(self) -> Iterator[None]:
        """While the engine or a job performs something, in which it may make edits."""
        make = EditMaker.make

        def watched(maker: EditMaker, wanted: Sequence[WantedEdit]) -> list[EditedFile]:
            return self._make(maker, wanted, make)

        with ExitStack() as stack:
            for place, name, value in (
                (edits, "AT_ONCE", 1),
                (EditMaker, "make", watched),
                (uuid, "uuid4", lambda: uuid.UUID(int=self.rng.getrandbits(128), version=4)),
                (time, "time_ns", lambda: self.world.clock.now * 1_000_000),
                *(
                    ((carry_out, "MOST_HERE", 0), (rewrite, "SMALL_BYTES", 0))
                    if self.by_job
                    else ()
                ),
            ):
                stack.enter_context(patch.object(place, name, value))
            yield

    def perform(self, call: Callable[[], Event]) -> Event:
        """An effect of the engine."""
        with self.here():
            return call()

    def _make(
        self,
        maker: EditMaker,
        wanted: Sequence[WantedEdit],
        make: Callable[[EditMaker, Sequence[WantedEdit]], list[EditedFile]],
    ) -> list[EditedFile]:
        begun = set[str]()

        def on_call(call: Call) -> None:
            if call.name in ("open_output", "put") and call.path.startswith(f"{maker.prefix}/"):
                if call.when == "before":
                    self.strike(len(begun))
                begun.add(call.path)

        store = self.world.store
        with patch.object(store, "fault", on_call):
            found = make(maker, wanted)
        for each, file in zip(wanted, found, strict=True):
            self.check(each, file.file.path)
            self.made[file.file.path] = each
        self.world.say(f"    edits {[f'{e.source.logged_path} {[*e.drops]}' for e in wanted]}")
        return found

    def check(self, wanted: WantedEdit, path: str) -> None:
        """R-1; and R-3: it starts from a file of the job, or from a live one. Raises: Violation."""
        source = wanted.source.logged_path
        if source in self.made and source.partition("/")[0] == path.partition("/")[0]:
            raise Violation(f"R-3: {path} is an edit of {source}, an edit of its own attempt")
        found = rows.read(self.world.store, path, wanted.source.partition_values)
        expected = self._rows(wanted)
        if found != expected:
            raise Violation(f"R-1: {path} has {found}, expected {expected}")

    def _rows(self, wanted: WantedEdit) -> list[Row]:
        """By a model that is slow and obvious."""
        store, source = self.world.store, wanted.source
        found = rows.read(store, source.logged_path, source.partition_values)
        for new in wanted.new:
            values = rows.read(store, new.values.logged_path, new.values.partition_values)
            for position, row in zip(new.positions.tolist(), new.rows.tolist(), strict=True):
                found[position] = values[row]
        return [row for position, row in enumerate(found) if position not in wanted.drops]
