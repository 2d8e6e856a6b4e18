"""`TableCompaction`: plan runs, let a job re-encode them, reconcile by file.

What it shares with other rewrites is in `rewrite`. This module decides which runs of segments
become one segment, and names the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from tandem.delta.actions import AddFile
from tandem.errors import DeletionVectorsDisabled, InvalidSpec
from tandem.intervals import IntervalSet
from tandem.jobs.formats import InputFile, JobBin, JobLayout, RewriteJob
from tandem.jobs.results import OutputFile
from tandem.locks import model as locks_
from tandem.locks.model import LockResources
from tandem.operations.attempt import paths
from tandem.operations.attempt.records import RunRecord
from tandem.operations.kinds.rewrite import (
    RewriteKind,
    locks_described,
    past_segments,
    published,
)
from tandem.operations.kinds.table.copied_files import described
from tandem.operations.kinds.table.job_files import require_inside
from tandem.operations.kinds.table.lock_times import times_of
from tandem.operations.kinds.table.output_roots import root_tags
from tandem.operations.kinds.table.time_column import time_borders, time_column
from tandem.operations.model import CommitContent, Planned, Work
from tandem.planning.compaction import plan_compaction
from tandem.planning.layout import checked_columns
from tandem.planning.model import CompactionPlan, CompactionRequest, SegmentRun
from tandem.planning.semi_major import taken_intervals
from tandem.spec.compaction import LayoutStrategy, LockGranularity, Spanning, TableCompaction
from tandem.spec.fields import Granularity
from tandem.spec.status import Plan
from tandem.timeline import lineage
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK
from tandem.timeline.live_tags import live_names, mentioned_names
from tandem.timeline.names import NameRequest, SegmentNumbers, output_names, parse_name
from tandem.timeline.segment_files import decode_adds
from tandem.timeline.segments import layout_label, output_tags, segments


class CompactionKind(RewriteKind):
    """The `Kind` of one TableCompaction."""

    def __init__(self, resource: TableCompaction) -> None:
        super().__init__()
        self._resource = resource

    # Planning

    def plan(self, work: Work) -> Planned:
        snapshot = work.snapshot
        self.begin()
        time = time_column(work.table.spec, snapshot)
        live = segments(snapshot.files, time)
        request = self._request(work)
        borders = self._borders(work, time)
        plan = plan_compaction(
            live,
            request,
            granularity=time.granularity if time else None,
            past=past_segments(work, live, self._named),
            divided=segments(snapshot.files, borders) if borders is not None else None,
        )
        locks = self._locks(plan, exclusive=work.exclusive)
        summary = _summary(plan, snapshot.version, locks_described(work, locks))
        if borders is None and request.layout is LayoutStrategy.BIN_PACK:
            keeps_deleted = work.table.will_write_vectors(snapshot)
            copies = described(plan.files, keeps_deleted=keeps_deleted)
            summary = summary.model_copy(update={"copies": copies})
        if not plan.runs:
            return Planned(summary, None, locks, nothing_to_do=plan.nothing)
        decode_adds(plan.files)
        require_inside(work.table, (file.add for file in plan.files))
        self.vectors(work).load(f.add.deletion_vector for f in plan.files if f.add.deletion_vector)
        inputs: list[InputFile] = []
        bins: list[JobBin] = []
        for number, run in enumerate(plan.runs):
            for each in run.bins:
                first = len(inputs)
                inputs += (self.input_file(work, file.add) for file in each.files)
                bins.append(
                    JobBin(
                        inputs=tuple(range(first, len(inputs))),
                        partition_values=dict(each.partition),
                        run=number,
                    )
                )
        job = RewriteJob(
            inputs=tuple(inputs),
            bins=tuple(bins),
            target_file_size=self._resource.spec.target_file_size,
            layout=_job_layout(request),
        )
        if borders is not None:
            assert time is not None
            job = _divided(job, work, borders, taken_intervals(request, time.granularity))
        runs = tuple(_record(run) for run in plan.runs)
        return Planned(summary, job, locks, record={"runs": runs})

    def _borders(self, work: Work, time: TimeColumn | None) -> TimeColumn | None:
        """The time column, with the granularity at whose borders outputs end; None where these do
        not matter. Raises: InvalidSpec, DeletionVectorsDisabled."""
        options = self._resource.spec.semi_major_options
        cuts = options.spanning is Spanning.CUT
        if not options.divides:
            return None
        field = "spec.semiMajor." + ("spanning" if cuts else "granularity")
        found = "Cut" if cuts else str(options.granularity)
        if time is None or (cuts and time.granularity is Granularity.ALL):
            raise InvalidSpec(
                "files can be cut only at times",
                resource=self._resource.id,
                field=field,
                found=f"{found}, and a LakeTable "
                + ("without spec.time" if time is None else "of granularity All"),
                expected="a LakeTable whose spec.time names chunks",
                remedy="Set spec.time of the LakeTable, or remove this field",
            )
        if cuts and not work.table.will_write_vectors(work.snapshot):
            raise DeletionVectorsDisabled(
                "the rows that are cut out of a file need a deletion vector",
                resource=self._resource.id,
                field=field,
                found="Cut, and delta.enableDeletionVectors is not true",
                expected="a table with deletion vectors",
                remedy="Set enableDeletionVectors: true in the LakeTable, or spanning: Together",
            )
        if time.partition:
            return None  # no file has rows of two values
        return replace(time, granularity=options.granularity or time.granularity)

    def _locks(self, plan: CompactionPlan, *, exclusive: bool) -> LockResources:
        """Its segments, however many: others of the same chunks may be compacted meanwhile."""
        if not plan.runs:
            return locks_.NOTHING
        times = times_of(file.interval for file in plan.files)
        if exclusive or self._resource.spec.lock_granularity is LockGranularity.TIME_CHUNK:
            return locks_.within(times)
        return locks_.named(plan.segments, times)

    @property
    def _named(self) -> frozenset[str]:
        custom = self._resource.spec.custom
        return frozenset((custom.segments if custom is not None else None) or ())

    def _request(self, work: Work) -> CompactionRequest:
        spec = self._resource.spec
        custom = spec.custom
        selected = None
        if custom is not None and custom.where is not None:
            from tandem.pruning.selection import Selection
            from tandem.statements.statement import parse_where

            text = work.snapshot.metadata.schema_string
            where = parse_where(
                custom.where, text, resource=self._resource.id, field="spec.custom.where"
            )
            selected = Selection(where, work.snapshot).paths(work.snapshot.files)
        columns = checked_columns(
            spec.layout.columns,
            work.snapshot.schema,
            work.snapshot.partition_columns,
            resource=self._resource.id,
        )
        request = CompactionRequest.of(spec, selected=selected, resource=self._resource.id)
        return replace(request, layout_columns=columns)

    # Committing

    def change(self, work: Work) -> CommitContent:
        decision, order = self.to_commit(work)
        plan, _ = work.frozen
        removed = self.removed(decision)
        numbers = SegmentNumbers.at(work.snapshot.txns, mentioned_names(work.snapshot.files))
        before = numbers.highest
        outputs = published(work, decision)
        names = self._names(work, removed.values(), {output.run for output in outputs}, numbers)
        new = {run: number for run, name in names.items() if (number := _number(name)) > before}
        sources = {output.path: self.row_map.sources(output.path) for output in outputs}
        roots = root_tags(work, removed, decision.cuts, outputs, sources, new, numbers)
        map_path = paths.row_map(plan.operation_id, plan.attempt)

        def tags_of(output: OutputFile) -> dict[str, str]:
            run = plan.runs[output.run]
            tags = output_tags(
                names[output.run],
                run.sequence,
                parents=lineage.parse_lineage(run.parents),
                row_map=map_path,
                major=run.major,
                layout=layout_label(order.strategy, order.columns) if order is not None else "",
            )
            if run.chunk:
                tags[TAG_CHUNK] = run.chunk
            return tags | roots[output.path]

        change = self.change_set(work, decision, removed.values(), tags_of, numbers=numbers)
        if order is None or order.strategy != "ZOrder":
            return change
        by = json.dumps(order.columns, ensure_ascii=False, separators=(",", ":"))
        return replace(change, parameters={**change.parameters, "zOrderBy": by})

    def _names(
        self, work: Work, removed: Iterable[AddFile], runs: set[int], numbers: SegmentNumbers
    ) -> dict[int, str]:
        """The names of the output segments if they are committed right after the latest version."""
        plan, _ = work.frozen
        gone = {add.logged_path for add in removed}
        taken = live_names(work.snapshot.files, without=gone)
        order = sorted(runs)
        requests = [NameRequest(plan.runs[n].first, plan.runs[n].level) for n in order]
        return dict(zip(order, output_names(requests, taken, numbers), strict=True))


def _number(name: str) -> int:
    parsed = parse_name(name)
    assert parsed is not None
    assert parsed.number is not None
    return parsed.number


def _divided(
    job: RewriteJob, work: Work, borders: TimeColumn, take: IntervalSet | None
) -> RewriteJob:
    """The job whose outputs end at these borders, and have rows of these intervals only."""
    intervals = None if take is None else tuple((each.start_ms, each.end_ms) for each in take)
    return job.model_copy(update={"borders": time_borders(work, borders), "take": intervals})


def _job_layout(request: CompactionRequest) -> JobLayout | None:
    if request.layout is LayoutStrategy.BIN_PACK:
        return None
    strategy: Literal["Sort", "ZOrder"] = (
        "Sort" if request.layout is LayoutStrategy.SORT else "ZOrder"
    )
    return JobLayout(strategy=strategy, columns=request.layout_columns)


def _summary(plan: CompactionPlan, version: int, locks: tuple[str, ...]) -> Plan:
    return Plan(
        read_version=version,
        inputs=len(plan.files),
        input_bytes=plan.input_bytes,
        segments=plan.segments,
        outputs=tuple(run.output or f"(new number).{run.level}" for run in plan.runs),
        output_files=plan.expected_files,
        output_bytes=plan.expected_bytes,
        cost_bytes=plan.cost_bytes,
        steps=_steps(plan),
        locks=locks,
    )


def _steps(plan: CompactionPlan) -> tuple[str, ...]:
    return tuple(f"{', '.join(s.inputs)} → {s.output}" for run in plan.runs for s in run.steps)


def _record(run: SegmentRun) -> RunRecord:
    return RunRecord(
        segments=run.segments,
        first=run.segments[0],
        level=run.level,
        sequence=run.sequence,
        chunk=str(run.interval) if run.interval is not None else "",
        parents=lineage.format_lineage(run.parents()),
        major=run.major,
        steps=tuple(f"{', '.join(s.inputs)} → {s.output}" for s in run.steps),
    )
