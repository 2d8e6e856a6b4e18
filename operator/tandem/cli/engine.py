"""The interface of the command line to the engine.

Tests replace `run` and `plan`; the rest of the command line uses only this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.spec import AnyResource, OperationStatus, TableStatus

Status = OperationStatus | TableStatus
Observer = Callable[[AnyResource, Status], None]


DEFAULT_PARALLEL = 8
"""Concurrent operations: each has a Spark driver of its own, of about half a GiB. Without a limit,
a folder of many ingests would start all of them at once."""


@dataclass(frozen=True, slots=True)
class ResourceOutcome:
    """A resource and its final status."""

    resource: AnyResource
    status: Status


def run(
    resources: Sequence[AnyResource],
    *,
    parallel: int,
    again: bool,
    observer: Observer,
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

    outcomes = engine.run(
        list(resources),
        engine.RunOptions(parallel=parallel, again=again),
        observer=observer,
        cancel=cancel,
    )
    return [ResourceOutcome(outcome.resource, outcome.status) for outcome in outcomes]


def plan(resources: Sequence[AnyResource]) -> list[ResourceOutcome]:
    """What `run` would do now; nothing is written."""
    from tandem.operations import runner as engine

    return [
        ResourceOutcome(outcome.resource, outcome.status)
        for outcome in engine.plan(list(resources))
    ]
