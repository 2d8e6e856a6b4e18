"""`spark-submit spark_apps/job_pool.py --request …`: the driver of a job pool."""

from __future__ import annotations

import sys

from tandem.kube.job_pool.driver import main

if __name__ == "__main__":
    sys.exit(main())
