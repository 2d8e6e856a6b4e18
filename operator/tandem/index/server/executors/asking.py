"""Asks all executors whose shards a condition needs at once, and puts together what they say.

A caller waits until the deadline and no longer. Of an executor that has not replied by then, or
whose reply is not believed, the files are left as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tandem.distinct import IntArray
from tandem.errors import StorageError, TandemError, Unreachable
from tandem.index.assignment import Executor, Shard
from tandem.index.narrowing import Narrower, NeededGroups, OpenFiles, together
from tandem.index.server.executors.assignments import Assignments
from tandem.index.server.executors.registry import Registry
from tandem.index.server.executors.replies import believed
from tandem.index.server.executors.slot_messages import (
    FILES,
    MAX_FILES,
    NarrowQuestion,
    ShardQuestion,
)
from tandem.index.server.executors.table_shards import TableShards
from tandem.index.server.messages import MAX_ITEMS, VersionOf
from tandem.index.window import Chosen, Head
from tandem.statements.tree import Expr

_NO_SHARD = -1


@dataclass(frozen=True)
class Batch:
    """What one executor is asked: the places of the files among all, and of their shards in the
    question."""

    executor: Executor
    question: ShardQuestion
    rows: IntArray
    shards: IntArray


@dataclass(frozen=True)
class Asking:
    """How a coordinator reaches its executors.

    Args:
        refused: is called with a reply that is not believed.
        deadline_s: for all executors together.
        budget_s: for what each of them decides.
    """

    assignments: Assignments
    registry: Registry
    pool: ThreadPoolExecutor
    refused: Callable[[Executor, ShardQuestion, object], None]
    deadline_s: float
    budget_s: float

    def batches(
        self, table: str, shards: TableShards, parts: Sequence[Chosen], *, most: int = MAX_FILES
    ) -> list[Batch]:
        """Whom to ask for which files. Shards that have no executor get one.

        Args:
            most: files for one executor.
        """
        numbers, known = [np.zeros(0, np.int64)], dict[int, Shard]()
        for part in parts:
            found, named = shards.of(part)
            numbers.append(found)
            known |= named
        if not known:
            return []
        used, place_of = np.unique(np.concatenate(numbers), return_inverse=True)
        routes = self.assignments.route(tuple(known.values()))
        at = {shard: number for number, shard in known.items()}
        batches = []
        for executor, mine in routes.by_executor.items():
            mine = mine[:MAX_ITEMS]
            places = np.full(len(used), _NO_SHARD)
            wanted = np.array([at[shard] for shard in mine])
            places[np.searchsorted(used, wanted)] = np.arange(len(mine))
            all_places = places[place_of]
            rows = np.flatnonzero(all_places != _NO_SHARD)[:most]
            question = ShardQuestion(
                table=table, table_id=shards.table_id, shards=tuple(shard.key for shard in mine)
            )
            batches.append(Batch(executor, question, rows, all_places[rows]))
        return batches

    def narrow(self, batch: Batch, question: NarrowQuestion, files: pa.Table,
               until: float) -> NeededGroups | None:  # fmt: skip
        """What an executor says of files; None if it says nothing that can be believed.

        Args:
            until: of `time.monotonic`.
        """
        slot, left = self.registry.slot(batch.executor), until - time.monotonic()
        if slot is None or left <= 0:
            return None
        try:
            reply, table = slot.narrow(question, files, left)
        except (Unreachable, StorageError) as error:
            self.registry.fail(batch.executor, error)
            return None
        except TandemError as error:
            self.refused(batch.executor, question, error)
            return None
        try:
            return believed(question, files, reply, table)
        except ValueError as error:
            self.refused(batch.executor, question, error)
            return None


class Fanned(Narrower):
    """By the facts that executors hold, for one question.

    Args:
        where: the condition as the caller wrote it.
    """

    def __init__(self, asking: Asking, table: str, where: str, shards: TableShards) -> None:
        self._asking, self._table, self._where = asking, table, where
        self._shards = shards

    def narrow_files(
        self, head: Head, where: Expr, files: Sequence[OpenFiles]  # noqa: ARG002
    ) -> Sequence[NeededGroups]:  # fmt: skip
        total = sum(map(len, files))
        found, places = [NeededGroups.every(total)], [np.arange(total)]
        parts = [each.source for each in files if each.source is not None]
        until = time.monotonic() + self._asking.deadline_s
        batches = self._asking.batches(self._table, self._shards, parts)
        whole = _table(files) if batches else None
        asked = [(batch, self._question(batch, head), _of_batch(whole, batch)) for batch in batches]
        # The last one is asked by this thread.
        tasks = [self._asking.pool.submit(self._asking.narrow, *each, until) for each in asked[:-1]]
        last = [self._asking.narrow(*each, until) for each in asked[-1:]]
        replies = [*(_result(task, until) for task in tasks), *last]
        for batch, reply in zip(batches, replies, strict=True):
            if reply is not None:
                found.append(reply)
                places.append(batch.rows)
        return _split(together(found, places), files)

    def _question(self, batch: Batch, head: Head) -> NarrowQuestion:
        return NarrowQuestion(
            **batch.question.model_dump(),
            of=VersionOf.of(head),
            where=self._where,
            budget_s=self._asking.budget_s,
        )


def primed_files(parts: Sequence[Chosen], batch: Batch) -> pa.Table:
    """The files of a batch whose facts are to be read."""
    files = [
        OpenFiles(
            part.entries.columns_at(part.rows, ("path", "size")),
            part.entries.rows[part.rows],
            part.entries.dead[part.rows],
            {},
        )
        for part in parts
    ]
    return _of_batch(_table(files), batch)


def _result(task: Future[NeededGroups | None], until: float) -> NeededGroups | None:
    try:
        return task.result(timeout=max(until - time.monotonic(), 0))
    except TimeoutError:
        # Its thread ends by itself, and notes that the executor failed.
        task.cancel()
        return None


def _table(files: Sequence[OpenFiles]) -> pa.Table:
    """All files, without their shards."""
    tables = []
    for each in files:
        count = len(each)
        values = each.values
        columns = {
            "path": each.names["path"],
            "size": each.names["size"],
            "rows": pa.array(each.rows, pa.int64()),
            "dead": pa.array(np.ascontiguousarray(each.dead), pa.int64()),
            "partition_values": pa.nulls(count, FILES.field("partition_values").type)
            if values is None
            else values,
        }
        tables.append(pa.table(list(columns.values()), schema=FILES.remove(0)))
    return pa.concat_tables(tables)


def _of_batch(files: pa.Table, batch: Batch) -> pa.Table:
    mine = files.take(pa.array(batch.rows))
    return mine.add_column(
        0, FILES.field("shard"), pa.array(batch.shards, pa.int32())
    ).combine_chunks()


def _split(whole: NeededGroups, files: Sequence[OpenFiles]) -> list[NeededGroups]:
    ends = np.cumsum([len(each) for each in files]).tolist()
    return [whole.part(end - len(each), end) for end, each in zip(ends, files, strict=True)]
