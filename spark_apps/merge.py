"""`spark-submit spark_apps/merge.py --location … --spec …/job.json`: merges."""

from __future__ import annotations

import sys

from tandem.spark.jobs.apps import main

if __name__ == "__main__":
    sys.exit(main())
