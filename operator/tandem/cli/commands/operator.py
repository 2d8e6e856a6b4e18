"""`tandem operator` and `tandem dev`: options as settings, logging, and a clean end."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandem.cli.errors import Exit, say
from tandem.errors import InvalidSpec, SparkMissing

if TYPE_CHECKING:
    from tandem.kube.dev.controller import DevSettings
    from tandem.kube.runtime.context import OperatorSettings
    from tandem.locks.etcd.store import EtcdSettings

_LEAST_TABLE_MEMORY = 2**20
_LEAST_WITH_SPARK = 2 << 30
"""A JVM for small jobs takes one half, with its Python workers."""


class Locks(StrEnum):
    ETCD = "etcd"
    IN_PROCESS = "in-process"


class PullPolicy(StrEnum):
    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


def etcd_settings(
    locks: Locks,
    endpoints: Sequence[str],
    *,
    password: str,
    password_file: Path | None,
    **connection: Any,
) -> EtcdSettings | None:
    """The settings of the locks in etcd; None for locks inside the process. `connection`: the
    others of `EtcdSettings`. Raises: InvalidSpec."""
    if locks is Locks.IN_PROCESS:
        if endpoints:
            raise InvalidSpec(
                "locks inside the process need no etcd",
                resource="tandem operator",
                field="--etcd-endpoint",
                remedy="Leave one of the two out",
            )
        return None
    if not endpoints:
        raise InvalidSpec(
            "required, but missing",
            resource="tandem operator",
            field="--etcd-endpoint",
            remedy="Name etcd's host:port, or give --locks in-process where this is the only "
            "operator",
        )
    from tandem.locks.etcd.store import EtcdSettings

    if password_file is not None:
        password = password_file.read_text().strip()
    return EtcdSettings(endpoints=tuple(endpoints), password=password, **connection)


def table_memory(text: str) -> int:
    """Bytes that reading one table may take; "" for the default. Raises: InvalidSpec."""
    from tandem.kube.runtime.memory import default_table_memory

    if not text:
        return default_table_memory()
    size = _quantity(text, "--table-memory")
    if size < _LEAST_TABLE_MEMORY:
        raise InvalidSpec(
            "too little to read any table",
            resource="tandem operator",
            field="--table-memory",
            found=text,
            expected="at least 1Mi",
        )
    return size


def small_jobs(text: str) -> int:
    """Bytes that a job may read that is done without Spark; 0 for none. Raises: InvalidSpec."""
    return _quantity(text, "--small-jobs")


def small_jobs_on_spark(wanted: bool, small: int) -> bool:
    """Whether small jobs have Spark beside our processes.

    Args:
        small: how many bytes they read at most, 0 if there are none.
    Raises: InvalidSpec if there are none, or for too little memory; SparkMissing if Spark cannot be
        started here.
    """
    if not wanted:
        return False
    where: dict[str, str] = {"resource": "tandem operator", "field": "--small-jobs-on-spark"}
    if not small:
        raise InvalidSpec(
            "there are no small jobs",
            **where,
            found="--small-jobs 0",
            remedy="Leave one of the two options out",
        )
    from tandem.spark.runtime.session import find_java, memory_here, spark_home

    memory, limited = memory_here()
    if limited and memory < _LEAST_WITH_SPARK:
        raise InvalidSpec(
            "too little memory for a JVM",
            **where,
            found=f"a limit of {memory >> 20}Mi",
            expected=f"at least {_LEAST_WITH_SPARK >> 20}Mi",
            remedy="Raise the memory limit of the operator's pod, or leave the option out",
        )
    try:
        find_java()
        spark_home()
    except SparkMissing as error:
        raise SparkMissing(
            error.message,
            **where,
            found=error.found,
            expected=error.expected,
            remedy="Run the operator in Tandem's image, or leave the option out",
        ) from error
    return True


def _quantity(text: str, option: str) -> int:
    from tandem.spec.fields import parse_quantity

    try:
        return parse_quantity(text)
    except ValueError as error:
        raise InvalidSpec(
            str(error), resource="tandem operator", field=option, found=text
        ) from error


def template(file: Path | None) -> dict[str, Any] | None:
    """A partial SparkApplication from a file. Raises: InvalidSpec."""
    import yaml

    if file is None:
        return None
    try:
        found = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise InvalidSpec("this is not YAML", resource=str(file), found=str(error)) from error
    if not isinstance(found, dict):
        raise InvalidSpec("this is not a mapping", resource=str(file), expected="spec: {…}")
    return found


def run(settings: OperatorSettings, log_format: LogFormat) -> Exit:
    """Run until SIGTERM or SIGINT. `FAILED` if another operator has taken over, or the API server
    was restored from a backup: when restarted, it takes part in the election again."""
    import asyncio

    import structlog

    from tandem.kube.kopf_loop import LeadershipLost
    from tandem.kube.runtime.leader import ApiServerRestored

    try:
        asyncio.run(_run(settings, log_format))
    except (ApiServerRestored, LeadershipLost) as error:
        structlog.get_logger("tandem.kube.operator").error("has to start again", problem=str(error))
        return Exit.FAILED
    return Exit.OK


async def _run(settings: OperatorSettings, log_format: LogFormat) -> None:
    import asyncio

    from tandem.kube.operator import run_operator

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Until kopf runs, which takes the signals over; `kopf_loop` then sets the same event.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    logging_ = partial(configure_logging, log_format, verbose=False)
    await run_operator(settings, stop=stop, configure_child=logging_)


def configure_logging(form: LogFormat, *, verbose: bool) -> None:
    """Lines of structlog and of other libraries in one format, to standard error."""
    import structlog

    from tandem.kube.runtime.log_context import add_log_context

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_log_context,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderer: list[structlog.types.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form is LogFormat.JSON
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # The default one shows variables, and with them credentials.
                exception_formatter=structlog.dev.plain_traceback,
            )
        ]
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    # kopf logs every event that it passes on.
    for name in ("kopf", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.INFO if verbose else logging.WARNING)


def dev(kubeconfig: Path | None, namespaces: Sequence[str], max_jobs: int) -> Exit:
    """`tandem dev`: serve until SIGINT or SIGTERM; all jobs end then. Raises what `run_dev`
    raises."""
    import asyncio

    from tandem.kube.dev.controller import DevSettings

    settings = DevSettings(namespaces=tuple(namespaces), kubeconfig=kubeconfig, max_jobs=max_jobs)
    asyncio.run(_serve(settings))
    return Exit.OK


async def _serve(settings: DevSettings) -> None:
    import asyncio

    from tandem.kube.dev.controller import run_dev

    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    where = ", ".join(settings.namespaces) or "all namespaces"

    async def greet() -> None:
        await ready.wait()
        say(f"Running Tandem's SparkApplications in {where}. Ctrl-C stops it and its jobs.")

    greeting = asyncio.create_task(greet())
    try:
        await run_dev(settings, stop=stop, ready=ready)
    finally:
        greeting.cancel()
