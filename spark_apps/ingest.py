"""`spark-submit spark_apps/ingest.py --location … --spec …/job.json`: an ingest's data work."""

from __future__ import annotations

import sys

from tandem.spark.jobs import ingest
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_session


def run(control: Control) -> None:
    name = f"tandem-ingest-{control.spec.operation_id}-{control.spec.attempt}"
    with job_session(name) as spark:
        ingest.run(control, spark)


if __name__ == "__main__":
    sys.exit(main(run))
