"""The log of a simulated merge-on-read table: appends in steps, and the serial model of both.

`mergelog.oracle` is the model. It is given the rows of each base version, and the records of each
instant; what readers see must be its view, after every commit and, at the end, at every version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from mergelog import oracle
from mergelog.oracle import Event
from simulator.invariants import Violation
from simulator.rows import Row
from tandem.delta.actions import AddFile, Txn
from tandem.delta.log.snapshot import commit_info
from tandem.errors import DataFileMissing, ObjectNotFound
from tandem.mergelog.base_history import BaseHistory, base_of
from tandem.mergelog.blocks import arrange, tagged, write_blocks
from tandem.mergelog.boundaries import transition
from tandem.mergelog.log_table import (
    LogSettings,
    MergeLog,
    block_format,
    ensure_log,
    put,
    settings_of,
    state_of,
)
from tandem.mergelog.versions import MERGED, WRITER, block_of, in_order
from tandem.mergelog.view import MergedView

if TYPE_CHECKING:
    from simulator.world import World

_FIELDS = ("rid", "k", "v")


@dataclass
class SimulatedLog:
    """`changes` has an entry for each base version, `appends` one for each instant."""

    world: World
    ordered: bool
    log: MergeLog = field(init=False)
    changes: list[oracle.Change] = field(default_factory=list)
    appends: list[oracle.Append] = field(default_factory=list)
    seen: tuple[int, int] = (-1, -1)
    writers: int = 0

    def __post_init__(self) -> None:
        self.log = MergeLog(self.world.log)
        settings = LogSettings(("rid",), "v" if self.ordered else "")
        ensure_log(self.log, settings, now_ms=self.world.clock.now_ms(), nonce="the log")

    @property
    def version(self) -> int:
        return self.log.log.latest_version()

    # The model

    def merged_up_to(self, actions: list[dict[str, object]]) -> int | None:
        """The mark that a commit of the base table records; None if it is no log merge."""
        app = MERGED + self.log.snapshot().metadata.id
        for action in actions:
            txn = action.get("txn")
            if isinstance(txn, dict) and txn["appId"] == app:
                return int(txn["version"])
        return None

    def appended(self, instant: int, base: int, events: tuple[Event, ...]) -> None:
        """An operation of ours has made an instant."""
        self.appends.append(oracle.Append(instant, base, events))
        self.world.say(f"  instant {instant}: {[*events]}")

    def unseen(self, version: int, upto: int) -> list[int]:
        """The instants up to one that are unmerged right before a base version, and not void: what
        a statement that committed it has not seen."""
        state = oracle.replay(self.changes[:version], self.appends, ordered=self.ordered)
        return [append.instant for append in state.pending if append.instant <= upto]

    def state(self) -> oracle.State:
        return oracle.replay(self.changes, self.appends, ordered=self.ordered)

    def merged(self, before: oracle.State, upto: int, rows: dict[int, Row]) -> dict[int, Row]:
        """What a merge makes of these rows of the base table."""
        model = [self.model_row(row) for row in rows.values()]
        state = oracle.State(model, before.pending, before.deleted)
        after = oracle.after(state, oracle.Merge(upto), (), ordered=self.ordered)
        return {row.key: _back(row) for row in after.rows}

    def model_row(self, row: Row) -> oracle.Row:
        return oracle.Row(row.rid, row.v if self.ordered else None, f"{row.k},{row.v}")

    # What readers see

    def check(self) -> None:
        """The newest versions of both. Raises Violation."""
        version = (self.world.log.latest_version(), self.version)
        if version == self.seen:
            return
        self.seen = version
        self._compare(None)
        self._check_intervals()

    def check_every_version(self) -> None:
        """I-37. Raises Violation."""
        for version in range(len(self.changes)):
            try:
                self._compare(version)
            except (DataFileMissing, ObjectNotFound):
                continue  # vacuumed

    def _compare(self, version: int | None) -> None:
        found = MergedView.open(self.log, version).scan(list(_FIELDS)).read_all()
        columns = [found[name].to_pylist() for name in _FIELDS]
        rows = Counter(Row(*values) for values in zip(*columns, strict=True))
        state = oracle.replay(self.changes, self.appends, ordered=self.ordered, upto=version)
        expected = Counter(_back(row) for row in oracle.view(state, ordered=self.ordered))
        if rows != expected:
            raise Violation(
                f"I-37, {version or self.seen}: missing {[*(expected - rows)]}, "
                f"too many {[*(rows - expected)]}"
            )

    def _check_intervals(self) -> None:
        """Blocks of one run have one interval; others are disjoint. Raises Violation."""
        blocks = in_order(state_of(self.log.snapshot()).live.values())
        for one, other in pairwise(blocks):
            if one.last >= other.first and (one.first, one.last) != (other.first, other.last):
                raise Violation(f"blocks overlap: {one} and {other}")


@dataclass
class Appender:
    """One append in the steps of `LogWriter.append`: look at both tables and upload, then commit.
    Others may act in between."""

    log: SimulatedLog
    events: tuple[Event, ...]
    done: bool = False

    @classmethod
    def random(cls, log: SimulatedLog) -> Appender:
        """Upserts and deletes of a few keys."""
        return cls(log, tuple(log_event(log, key) for key in some_keys(log.world)))

    def __post_init__(self) -> None:
        log = self.log
        log.writers += 1
        self._name = f"writer-{log.writers}"
        self._base = log.world.log.snapshot()
        self._snapshot = log.log.snapshot()
        self._adds: list[AddFile] | None = None

    def advance(self) -> None:
        """The next step; a commit that another writer was faster with is tried again."""
        if self._adds is None:
            self._adds = self._upload()
        else:
            self._commit()

    def run(self) -> None:
        """All steps."""
        while not self.done:
            self.advance()

    def _upload(self) -> list[AddFile]:
        settings = settings_of(self._snapshot)
        rows, deletes = tables_of(self.events, ordered=settings.ordered)
        return write_blocks(
            self.log.log.store,
            f"blocks/{self._name}",
            block_format(self._base, settings),
            arrange(self._base, settings, rows, deletes),
            task=0,
        )

    def _commit(self) -> None:
        log, world = self.log.log, self.log.world
        layout = self._base.metadata.schema_string
        self._snapshot = log.update(self._snapshot)
        if self._base.version < base_of(self._snapshot):
            self._base = world.log.update(self._base)
        if self._base.metadata.schema_string != layout:
            self._adds = None
            return
        assert self._adds is not None
        instant = self._snapshot.version + 1
        history = BaseHistory(log, self._snapshot)
        state = history.at(self._base.version)
        mine = {add.logged_path: tagged(add, instant, instant) for add in self._adds}
        live = dict(state.live) | {
            path: block_of(path, add.size, add.tags, add.partition_values, instant)
            for path, add in mine.items()
        }
        now = world.clock.now_ms()
        info = commit_info(
            "WRITE", {"mode": "Append"}, now_ms=now, previous=self._snapshot, blind_append=False
        )
        changes = transition(
            self._snapshot,
            type(state)(state.base_id, state.base, state.mark, live),
            lambda path: mine[path] if path in mine else history.restored(path),
            base=self._base,
            now_ms=now,
        )
        actions = [info, Txn(WRITER + self._name, 0, now), *changes]
        if put(log, instant, actions, f"{self._name}.{instant}"):
            self.log.appends.append(oracle.Append(instant, state.base, self.events))
            world.say(f"  {self._name} appends instant {instant}: {[*self.events]}")
            self.done = True


def some_keys(world: World) -> list[int]:
    """A few different keys, known ones and new ones."""
    fresh = world.new_rows(world.rng.randrange(3))
    known = [world.rng.randrange(world.next_rid) for _ in range(world.rng.randint(1, 3))]
    keys = [row.rid for row in fresh] + [key for key in known if key not in world.reserved]
    return list(dict.fromkeys(keys)) or [row.rid for row in world.new_rows(1)]


def log_event(log: SimulatedLog, key: int, *, deletes: bool | None = None) -> Event:
    """An upsert or a delete of a key, with random values."""
    rng = log.world.rng
    k, v = rng.randrange(4), rng.randrange(100)
    if deletes is None:
        deletes = rng.random() < 0.3
    return Event(key, v if log.ordered else None, None if deletes else f"{k},{v}")


def tables_of(events: Sequence[Event], *, ordered: bool) -> tuple[pa.Table, pa.Table]:
    """Upserts, and deletes, as a writer or a source of an operation has them."""
    upserts = [e for e in events if e.value is not None]
    rows = pa.Table.from_pylist(
        [_back(oracle.Row(e.key, e.order, e.value or ""))._asdict() for e in upserts],
        pa.schema([(name, pa.int64()) for name in _FIELDS]),
    )
    gone = [e for e in events if e.value is None]
    deletes = pa.table({"rid": pa.array([e.key for e in gone], pa.int64())})
    if ordered:
        deletes = deletes.append_column("v", pa.array([e.order for e in gone], pa.int64()))
    return rows, deletes


def _back(row: oracle.Row) -> Row:
    k, v = row.value.split(",")
    return Row(row.key, int(k), int(v))
