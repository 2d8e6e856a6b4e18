"""The batches of an operation: stored once, so that all of its processes cut it alike.

Says nothing about which of them are done: that is in the log and in their own records.
"""

from __future__ import annotations

from tandem.errors import ManifestInvalid
from tandem.jobs.formats import Format
from tandem.operations.attempt import paths, records
from tandem.operations.machine.parts import PartOfWork
from tandem.spec.status import Plan
from tandem.storage.store import Store


class StepOfRun(Format):
    """One step of the loop that found a run; see `planning.model.MergeStep`."""

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
    path = paths.batches(operation_id)
    return records.load(store, path, BatchesRecord, operation_id=operation_id)


def fixed(store: Store, operation_id: str) -> BatchesRecord:
    """The batches of an operation that has begun them. Raises: ManifestInvalid if they are gone,
    StorageError."""
    found = load(store, operation_id)
    if found is None:
        raise ManifestInvalid(
            "the record of the batches of a compaction is gone",
            resource=paths.batches(operation_id),
            found="no such file",
            expected="the batches that it was cut into",
            remedy="Find out what else writes to the table's _tandem folder",
        )
    return found
