"""What makes an application of Spark one that does the jobs of a pool. Pure.

It differs from a job: its driver reads in the cluster which jobs to do, so it has its account's
token, and its Python process holds what several jobs need.
"""

from __future__ import annotations

from typing import Final

from tandem.json_types import Json
from tandem.spark.application.sizes import GIB

BESIDE: Final = GIB
"""Memory of the driver's Python process beside the workers."""


def complete(body: Json) -> Json:
    """The application of a job, made to do the jobs of a pool."""
    for owner in body["metadata"]["ownerReferences"]:
        # Some clusters ask for a further right for it.
        del owner["blockOwnerDeletion"]
    body["spec"]["driver"]["template"]["spec"].pop("automountServiceAccountToken", None)
    return body
