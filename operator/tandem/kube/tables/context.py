"""One LakeTable in the operator: its opened table with the credentials of its Secret, its latest
snapshot, and its status.

While nothing happens, it only checks the store for the next commit. Other modules decide on
operations and on automatic compaction.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import structlog

from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import (
    AccessDenied,
    LocksUnavailable,
    ObjectNotFound,
    Reason,
    ReferenceNotFound,
    StorageError,
    TandemError,
)
from tandem.kube.client.api import Api, ApiError, Forbidden, NotFound, ResourcePath
from tandem.kube.client.events import traceback_of
from tandem.kube.metrics import families
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.tables import status
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.locks.rules import LockEntry
from tandem.locks.store import LockStore
from tandem.mergelog.log_table import MergeLog
from tandem.mergelog.usage import LogReader
from tandem.mergelog.versions import LogFacts
from tandem.operations import adopt as tables
from tandem.operations.auto_compaction import TableMemory
from tandem.operations.model import Table
from tandem.operations.ports import Clock, Nonces
from tandem.spec.status import AutoCompactionWait, Condition, TableStatus
from tandem.spec.table import LakeTable
from tandem.storage.renewable import RenewableStore

# The log of blocks of one table, as the operator knows it.


class TableLog:
    """Read in two steps: `update`, then the base table, then `look`.

    Attributes:
        facts: as of the version of the base table read last; None if there is no log, or it cannot
            be read.
        problem: why it cannot be read; "" if it can.
    """

    def __init__(self, base: DeltaLog) -> None:
        self.log = MergeLog(base)
        self.facts: LogFacts | None = None
        self.problem = ""
        self._reader = LogReader(self.log)
        self._exists = False

    @property
    def exists(self) -> bool:
        """Whether there was one at the last look."""
        return self._exists

    def update(self, *, thoroughly: bool) -> None:
        """Read the newest version of the log, if there is one.

        Raises: StorageError, if it may pass by itself.
        """
        self.problem = ""
        try:
            self._exists = self._reader.update(thoroughly=thoroughly)
        except TandemError as error:
            if _passes(error):
                raise
            self._exists, self.facts, self.problem = True, None, str(error)

    def look(self, base: Snapshot) -> None:
        """Derive the facts as of the base table. Raises: as `update`."""
        if not self._exists or self.problem:
            self.facts = None
            return
        try:
            self.facts = self._reader.facts(base)
        except TandemError as error:
            if _passes(error):
                raise
            self.facts, self.problem = None, str(error)


def _passes(error: TandemError) -> bool:
    """What does not pass is a problem of the log alone: operations that need it say so, the others
    go on."""
    return isinstance(error, StorageError) and not isinstance(error, AccessDenied | ObjectNotFound)


_T = TypeVar("_T")
_log = structlog.get_logger("tandem.kube.tables.context")
_FULL_LOOK_EVERY = 30
"""After so many checks for the next commit the log is listed: it may have been replaced."""
_SECRET_S = 60.0
_NO_STATUS = TableStatus()
_TOLERATED_ERRORS = 3
"""So many refreshes may fail in a row before the table counts as not ready."""


def _text(value: str) -> str:
    return base64.b64decode(value).decode(errors="replace").strip()


class RunInThread(Protocol):
    """Runs a call in a thread that works on tables."""

    def __call__(self, call: Callable[[], _T]) -> Awaitable[_T]: ...


@dataclass(frozen=True, slots=True)
class TableDependencies:
    """The dependencies of a `TableContext`. `ceiling_s`: how long a request of a store may take;
    `on_secret`: called with the version and the content of a Secret that was read."""

    api: Api
    threads: RunInThread
    locks: LockStore
    clock: Clock
    nonces: Nonces
    metrics: Metrics
    allowed: LocationPolicy
    ceiling_s: float | None = None
    on_secret: Callable[[str, Mapping[str, str]], None] = lambda _version, _environ: None


@dataclass(frozen=True, slots=True)
class _Credentials:
    """`environ`: the Secret of the store; None for none. `token`: that of Unity Catalog, or ""."""

    environ: dict[str, str] | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class AutoCompactionState:
    """What automatic compaction waits for.

    Attributes:
        next_ms: when it starts next; None if that is not known.
        chunks_due: how many time chunks are due; None if it does not go by chunks.
    """

    hold: AutoCompactionWait = AutoCompactionWait.NOTHING
    next_ms: int | None = None
    chunks_due: int | None = None


class TableContext:
    """A LakeTable of this generation. One task refreshes it; any task may read it.

    Attributes:
        table: what operations work on; None until it is adopted, or while it cannot be used.
        resource: the LakeTable that was adopted last.
        snapshot: the latest version seen.
        conditions: those of its status.
        log: its log of blocks, as of `snapshot`; None before the first refresh.
        auto_compaction: the state of automatic compaction; None if it is off.
        memory: the table as automatic planning sees it.
        adopted: whether an earlier operator has adopted it and probed its store.
        due: whether a refresh is requested before the next interval.
        wake: wakes the task that refreshes it.
    """

    def __init__(self, uid: str, dependencies: TableDependencies, *, adopted: bool = False) -> None:
        self.uid = uid
        self.table: Table | None = None
        self.resource: LakeTable | None = None
        self.snapshot: Snapshot | None = None
        self.conditions: tuple[Condition, ...] = ()
        self.facts: TableStatus | None = None
        self.locks: tuple[LockEntry, ...] = ()
        self.log_locks: tuple[LockEntry, ...] = ()
        self.log: TableLog | None = None
        self.auto_compaction: AutoCompactionState | None = None
        self.memory = TableMemory()
        self.adopted = adopted
        self.due = False
        self.wake: Callable[[], None] = lambda: None
        self._dependencies = dependencies
        self._opened: Table | None = None
        self._reason = Reason.ADOPTED
        self._changed = ""
        self._secret_version = self._token = ""
        self._secret_looked_s = 0.0
        self._looks = 0
        self._errors = 0

    @property
    def is_ready(self) -> bool:
        return self.table is not None

    @property
    def figures(self) -> status.TableFigures:
        """The table as others see it."""
        first = self.conditions[0] if self.conditions else None
        facts, log, auto = self.facts or _NO_STATUS, self.log_facts, self.auto_compaction
        return status.TableFigures(
            uid=self.uid,
            location=None if self.table is None else self.table.location,
            ready=self.is_ready,
            reason=str(Reason.PENDING if first is None else first.reason),
            message="the table has not been read yet" if first is None else first.message,
            adopted=self.adopted,
            version=facts.version,
            segments=facts.segments,
            files=facts.files,
            bytes=facts.bytes,
            small_files=facts.small_files,
            deleted_rows=facts.deleted_rows,
            log_blocks=None if log is None else len(log.state.live),
            log_bytes=None if log is None else log.state.size,
            log_oldest_ms=None if log is None else log.oldest_ms,
            hold=None if auto is None else str(auto.hold),
            next_ms=None if auto is None else auto.next_ms,
            chunks_due=None if auto is None else auto.chunks_due,
        )

    @property
    def log_facts(self) -> LogFacts | None:
        """The facts of its log; None if it has none, or it cannot be read."""
        return self.log.facts if self.log is not None else None

    @property
    def problem(self) -> tuple[Reason, str] | None:
        """Why the table cannot be used; None if it can."""
        if self.table is not None:
            return None
        if not self.conditions:
            return Reason.PENDING, "the table has not been read yet"
        first = self.conditions[0]
        return Reason(first.reason), first.message

    async def refresh(self, resource: LakeTable) -> None:
        """Check the Secret and the log, and adopt the table if it is not adopted. Errors of the
        table, the store or the cluster are reported in `conditions`, not raised."""
        now = self._dependencies.clock.now_ms()
        generation = resource.metadata.generation
        try:
            await self._open(resource)
            assert self._opened is not None
            if self.snapshot is None or self.resource != resource:
                await self._adopt(resource)
            else:
                await self._look()
        except TandemError as error:
            self._errors += 1
            passing = isinstance(error, StorageError) and not isinstance(
                error, AccessDenied | ObjectNotFound
            )
            if self.table is not None and passing and self._errors <= _TOLERATED_ERRORS:
                return
            self._secret_looked_s = 0.0  # perhaps the credentials have changed
            if error.reason in status.LASTING or self.snapshot is None:
                self.table = None
            self.conditions = status.not_ready(error.reason, str(error), generation, now)
            return
        except ApiError as error:
            if self.table is None:
                self.conditions = status.not_ready(
                    Reason.CLUSTER_UNAVAILABLE, str(error), generation, now
                )
            return
        except Exception as error:  # noqa: BLE001 - a bug, which no other process would report
            self._dependencies.metrics.count(families.INTERNAL_ERRORS, "table")
            _log.error(
                "a bug: please report it",
                namespace=resource.namespace,
                table=resource.name,
                at=traceback_of(error),
            )
            message = f"{type(error).__name__}, see the operator's log; it will be retried"
            if self.snapshot is None:
                self.table = None
            self.conditions = status.not_ready(Reason.INTERNAL_ERROR, message, generation, now)
            return
        self._errors = 0
        self.table = self._opened
        self.conditions = status.ready(self._reason, self._changed, generation, now)

    async def open_only(self, resource: LakeTable) -> Table:
        """The table as it is, neither adopted nor created, for a clean-up.

        Raises: TandemError, ApiError.
        """
        await self._open(resource)
        assert self._opened is not None
        return self._opened

    def refresh_soon(self) -> None:
        """There is a new version: refresh now."""
        self.due = True
        self.wake()

    def refuse(self, reason: Reason, message: str, generation: int) -> None:
        """The resource itself is invalid."""
        self.table = None
        now = self._dependencies.clock.now_ms()
        self.conditions = status.not_ready(reason, message, generation, now)

    # Opening

    async def _open(self, resource: LakeTable) -> None:
        opened = self._opened
        # What a catalog says of a name may change without a trace in the resource.
        asks = resource.spec.catalog is not None and self._looks % _FULL_LOOK_EVERY == 0
        found, version = await self._credentials(resource, anyway=asks)
        same = opened is not None and self.resource == resource and version == self._secret_version
        if same and not asks:
            return
        self._token = found.token or self._token
        try:
            fresh = await self._dependencies.threads(
                lambda: self._reopened(resource, found.environ)
            )
        except StorageError as error:
            if not same or not _passes(error):
                raise
            # The table is where it was, as far as is known.
            _log.warning("the catalog is not asked again", table=resource.name, problem=str(error))
            return
        same = opened is not None and opened.location == fresh.location
        if same and opened is not None and isinstance(opened.store, RenewableStore):
            # Running operations continue with the new credentials.
            opened.store.renew(fresh.store)
            store = opened.store
        else:
            store = RenewableStore(fresh.store)
            self.snapshot = self.log = None
        self._opened = replace(fresh, store=store, log=tables.open_log(store, fresh.entry))
        if self.log is None:
            self.log = TableLog(self._opened.log)
        if found.environ is not None:
            self._dependencies.on_secret(version, found.environ)
        if version != self._secret_version and self._secret_version:
            _log.info("credentials renewed", table=resource.name, namespace=resource.namespace)
        self._secret_version = version

    async def _credentials(
        self, resource: LakeTable, *, anyway: bool = False
    ) -> tuple[_Credentials, str]:
        """The content of the Secrets of its store and of its catalog, and their versions. Those
        that were read lately are read again if something else has changed, or `anyway`."""
        reference, catalog = resource.spec.storage.secret_ref, resource.spec.catalog
        token_of = catalog.unity.token_secret_ref if catalog and catalog.unity else None
        if reference is None and token_of is None:
            return _Credentials(), ""
        now = asyncio.get_running_loop().time()
        recent = self._secret_looked_s and now - self._secret_looked_s < _SECRET_S
        if recent and self.resource == resource and self._secret_version and not anyway:
            return _Credentials(), self._secret_version
        environ, token, version = None, "", ""
        if reference is not None:
            field, remedy = "spec.storage.secretRef", "with keys such as AWS_ACCESS_KEY_ID"
            environ, version = await self._secret(resource, reference.name, field, remedy)
        if token_of is not None:
            field = "spec.catalog.unity.tokenSecretRef"
            remedy = f"with the token as {token_of.key}"
            values, its_version = await self._secret(resource, token_of.name, field, remedy)
            token, version = values.get(token_of.key, ""), version + its_version
            if not token:
                raise ReferenceNotFound(
                    "the Secret has no such key, or nothing in it",
                    resource=resource.id,
                    field=f"{field}.key",
                    found=token_of.key,
                    expected=", ".join(sorted(values)) or "a key",
                    remedy=f"Create it again, {remedy}",
                )
        self._secret_looked_s = now
        return _Credentials(environ, token), version

    async def _secret(
        self, resource: LakeTable, name: str, field: str, remedy: str
    ) -> tuple[dict[str, str], str]:
        """The content of a Secret, and its version."""
        path = ResourcePath("", "v1", "secrets", resource.namespace, name)
        try:
            secret = await self._dependencies.api.get(path)
        except NotFound:
            raise ReferenceNotFound(
                "there is no Secret of this name in the namespace",
                resource=resource.id,
                field=f"{field}.name",
                found=name,
                remedy=f"Create it, {remedy}",
            ) from None
        except Forbidden:
            raise AccessDenied(
                "the operator may not read this Secret",
                resource=resource.id,
                field=f"{field}.name",
                found=name,
                remedy="Bind the operator's role in this namespace",
            ) from None
        data: Mapping[str, Any] = secret.get("data") or {}
        values = {key: _text(value) for key, value in data.items()}
        return values, secret["metadata"]["uid"] + secret["metadata"]["resourceVersion"]

    def _reopened(self, resource: LakeTable, environ: dict[str, str] | None) -> Table:
        allowed = self._dependencies.allowed
        entry, location = None, None
        if resource.spec.catalog is not None:
            from tandem.catalogs.lookup import look_up

            allowed.check_catalog(resource, environ)
            entry = look_up(
                resource,
                token=lambda: self._token,  # of the time: operations outlive a token
                environ=environ,
                ceiling_s=self._dependencies.ceiling_s,
            )
            location = entry.location
        if environ is not None:
            allowed.check_endpoints(resource, environ, location)
        prefixes = allowed.check(resource, location)
        return tables.open_table(
            resource,
            allowed_prefixes=prefixes,
            environ=environ,
            ceiling_s=self._dependencies.ceiling_s,
            entry=entry,
        )

    async def _adopt(self, resource: LakeTable) -> None:
        opened, dependencies = self._opened, self._dependencies
        assert opened is not None
        probe = not self.adopted
        found = await dependencies.threads(
            lambda: tables.adopt(opened, dependencies.clock, dependencies.nonces, probe=probe),
        )
        if self.resource is None or found.changed:
            self._reason, self._changed = found.reason, found.changed
        self.adopted = True
        self.resource = resource
        await self._take(found.snapshot)
        if self._has_log:
            await self._look()

    # Looking

    async def _look(self) -> None:
        opened, snapshot = self._opened, self.snapshot
        assert opened is not None
        assert snapshot is not None
        self._looks += 1
        full = self._looks % _FULL_LOOK_EVERY == 0
        log = self.log if full or self._has_log else None

        def look() -> Snapshot:
            if log is not None:
                log.update(thoroughly=full)
            found = newest()
            if log is not None:
                log.look(found)
            return found

        def newest() -> Snapshot:
            if not (full or opened.log.commit_log.has(snapshot.version + 1)):
                return snapshot
            return opened.log.update(snapshot)

        await self._take(await self._dependencies.threads(look))

    @property
    def _has_log(self) -> bool:
        """Whether its log is read each time. That of a table without `mergeOnRead`, which had it
        before, is found at a full look."""
        wanted = self.resource is not None and self.resource.spec.merge_on_read is not None
        return wanted or (self.log is not None and self.log.exists)

    async def _take(self, snapshot: Snapshot | None) -> None:
        assert snapshot is not None  # only `preview` finds none
        if self.facts is not None and snapshot is self.snapshot:
            return
        opened = self._opened
        assert opened is not None
        adopted = tables.AdoptedTable(snapshot, self._reason, self._changed)
        now = self._dependencies.clock.now_ms()
        self.facts = await self._dependencies.threads(
            lambda: tables.status_of_table(opened, adopted, now_ms=now)
        )
        self.snapshot = snapshot
        self.memory.see(snapshot)

    async def refresh_locks(self) -> None:
        """Read the locks; the last known ones are kept while the lock store is unavailable."""
        table = self.table
        if table is None:
            return
        places = [table.location]
        if self.log is not None and self._has_log:
            places.append(self.log.log.store.location)
        locks = self._dependencies.locks
        try:
            found = await self._dependencies.threads(
                lambda: [locks.entries(place) for place in places]
            )
            self.locks, self.log_locks = found[0], found[1] if len(found) > 1 else ()
        except LocksUnavailable as error:
            _log.warning("locks not read", location=table.location, problem=str(error))
