"""`spark-submit spark_apps/ingest.py --location … --spec …/job.json`: an ingest's data work."""

from __future__ import annotations

import sys

from tandem.spark.jobs import ingest
from tandem.spark.runtime.control import Control, main
from tandem.spark.runtime.session import session


def run(control: Control) -> None:
    spark = session(f"tandem-ingest-{control.spec.operation_id}-{control.spec.attempt}")
    try:
        ingest.run(control, spark)
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main(run))
