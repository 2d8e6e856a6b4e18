"""One operator process: assembles its parts, starts them, and shuts them down.

It keeps no state of its own: whatever it needs after a restart is in statuses, in the lock store
and below the tables' `_tandem/`. The loop that does the work also serves /healthz, /readyz and
/metrics, so that they fail when the loop hangs. The first two say the same facts, with 503 if the
process is not alive or not ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import structlog
from aiohttp import web

from tandem import __version__
from tandem.jobs.runner import JobRunner
from tandem.kube import handlers
from tandem.kube.children.processes import ChildProcesses
from tandem.kube.children.start import LEAST_MEMORY
from tandem.kube.client.api import Api, ApiError
from tandem.kube.client.resources import Body, ResourceCache, uid_of
from tandem.kube.controllers.ended import EndedController
from tandem.kube.controllers.spark_jobs import ApplicationCache, ApplicationRunner
from tandem.kube.kopf_loop import KopfState, run_kopf
from tandem.kube.metrics.collectors import CONTENT_TYPE, MeasuredLocks, Metrics
from tandem.kube.runtime import kopf_internals
from tandem.kube.runtime.context import (
    OperatorContext,
    OperatorSettings,
    ResourceControl,
    RunnerFactory,
)
from tandem.kube.runtime.controller_tasks import ControllerTasks
from tandem.kube.runtime.leader import Leadership, LockMembers, Restoration
from tandem.kube.runtime.slots import AutomaticSlots, JobSlots
from tandem.kube.runtime.threads import TableThreads
from tandem.kube.state_metrics import StateCollector
from tandem.locks.store import InProcessLocks, LockStore
from tandem.operations.ports import Clock, SystemClock, SystemNonces
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.port import ApplicationBuilder, JobOwner, JobPlacement
from tandem.spec.common import (
    AUTOMATIC_LABEL,
    GROUP,
    KIND_LABEL,
    TABLE_LABEL,
    VERSION,
    label_value,
    plural,
)
from tandem.spec.resources import KINDS, Operation
from tandem.spec.table import LakeTable

Facts = Callable[[], Mapping[str, object]]
Exposition = Callable[[], Awaitable[bytes]]


@asynccontextmanager
async def serve_health(
    address: str,
    facts: Facts,
    exposition: Exposition,
    *,
    is_alive: Callable[[], bool],
    is_ready: Callable[[], bool],
) -> AsyncIterator[str]:
    """Serve on `host:port` (port 0: any free one), and yield the address. "" serves nothing."""
    if not address:
        yield ""
        return

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response(dict(facts()), status=200 if is_alive() else 503)

    async def readyz(_request: web.Request) -> web.Response:
        return web.json_response(dict(facts()), status=200 if is_ready() else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await exposition(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    host, _, port = address.rpartition(":")
    site = web.TCPSite(runner, host or "0.0.0.0", int(port))
    await site.start()
    try:
        yield f"{runner.addresses[0][0]}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


_log = structlog.get_logger("tandem.kube.operator")
_CRDS_S = 2.0
_SPARK_S = 10.0
"""How often to look for a Spark operator that is not installed."""


async def run_operator(
    settings: OperatorSettings,
    *,
    control_factory: Callable[[OperatorContext], ResourceControl] | None = None,
    stop: asyncio.Event | None = None,
    working: asyncio.Event | None = None,
    runner_factory: RunnerFactory | None = None,
    clock: Clock | None = None,
    configure_child: Callable[[], None] | None = None,
) -> None:
    """Run until `stop` is set or, in the main thread, until SIGTERM or SIGINT. Jobs go on; the
    next operator takes them over.

    Args:
        control_factory: has resources controlled in another way than by child processes.
        working: set once it leads and works.
        runner_factory: runs jobs in another way than as SparkApplications.
        clock: a clock instead of the machine's.
        configure_child: called in each child as it begins, for its log; to be pickled.

    Raises:
        LeadershipLost
        ApiServerRestored
    """
    stop = stop or asyncio.Event()
    working = working or asyncio.Event()
    loop = asyncio.get_running_loop()
    kopf_internals.read_lean_json()
    kopf_internals.note_watches()
    kopf_internals.note_lists()
    clock, nonces = clock or SystemClock(), SystemNonces()
    metrics = Metrics()
    table_threads = TableThreads()
    # Elections must not wait for a thread that works on a table.
    office = ThreadPoolExecutor(2, thread_name_prefix="tandem-office")
    index_threads = ThreadPoolExecutor(4, thread_name_prefix="tandem-index")
    _log.info("starts", version=__version__, **settings.log_fields())
    lagging = asyncio.create_task(metrics.watch_loop(), name="watch the loop")
    at_end = contextlib.ExitStack()
    try:
        async with (
            Api.from_kubeconfig(settings.kubeconfig, observe=metrics.api_call) as api,
            _lock_store(settings) as (store, grace_s),
        ):
            locks = MeasuredLocks(store, metrics)
            members = LockMembers(locks, settings.instance, nonces.nonce())
            leadership = Leadership(locks, members, settings.election_id, office, grace_s=grace_s)
            resource_cache = ResourceCache()
            applications = ApplicationCache()
            builder = KubeflowApplications(settings.application)
            slots = JobSlots(settings.job_limits)
            context = OperatorContext(
                settings=settings,
                api=api,
                resource_cache=resource_cache,
                locks=locks,
                processes=members,
                clock=clock,
                nonces=nonces,
                table_threads=table_threads,
                index_threads=index_threads,
                slots=slots,
                automatic_slots=AutomaticSlots(settings.automatic_slots, resource_cache),
                metrics=metrics,
                runner_factory=runner_factory
                or _spark_applications(api, loop, builder, applications),
                may_write=lambda: leadership.leads,
            )
            if control_factory is not None:
                control = control_factory(context)
            else:
                memory = settings.table_memory
                most = None if memory is None else max(memory, LEAST_MEMORY)
                control = ChildProcesses(context, memory=most, configure=configure_child)
            context.control = control
            watching = asyncio.create_task(control.watch(), name="watch the children")
            at_end.callback(watching.cancel)
            metrics.register(
                StateCollector(context, lambda: leadership.leads, slots, settings.table_metrics)
            )
            ended_controller = EndedController(api, resource_cache, clock, context.may_write)
            kopf_state = KopfState()
            fixed = settings.namespaces if settings.names_namespaces else ()
            restoration = Restoration(api, fixed[0] if fixed else None)

            def facts() -> dict[str, object]:
                return {
                    "instance": settings.instance,
                    "version": __version__,
                    "leads": leadership.leads,
                    "kopf": kopf_state.phase,
                    "resources": len(resource_cache),
                    "jobs": slots.taken,
                    "children": len(control.living()),
                }

            async with serve_health(
                settings.health,
                facts,
                metrics.exposition,
                is_alive=lambda: kopf_state.is_alive,
                is_ready=lambda: kopf_state.is_ready,
            ):
                try:
                    if not await _unless(stop, leadership.win()):
                        return
                    control.prepare()
                    again = True
                    while again:
                        # Before each run of kopf: a watch also dies when its kind is removed.
                        if not await _unless(stop, _await_kinds(api, leadership)):
                            return
                        spark = builder if runner_factory is None else None
                        later = None
                        if spark is not None and not await _is_installed(api, spark):
                            _log.warning("without a Spark operator: only small jobs can be done")
                            spark, later = None, _becomes_installed(api, builder)
                        controller_tasks = ControllerTasks()
                        again = await run_kopf(
                            settings,
                            handlers.kopf_settings(settings, spark),
                            handlers.register(
                                context,
                                control,
                                controller_tasks,
                                ended_controller,
                                applications,
                                spark,
                            ),
                            controller_tasks,
                            leadership,
                            ended_controller,
                            restoration,
                            stop,
                            working,
                            kopf_state,
                            later,
                        )
                        resource_cache.clear()
                        control.clear()
                finally:
                    await control.close()
                    await leadership.resign()
    finally:
        lagging.cancel()
        table_threads.shutdown()
        office.shutdown(wait=False, cancel_futures=True)
        index_threads.shutdown(wait=False, cancel_futures=True)
        at_end.close()
        _log.info("stops", instance=settings.instance)


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Await `work`; False if `stop` is set first."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (working, stopping):
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    if stop.is_set():
        return False
    working.result()
    return True


@asynccontextmanager
async def _lock_store(settings: OperatorSettings) -> AsyncIterator[tuple[LockStore, float]]:
    """The locks, and for how many seconds a leader may go on without an answer from them."""
    if settings.etcd is None:
        yield InProcessLocks(), float("inf")
        return
    from tandem.locks.etcd.store import EtcdLocks  # imports gRPC

    store = await asyncio.to_thread(EtcdLocks, settings.etcd)
    try:
        yield store, settings.etcd.ttl_s * 2 / 3
    finally:
        await asyncio.to_thread(store.close)


async def _await_kinds(api: Api, leadership: Leadership) -> None:
    """Wait until our kinds are installed, since kopf would not notice them later. Leadership is
    kept meanwhile."""
    holding = asyncio.create_task(leadership.hold(), name="hold leadership")
    try:
        await _are_installed(api)
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


async def _are_installed(api: Api) -> None:
    wanted = {plural(kind) for kind in KINDS}
    logged: set[str] = set()
    while missing := wanted - await _served(api, f"{GROUP}/{VERSION}"):
        if missing != logged:
            logged = missing
            _log.warning("waits for kinds to be installed", missing=sorted(missing))
        await asyncio.sleep(_CRDS_S)


async def _is_installed(api: Api, spark: ApplicationBuilder) -> bool:
    group, version, applications = spark.resource
    return applications in await _served(api, f"{group}/{version}")


async def _becomes_installed(api: Api, spark: ApplicationBuilder) -> None:
    """Return when the Spark operator's kind is installed."""
    while True:
        if await _is_installed(api, spark):
            return
        await asyncio.sleep(_SPARK_S)


async def _served(api: Api, group: str) -> set[str]:
    """The kinds that the API server serves of a group and version; none if it does not answer."""
    try:
        found = await api.request("GET", f"/apis/{group}")
    except ApiError as error:
        if error.status != 404:
            _log.warning("API server", problem=str(error))
        return set()
    return {item["name"] for item in found["resources"]}


def _spark_applications(
    api: Api,
    loop: asyncio.AbstractEventLoop,
    builder: ApplicationBuilder,
    applications: ApplicationCache,
) -> RunnerFactory:
    def runner_factory(resource: Operation, body: Body, table: LakeTable | None) -> JobRunner:
        storage = table.spec.storage if table is not None else None
        secret = storage.secret_ref if storage is not None else None
        account = (storage.service_account_name or "") if storage is not None else ""
        template = resource.spec.spark_template
        builder.check(template, resource=resource.id, service_account=account)
        labels = {
            TABLE_LABEL: label_value(resource.spec.table_ref.name),
            KIND_LABEL: resource.kind_name,
        }
        automatic = resource.metadata.labels.get(AUTOMATIC_LABEL)
        if automatic:
            labels[AUTOMATIC_LABEL] = automatic
        placement = JobPlacement(
            JobOwner(resource.api_version, resource.kind_name, resource.name, uid_of(body)),
            resource.namespace,
            template=template,
            secret_name=secret.name if secret is not None else None,
            service_account=account,
            labels=labels,
        )
        return ApplicationRunner(
            api=api, loop=loop, builder=builder, placement=placement, applications=applications
        )

    return runner_factory
