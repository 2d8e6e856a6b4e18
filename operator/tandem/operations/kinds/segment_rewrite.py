"""`SegmentRewrite`: rewrite the files of single segments, each under its segment's name.

An output takes the place of the one file that it was made from: same segment, same place in the
order, same time chunk. So other segments are not touched, and none of their rows is ever hidden
or shown twice (I-10, D45, D46, D52).
"""

from __future__ import annotations

from collections.abc import Collection

from tandem.delta.actions import AddFile
from tandem.delta.datafiles.bloom_filters import required_filters
from tandem.delta.log.snapshot import Snapshot
from tandem.jobs.formats import JobBin, JobLayout, RewriteJob
from tandem.jobs.results import OutputFile
from tandem.locks import rules as locks_
from tandem.operations import attempt_files
from tandem.operations.kinds.job_files import require_inside
from tandem.operations.kinds.rewrite import RewriteKind, locks_described, past_segments, published
from tandem.operations.kinds.time_column import time_of_locks, times_of
from tandem.operations.model import CommitContent, Planned, Work
from tandem.planning.layout import checked_columns
from tandem.planning.major import (
    SegmentRewritePlan,
    SegmentRewriteRequest,
    plan_segment_rewrite,
)
from tandem.spec.compaction import SegmentRewrite
from tandem.spec.status import Plan
from tandem.timeline.segment_files import decode_adds
from tandem.timeline.segments import Segments, layout_label, segments, successor_tags

ONE_FILE = 0
"""The target size that never splits an output: an input becomes one output, however large."""


class SegmentRewriteKind(RewriteKind):
    """The `Kind` of one SegmentRewrite."""

    def __init__(self, resource: SegmentRewrite) -> None:
        super().__init__()
        self._resource = resource
        self._planned = False

    def plan(self, work: Work) -> Planned:
        snapshot = work.snapshot
        self.begin()
        order, filters = self._order(snapshot), self._filters(snapshot)
        live = segments(snapshot.files, time_of_locks(work))
        named = self._resource.spec.segments
        request = SegmentRewriteRequest.of(
            self._resource.spec,
            resource=self._resource.id,
            planned_before=self._planned or _planned_before(work, live, named),
        )
        plan = plan_segment_rewrite(live, request, past_segments(work, live, named))
        self._planned = True
        times = times_of(file.interval for file in plan.files)
        locks = locks_.within(times) if work.exclusive else locks_.named(plan.segments, times)
        summary = _summary(plan, snapshot.version, locks_described(work, locks))
        if not plan.parts:
            return Planned(
                summary, None, locks, nothing_to_do=plan.nothing, superseded=plan.superseded
            )
        decode_adds(plan.files)
        require_inside(work.table, (file.add for file in plan.files))
        self.vectors(work).load(f.add.deletion_vector for f in plan.files if f.add.deletion_vector)
        recompress = self._resource.spec.rewrite.recompress
        job = RewriteJob(
            inputs=tuple(self.input_file(work, file.add) for file in plan.files),
            bins=tuple(
                JobBin(inputs=(number,), partition_values=dict(each.partition))
                for number, each in enumerate(plan.bins)
            ),
            target_file_size=ONE_FILE,
            codec=recompress.codec if recompress is not None else "",
            codec_level=recompress.level if recompress is not None else None,
            layout=order,
            reencode=True,
            edits=self.serves_edits(work, plan.input_bytes),
        )
        return Planned(summary, job, locks, bloom_filters=filters)

    def _filters(self, snapshot: Snapshot) -> dict[str, float]:
        wanted = self._resource.spec.rewrite.add_bloom_filters
        if wanted is None:
            return {}
        return required_filters(
            wanted.columns,
            wanted.false_positives,
            snapshot.schema,
            snapshot.partition_columns,
            resource=self._resource.id,
            field="spec.rewrite.addBloomFilters",
        )

    def _order(self, snapshot: Snapshot) -> JobLayout | None:
        columns = self._resource.spec.rewrite.sort_by
        if not columns:
            return None
        found = checked_columns(
            columns,
            snapshot.schema,
            snapshot.partition_columns,
            resource=self._resource.id,
            field="spec.rewrite.sortBy",
        )
        return JobLayout(strategy="Sort", columns=found)

    def change(self, work: Work) -> CommitContent:
        decision, order = self.to_commit(work)
        plan, _ = work.frozen
        label = layout_label(order.strategy, order.columns) if order is not None else ""
        removed = self.removed(decision)
        # The current ones: other writers may have changed their tags since.
        origins: dict[str, AddFile] = {
            output.path: removed[source]
            for output in published(work, decision)
            for source in self.sources(output.path, decision)
            if source in removed
        }
        map_path = attempt_files.row_map(plan.operation_id, plan.attempt)

        def tags_of(output: OutputFile) -> dict[str, str]:
            return successor_tags(origins[output.path], row_map=map_path, layout=label)

        return self.change_set(work, decision, removed.values(), tags_of)


def _planned_before(work: Work, live: Segments, named: Collection[str]) -> bool:
    """Whether an earlier attempt has planned, and so found all segments of the spec. Looked up
    only if some of them are gone."""
    if set(named) <= live.among(set(named)):
        return False
    files = work.table.store.list(attempt_files.attempts(work.identity.operation_id))
    return any(
        split[1] == "plan.json" for f in files if (split := attempt_files.split_attempt(f.path))
    )


def _summary(plan: SegmentRewritePlan, version: int, locks: tuple[str, ...]) -> Plan:
    return Plan(
        read_version=version,
        inputs=len(plan.files),
        input_bytes=plan.input_bytes,
        segments=plan.segments,
        outputs=plan.segments,
        output_files=plan.expected_files,
        output_bytes=plan.expected_bytes,
        steps=plan.steps,
        locks=locks,
    )
