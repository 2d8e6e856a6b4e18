"""The options of `tandem operator`. Every option can be given in the environment, too:
`--etcd-endpoint` as TANDEM_ETCD_ENDPOINT (several separated by spaces)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from tandem import __version__
from tandem.cli.commands.operator import Locks, LogFormat, PullPolicy
from tandem.cli.errors import errors_to_exit
from tandem.spark.application.policy import TemplatePolicy


def option(name: str, text: str, **more: Any) -> Any:
    """An option with its help and its environment variable."""
    variable = "TANDEM_" + name.removeprefix("--").replace("-", "_").upper()
    return typer.Option(name, help=text, envvar=variable, **more)


FILE = {"exists": True, "dir_okay": False}

EtcdCa = Annotated[Path | None, option("--etcd-ca", "Certificate authority of etcd (PEM).", **FILE)]
EtcdCertificate = Annotated[
    Path | None, option("--etcd-certificate", "Our certificate for etcd (PEM).", **FILE)
]
EtcdKey = Annotated[Path | None, option("--etcd-key", "The certificate's key (PEM).", **FILE)]


def operator(
    namespaces: Annotated[
        list[str] | None,
        option(
            "--namespace",
            "Namespace to serve, or a pattern such as team-*; repeatable. All by default.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        option(
            "--kubeconfig",
            "Kubeconfig; by default the pod's service account or kubectl's file.",
            **FILE,
        ),
    ] = None,
    locks: Annotated[
        Locks,
        option("--locks", "Where locks are kept. in-process is safe with one operator only."),
    ] = Locks.ETCD,
    etcd_endpoints: Annotated[
        list[str] | None,
        option("--etcd-endpoint", "host:port of etcd, https://host:port for TLS; repeatable."),
    ] = None,
    etcd_prefix: Annotated[
        str, option("--etcd-prefix", "Prefix of the keys in etcd.")
    ] = "/tandem/v1",
    etcd_ttl: Annotated[
        int,
        option(
            "--etcd-ttl",
            "Seconds that the locks of a dead operator stay: longer than its restart takes.",
            min=2,
        ),
    ] = 60,
    etcd_ca: EtcdCa = None,
    etcd_certificate: EtcdCertificate = None,
    etcd_key: EtcdKey = None,
    etcd_user: Annotated[str, option("--etcd-user", "User of etcd.")] = "",
    etcd_password_file: Annotated[
        Path | None,
        option(
            "--etcd-password-file",
            "File with its password; or give it in TANDEM_ETCD_PASSWORD.",
            **FILE,
        ),
    ] = None,
    image: Annotated[
        str, option("--image", "Image of Spark drivers and executors.")
    ] = f"tandem:{__version__}",
    image_pull_policy: Annotated[
        PullPolicy, option("--image-pull-policy", "Pull policy of that image.")
    ] = PullPolicy.IF_NOT_PRESENT,
    spark_version: Annotated[
        str, option("--spark-version", "Spark's version in that image.")
    ] = "4.2.0",
    apps_dir: Annotated[
        str, option("--apps-dir", "Where that image has spark_apps/.")
    ] = "local:///opt/tandem/spark_apps",
    service_account: Annotated[
        str,
        option("--service-account", "Service account of Spark drivers, in each namespace."),
    ] = "tandem-spark",
    max_executors: Annotated[
        int, option("--max-executors", "Maximum number of executors of a job.", min=1)
    ] = 8,
    spark_template: Annotated[
        Path | None,
        option(
            "--spark-template",
            "File with a partial SparkApplication (YAML): defaults for every job.",
            **FILE,
        ),
    ] = None,
    allowed_locations: Annotated[
        list[str] | None,
        option(
            "--allowed-location",
            "[NAMESPACE-PATTERN=]PREFIX: tables and sources may only be below it; repeatable. "
            "s3:// is every bucket, {namespace} the namespace's name. Anywhere by default.",
        ),
    ] = None,
    allowed_endpoints: Annotated[
        list[str] | None,
        option(
            "--allowed-endpoint",
            "HOST[:PORT], or a pattern such as *.minio.svc, that tables may use as their store's "
            "endpoint; repeatable. By default none with --allowed-location, otherwise any.",
        ),
    ] = None,
    template_policy: Annotated[
        TemplatePolicy,
        option(
            "--template-policy",
            "What sparkTemplate may set. restricted: only what docs/template-policy.md lists, "
            "within the Pod Security Standard of that name and the job's service account.",
        ),
    ] = TemplatePolicy.RESTRICTED,
    template_allow: Annotated[
        list[str] | None,
        option(
            "--template-allow",
            "A setting (spark.extraListeners, spark.hadoop.fs.s3a.*) or a field "
            "(spec.batchScheduler) that sparkTemplate may set in addition; repeatable.",
        ),
    ] = None,
    max_jobs: Annotated[
        int, option("--max-jobs", "Maximum number of concurrent jobs; 0: no limit.", min=0)
    ] = 16,
    max_jobs_per_namespace: Annotated[
        int,
        option(
            "--max-jobs-per-namespace",
            "Maximum number of concurrent jobs of one namespace; 0: no limit of its own.",
            min=0,
        ),
    ] = 0,
    max_jobs_per_table: Annotated[
        int,
        option(
            "--max-jobs-per-table",
            "Maximum number of concurrent jobs of one table; 0: no limit of its own.",
            min=0,
        ),
    ] = 0,
    job_pool: Annotated[
        int,
        option(
            "--job-pool",
            "Do small jobs that share namespace, account, Secret and template in one Spark "
            "application, so many at once; needs examples/cluster/rbac-job-pools.yaml. 0: each "
            "job has an application.",
            min=0,
        ),
    ] = 0,
    job_pool_below: Annotated[
        str,
        option("--job-pool-below", "A job that reads as much or more has its own application."),
    ] = "1Gi",
    job_pool_idle: Annotated[
        float,
        option("--job-pool-idle", "Seconds after which a job pool without jobs ends.", min=1),
    ] = 300.0,
    deadline: Annotated[
        int,
        option(
            "--deadline",
            "activeDeadlineSeconds of operations that name none; 0: no deadline. Set it if "
            "tenants share the operator: a job that never ends holds its slot.",
            min=0,
        ),
    ] = 0,
    automatic_slots: Annotated[
        int,
        option(
            "--automatic-slots",
            "Maximum number of automatic compactions, log compactions and merges at once, over "
            "all tables; the table that has waited longest goes first. 0: no limit.",
            min=0,
        ),
    ] = 0,
    workers: Annotated[
        int,
        option(
            "--workers",
            "Threads for work on tables. What takes longer than a second leaves them, for up to "
            "sixteen times as many.",
            min=1,
        ),
    ] = 16,
    store_timeout: Annotated[
        float,
        option(
            "--store-timeout",
            "Seconds that a request of a table's store may take, with retries. A longer "
            "spec.storage.options.timeout is refused.",
            min=1,
        ),
    ] = 60.0,
    table_memory: Annotated[
        str,
        option(
            "--table-memory",
            "Memory that reading one table may take, such as 512Mi; a table that needs more is "
            "TooLarge. By default half of the pod's memory limit; without one, a quarter of the "
            "machine's memory.",
        ),
    ] = "",
    table_poll: Annotated[
        float,
        option("--table-poll", "Seconds between two polls for commits of other writers.", min=0.1),
    ] = 10.0,
    job_poll_ms: Annotated[
        int, option("--job-poll-ms", "Milliseconds between two polls of a job.", min=10)
    ] = 500,
    cancel: Annotated[
        float,
        option("--cancel", "Seconds that a deleted operation has to clean up.", min=1),
    ] = 60.0,
    index_token: Annotated[
        Path | None,
        option(
            "--index-token",
            "File with a token of the operator's account with the audience tandem-index, to ask "
            "index servers what they hold.",
        ),
    ] = None,
    no_finalizers: Annotated[
        bool,
        option(
            "--no-finalizers",
            "Put no finalizer on operations. Needed if the operator has only Roles: they are "
            "deleted with their namespace, and the finalizers could no longer be removed.",
        ),
    ] = False,
    election_id: Annotated[
        str, option("--election-id", "Operators with the same id elect one leader.")
    ] = "tandem",
    health: Annotated[
        str, option("--health", "host:port of /healthz, /readyz, /metrics; empty: none.")
    ] = "0.0.0.0:8080",
    table_metrics: Annotated[
        int,
        option(
            "--table-metrics",
            "Tables that have metrics of their own, those with the most files; 0: none.",
            min=0,
        ),
    ] = 100,
    log_format: Annotated[LogFormat, option("--log-format", "Format of log lines.")] = (
        LogFormat.JSON
    ),
    verbose: Annotated[bool, option("--verbose", "Also log every event.")] = False,
) -> None:
    """Run the operator in a cluster.

    Serves LakeTables and all kinds of operations; runs their jobs as SparkApplications. Ends
    cleanly on SIGTERM: jobs continue, and the next operator takes them over. Exit code 1 when
    another operator has become the leader.
    """
    with errors_to_exit():
        from tandem.cli.commands import operator

        operator.configure_logging(log_format, verbose=verbose)
        etcd = operator.etcd_settings(
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
        from tandem.kube.runtime.job_slots import JobLimits
        from tandem.kube.runtime.settings import OperatorSettings
        from tandem.kube.tables.location_policy import LocationPolicy
        from tandem.spark.application.port import ApplicationSettings

        # Report an invalid rule before the start.
        LocationPolicy(tuple(allowed_locations or ()), tuple(allowed_endpoints or ()))
        settings = OperatorSettings(
            namespaces=tuple(namespaces or ()),
            kubeconfig=kubeconfig,
            etcd=etcd,
            application=ApplicationSettings(
                image=image,
                image_pull_policy=image_pull_policy,
                spark_version=spark_version,
                apps_dir=apps_dir,
                service_account=service_account,
                max_executors=max_executors,
                template=operator.template(spark_template),
                template_policy=template_policy,
                template_allow=tuple(template_allow or ()),
            ),
            allowed_locations=tuple(allowed_locations or ()),
            allowed_endpoints=tuple(allowed_endpoints or ()),
            job_limits=JobLimits(max_jobs, max_jobs_per_namespace, max_jobs_per_table),
            job_pools=operator.job_pools(job_pool, job_pool_below, job_pool_idle),
            deadline_s=deadline,
            automatic_slots=automatic_slots,
            workers=workers,
            store_timeout_s=store_timeout,
            table_memory=operator.table_memory(table_memory),
            table_poll_s=table_poll,
            poll_ms=job_poll_ms,
            election_id=election_id,
            health=health,
            table_metrics=table_metrics,
            cancel_s=cancel,
            index_token=index_token,
            finalizers=not no_finalizers,
        )
        raise typer.Exit(operator.run(settings))
