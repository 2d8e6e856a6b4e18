"""`TableReplace`: replace intervals, partitions or segments from a source, or drop them.

A job writes the rows of the source; a drop needs none. Which rows are removed is decided at the
commit, by the rule in `tandem.reconcile.replace`, with the version fixed at the start as cutoff.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from tandem.delta import dv, protocol
from tandem.delta.actions import AddFile
from tandem.delta.change_feed import ChangeType
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.stats import num_records_of
from tandem.errors import (
    DataFileMissing,
    InvalidSpec,
    Reason,
    TandemError,
    UnknownSegment,
    UnsupportedFeature,
    VersionNotFound,
)
from tandem.intervals import IntervalSet
from tandem.jobs.formats import InputFile, ReplaceJob, RoundRequest, RowScope
from tandem.locks.rules import NOTHING, WHOLE_TABLE, LockResources, named_or_within, within
from tandem.mergelog.log_table import MergeLog
from tandem.operations import attempt_files
from tandem.operations.explain import of_replace
from tandem.operations.kinds.commit_history import (
    MOST_LOST_EDITS,
    CommitHistory,
    SnapshotView,
    VectorCache,
    planned_edits,
    verdict_of_table,
)
from tandem.operations.kinds.job_files import (
    changes_of,
    input_file,
    matches_of,
    new_segment,
    numbers_at,
    output_add,
    require_inside,
    with_change_files,
)
from tandem.operations.kinds.row_scope import (
    EmptyChunks,
    ScopedRows,
    files_in_scope,
    intervals_of,
    partitions_of,
    scope_of_job,
    time_scope,
    with_mask,
)
from tandem.operations.kinds.sources import check_loaded, check_source, version_of_source
from tandem.operations.kinds.time_column import (
    adopted,
    borders_of_load,
    shared_files,
    time_of_locks,
    times_of_files,
)
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Work
from tandem.planning.major import require_live
from tandem.pruning.scope import Coverage, TimeScope, Values
from tandem.reconcile import replace as rule
from tandem.reconcile.feed import of_rows
from tandem.reconcile.matches import check_part, round_result
from tandem.reconcile.outcomes import StatementConflict
from tandem.reconcile.replace import RowAges
from tandem.rowmap.run_table import span, to_bitmap
from tandem.spec.replace import Outside, Scope, TableReplace
from tandem.spec.status import Plan, Reconciled, RowsAffected, RowsReplaced
from tandem.spec.update import Source, SourceFormat
from tandem.storage.paths import canonical_location
from tandem.text import counted
from tandem.timeline.segments import output_tags, segment_name, segments

# Where a replace finds out which rows of files are in its scope: in this process, or by its job.
#
# Statistics and partition values leave some files open, and the times of these have to be read.
# The engine reads few of them (`SmallRounds.time_bytes`), the job all others: in its first run
# those that are known at the plan, in a later round those that came since. An answer is about all
# rows of a file, live or not, and a file never changes: the job reads it once, and the answer does
# not depend on the version at which it was requested.


_BYTES_OF_A_TIME = 8
_BYTES_OF_A_FILE = 256 << 10
"""What a store sends in the time that it takes to answer: a file costs no less."""


def need_job(work: Work, adds: Iterable[AddFile]) -> bool:
    """Whether the times of these files are too many to be read in this process. Estimated without
    opening a file: eight bytes a row, but no more than the file has."""
    total = 0
    for add in adds:
        rows = num_records_of(add.stats)
        times = add.size if rows is None else min(add.size, rows * _BYTES_OF_A_TIME)
        total += max(times, _BYTES_OF_A_FILE)
    return total > work.small_rounds.time_bytes


def inputs_of(view: SnapshotView, paths: Sequence[str]) -> tuple[InputFile, ...]:
    """These files, with all their rows, as inputs of a job. Raises: DataFileMissing."""
    view.prefetch(paths)
    found = []
    for path in sorted(paths):
        state = view.get(path)
        assert state is not None
        found.append(input_file(view, path, span(0, state.rows)))
    return tuple(found)


def by_job(work: Work, view: SnapshotView, paths: Sequence[str]) -> Decision:
    """The decision to let the job read these files: in its next round, or by a plan with a job."""
    plan, spec = work.frozen
    files = counted(len(paths), "file")
    if not spec.job.needs_spark:
        return Decision(Verdict.REPLAN, f"a job has to read the times of {files}")
    request = RoundRequest(
        operation_id=plan.operation_id,
        attempt=plan.attempt,
        round=max(work.results) + 1,
        table_version=view.snapshot.version,
        inputs=inputs_of(view, paths),
    )
    return Decision(Verdict.EVALUATE, f"the times of {files} are unknown", evaluate=request)


def rows_of_round(work: Work, round_: int) -> Mapping[str, BitMap64]:
    """By path the rows in scope of the files that a round has read. Raises: ManifestInvalid,
    CountMismatch."""
    job = work.frozen[1].job
    assert isinstance(job, ReplaceJob)
    inputs = job.inputs if round_ == 0 else work.requests[round_].inputs
    if not inputs:
        return {}
    paths = [file.logged_path for file in inputs]
    result = round_result(matches_of(work, work.results[round_]), paths, ())
    check_part(result, {file.logged_path: span(0, file.rows) for file in inputs})
    found = {path: to_bitmap(matches.positions) for path, matches in result.matches.items()}
    return {path: found.get(path, BitMap64()) for path in paths}


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The scope, resolved against a version of the table."""

    intervals: IntervalSet
    time: TimeScope | None
    partitions: tuple[Values, ...]


class ReplaceKind:
    """The `Kind` of one TableReplace."""

    def __init__(self, resource: TableReplace) -> None:
        self._resource = resource
        self._history: CommitHistory | None = None
        self._ages: tuple[RowAges, int] | None = None  # as of a version
        self._cutoff = -1
        self._in_scope: dict[str, BitMap64] = {}  # rows of files
        self._rows: ScopedRows | None = None
        self._empty_chunks: EmptyChunks | None = None
        self._found: tuple[int, _Resolved, Mapping[str, Coverage]] | None = None  # as of a version

    @property
    def protocol_kind(self) -> protocol.OperationKind:
        if self._resource.spec.source is None:
            return protocol.OperationKind.DELETE
        return protocol.OperationKind.REPLACE

    # Planning

    def plan(self, work: Work) -> Planned:
        spec, snapshot = self._resource.spec, work.snapshot
        _require_no_log(work, self._resource.id)
        self._forget_rows()
        self._found = None
        size: int | None = 0
        if spec.source is not None:
            check_source(work, spec.source, resource=self._resource.id, field="spec.source")
            size = check_loaded(work, spec.source, resource=self._resource.id, field="spec.source")
            self._require_another_version(work, spec.source)
        self._check_start(work)
        scope = self._resolve(work, snapshot)
        parts = self._parts(work, scope)
        adds = snapshot.files_by_path(list(parts))
        require_inside(work.table, adds.values())
        whole = sum(part is Coverage.ALL for part in parts.values())
        read = [adds[path] for path, part in parts.items() if part is Coverage.SOME]
        by_job = need_job(work, read)
        locks = self._locks(work, scope, adds)
        summary = Plan(
            read_version=snapshot.version,
            inputs=len(read),
            input_bytes=sum(add.size for add in read),
            outputs=(new_segment(snapshot, work.now_ms).name,) if spec.source else None,
            steps=(
                f"{counted(whole, 'file')} in which all rows are in scope",
                _reads(len(read), by_job=by_job) + (_of_parts(work) if read else ""),
            ),
            edits=planned_edits(work, read, of="a row in scope"),
            locks=tuple(f"Replace in {each}" for each in locks),
        )
        if spec.source is None and not parts:
            nothing = "no file can hold a row of the intervals, partitions or segments"
            return Planned(summary, None, NOTHING, nothing_to_do=nothing)
        job = ReplaceJob(
            target_file_size=spec.target_file_size,
            scope=self._scope_of_job(work, scope),
            drops_outside=spec.outside is Outside.DROP,
        )
        if spec.source is not None:
            job = job.model_copy(
                update={
                    "source_format": spec.source.format.value,
                    "source_location": spec.source.location,
                    "source_options": dict(spec.source.options),
                    "source_version": version_of_source(work, spec.source),
                    "borders": borders_of_load(work, spec.granularity, resource=self._resource.id),
                }
            )
        if by_job:
            view = self._begin(work).remember(snapshot)
            inputs = inputs_of(view, [add.logged_path for add in read])
            job = job.model_copy(update={"inputs": inputs})
        fixes = spec.scope is Scope.AT_START and spec.start_version is None
        return Planned(summary, job, locks, fixes_cutoff=fixes, source_bytes=size)

    def plan_of_adopted(self, work: Work) -> Planned:
        return Planned(work.frozen[0].summary, None, adopted(work, WHOLE_TABLE))

    def _locks(self, work: Work, scope: _Resolved, adds: Mapping[str, AddFile]) -> LockResources:
        """Its intervals; without any, the segments that it removes rows from, or the table if
        there are none: two replaces of one empty partition must not run at once."""
        if self._resource.spec.replace.intervals is not None:
            return within(scope.intervals)
        files = work.snapshot.files
        taken = files.filter(files_.have_paths(files, adds))
        times = times_of_files(taken, time_of_locks(work))
        return named_or_within(map(segment_name, adds.values()), times) or WHOLE_TABLE

    def _require_another_version(self, work: Work, source: Source) -> None:
        """Raises: InvalidSpec for the table itself at no version: what it means would depend on
        when the job reads it."""
        if source.format is not SourceFormat.DELTA or source.version is not None:
            return
        if canonical_location(source.location) == work.table.location:
            raise InvalidSpec(
                "a table cannot be replaced by itself without a version",
                resource=self._resource.id,
                field="spec.source.version",
                found="none",
                expected="the version to read",
                remedy="Set spec.source.version, and startVersion to the same version",
            )

    def _check_start(self, work: Work) -> None:
        wanted, latest = self._resource.spec.start_version, work.snapshot.version
        if wanted is None:
            return
        expected = f"at most {latest}: the latest version is {latest}" if wanted > latest else ""
        if not expected:
            try:
                work.table.log.snapshot(wanted)
            except VersionNotFound as error:
                expected = f"{error.expected}, which the log still has"
        if expected:
            raise InvalidSpec(
                "the table has no such version",
                resource=self._resource.id,
                field="spec.startVersion",
                found=str(wanted),
                expected=expected,
                remedy="Set the version that the source was computed from, or remove startVersion",
            )

    def _resolve(self, work: Work, snapshot: Snapshot) -> _Resolved:
        """Raises: InvalidSpec, UnknownSegment."""
        wanted, name = self._resource.spec.replace, self._resource.id
        intervals = intervals_of(wanted.intervals or ("all",), resource=name)
        time = time_scope(work.table.spec, snapshot, intervals, resource=name)
        partitions = partitions_of(wanted.partitions or (), snapshot, resource=name)
        return _Resolved(intervals, time, partitions)

    def _scope_of_job(self, work: Work, scope: _Resolved) -> RowScope:
        partitions = self._resource.spec.replace.partitions or ()
        return scope_of_job(self._time_name(work), scope.intervals, partitions)

    def _time_name(self, work: Work) -> str:
        lake = work.table.spec
        if lake is None or lake.spec.time is None:
            return ""
        return lake.spec.time.column

    def _parts(self, work: Work, scope: _Resolved) -> Mapping[str, Coverage]:
        named = self._resource.spec.replace.segments
        if named is not None:
            return dict.fromkeys(sorted(self._named(work.snapshot)), Coverage.ALL)
        return self._files_in(work, scope)

    def _files_in(self, work: Work, scope: _Resolved) -> Mapping[str, Coverage]:
        """`files_in_scope` of the latest version. A later round asks only for files that commits
        have changed since."""
        snapshot = work.snapshot
        files, kept = snapshot.files, {}
        if self._found is not None and self._found[1] == scope:
            version, _, parts = self._found
            if version == snapshot.version:
                return parts
            commits = self._begin(work).since(version, snapshot)
            changed = frozenset().union(*(commit.files for commit in commits))
            kept = {path: part for path, part in parts.items() if path not in changed}
            files = files_.with_paths(files, changed)
        found = {**kept, **files_in_scope(files, scope.time, scope.partitions)}
        self._found = snapshot.version, scope, found
        return found

    def _named(self, snapshot: Snapshot) -> frozenset[str]:
        """The files of the named segments. Raises: UnknownSegment if one of them has none."""
        wanted = self._resource.spec.replace.segments
        assert wanted is not None
        live = segments(snapshot.files)
        require_live(wanted, live, resource=self._resource.id, field="spec.replace.segments")
        return live.where(live.named(set(wanted))).files.paths

    # Reconciling

    def load(self, work: Work, round_: int) -> None:
        if round_ == 0:
            self._forget_rows()
        self._in_scope.update(rows_of_round(work, round_))

    def _forget_rows(self) -> None:
        """The time column may have another name since an earlier attempt."""
        self._in_scope = {}
        self._rows = self._empty_chunks = None

    def decide(self, work: Work) -> Decision:
        try:
            return self._decide(work)
        except DataFileMissing as error:
            if self._cutoff < 0 or _is_named(work.snapshot, error.resource):
                raise
            # Another attempt would not find it, either.
            why = f"{error.resource} is gone, which version {self._cutoff}, its start, or a later "
            return Decision(Verdict.CONFLICT, f"{why}one refers to: the age of rows is unknown")

    def _decide(self, work: Work) -> Decision:
        snapshot = work.snapshot
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=False)
        if refusal is not None:
            return refusal
        _require_no_log(work, self._resource.id)
        history = self._begin(work)
        latest = history.remember(snapshot)
        scope = self._resolve(work, snapshot)
        _, frozen = work.frozen
        assert isinstance(frozen.job, ReplaceJob)
        if frozen.job.scope != self._scope_of_job(work, scope):
            # An earlier process may have planned, and its job has checked the source's rows by it.
            return Decision(Verdict.REPLAN, "the LakeTable has another time column")
        at_start = self._resource.spec.scope is Scope.AT_START
        ages = None
        if at_start:
            found = self._ages_at(work, history)
            if isinstance(found, Decision):
                return found
            ages = found
        parts = self._candidates(work, scope, ages)
        in_part = work.writes_vectors or not work.vectors_only

        def decided() -> rule.Removal | rule.ReadFiles | StatementConflict:
            rows = self._rows_in(latest, parts)
            spec = self._resource.spec
            return rule.decide(spec.scope, parts, latest, rows, ages, in_part=in_part)

        outcome = decided()
        if isinstance(outcome, rule.ReadFiles):
            latest.prefetch(outcome.paths)
            adds = [add for path in outcome.paths if (add := latest.add(path)) is not None]
            if need_job(work, adds):
                return by_job(work, latest, outcome.paths)
            self._scoped(work, scope).read(snapshot, adds)
            outcome = decided()
        if isinstance(outcome, StatementConflict):
            return Decision(Verdict.CONFLICT, outcome.why, outcome.reason, payload=outcome)
        assert isinstance(outcome, rule.Removal)
        return Decision(Verdict.COMMIT, payload=outcome)

    def _begin(self, work: Work) -> CommitHistory:
        if self._history is None:
            cache = VectorCache.of(work.table.store, work.table.log)
            work.keeps_commits = True
            table_id = work.snapshot.metadata.id
            self._history = CommitHistory(work.table.log, cache, table_id, work.new_commits)
        return self._history

    def _scoped(self, work: Work, scope: _Resolved) -> ScopedRows:
        if self._rows is None:
            time = time_of_locks(work)
            granularity = None if time is None else time.granularity
            name = self._time_name(work)
            self._rows = ScopedRows(work.table.store, name, scope.time, self._in_scope, granularity)
        return self._rows

    def _rows_in(
        self, latest: SnapshotView, parts: Mapping[str, Coverage]
    ) -> Callable[[str], BitMap64 | None]:
        def rows(path: str) -> BitMap64 | None:
            if parts[path] is Coverage.ALL:
                state = latest.get(path)
                return BitMap64() if state is None else span(0, state.rows)
            return self._in_scope.get(path)

        return rows

    def _candidates(
        self, work: Work, scope: _Resolved, ages: RowAges | None
    ) -> Mapping[str, Coverage]:
        """The files that may hold rows in scope. Of named segments these are the files that had
        them at the cutoff, and all that were added since."""
        if ages is None or ages.named is None:
            return self._files_in(work, scope)
        return dict.fromkeys((*ages.named, *ages.added), Coverage.ALL)

    def _ages_at(self, work: Work, history: CommitHistory) -> RowAges | Decision:
        spec, snapshot = self._resource.spec, work.snapshot
        if self._ages is None:
            self._cutoff = (
                spec.start_version
                if spec.start_version is not None
                else attempt_files.fixed(work.table.store, work.identity.operation_id)
            )
            cutoff = history.view(self._cutoff)
            if cutoff is None:
                why = f"version {self._cutoff}, its start, can no longer be read"
                return Decision(Verdict.CONFLICT, why)
            named = None
            if spec.replace.segments is not None:
                try:
                    named = self._named(cutoff.snapshot)
                except UnknownSegment as error:
                    return Decision(Verdict.CONFLICT, str(error), Reason.UNKNOWN_SEGMENT)
            self._ages = RowAges(cutoff, named), self._cutoff
        ages, known = self._ages
        if known < snapshot.version:
            commits = history.since(self._cutoff, snapshot)
            new = [commit for commit in commits if commit.version > known]
            ages = ages.after(new, history.view, history.row_maps)
            self._ages = ages, snapshot.version
            history.forget({self._cutoff, snapshot.version})
        return ages

    # Committing

    def change(self, work: Work) -> CommitContent:
        plan, _ = work.frozen
        spec, snapshot, result = self._resource.spec, work.snapshot, work.results[0]
        assert work.decision is not None
        removal = work.decision.payload
        assert isinstance(removal, rule.Removal)
        assert self._history is not None
        latest = self._history.remember(snapshot)
        changed = changes_of(latest, removal.deletes)
        scope = self._resolve(work, snapshot)
        intervals = scope.intervals
        marked = tuple(
            with_mask(file, intervals) if file.add.logged_path in removal.cleared else file
            for file in changed.marked
        )
        segment = new_segment(snapshot, work.now_ms)
        tags = output_tags(segment.name, segment.sequence)
        outputs = tuple(OutputFileChange(output_add(o, tags), o.rows) for o in result.outputs)
        at_start = spec.scope is Scope.AT_START
        replaced = RowsReplaced(
            start_version=self._cutoff if at_start else None,
            rows=removal.rows,
            late=removal.late if at_start else None,
            outside=result.rows_outside if spec.outside is Outside.DROP else None,
            empty_chunks=self._left_empty(work, scope, removal, outputs),
        )
        change = CommitContent(
            operation="DELETE" if spec.source is None else "WRITE",
            parameters=self._parameters(),
            outputs=outputs,
            removes=changed.removes,
            marked=marked,
            isolation="Serializable",
            most_lost_edits=MOST_LOST_EDITS,
            segments=(segment.name,) if outputs else (),
            numbers=segment.numbers if outputs else numbers_at(snapshot),
            rows=RowsAffected(deleted=removal.rows, inserted=result.rows_written),
            replaced=replaced,
            summary=(
                *of_replace(spec.replace, replaced, drop=spec.source is None),
                *shared_files(result.chunks_together),
            ),
            reconciled=Reconciled(
                commits_seen=max(0, snapshot.version - plan.read_version),
                rounds=work.rounds,
            ),
        )
        written = {output.path: output for output in result.outputs}
        added = {path: span(0, output.rows) for path, output in written.items()}
        changes = of_rows({ChangeType.DELETE: removal.removed, ChangeType.INSERT: added})
        return with_change_files(work, change, latest, written, changes)

    def _left_empty(
        self,
        work: Work,
        scope: _Resolved,
        removal: rule.Removal,
        outputs: Iterable[OutputFileChange],
    ) -> int | None:
        """How many chunks the replace leaves empty; None if it does not replace intervals alone, or
        if that cannot be found out."""
        wanted, time = self._resource.spec.replace, time_of_locks(work)
        if wanted.intervals is None or wanted.partitions is not None or time is None:
            return None
        if self._empty_chunks is None:
            self._empty_chunks = EmptyChunks(self._scoped(work, scope), time)
        adds = [output.add for output in outputs]
        try:
            return self._empty_chunks.count(work.snapshot, removal.removed, removal.kept, adds)
        except TandemError:
            # Of a file that goes whole: it may be damaged, which is no reason to keep it.
            return None

    def _parameters(self) -> dict[str, str]:
        """As the log names it: the scope, as a predicate that people read."""
        wanted = self._resource.spec.replace
        text = json.dumps(
            wanted.model_dump(by_alias=True, exclude_none=True), ensure_ascii=False, default=list
        )
        if self._resource.spec.source is None:
            return {"predicate": json.dumps([text], ensure_ascii=False)}
        return {"mode": "Overwrite", "predicate": text, "partitionBy": "[]"}


def _reads(files: int, *, by_job: bool) -> str:
    """What the plan says of files of which statistics do not tell enough."""
    if not files:
        return "0 files of which the times are read"
    who = "a job" if by_job else "the operator"
    return f"{counted(files, 'file')} of which {who} reads the times"


def _of_parts(work: Work) -> str:
    """What the plan says of files of which only a part is in scope."""
    if work.table.vectors_only and not work.table.will_write_vectors(work.snapshot):
        return ": without deletion vectors, they must go whole"
    return ""


def _is_named(snapshot: Snapshot, path: str) -> bool:
    """Whether a version refers to a data file, or to the file of a deletion vector."""
    vectors = (add.deletion_vector for add in snapshot.adds())
    named = (dv.file_path(each) for each in vectors if each and each.storage != "i")
    return path in named or any(add.path == path for add in snapshot.adds())


def _require_no_log(work: Work, resource: str) -> None:
    """Raises: UnsupportedFeature on a merge-on-read table."""
    if MergeLog(work.table.log).exists():
        raise UnsupportedFeature(
            "a merge-on-read table cannot be replaced in part yet",
            resource=resource,
            field="spec.tableRef",
            found="a table with a log of blocks",
            expected="a table without mergeOnRead",
            remedy="Use TableUpdate with delete and upsert",
        )
