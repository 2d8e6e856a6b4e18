"""Controllers in the operator's own process, in place of its children: a test sees there what they
do, and strikes or changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tandem.kube.client.resources import Body, CachedResource, key_of
from tandem.kube.controllers.automation import AutoCompactionController, LogAutomation, RowRetention
from tandem.kube.controllers.operation import OperationController
from tandem.kube.controllers.table import TableController
from tandem.kube.runtime.context import LivingChild, OperatorContext, ResourceControl
from tandem.kube.runtime.controller_tasks import StopSignal
from tandem.operations.registry import import_kinds
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.common import OPERATIONS

ControlFactory = Callable[[OperatorContext], ResourceControl]


class ControllersHere:
    """A `ResourceControl`.

    Args:
        interceptor: wraps every effect of every operation.
    """

    def __init__(self, context: OperatorContext, interceptor: Interceptor = passthrough) -> None:
        import_kinds()
        self._context = context
        context.interceptor = interceptor
        context.automations = (
            AutoCompactionController(context),
            LogAutomation(context),
            RowRetention(context),
        )

    def living(self) -> tuple[LivingChild, ...]:
        return ()

    def prepare(self) -> None:
        """Nothing to begin."""

    async def watch(self) -> None:
        await asyncio.Event().wait()

    def clear(self) -> None:
        """The controllers have the operator's own cache."""

    async def close(self) -> None:
        """They end with the tasks in which they run."""

    def put(self, summary: CachedResource) -> None:
        """As `clear`."""

    def remove(self, uid: str, namespace: str) -> None:
        """As `clear`."""

    async def run(self, body: Body, stopped: StopSignal) -> None:
        made = OperationController if key_of(body)[0] in OPERATIONS else TableController
        await made(self._context, body).run(stopped)


def control_of(interceptor: Interceptor, *, here: bool = False) -> ControlFactory | None:
    """What `run_operator` takes: None for children, which no test could strike, unless `here`."""
    if interceptor is passthrough and not here:
        return None
    return partial(ControllersHere, interceptor=interceptor)
