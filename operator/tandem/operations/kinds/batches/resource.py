"""A batch as an operation of its own: a compaction with the name and the limits of the one that it
belongs to, and an id that follows from the id of that one.

Never written down: it exists inside the process that performs it, and people see the operation that
it belongs to.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tandem.operations.kinds.batches.record import BatchesRecord
from tandem.operations.machine.parts import PartOfWork
from tandem.spec.common import Operation
from tandem.spec.compaction import TableCompaction, TableCompactionSpec
from tandem.spec.fields import Model, StrictInt, StrictStr


class BatchOf(Model):
    """The operation that a batch belongs to, and its number, from 1."""

    operation: StrictStr
    number: StrictInt


class BatchSpec(TableCompactionSpec):
    """The spec of a batch. `part` is for display, and no part of its identity."""

    batch: BatchOf
    part: PartOfWork = Field(exclude=True)


def batch_of(resource: Operation) -> BatchSpec | None:
    """The spec of a batch; None for a compaction that people or the operator wrote down."""
    return resource.spec if isinstance(resource.spec, BatchSpec) else None


def batch_resource(
    resource: TableCompaction, operation_id: str, record: BatchesRecord, number: int
) -> TableCompaction:
    """The batch of this number. What decides when an operation starts and how long its resource
    stays is left to the operation that it belongs to."""
    own: dict[str, Any] = {name: getattr(resource.spec, name) for name in _shared()}
    spec = BatchSpec.model_construct(
        **own,
        batch=BatchOf(operation=operation_id, number=number),
        part=record.part(number),
    )
    return resource.model_copy(update={"spec": spec})


def _shared() -> frozenset[str]:
    own = frozenset(TableCompactionSpec.model_fields)
    return own - {"suspend", "dry_run", "ttl_seconds_after_finished", "depends_on"}
