"""`spark-submit spark_apps/upsert.py --location … --spec …/job.json`: blocks of a log."""

from __future__ import annotations

import sys

from tandem.spark.jobs.apps import main

if __name__ == "__main__":
    sys.exit(main())
