"""A kind of operation that only tests know: all of it is here, and `registered` is its one entry
in each of the two lists. `TableSeed` appends the rows of a Parquet file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import pytest

from tandem.delta.protocol import OperationKind
from tandem.jobs.formats import IngestJob
from tandem.locks.rules import WHOLE_TABLE
from tandem.operations.kinds.commit_history import verdict_of_table
from tandem.operations.kinds.job_files import new_segment, output_add
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Work
from tandem.operations.registry import PERFORMED_BY
from tandem.spec.common import OPERATIONS, Mode, Operation, OperationSpec
from tandem.spec.fields import Location
from tandem.spec.status import Plan, Reconciled, RowsAffected
from tandem.timeline.segments import output_tags


class TableSeedSpec(OperationSpec):
    rows: Location
    """A Parquet file."""


class TableSeed(Operation):
    """Append the rows of a Parquet file."""

    kind_name: ClassVar[str] = "TableSeed"
    short_name: ClassVar[str] = "tseed"
    mode: ClassVar[Mode] = Mode.APPEND
    default_priority: ClassVar[int] = 75
    columns: ClassVar[Mapping[str, str]] = {"Rows": ".spec.rows"}
    reports: ClassVar[frozenset[str]] = frozenset({"result.rowsAffected"})

    kind: Literal["TableSeed"]
    spec: TableSeedSpec

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [("rows", f"those of {spec['rows']}")]


class Seeding:
    """How it is performed."""

    protocol_kind = OperationKind.INGEST

    def __init__(self, resource: TableSeed) -> None:
        self._resource = resource

    def plan(self, work: Work) -> Planned:
        job = IngestJob(
            source_format="Parquet",
            source_location=self._resource.spec.rows,
            target_file_size=2**27,
        )
        summary = Plan(read_version=work.snapshot.version, inputs=0, input_bytes=0)
        return Planned(summary, job, WHOLE_TABLE)

    def plan_of_adopted(self, work: Work) -> Planned:
        return Planned(work.frozen[0].summary, None, WHOLE_TABLE)

    def load(self, work: Work, round_: int) -> None:
        """Its result is its files."""

    def decide(self, work: Work) -> Decision:
        refused = verdict_of_table(work, self.protocol_kind, needs_vectors=False)
        return refused or Decision(Verdict.COMMIT)

    def change(self, work: Work) -> CommitContent:
        plan, _ = work.frozen
        result = work.results[0]
        segment = new_segment(work.snapshot, work.now_ms)
        tags = output_tags(segment.name, segment.sequence)
        return CommitContent(
            operation="WRITE",
            parameters={"mode": "Append", "partitionBy": "[]"},
            outputs=tuple(
                OutputFileChange(output_add(file, tags), file.rows) for file in result.outputs
            ),
            blind_append=True,
            segments=(segment.name,),
            numbers=segment.numbers,
            rows=RowsAffected(inserted=result.rows_written),
            reconciled=Reconciled(
                commits_seen=work.snapshot.version - plan.read_version, rounds=work.rounds
            ),
        )


def registered(patch: pytest.MonkeyPatch) -> None:
    """Until the end of a test, there is this kind."""
    model: type[Operation] = TableSeed
    patch.setitem(OPERATIONS, model.kind_name, model)
    patch.setitem(PERFORMED_BY, model, Seeding)
