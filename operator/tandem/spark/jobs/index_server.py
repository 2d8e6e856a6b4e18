"""The driver of an `IndexServer`: serves tables until SIGTERM. Commits nothing, writes nothing but
files of the index, and reads no data page.

It ends with an error that names the cause where it cannot serve at all: a certificate or token that
is not there, an address that it cannot listen on. A table that cannot be read fails only the
questions about it.

The executors of an index server as Spark tasks that do not end: in the driver, one job of one
task for each slot.

Spark schedules them, notices their death and starts them again; no question is a Spark job. Slots
are independent: one that is lost takes no other with it, as it would in a barrier stage.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import structlog

from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import InvalidSpec, TandemError, Unreachable
from tandem.index import TableIndex
from tandem.index.facts.cache import LIMIT as FACTS_LIMIT
from tandem.index.facts.cache import FactsCache
from tandem.index.server.access import (
    CallerCheck,
    ClusterReviews,
    ReviewedTokens,
    SharedToken,
    Unchecked,
)
from tandem.index.server.calls import AnswerFiles, Background
from tandem.index.server.coordinator import Coordinator
from tandem.index.server.executor import ExecutorService, MakeFacts
from tandem.index.server.messages import (
    LISTEN_VARIABLE,
    PORT,
    SECRETS_FOLDER,
    SECRETS_VARIABLE,
    AccessConfig,
    ServerConfig,
    TableConfig,
    read,
)
from tandem.index.server.registration import (
    RegistryService,
    SlotSettings,
    TlsFolder,
    new_key,
    run_executor,
)
from tandem.index.server.service import IndexService
from tandem.index.server.shards import SHARD_SIZE
from tandem.index.server.transport import FlightServer, Tls, stop_event
from tandem.spark.runtime.session import context as spark_context
from tandem.spark.runtime.session import watch_parent
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark import SparkContext


_driver_log = structlog.get_logger("tandem.index.driver")

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
                _driver_log.info("an executor of the index ended", slot=slot)
            except Exception as error:  # noqa: BLE001 - whatever it was, the slot starts again
                if not self._stop.is_set():
                    problem = str(error).splitlines()[0][:300]
                    _driver_log.warning(
                        "an executor of the index failed", slot=slot, problem=problem
                    )
            self._stop.wait(AGAIN_S)


def _group(slot: int) -> str:
    return f"tandem-index-executor-{slot}"


def _be_executor(settings: SlotSettings, slots: Iterable[int]) -> None:
    """The task: it ends when its coordinator is gone. Spark ends it by ending its process."""
    for slot in slots:
        run_executor(settings, slot, threading.Event())


_log = structlog.get_logger("tandem.index.program")
_FOLLOWERS = 8
"""Tables whose logs are looked at together."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The main function of `spark_apps/index_server.py`. Exit codes: 0 after SIGTERM or SIGINT,
    1 if it cannot serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request", action="append", required=True, metavar="PIECE")
    found = parser.parse_args(arguments)
    watch_parent()
    try:
        serve(read(found.request), stop_event())
    except TandemError as error:
        sys.stderr.write(f"tandem: {error}\n")
        return 1
    return 0


def serve(
    config: ServerConfig,
    stop: threading.Event,
    environ: Mapping[str, str] = os.environ,
    *,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve until `stop` is set.

    Args:
        environ: `SECRETS_VARIABLE` and `LISTEN_VARIABLE`, where they differ from those of a pod.
        ready: called with the address once questions are answered.
    Raises: InvalidSpec, AccessDenied; Unreachable if it cannot listen.
    """
    secrets = Path(environ.get(SECRETS_VARIABLE, SECRETS_FOLDER))
    host, port = _address(environ.get(LISTEN_VARIABLE) or f"0.0.0.0:{PORT}")
    access, tls = access_of(config.access, secrets), tls_of(config.access, secrets)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-index-"))
        coordinator = stack.enter_context(_coordinator(config, secrets))
        service = IndexService(
            {
                name: partial(opened, table, config, secrets)
                for name, table in config.tables.items()
            },
            AnswerFiles(
                Path(folder) / "answers",
                inline_limit=config.inline_limit,
                ttl_s=config.ttl_s,
                limit_bytes=config.disk // 2,
                caller_bytes=config.disk // 4,
            ),
            limit_bytes=_half(config),
            max_staleness_s=config.max_staleness_s,
            coordinator=coordinator,
        )
        stack.callback(service.close)
        try:
            server = FlightServer(service, host, port, access=access, tls=tls)
        except (pa.ArrowException, OSError) as error:
            raise Unreachable(
                "the index server cannot listen",
                resource=f"{host}:{port}",
                found=str(error).splitlines()[0][:300],
                expected="a free port, and a valid certificate with its key",
            ) from error
        stack.enter_context(server)
        following = threading.Thread(
            target=follow, args=(service, config, stop), name="follow", daemon=True
        )
        following.start()
        gc.freeze()  # all callers wait for a collection: it looks at what comes from now on only
        ready(f"{'grpc' if tls is None else 'grpc+tls'}://{host}:{server.port}")
        _log.info("serves", tables=len(config.tables), port=server.port, mode=config.access.mode)
        stop.wait()


@contextmanager
def _coordinator(config: ServerConfig, secrets: Path) -> Iterator[Coordinator | None]:
    """What narrows files to row groups: executors on Spark, or one in this process; None if row
    groups are not wanted."""
    if not config.row_groups:
        yield None
        return
    limit = _half(config)
    tables = {name: partial(store_of, table, secrets) for name, table in config.tables.items()}
    facts = partial(FactsCache, limit=min(limit, FACTS_LIMIT), bloom_filters=config.bloom_filters)
    context, address, tls = None, "127.0.0.1", None
    if config.executors:
        context = spark_context("tandem-index")
        address = driver_address(context.getConf().get)
        if config.access.tls is not None:
            # The certificate is for the Service's name; executors present it, too.
            tls = TlsFolder(secrets / config.access.tls, config.service)
    try:
        with coordinated(
            context,
            tables,
            config.executors,
            limit_bytes=limit,
            shard_size=config.shard_size,
            facts=facts,
            pre_prime=config.pre_prime,
            address=address,
            listen=address if address == "127.0.0.1" else "0.0.0.0",
            tls=tls,
        ) as coordinator:
            yield coordinator
    finally:
        if context is not None:
            context.stop()


def driver_address(setting: Callable[[str], str | None]) -> str:
    """Where executors reach this driver, by its settings of Spark: in a pod its address, since the
    name in `spark.driver.host` is known only once the pod is ready."""
    found = setting("spark.driver.bindAddress") or setting("spark.driver.host") or "127.0.0.1"
    return f"[{found}]" if ":" in found and not found.startswith("[") else found


def _half(config: ServerConfig) -> int:
    """Bytes for what the log says, and for what footers say: without executors, one process holds
    both."""
    return config.memory if config.executors else config.memory // 2


def follow(service: IndexService, config: ServerConfig, stop: threading.Event) -> None:
    """Load all tables if that is asked for, and then follow the logs of those that are held."""
    names = sorted(config.tables)

    def look(name: str, load: bool) -> None:
        if stop.is_set():
            return
        try:
            service.follow(name, load=load)
        except TandemError as error:
            # A question about it says the same to its caller.
            _log.warning("a table cannot be followed", table=name, problem=str(error))

    def look_at_all(load: bool) -> None:
        wait([threads.submit(name, look, name, load) for name in names])

    threads = Background(_FOLLOWERS, "follow")
    look_at_all(config.pre_prime)
    while not stop.wait(config.poll_s):
        look_at_all(False)
    threads.close()


def opened(table: TableConfig, config: ServerConfig, secrets: Path) -> TableIndex:
    """The index of one table. Raises: as `store_of`, and as `TableIndex`."""
    # Row groups are the coordinator's.
    return TableIndex(
        DeltaLog(store_of(table, secrets)),
        row_groups=False,
        kept_ms=table.kept_ms,
        history_s=config.history_s,
    )


def store_of(table: TableConfig, secrets: Path) -> Store:
    """The store of a table, with the credentials of its folder; also in an executor, which has the
    same folders. Raises: InvalidSpec if it has not."""
    environ = None if table.secret is None else _files(secrets / table.secret)
    return open_store(
        table.location, table.options, allowed_prefixes=table.allowed, environ=environ
    )


def access_of(config: AccessConfig, secrets: Path) -> CallerCheck:
    """Who may ask. Raises: AccessDenied, InvalidSpec."""
    if config.mode == "Plaintext":
        return Unchecked()
    if config.mode == "SharedToken":
        return SharedToken(_text(secrets, config.token, "token", "access.token").decode().strip())
    return ReviewedTokens(ClusterReviews.in_cluster(config.namespace))


def tls_of(config: AccessConfig, secrets: Path) -> Tls | None:
    """The certificate and its key; None in plain text. Raises: InvalidSpec."""
    if config.mode == "Plaintext":
        return None
    return Tls(
        _text(secrets, config.tls, "tls.crt", "access.tls"),
        _text(secrets, config.tls, "tls.key", "access.tls"),
    )


def _text(secrets: Path, name: str | None, key: str, field: str) -> bytes:
    path = secrets / (name or "") / key
    try:
        found = path.read_bytes() if name else b""
    except OSError:
        found = b""
    if not found:
        raise InvalidSpec(
            "a Secret lacks a key",
            resource=f"Secret/{name}",
            field=f"{field}: {key}",
            expected=f"the key {key}",
            remedy=f"Add {key} to the Secret",
        )
    return found


def _files(folder: Path) -> dict[str, str]:
    """The keys of a Secret and their values. Kubernetes keeps versions of it in hidden folders."""
    try:
        return {
            file.name: file.read_text(errors="replace").strip()
            for file in folder.iterdir()
            if not file.name.startswith(".") and file.is_file()
        }
    except OSError as error:
        raise InvalidSpec(
            "the credentials of a table are not mounted",
            resource=f"Secret/{folder.name}",
            found=error.strerror or str(error),
            expected="a folder of files, one for each key",
        ) from error


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidSpec(
            "not an address to listen on",
            resource=LISTEN_VARIABLE,
            found=text,
            expected="HOST:PORT",
        )
    return host, int(port)
