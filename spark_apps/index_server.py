"""`spark-submit spark_apps/index_server.py --request …`: the driver of an IndexServer."""

from __future__ import annotations

import sys

from tandem.spark.jobs.index_server import main

if __name__ == "__main__":
    sys.exit(main())
