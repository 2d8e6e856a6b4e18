"""`spark-submit spark_apps/statement.py --location … --spec …/job.json`: updates and deletes."""

from __future__ import annotations

import sys

from tandem.spark.jobs import statement
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import job_session


def run(control: Control) -> None:
    name = f"tandem-statement-{control.spec.operation_id}-{control.spec.attempt}"
    with job_session(name) as spark:
        statement.run(control, spark)


if __name__ == "__main__":
    sys.exit(main(run))
