"""`spark-submit spark_apps/merge.py --location … --spec …/job.json`: merges."""

from __future__ import annotations

import sys

from tandem.spark.jobs import merge
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_session


def run(control: Control) -> None:
    name = f"tandem-merge-{control.spec.operation_id}-{control.spec.attempt}"
    with job_session(name) as spark:
        merge.run(control, spark)


if __name__ == "__main__":
    sys.exit(main(run))
