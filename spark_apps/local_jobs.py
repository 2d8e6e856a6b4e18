"""`spark-submit spark_apps/local_jobs.py SOCKET`: jobs on one machine, one after the other."""

from __future__ import annotations

import sys

from tandem.spark.runtime.session import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
