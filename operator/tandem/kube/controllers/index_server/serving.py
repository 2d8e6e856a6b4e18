"""Whether the application of an IndexServer answers, and what it said last. Changes nothing in the
cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tandem.errors import Reason, TandemError
from tandem.index.server.messages import CacheAnswer, IndexCall
from tandem.index.server.transport import Connection, Tls
from tandem.jobs.runner import JobPhase, JobStatus
from tandem.kube.controllers.index_server import deployment as applications
from tandem.kube.controllers.index_server.deployment import Deployment, SecretState
from tandem.kube.controllers.index_server.status import State
from tandem.kube.runtime.context import OperatorContext
from tandem.spark.application.port import ApplicationBuilder
from tandem.spec.index import AccessMode, IndexServer
from tandem.spec.labels import ENDPOINT_ANNOTATION

# What an index server says of its cache, asked with a deadline and in threads of its own: a server
# that hangs must not take a thread from operations.


DEADLINE_S = 2.0


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
        endpoint = applications.endpoint(server)
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
        loop, pool = asyncio.get_running_loop(), self._context.index_pool
        token = await loop.run_in_executor(pool, _token, server, secrets, self._context)
        if token is None:
            asked = Asked(problem="the operator has no token to ask it with", asked=False)
        else:
            own = secrets[server.tls_secret].values if server.tls_secret else {}
            authorities = own.get("ca.crt") or own.get("tls.crt") or b""
            asked = await loop.run_in_executor(pool, ask, endpoint, token, authorities)
        self._asked = time.monotonic(), asked
        return asked


def _of_job(status: JobStatus) -> State:
    """The state of a server whose application does not run. It is started again by itself."""
    if status.phase is JobPhase.STARTING:
        return State(False, status.reason or Reason.PENDING, status.message)
    reason = status.reason or Reason.JOB_FAILED
    return State(False, reason, status.message or "its driver has ended; it is started again")


def _token(
    server: IndexServer, secrets: Mapping[str, SecretState], context: OperatorContext
) -> str | None:
    """What the operator presents to the server; None if it has nothing."""
    mode = server.spec.access.mode
    if mode is AccessMode.PLAINTEXT:
        return ""
    if mode is AccessMode.SHARED_TOKEN:
        name = server.token_secret or ""
        return secrets[name].values.get("token", b"").decode(errors="replace").strip() or None
    file = context.settings.index_token
    try:
        return file.read_text().strip() if file is not None else None
    except OSError:
        return None


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
