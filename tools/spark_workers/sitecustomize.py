"""For Python processes of the shared Spark session: PySpark's daemon collects garbage after each
task and each planning step. A full collection walks all that a worker has imported, which takes
longer than a task on a table of some rows. The interpreter still collects by its own thresholds.

Python imports this module as it starts, where this folder is on PYTHONPATH.
"""

from __future__ import annotations

import gc


def _collect_nothing(_generation: int = 2) -> int:
    return 0


gc.collect = _collect_nothing
