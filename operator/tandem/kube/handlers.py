"""The handlers and settings for kopf. Handlers of events keep the caches of resources and
applications, and have each resource that needs work controlled. kopf writes nothing to resources.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import kopf
import structlog

from tandem.kube.client.credentials import login_handler
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    ResourceCache,
    key_of,
    uid_of,
    version_number,
)
from tandem.kube.controllers.ended import EndedController
from tandem.kube.controllers.spark_jobs import ApplicationCache
from tandem.kube.runtime.context import OperatorContext, OperatorSettings, ResourceControl
from tandem.kube.runtime.controller_tasks import ControllerTasks, StopReason, StopSignal
from tandem.kube.runtime.kopf_internals import Listed, listed_to
from tandem.spark.application.port import ApplicationBuilder
from tandem.spec.common import FINALIZER, GROUP, MANAGED_BY, OPERATIONS, VERSION, plural
from tandem.spec.index import IndexServer
from tandem.spec.resources import KINDS
from tandem.spec.status import ENDED

if TYPE_CHECKING:
    from tandem.kube.controllers.index_server import IndexServerController

_log = structlog.get_logger("tandem.kube.handlers")
_LONGEST_PAUSE_S = 10.0


def register(
    context: OperatorContext,
    control: ResourceControl,
    controller_tasks: ControllerTasks,
    ended_controller: EndedController,
    applications: ApplicationCache,
    builder: ApplicationBuilder | None,
) -> kopf.OperatorRegistry:
    """All handlers of one operator.

    Args:
        control: has LakeTables and operations controlled.
        controller_tasks: in which that, and the controllers of IndexServers, run.
        builder: of the Spark operator's resources; None if jobs run in another way. Then there are
            no index servers.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login_handler(context.api.log_in))

    async def control_index_server(body: Body, stopped: StopSignal) -> None:
        assert builder is not None
        # In a thread: the import takes half a second.
        controller = await asyncio.to_thread(_index_server_controller)
        await controller(context, body, builder, applications).run(stopped)

    controls: dict[str, Run] = dict.fromkeys((*OPERATIONS, TABLE_KIND), control.run)
    if builder is not None:
        controls[IndexServer.kind_name] = control_index_server

    def seen(event: Mapping[str, Any]) -> None:
        observed(event, context, control, controller_tasks, ended_controller, controls)

    async def observe(event: Any, **_: Any) -> None:
        seen(event)

    def listed(found: Listed) -> None:
        for event in not_listed(context.resource_cache, found):
            seen(event)
        if builder is not None and found.plural == builder.resource[2]:
            applications.keep(found.namespace, found.uids)

    listed_to(listed)
    for kind in KINDS:
        kopf.on.event(GROUP, VERSION, plural(kind), registry=registry, id="observe")(observe)

    if builder is not None:

        async def observe_application(event: Any, **_: Any) -> None:
            body: Body = event["object"]
            applications.observe(event["type"], body)
            for owner in body["metadata"].get("ownerReferences") or ():
                summary = context.resource_cache.by_uid(owner["uid"])
                if summary is not None:
                    context.resource_cache.wake_watchers(summary.key)

        kopf.on.event(*builder.resource, registry=registry, id="observe")(observe_application)
    return registry


def not_listed(cache: ResourceCache, listed: Listed) -> list[dict[str, Any]]:
    """The events of what the cache has, and a list has not. Pure."""
    until = version_number(listed.version)
    return [
        {
            "type": "DELETED",
            "object": cache.body(known.uid)
            or {
                "kind": known.kind,
                "metadata": {"namespace": known.namespace, "name": known.name, "uid": known.uid},
            },
        }
        for known in tuple(cache.all())
        if plural(known.kind) == listed.plural
        and listed.namespace in (None, known.namespace)
        and known.uid not in listed.uids
        # What was made after the list is not in it.
        and version_number(known.resource_version) <= until
    ]


Run = Callable[[Body, StopSignal], Awaitable[None]]


def observed(
    event: Mapping[str, Any],
    context: OperatorContext,
    control: ResourceControl,
    controller_tasks: ControllerTasks,
    ended_controller: EndedController,
    controls: Mapping[str, Run],
) -> None:
    """A resource was created, changed or deleted, or is in a list: note it, and have it controlled
    if it needs work.

    Args:
        controls: what controls a resource, by its kind.
    """
    body: Body = event["object"]
    uid = uid_of(body)
    if event["type"] == "DELETED":
        context.removed(uid)
        control.remove(uid, key_of(body)[1])
        controller_tasks.stop(uid, StopReason.DELETED)
        return
    summary = context.resource_cache.update(body)
    control.put(summary)
    ended_controller.note(summary)
    run = controls.get(summary.kind)
    if run is None:
        return
    if summary.deleting:
        controller_tasks.stop(uid, StopReason.DELETED)
    elif not summary.active:
        controller_tasks.stop(uid, StopReason.ENDED)
    else:
        # One that has ended is active if it has failed and a retry is requested.
        again = summary.phase in ENDED
        controlled = functools.partial(_controlled, context, run, body)
        controller_tasks.control(uid, controlled, again=again)


async def _controlled(context: OperatorContext, run: Run, body: Body, stopped: StopSignal) -> None:
    """Run a controller of a resource as it is now, or was last seen. One that has ended meanwhile
    needs none."""
    uid, cache = uid_of(body), context.resource_cache
    now = cache.body(uid)
    if now is not None or cache.by_uid(uid) is None:
        await run(now or body, stopped)


def _index_server_controller() -> type[IndexServerController]:
    """Imported with the first IndexServer: with the index and Arrow Flight it takes 12 MB."""
    from tandem.kube.controllers.index_server import IndexServerController

    return IndexServerController


class NoDiffBaseStorage(kopf.DiffBaseStorage):
    """Keeps kopf from storing the last handled configuration and from computing differences: our
    handlers are level-triggered. kopf would copy every object twice for that."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:  # noqa: ARG002 - kopf's
        return {}

    def fetch(self, *, body: Any) -> Any:  # noqa: ARG002 - kopf's
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        """Nothing is stored."""


class EndlessBackoffs:
    """Endless pauses between tries of one API call: if kopf gave up, its watch would end, and the
    operator would see no more events."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.3, 0.7, 1.5, 3.0, 5.0)
        yield from itertools.repeat(_LONGEST_PAUSE_S)


def kopf_settings(
    settings: OperatorSettings, builder: ApplicationBuilder | None
) -> kopf.OperatorSettings:
    """The settings of kopf. `builder`: as of `register`."""
    found = kopf.OperatorSettings()
    # Otherwise a SIGKILL follows ten minutes after each end of kopf that it began by itself, also
    # of a kopf that runs again since. The end has a limit of its own (`kopf_loop`).
    found.process.ultimate_exiting_timeout = None
    # kopf takes off the one that releases before this one have put on operations.
    found.persistence.finalizer = FINALIZER
    found.persistence.diffbase_storage = NoDiffBaseStorage()
    found.posting.reporting_component = "tandem-operator"
    found.posting.reporting_instance = settings.instance
    found.posting.event_name_prefix = "tandem-"
    found.networking.request_timeout = 30
    found.networking.connect_timeout = 5
    found.networking.enforce_retry_after = True
    found.networking.error_backoffs = EndlessBackoffs()
    found.watching.connect_timeout = 5
    found.watching.reconnect_backoff = 0.5
    found.watching.chunk_size = 200
    # So long after its last event, kopf keeps an object and a task for it. While ten thousand are
    # listed, about this many seconds' worth of them are in memory at once.
    found.queueing.idle_timeout = 0.1
    if builder is not None:
        group, _, applications = builder.resource
        found.watching.label_selectors[group, applications] = "=".join(MANAGED_BY)
    found.queueing.error_delays = (0.5, 1, 2, 3, 5, 8, 10)
    # Only patterns of namespaces require kopf to watch namespaces; names and "all" do not.
    found.scanning.disabled = settings.names_namespaces
    return found
