"""`TableIngest`: a job writes the rows of a source as new files; one commit makes them a segment.

An append conflicts with no other commit: the only changes to reconcile are those of the table
itself (another schema, or another table at the same location). It holds no lock while its job runs:
where its rows lie is known when they have been read, and then it locks just that (D21).
"""

from __future__ import annotations

from tandem.delta import protocol
from tandem.delta.log import files as files_
from tandem.jobs.formats import IngestJob
from tandem.locks.rules import NOTHING, within
from tandem.operations.kinds.commit_history import verdict_of_table
from tandem.operations.kinds.job_files import new_segment, numbers_at, output_add
from tandem.operations.kinds.sources import check_loaded, check_source, version_of_source
from tandem.operations.kinds.time_column import (
    borders_of_load,
    shared_files,
    time_of_locks,
    times_of_files,
)
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Work
from tandem.spec.status import Plan, Reconciled, RowsAffected
from tandem.spec.update import TableIngest
from tandem.timeline.segments import output_tags


class IngestKind:
    """The `Kind` of one TableIngest."""

    protocol_kind = protocol.OperationKind.INGEST

    def __init__(self, resource: TableIngest) -> None:
        self._resource = resource

    def plan(self, work: Work) -> Planned:
        source = self._resource.spec.source
        check_source(work, source, resource=self._resource.id, field="spec.source")
        size = check_loaded(work, source, resource=self._resource.id, field="spec.source")
        summary = Plan(
            read_version=work.snapshot.version,
            inputs=0,
            input_bytes=0,
            outputs=(new_segment(work.snapshot, work.now_ms).name,),
            locks=("Append where its rows lie, before its commit",),
        )
        job = IngestJob(
            source_format=source.format.value,
            source_location=source.location,
            source_options=dict(source.options),
            source_version=version_of_source(work, source),
            target_file_size=self._resource.spec.target_file_size,
            borders=borders_of_load(work, None, resource=self._resource.id),
        )
        return Planned(summary, job, NOTHING, source_bytes=size)

    def plan_of_adopted(self, work: Work) -> Planned:
        return Planned(work.frozen[0].summary, None, NOTHING)

    def load(self, work: Work, round_: int) -> None:
        """Does nothing: the result consists of its files alone."""

    def decide(self, work: Work) -> Decision:
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=False)
        return refusal or Decision(Verdict.COMMIT)

    def change(self, work: Work) -> CommitContent:
        plan, _ = work.frozen
        result = work.results[0]
        segment = new_segment(work.snapshot, work.now_ms)
        tags = output_tags(segment.name, segment.sequence)
        outputs = tuple(OutputFileChange(output_add(o, tags), o.rows) for o in result.outputs)
        files = files_.from_adds([output.add for output in outputs])
        times = times_of_files(files, time_of_locks(work))
        return CommitContent(
            operation="WRITE",
            parameters={"mode": "Append", "partitionBy": "[]"},
            outputs=outputs,
            blind_append=True,
            segments=(segment.name,) if outputs else (),
            numbers=segment.numbers if outputs else numbers_at(work.snapshot),
            locks=within(times) if outputs else NOTHING,
            rows=RowsAffected(inserted=result.rows_written),
            reconciled=Reconciled(
                commits_seen=max(0, work.snapshot.version - plan.read_version),
                rounds=work.rounds,
            ),
            summary=shared_files(result.chunks_together),
        )
