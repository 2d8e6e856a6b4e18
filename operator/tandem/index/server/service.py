"""Answers questions about the tables that it serves. No network here.

Every table is followed by itself: one whose store does not answer delays no question about
another one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import structlog

from tandem.delta.scan import column_names
from tandem.errors import InvalidSpec, ReferenceNotFound, StorageError, closest_name
from tandem.index import answers
from tandem.index.answers import Scope
from tandem.index.library import Query, TableIndex, condition, scope
from tandem.index.server.calls import (
    Answer,
    AnswerFiles,
    Background,
    no_such_call,
    parsed,
    table_of,
)
from tandem.index.server.coordinator import Coordinator
from tandem.index.server.messages import (
    MAX_REQUEST_BYTES,
    BoundsAnswer,
    BoundsQuestion,
    CacheAnswer,
    CountAnswer,
    ExecutorCache,
    HeldTable,
    IndexCall,
    PortionsAnswer,
    PortionsQuestion,
    Question,
    SplitsAnswer,
    TableQuestion,
    VersionOf,
    portions_table,
    splits_table,
)
from tandem.index.window import View

_log = structlog.get_logger("tandem.index.server")
_MOST_BOUNDS: Final = 64 << 20
"""Bytes of an answer about bounds: each column may name all files twice."""


@dataclass
class _Served:
    index: TableIndex
    questions: int = 0
    bytes: int = 0
    """As of the end of the last question about it."""


class IndexService:
    """Serves tables by name.

    Args:
        tables: how the index of each is opened, by the name of its LakeTable.
        parts: where large answers wait.
        limit_bytes: of what is held between questions; None for no limit. The tables that were
            asked for least recently are dropped. One that is larger is held for a question only.
        coordinator: has files narrowed to row groups; None for the log alone.
        max_staleness_s: of questions that do not say how old an answer may be.
    """

    def __init__(
        self,
        tables: Mapping[str, Callable[[], TableIndex]],
        parts: AnswerFiles,
        *,
        limit_bytes: int | None = None,
        coordinator: Coordinator | None = None,
        max_staleness_s: float = 0.0,
    ) -> None:
        self.parts = parts
        self.coordinator = coordinator
        self._max_staleness_s = max_staleness_s
        self._limit = limit_bytes
        self._evictions = 0
        self._openers = dict(tables)
        self._lock = threading.Lock()
        self._served: OrderedDict[str, _Served] = OrderedDict()
        """Those asked for least recently first."""
        self._bytes = 0
        """Of all of them, as measured."""
        self._background = Background(1, "base")
        self._writing: dict[str, Future[object]] = {}

    def close(self) -> None:
        """Write no more bases."""
        self._background.close()

    def ask(self, call: str, body: bytes, caller: str = "") -> Answer:
        """Answer one call.

        Raises: InvalidSpec if it is none, or too large; ReferenceNotFound for an unknown table; and
            what its question raises.
        """
        if len(body) > MAX_REQUEST_BYTES:
            raise InvalidSpec(
                "the question is too large",
                resource=call[:40],
                found=f"{len(body):,} bytes",
                expected=f"at most {MAX_REQUEST_BYTES:,}",
            )
        try:
            return self._answer(call, body, caller)
        finally:
            self._measure(table_of(body))

    def _answer(self, call: str, body: bytes, caller: str) -> Answer:
        match call:
            case IndexCall.GET_COUNT:
                return self._count(parsed(Question, call, body))
            case IndexCall.GET_SPLITS:
                return self._splits(parsed(Question, call, body), caller)
            case IndexCall.GET_PORTIONS:
                return self._portions(parsed(PortionsQuestion, call, body))
            case IndexCall.GET_BOUNDS:
                return self._bounds(parsed(BoundsQuestion, call, body))
            case IndexCall.SHOW_CACHE:
                return Answer(self._cache(parsed(TableQuestion, call, body).table))
            case IndexCall.INVALIDATE_CACHE:
                return self._invalidate(parsed(TableQuestion, call, body).table)
            case IndexCall.LOAD:
                return self._load(parsed(Question, call, body))
            case _:
                raise no_such_call(call, IndexCall)

    def _count(self, asked: Question) -> Answer:
        view = self._view(asked)
        found = answers.certain_count(view, *self._scope(asked, view))
        rest = len(found.rest)
        message = CountAnswer(of=VersionOf.of(view.head), rows=found.rows, rest=rest)
        return Answer(message, (splits_table(found.rest),) if rest else ())

    def _splits(self, asked: Question, caller: str) -> Answer:
        index = self._table(asked.table)
        view = self._view(asked, index)
        until_ms = index.kept_until_ms(view, asked.hold_s)
        found = answers.splits(view, *self._scope(asked, view))
        table = splits_table(found)
        ticket = self.parts.keep(table, caller)
        message = SplitsAnswer(
            of=VersionOf.of(view.head),
            splits=len(found),
            readable_until_ms=until_ms,
            ticket=ticket,
        )
        return Answer(message, () if ticket else (table,))

    def _portions(self, asked: PortionsQuestion) -> Answer:
        index = self._table(asked.table)
        view = self._view(asked, index)
        if asked.hold_s:
            index.kept_until_ms(view, asked.hold_s)
        found = answers.portions(view, asked.cut, *self._scope(asked, view))
        message = PortionsAnswer(of=VersionOf.of(view.head), splits=found.splits)
        return Answer(message, (portions_table(found),))

    def _bounds(self, asked: BoundsQuestion) -> Answer:
        view = self._view(asked)
        schema = view.head.schema
        names = tuple(dict.fromkeys(column_names(schema, asked.columns, resource=asked.table)))
        where, paths = condition(view.head, asked.where), asked.query.paths
        tables: list[pa.Table] = []
        for name in names:
            (found,) = answers.certain_bounds(view, (name,), where, asked.segments, paths)
            tables.append(pa.table({"low": [found.low], "high": [found.high]}))
            for part, limits in ((found.below, found.lows), (found.above, found.highs)):
                limit = pa.array(list(limits))
                tables.append(splits_table(part).append_column("limit", limit))
            size = sum(table.nbytes for table in tables)
            if size > _MOST_BOUNDS:
                raise InvalidSpec(
                    "the files that could have the bounds of these columns are too many",
                    resource=asked.table,
                    field="columns",
                    found=f"{size:,} bytes for {len(tables) // 3} of {len(names)} columns",
                    expected=f"at most {_MOST_BOUNDS:,}",
                    remedy="Ask about fewer columns at once",
                )
        return Answer(BoundsAnswer(of=VersionOf.of(view.head), columns=names), tuple(tables))

    def _load(self, asked: Question) -> Answer:
        self._view(asked)
        return Answer(self._cache(asked.table))

    def _invalidate(self, name: str | None) -> Answer:
        if name is not None:
            self._known(name)
        with self._lock:
            gone = [name] if name is not None else list(self._served)
            for each in gone:
                self._drop(each)
        if self.coordinator is not None:
            for each in gone if name is not None else self._openers:
                self.coordinator.drop(each)
        return Answer(self._cache(name))

    def _cache(self, name: str | None) -> CacheAnswer:
        if name is not None:
            self._known(name)
        found = []
        for each in sorted(self._openers if name is None else [name]):
            served = self._served.get(each)
            found.append(
                HeldTable(
                    table=each,
                    version=None if served is None else served.index.table.latest,
                    bytes=0 if served is None else served.index.nbytes,
                    questions=0 if served is None else served.questions,
                )
            )
        return CacheAnswer(
            tables=tuple(found),
            limit_bytes=self._limit,
            evictions=self._evictions,
            executors=self._executors(name),
        )

    def _executors(self, name: str | None) -> tuple[ExecutorCache, ...]:
        if self.coordinator is None:
            return ()
        return tuple(
            ExecutorCache(
                slot=executor.slot,
                id=executor.id,
                shards=tuple(each for each in held.shards if name in (None, each.table)),
                limit_bytes=held.limit_bytes,
                evictions=held.evictions,
                refused=self.coordinator.refused[executor.id],
            )
            for executor, held in self.coordinator.shown().items()
        )

    def _measure(self, name: str) -> None:
        """After a question about a table: drop tables until what is held is below the limit. Of
        very many tables only that one can have grown, unless another question measures it, too."""
        with self._lock:
            served = self._served.get(name)
            if served is not None:
                size = served.index.nbytes
                self._bytes += size - served.bytes
                served.bytes = size
            while self._limit is not None and self._bytes > self._limit and self._served:
                self._drop(next(iter(self._served)))
                self._evictions += 1

    def _drop(self, name: str) -> None:
        served = self._served.pop(name, None)
        if served is not None:
            self._bytes -= served.bytes

    def follow(self, name: str, *, load: bool = False) -> bool:
        """Look for newer commits of a table without counting as a question: of one that is held, or
        with `load` of any, as long as there is room. Returns whether it is held.

        Raises: as a question about it.
        """
        opener = self._known(name)
        with self._lock:
            served = self._served.get(name)
            full = self._limit is not None and self._bytes >= self._limit
        if served is None and (not load or full):
            return False
        served = served or self._opened(name, opener)
        before = served.index.table.latest
        view = served.index.view(Query())
        self._write_base(name, served.index)
        if self.coordinator is not None:
            self.coordinator.followed(name, view)
        if view.version != before:
            self._measure(name)
        return True

    def _view(self, asked: Question, index: TableIndex | None = None) -> View:
        query = asked.query
        if query.max_staleness_s is None:
            query = replace(query, max_staleness_s=self._max_staleness_s)
        index = index or self._table(asked.table)
        view = index.view(query)
        self._write_base(asked.table, index)
        newest = asked.version is None and asked.timestamp_ms is None
        if newest and self.coordinator is not None:
            self.coordinator.followed(asked.table, view)
        return view

    def _write_base(self, name: str, index: TableIndex) -> None:
        """Begin to write what is held of a table, if that is due, in the background."""
        if not index.table.base_due:
            return
        with self._lock:
            task = self._writing.get(name)
            if task is None or task.done():
                self._writing[name] = self._background.submit(name, _written, name, index)

    def _scope(self, asked: Question, view: View) -> Scope:
        """What is asked about of a view. Raises: InvalidStatement."""
        narrower = None
        if self.coordinator is not None and asked.where:
            narrower = self.coordinator.narrower(asked.table, view, asked.where)
        return scope(view, asked.query, narrower)

    def _opened(self, name: str, opener: Callable[[], TableIndex]) -> _Served:
        opened = opener()
        with self._lock:
            return self._served.setdefault(name, _Served(opened))

    def _table(self, name: str) -> TableIndex:
        opener = self._known(name)
        with self._lock:
            served = self._served.get(name)
        if served is None:
            served = self._opened(name, opener)
        with self._lock:
            served.questions += 1
            if name in self._served:
                self._served.move_to_end(name)
        return served.index

    def _known(self, name: str) -> Callable[[], TableIndex]:
        opener = self._openers.get(name)
        if opener is None:
            meant = closest_name(name, sorted(self._openers))
            raise ReferenceNotFound(
                "this server does not serve such a table",
                resource=name[:100],
                expected=f"perhaps {meant}" if meant else "the name of a LakeTable that it serves",
            )
        return opener


def _written(name: str, index: TableIndex) -> None:
    try:
        if index.table.write_base():
            _log.info("a base was written", table=name)
    except StorageError as error:
        # The next process reads the log, as this one did.
        _log.info("a base cannot be written now", table=name, problem=str(error))
