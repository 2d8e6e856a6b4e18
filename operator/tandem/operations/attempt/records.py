"""The small files of an operation, as persisted formats, and how they are read and written.

A record that is truncated, of another format version or of another operation is refused as a
whole: no field of an invalid record is used.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import Field, ValidationError

from tandem.delta.log.snapshot import Snapshot
from tandem.errors import AlreadyExists, ManifestInvalid, ObjectNotFound
from tandem.intervals import IntervalSet
from tandem.jobs.formats import Format
from tandem.locks.rules import LockResources
from tandem.operations.attempt import paths
from tandem.spec.status import OperationResult, Plan
from tandem.storage.store import Store


class OperationRecord(Format):
    """operation.json: the identity, put if absent. `table_id` is that of the table on which the
    operation began ("" in older records)."""

    operation_id: str
    kind: str
    namespace: str
    name: str
    spec_hash: str
    spec: dict[str, Any]
    run: int = 1
    table_id: str = ""


class AttemptRecord(Format):
    """attempt.json: the process that claimed the attempt, put if absent. `token` distinguishes
    two claims of the same process."""

    operation_id: str
    attempt: int
    host: str
    pid: int
    started: str
    token: str
    claimed_ms: int


class RunRecord(Format):
    """One run of a compaction: `segments` (the inputs, in order) become one new segment.

    `first` and `level` decide its name in the commit loop; `sequence` is the first input's
    place in the order, `chunk` the interval that the output covers, `steps` the exact lists of
    inputs of the loop that chose them."""

    segments: tuple[str, ...]
    first: str
    level: int
    sequence: int
    chunk: str = ""
    parents: str = ""
    major: bool = False
    steps: tuple[str, ...] = ()


class ProtocolRecord(Format):
    """The table's protocol as it was read."""

    min_reader: int
    min_writer: int
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()


class LocksRecord(Format):
    """What an attempt locks. `intervals` are pairs of milliseconds since 1970, null for an open
    side."""

    names: tuple[str, ...] = ()
    intervals: tuple[tuple[int | None, int | None], ...] = ()

    @classmethod
    def of(cls, locks: LockResources) -> LocksRecord:
        pairs = tuple((start, end) for start, end in locks.intervals.to_json())
        return cls(names=locks.names, intervals=pairs)

    @property
    def resources(self) -> LockResources:
        return LockResources(self.names, IntervalSet.from_json(self.intervals))


class PlanRecord(Format):
    """plan.json: the plan of an attempt; from then on its inputs are pinned.

    The inputs themselves, with the rows that were deleted in them, are in job.json.
    `statement` holds canonical texts; `locks` is null in records of earlier versions."""

    operation_id: str
    attempt: int
    kind: str
    read_version: int
    table_id: str
    protocol: ProtocolRecord
    summary: Plan
    runs: tuple[RunRecord, ...] = ()
    statement: dict[str, Any] = Field(default_factory=dict)
    started_ms: int = 0
    locks: LocksRecord | None = None


class EndedRecord(Format):
    """ended.json: why an attempt ended without a commit, and whether it counts as a failure.
    `token` is that of the session that ended it: its own, or one that declared it dead. `phase`
    is how the operation ended, if it ended before it started ("": it did not): then the attempt
    has written nothing but its claim, and no other attempt may follow."""

    operation_id: str
    attempt: int
    reason: str
    message: str
    counted: bool
    token: str = ""
    phase: str = ""


class ResultRecord(Format):
    """result.json: what a later run of the same resource reports."""

    operation_id: str
    attempt: int
    phase: str
    reason: str
    message: str
    result: OperationResult | None = None
    plan: Plan | None = None
    started_ms: int = 0
    ended_ms: int = 0


_F = TypeVar("_F", bound=Format)


def encode(record: Format) -> bytes:
    return record.model_dump_json(by_alias=True).encode()


def decode(data: bytes, model: type[_F], path: str, **expected: object) -> _F:
    """Decode a record. `expected` are fields that must have these values.

    Raises: ManifestInvalid.
    """
    try:
        record = model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ManifestInvalid(
            "this file is truncated, damaged, or written by another version of Tandem",
            resource=path,
            field=".".join(str(part) for part in first["loc"]),
            found=first["msg"],
            expected=f"a {model.__name__} of format version 1",
        ) from error
    for name, value in expected.items():
        if getattr(record, name) != value:
            raise ManifestInvalid(
                "this file belongs to another operation",
                resource=path,
                field=name,
                found=getattr(record, name),
                expected=str(value),
            )
    return record


def load(store: Store, path: str, model: type[_F], **expected: object) -> _F | None:
    """The record at `path`, None if there is none. Raises: ManifestInvalid, StorageError."""
    try:
        data = store.get(path)
    except ObjectNotFound:
        return None
    return decode(data, model, path, **expected)


def put_once(store: Store, path: str, record: Format) -> bool:
    """Write the record if there is none; False if there was one. Raises: StorageError."""
    try:
        store.put_if_absent(path, encode(record))
    except AlreadyExists:
        return False
    return True


# The cutoff of a replace: the version that counts as its start, for all of its attempts (I-54).
#
# With a cutoff that moves at a retry, luck decides whether late rows survive (Druid 15085).


class CutoffRecord(Format):
    """cutoff.json: put once, by whichever process was granted the locks first."""

    operation_id: str
    table_id: str
    version: int


def fix_cutoff(store: Store, operation_id: str, attempt: int, snapshot: Snapshot) -> None:
    """Make this version the cutoff, unless there is one. To be called before the attempt's plan is
    persisted. Raises: ManifestInvalid if an earlier attempt had one that is gone, StorageError."""
    path = paths.cutoff(operation_id)
    if any(_has_plan(store, operation_id, earlier) for earlier in range(1, attempt)):
        fixed(store, operation_id)
        return
    record = CutoffRecord(
        operation_id=operation_id, table_id=snapshot.metadata.id, version=snapshot.version
    )
    put_once(store, path, record)


def _has_plan(store: Store, operation_id: str, attempt: int) -> bool:
    try:
        store.head(paths.plan(operation_id, attempt))
    except ObjectNotFound:
        return False
    return True


def fixed(store: Store, operation_id: str) -> int:
    """The cutoff of an operation that has a plan. Raises: ManifestInvalid if it is gone."""
    path = paths.cutoff(operation_id)
    found = load(store, path, CutoffRecord, operation_id=operation_id)
    if found is None:
        raise ManifestInvalid(
            "the record of the start of a replace is gone",
            resource=path,
            found="no such file",
            expected="the version that counts as its start",
            remedy="Find out what else writes to the table's _tandem folder",
        )
    return found.version


def cutoff_of(store: Store, operation_id: str) -> int | None:
    """The version that counts as the start of a replace, fixed or named by its spec; None if there
    is none (yet). Raises: ManifestInvalid."""
    path = paths.cutoff(operation_id)
    found = load(store, path, CutoffRecord, operation_id=operation_id)
    if found is not None:
        return found.version
    operation = load(store, paths.identity(operation_id), OperationRecord)
    named = None if operation is None else operation.spec.get("startVersion")
    return named if isinstance(named, int) else None
