"""A table's index behind a server, with what a caller does where the server fails: the index in the
caller's own process, then every live file. The rows that are read are the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import structlog

from tandem.delta.log import files as files_
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import check_rows, column_names
from tandem.errors import (
    InvalidSpec,
    InvalidStatement,
    TandemError,
    UnknownSegment,
    Unreachable,
    VersionNotFound,
)
from tandem.index.answers import CertainBounds, CertainCount, Cut, Portions, Splits, splits_of
from tandem.index.entries import UNKNOWN_ROWS
from tandem.index.library import (
    EVERYTHING,
    IndexReader,
    Query,
    TableIndex,
    open_index,
    require_no_merge_log,
    require_table,
)
from tandem.index.narrowing import GROUPS
from tandem.index.server.messages import (
    PORT,
    BoundsAnswer,
    BoundsQuestion,
    CountAnswer,
    IndexCall,
    Message,
    PortionsAnswer,
    PortionsQuestion,
    Question,
    SplitsAnswer,
    VersionOf,
    broken,
    one,
    portions_from,
    reading,
    sending,
    splits_from,
    whole,
)
from tandem.index.server.transport import Connection, Tls
from tandem.index.window import Head, Holds
from tandem.spec.table import LakeTable
from tandem.storage import open_store
from tandem.storage.store import Store
from tandem.timeline.segments import segments

_log = structlog.get_logger("tandem.index.client")
LEFT_OUT_S = 10.0
"""Seconds for which a server that failed is not asked again."""
_SPLITS_A_SECOND = 10_000
"""At least, of a large answer: about three megabytes."""
_WRONG_QUESTION = (InvalidStatement, UnknownSegment, VersionNotFound)
"""What is the same everywhere."""

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
        answer, tables = self._ask(IndexCall.GET_COUNT, CountAnswer, Question, query)
        head = self._head(answer.of, query)
        if not answer.rest and not tables:
            return CertainCount(head.version, answer.rows, splits_of(head, []))
        table = one(tables)
        if table.num_rows != answer.rest:
            raise broken(f"{table.num_rows} splits", f"{answer.rest} splits")
        rest = splits_from(head, table, query.paths)
        return CertainCount(head.version, answer.rows, rest)

    def splits(self, query: Query = EVERYTHING) -> Splits:
        answer, tables = self._ask(IndexCall.GET_SPLITS, SplitsAnswer, Question, query)
        if answer.ticket:
            seconds = answer.splits / _SPLITS_A_SECOND
            table = self._connection.fetch(answer.ticket, more_s=seconds)
        else:
            table = one(tables)
        if table.num_rows != answer.splits:
            raise broken(f"{table.num_rows} splits", f"{answer.splits} splits")
        found = splits_from(self._head(answer.of, query), table, query.paths)
        return found.kept(answer.readable_until_ms)

    def portions(self, cut: Cut, query: Query = EVERYTHING) -> Portions:
        cut_ = {"tasks": cut.tasks, "most_bytes": cut.most_bytes}
        answer, tables = self._ask(
            IndexCall.GET_PORTIONS, PortionsAnswer, PortionsQuestion, query, **cut_
        )
        return portions_from(self._head(answer.of, query), answer.splits, one(tables))

    def certain_bounds(
        self, columns: Sequence[str], query: Query = EVERYTHING
    ) -> Sequence[CertainBounds]:
        answer, tables = self._ask(
            IndexCall.GET_BOUNDS, BoundsAnswer, BoundsQuestion, query, columns=tuple(columns)
        )
        head = self._head(answer.of, query)
        if len(tables) != 3 * len(answer.columns):
            raise broken(f"{len(tables)} tables", f"3 for each of {len(answer.columns)} columns")
        found = []
        for at, name in enumerate(answer.columns):
            best, below, above = tables[3 * at : 3 * at + 3]
            with reading():
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

    def _head(self, of: VersionOf, query: Query) -> Head:
        """The version of an answer. Raises: Unreachable if it is of another table than this
        process would read, as where a resource was changed here and not in the cluster, or is not
        the version that was asked for."""
        if of.location.rstrip("/") != self._store.location.rstrip("/"):
            raise Unreachable(
                "the index server has another table under this name",
                resource=self._name,
                found=of.location,
                expected=self._store.location,
                remedy="Apply the LakeTable as it is here, or remove spec.index.server from it",
            )
        if query.version not in (None, of.version):
            raise broken(f"version {of.version}", f"version {query.version}")
        if query.table_id not in ("", of.table_id):
            raise broken(f"the table {of.table_id}", f"the table {query.table_id}")
        return of.head

    def _ask(
        self, call: IndexCall, reply: type[M], question: type[Question], query: Query, **more: Any
    ) -> tuple[M, list[pa.Table]]:
        with sending():
            asked = question.of(self._name, query, **more)
        body = asked.model_dump_json(by_alias=True, exclude_none=True).encode()
        message, tables = self._connection.ask(call, body)
        return whole(reply, message), tables


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
        head = Head.of(snapshot)
        require_table(head, query)
        files = snapshot.files
        if query.segments:
            live = segments(files)
            named = live.where(live.named(query.segments))
            files = files_.with_paths(files, [file.path for file in named.files])
        if query.paths is not None:
            files = files.filter(pa.array(query.paths.mask(files["path"])))
        count = files.num_rows
        unknown, every = np.full(count, UNKNOWN_ROWS), pa.nulls(count, GROUPS)
        held_ms = Holds(self._log).place(head, query.hold_s).end_ms if query.hold_s else 0
        return Splits(head, files, np.zeros(count, bool), unknown, every, held_ms)


class ChainedIndex(IndexReader):
    """A server's index, this process's own where the server fails, and every file where that does.
    Thread-safe.

    A condition, segment or version that does not exist is raised at once: it would not exist
    anywhere else, either.

    Args:
        embedded: opens the index in this process.
        server: its name, for what is logged.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        remote: RemoteIndex,
        embedded: Callable[[], TableIndex],
        *,
        fallback: Fallback = Fallback.EMBEDDED,
        server: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._remote, self._embedded = remote, embedded
        self._fallback, self._server, self._now = fallback, server, now
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

    def portions(self, cut: Cut, query: Query = EVERYTHING) -> Portions:
        return self._first(lambda index: index.portions(cut, query))

    def _first(self, ask: Callable[[IndexReader], T]) -> T:
        if self._fallback is Fallback.NEVER:
            return ask(self._remote)
        if self._now() >= self._left_out_until:
            try:
                return ask(self._remote)
            except _WRONG_QUESTION:
                raise
            except TandemError as error:
                # Whom it refuses, or whose table it does not serve or cannot read, may all the
                # same read the table by own credentials.
                if not isinstance(error, InvalidSpec):  # which is of this question alone
                    self._left_out_until = self._now() + LEFT_OUT_S
                _log.warning(
                    "the index server fails; this process answers",
                    server=self._server,
                    problem=str(error),
                )
        # Held for this question only: a driver is no place for a cache.
        embedded = self._embedded()
        try:
            return ask(embedded)
        except TandemError:
            raise
        except Exception:  # noqa: BLE001 - an index that fails costs time, never an answer
            _log.exception("the index fails; every file is read")
            return ask(EveryFile(embedded.log))


# The index of a LakeTable as its `spec.index` says. Reads no cluster: where a server answers
# follows from names.


ENDPOINT_VARIABLE: Final = "TANDEM_INDEX_ENDPOINT"
"""Where the server answers, outside of its cluster: `grpc+tls://HOST:PORT`."""
FOLDER_VARIABLE: Final = "TANDEM_INDEX_ACCESS"
"""The folder with `token`, and `ca.crt` unless the server's certificate is trusted anyway."""
ACCESS_FOLDER: Final = "/var/run/secrets/tandem-index"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a table's server is found. Has no secret: token and certificates are files, which each
    process reads by itself.

    Attributes:
        table: the name of the LakeTable.
        server: the name of the `IndexServer`.
        endpoint: `grpc+tls://HOST:PORT`.
        folder: with `token` and `ca.crt`.
    """

    table: str
    server: str
    endpoint: str
    folder: str

    def index(
        self,
        store: Store,
        embedded: Callable[[], TableIndex],
        fallback: Fallback = Fallback.EMBEDDED,
    ) -> IndexReader:
        """The index that the server holds, and this process's own behind it."""
        folder = Path(self.folder)
        authorities = _content(folder / "ca.crt")
        connection = Connection(
            self.endpoint,
            token=_content(folder / "token").decode(errors="replace").strip(),
            tls=Tls(authorities) if authorities else None,
        )
        remote = RemoteIndex(connection, self.table, store)
        return ChainedIndex(remote, embedded, fallback=fallback, server=self.server)


def index_of(
    table: LakeTable,
    options: Mapping[str, str] | None = None,
    *,
    base: bool = False,
    fallback: Fallback = Fallback.EMBEDDED,
    environ: Mapping[str, str] = os.environ,
) -> IndexReader:
    """The index of a table.

    Args:
        options: of the store, beside those of the LakeTable.
        base: as of `open_index`; then no server is asked.
        fallback: what follows where the server fails.
    Raises: as `open_index`. A server that cannot be asked is none, which is logged as a warning.
    """
    location, storage = table.location, storage_of(table, options)
    address = None if base else address_of(table, environ)
    if address is None:
        server = server_of(table)
        if server is not None and not base:
            _log.warning(
                "the index server is not asked; this process answers",
                server=server,
                problem=f"this is outside of its cluster, and {ENDPOINT_VARIABLE} names no address",
            )
        return _own_index(table, storage, base=base)
    store = open_store(location, storage, allowed_prefixes=table.spec.storage.clone_sources)
    require_no_merge_log(DeltaLog(store))
    return address.index(store, lambda: _own_index(table, storage), fallback)


def _own_index(table: LakeTable, storage: Mapping[str, str], *, base: bool = False) -> TableIndex:
    sources = table.spec.storage.clone_sources
    return open_index(table.location, storage, base=base, allowed_prefixes=sources)


def storage_of(table: LakeTable, options: Mapping[str, str] | None = None) -> dict[str, str]:
    """The options of a table's store, and others beside them."""
    return {**table.spec.storage.options, **(options or {})}


def address_of(table: LakeTable, environ: Mapping[str, str] = os.environ) -> ServerAddress | None:
    """Where the server of a table is; None if it has none, or if that cannot be reached."""
    server = server_of(table)
    endpoint = None if server is None else _endpoint(server, table.namespace, environ)
    if server is None or endpoint is None:
        return None
    folder = environ.get(FOLDER_VARIABLE) or ACCESS_FOLDER
    return ServerAddress(table.name, server, endpoint, folder)


def server_of(table: LakeTable) -> str | None:
    """The name of the `IndexServer` that a table's readers ask; None if there is none."""
    return table.spec.index.server if table.spec.index is not None else None


def _endpoint(server: str, namespace: str, environ: Mapping[str, str]) -> str | None:
    """Where a server answers; None if it cannot be reached."""
    if environ.get(ENDPOINT_VARIABLE):
        return environ[ENDPOINT_VARIABLE]
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return f"grpc+tls://{server}-index.{namespace}.svc:{PORT}"


def _content(file: Path) -> bytes:
    """What is in a file; nothing if it cannot be read: then the server refuses, and is left out."""
    try:
        return file.read_bytes()
    except OSError:
        return b""
