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
import pyarrow.compute as pc

from tandem.delta.stats import MOST_ROWS
from tandem.distinct import IntArray
from tandem.errors import StorageError, TandemError, Unreachable
from tandem.index.facts.row_groups import UNKNOWN
from tandem.index.narrowing import GroupMatch, GroupMatches, Narrower, together
from tandem.index.server.assignment import Assignments, Executor, Shard
from tandem.index.server.executor_messages import (
    FILES,
    MATCHES,
    MAX_FILES,
    NarrowQuestion,
    NarrowReply,
    ShardQuestion,
    digest,
    matches_from,
)
from tandem.index.server.messages import MAX_ITEMS, VersionOf
from tandem.index.server.registry import Registry
from tandem.index.server.shards import TableShards
from tandem.index.window import Chosen, Head
from tandem.statements.tree import Expr

# Whether a reply of an executor can be believed, and what is wrong with it. Pure.
#
# A coordinator has no facts, so it cannot judge them. It can judge what the reply is of, and
# whether its numbers fit together and with the log. What is not believed costs narrowing only: the
# files are left as they are.


def believed(
    asked: NarrowQuestion, files: pa.Table, reply: NarrowReply, table: pa.Table
) -> GroupMatches:
    """What a reply says of the files. Raises: ValueError, which says why it is not believed."""
    if reply.asked != digest(asked, files):
        raise ValueError("of other files, another version or another condition")
    if table.schema != MATCHES:
        raise ValueError(f"columns {table.schema.names}")
    table.validate(full=True)
    if table["file"].to_pylist() != [*range(files.num_rows)]:
        raise ValueError(f"{len(table)} files, not each of the {files.num_rows} asked once")
    found = matches_from(table)
    if found.rows.is_valid() != found.matches.is_valid():
        raise ValueError("a file with facts of one kind only")
    lengths = pc.list_value_length(found.matches)
    if pc.list_value_length(found.rows) != lengths:
        raise ValueError("row groups of which something is missing")
    rows, matches = found.rows.flatten(), found.matches.flatten()
    if (
        rows.null_count
        or matches.null_count
        or not set(pc.unique(matches).to_pylist()) <= {*GroupMatch}
    ):
        raise ValueError("a row group of which nothing is said")
    numbers, owner = rows.to_numpy(), np.repeat(np.arange(len(found)), pc.fill_null(lengths, 0))
    # As floats, whose sums do not overflow.
    sums = np.bincount(owner, numbers, len(found))
    if (numbers < 0).any() or (sums > MOST_ROWS).any():
        raise ValueError("a number of rows that is none")
    logged = files["rows"].to_numpy()
    known = np.asarray(found.rows.is_valid()) & (logged != UNKNOWN)
    if (sums[known] != logged[known]).any():
        raise ValueError("a file with other rows than the log says")
    return found


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
        self, head: Head, where: Expr, files: pa.Table, chosen: Sequence[Chosen]  # noqa: ARG002
    ) -> GroupMatches:  # fmt: skip
        found, places = [GroupMatches.unknown(len(files))], [np.arange(len(files))]
        until = time.monotonic() + self._asking.deadline_s
        batches = self._asking.batches(self._table, self._shards, chosen)
        asked = [(batch, self._question(batch, head), batch.of(files)) for batch in batches]
        # The last one is asked by this thread.
        tasks = [self._asking.pool.submit(self._asking.narrow, *each, until) for each in asked[:-1]]
        last = [self._asking.narrow(*each, until) for each in asked[-1:]]
        replies = [*(_result(task, until) for task in tasks), *last]
        for batch, reply in zip(batches, replies, strict=True):
            if reply is not None:
                found.append(reply)
                places.append(batch.rows)
        return together(found, places)

    def _question(self, batch: Batch, head: Head) -> NarrowQuestion:
        return NarrowQuestion(
            **batch.question.model_dump(),
            of=VersionOf.of(head),
            where=self._where,
            budget_s=self._asking.budget_s,
        )


def _result(task: Future[GroupMatches | None], until: float) -> GroupMatches | None:
    try:
        return task.result(timeout=max(until - time.monotonic(), 0))
    except TimeoutError:
        # Its thread ends by itself, and notes that the executor failed.
        task.cancel()
        return None
