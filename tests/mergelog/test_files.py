"""Random histories on real files: `deltalake` commits to the base, `LogWriter` to the log, and the
view of each version of the base agrees with the serial model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from mergelog import oracle
from mergelog.lake import DELETION_VECTORS, Merged
from mergelog.oracle import Append, Change, Event, Insert, Merge, Overwrite, Restore, Row, Update
from mergelog.orders import Orders
from tandem.mergelog.view import MergedView
from tandem.spec.status import Phase
from tandem.storage import open_store

KEYS = range(5)
ORDERS = (None, 0, 1, 2, 3)
STEPS = 12
SCHEMA = pa.schema([("k", pa.int64()), ("o", pa.int64()), ("v", pa.string()), ("p", pa.string())])


@dataclass
class History:
    """`partition`: p is a partition column that is a "key", or "other", or is none."""

    path: Path
    seed: int
    ordered: bool
    partition: str
    changes: list[Change] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    named: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        rows = self._rows(4)
        partition_by = ["p"] if self.partition else None
        table, options = self._table(rows), DELETION_VECTORS
        write_deltalake(str(self.path), table, configuration=options, partition_by=partition_by)
        self.changes.append(Insert(rows))
        for _ in range(self.random.randint(0, 2)):
            self._insert()  # before there is a log
        keys = ("k", "p") if self.partition == "key" else ("k",)
        ordering = "o" if self.ordered else ""
        self.merged = Merged(open_store(self.path.as_uri()), keys, ordering)

    def run(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self._append, 5), (self._append_by_operation, 1), (self._insert, 1),
            (self._update, 2), (self._optimize, 1), (self._overwrite, 1), (self._restore, 2),
            (self._merge, 2), (self._stitch, 2),
        ]  # fmt: skip
        for _ in range(STEPS):
            step = self.random.choices([s for s, _ in steps], [weight for _, weight in steps])[0]
            self.trace.append(step.__name__.strip("_"))
            step()
            assert self.delta.version() == len(self.changes) - 1, self.trace
            self._check(len(self.changes) - 1, newest=True)
        for version in range(len(self.changes)):
            self._check(version)
        self._check_prefixes()

    def _check_prefixes(self) -> None:
        """Of each prefix of the log, with the first and the newest base version that a reader of it
        may see. The model knows no stitched block."""
        log = self.merged.log
        for instant in range(log.log.latest_version() + 1):
            named = log.snapshot(instant).txns["tandem.log.base"].version
            for version in {named, len(self.changes) - 1}:
                expected = oracle.of_prefix(
                    self.changes[: version + 1], self.appends, instant, ordered=self.ordered
                )
                if expected is not None:
                    found = self._rows_of(MergedView.at(log, version, instant).scan().read_all())
                    assert found == expected, f"seed {self.seed}, instant {instant}, {version}"

    def _check(self, version: int, *, newest: bool = False) -> None:
        state = oracle.replay(self.changes, self.appends, ordered=self.ordered, upto=version)
        expected = oracle.view(state, ordered=self.ordered)
        found = self._view(None if newest else version)
        assert found == expected, f"seed {self.seed}, {self.trace}, version {version}"

    def _view(self, version: int | None = None) -> list[Row]:
        return self._rows_of(self.merged.view(version))

    def _rows_of(self, rows: pa.Table) -> list[Row]:
        found = [Row(row["k"], row["o"], row["v"]) for row in rows.to_pylist()]
        return sorted(found, key=lambda row: (row.key, oracle.least(row.order), row.value))

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    # Values

    def _value(self) -> str:
        self.named += 1
        return f"v{self.named}"

    def _rows(self, most: int) -> tuple[Row, ...]:
        chosen = self.random.sample(KEYS, self.random.randint(1, most))
        return tuple(Row(key, self.random.choice(ORDERS), self._value()) for key in chosen)

    def _table(self, rows: Sequence[Row | Event]) -> pa.Table:
        def partition(row: Row | Event) -> str:
            return f"p{row.key % 2 if self.partition == 'key' else len(row.value or '') % 2}"

        found = [
            {"k": row.key, "o": row.order, "v": row.value, "p": partition(row)} for row in rows
        ]
        return pa.Table.from_pylist(found, SCHEMA)

    # Steps

    def _append(self) -> None:
        events = self._events(deletes=0.35)
        upserts = self._table([event for event in events if event.value is not None])
        deletes = self._table([event for event in events if event.value is None])
        done = self.merged.append(upserts, deletes.select(self._columns))
        assert done.instant is not None
        self.appends.append(Append(done.instant, len(self.changes) - 1, events))

    def _append_by_operation(self) -> None:
        deletes = self.random.random() < 0.35
        events = self._events(deletes=float(deletes))
        rows, table = self._table(events), Orders(self.path)
        name = f"rows-{self.named}-{len(self.appends)}"
        if deletes:
            spec = {"deleteKeys": {"source": table.source(rows.select(self._columns), name)}}
        else:
            spec = {"upsert": {"source": table.source(rows, name)}}
        status = table.run(spec, name=name)
        assert status.result is not None, status
        assert status.result.version is not None
        self.appends.append(Append(status.result.version, len(self.changes) - 1, events))

    def _events(self, *, deletes: float) -> tuple[Event, ...]:
        """Of each key at most one; `deletes` is the probability of a delete."""
        return tuple(
            Event(
                key,
                self.random.choice(ORDERS),
                None if self.random.random() < deletes else self._value(),
            )
            for key in self.random.sample(KEYS, self.random.randint(1, 4))
        )

    @property
    def _columns(self) -> list[str]:
        """Of a delete."""
        return [*self.merged.keys, *(["o"] if self.ordered else [])]

    def _insert(self) -> None:
        rows = self._rows(2)
        write_deltalake(str(self.path), self._table(rows), mode="append")
        self.changes.append(Insert(rows))

    def _update(self) -> None:
        keys = frozenset(self.random.sample(KEYS, 2))
        where = f"k IN ({', '.join(map(str, sorted(keys)))})"
        before = self.delta.version()
        value = self._value() if self.random.random() < 0.5 else None
        if value is None:
            self.delta.delete(where)
        else:
            self.delta.update(updates={"v": f"'{value}'"}, predicate=where)
        if self.delta.version() > before:
            self.changes.append(Update(keys, value))

    def _optimize(self) -> None:
        before = self.delta.version()
        self.delta.optimize.compact()
        if self.delta.version() > before:
            self.changes.append(oracle.Rearranged())

    def _overwrite(self) -> None:
        before = self.delta.version()
        if self.random.random() < 0.3:
            self.delta.delete()
            rows: tuple[Row, ...] = ()
        else:
            rows = self._rows(3)
            write_deltalake(str(self.path), self._table(rows), mode="overwrite")
        if self.delta.version() > before:
            self.changes.append(Overwrite(rows))

    def _restore(self) -> None:
        last = len(self.changes) - 1
        if last:
            version = self.random.randrange(last)
            self.delta.restore(version)
            self.changes.append(Restore(version))

    def _stitch(self) -> None:
        """All blocks; they may be of instants that are merged, or void by now."""
        name = f"stitch-{len(self.trace)}"
        status = Orders(self.path).run({"strategy": "AllBlocks"}, name=name)
        assert status.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), status

    def _merge(self) -> None:
        """The rows of the view, and the mark, in one commit of the base."""
        rows = self._view()
        mark = self.merged.log.log.latest_version()
        app = f"tandem.log:{self.merged.log.snapshot().metadata.id}"
        properties = CommitProperties(app_transactions=[Transaction(app, mark)])
        write_deltalake(
            str(self.path), self._table(rows), mode="overwrite", commit_properties=properties
        )
        self.changes.append(Merge(mark))


@pytest.mark.part(20)
@pytest.mark.parametrize("partition", ["", "key", "other"])
@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("seed", range(3))
def test_I37_each_prefix_of_the_log_and_each_version_agree_with_the_serial_model(
    tmp_path: Path, partition: str, ordered: bool, seed: int
) -> None:
    History(tmp_path / "t", seed, ordered, partition).run()


@pytest.mark.matrix
def test_appends_beside_statements_are_where_the_log_says(tmp_path: Path) -> None:
    """Several writers, and one thread of statements on the base: each append names a base version
    that is not before the one that was there when it began, and the views follow from that."""
    history = History(tmp_path / "t", 7, ordered=False, partition="")
    merged = history.merged
    writers, each = 3, 5
    found: list[tuple[int, int, Event]] = []

    def write(number: int) -> None:
        writer = merged.new_writer(f"w{number}")
        for batch in range(each):
            began = merged.log.base.latest_version()
            event = Event(100 + number * each + batch, None, f"{number}-{batch}")
            done = writer.append(history._table([event]), batch=batch)
            assert done.instant is not None
            found.append((done.instant, began, event))

    with ThreadPoolExecutor(writers) as pool:
        running = [pool.submit(write, number) for number in range(writers)]
        steps = (history._insert, history._update, history._overwrite, history._restore)
        for _ in range(15):
            history.random.choice(steps)()
        for future in running:
            future.result()
    assert sorted(instant for instant, _, _ in found) == list(range(1, writers * each + 1))
    for instant, began, event in sorted(found):
        named = merged.log.snapshot(instant).txns["tandem.log.base"].version
        assert named >= began
        history.appends.append(Append(instant, named, (event,)))
    for version in range(len(history.changes)):
        history._check(version)
