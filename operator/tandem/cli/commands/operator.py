"""`tandem operator` and `tandem dev`: options as settings, logging, and a clean end.

Every option, and those of `tandem etcd-user`, can be given in the environment, too:
`--etcd-endpoint` as TANDEM_ETCD_ENDPOINT (several separated by spaces).
"""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tandem import __version__
from tandem.cli.commands.arguments import Command, option, own_options
from tandem.cli.errors import Exit, errors_to_exit, say
from tandem.errors import InvalidSpec, SparkMissing
from tandem.spark.application.policy import TemplatePolicy

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


def table_memory_of(text: str) -> int:
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


def small_job_bytes_of(text: str) -> int:
    """Bytes that a job may read that is done without Spark; 0 for none. Raises: InvalidSpec."""
    return _quantity(text, "--small-jobs")


def on_spark_beside(wanted: bool, small: int) -> bool:
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


FILE: dict[str, Any] = {"exists": True, "dir_okay": False}

ETCD_CA = option(None, "Certificate authority of etcd (PEM).", **FILE)
ETCD_CERTIFICATE = option(None, "Our certificate for etcd (PEM).", **FILE)
ETCD_KEY = option(None, "The certificate's key (PEM).", **FILE)


def from_environment(function: Callable[..., Exit | None]) -> Command:
    """A command of which every option can be given in the environment, too."""

    def run(**own: Any) -> None:
        with errors_to_exit():
            raise typer.Exit(function(**own) or Exit.OK)

    def parameters() -> Iterator[inspect.Parameter]:
        for each in own_options(function):
            info = copy(each.default)
            [flag] = info.param_decls
            info.envvar = "TANDEM_" + flag.removeprefix("--").replace("-", "_").upper()
            yield each.replace(default=info)

    return Command(function, run, parameters)


@from_environment
def operator(
    *,
    namespaces: list[str] | None = option(
        None,
        "Namespace to serve, or a pattern such as team-*; repeatable. All by default.",
        "--namespace",
    ),
    kubeconfig: Path | None = option(
        None, "Kubeconfig; by default the pod's service account or kubectl's file.", **FILE
    ),
    locks: Locks = option(
        Locks.ETCD, "Where locks are kept. in-process is safe with one operator only."
    ),
    etcd_endpoints: list[str] | None = option(
        None, "host:port of etcd, https://host:port for TLS; repeatable.", "--etcd-endpoint"
    ),
    etcd_prefix: str = option("/tandem/v1", "Prefix of the keys in etcd."),
    etcd_ttl: int = option(
        60, "Seconds that the locks of a dead operator stay: longer than its restart takes.", min=2
    ),
    etcd_ca: Path | None = ETCD_CA,
    etcd_certificate: Path | None = ETCD_CERTIFICATE,
    etcd_key: Path | None = ETCD_KEY,
    etcd_user: str = option("", "User of etcd."),
    etcd_password_file: Path | None = option(
        None, "File with its password; or give it in TANDEM_ETCD_PASSWORD.", **FILE
    ),
    image: str = option(f"tandem:{__version__}", "Image of Spark drivers and executors."),
    image_pull_policy: PullPolicy = option(PullPolicy.IF_NOT_PRESENT, "Pull policy of that image."),
    service_account: str = option(
        "tandem-spark", "Service account of Spark drivers, in each namespace."
    ),
    max_executors: int = option(8, "Maximum number of executors of a job.", min=1),
    spark_template: Path | None = option(
        None, "File with a partial SparkApplication (YAML): defaults for every job.", **FILE
    ),
    allowed_locations: list[str] | None = option(
        None,
        "[NAMESPACE-PATTERN=]PREFIX: tables and sources may only be below it; repeatable. "
        "s3:// is every bucket, {namespace} the namespace's name. Anywhere by default.",
        "--allowed-location",
    ),
    allowed_endpoints: list[str] | None = option(
        None,
        "HOST[:PORT], or a pattern such as *.minio.svc, that tables may use as their store's "
        "endpoint, or as their catalog; repeatable. By default none with --allowed-location, "
        "otherwise any.",
        "--allowed-endpoint",
    ),
    template_policy: TemplatePolicy = option(
        TemplatePolicy.RESTRICTED,
        "What sparkTemplate may set. restricted: only what docs/template-policy.md lists, "
        "within the Pod Security Standard of that name and the job's service account.",
    ),
    template_allow: list[str] | None = option(
        None,
        "A setting (spark.extraListeners, spark.hadoop.fs.s3a.*) or a field "
        "(spec.batchScheduler) that sparkTemplate may set in addition; repeatable.",
    ),
    max_jobs: int = option(16, "Maximum number of concurrent jobs; 0: no limit.", min=0),
    max_jobs_per_namespace: int = option(
        0, "Maximum number of concurrent jobs of one namespace; 0: no limit of its own.", min=0
    ),
    max_jobs_per_table: int = option(
        0, "Maximum number of concurrent jobs of one table; 0: no limit of its own.", min=0
    ),
    small_jobs: str = option(
        "256Mi",
        "Jobs that read at most so much are done without Spark, by processes of the operator's "
        "pod, one for each tenant; 0: every job is a SparkApplication.",
    ),
    small_jobs_on_spark: bool = option(
        False,
        "Of these jobs, do those that need Spark by a JVM beside the tenant's process, not as "
        "SparkApplications. Needs Java and PySpark, as the image has them, and a pod's memory "
        "limit of 2Gi, more for several tenants.",
    ),
    deadline: int = option(
        0,
        "activeDeadlineSeconds of operations that name none; 0: no deadline. Set it if "
        "tenants share the operator: a job that never ends holds its slot.",
        min=0,
    ),
    automatic_slots: int = option(
        0,
        "Maximum number of automatic compactions, log compactions and merges at once, over "
        "all tables; the table that has waited longest goes first. 0: no limit.",
        min=0,
    ),
    store_timeout: float = option(
        60.0,
        "Seconds that a request of a table's store may take, with retries. A longer "
        "spec.storage.options.timeout is refused.",
        min=1,
    ),
    table_memory: str = option(
        "",
        "Memory of each child process, one for each tenant, such as 512Mi, at least 256Mi; a "
        "table that needs more is TooLarge. By default half of the pod's memory limit; without "
        "one, a quarter of the machine's memory.",
    ),
    table_poll: float = option(
        10.0, "Seconds between two polls for commits of other writers.", min=0.1
    ),
    election_id: str = option("tandem", "Operators with the same id elect one leader."),
    health: str = option("0.0.0.0:8080", "host:port of /healthz, /readyz, /metrics; empty: none."),
    table_metrics: int = option(
        100, "Tables that have metrics of their own, those with the most files; 0: none.", min=0
    ),
    log_format: LogFormat = option(LogFormat.JSON, "Format of log lines."),
    verbose: bool = option(False, "Also log every event."),
) -> Exit:
    """Run the operator in a cluster.

    Serves LakeTables, IndexServers and all kinds of operations; does small jobs itself, and runs
    others as SparkApplications. Ends cleanly on SIGTERM: jobs continue, and the next operator
    takes them over. Exit code 1 when another operator has become the leader, or the API server was
    restored from a backup.
    """

    configure_logging(log_format, verbose=verbose)
    etcd = etcd_settings(
        locks,
        etcd_endpoints or [],
        prefix=etcd_prefix,
        ttl_s=etcd_ttl,
        ca=etcd_ca,
        certificate=etcd_certificate,
        key=etcd_key,
        user=etcd_user,
        password=os.environ.get("TANDEM_ETCD_PASSWORD", ""),
        password_file=etcd_password_file,
    )
    from tandem.kube.runtime.context import OperatorSettings
    from tandem.kube.runtime.slots import JobLimits
    from tandem.kube.tables.location_policy import LocationPolicy
    from tandem.spark.application.port import ApplicationSettings

    # Report an invalid rule before the start.
    LocationPolicy(tuple(allowed_locations or ()), tuple(allowed_endpoints or ()))
    small_job_bytes = small_job_bytes_of(small_jobs)
    settings = OperatorSettings(
        namespaces=tuple(namespaces or ()),
        kubeconfig=kubeconfig,
        etcd=etcd,
        application=ApplicationSettings(
            image=image,
            image_pull_policy=image_pull_policy,
            service_account=service_account,
            max_executors=max_executors,
            template=template(spark_template),
            template_policy=template_policy,
            template_allow=tuple(template_allow or ()),
        ),
        allowed_locations=tuple(allowed_locations or ()),
        allowed_endpoints=tuple(allowed_endpoints or ()),
        job_limits=JobLimits(max_jobs, max_jobs_per_namespace, max_jobs_per_table),
        small_job_bytes=small_job_bytes,
        small_jobs_on_spark=on_spark_beside(small_jobs_on_spark, small_job_bytes),
        deadline_s=deadline,
        automatic_slots=automatic_slots,
        store_timeout_s=store_timeout,
        table_memory=table_memory_of(table_memory),
        table_poll_s=table_poll,
        election_id=election_id,
        health=health,
        table_metrics=table_metrics,
    )
    return run(settings, log_format)


# `tandem etcd-user`: sets up an etcd for the operator, with a user that owns one prefix.


@from_environment
def etcd_user(
    *,
    root_password_file: Path = option(..., "File with the password of etcd's user root.", **FILE),
    etcd_password_file: Path = option(..., "File with the password of the user.", **FILE),
    etcd_endpoints: list[str] = option(
        ..., "host:port of etcd, https://host:port for TLS; repeatable.", "--etcd-endpoint"
    ),
    etcd_user: str = option("tandem", "The user that the operator connects as."),
    etcd_prefix: str = option(
        "/tandem/v1", "The prefix of all keys that the user may read and write."
    ),
    etcd_ca: Path | None = ETCD_CA,
    etcd_certificate: Path | None = ETCD_CERTIFICATE,
    etcd_key: Path | None = ETCD_KEY,
    wait: float = option(60.0, "Seconds to wait for an etcd that does not answer yet.", min=0),
) -> None:
    """Create the user of etcd that the operator connects as.

    It enables authentication in etcd. The user owns one prefix: it can neither read nor write any
    other key. Running the command again changes nothing. It needs root's password; the operator
    itself does not.
    """
    import asyncio

    from tandem.locks.etcd.client import EtcdAccess
    from tandem.locks.etcd.users import PrefixOwner, ensure

    owner = PrefixOwner(etcd_user, etcd_password_file.read_text().strip(), etcd_prefix)
    access = EtcdAccess(
        tuple(etcd_endpoints),
        authority=etcd_ca,
        certificate=etcd_certificate,
        key=etcd_key,
        password=root_password_file.read_text().strip(),
    )
    changed = asyncio.run(ensure(access, owner, wait_s=wait))
    for line in changed or ["nothing to change"]:
        say(line)
