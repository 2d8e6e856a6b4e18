"""The controller of an IndexServer.

It answers no question about a table, and nothing waits for it: a server that is away costs time,
never an operation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from tandem.errors import AccessDenied, InvalidSpec, Reason, TandemError
from tandem.index.server.messages import CacheAnswer, IndexCall
from tandem.index.server.transport import Connection, Tls
from tandem.jobs.runner import JobPhase, JobStatus
from tandem.kube.client.api import ApiError, Forbidden, Invalid
from tandem.kube.client.events import EventReason, post, traceback_of
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    condition,
    generation_of,
    key_of,
    status_of,
    uid_of,
    version_of,
)
from tandem.kube.controllers.index_deployment import (
    SEEN_EVERY,
    Deployment,
    Secrets,
    SecretState,
    application,
    own_secrets,
    service_endpoint,
)
from tandem.kube.controllers.index_status import (
    Candidate,
    Choice,
    KnownVersion,
    State,
    compose,
    evictions,
    held_bytes,
    select,
)
from tandem.kube.controllers.spark_jobs import ApplicationCache
from tandem.kube.controllers.status_writer import status_writer
from tandem.kube.metrics import families
from tandem.kube.runtime.context import IndexServerFacts, OperatorContext
from tandem.kube.runtime.controller_tasks import LogContext, StopSignal, bound_log_context
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.spark.application.port import ApplicationBuilder
from tandem.spec.common import ENDPOINT_ANNOTATION
from tandem.spec.index import AccessMode, IndexServer
from tandem.spec.loader import parse
from tandem.spec.status import ServerExecutors

# What an index server says of its cache, asked with a deadline and in threads of its own: a server
# that hangs must not take a thread from operations.


DEADLINE_S = 2.0
TOKEN_FILE: Final = Path("/var/run/secrets/tandem-index/token")
"""A token of the operator's account with the audience tandem-index, where the chart mounts it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`cache` is None if there was no answer: then `problem` says why. `asked` False: the server
    was not asked, since the operator has no token to present."""

    cache: CacheAnswer | None = None
    problem: str = ""
    asked: bool = True


def ask(endpoint: str, token: str, authorities: bytes) -> Asked:
    """Ask once. Blocks for `DEADLINE_S` at most.

    Args:
        authorities: certificates that the server's is checked by; b"" for those of this machine.
    """
    try:
        connection = Connection(
            endpoint,
            token=token,
            tls=Tls(authorities) if authorities else None,
            timeout_s=DEADLINE_S,
        )
        try:
            message, _ = connection.ask(IndexCall.SHOW_CACHE, b"{}")
        finally:
            connection.close()
        return Asked(CacheAnswer.model_validate(message))
    except TandemError as error:
        return Asked(problem=f"{error.message}: {error.found}" if error.found else error.message)
    except ValidationError:
        return Asked(problem="its answer is not that of this version")


class Serving:
    """The application of one server, which is asked at most once in `index_poll_s`."""

    def __init__(
        self, context: OperatorContext, builder: ApplicationBuilder, deployment: Deployment
    ) -> None:
        self._context, self._builder, self._deployment = context, builder, deployment
        self._asked: tuple[float, Asked] | None = None

    @property
    def cache(self) -> CacheAnswer | None:
        """What the server said last of what it holds; None if nothing is known."""
        return None if self._asked is None else self._asked[1].cache

    def forget(self) -> None:
        """The application is another one now."""
        self._asked = None

    async def state(
        self, server: IndexServer, secrets: Mapping[str, SecretState]
    ) -> tuple[State, str]:
        """How the application is, and where it answers."""
        found = await self._deployment.read()
        endpoint = service_endpoint(server)
        if found is not None and self._context.settings.kubeconfig is not None:
            # Outside of a cluster there are no Services.
            annotations = found["metadata"].get("annotations") or {}
            endpoint = str(annotations.get(ENDPOINT_ANNOTATION) or endpoint)
        pod = None
        status = self._builder.classify(found, None)
        if found is not None and (status.phase is not JobPhase.RUNNING or self._is_due()):
            pod = await self._deployment.pod(found)
            status = self._builder.classify(found, pod, now_ms=self._context.clock.now_ms())
        if status.phase is not JobPhase.RUNNING:
            self.forget()
            return _of_job(status), endpoint
        asked = await self._ask(server, endpoint, secrets)
        if asked.cache is not None:
            return State(True, Reason.SERVING), endpoint
        if not asked.asked and pod is not None and _is_ready(pod):
            return State(True, Reason.SERVING, asked.problem), endpoint
        return State(False, Reason.PENDING, f"it does not answer yet: {asked.problem}"), endpoint

    def _is_due(self) -> bool:
        if self._asked is None or self._asked[1].cache is None:
            return True
        return time.monotonic() - self._asked[0] >= self._context.settings.index_poll_s

    async def _ask(
        self, server: IndexServer, endpoint: str, secrets: Mapping[str, SecretState]
    ) -> Asked:
        if self._asked is not None and not self._is_due():
            return self._asked[1]
        loop, threads = asyncio.get_running_loop(), self._context.index_threads
        token = await loop.run_in_executor(threads, _token, server, secrets)
        if token is None:
            asked = Asked(problem="the operator has no token to ask it with", asked=False)
        else:
            own = secrets[server.tls_secret].values if server.tls_secret else {}
            authorities = own.get("ca.crt") or own.get("tls.crt") or b""
            asked = await loop.run_in_executor(threads, ask, endpoint, token, authorities)
        self._asked = time.monotonic(), asked
        return asked


def _of_job(status: JobStatus) -> State:
    """The state of a server whose application does not run. It is started again by itself."""
    if status.phase is JobPhase.STARTING:
        return State(False, status.reason or Reason.PENDING, status.message)
    reason = status.reason or Reason.JOB_FAILED
    return State(False, reason, status.message or "its driver has ended; it is started again")


def _token(server: IndexServer, secrets: Mapping[str, SecretState]) -> str | None:
    """What the operator presents to the server; None if it has nothing."""
    mode = server.spec.access.mode
    if mode is AccessMode.PLAINTEXT:
        return ""
    if mode is AccessMode.SHARED_TOKEN:
        name = server.token_secret or ""
        return secrets[name].values.get("token", b"").decode(errors="replace").strip() or None
    try:
        return TOKEN_FILE.read_text().strip()
    except OSError:
        return None


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


# The life cycle of one IndexServer: level-triggered, one look after the other.
#
# A look reads the spec, the tables and the Secrets as they are now, has the Service and the
# application made that follow from them, and reports.


_log = structlog.get_logger("tandem.kube.index_server")
_CALM_S: Final = 0.5
"""Between two looks: a burst of changes causes a single one."""
_RETRY_S: Final = 5.0


class IndexServerController:
    """One IndexServer, identified by its uid.

    Args:
        cache: the applications that a watch reports.
    """

    def __init__(
        self,
        context: OperatorContext,
        body: Body,
        builder: ApplicationBuilder,
        cache: ApplicationCache,
    ) -> None:
        self._context, self._builder = context, builder
        self._uid, self._key, self._body = uid_of(body), key_of(body), body
        self._wake = asyncio.Event()
        self._leaving = False
        known = dict(status_of(body))
        settings = context.settings
        self._writer = status_writer(
            context, body, on_gone=lambda: context.resource_cache.remove(self._uid)
        )
        ready = condition(body, "Ready")
        self._reported = (ready.get("status", ""), ready.get("reason", ""))
        self._secrets = Secrets(context.api, self._key[1], SEEN_EVERY * settings.index_poll_s)
        self._policy = LocationPolicy(settings.allowed_locations, settings.allowed_endpoints)
        self._deployment = Deployment(context, self._uid, self._key, builder, cache, known)
        self._serving = Serving(context, builder, self._deployment)
        self._again_s = settings.index_poll_s

    async def run(self, stopped: StopSignal) -> None:
        """Run until the resource is deleted or the operator stops."""
        kind, namespace, name = self._key
        cache = self._context.resource_cache
        ends = [cache.watch(key, self._changed) for key in (self._key, (TABLE_KIND, namespace, ""))]
        with bound_log_context(LogContext(kind, namespace, name)):
            minding = asyncio.create_task(self._await_stop(stopped), name="mind the stop")
            try:
                await self._live()
            finally:
                minding.cancel()
                for end in ends:
                    end()
                self._context.index_servers.pop(self._key[1:], None)
                await self._writer.close()

    async def _await_stop(self, stopped: StopSignal) -> None:
        await stopped.wait()
        self._leaving = True
        self._wake.set()

    def _changed(self) -> None:
        body = self._context.resource_cache.body(self._uid)
        if body is None:
            self._leaving = True
        else:
            self._body = body
            self._writer.observe(status_of(body), version_of(body))
        self._wake.set()

    async def _live(self) -> None:
        while not self._leaving and self._context.may_write():
            self._wake.clear()
            await self._look_safely()
            if self._leaving:
                return
            await asyncio.sleep(_CALM_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._again_s):
                    await self._wake.wait()

    async def _look_safely(self) -> None:
        self._again_s = self._context.settings.index_poll_s
        try:
            await self._look()
        except InvalidSpec as error:
            self._report(State(False, Reason.INVALID_SPEC, str(error), stalled=True))
        except AccessDenied as error:
            self._report(State(False, error.reason, str(error), stalled=True))
        except TandemError as error:
            self._again_s = _RETRY_S
            self._report(State(False, error.reason, str(error)))
        except (Forbidden, Invalid) as error:
            # A quota, a webhook or a missing right: it may pass, but hardly by itself.
            self._again_s = _RETRY_S
            message = f"the API server refuses it: {error.message}"
            self._report(State(False, Reason.ACCESS_DENIED, message, stalled=True))
        except ApiError as error:
            self._again_s = _RETRY_S
            self._report(State(False, Reason.CLUSTER_UNAVAILABLE, str(error)))
        except Exception as error:  # noqa: BLE001 - a bug, which no other process would report
            self._again_s = _RETRY_S
            self._context.metrics.count(families.INTERNAL_ERRORS, "index")
            _log.error("a bug: please report it", at=traceback_of(error))
            message = f"{type(error).__name__}, see the operator's log; it will be retried"
            self._report(State(False, Reason.INTERNAL_ERROR, message))

    async def _look(self) -> None:
        server = parse(self._body)
        assert isinstance(server, IndexServer)
        if server.spec.suspend:
            await self._deployment.remove(server)
            self._report(State(None, Reason.SUSPENDED, "spec.suspend is true"), server)
            return
        selection = select(server, self._candidates(), self._policy)
        own = own_secrets(server)
        secrets = await self._secrets.look(own, selection.secrets)
        missing = frozenset(name for name, each in secrets.items() if each.version is None)
        if own & missing:
            self._again_s = _RETRY_S
            message = f"there is no Secret {', '.join(sorted(own & missing))} in the namespace"
            state = State(False, Reason.REFERENCE_NOT_FOUND, message, stalled=True)
            self._report(state, server, selection)
            return
        selection = selection.without_secrets(missing)
        versions = {
            name: secrets[name].version or "" for name in (*own, *sorted(selection.secrets))
        }
        wanted = application(server, self._uid, selection.served, versions, self._builder)
        await self._deployment.ensure_service(server)
        done = await self._deployment.ensure(server, wanted)
        if done.created:
            self._serving.forget()
            post(self._body, EventReason.JOB_STARTED, f"SparkApplication/{done.created}")
        self._again_s = min(self._again_s, done.again_s)
        state, endpoint = await self._serving.state(server, secrets)
        if not state.ready and state.reason is Reason.PENDING:
            self._again_s = min(self._again_s, _RETRY_S)
        if done.waits and state.ready:
            state = State(True, state.reason, done.waits)
        self._report(state, server, selection, endpoint)

    # Tables

    def _candidates(self) -> list[Candidate]:
        cache, namespace = self._context.resource_cache, self._key[1]
        found = []
        for summary in cache.in_namespace(TABLE_KIND, namespace):
            body = cache.body(summary.uid)
            table = self._context.figures.get((namespace, summary.name))
            if body is None:
                continue
            # One that was read before an operator's restart is served on.
            read = isinstance(status_of(body).get("version"), int)
            adopted = read or (table is not None and table.adopted)
            problem = None
            if table is not None and not table.ready:
                problem = Reason(table.reason), table.message
            found.append(Candidate(body, adopted, problem))
        return found

    def _facts(self, selection: Choice) -> dict[str, KnownVersion]:
        found = {}
        for name in selection.served:
            table = self._context.figures.get((self._key[1], name))
            if table is not None and table.version is not None:
                found[name] = KnownVersion(table.version, table.files)
        return found

    # Reporting

    def _report(
        self,
        state: State,
        server: IndexServer | None = None,
        selection: Choice | None = None,
        endpoint: str | None = None,
    ) -> None:
        cache = self._serving.cache
        executors = None
        if server is not None and not server.spec.suspend:
            desired = server.spec.executors
            live = len(cache.executors) if cache is not None and desired else 0
            executors = ServerExecutors(desired=desired, ready=live)
        status = compose(
            state,
            generation_of(self._body) if server is None else server.metadata.generation,
            self._context.clock.now_ms(),
            endpoint=endpoint,
            application=self._deployment.current or None,
            executors=executors,
            selection=selection,
            facts=self._facts(selection) if selection is not None else None,
            cache=cache,
        )
        self._context.index_servers[self._key[1:]] = IndexServerFacts(
            ready=state.ready,
            reason=str(state.reason),
            tables=len(selection.served) if selection is not None else 0,
            bytes=held_bytes(cache) if cache is not None else 0,
            evictions=evictions(cache) if cache is not None else 0,
        )
        self._writer.offer(status.manifest())
        first = status.conditions[0]
        reported = (first.status, str(first.reason))
        if reported != self._reported:
            self._reported = reported
            post(self._body, first.reason, first.message, warning=state.ready is False)
            _log.info("index server", reason=str(first.reason), message=first.message)
