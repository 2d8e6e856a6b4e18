"""Deletes files of attempts that no commit refers to, and never any others.

The log distinguishes two cases. An attempt that can never commit (it is abandoned, the operation is
closed, or another attempt has committed) loses all of its files. Of a committed attempt, those
files are deleted that its commit does not name: a duplicate of the job wrote them, or they belong
to a round that lost the race for its version.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tandem.delta import dv
from tandem.delta.actions import Commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.jobs.formats import JobSpec, LogReads
from tandem.operations import attempt_files
from tandem.operations.attempt_files import PlanRecord
from tandem.storage.store import Store, side_by_side
from tandem.timeline.segments import TAG_ROW_MAP

# What unfinished operations still need, which must not be cleaned (invariant 6).
#
# An operation is unfinished while it has a persisted plan of an attempt that has not ended, and no
# result. Operations of dead processes count, too: their next run may adopt their files. One that
# died between its commit and its result needs nothing any more, which only the log shows.


@dataclass(frozen=True, slots=True)
class Pin:
    """One unfinished attempt: the version that it reads, and its operation."""

    operation_id: str
    attempt: int
    kind: str
    read_version: int


def unfinished(store: Store) -> tuple[Pin, ...]:
    """All pins of a table. One listing, and a read per unfinished attempt.

    Raises: ManifestInvalid if a plan is damaged: then nothing may be cleaned.
    """
    plans: dict[str, set[int]] = defaultdict(set)
    ended: dict[str, set[int]] = defaultdict(set)
    finished: set[str] = set()
    for meta in store.list(attempt_files.operations()):
        operation_id, _, rest = meta.path.removeprefix(attempt_files.operations() + "/").partition(
            "/"
        )
        if rest == "result.json":
            finished.add(operation_id)
            continue
        split = attempt_files.split_attempt(meta.path)
        if split is not None and split[1] == "plan.json":
            plans[operation_id].add(split[0])
        elif split is not None and split[1] == "ended.json":
            ended[operation_id].add(split[0])
    pins = []
    for operation_id in sorted(plans.keys() - finished):
        for attempt in sorted(plans[operation_id] - ended[operation_id]):
            plan = attempt_files.load(store, attempt_files.plan(operation_id, attempt), PlanRecord)
            if plan is not None:
                pins.append(Pin(operation_id, attempt, plan.kind, plan.read_version))
    return tuple(pins)


def uncommitted(found: tuple[Pin, ...], latest: Snapshot) -> tuple[Pin, ...]:
    """Those of the pins that may yet commit after a version of their table: it shows neither a
    success of the operation nor that the attempt is dead. Pure."""

    def has_ended(pin: Pin) -> bool:
        abandoned = latest.txns.get(attempt_files.abandoned_app(pin.operation_id))
        return (
            attempt_files.success_app(pin.operation_id) in latest.txns
            or attempt_files.closed_app(pin.operation_id) in latest.txns
            or (abandoned is not None and abandoned.version >= pin.attempt)
        )

    return tuple(pin for pin in found if not has_ended(pin))


def log_reads(store: Store, log: DeltaLog) -> tuple[LogReads, ...]:
    """What unfinished operations on a table read of the log beside it.

    Raises: ManifestInvalid, StorageError.
    """
    found = unfinished(store)
    if not found:
        return ()
    reads = (reads_of_log(store, pin) for pin in uncommitted(found, log.snapshot()))
    return tuple(each for each in reads if each is not None)


def reads_of_log(store: Store, pin: Pin) -> LogReads | None:
    """What a pinned attempt reads of the log beside its table. Raises: ManifestInvalid,
    StorageError."""
    job = attempt_files.load(store, attempt_files.job(pin.operation_id, pin.attempt), JobSpec)
    return None if job is None else job.job.log_reads


def inputs(store: Store, pin: Pin) -> frozenset[str]:
    """The logged paths that a pinned attempt reads. Raises: ManifestInvalid, StorageError."""
    job = attempt_files.load(store, attempt_files.job(pin.operation_id, pin.attempt), JobSpec)
    reads = () if job is None else job.job.reads
    return frozenset(file.logged_path for file in reads)


def clean_dead(
    store: Store, operation_id: str, attempts: Iterable[int], *, parallel: int = 1
) -> None:
    """Delete everything that these attempts wrote, except the records of the claim and of the end.
    The log must show that none of them has committed or ever can. `parallel`: so many requests are
    made at once."""
    for attempt in attempts:
        folders = (
            attempt_files.data(operation_id, attempt),
            attempt_files.deletion_vectors(operation_id, attempt),
            attempt_files.change_files(operation_id, attempt),
            attempt_files.facts(operation_id, attempt),
            attempt_files.rounds(operation_id, attempt),
        )
        work: list[Callable[[], object]] = [partial(store.delete_prefix, each) for each in folders]
        work.append(partial(_delete_row_map, store, attempt_files.row_map(operation_id, attempt)))
        side_by_side(work, parallel)


def _delete_row_map(store: Store, row_map: str) -> None:
    store.delete([row_map])
    store.delete_prefix(row_map)  # temporary files of a killed writer, never the map itself


def clean_unused(
    store: Store, operation_id: str, attempt: int, committed: Commit, *, parallel: int = 1
) -> None:
    """Delete files that the attempt wrote and `committed`, its commit, does not refer to.
    `parallel`: so many requests are made at once."""
    used = {add.path for add in committed.adds}
    used |= {file.path for file in committed.change_files}
    used |= {add.tags[TAG_ROW_MAP] for add in committed.adds if TAG_ROW_MAP in add.tags}
    used |= {
        dv.file_path(add.deletion_vector)
        for add in committed.adds
        if add.deletion_vector is not None and add.deletion_vector.storage == "u"
    }
    folders = (
        attempt_files.data(operation_id, attempt),
        attempt_files.deletion_vectors(operation_id, attempt),
        attempt_files.change_files(operation_id, attempt),
        attempt_files.rounds(operation_id, attempt),
    )
    work: list[Callable[[], object]] = [
        partial(store.delete_prefix, folder, keep=used) for folder in folders
    ]
    row_map = attempt_files.row_map(operation_id, attempt)
    if row_map in used:
        work.append(partial(store.delete_prefix, row_map))
    else:
        work.append(partial(_delete_row_map, store, row_map))
    side_by_side(work, parallel)
