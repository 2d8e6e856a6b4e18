"""`spark-submit spark_apps/log_merge.py --location … --spec …/job.json`: a log merge's work."""

from __future__ import annotations

import sys

from tandem.spark.jobs.apps import main

if __name__ == "__main__":
    sys.exit(main())
