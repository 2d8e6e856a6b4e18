"""The interface of the command line to the engine.

Tests replace `run` and `plan`; the rest of the command line uses only this module.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandem.spec import AnyResource, LakeTable, Operation, ResourceOutcome, StatusObserver

if TYPE_CHECKING:
    from tandem.operations.maintain import Maintenance

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
        engine.RunOptions(parallel=parallel, again=again, reads_sources=True),
        observer=observer,
        cancel=cancel,
    )


def plan(resources: Sequence[AnyResource]) -> list[ResourceOutcome]:
    """What `run` would do now; nothing is written."""
    from tandem.operations import runner as engine

    return engine.plan(list(resources), engine.RunOptions(reads_sources=True))


def maintain(
    resource: LakeTable,
    *,
    also: Operation | None,
    plan_only: bool,
    observer: StatusObserver,
    cancel: threading.Event,
) -> Maintenance:
    """Run what is due on a table, after `also`, and clean it; with `plan_only`, plan the first
    operation that is due. `observer` and `cancel` as of `run`."""
    from tandem.operations import maintain as engine
    from tandem.operations.runner import RunOptions

    return engine.maintain(
        resource,
        RunOptions(plan_only=plan_only),
        also=also,
        observer=observer,
        cancel=cancel,
    )
