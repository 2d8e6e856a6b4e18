"""For Python processes of the shared Spark session. Python imports this module as it starts, where
this folder is on PYTHONPATH.

PySpark's daemon collects garbage after each task and each planning step. A full collection walks
all that a worker has imported, which takes longer than a task on a table of some rows. The
interpreter still collects by its own thresholds.

A daemon forks a worker for each core, new ones after each task that fails, and others once those
before were idle for a minute; there are daemons for tasks and for each planning step of a data
source. They import once what workers use, which takes a second of each worker otherwise.
"""

from __future__ import annotations

import gc
import sys


def _collect_nothing(generation: int = 2) -> int:  # noqa: ARG001
    return 0


gc.collect = _collect_nothing

if sys.orig_argv[-2:-1] == ["pyspark.daemon"]:
    import tandem.spark.jobs.ingest
    import tandem.spark.jobs.merge
    import tandem.spark.jobs.rewrite
    import tandem.spark.jobs.statement
    import tandem.spark.sources.text_frames  # noqa: F401
