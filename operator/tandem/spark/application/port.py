"""The port to Spark operators: what other modules know of the resource that starts a job.

Kubeflow's is built (`tandem.spark.application.manifest`); another Spark operator's resources are
another `ApplicationBuilder` (`docs/decisions/0023-spark-operators-behind-a-seam.md`). Pure, no
client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tandem import __version__
from tandem.jobs.runner import JobRequest, JobStatus
from tandem.spark.application.policy import TemplatePolicy
from tandem.spark.application.status import DriverTimeouts
from tandem.spark.application.template import Json


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
    """What an operator's administrator decides for all jobs.

    `image` is by default the one of this version that the Dockerfile makes, for operator and
    jobs alike; `apps_dir` is where it has `spark_apps/`; `template` lies below those of resources;
    `ttl_s` is how long an ended application (and with it its driver's log) is kept, None for as
    long as its resource; `template_policy` is for the templates of resources, `template_allow` what
    they may set beside the lists of `allowed_settings` (patterns of settings and of fields).
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


class ApplicationBuilder(Protocol):
    """What `tandem.kube.controllers.operation.spark_jobs` knows of a Spark operator's resources."""

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
        """Raises: InvalidSpec if a resource's template sets what is ours, or what the policy
        refuses."""
        ...

    def build(
        self,
        request: JobRequest,
        *,
        owner: JobOwner,
        namespace: str,
        template: Mapping[str, Any] | None = None,
        secret_name: str | None = None,
        service_account: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> Json:
        """The whole object to create. Raises: InvalidSpec."""
        ...

    def classify(
        self,
        application: Mapping[str, Any] | None,
        driver_pod: Mapping[str, Any] | None,
        *,
        now_ms: int | None = None,
    ) -> JobStatus:
        """What the object and, where it matters, its driver's pod say of the job."""
        ...

    def needs_pod(self, application: Mapping[str, Any]) -> bool:
        """Whether the driver's pod may say something that the object does not."""
        ...

    def finished(self, application: Mapping[str, Any]) -> bool:
        """Whether its Spark operator will start nothing more for it."""
        ...

    def driver_pod(self, application: Mapping[str, Any]) -> str:
        """The name of its driver's pod, there or not."""
        ...

    def pods(self, name: str) -> str:
        """A label selector of all pods of the application of that name."""
        ...
