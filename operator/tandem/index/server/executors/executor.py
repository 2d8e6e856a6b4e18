"""What an executor does: it narrows files of its shards to row groups. No network here.

Facts are immutable, so an executor needs no log, no version and no commit. Facts that it does not
hold are read while the question's budget lasts, then in the background: the files are left as they
are until then (X-b).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import structlog

from tandem.distinct import IntArray
from tandem.errors import InvalidSpec, StorageError
from tandem.index.columns import entry_column
from tandem.index.library import condition
from tandem.index.narrowing import NeededGroups, OpenFiles, together
from tandem.index.row_groups import narrowed
from tandem.index.server.answer_files import AnswerFiles
from tandem.index.server.background import Background
from tandem.index.server.calls import Answer, parsed
from tandem.index.server.executors.held_shards import Held, HeldShards, MakeFacts, ShardName
from tandem.index.server.executors.slot_messages import (
    MAX_REPLY_BYTES,
    InvalidateQuestion,
    NarrowQuestion,
    NarrowReply,
    PrimeReply,
    ShardQuestion,
    SlotCache,
    SlotCall,
    digest,
    files_of,
    needed_table,
)
from tandem.index.server.messages import Message, VersionOf
from tandem.index.window import Head
from tandem.pruning.files import bounds_of
from tandem.pruning.predicate import columns_of
from tandem.statements.tree import Expr
from tandem.storage.store import Store

_log = structlog.get_logger("tandem.index.executor")

THREADS: Final = 8
WAITING_PRIMES: Final = 64
"""Requests for pre-priming that wait; further ones are dropped."""


class ExecutorService:
    """Answers a coordinator. Thread-safe.

    Args:
        stores: how the store of each table is opened, by the name of its LakeTable.
        limit_bytes: of facts that are held between questions; None for no limit.
        facts: as of `HeldShards`.
        reply_bytes: of a reply.
    """

    def __init__(
        self,
        stores: Mapping[str, Callable[[], Store]],
        *,
        limit_bytes: int | None = None,
        facts: MakeFacts | None = None,
        reply_bytes: int = MAX_REPLY_BYTES,
    ) -> None:
        self.parts = AnswerFiles(None)
        self.held = HeldShards(stores, limit_bytes=limit_bytes, facts=facts)
        self._reply_bytes = reply_bytes
        self._pool = ThreadPoolExecutor(THREADS, "narrow")
        self._background = Background(1, "prime")
        self._closed = threading.Event()
        self._waiting = threading.Semaphore(WAITING_PRIMES)

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._background.close()

    def ask(self, call: str, body: bytes, caller: str = "") -> Answer:  # noqa: ARG002
        """Raises: InvalidSpec, ReferenceNotFound."""
        head, _, _ = body.partition(b"\n")
        match call:
            case SlotCall.NARROW:
                asked = parsed(NarrowQuestion, call, head)
                reply, table = self.narrow(asked, files_of(body))
                return Answer(reply, (table,))
            case SlotCall.PRIME:
                return Answer(self.prime(parsed(ShardQuestion, call, head), files_of(body)))
            case SlotCall.SHOW_CACHE:
                return Answer(self.show())
            case SlotCall.INVALIDATE_CACHE:
                gone = parsed(InvalidateQuestion, call, head)
                return Answer(self.invalidate(gone))
            case _:
                raise InvalidSpec(
                    "no such call", resource=call[:40], expected="one of " + ", ".join(SlotCall)
                )

    def narrow(self, asked: NarrowQuestion, files: pa.Table) -> tuple[NarrowReply, pa.Table]:
        """Which row groups of the files a condition needs. Raises: InvalidSpec, ReferenceNotFound,
        InvalidStatement."""
        head, where = _understood(asked.of, asked.where)
        if where is None:
            raise InvalidSpec(
                "there is nothing to narrow by", field="where", expected="a condition"
            )
        rows_of = _by_shard(asked, files)
        running: dict[Future[NeededGroups], tuple[Held, IntArray]] = {}
        found = [NeededGroups.every(files.num_rows)]
        places = [np.arange(files.num_rows)]
        for key, rows in rows_of.items():
            held = self.held.of(ShardName(asked.table, asked.table_id, key))
            if held.is_loading:
                continue
            mine = files.take(pa.array(rows))
            task = self._pool.submit(_narrowed, head, where, mine, held)
            running[task] = held, rows
        done, late = wait(running, timeout=asked.budget_s)
        for task in late:
            if not task.cancel():
                running[task][0].note_late(task)
        for task in done:
            problem = task.exception()
            if problem is not None:
                # Whatever it is: the files are left as they are.
                _log.error("a shard cannot be narrowed", table=asked.table, exc_info=problem)
                continue
            found.append(task.result())
            places.append(running[task][1])
        self.held.evict()
        whole = together(found, places)
        table = needed_table(whole)
        if table.nbytes > self._reply_bytes:
            table = needed_table(NeededGroups.every(files.num_rows))
        reply = NarrowReply(
            table_id=asked.table_id, version=asked.of.version, asked=digest(asked, files)
        )
        return reply, table

    def prime(self, asked: ShardQuestion, files: pa.Table) -> PrimeReply:
        """Read facts of files in the background, before they are asked for."""
        rows_of = _by_shard(asked, files)
        if not self._waiting.acquire(blocking=False):
            return PrimeReply(files=0)

        def load() -> None:
            try:
                for key, rows in rows_of.items():
                    held = self.held.of(ShardName(asked.table, asked.table_id, key))
                    mine = files.take(pa.array(rows))
                    held.facts.warm(
                        mine.select(["path", "size"]),
                        mine["rows"].to_numpy(),
                        self._closed.is_set,
                        table_id=asked.table_id,
                    )
                self.held.evict()
            except StorageError as error:
                # They are read when they are asked for.
                _log.info("facts cannot be read now", table=asked.table, problem=str(error))
            finally:
                self._waiting.release()

        self._background.submit(asked.table, load)
        return PrimeReply(files=files.num_rows)

    def show(self) -> SlotCache:
        return SlotCache(
            shards=self.held.shown(),
            limit_bytes=self.held.limit_bytes,
            evictions=self.held.evictions,
        )

    def invalidate(self, gone: InvalidateQuestion) -> Message:
        """Forget shards, and show what is left."""
        self.held.drop(gone.table_id, gone.shards)
        return self.show()


def _narrowed(head: Head, where: Expr, files: pa.Table, held: Held) -> NeededGroups:
    return narrowed(head, where, open_files(head, where, files), held.facts)


def open_files(head: Head, where: Expr, files: pa.Table) -> OpenFiles:
    """The files of a question (`slot_messages.FILES`)."""
    partitions = head.metadata.partition_columns
    wanted = {name: type_ for name, type_ in columns_of(where) if name in partitions}
    columns = {}
    if wanted:
        table = files.append_column("stats", pa.nulls(files.num_rows, pa.string()))
        bounds = bounds_of(table, head.schema, partitions, wanted)
        columns = {name: entry_column(column) for name, column in bounds.columns.items()}
    return OpenFiles(
        files.select(["path", "size"]), files["rows"].to_numpy(), files["dead"].to_numpy(), columns
    )


def _by_shard(asked: ShardQuestion, files: pa.Table) -> dict[str, IntArray]:
    """The files of each shard. Raises: InvalidSpec."""
    shards = files["shard"].to_numpy()
    if len(shards) and not 0 <= shards.min() <= shards.max() < len(asked.shards):
        raise InvalidSpec(
            "a file of a shard that is not named",
            resource=asked.table,
            field="shards",
            found=int(shards.max()),
            expected=f"a place below {len(asked.shards)}",
        )
    return {asked.shards[at]: np.flatnonzero(shards == at) for at in np.unique(shards).tolist()}


@lru_cache(maxsize=64)
def _head(text: str) -> Head:
    return VersionOf.model_validate_json(text).head


@lru_cache(maxsize=256)
def _condition(text: str, where: str) -> Expr | None:
    return condition(_head(text), where)


def _understood(of: VersionOf, where: str) -> tuple[Head, Expr | None]:
    # What has been read once is kept: most questions are about few versions.
    text = of.model_dump_json()
    return _head(text), _condition(text, where)
