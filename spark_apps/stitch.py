"""`spark-submit spark_apps/stitch.py --location … --spec …/job.json`: a log compaction's work."""

from __future__ import annotations

import sys

from tandem.spark.jobs import stitch
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_context


def run(control: Control) -> None:
    name = f"tandem-stitch-{control.spec.operation_id}-{control.spec.attempt}"
    with job_context(name) as context:
        stitch.run(control, context)


if __name__ == "__main__":
    sys.exit(main(run))
