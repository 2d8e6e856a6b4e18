"""`spark-submit spark_apps/ingest.py --location … --spec …/job.json`: an ingest's data work."""

from __future__ import annotations

import sys

from tandem.spark.jobs.apps import main

if __name__ == "__main__":
    sys.exit(main())
