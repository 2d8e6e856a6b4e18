"""Every error that Tandem raises on purpose, and the reasons it reports.

One flat file, so that a reader sees at a glance what can go wrong. An error names the
resource, the field, what was found, what was expected and what to do; `Reason` is the one
enum used in conditions, events, logs and exit messages (`docs/reasons.md` is generated from
it). This module must not import anything else of Tandem.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import StrEnum


class Reason(StrEnum):
    """Why an operation is where it is. The values are API: rename none."""

    # Progress.
    PENDING = "Pending"
    PLANNED = "Planned"
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    WAITING_FOR_LOCK = "WaitingForLock"
    JOB_REFUSED = "JobRefused"
    RUNNING = "Running"
    RECONCILING = "Reconciling"
    RETRYING = "Retrying"
    YIELDED = "Yielded"
    SUSPENDED = "Suspended"
    # Success, or nothing to do.
    COMMITTED = "Committed"
    ADOPTED = "Adopted"
    CREATED = "Created"
    SERVING = "Serving"
    DRY_RUN = "DryRun"
    NOTHING_TO_DO = "NothingToDo"
    SUPERSEDED = "Superseded"
    # The input is wrong.
    INVALID_SPEC = "InvalidSpec"
    INVALID_STATEMENT = "InvalidStatement"
    REFERENCE_NOT_FOUND = "ReferenceNotFound"
    LOCATION_NOT_ALLOWED = "LocationNotAllowed"
    UNKNOWN_SEGMENT = "UnknownSegment"
    # The table or its store.
    TABLE_NOT_FOUND = "TableNotFound"
    CORRUPT_LOG = "CorruptLog"
    CORRUPT_DELETION_VECTOR = "CorruptDeletionVector"
    DATA_FILE_MISSING = "DataFileMissing"
    UNSUPPORTED_FEATURE = "UnsupportedFeature"
    DELETION_VECTORS_DISABLED = "DeletionVectorsDisabled"
    ROW_TRACKING_INCOMPLETE = "RowTrackingIncomplete"
    VERSION_NOT_FOUND = "VersionNotFound"
    STORE_UNSUITABLE = "StoreUnsuitable"
    ACCESS_DENIED = "AccessDenied"
    CATALOG_FORBIDS = "CatalogForbids"
    STORAGE_FULL = "StorageFull"
    STORAGE_ERROR = "StorageError"
    TOO_LARGE = "TooLarge"
    # The log of a merge-on-read table.
    NOT_MERGE_ON_READ = "NotMergeOnRead"
    DUPLICATE_KEYS = "DuplicateKeys"
    BASE_REPLACED = "BaseReplaced"
    BASE_HISTORY_GAP = "BaseHistoryGap"
    # Services that are needed and do not answer.
    LOCKS_UNAVAILABLE = "LocksUnavailable"
    CLUSTER_UNAVAILABLE = "ClusterUnavailable"
    # The job.
    SPARK_MISSING = "SparkMissing"
    JOB_FAILED = "JobFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    JOB_NOT_STARTED = "JobNotStarted"
    SUBMISSION_FAILED = "SubmissionFailed"
    DRIVER_EVICTED = "DriverEvicted"
    JOB_VANISHED = "JobVanished"
    STATEMENT_FAILED = "StatementFailed"
    CONSTRAINT_VIOLATED = "ConstraintViolated"
    SOURCE_CHANGED = "SourceChanged"
    SOURCE_UNREADABLE = "SourceUnreadable"
    MANIFEST_INVALID = "ManifestInvalid"
    OUTPUT_MISSING = "OutputMissing"
    # The end of a race.
    CONFLICT = "Conflict"
    TABLE_REPLACED = "TableReplaced"
    COUNT_MISMATCH = "CountMismatch"
    ABANDONED = "Abandoned"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    ALREADY_RUNNING = "AlreadyRunning"
    INTERRUPTED = "Interrupted"
    CANCELLED = "Cancelled"
    INTERNAL_ERROR = "InternalError"


class TandemError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: one sentence that says what happened.
        resource: what it concerns: `TableCompaction/nightly`, a table location or a path.
        field: the field of the resource or of the file, dotted; "" where none applies.
        found: the offending value, shortened by the raiser where long.
        expected: what would have been right.
        remedy: what the reader can do about it.
    """

    reason: Reason = Reason.INTERNAL_ERROR

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        field: str = "",
        found: object = "",
        expected: str = "",
        remedy: str = "",
    ) -> None:
        self.message = message
        self.resource = resource
        self.field = field
        self.found = str(found)
        self.expected = expected
        self.remedy = remedy
        super().__init__(message)

    def __str__(self) -> str:
        where = ".".join(part for part in (self.resource, self.field) if part)
        text = f"{where}: {self.message}" if where else self.message
        details = [
            f"{name}: {value}"
            for name, value in (("found", self.found), ("expected", self.expected))
            if value
        ]
        if details:
            text += f" ({'; '.join(details)})"
        return f"{text}. {self.remedy}" if self.remedy else text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark workers); keyword arguments need help to do so.
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(
    cls: type[TandemError], args: tuple[str, ...], attributes: dict[str, object]
) -> TandemError:
    error = cls.__new__(cls)
    Exception.__init__(error, *args)
    error.__dict__.update(attributes)
    return error


class InvalidSpec(TandemError):
    reason = Reason.INVALID_SPEC


class InvalidStatement(TandemError):
    """A `where` or `set` expression that we do not accept; `position` points into its text.

    Args:
        position: line and column, both from 1, where there is a text to point into.
        snippet: the line in question and below it a caret under the place.
    """

    reason = Reason.INVALID_STATEMENT

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        field: str = "",
        found: object = "",
        expected: str = "",
        remedy: str = "",
        position: tuple[int, int] | None = None,
        snippet: str = "",
    ) -> None:
        super().__init__(
            message, resource=resource, field=field, found=found, expected=expected, remedy=remedy
        )
        self.position = position
        self.snippet = snippet

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}\n{self.snippet}" if self.snippet else text


class ReferenceNotFound(TandemError):
    reason = Reason.REFERENCE_NOT_FOUND


class LocationNotAllowed(TandemError):
    reason = Reason.LOCATION_NOT_ALLOWED


class UnknownSegment(TandemError):
    reason = Reason.UNKNOWN_SEGMENT


class TableNotFound(TandemError):
    reason = Reason.TABLE_NOT_FOUND


class CorruptLog(TandemError):
    reason = Reason.CORRUPT_LOG


class CorruptDeletionVector(TandemError):
    reason = Reason.CORRUPT_DELETION_VECTOR


class DataFileMissing(TandemError):
    reason = Reason.DATA_FILE_MISSING


class UnsupportedFeature(TandemError):
    reason = Reason.UNSUPPORTED_FEATURE


class DeletionVectorsDisabled(TandemError):
    reason = Reason.DELETION_VECTORS_DISABLED


class RowTrackingIncomplete(TandemError):
    """Row tracking is enabled, and a file has no row ids."""

    reason = Reason.ROW_TRACKING_INCOMPLETE


class VersionNotFound(TandemError):
    reason = Reason.VERSION_NOT_FOUND


class LogGap(VersionNotFound):
    """Commits that were asked for are no longer in the log; those from `first_available` are."""

    def __init__(self, message: str, *, first_available: int, **details: object) -> None:
        super().__init__(message, **details)  # type: ignore[arg-type]
        self.first_available = first_available


class NotMergeOnRead(TandemError):
    """The table has no log of blocks."""

    reason = Reason.NOT_MERGE_ON_READ


class DuplicateKeys(TandemError):
    """Several rows of a source have the same key, and nothing says which of them wins."""

    reason = Reason.DUPLICATE_KEYS


class BaseReplaced(TandemError):
    """What another writer did to the base table of a log is not certain."""

    reason = Reason.BASE_REPLACED


class BaseHistoryGap(TandemError):
    """Commits of the base table are gone that decide which records of its log are valid."""

    reason = Reason.BASE_HISTORY_GAP


class StoreUnsuitable(TandemError):
    reason = Reason.STORE_UNSUITABLE


class StorageError(TandemError):
    """The store failed in a way that a retry may or may not cure."""

    reason = Reason.STORAGE_ERROR


class BucketNotFound(StorageError):
    """There is no bucket or container of this name."""


class DataFileEncrypted(StorageError):
    """A data file that the store has and Tandem has no keys for."""

    reason = Reason.UNSUPPORTED_FEATURE


class AccessDenied(StorageError):
    reason = Reason.ACCESS_DENIED


class StorageFull(StorageError):
    reason = Reason.STORAGE_FULL


class TooLarge(TandemError):
    """Reading a table takes more memory than a process may take."""

    reason = Reason.TOO_LARGE


class ObjectNotFound(StorageError):
    """No object at a path; callers turn it into what the absence means to them."""


class AlreadyExists(StorageError):
    """Put-if-absent found an object: another writer was first."""


class OutcomeUnknown(StorageError):
    """A put may or may not have happened (Z20): the caller must look, never guess."""


class CommitRefused(StorageError):
    """A catalog did not ratify a commit; why is found by reading the table's state there."""


class BacklogFull(StorageError):
    """A catalog ratifies no more commits before those that it has are published."""


class CatalogForbids(AccessDenied):
    """The catalog of a table does not permit this kind of maintenance to us."""

    reason = Reason.CATALOG_FORBIDS


class Unreachable(TandemError):
    """A service other than the table's store does not answer. Operations wait for it."""


class LocksUnavailable(Unreachable):
    """The lock store cannot be reached: nothing is known about locks until it can."""

    reason = Reason.LOCKS_UNAVAILABLE


class ClusterUnavailable(Unreachable):
    """The Kubernetes API did not answer: nothing is known about jobs until it does. What was
    asked may or may not have happened, and may be asked again."""

    reason = Reason.CLUSTER_UNAVAILABLE


class SparkMissing(TandemError):
    reason = Reason.SPARK_MISSING


class JobRefused(TandemError):
    """The cluster takes no job for now: a quota is used up, a right is missing, a webhook or the
    kind is. Operations wait until it does.

    Args:
        certain: the job does not exist. Otherwise an earlier call may have made it.
        reason: one that says more.
    """

    reason = Reason.JOB_REFUSED

    def __init__(
        self,
        message: str,
        *,
        certain: bool = True,
        reason: Reason = Reason.JOB_REFUSED,
        found: object = "",
        expected: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(message, found=found, expected=expected, remedy=remedy)
        self.certain = certain
        self.reason = reason


class JobFailed(TandemError):
    reason = Reason.JOB_FAILED


class OutOfMemory(JobFailed):
    """A driver, an executor or a Python worker needed more memory than it was given."""

    reason = Reason.OUT_OF_MEMORY


class StatementFailed(JobFailed):
    """The statement itself raised on some row (division by zero, overflow, bad cast)."""

    reason = Reason.STATEMENT_FAILED


class ConstraintViolated(StatementFailed):
    """A row with new values breaks a rule of the table: a CHECK constraint, an invariant, NOT
    NULL, or the length of a CHAR or VARCHAR."""

    reason = Reason.CONSTRAINT_VIOLATED


class SourceChanged(TandemError):
    """The source of a merge is not what it was when the operation first read it."""

    reason = Reason.SOURCE_CHANGED


class SourceUnreadable(TandemError):
    """A file of a source is damaged, cut off, or of another format: it stays so however often it
    is read."""

    reason = Reason.SOURCE_UNREADABLE


class ManifestInvalid(TandemError):
    reason = Reason.MANIFEST_INVALID


class RowMapInvalid(ManifestInvalid):
    """A row map that is cut off, of another version or rewrite, or contradicts itself.

    Before our own commit the job is done again; a published map that is invalid counts as no
    map at all (C6b): never a guess where rows went.
    """


class OutputMissing(TandemError):
    reason = Reason.OUTPUT_MISSING


class FactsRefused(TandemError):
    """A footer, a bloom filter, or a file of facts about data files is not what it must be. It is
    not believed, and the caller goes on as if there were none."""

    reason = Reason.STORAGE_ERROR


class CommitConflict(TandemError):
    """Another commit made ours impossible; the message names its version and operation."""

    reason = Reason.CONFLICT


class TableReplaced(CommitConflict):
    reason = Reason.TABLE_REPLACED


class CountMismatch(TandemError):
    """A replay touched another number of rows than it must (I-17): nothing is published."""

    reason = Reason.COUNT_MISMATCH


class AlreadyRunning(TandemError):
    reason = Reason.ALREADY_RUNNING


class Interrupted(TandemError):
    reason = Reason.INTERRUPTED


def closest_name(name: str, known: Sequence[str]) -> str:
    """The known name that was probably meant, or "": for remedies."""
    lowered = {candidate.lower().replace("_", ""): candidate for candidate in known}
    # Same letters in another case or with underscores is the commonest slip of all.
    same = lowered.get(name.lower().replace("_", "").replace("-", ""))
    if same:
        return same
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.6)
    return lowered[close[0]] if close else ""
