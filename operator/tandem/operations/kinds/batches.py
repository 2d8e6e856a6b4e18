"""A compaction whose input exceeds `maxBytesPerCommit`: how it is cut, and which batch is next.

Never commits, and decides nothing about rows: each batch is a compaction like any other
(docs/decisions/0177).

    cut       which bins of a plan are committed together; pure
    record    the batches of an operation, as stored once for all of its processes
    resource  a batch as an operation of its own
    progress  which batch is next, and what those before it did
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pydantic import Field

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import ManifestInvalid
from tandem.jobs.formats import Format
from tandem.operations import attempt_files
from tandem.operations.attempt_files import ResultRecord
from tandem.operations.machine.state import PartOfWork
from tandem.operations.model import Identity, Table
from tandem.operations.session import commit_actions
from tandem.operations.session.recovery import has_begun, identify, is_recorded
from tandem.planning.plans import Bin, MergeStep, SegmentRun, bin_of, build_run
from tandem.spec.common import Operation
from tandem.spec.compaction import TableCompaction, TableCompactionSpec
from tandem.spec.fields import Model, StrictInt, StrictStr
from tandem.spec.status import OperationResult, Phase, Plan
from tandem.storage.store import Store
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segments

# A batch as an operation of its own: a compaction with the name and the limits of the one that it
# belongs to, and an id that follows from the id of that one.
#
# Never written down: it exists inside the process that performs it, and people see the operation
# that it belongs to.


class BatchOf(Model):
    """The operation that a batch belongs to, and its number, from 1."""

    operation: StrictStr
    number: StrictInt


class BatchSpec(TableCompactionSpec):
    """The spec of a batch. `part` is for display, and no part of its identity."""

    batch: BatchOf
    part: PartOfWork = Field(exclude=True)


def batch_of(resource: Operation) -> BatchSpec | None:
    """The spec of a batch; None for a compaction that people or the operator wrote down."""
    return resource.spec if isinstance(resource.spec, BatchSpec) else None


def batch_resource(
    resource: TableCompaction, operation_id: str, record: BatchesRecord, number: int
) -> TableCompaction:
    """The batch of this number. What decides when an operation starts and how long its resource
    stays is left to the operation that it belongs to."""
    own: dict[str, Any] = {name: getattr(resource.spec, name) for name in _shared()}
    spec = BatchSpec.model_construct(
        **own,
        batch=BatchOf(operation=operation_id, number=number),
        part=record.part(number),
    )
    return resource.model_copy(update={"spec": spec})


def _shared() -> frozenset[str]:
    own = frozenset(TableCompactionSpec.model_fields)
    return own - {"suspend", "dry_run", "ttl_seconds_after_finished", "depends_on"}


# The batches of an operation: stored once, so that all of its processes cut it alike.
#
# Says nothing about which of them are done: that is in the log and in their own records.


class StepOfRun(Format):
    """One step of the loop that found a run; see `planning.plans.MergeStep`."""

    inputs: tuple[str, ...]
    output: str
    level: int


class RunOfBatches(Format):
    """A run as it was planned. `steps` is empty if it is in more than one batch."""

    level: int
    major: bool = False
    steps: tuple[StepOfRun, ...] = ()


class BinOfBatch(Format):
    """A bin: the logged paths of its files, in order, and the number of its run."""

    run: int
    files: tuple[str, ...]


class BatchOfBins(Format):
    """What one commit compacts. `bytes` is the size of its files when they were planned."""

    bins: tuple[BinOfBatch, ...]
    bytes: int

    @property
    def files(self) -> int:
        return sum(len(each.files) for each in self.bins)


class BatchesRecord(Format):
    """batches.json: put once. `summary` is the plan of all batches together, `most_bytes` the limit
    that they were cut at."""

    operation_id: str
    summary: Plan
    most_bytes: int
    runs: tuple[RunOfBatches, ...]
    batches: tuple[BatchOfBins, ...]

    def part(self, number: int) -> PartOfWork:
        """The place of the batch with this number (from 1)."""
        before = self.batches[: number - 1]
        return PartOfWork(
            number=number,
            of=len(self.batches),
            files_before=sum(each.files for each in before),
            bytes_before=sum(each.bytes for each in before),
            files=sum(each.files for each in self.batches),
            bytes=sum(each.bytes for each in self.batches),
        )


def load(store: Store, operation_id: str) -> BatchesRecord | None:
    """The batches of an operation; None if it has none (yet). Raises: ManifestInvalid,
    StorageError."""
    path = attempt_files.batches(operation_id)
    return attempt_files.load(store, path, BatchesRecord, operation_id=operation_id)


def fixed(store: Store, operation_id: str) -> BatchesRecord:
    """The batches of an operation that has begun them. Raises: ManifestInvalid if they are gone,
    StorageError."""
    found = load(store, operation_id)
    if found is None:
        raise ManifestInvalid(
            "the record of the batches of a compaction is gone",
            resource=attempt_files.batches(operation_id),
            found="no such file",
            expected="the batches that it was cut into",
            remedy="Find out what else writes to the table's _tandem folder",
        )
    return found


# Cuts the plan of a compaction into batches, and plans one of them on a later version.
#
# Pure. Never cuts a bin, nor a run that fits into a batch.


@dataclass(frozen=True, slots=True)
class _Unit:
    """Bins that are committed together."""

    bins: tuple[BinOfBatch, ...]
    bytes: int


def batches_of(
    runs: Sequence[SegmentRun], most_bytes: int, *, whole_runs: bool
) -> tuple[BatchOfBins, ...]:
    """The runs in batches of at most `most_bytes` of input, in order. A run that is larger is cut
    between its bins, unless `whole_runs`; what cannot be cut is a batch by itself."""
    groups: list[list[_Unit]] = [[]]
    total = 0
    for unit in _units(runs, most_bytes, whole_runs=whole_runs):
        if groups[-1] and total + unit.bytes > most_bytes:
            groups.append([])
            total = 0
        groups[-1].append(unit)
        total += unit.bytes
    return tuple(
        BatchOfBins(
            bins=tuple(bin_ for unit in group for bin_ in unit.bins),
            bytes=sum(unit.bytes for unit in group),
        )
        for group in groups
    )


def _units(runs: Sequence[SegmentRun], most_bytes: int, *, whole_runs: bool) -> list[_Unit]:
    units: list[_Unit] = []
    for number, run in enumerate(runs):
        bins = [
            _Unit(
                (BinOfBatch(run=number, files=tuple(file.path for file in each.files)),),
                sum(file.size for file in each.files),
            )
            for each in run.bins
        ]
        size = sum(each.bytes for each in bins)
        if whole_runs or size <= most_bytes:
            units.append(_Unit(tuple(bin_ for each in bins for bin_ in each.bins), size))
        else:
            units += bins
    return units


def runs_of(runs: Sequence[SegmentRun], batches: Sequence[BatchOfBins]) -> tuple[RunOfBatches, ...]:
    """What the batches keep of the runs."""
    parts = [0] * len(runs)
    for batch in batches:
        for number in {each.run for each in batch.bins}:
            parts[number] += 1
    return tuple(
        RunOfBatches(
            level=run.level,
            major=run.major,
            steps=tuple(
                StepOfRun(inputs=step.inputs, output=step.output, level=step.level)
                for step in (run.steps if parts[number] == 1 else ())
            ),
        )
        for number, run in enumerate(runs)
    )


def runs_at(
    record: BatchesRecord,
    number: int,
    live: Segments,
    target_file_size: int,
    useful: Callable[[Bin], bool],
) -> tuple[SegmentRun, ...]:
    """The runs of one batch on a version whose segments are `live`. Files that are gone are left
    out, and bins that have lost files if rewriting the rest is not `useful`."""
    batch = record.batches[number - 1]
    wanted = frozenset(path for each in batch.bins for path in each.files)
    files = live.files
    files = files.where(files.among(wanted))
    place = dict(zip(files.columns.paths_at(files.places), files.places.tolist(), strict=True))
    found: dict[int, list[Bin]] = {}
    for each in batch.bins:
        places = [place[path] for path in each.files if path in place]
        if not places:
            continue
        chosen = SegmentFiles(files.columns, np.array(places, np.int64))
        bin_ = bin_of(chosen, target_file_size)
        if len(places) == len(each.files) or useful(bin_):
            found.setdefault(each.run, []).append(bin_)
    return tuple(_run(live, tuple(bins), record.runs[run]) for run, bins in sorted(found.items()))


def _run(live: Segments, bins: tuple[Bin, ...], planned: RunOfBatches) -> SegmentRun:
    taken = SegmentFiles.of(each.files for each in bins)
    assert taken is not None, "a run has a bin, and a bin a file"
    run = build_run(live, taken, bins, level=planned.level, major=planned.major)
    steps = tuple(MergeStep(step.inputs, step.output, step.level) for step in planned.steps)
    return replace(run, steps=steps) if steps else run


# Which batch of an operation is next, and what those before it did.
#
# Reads the log and the records of the batches; writes nothing.


def committed(snapshot: Snapshot, operation_id: str) -> int:
    """The number of the last batch that a version shows as committed; 0 for none."""
    found = snapshot.txns.get(attempt_files.batches_app(operation_id))
    return found.version if found is not None else 0


def has_ended(snapshot: Snapshot, operation_id: str) -> bool:
    """Whether a version shows that the operation has ended, so that no batch may follow."""
    markers = commit_actions.txn_markers(snapshot, operation_id)
    return markers.succeeded > 0 or markers.closed


class Batches:
    """The batches of one operation, as one of its processes performs them."""

    def __init__(
        self, resource: TableCompaction, table: Table, identity: Identity, record: BatchesRecord
    ) -> None:
        self.record = record
        self._resource = resource
        self._table = table
        self._identity = identity
        self._finished = 0

    @property
    def count(self) -> int:
        return len(self.record.batches)

    def resource(self, number: int) -> TableCompaction:
        return batch_resource(self._resource, self._identity.operation_id, self.record, number)

    def next(self, snapshot: Snapshot) -> int:
        """The first batch that is left to do: the last one is the operation itself. One that is
        committed but whose process died before it had recorded that is finished first, once.

        Raises: ManifestInvalid, StorageError.
        """
        done = committed(snapshot, self._identity.operation_id)
        if done > self._finished:
            self._finished = done
            if not is_recorded(self._table, self._id(snapshot, done)):
                return done
        number = done + 1
        while number < self.count and self._is_over(snapshot, number):
            number += 1
        return number

    def left(self, snapshot: Snapshot) -> int:
        """The batch that an earlier process has begun and not ended; 0 for none.

        Raises: ManifestInvalid, StorageError.
        """
        number = self.next(snapshot)
        if number >= self.count:
            return 0
        id_ = self._id(snapshot, number)
        begun = has_begun(self._table, snapshot, id_) and not is_recorded(self._table, id_)
        return number if begun else 0

    def results(self, snapshot: Snapshot) -> tuple[OperationResult, ...]:
        """What the batches before the last one have committed, as far as it is still known.

        Raises: ManifestInvalid, StorageError.
        """
        found = []
        for number in range(1, self.count):
            id_ = self._id(snapshot, number)
            record = self._recorded(id_)
            result = record.result if record is not None else None
            if result is None and commit_actions.txn_markers(snapshot, id_).succeeded:
                log, latest = self._table.log, snapshot.version
                result = commit_actions.result_in(commit_actions.find_success(log, id_, latest))
            if result is not None and result.version is not None:
                found.append(result)
        return tuple(found)

    def _is_over(self, snapshot: Snapshot, number: int) -> bool:
        """Whether a batch has ended without a commit, since nothing was left of it. One that has
        failed is not over: the operation has to fail with it."""
        record = self._recorded(self._id(snapshot, number))
        return record is not None and record.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED)

    def _recorded(self, id_: str) -> ResultRecord | None:
        return attempt_files.load(
            self._table.store, attempt_files.result(id_), ResultRecord, operation_id=id_
        )

    def _id(self, snapshot: Snapshot, number: int) -> str:
        found = identify(self.resource(number), self._table, snapshot, again=False)
        return found.operation_id


def left_batch(
    resource: TableCompaction, table: Table, identity: Identity, snapshot: Snapshot
) -> TableCompaction | None:
    """The batch that an earlier process of a compaction has begun and not ended; None if there is
    none. Raises: ManifestInvalid, StorageError."""
    if batch_of(resource) is not None:
        return None
    record = load(table.store, identity.operation_id)
    if record is None:
        return None
    batches = Batches(resource, table, identity, record)
    number = batches.left(snapshot)
    return batches.resource(number) if number else None
