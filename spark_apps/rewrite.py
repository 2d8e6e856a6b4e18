"""`spark-submit spark_apps/rewrite.py --location … --spec …/job.json`: a compaction's data work."""

from __future__ import annotations

import sys

from tandem.spark.jobs.rewrite import job
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import context


def run(control: Control) -> None:
    spark_context = context(f"tandem-rewrite-{control.spec.operation_id}-{control.spec.attempt}")
    try:
        job.run(control, spark_context)
    finally:
        spark_context.stop()


if __name__ == "__main__":
    sys.exit(main(run))
