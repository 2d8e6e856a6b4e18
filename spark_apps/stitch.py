"""`spark-submit spark_apps/stitch.py --location … --spec …/job.json`: a log compaction's work."""

from __future__ import annotations

import sys

from tandem.spark.jobs.apps import main

if __name__ == "__main__":
    sys.exit(main())
