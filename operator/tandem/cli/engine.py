"""The interface of the command line to the engine.

Tests replace `run` and `plan`; the rest of the command line uses only this module.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tandem.spec import AnyResource, ResourceOutcome, StatusObserver

DEFAULT_PARALLEL = 8
"""Concurrent operations: each has a Spark driver of its own, of about half a GiB. Without a limit,
a folder of many ingests would start all of them at once."""


def run(
    resources: Sequence[AnyResource],
    *,
    parallel: int,
    again: bool,
    observer: StatusObserver,
    cancel: threading.Event,
) -> list[ResourceOutcome]:
    """Run resources until they have ended, in the order of their dependencies.

    Args:
        parallel: how many operations at once; 0 for no limit.
        again: start new attempts of operations that have a recorded result.
        observer: called from any thread whenever a status changes.
        cancel: once set, operations are interrupted and the call returns soon.
    """
    from tandem.operations import runner as engine

    return engine.run(
        list(resources),
        engine.RunOptions(parallel=parallel, again=again),
        observer=observer,
        cancel=cancel,
    )


def plan(resources: Sequence[AnyResource]) -> list[ResourceOutcome]:
    """What `run` would do now; nothing is written."""
    from tandem.operations import runner as engine

    return engine.plan(list(resources))
