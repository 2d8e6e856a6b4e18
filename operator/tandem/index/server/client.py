"""A table's index behind a server, with what a caller does where the server fails: the index in the
caller's own process, then every live file. The rows that are read are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TypeVar

import numpy as np
import pyarrow as pa
import structlog
from pydantic import ValidationError

from tandem.delta.log import files as files_
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import check_rows, column_names
from tandem.errors import AccessDenied, TandemError, Unreachable
from tandem.index.answers import CertainBounds, CertainCount, Splits, splits_of
from tandem.index.entries import UNKNOWN_ROWS
from tandem.index.holds import Holds
from tandem.index.library import EVERYTHING, IndexReader, Query, TableIndex
from tandem.index.narrowing import GROUPS
from tandem.index.server.messages import (
    BoundsAnswer,
    BoundsQuestion,
    CountAnswer,
    IndexCall,
    Message,
    Question,
    SplitsAnswer,
    splits_from,
)
from tandem.index.server.transport import Connection
from tandem.index.window import Head
from tandem.storage.store import Store
from tandem.timeline.segments import segments

_log = structlog.get_logger("tandem.index.client")
LEFT_OUT_S = 10.0
"""Seconds for which a server that failed is not asked again."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Fallback(StrEnum):
    """What follows where the server fails."""

    EMBEDDED = "Embedded"
    """The index in this process."""
    NEVER = "Never"
    """An error."""


class RemoteIndex(IndexReader):
    """The index that a server holds of one table.

    Args:
        table: the name of the LakeTable.
        store: the table's store, by which this process reads rows.
    """

    def __init__(self, connection: Connection, table: str, store: Store) -> None:
        self._connection, self._name, self._store = connection, table, store

    @property
    def store(self) -> Store:
        return self._store

    def certain_count(self, query: Query = EVERYTHING) -> CertainCount:
        message, tables = self._ask(IndexCall.GET_COUNT, Question.of(self._name, query))
        answer = _whole(CountAnswer, message)
        head = answer.of.head
        if not answer.rest and not tables:
            return CertainCount(head.version, answer.rows, splits_of(head, []))
        table = _one(tables)
        if table.num_rows != answer.rest:
            raise _broken(f"{table.num_rows} splits", f"{answer.rest} splits")
        return CertainCount(head.version, answer.rows, splits_from(head, table))

    def splits(self, query: Query = EVERYTHING) -> Splits:
        message, tables = self._ask(IndexCall.GET_SPLITS, Question.of(self._name, query))
        answer = _whole(SplitsAnswer, message)
        table = self._connection.fetch(answer.ticket) if answer.ticket else _one(tables)
        if table.num_rows != answer.splits:
            raise _broken(f"{table.num_rows} splits", f"{answer.splits} splits")
        return splits_from(answer.of.head, table).kept(answer.readable_until_ms)

    def certain_bounds(
        self, columns: Sequence[str], query: Query = EVERYTHING
    ) -> Sequence[CertainBounds]:
        asked = BoundsQuestion.of(self._name, query, columns=tuple(columns))
        message, tables = self._ask(IndexCall.GET_BOUNDS, asked)
        answer = _whole(BoundsAnswer, message)
        head = answer.of.head
        if len(tables) != 3 * len(answer.columns):
            raise _broken(f"{len(tables)} tables", f"3 for each of {len(answer.columns)} columns")
        found = []
        for at, name in enumerate(answer.columns):
            best, below, above = tables[3 * at : 3 * at + 3]
            found.append(
                CertainBounds(
                    answer.of.version,
                    name,
                    best["low"][0].as_py(),
                    best["high"][0].as_py(),
                    splits_from(head, below),
                    splits_from(head, above),
                    below["limit"].to_pylist(),
                    above["limit"].to_pylist(),
                )
            )
        return found

    def _ask(self, call: IndexCall, asked: Question) -> tuple[dict[str, object], list[pa.Table]]:
        body = asked.model_dump_json(by_alias=True, exclude_none=True).encode()
        return self._connection.ask(call, body)


class EveryFile(IndexReader):
    """No index: each question is left to all live files."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log

    @property
    def store(self) -> Store:
        return self._log.store

    def certain_count(self, query: Query = EVERYTHING) -> CertainCount:
        rest = self.splits(query)
        return CertainCount(rest.version, 0, rest)

    def certain_bounds(
        self, columns: Sequence[str], query: Query = EVERYTHING
    ) -> Sequence[CertainBounds]:
        every = self.splits(query)
        names = column_names(every.head.schema, columns, resource=every.head.location)
        nothing = [None] * len(every)
        return [
            CertainBounds(every.version, name, None, None, every, every, nothing, nothing)
            for name in names
        ]

    def splits(self, query: Query = EVERYTHING) -> Splits:
        snapshot = self._log.snapshot(query.version, timestamp_ms=query.timestamp_ms)
        check_rows(snapshot)
        files = snapshot.files
        if query.segments:
            live = segments(files)
            named = live.where(live.named(query.segments))
            files = files_.with_paths(files, [file.path for file in named.files])
        count = files.num_rows
        unknown, every = np.full(count, UNKNOWN_ROWS), pa.nulls(count, GROUPS)
        head = Head.of(snapshot)
        held_ms = Holds(self._log).place(head, query.hold_s).end_ms if query.hold_s else 0
        return Splits(head, files, np.zeros(count, bool), unknown, every, held_ms)


class ChainedIndex(IndexReader):
    """A server's index, this process's own where the server fails, and every file where that does.
    Thread-safe.

    What is wrong with the question itself is raised at once: it would be wrong everywhere.

    Args:
        embedded: opens the index in this process.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        remote: RemoteIndex,
        embedded: Callable[[], TableIndex],
        *,
        fallback: Fallback = Fallback.EMBEDDED,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._remote, self._embedded = remote, embedded
        self._fallback, self._now = fallback, now
        self._left_out_until = -float("inf")

    @property
    def store(self) -> Store:
        return self._remote.store

    def certain_count(self, query: Query = EVERYTHING) -> CertainCount:
        return self._first(lambda index: index.certain_count(query))

    def certain_bounds(
        self, columns: Sequence[str], query: Query = EVERYTHING
    ) -> Sequence[CertainBounds]:
        return self._first(lambda index: index.certain_bounds(columns, query))

    def splits(self, query: Query = EVERYTHING) -> Splits:
        return self._first(lambda index: index.splits(query))

    def _first(self, ask: Callable[[IndexReader], T]) -> T:
        if self._fallback is Fallback.NEVER:
            return ask(self._remote)
        if self._now() >= self._left_out_until:
            try:
                return ask(self._remote)
            except (Unreachable, AccessDenied) as error:
                # Whom it refuses may all the same read the table by own credentials.
                self._left_out_until = self._now() + LEFT_OUT_S
                _log.warning("the index server fails; this process answers", problem=str(error))
        # Held for this question only: a driver is no place for a cache.
        embedded = self._embedded()
        try:
            return ask(embedded)
        except TandemError:
            raise
        except Exception:  # noqa: BLE001 - an index that fails costs time, never an answer
            _log.exception("the index fails; every file is read")
            return ask(EveryFile(embedded.log))


def _one(tables: Sequence[pa.Table]) -> pa.Table:
    if len(tables) != 1:
        raise _broken(f"{len(tables)} tables", "one")
    return tables[0]


def _whole(model: type[M], message: object) -> M:
    try:
        return model.model_validate(message)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise _broken(found, f"a {model.__name__}") from error


def _broken(found: str, expected: str) -> Unreachable:
    return Unreachable("an answer of the index server is not whole", found=found, expected=expected)
