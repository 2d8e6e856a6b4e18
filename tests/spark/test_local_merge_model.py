"""A merge over Arrow against a plain model: however files are cut into row groups and tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64
from pyspark import SparkContext, cloudpickle

from spark.test_merge_job import UPSERT, job_for, left, matched, missing
from support.foreign.tables import column, write
from support.jobs import job_files as jobs
from support.some import few
from tandem.delta import dv
from tandem.jobs.formats import InputFile, MergeClause
from tandem.reconcile.matches import KEPT
from tandem.spark.jobs import merge_source as local_source
from tandem.spark.jobs.local_merge import MergeAnswer, execute
from tandem.spark.runtime.control import Control
from tandem.spark.sources import readers
from tandem.statements.local import NeedsSpark

Row = tuple[int | None, int]
"""`k` and `v`"""


@dataclass(frozen=True)
class Model:
    """A merge, and what it does to a row with the source row that it matches, and without one:
    None to delete it, the row itself to leave it. `inserts`: the row for one of the source."""

    clauses: tuple[MergeClause, ...]
    matched: Callable[[Row, Row], Row | None]
    inserts: Callable[[Row], Row | None] = lambda row: row
    alone: Callable[[Row], Row | None] = lambda row: row
    one_only: bool = True


MODELS = [
    Model(UPSERT, lambda _row, of: of),
    Model(
        (
            matched("Delete", "s.v = 3"),
            matched("Update", "s.v > t.v", v="s.v + t.v"),
            missing("s.v < 3"),
        ),
        lambda row, of: None if of[1] == 3 else (row[0], of[1] + row[1]) if of[1] > row[1] else row,
        lambda of: of if of[1] < 3 else None,
    ),
    Model((matched("Delete"),), lambda _row, _of: None, lambda _of: None, one_only=False),
    Model((matched("Delete"), missing()), lambda _row, _of: None, one_only=False),
    Model((missing(k="s.k + 10", v="s.v"),), lambda row, _of: row,
          lambda of: (None if of[0] is None else of[0] + 10, of[1]), one_only=False),
    Model(
        (
            matched("Update", "s.v = 0", k="7"),
            left("Delete", "t.v = 1"),
            left("Update", "t.k IS NULL OR t.v > 4", v="100"),
        ),
        lambda row, of: (7, row[1]) if of[1] == 0 else row,
        lambda _of: None,
        lambda row: None if row[1] == 1 else (row[0], 100) if row[0] is None or row[1] > 4 else row,
    ),
]  # fmt: skip


class OneByOne:
    """In place of Spark: tasks run here, one after the other, as if sent to other processes."""

    value: Any
    task: Callable[[int], Any]
    order: Iterable[int]
    held = 0
    """Values that were sent and are not destroyed yet."""

    def broadcast(self, value: Any) -> OneByOne:
        sent = OneByOne()
        sent.value = value
        OneByOne.held += 1
        return sent

    def destroy(self) -> None:
        OneByOne.held -= 1

    def parallelize(self, order: Iterable[int], _tasks: int) -> OneByOne:
        self.order = order
        return self

    def map(self, task: Callable[[int], Any]) -> OneByOne:
        dumps: Callable[[Any], bytes] = cloudpickle.dumps
        self.task = cloudpickle.loads(dumps(task))
        return self

    def collect(self) -> list[Any]:
        return [self.task(number) for number in self.order]


@dataclass(frozen=True)
class File:
    """A file of the table; `group`: rows of a row group; `size`: what it is said to take, since
    files of many bytes are cut into parts."""

    rows: list[Row]
    group: int
    dead: set[int]
    size: int


def random_row(chance: random.Random) -> Row:
    return chance.choice([None, *range(6)]), chance.randrange(6)


def random_file(chance: random.Random) -> File:
    rows = [random_row(chance) for _ in range(chance.randint(1, 20))]
    dead = {n for n in range(len(rows)) if chance.random() < 0.2}
    return File(rows, chance.randint(1, 5), dead, chance.choice([1, 120 << 20, 180 << 20]))


def random_source(chance: random.Random) -> list[Row]:
    """Mostly without two rows of one key."""
    rows = [random_row(chance) for _ in range(chance.randint(0, 7))]
    return list(dict(rows).items()) if chance.random() < 0.8 else rows


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty table with the columns `k` and `v`."""
    path = tmp_path_factory.mktemp("numbers") / "t"
    write(path, column("k"), column("v"), rows=None)
    return path


def columns(rows: list[Row]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in rows], pa.int64()),
                     "v": pa.array([v for _, v in rows], pa.int64())})  # fmt: skip


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_every_row_is_merged_once_however_files_are_cut(empty: Path, number: int) -> None:
    for seed in range(few(12, 200)):
        chance = random.Random(seed)
        of = [random_file(chance) for _ in range(chance.randint(1, 3))]
        merge_and_compare(empty, of, random_source(chance), MODELS[number])


def merge_and_compare(empty: Path, of: list[File], source: list[Row], model: Model) -> None:
    inputs, live = [], []
    for number, file in enumerate(of):
        name = f"{number}.parquet"
        pq.write_table(columns(file.rows), empty / name, row_group_size=file.group)
        vector = dv.to_base64(BitMap64(file.dead)) if file.dead else ""
        inputs.append(InputFile(logged_path=name, size=file.size, rows=len(file.rows), dv=vector))
        live += [(number, n, row) for n, row in enumerate(file.rows) if n not in file.dead]
    path = empty.parent / "s.parquet"
    pq.write_table(columns(source), path)
    job = job_for(empty, path, model.clauses, on="t.k = s.k", inputs=tuple(inputs))
    expected: list[tuple[int, int, Row | None]] = []
    met: set[int | None] = set()
    several = False
    for number, position, row in live:
        found = [each for each in source if each[0] == row[0] is not None]
        several |= len(found) > 1
        met |= {row[0]} if found else set()
        after = model.matched(row, found[0]) if found else model.alone(row)
        if after != row or (found and is_written_anyway(model, found[0])):
            expected.append((number, position, after))
    new = [each for each in map(model.inserts, (s for s in source if s[0] not in met)) if each]
    context = cast("SparkContext", OneByOne())
    loaded = local_source.load(job, *readers.pinned(job))
    try:
        answer = execute(job, context, loaded, inputs, 0, inserts=True, most_recorded=1 << 20)
    except NeedsSpark:
        assert several
        assert model.one_only
        return
    finally:
        assert not OneByOne.held
    assert not (several and model.one_only)
    changed, fresh = read(job, answer)
    assert changed == expected
    assert fresh == sorted(new, key=repr)


def is_written_anyway(model: Model, of: Row) -> bool:
    """Whether an update writes a row that matches this one, also if nothing in it changes."""
    return model is MODELS[0] or (model is MODELS[-1] and of[1] == 0)


def read(job: Control, answer: MergeAnswer) -> tuple[list[tuple[int, int, Row | None]], list[Row]]:
    """The rows that change, and those that are inserted."""
    contents = [
        [(row["k"], row["v"]) for row in jobs.read_output(job, o.path, {}).to_pylist()]
        for o in answer.outputs
    ]
    data = jobs.side_file(job, answer.matches)
    changed = [
        (m["input"], m["position"],
         None if m["output"] is None else contents[m["output"]][m["output_position"]])
        for m in pa.ipc.open_file(pa.py_buffer(data)).read_all().to_pylist()
        if m["output"] != KEPT
    ]  # fmt: skip
    fresh = [
        row for o, rows in zip(answer.outputs, contents, strict=True) if o.fresh for row in rows
    ]
    assert (answer.updated + answer.deleted, answer.inserted) == (len(changed), len(fresh))
    return changed, sorted(fresh, key=repr)
