"""The settings of an operator. Pure data; the command line fills it in."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.jobs.pool import PoolRules
from tandem.kube.runtime.job_slots import JobLimits
from tandem.spark.application.port import ApplicationSettings

if TYPE_CHECKING:
    from tandem.locks.etcd.store import EtcdSettings


def default_instance() -> str:
    """The name of this operator process: its pod's name, outside of a pod host and pid."""
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of one operator process.

    Args:
        namespaces: patterns of those served, as for `kopf run --namespace`; none: all.
        kubeconfig: None for the pod's service account, or else the one that kubectl would use.
        etcd: where the locks are; None for locks inside this process, which is only safe if one
            operator runs and no other process writes through Tandem.
        application: what all jobs have in common.
        allowed_locations, allowed_endpoints: where tables and sources may be, by namespace; see
            `tandem.kube.tables.location_policy`. None: anywhere.
        job_limits: how many jobs may run at once.
        job_pools: which jobs share an application.
        deadline_s: `activeDeadlineSeconds` of operations that name none; 0 for no deadline.
        automatic_slots: how many of them may be automatic; 0 for no limit.
        workers: threads for work on tables; those that take long have more (docs/decisions/0169).
        store_timeout_s: how long a request of a store may take, retries and all.
        table_memory: bytes of memory that reading a table may take; None for any number.
        table_poll_s: how often a table's log is checked for commits of other writers.
        poll_ms: how often a running job's progress is read.
        election_id: operators with the same id elect one leader.
        health: `host:port` of /healthz, /readyz and /metrics, "" for none.
        table_metrics: how many tables have metrics of their own, those with the most files.
        cancel_s: how long a deleted operation may take to clean up before its resource is removed.
        finalizers: whether a deleted operation's resource stays until it is cleaned up. Must be
            off if our permissions in a namespace are deleted with it (docs/decisions/0071).
        clean_s: how long after the start a table is first cleaned, times one to four.
        index_poll_s: how often an index server is asked what it holds.
        index_calm_s: how long the tables of one have to stay the same before it restarts for them.
        index_token: the file with the operator's token for index servers; None: those with mode
            ServiceAccount are not asked.
        status_s, progress_s: the least number of seconds between two writes of one status, and
            (status_s) between two rounds of a LakeTable's controller.
    """

    namespaces: tuple[str, ...] = ()
    kubeconfig: Path | None = None
    etcd: EtcdSettings | None = None
    application: ApplicationSettings = field(default_factory=ApplicationSettings)
    allowed_locations: tuple[str, ...] = ()
    allowed_endpoints: tuple[str, ...] = ()
    job_limits: JobLimits = field(default_factory=lambda: JobLimits(16))
    job_pools: PoolRules = field(default_factory=PoolRules)
    deadline_s: int = 0
    automatic_slots: int = 0
    workers: int = 16
    store_timeout_s: float = 60.0
    table_memory: int | None = None
    table_poll_s: float = 10.0
    poll_ms: int = 500
    election_id: str = "tandem"
    instance: str = field(default_factory=default_instance)
    health: str = ""
    table_metrics: int = 100
    cancel_s: float = 60.0
    finalizers: bool = True
    clean_s: float = 60.0
    index_poll_s: float = 15.0
    index_calm_s: float = 10.0
    index_token: Path | None = None
    status_s: float = 1.0
    progress_s: float = 5.0

    @property
    def names_namespaces(self) -> bool:
        """Whether no namespace is given by a pattern."""
        return not any(set("*?[!,") & set(name) for name in self.namespaces)

    def log_fields(self) -> dict[str, object]:
        """The settings for the log, without passwords and without the template, which may contain
        secrets."""
        etcd = self.etcd
        return {
            "instance": self.instance,
            "namespaces": list(self.namespaces) or "all",
            "election": self.election_id,
            "locks": "in-process" if etcd is None else list(etcd.endpoints),
            "locks_prefix": "" if etcd is None else etcd.prefix,
            "locks_ttl_s": None if etcd is None else etcd.ttl_s,
            "image": self.application.image,
            "service_account": self.application.service_account,
            "allowed_locations": list(self.allowed_locations) or "any",
            "allowed_endpoints": list(self.allowed_endpoints),
            "template_policy": self.application.template_policy.value,
            "template_allow": list(self.application.template_allow),
            "max_jobs": self.job_limits.total,
            "max_jobs_per_namespace": self.job_limits.per_namespace,
            "max_jobs_per_table": self.job_limits.per_table,
            "job_pool": self.job_pools.slots,
            "deadline_s": self.deadline_s,
            "automatic_slots": self.automatic_slots,
            "workers": self.workers,
            "store_timeout_s": self.store_timeout_s,
            "table_memory": self.table_memory,
            "table_poll_s": self.table_poll_s,
            "job_poll_ms": self.poll_ms,
            "finalizers": self.finalizers,
            "health": self.health,
            "table_metrics": self.table_metrics,
        }
