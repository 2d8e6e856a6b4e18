"""Asks all executors whose shards a condition needs at once, and puts together what they say.

A caller waits until the deadline and no longer. Of an executor that has not replied by then, or
whose reply is not believed, the files are left as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray
from tandem.errors import StorageError, TandemError, Unreachable
from tandem.index import assignment as rules
from tandem.index.assignment import Executor, Routes, Shard, ShardMapping
from tandem.index.narrowing import NOT_KNOWN, Narrower, NeededGroups, OpenFiles, together
from tandem.index.server.executors.registry import Registry
from tandem.index.server.executors.shards import TableShards
from tandem.index.server.executors.slot_messages import (
    FILES,
    MAX_FILES,
    NEEDED,
    NarrowQuestion,
    NarrowReply,
    ShardQuestion,
    digest,
    needed_from,
)
from tandem.index.server.messages import MAX_ITEMS, VersionOf
from tandem.index.window import Chosen, Head
from tandem.statements.tree import Expr

# Whether a reply of an executor can be believed, and what is wrong with it. Pure.
#
# A coordinator has no facts, so it cannot judge them. It can judge what the reply is of, and
# whether its numbers fit together and with the log. What is not believed costs narrowing only: the
# files are left as they are.


_MOST_GROUPS = 1 << 31


def believed(
    asked: NarrowQuestion, files: pa.Table, reply: NarrowReply, table: pa.Table
) -> NeededGroups:
    """What a reply says of the files. Raises: ValueError, which says why it is not believed."""
    if reply.table_id != asked.table_id:
        raise ValueError(f"of table {reply.table_id[:100]}, asked was {asked.table_id}")
    if reply.version != asked.of.version:
        raise ValueError(f"of version {reply.version}, asked was {asked.of.version}")
    if reply.asked != digest(asked, files):
        raise ValueError("of other files, or another condition")
    if table.schema != NEEDED:
        raise ValueError(f"columns {table.schema.names}")
    table.validate(full=True)
    for field in NEEDED:
        if field.name not in ("groups", "rest") and table[field.name].null_count:
            raise ValueError(f"nulls in {field.name}")
    # Each file once.
    places = table["file"].to_numpy()
    if len(places) != files.num_rows or (places != np.arange(files.num_rows)).any():
        raise ValueError(f"{len(places)} files, not each of the {files.num_rows} asked once")
    found = needed_from(table)
    _check(found, files["rows"].to_numpy(), files["dead"].to_numpy())
    return found


def _check(found: NeededGroups, rows: IntArray, dead: IntArray) -> None:
    """Raises: ValueError if numbers contradict each other or the log."""
    without = found.file_rows == NOT_KNOWN
    if ((found.file_rows < 0) & ~without).any() or (without != (found.group_counts < 0)).any():
        raise ValueError("a number of rows or row groups that is none")
    if ((found.file_rows != rows) & ~without & (rows != NOT_KNOWN)).any():
        raise ValueError("a file with other rows than the log says")
    if (found.group_counts >= _MOST_GROUPS).any():
        raise ValueError("too many row groups")
    of_groups = _Lists(found.groups, found.group_counts)
    of_rest = _Lists(found.rest, found.group_counts)
    if (without & ~(of_groups.whole & of_rest.whole)).any():
        raise ValueError("row groups chosen without facts")
    if not of_groups.has(of_rest):
        raise ValueError("a row group is left that is not needed")
    if (found.needed != (of_groups.counts != 0)).any():
        raise ValueError("a file is needed without a row group, or not with one")
    if (found.open != (of_rest.counts != 0)).any():
        raise ValueError("a file is open without a row group, or not with one")
    counted = found.counted
    if (counted < 0).any():
        raise ValueError("a negative number of rows")
    if (counted[(dead > 0) | without] > 0).any():
        raise ValueError("rows counted that a vector may hide, or without facts")
    if (counted[~without] > found.file_rows[~without]).any():
        raise ValueError("more rows counted than there are")
    if (found.certain & without).any():
        raise ValueError("certain without facts")
    # Row groups that are needed and not left have been counted.
    taken = of_groups.counts - of_rest.counts
    if ((taken == 0) & (counted > 0)).any():
        raise ValueError("rows counted of no row group")
    all_taken = ~without & (taken == found.group_counts)
    if (counted[all_taken] != found.file_rows[all_taken]).any():
        raise ValueError("all row groups counted, and not all rows")


class _Lists:
    """Lists of row groups; null stands for all.

    Raises: ValueError if one names a row group that is not there, or one twice.
    """

    def __init__(self, lists: pa.Array, group_counts: IntArray) -> None:
        whole = np.asarray(lists.is_null())
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        values = lists.flatten()
        if values.null_count:
            raise ValueError("a row group without a number")
        numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
        owner = np.repeat(np.arange(len(lists)), lengths)
        if ((numbers < 0) | (numbers >= group_counts[owner])).any():
            raise ValueError("a row group that the file does not have")
        if ((np.diff(numbers) <= 0) & (np.diff(owner) == 0)).any():
            raise ValueError("a row group twice")
        self.whole = whole
        self.keys = owner * _MOST_GROUPS + numbers
        # Of a file without facts the number of row groups is not known; there is one at least.
        every = np.where(group_counts < 0, 1, group_counts)
        self.counts: IntArray = np.where(whole, every, lengths)

    def has(self, other: _Lists) -> bool:
        """Whether all row groups of the other are here."""
        if (other.whole & ~self.whole & (self.counts != other.counts)).any():
            return False
        owner = other.keys // _MOST_GROUPS
        open_ = ~self.whole[owner]
        return bool(np.isin(other.keys[open_], self.keys).all())


# The current mapping of a coordinator, shared by the threads that answer requests.
#
# The rules are those of `tandem.index.assignment`; here is only the lock.


class Assignments:
    """The current mapping of a coordinator. Thread-safe: of two askers one decides (X14)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ShardMapping()

    @property
    def now(self) -> ShardMapping:
        return self._now

    def route(self, shards: Collection[Shard]) -> Routes:
        """Assign what has no executor, and say where all of `shards` are. No executor that was
        removed before the call is in the answer."""
        return rules.routes(
            shards, self._change(lambda now: rules.assign(shards, now.executors, now))
        )

    def report(self, executor: Executor, sizes: Mapping[Shard, int]) -> None:
        """See `report`."""
        self._change(lambda now: rules.report(now, executor, sizes))

    def join(self, executor: Executor) -> None:
        """See `joined`."""
        self._change(lambda now: rules.joined(now, executor))

    def remove(self, executor: Executor) -> tuple[Shard, ...]:
        """See `without`. Returns: the shards it had, so that others can load them before the next
        request."""
        lost: list[Shard] = []

        def change(now: ShardMapping) -> ShardMapping:
            lost.extend(now.shards_of(executor))
            return rules.without(now, executor)

        self._change(change)
        return tuple(lost)

    def drop_table(self, table: str) -> None:
        """See `without_table`."""
        self._change(lambda now: rules.without_table(now, table))

    def drop_shards(self, shards: Collection[Shard]) -> None:
        """See `without_shards`."""
        self._change(lambda now: rules.without_shards(now, shards))

    def _change(self, change: Callable[[ShardMapping], ShardMapping]) -> ShardMapping:
        with self._lock:
            self._now = change(self._now)
            return self._now


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
