"""The executors of an index server as Spark tasks that do not end: in the driver, one job of one
task for each slot.

Spark schedules them, notices their death and starts them again; no question is a Spark job. Slots
are independent: one that is lost takes no other with it, as it would in a barrier stage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from tandem.index.server.coordinator import Coordinator
from tandem.index.server.executor import ExecutorService, MakeFacts
from tandem.index.server.registration import (
    RegistryService,
    SlotSettings,
    TlsFolder,
    new_key,
    run_executor,
)
from tandem.index.server.shards import SHARD_SIZE
from tandem.index.server.transport import FlightServer
from tandem.storage.store import Store

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = structlog.get_logger("tandem.index.driver")

AGAIN_S: Final = 1.0
"""Seconds until a slot that ended is started again."""

_MANY = "1000000"

Stores = Mapping[str, Callable[[], Store]]


def slot_conf(executor_cores: int) -> dict[str, str]:
    """Settings of an application that hosts executors.

    By its defaults Spark ends an application after a handful of lost executors, as if its work were
    wrong; here they are weather. A task takes all cores, so that each Spark executor has one slot.

    A driver's Service has a name for its pod only while that is ready, and it is ready once it
    serves. So it neither waits for executors before, nor has them look for it by that name.

    Args:
        executor_cores: `spark.executor.cores`.
    """
    return {
        "spark.task.cpus": str(executor_cores),
        "spark.task.maxFailures": _MANY,
        "spark.executor.maxNumFailures": _MANY,
        "spark.executor.failuresValidityInterval": "10m",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.dynamicAllocation.enabled": "false",
        "spark.speculation": "false",
        "spark.excludeOnFailure.enabled": "false",
        "spark.scheduler.minRegisteredResourcesRatio": "0",
        "spark.kubernetes.executor.useDriverPodIP": "true",
    }


@contextmanager
def coordinated(
    context: SparkContext | None,
    stores: Stores,
    count: int,
    *,
    limit_bytes: int | None = None,
    shard_size: int = SHARD_SIZE,
    pre_prime: bool = True,
    facts: MakeFacts | None = None,
    address: str = "127.0.0.1",
    listen: str = "",
    port: int = 0,
    tls: TlsFolder | None = None,
) -> Iterator[Coordinator]:
    """A coordinator with `count` executors on Spark; with none, one in this process.

    Args:
        context: of the driver; None only without executors.
        stores: how the store of each table is opened, by the name of its LakeTable. They travel to
            the executors, which have credentials of their own.
        limit_bytes: of facts that each executor holds.
        shard_size, pre_prime: as of `Coordinator`.
        facts: as of `HeldShards`.
        address: at which executors reach this driver.
        listen, port: where the registry of executors listens: by default at `address`.
    """
    if context is None or count == 0:
        if count:
            raise ValueError(f"{count} executors without a Spark context")
        local = ExecutorService(stores, limit_bytes=limit_bytes, facts=facts)
        coordinator = Coordinator(local=local, shard_size=shard_size, pre_prime=pre_prime)
        try:
            yield coordinator
        finally:
            coordinator.close()
        return
    key = new_key()
    coordinator = Coordinator(shard_size=shard_size, pre_prime=pre_prime)
    registry = RegistryService(coordinator.registry, key, tls=tls)
    certificate = None if tls is None else tls.server
    with FlightServer(registry, listen or address, port, token=key, tls=certificate) as server:
        scheme = "grpc" if tls is None else "grpc+tls"
        settings = SlotSettings(
            f"{scheme}://{address}:{server.port}", key, stores, limit_bytes, facts, tls
        )
        slots = ExecutorSlots(context, settings, count)
        slots.start()
        try:
            yield coordinator
        finally:
            slots.stop()
            coordinator.close()


class ExecutorSlots:
    """So many slots of an application, each of which is started again when it ends."""

    def __init__(self, context: SparkContext, settings: SlotSettings, count: int) -> None:
        self._context, self._settings = context, settings
        self._stop = threading.Event()
        self._slots = range(count)

    def start(self) -> None:
        from pyspark.util import InheritableThread

        for slot in self._slots:
            # Of such a thread, what it sets for its jobs is its own.
            InheritableThread(target=self._keep, args=(slot,), daemon=True).start()

    def stop(self) -> None:
        """End all slots; returns before they have ended."""
        self._stop.set()
        for slot in self._slots:
            self._context.cancelJobGroup(_group(slot))

    def _keep(self, slot: int) -> None:
        self._context.setJobGroup(_group(slot), f"index executor {slot}", interruptOnCancel=True)
        while not self._stop.is_set():
            try:
                one = self._context.parallelize([slot], 1)
                one.foreachPartition(partial(_be_executor, self._settings))
                _log.info("an executor of the index ended", slot=slot)
            except Exception as error:  # noqa: BLE001 - whatever it was, the slot starts again
                if not self._stop.is_set():
                    problem = str(error).splitlines()[0][:300]
                    _log.warning("an executor of the index failed", slot=slot, problem=problem)
            self._stop.wait(AGAIN_S)


def _group(slot: int) -> str:
    return f"tandem-index-executor-{slot}"


def _be_executor(settings: SlotSettings, slots: Iterable[int]) -> None:
    """The task: it ends when its coordinator is gone. Spark ends it by ending its process."""
    for slot in slots:
        run_executor(settings, slot, threading.Event())
