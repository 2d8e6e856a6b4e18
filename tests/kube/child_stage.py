"""A namespace whose controllers run in children of an operator, which a test sees, halts and
kills."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.cluster.child_hooks import Children, Halts
from support.cluster.operator_thread import HeldJobs, Resources, quick_settings
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from tandem.jobs.runner import SMALL_BYTES
from tandem.spec.common import Operation

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from tandem.kube.runtime.context import OperatorSettings

TABLE = "LakeTable"


@dataclass
class Stage:
    """A namespace whose controllers run in a child, which may halt."""

    space: Resources
    folder: Path
    halts: Halts
    children: Children
    jobs: HeldJobs = field(default_factory=HeldJobs)
    _made: int = 0

    def lake(self, **spec: Any) -> tuple[str, QuickLake]:
        """A table that is ready."""
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self.folder / name)
        lake.count += 1000 * self._made  # its operations have names of their own
        lake.backoff_limit = 1
        self.space.table(name, lake.location, **spec)
        self.space.await_phase(TABLE, name, "Succeeded")
        return name, lake

    def apply(self, table: str, operation: Operation, **spec: Any) -> tuple[str, str]:
        """Create the operation; its kind and name."""
        body = {**operation.manifest()["spec"], "tableRef": {"name": table}, **spec}
        self.space.create(operation.kind_name, operation.name, body)
        return operation.kind_name, operation.name


def settings_of(cluster: Cluster, *namespaces: str, **changes: Any) -> OperatorSettings:
    more = {"small_job_bytes": SMALL_BYTES, **changes}
    return quick_settings(cluster, *namespaces, **more)
