"""Every situation that a resource of ours can be in, as an object on the API server whose status
the product wrote: what GitOps tools get to see.

`play` creates one object per situation and kind, and gives them as the server has them then. No
operator may serve the namespace: the statuses are written by the operator's own parts here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, patch

import kopf

from tandem.errors import Reason
from tandem.kube.client.api import Api
from tandem.kube.client.resources import (
    TABLE_KIND,
    generation_of,
    path,
    retry_requested,
    uid_of,
    version_of,
)
from tandem.kube.controllers.index_status import State, compose
from tandem.kube.controllers.reporting import Reporter
from tandem.kube.controllers.status_writer import StatusWriter
from tandem.kube.runtime.context import OperatorContext, OperatorSettings
from tandem.kube.tables import status as table_status
from tandem.operations.machine.events import Ending
from tandem.operations.machine.state import (
    AttemptState,
    JobState,
    LockState,
    OperationState,
    OutcomeState,
    PendingEffect,
)
from tandem.operations.ports import SystemClock
from tandem.operations.status import status_of
from tandem.spec.common import OPERATIONS as OPERATION_KINDS
from tandem.spec.common import RETRY_ANNOTATION
from tandem.spec.index import IndexServer
from tandem.spec.resources import KINDS
from tandem.spec.status import (
    Condition,
    OperationResult,
    OperationStatus,
    Phase,
    Plan,
    Progress,
    TableStatus,
)

Json = dict[str, Any]
_SPECS: dict[str, Json] = {
    "LakeTable": {"location": "s3://lake/flights"},
    "TableCompaction": {"type": "Minor"},
    "TableUpdate": {"update": {"where": "k = 1", "set": {"v": "0"}}},
    "TableIngest": {"source": {"format": "Parquet", "location": "s3://lake/new"}},
    "SegmentRewrite": {"segments": ["0.1"], "rewrite": {"purgeDeleted": True}},
    "LogCompaction": {},
    "TableReplace": {"replace": {"intervals": ["2013-03"]}},
    "IndexServer": {},
}
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Situation:
    """`name` is a sentence of docs/gitops.md."""

    name: str
    come_about: Callable[[Actor], Awaitable[None]]


class Actor:
    """One object and the operator's part in its life."""

    def __init__(self, api: Api, kind: str, namespace: str, name: str) -> None:
        self.api = api
        self.path = path(kind, namespace, name)
        self._collection = path(kind, namespace)
        self._kind = kind
        self.body: Json = {}
        self.clock = SystemClock()

    async def create(self, *finalizers: str) -> None:
        spec = dict(_SPECS[self._kind])
        if self._kind in OPERATION_KINDS:
            spec["tableRef"] = {"name": "flights"}
        created = await self.api.create(
            self._collection,
            {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": self._kind,
                "metadata": {
                    "name": self.path.name,
                    "namespace": self.path.namespace,
                    "finalizers": list(finalizers),
                },
                "spec": spec,
            },
        )
        self.body = dict(created)

    async def look(self) -> None:
        self.body = dict(await self.api.get(self.path))

    async def change(self, **spec: Any) -> None:
        """Applies another manifest."""
        self.body = dict(await self.api.patch(self.path, {"spec": spec}))

    async def annotate(self, key: str, value: str) -> None:
        patch = {"metadata": {"annotations": {key: value}}}
        self.body = dict(await self.api.patch(self.path, patch))

    async def delete(self) -> None:
        await self.api.delete(self.path)
        await self.look()

    # What the operator says of an operation

    async def says(self, state: OperationState) -> None:
        """The engine's state, by the engine's and the operator's own way to a status."""
        now = self.clock.now_ms()
        status = status_of(
            state,
            operation_id="0123456789abcdef",
            generation=generation_of(self.body),
            started_ms=now,
            now_ms=now,
        )
        retry = retry_requested(self.body)
        reporter = self._reporter()
        await self._written(reporter, reporter.as_of_now(status, retry))

    async def is_hindered(self, phase: Phase, reason: Reason, message: str) -> None:
        """By what keeps it from starting, or from being understood."""
        reporter = self._reporter()
        await self._written(reporter, reporter.changed(phase, reason, message))

    def _reporter(self) -> Reporter:
        context = SimpleNamespace(
            api=self.api,
            settings=OperatorSettings(status_s=0.0, progress_s=0.0),
            clock=self.clock,
            may_write=lambda: True,
            metrics=MagicMock(),
        )
        return Reporter(cast(OperatorContext, context), self.body, lambda: None)

    async def _written(self, reporter: Reporter, status: OperationStatus) -> None:
        reporter.offer(status)
        await self._until_phase(status.phase)
        await reporter.close()

    # What the operator says of a table

    async def is_table(self, *conditions: Condition) -> None:
        facts = TableStatus(version=7, segments=3, files=3, bytes=3000, rows=30, small_files=3)
        generation = generation_of(self.body)
        # Locks and operations are of no interest here.
        status = table_status.compose(facts, conditions, generation, (), ())
        writer = self._writer()
        writer.offer(status.manifest())
        await self._until_phase(status.phase)
        await writer.close()

    async def is_ready(self) -> None:
        await self.is_table(
            *table_status.ready(Reason.ADOPTED, "", generation_of(self.body), self.clock.now_ms())
        )

    async def is_unready(self, reason: Reason, message: str) -> None:
        now = self.clock.now_ms()
        await self.is_table(*table_status.not_ready(reason, message, generation_of(self.body), now))

    # What the operator says of an index server

    async def serves(self, state: State) -> None:
        status = compose(state, generation_of(self.body), self.clock.now_ms())
        writer = self._writer()
        writer.offer(status.manifest())
        await self._until(lambda said: bool(said.get("conditions")))
        await writer.close()

    def _writer(self) -> StatusWriter:
        body = self.body
        return StatusWriter(self.api, self.path, uid_of(body), body["status"], version_of(body))

    async def _until_phase(self, phase: Phase) -> None:
        await self._until(lambda said: said.get("phase") == phase)

    async def _until(self, true: Callable[[Mapping[str, Any]], bool]) -> None:
        """Until the status, as the API server has it, is so."""
        async with asyncio.timeout(_LIMIT_S):
            await self.look()
            while not true(self.body["status"]):
                await asyncio.sleep(0.05)
                await self.look()


PLAN = Plan(read_version=6, inputs=4, input_bytes=4000, locks=("0-3",))
BEGUN = OperationState(attempt=AttemptState(1, plan=PLAN))
WORKED_ON_AGAIN = replace(BEGUN, attempt=AttemptState(5, plan=PLAN), phase=Phase.PLANNED)
ENDED_WELL = Ending(
    Phase.SUCCEEDED, Reason.COMMITTED, "", 1, OperationResult(version=7, files_removed=4)
)
GAVE_UP = Ending(Phase.FAILED, Reason.BACKOFF_LIMIT_EXCEEDED, "JobFailed: exit code 1", 4)


def _ended_as(ending: Ending) -> OperationState:
    return replace(BEGUN, outcome=OutcomeState(ended=ending))


def _in(state: OperationState) -> Callable[[Actor], Awaitable[None]]:
    return lambda actor: actor.says(state)


def _ended(phase: Phase, reason: Reason) -> Callable[[Actor], Awaitable[None]]:
    return _in(_ended_as(Ending(phase, reason, "", 1)))


async def _unseen(_actor: Actor) -> None:
    """No controller acts."""


async def _waits_for_another(actor: Actor) -> None:
    message = "waits for LakeTable/flights, which does not exist"
    await actor.is_hindered(Phase.PENDING, Reason.WAITING_FOR_DEPENDENCY, message)


async def _is_wrong(actor: Actor) -> None:
    await actor.is_hindered(Phase.FAILED, Reason.INVALID_SPEC, "lockMode: not for this kind")


async def _suspended(actor: Actor) -> None:
    await actor.change(suspend=True)
    await actor.is_hindered(Phase.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true")


async def _to_be_tried_again(actor: Actor) -> None:
    await actor.says(_ended_as(GAVE_UP))
    await actor.annotate(RETRY_ANNOTATION, "2026-11-21")


async def _tried_again(actor: Actor) -> None:
    await _to_be_tried_again(actor)
    await actor.says(WORKED_ON_AGAIN)


async def _failed_again(actor: Actor) -> None:
    await _to_be_tried_again(actor)
    await actor.says(WORKED_ON_AGAIN)
    await actor.says(_ended_as(GAVE_UP))


async def _to_be_suspended(actor: Actor) -> None:
    await actor.says(replace(BEGUN, phase=Phase.RUNNING))
    await actor.change(suspend=True)


async def _to_be_resumed(actor: Actor) -> None:
    await _suspended(actor)
    await actor.change(suspend=False)


async def _changed_after_its_end(actor: Actor) -> None:
    await actor.says(_ended_as(ENDED_WELL))
    await actor.change(ttlSecondsAfterFinished=3600)


async def _cancelled(actor: Actor) -> None:
    await actor.says(replace(BEGUN, phase=Phase.RUNNING))
    await actor.delete()


async def _removed(actor: Actor) -> None:
    await actor.says(_ended_as(ENDED_WELL))
    await actor.delete()


OPERATIONS = (
    Situation("just created, not seen by the operator yet", _unseen),
    Situation("waits for its table, or for another operation", _waits_for_another),
    Situation("begins", _in(OperationState())),
    Situation("planned", _in(replace(BEGUN, phase=Phase.PLANNED))),
    Situation(
        "waits for locks",
        _in(
            replace(
                BEGUN,
                phase=Phase.PLANNED,
                locks=LockState(
                    blockers=(("TableCompaction/nightly", "segment 0.1"),), waiting_since_ms=1
                ),
            )
        ),
    ),
    Situation("holds its locks", _in(replace(BEGUN, phase=Phase.LOCKED))),
    Situation(
        "its job runs",
        _in(
            replace(
                BEGUN,
                phase=Phase.RUNNING,
                job=JobState(progress=Progress(percent=40, summary="2/5 files")),
            )
        ),
    ),
    Situation(
        "an attempt failed, another one follows",
        _in(
            replace(
                BEGUN,
                attempt=replace(BEGUN.attempt, failures=1),
                phase=Phase.PENDING,
                message="JobFailed: exit code 1",
            )
        ),
    ),
    Situation(
        "etcd, the store or the API server is unreachable",
        _in(
            replace(
                BEGUN,
                phase=Phase.RUNNING,
                pending=PendingEffect(waiting_reason=(Reason.LOCKS_UNAVAILABLE, "no answer")),
            )
        ),
    ),
    Situation(
        "its result is reconciled and committed", _in(replace(BEGUN, phase=Phase.RECONCILING))
    ),
    Situation("committed", _in(_ended_as(ENDED_WELL))),
    Situation("there was nothing to do", _ended(Phase.SUCCEEDED, Reason.NOTHING_TO_DO)),
    Situation("a dry run, planned", _ended(Phase.SUCCEEDED, Reason.DRY_RUN)),
    Situation("superseded by what others committed", _ended(Phase.SUPERSEDED, Reason.SUPERSEDED)),
    Situation("failed permanently", _in(_ended_as(GAVE_UP))),
    Situation("its spec is invalid", _is_wrong),
    Situation("failed, and `tandem.dev/retry` is new", _to_be_tried_again),
    Situation("is retried", _tried_again),
    Situation("failed again after that", _failed_again),
    Situation("suspended", _suspended),
    Situation("in progress, `suspend` just set in Git", _to_be_suspended),
    Situation("suspended, `suspend` just removed in Git", _to_be_resumed),
    Situation("committed, and then its spec was changed", _changed_after_its_end),
    Situation("deleted while its job ran, kept by a foreign finalizer", _cancelled),
    Situation("deleted after its end, kept by a foreign finalizer", _removed),
)


async def _store_is_away(actor: Actor) -> None:
    await actor.is_unready(Reason.STORAGE_ERROR, "the store does not answer")


async def _no_table_there(actor: Actor) -> None:
    await actor.is_unready(Reason.TABLE_NOT_FOUND, "there is no Delta table at the location")


async def _wrong_table(actor: Actor) -> None:
    await actor.is_unready(Reason.INVALID_SPEC, "spec.time.column: there is no such column")


async def _changed_table(actor: Actor) -> None:
    await actor.is_ready()
    await actor.change(time={"column": "time_hour", "granularity": "Day"})


async def _deleted_table(actor: Actor) -> None:
    await actor.is_ready()
    await actor.delete()


TABLES = (
    Situation("just created, not seen by the operator yet", _unseen),
    Situation("ready: adopted or created", Actor.is_ready),
    Situation("the store is unreachable for now", _store_is_away),
    Situation("there is no table, or no access", _no_table_there),
    Situation("its spec is invalid", _wrong_table),
    Situation("its spec has just changed", _changed_table),
    Situation("being deleted", _deleted_table),
)


# Index servers


async def _serving(actor: Actor) -> None:
    await actor.serves(State(True, Reason.SERVING))


async def _starting(actor: Actor) -> None:
    await actor.serves(State(False, Reason.PENDING, "its driver starts"))


async def _dead(actor: Actor) -> None:
    await actor.serves(State(False, Reason.JOB_FAILED, "the driver ended with exit code 1"))


async def _no_certificate(actor: Actor) -> None:
    message = "there is no Secret lake-index-tls in the namespace"
    await actor.serves(State(False, Reason.REFERENCE_NOT_FOUND, message, stalled=True))


async def _suspended_server(actor: Actor) -> None:
    await actor.serves(State(None, Reason.SUSPENDED, "spec.suspend is true"))


async def _changed_server(actor: Actor) -> None:
    await _serving(actor)
    await actor.change(memory="1Gi")


async def _deleted_server(actor: Actor) -> None:
    await _serving(actor)
    await actor.delete()


SERVERS = (
    Situation("just created, not seen by the operator yet", _unseen),
    Situation("its driver starts", _starting),
    Situation("answers", _serving),
    Situation("its driver has died, and is started again", _dead),
    Situation("its certificate is missing, or its spec is invalid", _no_certificate),
    Situation("suspended", _suspended_server),
    Situation("its spec has just changed", _changed_server),
    Situation("being deleted", _deleted_server),
)
_SITUATIONS = {TABLE_KIND: TABLES, IndexServer.kind_name: SERVERS}


async def play(api: Api, namespace: str) -> dict[tuple[str, str], Json]:
    """(Kind, name of the situation) → the object."""
    actors: list[tuple[Situation, Actor]] = []
    for kind in KINDS:
        for number, situation in enumerate(_SITUATIONS.get(kind, OPERATIONS)):
            name = f"{kind.lower()}-{number}"
            actors.append((situation, Actor(api, kind, namespace, name)))

    async def act(situation: Situation, actor: Actor) -> Json:
        await actor.create("example.com/kept")  # to look at those that are being deleted
        await situation.come_about(actor)
        await actor.look()
        return actor.body

    with patch.object(kopf, "event"):  # it needs the context of a handler
        bodies = await asyncio.gather(*(act(*item) for item in actors))
    return {
        (str(body["kind"]), situation.name): body
        for (situation, _), body in zip(actors, bodies, strict=True)
    }
