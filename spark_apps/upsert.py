"""`spark-submit spark_apps/upsert.py --location … --spec …/job.json`: blocks of a log."""

from __future__ import annotations

import sys

from tandem.spark.jobs import upsert
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_session


def run(control: Control) -> None:
    name = f"tandem-upsert-{control.spec.operation_id}-{control.spec.attempt}"
    with job_session(name) as spark:
        upsert.run(control, spark)


if __name__ == "__main__":
    sys.exit(main(run))
