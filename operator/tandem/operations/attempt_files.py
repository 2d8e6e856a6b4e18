"""The files of an operation: their paths, relative to the table, and the small ones as persisted
formats.

    _tandem/operations/<id>/operation.json                  its identity
    _tandem/operations/<id>/result.json                     how it ended
    _tandem/operations/<id>/ending.json                     how it is about to end in failure
    _tandem/operations/<id>/source.json                     what a merge reads
    _tandem/operations/<id>/cutoff.json                     the version that a replace starts from
    _tandem/operations/<id>/batches.json                    how a compaction is cut into commits
    _tandem/operations/<id>/attempts/<n>/attempt.json       who claimed the attempt
    _tandem/operations/<id>/attempts/<n>/{plan,job}.json    its frozen plan
    _tandem/operations/<id>/attempts/<n>/progress.json      how far its job is
    _tandem/operations/<id>/attempts/<n>/done.json          its job serves no more rounds
    _tandem/operations/<id>/attempts/<n>/ended.json         why it ended without a commit
    _tandem/operations/<id>/attempts/<n>/rounds/<k>/…       the job's requests and results
    _tandem/rowmaps/<id>-<n>.rowmap                         where its rows went
    _tandem/dv/<id>-<n>/…                                   deletion vectors of its commit
    _change_data/tandem-<id>-<n>/…                          change files of its commit
    _tandem/holds/…                                         holds of readers
    _tandem/index/facts/<id>-<n>/…                          facts of its data files, for the index
    _tandem/index/base/…                                    files of a version, for the index
    <id>-<n>/…                                              data files

All files that only one attempt writes have paths that only this attempt uses, so that cleaning
deletes whole folders. Vacuum of other engines ignores folders that begin with `_`, but for that of
change files.

A record that is truncated, of another format version or of another operation is refused as a
whole: no field of an invalid record is used.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from tandem.delta import change_feed
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import AlreadyExists, ManifestInvalid, ObjectNotFound
from tandem.intervals import IntervalSet
from tandem.jobs.formats import Format
from tandem.locks.rules import LockResources
from tandem.spec.status import OperationResult, Plan
from tandem.storage.store import Store

ROOT = "_tandem"
FACTS = f"{ROOT}/index/facts"
"""As of `tandem.index.facts.files`, which is not imported here."""
MOST_ATTEMPTS = 999
"""The most attempts of one run of an operation. Numbers are read from file names and from the log,
which other writers can fill with anything: all attempts up to a number are cleaned, and a number
must fit into a `txn`."""
_ATTEMPT = re.compile(r"/attempts/([1-9][0-9]{0,2})/(.+)$")


def operation_id(namespace: str, kind: str, name: str, spec_hash: str, run: int = 1) -> str:
    """The operation id of a resource; the same resource has the same id. `run` counts `--again`."""
    text = "/".join((namespace, kind, name, spec_hash))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digest if run == 1 else f"{digest}r{run}"


def operations() -> str:
    return f"{ROOT}/operations"


def operation(operation_id: str) -> str:
    return f"{operations()}/{operation_id}"


def identity(operation_id: str) -> str:
    return f"{operation(operation_id)}/operation.json"


def ending(operation_id: str) -> str:
    return f"{operation(operation_id)}/ending.json"


def result(operation_id: str) -> str:
    return f"{operation(operation_id)}/result.json"


def cutoff(operation_id: str) -> str:
    return f"{operation(operation_id)}/cutoff.json"


def batches(operation_id: str) -> str:
    return f"{operation(operation_id)}/batches.json"


def attempts(operation_id: str) -> str:
    return f"{operation(operation_id)}/attempts"


def attempt(operation_id: str, attempt_: int) -> str:
    return f"{attempts(operation_id)}/{attempt_}"


def claim(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/attempt.json"


def plan(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/plan.json"


def job(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/job.json"


def progress(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/progress.json"


def done(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/done.json"


def ended(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/ended.json"


def rounds(operation_id: str, attempt_: int) -> str:
    return f"{attempt(operation_id, attempt_)}/rounds"


def round_file(operation_id: str, attempt_: int, round_: int, name: str) -> str:
    """`name` is `request.json`, `result.json` or `failure.json`."""
    return f"{rounds(operation_id, attempt_)}/{round_}/{name}"


def data(operation_id: str, attempt_: int) -> str:
    return f"{operation_id}-{attempt_}"


def deletion_vectors(operation_id: str, attempt_: int) -> str:
    return f"{ROOT}/dv/{operation_id}-{attempt_}"


def change_files(operation_id: str, attempt_: int) -> str:
    return change_feed.folder_of(data(operation_id, attempt_))


def facts(operation_id: str, attempt_: int) -> str:
    return f"{FACTS}/{operation_id}-{attempt_}"


def row_map(operation_id: str, attempt_: int) -> str:
    return f"{ROOT}/rowmaps/{operation_id}-{attempt_}.rowmap"


def job_name(operation_id: str, attempt_: int) -> str:
    """Name of an attempt's Spark application: a DNS label."""
    return f"tandem-{operation_id}-{attempt_}"


def split_attempt(path: str) -> tuple[int, str] | None:
    """The attempt's number, and the rest of the path, of a file below `attempts`."""
    match = _ATTEMPT.search(path)
    return (int(match[1]), match[2]) if match else None


ID = r"([0-9a-f]{16}(?:r[1-9]\d*)?)"
"""A group of regular expressions that an operation id matches."""


def operation_of_app(app_id: str) -> str:
    """The operation that a `txn` application id belongs to; "" for those of other writers."""
    match = re.fullmatch(rf"tandem:{ID}(?::abandoned|:closed|:batches)?", app_id)
    return match[1] if match else ""


def success_app(operation_id: str) -> str:
    """`txn` application id whose version is the attempt that succeeded."""
    return f"tandem:{operation_id}"


def closed_app(operation_id: str) -> str:
    """`txn` application id that says: ended without success, no further attempt may commit."""
    return f"tandem:{operation_id}:closed"


def abandoned_app(operation_id: str) -> str:
    """`txn` application id whose version is the highest abandoned attempt."""
    return f"tandem:{operation_id}:abandoned"


def batches_app(operation_id: str) -> str:
    """`txn` application id whose version is the number of the last batch that was committed."""
    return f"tandem:{operation_id}:batches"


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
    path = cutoff(operation_id)
    if any(_has_plan(store, operation_id, earlier) for earlier in range(1, attempt)):
        fixed(store, operation_id)
        return
    record = CutoffRecord(
        operation_id=operation_id, table_id=snapshot.metadata.id, version=snapshot.version
    )
    put_once(store, path, record)


def _has_plan(store: Store, operation_id: str, attempt: int) -> bool:
    try:
        store.head(plan(operation_id, attempt))
    except ObjectNotFound:
        return False
    return True


def fixed(store: Store, operation_id: str) -> int:
    """The cutoff of an operation that has a plan. Raises: ManifestInvalid if it is gone."""
    path = cutoff(operation_id)
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
    path = cutoff(operation_id)
    found = load(store, path, CutoffRecord, operation_id=operation_id)
    if found is not None:
        return found.version
    operation = load(store, identity(operation_id), OperationRecord)
    named = None if operation is None else operation.spec.get("startVersion")
    return named if isinstance(named, int) else None
