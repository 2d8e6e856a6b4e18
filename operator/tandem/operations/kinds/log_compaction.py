"""`LogCompaction`: replace consecutive blocks of a log by one, in one commit.

Its table is the log. Readers see the same rows with and without its commit, whatever was merged
before, beside or after it, so it conflicts with no writer and no merge: a run whose blocks are all
live is replaced, another one is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandem.delta import protocol
from tandem.delta.actions import AddFile
from tandem.errors import CorruptLog, VersionNotFound
from tandem.jobs.formats import InputFile, StitchJob, StitchRun
from tandem.locks.rules import named
from tandem.mergelog.log_table import (
    check_format,
    settings_of,
    state_of,
)
from tandem.mergelog.versions import (
    Block,
    BlockLogState,
    BlockRun,
    RunsLeft,
    all_blocks,
    applicable,
    small_runs,
    tags_of,
)
from tandem.operations import garbage
from tandem.operations.kinds.commit_history import verdict_of_table
from tandem.operations.kinds.job_files import output_add
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Planned, Work
from tandem.spec.log_compaction import LogCompaction, Strategy
from tandem.spec.status import Plan, Reconciled

NEVER_EXPIRED = -1
DELETES_KEPT_MS = 168 * 3600 * 1000
"""How long a merged delete stays in force by default, with an ordering column."""


class LogCompactionKind:
    """The `Kind` of one LogCompaction."""

    protocol_kind = protocol.OperationKind.LOG_COMPACTION

    def __init__(self, resource: LogCompaction) -> None:
        self._resource = resource
        # What earlier rounds read: a block never changes, and beside busy writers a round has to
        # be as short as theirs.
        self._blocks: Mapping[str, Block] = {}
        self._removes: dict[str, AddFile] = {}

    def plan(self, work: Work) -> Planned:
        snapshot = work.snapshot
        state, settings = state_of(snapshot), settings_of(snapshot)
        runs = self._runs(work, state)
        blocks = [block for run in runs for block in run.blocks]
        names = tuple(_name(run) for run in runs)
        size = sum(run.size for run in runs)
        summary = Plan(
            read_version=snapshot.version,
            inputs=len(blocks),
            input_bytes=size,
            instants=names or None,
            output_files=len(runs),
            output_bytes=size,
            locks=tuple(f"Rewrite instants {name}" for name in names),
        )
        locks = named(str(block.first) for block in blocks)
        if not runs:
            found = f"{len(state.live)} live blocks, no run of {self._resource.spec.min_blocks}"
            return Planned(summary, None, locks, nothing_to_do=found)
        inputs = tuple(self._input(block) for block in blocks)
        places = {file.logged_path: at for at, file in enumerate(inputs)}
        job = StitchJob(
            inputs=inputs,
            runs=tuple(
                StitchRun(
                    inputs=tuple(places[block.path] for block in run.blocks),
                    first=tuple(block.first for block in run.blocks),
                    last=tuple(block.last for block in run.blocks),
                )
                for run in runs
            ),
            keys=settings.keys,
            ordering_column=settings.ordering_column,
            # As this version of the log records it: a later mark can fall by a restore.
            mark=state.mark,
            expired=_expired(work, state),
            max_block_bytes=self._resource.spec.max_block_bytes,
        )
        return Planned(summary, job, locks)

    def _runs(self, work: Work, state: BlockLogState) -> tuple[BlockRun, ...]:
        taken = self._taken(work)
        spec = self._resource.spec
        if spec.strategy is Strategy.ALL_BLOCKS:
            return all_blocks(state, taken)
        return small_runs(
            state, min_blocks=spec.min_blocks, max_bytes=spec.max_block_bytes, taken=taken
        )

    @staticmethod
    def _taken(work: Work) -> set[str]:
        """The blocks that other unfinished log compactions replace, or log merges read."""
        log, base = work.table, work.table.base
        taken: set[str] = set()
        for pin in garbage.uncommitted(garbage.unfinished(log.store), work.snapshot):
            if pin.operation_id != work.identity.operation_id:
                taken |= garbage.inputs(log.store, pin)
        for reads in garbage.log_reads(base.store, base.log) if base is not None else ():
            taken |= reads.blocks
        return taken

    @staticmethod
    def _input(block: Block) -> InputFile:
        return InputFile(
            logged_path=block.path, size=block.size, rows=0, partition_values=dict(block.group)
        )

    def plan_of_adopted(self, work: Work) -> Planned:
        plan, job = work.frozen
        assert isinstance(job.job, StitchJob)
        firsts = (str(first) for run in job.job.runs for first in run.first)
        return Planned(plan.summary, None, named(firsts))

    def load(self, work: Work, round_: int) -> None:
        """Its result is its files."""

    def decide(self, work: Work) -> Decision:
        refusal = verdict_of_table(work, self.protocol_kind, needs_vectors=False)
        if refusal is not None:
            return refusal
        check_format(work.snapshot)  # a later version may have changed the log meanwhile
        _, job = work.frozen
        assert isinstance(job.job, StitchJob)
        state = state_of(work.snapshot, self._blocks)
        self._blocks = state.live
        paths = [[job.job.inputs[at].logged_path for at in run.inputs] for run in job.job.runs]
        left = applicable(state, paths, job.job.mark)
        if state.mark < job.job.mark:
            return Decision(Verdict.REPLAN, "a restore has taken back a merge of the log")
        if not left.applicable:
            why = "no run still has all of its blocks"
            return Decision(Verdict.SUPERSEDED, why, payload=left)
        return Decision(Verdict.COMMIT, payload=left)

    def change(self, work: Work) -> CommitContent:
        plan, spec = work.frozen
        job = spec.job
        assert isinstance(job, StitchJob)
        assert work.decision is not None
        left = work.decision.payload
        assert isinstance(left, RunsLeft)
        committed = sorted(left.applicable)
        outputs = []
        for file in work.results[0].outputs:
            if file.run in committed:
                run = job.runs[file.run]
                block = Block(file.path, run.first[0], run.last[-1], file.size, file.deletes)
                add = output_add(file, tags_of(block))
                outputs.append(OutputFileChange(add, file.rows))
        gone = [job.inputs[place].logged_path for at in committed for place in job.runs[at].inputs]
        missing = [path for path in gone if path not in self._removes]
        if missing:
            self._removes |= work.snapshot.files_by_path(missing)
        return CommitContent(
            operation="OPTIMIZE",
            parameters={"predicate": "[]", "zOrderBy": "[]", "auto": "false"},
            outputs=tuple(outputs),
            removes=tuple(self._removes[path] for path in gone),
            data_change=False,
            instants=tuple(f"{job.runs[at].first[0]}-{job.runs[at].last[-1]}" for at in committed),
            reconciled=Reconciled(
                commits_seen=max(0, work.snapshot.version - plan.read_version),
                runs_dropped=len(job.runs) - len(committed) or None,
                rounds=work.rounds,
            ),
        )


def _expired(work: Work, state: BlockLogState) -> int:
    """The last instant whose deletes are no longer kept; -1 for none.

    A delete is kept until a merge follows that is `deletesKept` younger than the one that it was a
    part of: all records that came within that time are merged then, and none of them is compared
    with it again. By the times of the log's versions. The clock of one writer may be ahead: no
    merge counts as later than the newest version, or than now.
    """
    lake = work.table.spec
    if lake is None or lake.spec.merge_on_read is None or state.mark < 0:
        return NEVER_EXPIRED
    kept = lake.spec.merge_on_read.deletes_kept
    kept = DELETES_KEPT_MS if kept is None else kept
    log = work.table.log
    try:
        times = log.snapshot(state.mark).timestamp_ms, work.snapshot.timestamp_ms, work.now_ms
        merged_ms = min(times)
        before = state_of(log.snapshot(timestamp_ms=merged_ms - kept))
    except (VersionNotFound, CorruptLog):
        return NEVER_EXPIRED  # the log is younger, or that version is cleaned up
    return min(before.mark, state.mark)


def _name(run: BlockRun) -> str:
    return f"{run.first}-{run.last}"
