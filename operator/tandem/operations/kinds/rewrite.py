"""What the kinds share that rewrite files and change no rows: compaction, segment rewrite.

A rewrite leaves the table's rows as they are, so it conflicts with no other commit: rows of its
inputs that others delete meanwhile are hidden in its outputs (`tandem.reconcile.rewrite`), by
deletion vectors or by edits. An edit may come too late, again and again, where writers are faster
than edits. An output that keeps the order of rows becomes two then, at the border of an input; each
lost round has cost an input, so this ends; where it has not, since an update of ours left an heir,
the bin is left as it was after some more. So is a sorted bin.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import Final, Literal

from pyroaring import BitMap64

from tandem.delta import dv, protocol
from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION, AddFile
from tandem.errors import CountMismatch, LogGap, ManifestInvalid
from tandem.intervals import IntervalSet, TimeInterval
from tandem.jobs.formats import InputFile, JobLayout, RewriteJob
from tandem.jobs.results import OutputFile
from tandem.jobs.runner import SMALL_BYTES
from tandem.locks.rules import LockResources, Mode, named
from tandem.operations import attempt_files
from tandem.operations.kinds.commit_history import (
    CommitHistory,
    SnapshotView,
    VectorCache,
    verdict_of_table,
)
from tandem.operations.kinds.heirs import HeirSearch, read_rows
from tandem.operations.kinds.job_files import (
    OTHER_IDS,
    changes_of,
    have_other_ids,
    input_file,
    output_add,
)
from tandem.operations.kinds.time_column import adopted
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Work
from tandem.operations.session.carry_out import edits_of
from tandem.reconcile.published import CommittedRewrite
from tandem.reconcile.rewrite import Heir, Moved, RewriteDecision, RewriteInput, rewrite
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap, RowMapIdentity
from tandem.spark.jobs.edits import ReplacedRows
from tandem.spark.runtime.control import job_table_format
from tandem.spec.status import Reconciled
from tandem.text import counted
from tandem.timeline.history import retired
from tandem.timeline.names import SegmentNumbers
from tandem.timeline.segments import TAG_SEGMENT, Segment, Segments

MOST_LOST: Final = 5
"""Edits of a sorted output that come too late before its bin is left as it was."""
LOST_BEFORE_CUT: Final = 2
"""Edits of an output in the order of its inputs that come too late before it becomes two."""
LEAST_PART: Final = 16 << 20
"""Bytes of an output's part at least, about."""


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
        self._heirs: HeirSearch | None = None
        self._contended: frozenset[str] = frozenset()
        self._cut_at: dict[str, tuple[int, ...]] = {}

    # Planning

    def plan_of_adopted(self, work: Work) -> Planned:
        plan, _ = work.frozen
        return Planned(plan.summary, None, adopted(work, named(plan.summary.segments)))

    def begin(self) -> None:
        """Drop what was cached for another plan or another result."""
        self._row_map, self._row_map_bytes = None, b""
        self._inputs, self._decided, self._moved, self._view = (), None, {}, None
        self._heirs, self._contended, self._cut_at = None, frozenset(), {}

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
            base_row_id=add.extra.get(BASE_ROW_ID),
            row_commit_version=add.extra.get(ROW_COMMIT_VERSION),
        )

    def serves_edits(self, work: Work, input_bytes: int) -> Literal[True] | None:
        """Whether the job's driver stays, to make edits: without vectors, if they are too large for
        the engine."""
        late = input_bytes > SMALL_BYTES and not work.table.will_write_vectors(work.snapshot)
        return True if late else None

    # Reconciling

    def load(self, work: Work, round_: int) -> None:
        result = work.results[round_]
        if result.row_map is None:
            raise ManifestInvalid(
                "a rewrite's result has no row map",
                resource=attempt_files.rounds(result.operation_id, result.attempt),
                field="rowMap",
            )
        # The attempt may have been planned by another process, and be adopted after one of ours.
        self.begin()
        self._row_map_bytes = work.read(result.row_map)
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
        needs_vectors = cuts and work.vectors_only
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=needs_vectors)
        if refusal is not None:
            return refusal
        inputs = self._inputs or _as_planned(job.job, self.row_map)
        view = SnapshotView(snapshot, self.vectors(work))
        if job.table.row_ids and have_other_ids(view, job.job.inputs):
            return Decision(Verdict.REPLAN, OTHER_IDS)
        decision = self._rewrite(work, view, inputs)
        if not work.writes_vectors:
            decision = self._converging(work, decision, inputs)
        if decision.superseded:
            return self._without_outputs(work, decision)
        return Decision(Verdict.COMMIT, payload=decision)

    def _without_outputs(self, work: Work, decision: RewriteDecision) -> Decision:
        if decision.counts.bins_contended:
            return Decision(Verdict.CONFLICT, contended_in_words(work, decision), payload=decision)
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        nothing = "other commits have replaced all of its inputs"
        if decision.left_alone:
            nothing = "other commits have replaced all inputs but one of each output"
        elif job.job.take is not None and not work.results[0].rows_written:
            nothing = "no row of its inputs lies in the chunks"
        return Decision(Verdict.SUPERSEDED, nothing, payload=decision)

    def _rewrite(
        self, work: Work, view: SnapshotView, inputs: tuple[RewriteInput, ...]
    ) -> RewriteDecision:
        """The decision; that of the previous round if no commit has touched our inputs since: an
        operation that lost a race for a version must not lose the next one by deciding again."""
        self._inputs, self._view = inputs, view
        view.prefetch(i.path for i in inputs)
        heirs = self._heirs_of(work, view, inputs)
        grounds = (
            work.writes_vectors,
            self._contended,
            *(view.vector_id(i.path) for i in inputs),
            *((heir.path, view.vector_id(heir.path)) for heir in heirs),
        )
        if self._decided is None or self._decided[0] != grounds:
            decision = rewrite(
                inputs,
                view,
                self.row_map,
                deletion_vectors=work.writes_vectors,
                moved=self._moved,
                heirs=heirs,
                contended=self._contended,
            )
            self._decided = (grounds, decision)
        return self._decided[1]

    def _heirs_of(
        self, work: Work, view: SnapshotView, inputs: tuple[RewriteInput, ...]
    ) -> tuple[Heir, ...]:
        gone = [each.path for each in inputs if not each.cut and view.add(each.path) is None]
        plan, job = work.frozen
        # An heir may have columns that the outputs lack.
        if not gone or work.snapshot.metadata.schema_string != job.table.schema_string:
            return ()
        if self._heirs is None:
            assert isinstance(job.job, RewriteJob)
            self._heirs = HeirSearch(
                partial(read_rows, work.table.store, job_table_format(job.table)),
                CommitHistory(work.table.log, self.vectors(work), plan.table_id),
                plan.read_version,
                {file.logged_path: file for file in job.job.inputs},
                self.row_map,
                work.table.log.latest_version,
                job.table.row_ids or (),
            )
        return self._heirs.of(gone, view, by_content=not work.writes_vectors)

    def _converging(
        self, work: Work, decision: RewriteDecision, inputs: tuple[RewriteInput, ...]
    ) -> RewriteDecision:
        """The decision without bins whose edits come too late every time; outputs that keep the
        order of rows are cut instead."""
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        assert self._view is not None
        late: set[str] = set()
        for output in self._changes(work, decision, lambda _: {}):
            for _, edit in edits_of(output):
                lost = 0 if edit is None or work.edits.find(edit) else work.edits.lost(edit)
                path = output.add.logged_path
                if job.job.layout is not None and lost >= MOST_LOST:
                    late.update(self.row_map.sources(path))
                elif job.job.layout is None and lost >= LOST_BEFORE_CUT and edit is not None:
                    sources = self.row_map.sources(path)
                    is_cut = self._cut_output(output, edit.part or (0, output.rows))
                    # An heir by a row map comes back changed, and costs no input.
                    if not is_cut and lost >= MOST_LOST + len(sources):
                        late.update(sources)
        if not late:
            return decision
        self._contended |= late
        return self._rewrite(work, self._view, inputs)

    def _cut_output(self, output: OutputFileChange, part: tuple[int, int]) -> bool:
        """Cut a part of an output in the middle, at the border of an input, if both are large
        enough. Returns whether it was cut."""
        path, (start, end) = output.add.logged_path, part
        number = self.row_map.output_number(path)
        least = max(1, LEAST_PART * output.rows // max(1, output.add.size))
        borders = [
            run.out_start
            for run in self.row_map.runs
            if run.output == number and start + least <= run.out_start <= end - least
        ]
        if borders:
            middle = min(borders, key=lambda at: abs(2 * at - start - end))
            self._cut_at[path] = tuple(sorted({*self._cut_at.get(path, ()), middle}))
        return bool(borders)

    def to_commit(self, work: Work) -> tuple[RewriteDecision, JobLayout | None]:
        """The decision to commit, and the layout that the job gave the outputs."""
        assert work.decision is not None
        decision = work.decision.payload
        assert isinstance(decision, RewriteDecision)
        _, job = work.frozen
        assert isinstance(job.job, RewriteJob)
        return decision, job.job.layout

    def sources(self, output: str, decision: RewriteDecision) -> tuple[str, ...]:
        """The inputs that an output has rows of, and the heirs that go in their places."""
        inputs = self.row_map.sources(output)
        heirs = (h.path for h in decision.heirs.values() if not set(inputs).isdisjoint(h.sources))
        return (*inputs, *heirs)

    def files_of(self, work: Work, decision: RewriteDecision, output: OutputFile) -> int:
        """How many files an output becomes."""
        cut_at = self._cut_at.get(output.path, ())
        if work.writes_vectors or not cut_at:
            return 1
        hidden = decision.masks.get(output.path, BitMap64())
        borders = pairwise((0, *cut_at, output.rows))
        return sum(hidden.range_cardinality(start, end) < end - start for start, end in borders)

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
        outputs = self._changes(work, decision, tags_of)
        replayed: dict[str, int] = {}
        for output in outputs:
            name = output.add.tags[TAG_SEGMENT]
            new = len(output.dead or ()) - decision.carried.get(output.add.logged_path, 0)
            if new:
                replayed[name] = replayed.get(name, 0) + new
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
                bins_contended=counts.bins_contended or None,
                inputs_gone=counts.inputs_gone or None,
                rounds=work.rounds,
                by_segment=replayed or None,
            ),
            row_map=self._row_map_bytes if outputs else b"",
            rewrite=CommittedRewrite(self.row_map, decision, self._view),
            summary=(
                *_cut_in_words(decision),
                *_in_store(work.results[0].copied_in_store),
                *([contended_in_words(work, decision)] if counts.bins_contended else []),
            ),
        )

    def _changes(
        self,
        work: Work,
        decision: RewriteDecision,
        tags_of: Callable[[OutputFile], Mapping[str, str]],
    ) -> tuple[OutputFileChange, ...]:
        """The outputs that a decision commits, with what is hidden and replaced in them."""
        return tuple(
            OutputFileChange(
                output_add(output, tags_of(output)),
                output.rows,
                decision.masks.get(output.path),
                new=self._new_rows(decision, output.path),
                cut_at=self._cut_at.get(output.path, ()),
            )
            for output in published(work, decision)
        )

    def _new_rows(self, decision: RewriteDecision, output: str) -> tuple[ReplacedRows, ...]:
        assert self._view is not None
        return tuple(
            ReplacedRows(input_file(self._view, new.heir, None), new.positions, new.rows)
            for new in decision.new_rows.get(output, ())
        )


def contended_in_words(work: Work, decision: RewriteDecision) -> str:
    """Why bins were left as they were, and what helps."""
    bins = counted(decision.counts.bins_contended, "bin")
    edits, (_, job) = work.edits, work.frozen
    assert isinstance(job.job, RewriteJob)
    other = "" if job.job.layout is None else "use BinPack, "
    each = edits.seconds / max(1, edits.rounds)
    return (
        f"{bins} left as it was: an edit took {each:.1f} s, and other commits changed its rows "
        f"{edits.rounds} times before it could be published. Enable deletion vectors, {other}"
        "or choose a time with fewer writes (spec.compaction.maintenanceWindow)"
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
    from tandem.operations.kinds.row_scope import with_mask  # of cuts only

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
