"""`TableCompaction`: plan runs, let a job re-encode them, reconcile by file.

A compaction never changes what rows there are, so nobody can be in its way: what others did
to its inputs meanwhile is masked in its outputs (design, "Reconciliation").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyroaring import BitMap64

from tandem.delta import dv, protocol
from tandem.delta.actions import AddFile
from tandem.errors import LogGap, ManifestInvalid
from tandem.locks.model import Mode, Resource, segment
from tandem.operations import jobs, layout
from tandem.operations.changes import verdict_of_table
from tandem.operations.events import Verdict
from tandem.operations.outputs import output_add
from tandem.operations.records import RunRecord
from tandem.operations.selection import files_where, require_inside
from tandem.operations.times import time_column
from tandem.operations.views import SnapshotView, VectorCache
from tandem.operations.work import ChangeSet, Decision, OutputFileChange, Planned, Work
from tandem.planning.compaction import plan_compaction
from tandem.planning.model import CompactionPlan, CompactionRequest, Run
from tandem.reconcile import rowmap_format
from tandem.reconcile.rewrite import RewriteDecision, RewriteInput, rewrite
from tandem.reconcile.rowmap import RowMap, RowMapIdentity
from tandem.spark.job import Bin, InputFile, RewriteJob
from tandem.spec.compaction import TableCompaction
from tandem.spec.status import Plan, Reconciled
from tandem.timeline import lineage
from tandem.timeline.history import retired
from tandem.timeline.marks import live_marks
from tandem.timeline.names import NameRequest, SegmentNumbers, output_names
from tandem.timeline.segments import TAG_CHUNK, Segment, output_tags, segments


class Compaction:
    """The `Kind` of one TableCompaction. Holds what is immutable: vectors and the row map."""

    protocol_kind = protocol.OperationKind.COMPACTION
    app = "rewrite"

    def __init__(self, resource: TableCompaction) -> None:
        self._resource = resource
        self._cache: VectorCache | None = None
        self._row_map: RowMap | None = None
        self._row_map_bytes = b""

    # Planning

    def plan(self, work: Work) -> Planned:
        snapshot = work.snapshot
        self._row_map, self._row_map_bytes = None, b""
        time = time_column(work.table.spec, snapshot)
        live = segments(snapshot.adds(), time)
        plan = plan_compaction(
            live,
            self._request(work),
            granularity=time.granularity if time else None,
            past=self._past(work, live),
        )
        summary = _summary(plan, snapshot.version)
        locks = tuple(segment(name) for name in plan.segments)
        if not plan.runs:
            return Planned(summary, None, Mode.REWRITE, locks, nothing_to_do=plan.nothing)
        require_inside(work.table, (file.add for file in plan.files))
        cache = self._vectors(work)
        cache.load(f.add.deletion_vector for f in plan.files if f.add.deletion_vector)
        inputs: list[InputFile] = []
        bins: list[Bin] = []
        for number, run in enumerate(plan.runs):
            for each in run.bins:
                first = len(inputs)
                inputs += (self._input(work, file.add) for file in each.files)
                bins.append(
                    Bin(
                        inputs=tuple(range(first, len(inputs))),
                        partition_values=dict(each.partition),
                        run=number,
                    )
                )
        job = RewriteJob(
            inputs=tuple(inputs),
            bins=tuple(bins),
            target_file_size=self._resource.spec.target_file_size,
        )
        runs = tuple(_record(run) for run in plan.runs)
        return Planned(summary, job, Mode.REWRITE, locks, record={"runs": runs})

    def plan_of_adopted(self, work: Work) -> Planned:
        plan, _ = work.frozen
        return Planned(plan.summary, None, Mode.REWRITE, _locks(plan.summary.segments))

    def _past(self, work: Work, live: Sequence[Segment]) -> tuple[Segment, ...]:
        """Segments of the past, only where one is named that is not live: for the message."""
        custom = self._resource.spec.custom
        named = set(custom.segments or ()) if custom is not None else set()
        if named <= {segment.name for segment in live}:
            return ()
        log, last = work.table.log, work.snapshot.version
        try:
            return retired(live, log.commits(0, last))
        except LogGap as hole:
            return retired(live, log.commits(hole.first_available, last))

    def _request(self, work: Work) -> CompactionRequest:
        spec = self._resource.spec
        custom = spec.custom
        selects = None
        if custom is not None and custom.where is not None:
            selects = files_where(
                custom.where,
                work.snapshot,
                resource=self._resource.id,
                field="spec.custom.where",
            )
        return CompactionRequest.of(spec, selects=selects, resource=self._resource.id)

    def _input(self, work: Work, add: AddFile) -> InputFile:
        cache = self._vectors(work)
        dead = cache.dead(add)
        return InputFile(
            logged_path=add.logged_path,
            size=add.size,
            rows=cache.rows_of(add),
            dv=dv.to_base64(dead) if dead else "",
            partition_values=dict(add.partition_values),
        )

    def _vectors(self, work: Work) -> VectorCache:
        if self._cache is None:
            self._cache = VectorCache(work.table.store)
        return self._cache

    # Reconciling

    def load(self, work: Work, round_: int) -> None:
        result = work.results[round_]
        if result.row_map is None:
            raise ManifestInvalid(
                "a rewrite's result has no row map",
                resource=layout.rounds(result.operation_id, result.attempt),
                field="rowMap",
            )
        self._row_map_bytes = jobs.sidecar(work.table.store, result.row_map)
        plan, _ = work.frozen
        self._row_map = rowmap_format.from_bytes(
            self._row_map_bytes,
            expected=RowMapIdentity(
                plan.table_id, plan.operation_id, plan.attempt, plan.read_version
            ),
            resource=result.row_map.path,
        )

    def decide(self, work: Work) -> Decision:
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        snapshot = work.snapshot
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=False)
        if refusal is not None:
            return refusal
        assert self._row_map is not None
        cache = self._vectors(work)
        view = SnapshotView(snapshot, cache)
        inputs = [
            RewriteInput(
                path=file.logged_path,
                dead_at_read=dv.from_base64(file.dv) if file.dv else BitMap64(),
                rows=file.rows,
            )
            for file in job.job.inputs
        ]
        view.prefetch(i.path for i in inputs)
        decision = rewrite(
            inputs,
            view,
            self._row_map,
            deletion_vectors=protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata),
        )
        if decision.superseded:
            return Decision(Verdict.SUPERSEDED, "nothing of what it rewrote is left to replace")
        return Decision(Verdict.COMMIT, payload=decision)

    def change(self, work: Work) -> ChangeSet:
        assert work.decision is not None
        decision = work.decision.payload
        assert isinstance(decision, RewriteDecision)
        plan, _ = work.frozen
        snapshot = work.snapshot
        removed = snapshot.files_by_path(decision.removes)
        result = work.results[0]
        published = set(decision.outputs)
        chosen = [o for o in result.outputs if o.path in published]
        names, numbers = self._names(work, removed.values(), chosen_runs={o.run for o in chosen})
        map_path = layout.row_map(plan.operation_id, plan.attempt)
        outputs = []
        replayed: dict[str, int] = {}
        for output in chosen:
            if output.path in decision.masks:
                name = names[output.run]
                replayed[name] = replayed.get(name, 0) + len(decision.masks[output.path])
            run = plan.runs[output.run]
            tags = output_tags(
                names[output.run],
                run.sequence,
                parents=lineage.parse_lineage(run.parents),
                row_map=map_path,
                major=run.major,
            )
            if run.chunk:
                tags[TAG_CHUNK] = run.chunk
            add = output_add(output, tags, data_change=False)
            outputs.append(OutputFileChange(add, output.rows, decision.masks.get(output.path)))
        counts = decision.counts
        return ChangeSet(
            operation="OPTIMIZE",
            parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false"},
            outputs=tuple(outputs),
            removes=tuple(removed.values()),
            data_change=False,
            segments=tuple(dict.fromkeys(names[o.run] for o in chosen)),
            numbers=numbers,
            reconciled=Reconciled(
                commits_seen=max(0, snapshot.version - plan.read_version),
                deletes_remapped=counts.deletes_remapped,
                rows_masked=counts.rows_masked,
                bins_dropped=counts.bins_dropped,
                rounds=work.rounds,
                by_segment=replayed or None,
            ),
            row_map=self._row_map_bytes if outputs else b"",
        )

    def _names(
        self, work: Work, removed: Iterable[AddFile], chosen_runs: set[int]
    ) -> tuple[dict[int, str], SegmentNumbers]:
        """Names of the output segments on top of the version just read."""
        plan, _ = work.frozen
        gone = {add.logged_path for add in removed}
        taken = live_marks(work.snapshot.files, without=gone).names
        mentioned = live_marks(work.snapshot.files).mentioned
        numbers = SegmentNumbers.at(work.snapshot.txns, mentioned)
        order = sorted(chosen_runs)
        requests = [NameRequest(plan.runs[n].first, plan.runs[n].level) for n in order]
        return dict(zip(order, output_names(requests, taken, numbers), strict=True)), numbers


def _summary(plan: CompactionPlan, version: int) -> Plan:
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
        locks=tuple(f"Rewrite segment {name}" for name in plan.segments),
    )


def _steps(plan: CompactionPlan) -> tuple[str, ...]:
    return tuple(f"{', '.join(s.inputs)} → {s.output}" for run in plan.runs for s in run.steps)


def _record(run: Run) -> RunRecord:
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


def _locks(names: Iterable[str]) -> tuple[Resource, ...]:
    return tuple(segment(name) for name in names)
