"""An operator's metrics without the operator: the test sets what happens to it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from tandem.errors import Reason
from tandem.kube.client.resources import ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.metrics.families import FAMILIES, Family
from tandem.kube.runtime.context import IndexServerFacts
from tandem.kube.runtime.slots import JobLimits, JobSlots
from tandem.kube.state_metrics import StateCollector
from tandem.kube.tables import status
from tandem.kube.tables.context import AutoCompactionState, TableContext
from tandem.kube.tables.status import TableFigures
from tandem.operations.status import conditions
from tandem.spec.common import OPERATIONS
from tandem.spec.status import (
    AutoCompactionWait,
    OperationStatus,
    Phase,
    TableStatus,
)

Json = dict[str, Any]
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
KINDS = sorted(OPERATIONS, key=lambda kind: kind != "TableCompaction")
"""That of what tables are compacted by comes first."""


class Stage:
    """An operator's metrics without the operator."""

    def __init__(self, shown: int = 100) -> None:
        self.metrics = Metrics()
        self.resource_cache = ResourceCache()
        self.tables: dict[tuple[str, str], TableContext] = {}
        self.slots = JobSlots(JobLimits(2))
        self.index_servers: dict[tuple[str, str], IndexServerFacts] = {}
        self.control = None
        self.metrics.register(StateCollector(cast(Any, self), lambda: True, self.slots, shown))

    @property
    def figures(self) -> dict[tuple[str, str], TableFigures]:
        return {key: table.figures for key, table in self.tables.items()}

    def text(self) -> str:
        return asyncio.run(self.metrics.exposition()).decode()

    def series(self) -> Series:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        }

    def operation(self, number: int, phase: str, kind: str = KINDS[0], **more: Any) -> None:
        reason = more.pop("reason", "")
        condition = {"type": "Succeeded", "status": "Unknown", "reason": reason}
        self.resource_cache.update(
            {
                "kind": kind,
                "metadata": {
                    "name": f"op-{number}",
                    "namespace": f"n{number % 50}",
                    "uid": f"uid-{number}",
                    "resourceVersion": "1",
                },
                "spec": {
                    "tableRef": {"name": more.pop("table", "t")},
                    "type": more.pop("type", ""),
                },
                "status": {"phase": phase, "conditions": [condition], **more},
            }
        )

    def table(
        self, number: int, files: int | None, hold: AutoCompactionWait | None = None
    ) -> TableContext:
        table = TableContext(f"table-{number}", cast(Any, None))
        if files is None:
            table.conditions = status.not_ready(Reason.ACCESS_DENIED, "no", 1, 0)
        else:
            table.table = cast(Any, SimpleNamespace(location=f"file:///t{number}"))
            table.conditions = status.ready(Reason.ADOPTED, "", 1, 0)
            table.facts = TableStatus(
                version=number, segments=3, files=files, bytes=files, small_files=1, deleted_rows=2
            )
        if hold is not None:
            table.auto_compaction = AutoCompactionState(hold, 1_000 * number, number % 3)
        self.tables[f"n{number % 50}", f"t{number}"] = table
        return table


def of(series: Series, name: str, **labels: str) -> float | None:
    """The sum of all series with these labels, None if there are none."""
    values = [
        v
        for (found, has), v in series.items()
        if found == name and labels.items() <= dict(has).items()
    ]
    return sum(values) if values else None


def ended(phase: Phase, reason: str, **more: Any) -> OperationStatus:
    found = conditions(phase, Reason.COMMITTED, "", 1, 0)
    return OperationStatus(
        phase=phase,
        conditions=tuple(c.model_copy(update={"reason": reason}) for c in found),
        **more,
    )


def own(series: Series) -> Series:
    return {key: value for key, value in series.items() if key[0].startswith("tandem_")}


def family_of(name: str) -> Family:
    for family in FAMILIES:
        endings = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        if any(name == family.name + ending for ending in endings):
            return family
    raise AssertionError(f"{name} is of no family")
