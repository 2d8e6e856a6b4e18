"""`TableCompaction`: plan runs, let a job re-encode them, reconcile by file.

What it shares with other rewrites is in `rewrite`. This module decides which runs of segments
become one segment, and names the outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from tandem.delta.actions import AddFile, Txn
from tandem.delta.clustering import clustering_columns, cube_tags
from tandem.delta.properties import TARGET_FILE_SIZE, target_file_size
from tandem.errors import InvalidSpec
from tandem.intervals import IntervalSet
from tandem.jobs.formats import InputFile, JobBin, JobLayout, RewriteJob
from tandem.jobs.results import OutputFile
from tandem.locks import rules as locks_
from tandem.locks.rules import LockResources
from tandem.operations import attempt_files
from tandem.operations.attempt_files import RunRecord, put_once
from tandem.operations.explain import of_rewrite_edits
from tandem.operations.kinds.batches import (
    Batches,
    BatchesRecord,
    batch_of,
    batches_of,
    committed,
    fixed,
    has_ended,
    load,
    runs_at,
    runs_of,
)
from tandem.operations.kinds.commit_history import require_vectors_or_edits
from tandem.operations.kinds.job_files import described, require_inside, root_tags
from tandem.operations.kinds.rewrite import (
    RewriteKind,
    locks_described,
    past_segments,
    published,
)
from tandem.operations.kinds.time_column import time_borders, time_column, times_of
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, Planned, Work
from tandem.planning.compaction import plan_compaction
from tandem.planning.layout import checked_columns, clustered_by, rewrite_criterion
from tandem.planning.major import taken_intervals, within
from tandem.planning.plans import CompactionPlan, CompactionRequest, SegmentRun, proposed_names
from tandem.spec.compaction import (
    DEFAULT_TARGET_FILE_SIZE,
    LayoutStrategy,
    LockGranularity,
    Spanning,
    TableCompaction,
)
from tandem.spec.fields import Granularity, format_quantity
from tandem.spec.status import OperationResult, Plan
from tandem.timeline import lineage
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_columns import TAG_CHUNK
from tandem.timeline.names import NameRequest, SegmentNumbers, output_names, parse_name
from tandem.timeline.segment_files import decode_adds
from tandem.timeline.segments import (
    layout_label,
    live_names,
    mentioned_names,
    output_tags,
    segments,
)


class CompactionKind(RewriteKind):
    """The `Kind` of one TableCompaction."""

    def __init__(self, resource: TableCompaction) -> None:
        super().__init__()
        self._resource = resource
        self._batch = batch_of(resource)
        self._batches: Batches | None = None
        self._earlier: tuple[OperationResult, ...] | None = None

    # Planning

    def plan(self, work: Work) -> Planned:
        self.begin()
        if self._batch is not None:
            of = self._batch.batch.operation
            if has_ended(work.snapshot, of):
                return self._nothing_left(work, "its operation has ended")
            return self._plan_batch(work, fixed(work.table.store, of), self._batch.batch.number)
        self._load_batches(work)
        if self._batches is None:
            time = time_column(work.table.spec, work.snapshot)
            borders, request = self._borders(work, time), self._request(work)
            plan = self._plan_all(work, request, time, borders)
            # Without the record of batches that are committed already, the rest is one commit.
            is_whole = committed(work.snapshot, work.identity.operation_id) > 0
            if is_whole or plan.input_bytes <= self._resource.spec.bytes_per_commit:
                return self._planned(work, plan, request, time, borders)
            cut = self._cut(work, plan, request, borders)
            if len(cut.batches) == 1:
                return self._planned(work, plan, request, time, borders)
            # Another process may have cut it, too, on another version.
            found = load(work.table.store, work.identity.operation_id)
            if found is None:
                return self._begins_with(work, self._batches_of(work, cut), 1, is_new=True)
            self._batches = self._batches_of(work, found)
        batches = self._batches
        number = batches.next(work.snapshot)
        if number == batches.count:
            self._earlier = batches.results(work.snapshot)
            planned = self._plan_batch(work, batches.record, number)
            version = work.snapshot.version
            shown = batches.record.summary.model_copy(update={"read_version": version})
            return replace(planned, shown=shown)
        return self._begins_with(work, batches, number)

    def plan_of_adopted(self, work: Work) -> Planned:
        """As of other rewrites; where batches came before it, its progress is that of all."""
        if self._batch is None:
            self._load_batches(work)
            if self._batches is not None:
                work.part = self._batches.record.part(self._batches.count)
        return super().plan_of_adopted(work)

    def _load_batches(self, work: Work) -> None:
        """Those of an operation whose first ones are committed."""
        if self._batches is None and committed(work.snapshot, work.identity.operation_id):
            record = load(work.table.store, work.identity.operation_id)
            self._batches = None if record is None else self._batches_of(work, record)

    def _batches_of(self, work: Work, record: BatchesRecord) -> Batches:
        return Batches(self._resource, work.table, work.identity, record)

    def _cut(
        self,
        work: Work,
        plan: CompactionPlan,
        request: CompactionRequest,
        borders: TimeColumn | None,
    ) -> BatchesRecord:
        most = self._resource.spec.bytes_per_commit
        batches = batches_of(plan.runs, most, whole_runs=request.adjacent_only)
        return BatchesRecord(
            operation_id=work.identity.operation_id,
            summary=self._summarised(work, plan, request, borders),
            most_bytes=most,
            runs=runs_of(plan.runs, batches),
            batches=batches,
        )

    def _begins_with(
        self, work: Work, batches: Batches, number: int, *, is_new: bool = False
    ) -> Planned:
        """The plan of an operation that a batch precedes. `is_new`: the batches are stored before
        that."""
        record = batches.record
        last = batches.count - 1
        which = f"batch {last}" if number == last else f"batches {number} to {last}"
        size = format_quantity(record.most_bytes)
        order = f"{which} of {batches.count}: {batches.count} commits of at most {size} of input"
        summary = record.summary.model_copy(
            update={"read_version": work.snapshot.version, "first": order}
        )

        def store() -> None:
            put_once(work.table.store, attempt_files.batches(work.identity.operation_id), record)
            stored = fixed(work.table.store, work.identity.operation_id)
            self._batches = self._batches_of(work, stored)

        return Planned(
            summary,
            None,
            locks_.NOTHING,
            prerequisite=batches.resource(number),
            before_first=store if is_new else None,
        )

    def _plan_batch(self, work: Work, record: BatchesRecord, number: int) -> Planned:
        """The plan of one batch on the version that it finds."""
        work.part = record.part(number)
        snapshot = work.snapshot
        time = time_column(work.table.spec, snapshot)
        borders, request = self._borders(work, time), self._request(work, of_batch=True)
        live = segments(snapshot.files, time if borders is None else borders)
        useful = rewrite_criterion(request)
        runs = runs_at(record, number, live, request.target_file_size, useful)
        if borders is not None and time is not None:
            take = taken_intervals(request, time.granularity)
            runs = tuple(within(run, take) for run in runs)
        if not runs:
            return self._nothing_left(work, f"others have replaced the files of {work.part}")
        plan = CompactionPlan(tuple(proposed_names(runs, live)))
        return self._planned(work, plan, request, time, borders)

    def _nothing_left(self, work: Work, why: str) -> Planned:
        summary = _summary(CompactionPlan(()), work.snapshot.version, ())
        return Planned(summary, None, locks_.NOTHING, nothing_to_do=why, superseded=True)

    def _plan_all(
        self,
        work: Work,
        request: CompactionRequest,
        time: TimeColumn | None,
        borders: TimeColumn | None,
    ) -> CompactionPlan:
        snapshot = work.snapshot
        live = segments(snapshot.files, time)
        return plan_compaction(
            live,
            request,
            granularity=time.granularity if time else None,
            past=past_segments(work, live, self._named),
            divided=segments(snapshot.files, borders) if borders is not None else None,
        )

    def _summarised(
        self,
        work: Work,
        plan: CompactionPlan,
        request: CompactionRequest,
        borders: TimeColumn | None,
    ) -> Plan:
        locks = self._locks(plan, exclusive=work.exclusive)
        summary = _summary(plan, work.snapshot.version, locks_described(work, locks))
        found = work.snapshot.metadata.configuration.get(TARGET_FILE_SIZE)
        if found is not None and self._resource.spec.target_file_size is None:
            used = target_file_size({TARGET_FILE_SIZE: found}) is not None
            why = (
                f"{TARGET_FILE_SIZE} of the table"
                if used
                else (f"the default, since {TARGET_FILE_SIZE} = {found} is no size")
            )
            size_ = f"{format_quantity(request.target_file_size)}: {why}"
            summary = summary.model_copy(update={"target_file_size": size_})
        if borders is None and request.layout is LayoutStrategy.BIN_PACK:
            keeps_deleted = work.table.will_write_vectors(work.snapshot)
            copies = described(
                plan.files,
                keeps_deleted=keeps_deleted,
                group_rows=self._resource.spec.min_row_group_rows,
                rows=self.vectors(work).rows,
            )
            summary = summary.model_copy(update={"copies": copies})
        if not work.table.will_write_vectors(work.snapshot):
            sorts = request.layout is not LayoutStrategy.BIN_PACK
            size = min(plan.expected_bytes, request.target_file_size)
            edits = of_rewrite_edits(sorts=sorts, output_bytes=size)
            summary = summary.model_copy(update={"edits": edits})
        return summary

    def _planned(
        self,
        work: Work,
        plan: CompactionPlan,
        request: CompactionRequest,
        time: TimeColumn | None,
        borders: TimeColumn | None,
    ) -> Planned:
        """The locks and the job of a plan."""
        locks = self._locks(plan, exclusive=work.exclusive)
        if not plan.runs:
            summary = self._summarised(work, plan, request, borders)
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
        layout = _job_layout(request)
        copies = layout is None and borders is None
        job = RewriteJob(
            inputs=tuple(inputs),
            bins=tuple(bins),
            target_file_size=request.target_file_size,
            layout=layout,
            min_row_group_rows=self._resource.spec.min_row_group_rows if copies else None,
            edits=self.serves_edits(work, plan.input_bytes),
        )
        if borders is not None:
            assert time is not None
            job = _divided(job, work, borders, taken_intervals(request, time.granularity))
        # After the inputs: by now the rows are known that the log does not record.
        summary = self._summarised(work, plan, request, borders)
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
        if cuts:
            require_vectors_or_edits(work.table, work.snapshot, self._resource.id, field)
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

    def _request(self, work: Work, *, of_batch: bool = False) -> CompactionRequest:
        """The request; `of_batch`: its files are chosen already."""
        spec = self._resource.spec
        custom = spec.custom
        selected = None
        if custom is not None and custom.where is not None and not of_batch:
            from tandem.pruning.selection import Selection
            from tandem.statements.statement import parse_where

            text = work.snapshot.metadata.schema_string
            where = parse_where(
                custom.where, text, resource=self._resource.id, field="spec.custom.where"
            )
            selected = Selection(where, work.snapshot).paths(work.snapshot.files)
        if spec.layout.strategy is LayoutStrategy.CLUSTERING:
            columns = clustered_by(
                work.snapshot.domains, work.snapshot.schema, resource=self._resource.id
            )
        else:
            columns = checked_columns(
                spec.layout.columns,
                work.snapshot.schema,
                work.snapshot.partition_columns,
                resource=self._resource.id,
            )
        size = target_file_size(work.snapshot.metadata.configuration) or DEFAULT_TARGET_FILE_SIZE
        request = CompactionRequest.of(
            spec, selected=selected, target_file_size=size, resource=self._resource.id
        )
        return replace(request, layout_columns=columns)

    # Committing

    def decide(self, work: Work) -> Decision:
        if self._batch is not None and has_ended(work.snapshot, self._batch.batch.operation):
            return Decision(Verdict.SUPERSEDED, "its operation has ended")
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        order, snapshot = job.job.layout, work.snapshot
        if order is not None and order.strategy == "Clustering":
            columns = tuple(clustering_columns(snapshot.domains, snapshot.schema))
            if columns != order.columns:
                now = ", ".join(columns) or "none"
                return Decision(Verdict.REPLAN, f"the clustering columns of the table are {now}")
        return super().decide(work)

    def change(self, work: Work) -> CommitContent:
        change = self._change(work)
        if self._batch is not None:
            of, part = self._batch.batch, self._batch.part
            said = {"of": of.operation, "number": part.number, "batches": part.of}
            app = attempt_files.batches_app(of.operation)
            mark = Txn(app, max(of.number, committed(work.snapshot, of.operation)), work.now_ms)
            return replace(
                change, details={**change.details, "batch": said}, txns=(*change.txns, mark)
            )
        self._load_batches(work)
        if self._batches is None:
            return change
        if self._earlier is None:
            self._earlier = self._batches.results(work.snapshot)
        count = self._batches.count
        said = {"of": work.identity.operation_id, "number": count, "batches": count}
        return replace(change, details={**change.details, "batch": said}, earlier=self._earlier)

    def _change(self, work: Work) -> CommitContent:
        decision, order = self.to_commit(work)
        plan, _ = work.frozen
        removed = self.removed(decision)
        numbers = SegmentNumbers.at(work.snapshot.txns, mentioned_names(work.snapshot.files))
        before = numbers.highest
        outputs = published(work, decision)
        names = self._names(work, removed.values(), {output.run for output in outputs}, numbers)
        new = {run: number for run, name in names.items() if (number := _number(name)) > before}
        heirs = {path: heir.sources[0] for path, heir in decision.heirs.items()}
        sources = {output.path: self.sources(output.path, decision) for output in outputs}
        files = {output.path: self.files_of(work, decision, output) for output in outputs}
        roots = root_tags(
            work, removed, decision.cuts, outputs, files, sources, heirs, new, numbers
        )
        map_path = attempt_files.row_map(plan.operation_id, plan.attempt)
        clusters = order is not None and order.strategy == "Clustering"

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
            if clusters and order is not None:
                # One cube, also of several batches: otherwise Delta's OPTIMIZE would merge them.
                of = self._batch.batch.operation if self._batch else work.identity.operation_id
                tags |= cube_tags(of, order.columns)
            return tags | roots[output.path]

        change = self.change_set(work, decision, removed.values(), tags_of, numbers=numbers)
        if order is None or order.strategy == "Sort":
            return change
        by = json.dumps(order.columns, ensure_ascii=False, separators=(",", ":"))
        name = "clusterBy" if clusters else "zOrderBy"
        return replace(change, parameters={**change.parameters, name: by})

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
    return JobLayout.model_validate(
        {"strategy": request.layout.value, "columns": request.layout_columns}
    )


def _summary(plan: CompactionPlan, version: int, locks: tuple[str, ...]) -> Plan:
    return Plan(
        read_version=version,
        inputs=len(plan.files),
        input_bytes=plan.input_bytes,
        segments=plan.segments,
        outputs=tuple(run.output or f"(new number).{run.level}" for run in plan.runs),
        output_files=plan.expected_files,
        output_bytes=plan.expected_bytes,
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
