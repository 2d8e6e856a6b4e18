"""`spark-submit spark_apps/rewrite.py --location … --spec …/job.json`: a compaction's data work."""

from __future__ import annotations

import sys

from tandem.spark.jobs.rewrite import job
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_context


def run(control: Control) -> None:
    name = f"tandem-rewrite-{control.spec.operation_id}-{control.spec.attempt}"
    with job_context(name) as context:
        job.run(control, context)


if __name__ == "__main__":
    sys.exit(main(run))
