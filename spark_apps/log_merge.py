"""`spark-submit spark_apps/log_merge.py --location … --spec …/job.json`: a log merge's work."""

from __future__ import annotations

import sys

from tandem.spark.jobs import log_merge
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_context


def run(control: Control) -> None:
    name = f"tandem-log-merge-{control.spec.operation_id}-{control.spec.attempt}"
    with job_context(name) as context:
        log_merge.run(control, context)


if __name__ == "__main__":
    sys.exit(main(run))
