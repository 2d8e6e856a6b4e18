"""The port to Spark operators: what other modules know of the resource that starts a job.

`tandem.spark.application.manifest` implements it for Kubeflow's; the resources of another Spark
operator need another `ApplicationBuilder`
(`docs/decisions/0023-spark-operators-behind-a-seam.md`). Pure, no client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tandem import __version__
from tandem.jobs.runner import JobRequest, JobStatus
from tandem.json_types import Json
from tandem.spark.application.policy import TemplatePolicy
from tandem.spark.application.status import DriverTimeouts


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The resource for which a job runs: its application is deleted with it."""

    api_version: str
    kind: str
    name: str
    uid: str

    def reference(self) -> Json:
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }


@dataclass(frozen=True, slots=True)
class ApplicationSettings:
    """The settings of an operator's administrator for all jobs.

    `image` is by default the image of this version that the Dockerfile builds, for operator and
    jobs alike; `apps_dir` is the folder of `spark_apps/` in it; the templates of resources are
    merged over `template`; `ttl_s` is how long an ended application (and with it its driver's log)
    is kept, None for as long as its resource; `template_policy` applies to the templates of
    resources, `template_allow` adds to the lists of `allowed_settings` (patterns of settings and of
    fields).
    """

    image: str = f"tandem:{__version__}"
    spark_version: str = "4.2.0"
    apps_dir: str = "local:///opt/tandem/spark_apps"
    service_account: str = "tandem-spark"
    template_policy: TemplatePolicy = TemplatePolicy.RESTRICTED
    template_allow: tuple[str, ...] = ()
    image_pull_policy: str = "IfNotPresent"
    ttl_s: int | None = 86_400
    max_executors: int = 8
    template: Mapping[str, Any] | None = None
    patience: DriverTimeouts = field(default_factory=DriverTimeouts)


@dataclass(frozen=True, slots=True)
class JobPlacement:
    """For which resource a job runs, where, and with which settings of that resource and its table.

    Attributes:
        template: the resource's `sparkTemplate`, merged over `ApplicationSettings.template`.
        secret_name: a Secret whose keys become environment variables of driver and executors.
            Credentials never occur in arguments or anywhere else in the object.
        service_account: that of the table's storage, instead of the settings'; ignored if there is
            a Secret.
        labels: additional labels; names of resources are shortened by `label_value`.
    """

    owner: JobOwner
    namespace: str
    template: Mapping[str, Any] | None = None
    secret_name: str | None = None
    service_account: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def resource(self) -> str:
        """The resource, for errors."""
        return f"{self.owner.kind}/{self.owner.name}"


@dataclass(frozen=True, slots=True)
class ServicePlacement:
    """How an application that serves until it is deleted differs from a job.

    Attributes:
        port: on which the driver listens.
        secrets: Secrets that are mounted as files, one folder each.
        folder: where these folders are.
        pod_label: label of the driver's pod.
        memory, disk: of the driver beside its JVM or, where there are executors, of each.
        executors: their number.
        token: whether the driver uses its account's token itself.
        conf: settings of Spark that executors need which do not end.
    """

    port: int
    secrets: tuple[str, ...]
    folder: str
    pod_label: tuple[str, str]
    memory: int
    disk: int
    executors: int = 0
    token: bool = False
    conf: Mapping[str, str] = field(default_factory=dict)


class ApplicationBuilder(Protocol):
    """What `tandem.kube.controllers.spark_jobs` knows of a Spark operator's resources."""

    @property
    def resource(self) -> tuple[str, str, str]:
        """Group, version and plural of the resource."""
        ...

    def check(
        self,
        template: Mapping[str, Any] | None,
        *,
        resource: str = "",
        service_account: str = "",
    ) -> None:
        """Raises: InvalidSpec if a resource's template sets a reserved field, or one that the
        policy refuses."""
        ...

    def build(self, request: JobRequest, placement: JobPlacement) -> Json:
        """The whole object to create. Raises: InvalidSpec."""
        ...

    def build_service(
        self, request: JobRequest, placement: JobPlacement, service: ServicePlacement
    ) -> Json:
        """The whole object of an application that is started again whenever it ends. Raises:
        InvalidSpec."""
        ...

    def build_pool(self, request: JobRequest, placement: JobPlacement) -> Json:
        """The whole object of an application that does the jobs of a pool. Raises: InvalidSpec."""
        ...

    def classify(
        self,
        application: Mapping[str, Any] | None,
        driver_pod: Mapping[str, Any] | None,
        *,
        now_ms: int | None = None,
    ) -> JobStatus:
        """The status of the job, from the object and, where needed, its driver's pod."""
        ...

    def needs_pod(self, application: Mapping[str, Any]) -> bool:
        """Whether the driver's pod may have information that the object lacks."""
        ...

    def finished(self, application: Mapping[str, Any]) -> bool:
        """Whether its Spark operator starts nothing more for it."""
        ...

    def driver_pod(self, application: Mapping[str, Any]) -> str:
        """The name of its driver's pod, which need not exist."""
        ...

    def pods(self, name: str) -> str:
        """A label selector of all pods of the application of that name."""
        ...
