"""What the kinds share that rewrite files and change no rows: compaction, segment rewrite.

A rewrite leaves the table's rows as they are, so it conflicts with no other commit: rows of its
inputs that others delete meanwhile are masked in its outputs (design, "Reconciliation").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pyroaring import BitMap64

from tandem.delta import dv, protocol
from tandem.delta.actions import AddFile
from tandem.errors import CountMismatch, LogGap, ManifestInvalid
from tandem.intervals import IntervalSet, TimeInterval
from tandem.jobs.formats import InputFile, JobLayout, RewriteJob
from tandem.jobs.results import OutputFile
from tandem.locks.model import LockResources, Mode, named
from tandem.operations.attempt import paths
from tandem.operations.attempt.sidecars import read_sidecar
from tandem.operations.kinds.table.job_files import changes_of, output_add
from tandem.operations.kinds.table.lock_times import adopted
from tandem.operations.kinds.table.snapshot_view import SnapshotView, VectorCache
from tandem.operations.kinds.table.table_changes import verdict_of_table
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Work
from tandem.reconcile.rewrite import Moved, RewriteDecision, RewriteInput, rewrite
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap, RowMapIdentity
from tandem.spec.status import Reconciled
from tandem.text import counted
from tandem.timeline.history import retired
from tandem.timeline.names import SegmentNumbers
from tandem.timeline.segments import TAG_SEGMENT, Segment, Segments


class RewriteKind:
    """The part of a `Kind` that rewrites have in common. Caches what is immutable (deletion
    vectors, the row map and where it moved rows) and the last decision."""

    protocol_kind = protocol.OperationKind.COMPACTION

    def __init__(self) -> None:
        self._cache: VectorCache | None = None
        self._row_map: RowMap | None = None
        self._row_map_bytes = b""
        self._inputs: tuple[RewriteInput, ...] = ()
        self._decided: tuple[object, RewriteDecision] | None = None
        self._moved: Moved = {}
        self._view: SnapshotView | None = None

    # Planning

    def plan_of_adopted(self, work: Work) -> Planned:
        plan, _ = work.frozen
        return Planned(plan.summary, None, adopted(work, named(plan.summary.segments)))

    def begin(self) -> None:
        """Drop what was cached for another plan or another result."""
        self._row_map, self._row_map_bytes = None, b""
        self._inputs, self._decided, self._moved, self._view = (), None, {}, None

    def vectors(self, work: Work) -> VectorCache:
        if self._cache is None:
            self._cache = VectorCache.of(work.table.store, work.table.log)
        return self._cache

    def input_file(self, work: Work, add: AddFile) -> InputFile:
        """A file with its current deletion vector, as an input of the job."""
        cache = self.vectors(work)
        dead = cache.dead(add)
        return InputFile(
            logged_path=add.logged_path,
            size=add.size,
            rows=cache.rows_of(add),
            dv=dv.to_base64(dead) if dead else "",
            partition_values=dict(add.partition_values),
        )

    # Reconciling

    def load(self, work: Work, round_: int) -> None:
        result = work.results[round_]
        if result.row_map is None:
            raise ManifestInvalid(
                "a rewrite's result has no row map",
                resource=paths.rounds(result.operation_id, result.attempt),
                field="rowMap",
            )
        # The attempt may have been planned by another process, and be adopted after one of ours.
        self.begin()
        self._row_map_bytes = read_sidecar(work.table.store, result.row_map)
        plan, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        rows = sum(file.rows for file in job.job.inputs)
        self._row_map = binary_format.from_bytes(
            self._row_map_bytes,
            expected=RowMapIdentity(
                plan.table_id, plan.operation_id, plan.attempt, plan.read_version
            ),
            resource=result.row_map.path,
            most_rows=lambda: rows,
        )

    @property
    def row_map(self) -> RowMap:
        """The map of the attempt's result, once loaded."""
        assert self._row_map is not None
        return self._row_map

    def decide(self, work: Work) -> Decision:
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        snapshot = work.snapshot
        cuts = job.job.take is not None
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=cuts)
        if refusal is not None:
            return refusal
        vectors = protocol.writes_deletion_vectors(snapshot.protocol, snapshot.metadata)
        inputs = self._inputs or _as_planned(job.job, self.row_map)
        if not vectors and any(each.kept for each in inputs):
            why = (
                "the table has stopped using deletion vectors, which hide deleted rows in its files"
            )
            return Decision(Verdict.REPLAN, why)
        decision = self._rewrite(SnapshotView(snapshot, self.vectors(work)), inputs, vectors)
        if decision.superseded:
            nothing = "other commits have replaced all of its inputs"
            if cuts and not work.results[0].rows_written:
                nothing = "no row of its inputs lies in the chunks"
            return Decision(Verdict.SUPERSEDED, nothing, payload=decision)
        return Decision(Verdict.COMMIT, payload=decision)

    def _rewrite(
        self, view: SnapshotView, inputs: tuple[RewriteInput, ...], deletion_vectors: bool
    ) -> RewriteDecision:
        """The decision; that of the previous round if no commit has touched our inputs since: an
        operation that lost a race for a version must not lose the next one by deciding again."""
        self._inputs, self._view = inputs, view
        view.prefetch(i.path for i in inputs)
        grounds = (deletion_vectors, *(view.vector_id(i.path) for i in inputs))
        if self._decided is None or self._decided[0] != grounds:
            decision = rewrite(
                inputs, view, self.row_map, deletion_vectors=deletion_vectors, moved=self._moved
            )
            self._decided = (grounds, decision)
        return self._decided[1]

    def to_commit(self, work: Work) -> tuple[RewriteDecision, JobLayout | None]:
        """The decision to commit, and the layout that the job gave the outputs."""
        assert work.decision is not None
        decision = work.decision.payload
        assert isinstance(decision, RewriteDecision)
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        return decision, job.job.layout

    def removed(self, decision: RewriteDecision) -> dict[str, AddFile]:
        """The live adds of `decision.removes` by logged path, at the version of the decision."""
        assert self._view is not None
        adds = ((path, self._view.add(path)) for path in decision.removes)
        return {path: add for path, add in adds if add is not None}

    def change_set(
        self,
        work: Work,
        decision: RewriteDecision,
        removed: Iterable[AddFile],
        tags_of: Callable[[OutputFile], Mapping[str, str]],
        *,
        numbers: SegmentNumbers | None = None,
    ) -> CommitContent:
        """The commit of a decision. `tags_of` gives the tags of an output, which name its segment;
        `removed` are the live adds of `decision.removes`."""
        plan, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        assert self._view is not None
        cut = changes_of(self._view, decision.cuts).marked
        outputs = []
        replayed: dict[str, int] = {}
        for output in published(work, decision):
            tags = tags_of(output)
            name = tags[TAG_SEGMENT]
            mask = decision.masks.get(output.path)
            new = len(mask or ()) - decision.carried.get(output.path, 0)
            if new:
                replayed[name] = replayed.get(name, 0) + new
            add = output_add(output, tags, data_change=False)
            outputs.append(OutputFileChange(add, output.rows, mask))
        counts = decision.counts
        return CommitContent(
            operation="OPTIMIZE",
            parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false"},
            outputs=tuple(outputs),
            removes=tuple(removed),
            marked=tuple(_with_hint(file, job.job) for file in cut),
            data_change=False,
            segments=tuple(dict.fromkeys(o.add.tags[TAG_SEGMENT] for o in outputs)),
            numbers=numbers,
            reconciled=Reconciled(
                commits_seen=max(0, work.snapshot.version - plan.read_version),
                deletes_remapped=counts.deletes_remapped,
                rows_masked=counts.rows_masked,
                bins_dropped=counts.bins_dropped,
                rounds=work.rounds,
                by_segment=replayed or None,
            ),
            row_map=self._row_map_bytes if outputs else b"",
            summary=(*_cut_in_words(decision), *_in_store(work.results[0].copied_in_store)),
        )


def locks_described(work: Work, locks: LockResources) -> tuple[str, ...]:
    """The locks of a rewrite, as plans name them."""
    mode = Mode.EXCLUSIVE if work.exclusive else Mode.REWRITE
    return tuple(f"{mode} {each}" for each in locks)


def _as_planned(job: RewriteJob, row_map: RowMap) -> tuple[RewriteInput, ...]:
    return tuple(_input(file, row_map, cut=job.take is not None) for file in job.inputs)


def _input(file: InputFile, row_map: RowMap, *, cut: bool) -> RewriteInput:
    dead = dv.from_base64(file.dv) if file.dv else BitMap64()
    path = file.logged_path
    # A job that copies row groups copies deleted rows with them: its map has none of them as dead.
    keeps = bool(dead) and not cut and path in row_map.input_paths and not row_map.input(path).dead
    left_out, kept = (BitMap64(), dead) if keeps else (dead, BitMap64())
    return RewriteInput(path, left_out, file.rows, cut=cut, kept=kept)


def _cut_in_words(decision: RewriteDecision) -> tuple[str, ...]:
    if not decision.cuts:
        return ()
    rows = sum(cut.deleted for cut in decision.cuts.values())
    files = counted(len(decision.cuts), "file")
    return (f"{counted(rows, 'row')} cut out of {files}, which keep their other rows",)


def _in_store(copied: int) -> tuple[str, ...]:
    if not copied:
        return ()
    return (f"{copied / (1 << 20):,.0f} MiB of row groups copied inside of the store",)


def _with_hint(file: OutputFileChange, job: RewriteJob) -> OutputFileChange:
    """A file that was cut, with the intervals that it has lost as a hint for later plans."""
    from tandem.operations.kinds.table.row_scope import with_mask  # of cuts only

    return with_mask(file, IntervalSet(TimeInterval(*each) for each in job.take or ()))


def published(work: Work, decision: RewriteDecision) -> list[OutputFile]:
    """The files that a decision makes visible, in the order of the result.

    Raises: CountMismatch if the decision was made on another result: its rows would be lost.
    """
    chosen = set(decision.outputs)
    found = [output for output in work.results[0].outputs if output.path in chosen]
    if len(found) != len(chosen):
        raise CountMismatch(
            "A decision names files that the result does not have",
            found=f"{len(found)} of them",
            expected=f"all {len(chosen)}",
            remedy="Nothing was published; run the operation again",
        )
    return found


def past_segments(work: Work, live: Segments, named: Collection[str]) -> tuple[Segment, ...]:
    """Segments that existed in the past, for the message; read only if the spec names one that is
    not live."""
    if set(named) <= live.among(set(named)):
        return ()
    log, last = work.table.log, work.snapshot.version
    try:
        return retired(live, log.commits(0, last))
    except LogGap as hole:
        return retired(live, log.commits(hole.first_available, last))
