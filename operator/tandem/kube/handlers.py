"""The handlers and settings for kopf. Handlers keep the caches of resources and applications, and
hand everything else over to a controller.

Daemons must not return by themselves: kopf would not start them again in this process. When they
are done, they wait until their filter no longer matches (docs/decisions/0046).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import kopf
import structlog

from tandem.kube.client.credentials import login_handler
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    has_finalizer,
    is_active,
    is_deleting,
    key_of,
    uid_of,
)
from tandem.kube.controllers.ended import EndedController
from tandem.kube.controllers.spark_jobs import ApplicationCache
from tandem.kube.runtime.context import OperatorContext, OperatorSettings, ResourceControl
from tandem.kube.runtime.kopf_internals import without_finalizer
from tandem.spark.application.port import ApplicationBuilder
from tandem.spec.common import GROUP, OPERATIONS, VERSION, plural
from tandem.spec.index import IndexServer
from tandem.spec.labels import FINALIZER, MANAGED_BY
from tandem.spec.resources import KINDS

if TYPE_CHECKING:
    from tandem.kube.controllers.index_server import IndexServerController

_log = structlog.get_logger("tandem.kube.handlers")
_RETRY_S = 10.0
_FORCED_EXIT_S = 5.0
_LONGEST_PAUSE_S = 10.0


def register(
    context: OperatorContext,
    control: ResourceControl,
    ended_controller: EndedController,
    applications: ApplicationCache,
    builder: ApplicationBuilder | None,
) -> kopf.OperatorRegistry:
    """All handlers of one operator.

    Args:
        control: has LakeTables and operations controlled.
        builder: of the Spark operator's resources; None if jobs run in another way. Then there are
            no index servers.
    """
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login_handler(context.api.log_in))

    async def observe(event: Any, **_: Any) -> None:
        body: Body = event["object"]
        uid = uid_of(body)
        if event["type"] == "DELETED":
            context.removed(uid)
            context.cancelled.discard(uid)
            control.remove(uid, key_of(body)[1])
            return
        summary = context.resource_cache.update(body)
        control.put(summary)
        ended_controller.note(summary)
        if summary.kind in OPERATIONS and is_deleting(body):
            await _clean_up_unattended(context, control, body)

    for kind in KINDS:
        kopf.on.event(GROUP, VERSION, plural(kind), registry=registry, id="observe")(observe)

    async def control_resource(body: Any, stopped: Any, **_: Any) -> None:
        raw = context.resource_cache.body(uid_of(body))
        if raw is not None:
            await control.run(raw, stopped)
        await stopped.wait()

    def is_there(body: Body) -> bool:
        # `observe` comes first, also on deletion: without a finalizer, kopf itself would let the
        # daemon of a vanished object go on.
        return context.resource_cache.by_uid(uid_of(body)) is not None

    options: dict[str, Any] = {
        "registry": registry,
        "backoff": _RETRY_S,
        "cancellation_timeout": _FORCED_EXIT_S,
    }
    for kind in OPERATIONS:
        kopf.daemon(
            GROUP,
            VERSION,
            plural(kind),
            id="control_operation",
            when=lambda body, **_: is_there(body) and is_active(body),
            **options,
        )(control_resource)
    kopf.daemon(
        GROUP,
        VERSION,
        plural(TABLE_KIND),
        id="control_table",
        when=lambda body, **_: is_there(body),
        **options,
    )(control_resource)
    without_finalizer(registry, {"control_table"})
    if not context.settings.finalizers:
        without_finalizer(registry, {"control_operation"})

    if builder is not None:

        async def control_index_server(body: Any, stopped: Any, **_: Any) -> None:
            raw = context.resource_cache.body(uid_of(body))
            if raw is not None:
                # In a thread: the import takes half a second.
                controller = await asyncio.to_thread(_index_server_controller)
                await controller(context, raw, builder, applications).run(stopped)
            await stopped.wait()

        kopf.daemon(
            GROUP,
            VERSION,
            plural(IndexServer.kind_name),
            id="control_index_server",
            when=lambda body, **_: is_there(body),
            **options,
        )(control_index_server)
        without_finalizer(registry, {"control_index_server"})

        async def observe_application(event: Any, **_: Any) -> None:
            body: Body = event["object"]
            applications.observe(event["type"], body)
            for owner in body["metadata"].get("ownerReferences") or ():
                summary = context.resource_cache.by_uid(owner["uid"])
                if summary is not None:
                    context.resource_cache.wake_watchers(summary.key)

        kopf.on.event(*builder.resource, registry=registry, id="observe")(observe_application)
    return registry


def _index_server_controller() -> type[IndexServerController]:
    """Imported with the first IndexServer: with the index and Arrow Flight it takes 12 MB."""
    from tandem.kube.controllers.index_server import IndexServerController

    return IndexServerController


async def _clean_up_unattended(
    context: OperatorContext, control: ResourceControl, body: Body
) -> None:
    """Clean up after an operation that was deleted while no operator ran, before kopf removes the
    finalizer: such an operation has no daemon, and kopf does not start one."""
    uid = uid_of(body)
    if uid in context.active_operations or uid in context.cancelled:
        return
    if not has_finalizer(body) or not is_active(body):
        return
    try:
        async with asyncio.timeout(context.settings.cancel_s):
            await control.clean_up(body)
    except TimeoutError:
        kind, namespace, name = key_of(body)
        _log.warning("released without a clean-up", kind=kind, namespace=namespace, name=name)


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
    found.persistence.finalizer = FINALIZER
    found.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
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
    # A deleted operation has this long to clean up; kopf checks again as soon as it is done,
    # without writing to the resource.
    found.background.instant_exit_timeout = settings.cancel_s
    return found
