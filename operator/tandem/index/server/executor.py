"""What an executor does: it narrows files of its shards to row groups. No network here.

Facts are immutable, so an executor needs no log, no version and no commit. Facts that it does not
hold are read while the question's budget lasts, then in the background: the files are left as they
are until then (X-b).
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import StrEnum
from functools import lru_cache, partial
from hashlib import sha256
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pydantic import Field

from tandem.delta.stats import MOST_ROWS
from tandem.distinct import IntArray
from tandem.errors import InvalidSpec, ReferenceNotFound, StorageError
from tandem.index import narrowing
from tandem.index.facts.cache import LIMIT, FactsCache
from tandem.index.facts.files import FactsListing
from tandem.index.facts.row_groups import UNKNOWN
from tandem.index.library import condition
from tandem.index.narrowing import GroupMatch, GroupMatches, narrowed, together
from tandem.index.server.calls import Answer, AnswerFiles, Background, no_such_call, parsed
from tandem.index.server.messages import (
    MAX_WHERE,
    HeldShard,
    Message,
    Name,
    Names,
    VersionOf,
)
from tandem.index.window import Head
from tandem.statements.tree import Expr
from tandem.storage.store import Store

# What a coordinator and its executors say to each other: closed JSON, and Arrow tables beside it.
# Pure.
#
# A reply names each file that was asked exactly once, by its place in the question, and repeats
# what the question was about, so that a coordinator notices one that is of other files or another
# version.


MAX_FILES: Final = 100_000
"""Files of one question to an executor; what is beyond is left as it is."""

MAX_REPLY_BYTES: Final = 64 << 20
"""Of a reply. One that would have more leaves files as they are."""

MAX_SIZES: Final = 5_000
"""Of shards that an executor tells of at a time."""

FILES: Final = narrowing.FILES.insert(0, pa.field("shard", pa.int32()))
"""Files of a question: the place of their shard in it, and as `narrowing.FILES`."""

MATCHES: Final = pa.schema(
    [("file", pa.int32()), ("rows", pa.list_(pa.int64())), ("matches", pa.list_(pa.int8()))]
)
"""Files of a reply: their place in the question, and as `GroupMatches`."""


class ExecutorCall(StrEnum):
    """What a coordinator asks an executor."""

    NARROW = "Narrow"
    PRIME = "Prime"
    SHOW_CACHE = "ShowCache"
    INVALIDATE_CACHE = "InvalidateCache"


REGISTRY_CALL: Final = "Beat"
"""What an executor tells its coordinator, with `SlotNews`."""


class ShardQuestion(Message):
    """Files of some shards of a table.

    Attributes:
        shards: keys, which the files name by their place.
    """

    api: Literal["v1"] = "v1"
    table: Name
    table_id: Name
    shards: Names


class NarrowQuestion(ShardQuestion):
    """Attributes:
    where: a condition in Tandem's grammar.
    budget_s: seconds after which files are left as they are.
    """

    of: VersionOf
    where: Annotated[str, Field(max_length=MAX_WHERE)]
    budget_s: Annotated[float, Field(gt=0, le=60)]


class NarrowReply(Message):
    """`asked` is the `digest` of the question; the files are the first Arrow table."""

    asked: str


class PrimeReply(Message):
    """So many files were taken on; their facts are read later."""

    files: int


class SlotCache(Message):
    """`evictions` since the start."""

    shards: tuple[HeldShard, ...]
    limit_bytes: int | None
    evictions: int


class InvalidateQuestion(Message):
    """Drop shards of a table; all of them, or all tables, if none are named."""

    api: Literal["v1"] = "v1"
    table_id: Name | None = None
    shards: Names = ()


class ShardSize(Message):
    table_id: Name
    shard: Name
    bytes: Annotated[int, Field(ge=0)]


class SlotNews(Message):
    """A sign of life of an executor, the first of which lets it join.

    Attributes:
        id: opaque; of this process alone.
        endpoint: where it listens, with an address, never a host's name.
        sizes: of shards that it holds.
        leaves: it ends.
    """

    api: Literal["v1"] = "v1"
    slot: Annotated[int, Field(ge=0, le=1_000_000)]
    id: Annotated[str, Field(min_length=1, max_length=200)]
    endpoint: Annotated[str, Field(max_length=500)]
    sizes: Annotated[tuple[ShardSize, ...], Field(max_length=MAX_SIZES)] = ()
    leaves: bool = False


class Welcome(Message):
    """Whether the coordinator knew the executor. To one that was not known, it assigns shards as to
    one that holds nothing."""

    known: bool


def digest(question: NarrowQuestion, files: pa.Table) -> str:
    """Of what is asked: the version, the condition, and each file in its shard."""
    found = sha256(f"{question.table_id}\n{question.of.version}\n{question.where}\n".encode())
    found.update("\n".join(question.shards).encode())
    for name in ("shard", "path", "size"):
        found.update(repr(files[name].to_pylist()).encode())
    return found.hexdigest()


def matches_table(found: GroupMatches) -> pa.Table:
    """The files of a reply."""
    return pa.table([np.arange(len(found), dtype=np.int32), found.rows, found.matches], MATCHES)


def matches_from(table: pa.Table) -> GroupMatches:
    """The reverse of `matches_table`."""
    whole = table.combine_chunks()
    return GroupMatches(*(whole[name].combine_chunks() for name in ("rows", "matches")))


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
    places = table["file"].to_numpy()
    if len(places) != files.num_rows or (places != np.arange(len(places))).any():
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


def body(question: Message, files: pa.Table | None = None) -> bytes:
    """A question on the wire: a line of JSON, then the files as a stream of Arrow."""
    text = question.model_dump_json(by_alias=True, exclude_none=True).encode()
    if files is None:
        return text
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as out:
        out.write_table(files)
    return text + b"\n" + bytes(sink.getvalue())


def files_of(data: bytes) -> pa.Table:
    """The files of a question. Raises: InvalidSpec if they are none."""
    _, _, stream = data.partition(b"\n")
    try:
        files = pa.ipc.open_stream(stream).read_all()
        files.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _no_files(str(error)) from error
    if files.schema != FILES:
        raise _no_files(str(files.schema))
    if any(files[name].null_count for name in ("shard", "path", "size", "rows", "dead")):
        raise _no_files("nulls")
    if files.num_rows > MAX_FILES:
        raise _no_files(f"{files.num_rows:,} files")
    return files.combine_chunks()


def _no_files(found: str) -> InvalidSpec:
    return InvalidSpec(
        "a question whose files cannot be read",
        found=found[:200],
        expected=f"at most {MAX_FILES:,} files, as Arrow",
    )


# The facts that one executor holds, shard by shard, below a limit of bytes.
#
# What was used least recently is dropped first. A shard that was dropped is still this executor's:
# it is loaded again when it is asked for (X5).


_NOTHING = 0, 0
MakeFacts = Callable[[Store, FactsListing], FactsCache]


class ShardName(NamedTuple):
    """`table` is the name of its LakeTable: of two tables of one id each has facts of its own."""

    table: str
    table_id: str
    key: str


class Held:
    """The facts of one shard. Thread-safe."""

    def __init__(self, facts: FactsCache) -> None:
        self.facts = facts
        self._lock = threading.Lock()
        self._late: set[Future[GroupMatches]] = set()

    def note_late(self, question: Future[GroupMatches]) -> None:
        """A question did not end in time, and goes on: its facts are being read."""
        with self._lock:
            self._late.add(question)

    @property
    def is_loading(self) -> bool:
        with self._lock:
            self._late = {each for each in self._late if not each.done()}
            return bool(self._late)


class HeldShards:
    """Thread-safe.

    Args:
        stores: how the store of each table is opened, by the name of its LakeTable.
        limit_bytes: of what is held between questions; None for no limit.
        facts: makes what holds the facts of a shard, if it is not the usual one.
    """

    def __init__(
        self,
        stores: Mapping[str, Callable[[], Store]],
        *,
        limit_bytes: int | None = None,
        facts: MakeFacts | None = None,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.evictions = 0
        self._stores = stores
        # No shard alone may take more than all.
        most = LIMIT if limit_bytes is None else min(limit_bytes, LIMIT)
        self._facts = facts or partial(FactsCache, limit=most)
        self._tables: dict[str, tuple[Store, FactsListing]] = {}
        self._lock = threading.Lock()
        self._held: OrderedDict[ShardName, Held] = OrderedDict()
        """Those asked for least recently first."""
        self._loads, self._hits = Counter[ShardName](), Counter[ShardName]()

    def of(self, name: ShardName) -> Held:
        """The facts of a shard, which may be none yet. Raises: ReferenceNotFound."""
        store, listing = self._opened(name.table)
        with self._lock:
            held = self._held.get(name)
            if held is None:
                held = self._held[name] = Held(self._facts(store, listing))
                self._loads[name] += 1
            else:
                self._held.move_to_end(name)
                self._hits[name] += 1
            return held

    def shown(self) -> tuple[HeldShard, ...]:
        """What is held, and what has been evicted and not been loaded again."""
        with self._lock:
            sizes = {
                name: (held.facts.nbytes, held.facts.filter_bytes)
                for name, held in self._held.items()
            }
            return tuple(
                HeldShard(
                    table=name.table,
                    table_id=name.table_id,
                    shard=name.key,
                    bytes=sizes.get(name, _NOTHING)[0],
                    filter_bytes=sizes.get(name, _NOTHING)[1],
                    loads=self._loads[name],
                    hits=self._hits[name],
                )
                for name in sorted(self._loads)
            )

    def sizes(self) -> dict[ShardName, int]:
        """The bytes that shards need, of those that have been loaded."""
        with self._lock:
            sizes = {name: held.facts.nbytes for name, held in self._held.items()}
        return {name: size for name, size in sizes.items() if size}

    def drop(self, table_id: str | None = None, keys: Collection[str] = ()) -> None:
        """Forget shards: these of a table, all of a table, or all."""
        with self._lock:
            for name in list(self._loads):
                if table_id in (None, name.table_id) and (not keys or name.key in keys):
                    self._held.pop(name, None)
                    self._hits.pop(name, None)
                    del self._loads[name]

    def evict(self) -> None:
        """Drop what was used least recently until what is held is below the limit."""
        if self.limit_bytes is None:
            return
        with self._lock:
            sizes = {name: held.facts.nbytes for name, held in self._held.items()}
            total = sum(sizes.values())
            for name, size in sizes.items():
                if total <= self.limit_bytes:
                    break
                total -= size
                del self._held[name]
                self.evictions += 1

    def _opened(self, table: str) -> tuple[Store, FactsListing]:
        """A table's store, and the listing of its facts, which all of its shards share."""
        with self._lock:
            found = self._tables.get(table)
        if found is None:
            opener = self._stores.get(table)
            if opener is None:
                raise ReferenceNotFound(
                    "this executor does not serve such a table",
                    resource=table[:100],
                    expected="the name of a LakeTable that the server serves",
                )
            store = opener()
            with self._lock:
                found = self._tables.setdefault(table, (store, FactsListing(store)))
        return found


_log = structlog.get_logger("tandem.index.executor")

THREADS: Final = 8
WAITING_PRIMES: Final = 64
"""Requests for pre-priming that wait; further ones are dropped."""


class ExecutorService:
    """Answers a coordinator. Thread-safe. `timeout_s` is of use where a call leaves the process
    (`RemoteExecutor`).

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
            case ExecutorCall.NARROW:
                asked = parsed(NarrowQuestion, call, head)
                reply, table = self.narrow(asked, files_of(body))
                return Answer(reply, (table,))
            case ExecutorCall.PRIME:
                return Answer(self.prime(parsed(ShardQuestion, call, head), files_of(body)))
            case ExecutorCall.SHOW_CACHE:
                return Answer(self.show())
            case ExecutorCall.INVALIDATE_CACHE:
                gone = parsed(InvalidateQuestion, call, head)
                return Answer(self.invalidate(gone))
            case _:
                raise no_such_call(call, ExecutorCall)

    def narrow(
        self, asked: NarrowQuestion, files: pa.Table, timeout_s: float = 0  # noqa: ARG002
    ) -> tuple[NarrowReply, pa.Table]:  # fmt: skip
        """Which row groups of the files a condition needs. Raises: InvalidSpec, ReferenceNotFound,
        InvalidStatement."""
        head, where = _understood(asked.of, asked.where)
        if where is None:
            raise InvalidSpec(
                "there is nothing to narrow by", field="where", expected="a condition"
            )
        rows_of = _by_shard(asked, files)
        running: dict[Future[GroupMatches], tuple[Held, IntArray]] = {}
        found = [GroupMatches.unknown(files.num_rows)]
        places = [np.arange(files.num_rows)]
        for key, rows in rows_of.items():
            held = self.held.of(ShardName(asked.table, asked.table_id, key))
            if held.is_loading:
                continue
            mine = files.take(pa.array(rows))
            task = self._pool.submit(narrowed, head, where, mine, held.facts)
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
        table = matches_table(whole)
        if table.nbytes > self._reply_bytes:
            table = matches_table(GroupMatches.unknown(files.num_rows))
        reply = NarrowReply(asked=digest(asked, files))
        return reply, table

    def prime(
        self, asked: ShardQuestion, files: pa.Table, timeout_s: float = 0  # noqa: ARG002
    ) -> PrimeReply:  # fmt: skip
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

    def show(self, timeout_s: float = 0) -> SlotCache:  # noqa: ARG002
        return SlotCache(
            shards=self.held.shown(),
            limit_bytes=self.held.limit_bytes,
            evictions=self.held.evictions,
        )

    def invalidate(self, gone: InvalidateQuestion, timeout_s: float = 0) -> Message:  # noqa: ARG002
        """Forget shards, and show what is left."""
        self.held.drop(gone.table_id, gone.shards)
        return self.show()


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
