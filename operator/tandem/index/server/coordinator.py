"""Knows which executor holds which shard, and has files narrowed by them, all at once.

The coordinator answers by the log, and waits for no executor to do so. Executors only take away:
one that is slow, dead or wrong leaves its files as they are, and what they would have said is
missing in the answer, never a row (X-b).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from tandem.distinct import IntArray
from tandem.errors import StorageError, TandemError, Unreachable
from tandem.index.narrowing import GroupMatches, Narrower, open_files, together
from tandem.index.server.calls import Background
from tandem.index.server.executor import (
    FILES,
    MAX_FILES,
    ExecutorService,
    InvalidateQuestion,
    NarrowQuestion,
    ShardQuestion,
    SlotCache,
    believed,
)
from tandem.index.server.messages import MAX_ITEMS, VersionOf
from tandem.index.server.registration import LEFT_OUT_S, ReachedExecutor, Registry
from tandem.index.server.shards import SHARD_SIZE, Executor, Shard, TableShards
from tandem.index.window import Chosen, Head, View
from tandem.statements.tree import Expr

_log = structlog.get_logger("tandem.index.coordinator")

DEADLINE_S: Final = 1.0
"""Seconds for all executors together, of the two for which a client waits."""

BUDGET_S: Final = 0.5
"""Seconds of these in which an executor has to decide."""

_PRIMED = 1_000
"""Files of a commit whose facts an executor reads before they are asked for."""

_AT_ONCE = 65_536
"""Entries of a table that is looked at while a caller waits."""

_THREADS = 32
_CALL_S = 5.0
"""Of calls for which no caller waits."""


_NO_SHARD = -1


@dataclass(frozen=True)
class Batch:
    """What one executor is asked: the places of the files among all, and of their shards in the
    question."""

    executor: Executor
    question: ShardQuestion
    rows: IntArray
    shards: IntArray

    def of(self, files: pa.Table) -> pa.Table:
        """Its files among all, with their shards."""
        mine, shards = files.take(pa.array(self.rows)), pa.array(self.shards, pa.int32())
        return mine.add_column(0, FILES.field("shard"), shards).combine_chunks()


class Coordinator:
    """Thread-safe.

    Args:
        local: an executor in this process: `executors: 0`.
        shard_size: bytes of facts.
        pre_prime: read the facts of new files before they are asked for.
        deadline_s, budget_s, left_out_s: see `DEADLINE_S`, `BUDGET_S` and `LEFT_OUT_S`.
    """

    def __init__(
        self,
        *,
        local: ExecutorService | None = None,
        shard_size: int = SHARD_SIZE,
        pre_prime: bool = True,
        deadline_s: float = DEADLINE_S,
        budget_s: float = BUDGET_S,
        left_out_s: float = LEFT_OUT_S,
    ) -> None:
        self._shard_size = shard_size
        self._deadline_s, self._budget_s = deadline_s, budget_s
        self._pre_prime = pre_prime
        self.registry = Registry(left_out_s=left_out_s)
        self._pool = ThreadPoolExecutor(_THREADS, "ask")
        self.refused: Counter[str] = Counter()
        """Replies that were not believed, by executor."""
        self._lock = threading.Lock()
        self._tables: dict[str, TableShards] = {}
        self._background = Background(1, "follow")
        self._following: dict[str, View] = {}
        if local is not None:
            self.registry.join(Executor(0, "local"), local, stays=True)

    def close(self) -> None:
        self._background.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for executor in self.registry.live.values():
            executor.close()

    def narrower(self, table: str, view: View, where: str) -> Narrower | None:
        """Narrows the files of a version by a condition; None without executors.

        A caller waits until the deadline and no longer: of an executor that has not replied by
        then, or whose reply is not believed, the files are left as they are.

        Args:
            table: the name of its LakeTable.
            where: the condition as the caller wrote it.
        """
        self.registry.sweep()
        if not self.registry.mapping.executors:
            return None
        shards = self._shards(table, view)
        if not shards.has(view):
            if sum(map(len, view.parts)) <= _AT_ONCE:
                self._follow(table, view)
            else:
                # What is known already is narrowed meanwhile.
                self.followed(table, view)
        return Narrower(partial(self._known, table, where, shards))

    def _known(
        self, table: str, where: str, shards: TableShards,
        head: Head, _where: Expr, files: pa.Table, chosen: Sequence[Chosen],
    ) -> GroupMatches:  # fmt: skip
        """What executors say of files, all of them asked at once."""
        found, places = [GroupMatches.unknown(len(files))], [np.arange(len(files))]
        until = time.monotonic() + self._deadline_s
        batches = self._batches(table, shards, chosen)
        of, budget_s = VersionOf.of(head), self._budget_s
        asked = [
            (
                batch,
                NarrowQuestion(
                    **batch.question.model_dump(), of=of, where=where, budget_s=budget_s
                ),
                batch.of(files),
            )
            for batch in batches
        ]
        # The last one is asked by this thread.
        tasks = [self._pool.submit(self._ask, *each, until) for each in asked[:-1]]
        last = [self._ask(*each, until) for each in asked[-1:]]
        replies = [*(_result(task, until) for task in tasks), *last]
        for batch, reply in zip(batches, replies, strict=True):
            if reply is not None:
                found.append(reply)
                places.append(batch.rows)
        return together(found, places)

    def _batches(
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
        at = {shard: number for number, shard in known.items()}
        batches = []
        for executor, mine in self.registry.route(known.values()).items():
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

    def _ask(self, batch: Batch, question: NarrowQuestion, files: pa.Table,
               until: float) -> GroupMatches | None:  # fmt: skip
        """What an executor says of files; None if it says nothing that can be believed.

        Args:
            until: of `time.monotonic`.
        """
        reached, left = self.registry.reached(batch.executor), until - time.monotonic()
        if reached is None or left <= 0:
            return None
        try:
            reply, table = reached.narrow(question, files, left)
        except (Unreachable, StorageError) as error:
            self.registry.fail(batch.executor, error)
            return None
        except TandemError as error:
            self._refused(batch.executor, question, error)
            return None
        try:
            return believed(question, files, reply, table)
        except ValueError as error:
            self._refused(batch.executor, question, error)
            return None

    def followed(self, table: str, view: View) -> None:
        """A newer version is held: in the background its shards are assigned, and its new files
        sent to their executors (X8). Whatever fails of it changes no answer (X18)."""
        if self._shards(table, view).has(view):
            return
        with self._lock:
            waits = table in self._following
            self._following[table] = view
        if not waits:
            self._background.submit(table, self._catch_up, table)

    def drop(self, table: str) -> None:
        """The table is not held any more, or its facts are not to be used."""
        with self._lock:
            shards = self._tables.pop(table, None)
        if shards is not None:
            self._forget(shards.table_id, ())

    def shown(self) -> dict[Executor, SlotCache]:
        """What the executors hold; one that does not answer is left out."""
        tasks = {
            executor: self._pool.submit(reached.show, self._deadline_s)
            for executor, reached in self.registry.live.items()
        }
        found = {}
        for executor, task in tasks.items():
            try:
                found[executor] = task.result(timeout=self._deadline_s)
            except (TandemError, TimeoutError) as error:
                _log.info("an executor shows nothing", executor=executor.id, problem=str(error))
        return found

    def _shards(self, table: str, view: View) -> TableShards:
        table_id = view.head.metadata.id
        with self._lock:
            found = self._tables.get(table)
            if found is not None and found.table_id == table_id:
                return found
            fresh = self._tables[table] = TableShards(table_id, shard_size=self._shard_size)
        if found is not None:
            # Another table has taken its place (X16).
            self._forget(found.table_id, ())
        return fresh

    def _catch_up(self, table: str) -> None:
        with self._lock:
            view = self._following.pop(table)
        self._follow(table, view)

    def _follow(self, table: str, view: View) -> None:
        shards = self._shards(table, view)
        changed = shards.follow(view)
        if changed.gone:
            self._forget(shards.table_id, changed.gone)
        if changed.added and self._pre_prime:
            self._background.submit(table, self._prime, table, shards, changed.added)

    def _forget(self, table_id: str, gone: Sequence[Shard]) -> None:
        keys = tuple(each.key for each in gone)
        self.registry.drop(table_id, keys)
        question = InvalidateQuestion(table_id=table_id, shards=keys)
        for executor, reached in self.registry.live.items():
            self._background.submit(table_id, self._invalidate, executor, reached, question)

    def _refused(self, executor: Executor, question: ShardQuestion, problem: object) -> None:
        """A reply is not believed: what the executor holds of these shards is loaded again."""
        self.refused[executor.id] += 1
        _log.error(
            "a reply of an executor is not believed",
            executor=executor.id,
            table=question.table,
            problem=str(problem),
        )
        reached = self.registry.reached(executor)
        if reached is not None:
            gone = InvalidateQuestion(table_id=question.table_id, shards=question.shards)
            self._background.submit(question.table, self._invalidate, executor, reached, gone)

    def _invalidate(
        self, executor: Executor, reached: ReachedExecutor, gone: InvalidateQuestion
    ) -> None:
        try:
            reached.invalidate(gone, _CALL_S)
        except TandemError as error:
            self.registry.fail(executor, error)

    def _prime(self, table: str, shards: TableShards, added: Sequence[Chosen]) -> None:
        files = open_files(added, with_partitions=False)
        try:
            for each in self._batches(table, shards, added, most=_PRIMED):
                reached = self.registry.reached(each.executor)
                if reached is not None:
                    reached.prime(each.question, each.of(files), _CALL_S)
        except TandemError as error:
            _log.info("pre-priming failed", table=table, problem=str(error))


def _result(task: Future[GroupMatches | None], until: float) -> GroupMatches | None:
    try:
        return task.result(timeout=max(until - time.monotonic(), 0))
    except TimeoutError:
        # Its thread ends by itself, and notes that the executor failed.
        task.cancel()
        return None
