"""Every family of metrics that the operator has: its name, meaning, labels, and how many series it
can have at most. Pure data: `tandem.kube.metrics.collectors` makes instruments of it, `make docs` a
page.

The values of every label are listed here, so that this file and `--table-metrics` bound the number
of series, whatever happens in the cluster. No label ever names an operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

from tandem.errors import Reason
from tandem.operations.machine.events import Point, YieldCause
from tandem.spec import common
from tandem.spec.resources import KINDS
from tandem.spec.status import ENDED, AutoCompactionWait, Phase

OTHER: Final = "Other"
"""The label's value for everything that is not listed."""


@dataclass(frozen=True, slots=True)
class MetricLabel:
    name: str
    values: frozenset[str]

    def of(self, value: object) -> str:
        """The value if it is listed, otherwise `OTHER`."""
        text = str(value)
        return text if text in self.values else OTHER


def _label(name: str, values: Iterable[str]) -> MetricLabel:
    return MetricLabel(name, frozenset(values))


KIND = _label("kind", common.OPERATIONS)
PHASE = _label("phase", (*Phase, OTHER))
ACTIVE_PHASE = _label("phase", [p for p in Phase if p not in ENDED and p is not Phase.SUSPENDED])
OUTCOME = _label("outcome", ENDED)
REASON = _label("reason", (*Reason, OTHER))
JOB_REASON = _label("reason", (*Reason, OTHER, "Finished", "Stopped"))
JOB_OUTCOME = _label("outcome", ("Succeeded", "Failed"))
STEP = _label("step", Point)
VERB = _label("verb", ("GET", "LIST", "POST", "PATCH", "DELETE", OTHER))
API_RESOURCE = _label(
    "resource",
    (
        *map(common.plural, KINDS),
        "sparkapplications",
        "pods",
        "secrets",
        "services",
        "events",
        OTHER,
    ),
)
CODE = _label(
    "code",
    (
        *("200", "201", "202", "400", "401", "403", "404", "409", "410", "422", "429"),
        *("500", "502", "503", "504", "Unreachable", OTHER),
    ),
)
CAUSE = _label("cause", YieldCause)
LOCK_REQUEST = _label(
    "request",
    ("acquire", "extend", "wait", "watch", "enter_commit", "leave_commit", "release", "entries"),
)
LOCK_OUTCOME = _label("outcome", ("Answered", "Unavailable", "Failed"))
READY = _label("ready", ("True", "False"))
WHERE = _label("where", ("operation", "table", "index"))
HOLD = _label("hold", AutoCompactionWait)

GOOD_ENDS: Final = frozenset(
    {
        Reason.COMMITTED,
        Reason.ADOPTED,
        Reason.CREATED,
        Reason.SERVING,
        Reason.DRY_RUN,
        Reason.NOTHING_TO_DO,
        Reason.SUPERSEDED,
    }
)
BAD_ENDS: Final = tuple(
    reason
    for reason in Reason
    if reason not in GOOD_ENDS and list(Reason).index(reason) > list(Reason).index(Reason.SUSPENDED)
)
"""The reasons of failed operations and lost jobs. Their counters exist from the start: one that
appeared with its first failure would hide that failure from `increase`."""

MetricType = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """`per_table`: one series (or one per value of `labels`, of which a table has one at a time)
    for each table that has series of its own."""

    name: str
    type: MetricType
    meaning: str
    labels: tuple[MetricLabel, ...] = ()
    buckets: tuple[float, ...] = ()
    per_table: bool = False

    def bound(self, tables: int) -> int:
        """The most series of the family if so many tables have series of their own."""
        if self.per_table:
            return tables
        # A histogram has a series for each bucket and for infinity, its sum and its count.
        return prod(len(each.values) for each in self.labels) * (
            len(self.buckets) + 3 if self.type == "histogram" else 1
        )


def _gauge(name: str, meaning: str, *labels: MetricLabel) -> Family:
    return Family(f"tandem_{name}", "gauge", meaning, labels)


def _counter(name: str, meaning: str, *labels: MetricLabel) -> Family:
    return Family(f"tandem_{name}_total", "counter", meaning, labels)


def _histogram(name: str, meaning: str, buckets: tuple[float, ...], *labels: MetricLabel) -> Family:
    return Family(f"tandem_{name}", "histogram", meaning, labels, buckets)


def _table(name: str, meaning: str, *labels: MetricLabel) -> Family:
    return Family(f"tandem_table_{name}", "gauge", meaning, labels, per_table=True)


_QUICK = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
_LONG = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0)
_WAIT = (0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)

# The operator itself.
BUILD = Family(
    "tandem_build_info",
    "gauge",
    "Always 1; the labels are the versions of Tandem and Python.",
    (_label("version", ("the version",)), _label("python", ("its version",))),
)
LEADER = _gauge("leader", "1 while this process leads, 0 while it waits to.")
LOOP_LAG = _histogram(
    "loop_lag_seconds",
    "How late the event loop runs a callback, measured once a second.",
    (0.005, 0.02, 0.1, 0.5, 1.0, 5.0),
)
INTERNAL_ERRORS = _counter(
    "internal_errors", "Unexpected exceptions, which are bugs. The log says where.", WHERE
)

# Operations.
OPERATIONS = _gauge("operations", "Existing operations, by phase.", KIND, PHASE)
HINDERED = _gauge(
    "operations_hindered",
    "Unfinished operations that wait, by reason.",
    REASON,
)
UNCHANGED = _gauge(
    "operation_longest_unchanged_seconds",
    "How long the longest-standing operation of a phase has shown neither a new phase, a new "
    "attempt nor progress. Counted from when a scrape first saw it so.",
    KIND,
    ACTIVE_PHASE,
)
ENDED_TOTAL = _counter("operations_ended", "Operations that ended.", KIND, OUTCOME, REASON)
DURATION = _histogram(
    "operation_duration_seconds", "From start to end of an operation.", _LONG, KIND, OUTCOME
)
ADOPTED = _counter(
    "operations_adopted", "Attempts taken over from an operator that had ended.", KIND
)
STEP_FAILURES = _counter(
    "step_failures",
    "Steps of operations that failed, whether or not they were retried, by reason.",
    REASON,
)
STEP_DURATION = _histogram(
    "step_duration_seconds", "How long each step of an operation takes.", _QUICK, STEP
)

# Waiting.
LOCK_WAIT = _histogram(
    "lock_wait_seconds", "How long operations waited for their locks; 0 counts too.", _WAIT, KIND
)
LOCK_REQUESTS = _counter("lock_requests", "Calls of the lock store.", LOCK_REQUEST, LOCK_OUTCOME)
LOCK_LATENCY = _histogram(
    "lock_request_duration_seconds",
    "How long a call of the lock store takes; `wait` waits by design.",
    _QUICK,
    LOCK_REQUEST,
)
LOCK_STORE_UP = _gauge("lock_store_up", "1 if the lock store answered the last call, else 0.")

# Committing.
COMMITS = _counter("commits", "Commits put into tables' logs.", KIND)
YIELDS = _counter(
    "yields", "Attempts with `lockMode: Exclusive` that gave way to another writer.", KIND, CAUSE
)
RACES_LOST = _counter(
    "commit_races_lost", "Versions that another writer committed first; we reconcile again.", KIND
)
ROUNDS = _histogram(
    "commit_rounds",
    "How often the latest version was read and reconciled with before a commit.",
    (1.0, 2.0, 3.0, 5.0, 10.0, 20.0),
    KIND,
)
COMMITS_SEEN = _counter(
    "reconciled_commits", "Commits of others between our read version and our commit.", KIND
)
REPLAYED = _counter(
    "reconciled_deletes", "Deleted rows that were moved onto rewritten files.", KIND
)
MASKED = _counter(
    "reconciled_rows_masked", "Rows of our outputs hidden because their input was removed.", KIND
)
EVALUATED = _counter(
    "reconciled_rows_evaluated", "Rows on which a statement was evaluated again.", KIND
)
BINS_CONTENDED = _counter(
    "reconciled_bins_contended",
    "Bins left as they were, because their inputs changed faster than they could be edited.",
    KIND,
)
LATE_ROWS_KEPT = _counter(
    "late_rows_kept", "Rows in scope of a replace that stayed, since they came after its start."
)
FILES_ADDED = _counter("files_added", "Files that commits added.", KIND)
FILES_REMOVED = _counter("files_removed", "Files that commits removed.", KIND)
BYTES_ADDED = _counter("added_bytes", "Bytes of the files that commits added.", KIND)
BYTES_REMOVED = _counter("removed_bytes", "Bytes of the files that commits removed.", KIND)

# Jobs.
JOBS_LIMIT = _gauge("jobs_limit", "Jobs that may run at once (--max-jobs); 0: no limit.")
JOBS_RUNNING = _gauge("jobs_running", "Jobs that have a slot.")
JOBS_WAITING = _gauge("jobs_waiting", "Jobs that wait for a slot.")
JOBS_STARTED = _counter("jobs_started", "Jobs started.", KIND)
JOBS_ENDED = _counter(
    "jobs_ended",
    "Jobs that ended: `Finished` if their result was used, `Stopped` by us, otherwise the reason "
    "why they were lost.",
    KIND,
    JOB_REASON,
)
JOB_DURATION = _histogram(
    "job_duration_seconds",
    "From a job's start to its first result, or to its loss. Without adopted jobs.",
    _LONG,
    KIND,
    JOB_OUTCOME,
)
CHILD_PROCESSES = _gauge(
    "child_processes", "Processes of the operator in which tables are controlled, one a tenant."
)
CHILD_PROCESSES_STARTED = _counter("child_processes_started", "Such processes begun.")
CHILD_PROCESSES_LOST = _counter(
    "child_processes_lost", "Such processes that ended while they controlled tables."
)
SMALL_JOBS = _gauge("small_jobs", "Jobs that they do.")
SMALL_JOBS_LOST = _counter(
    "small_jobs_lost", "Small jobs whose process ended, or ran out of memory."
)

# Cleaning.
CLEANED_FILES = _counter("cleaned_files", "Files that cleaning removed.")
CLEANED_BYTES = _counter("cleaned_bytes", "Their size.")

# The API server.
API_REQUESTS = _counter(
    "api_requests",
    "The operator's own calls of the API server, each try, without those of kopf (watches, "
    "events).",
    VERB,
    API_RESOURCE,
    CODE,
)
API_LATENCY = _histogram(
    "api_request_duration_seconds", "How long each of these tries takes.", _QUICK, VERB
)

# All tables.
TABLES = _gauge("tables", "Tables, by whether they can be used, and the reason.", READY, REASON)
TABLES_SEGMENTS = _gauge("tables_segments", "Live segments of all tables.")
TABLES_FILES = _gauge("tables_files", "Live data files of all tables.")
TABLES_BYTES = _gauge("tables_bytes", "Their size.")
TABLES_SMALL = _gauge("tables_small_files", "Files of less than 32 MiB, of all tables.")
TABLES_DELETED = _gauge("tables_deleted_rows", "Rows hidden by deletion vectors, of all tables.")
TABLES_LOG_BLOCKS = _gauge("tables_log_blocks", "Live blocks of the logs of all tables.")
TABLES_LOG_BYTES = _gauge("tables_log_bytes", "Their size.")
TABLES_LOG_OLDEST = _gauge(
    "tables_log_oldest_unmerged_timestamp_seconds",
    "When the oldest unmerged instant of all tables was appended; absent if all are merged.",
)
TABLES_CHUNKS_DUE = _gauge(
    "tables_chunks_due", "Time chunks that are due for automatic compaction, of all tables."
)
TABLES_SHOWN = _gauge(
    "tables_shown", "Tables that have series of their own: those with the most files."
)

# Index servers.
INDEX_SERVERS = _gauge(
    "index_servers",
    "Index servers that are not suspended, by whether they answer, and the reason.",
    READY,
    REASON,
)
INDEX_TABLES = _gauge("index_servers_tables", "Tables that index servers serve.")
INDEX_BYTES = _gauge("index_servers_held_bytes", "What index servers hold of them.")
INDEX_EVICTIONS = _gauge(
    "index_servers_evictions",
    "How often index servers have dropped a table for others since they started.",
)

# Each table.
TABLE_READY = _table("ready", "1 if the table can be used, else 0.")
TABLE_VERSION = _table("version", "Latest Delta version seen.")
TABLE_SEGMENTS = _table("segments", "Live segments.")
TABLE_FILES = _table("files", "Live data files.")
TABLE_BYTES = _table("bytes", "Their size.")
TABLE_SMALL = _table("small_files", "Files of less than 32 MiB.")
TABLE_DELETED = _table("deleted_rows", "Rows hidden by deletion vectors.")
TABLE_COMPACTED = _table(
    "last_compaction_timestamp_seconds",
    "When a TableCompaction of the table last succeeded; absent if none is known.",
)
TABLE_NEXT = _table(
    "next_compaction_timestamp_seconds",
    "When automatic compaction starts next, if it waits for a time; otherwise absent.",
)
TABLE_CHUNKS_DUE = _table(
    "chunks_due",
    "Time chunks that are due for automatic compaction; absent without compaction.chunks.",
)
TABLE_LOG_BLOCKS = _table("log_blocks", "Live blocks of its log; absent without a log.")
TABLE_LOG_BYTES = _table("log_bytes", "Their size.")
TABLE_LOG_OLDEST = _table(
    "log_oldest_unmerged_timestamp_seconds",
    "When the oldest unmerged instant of its log was appended; absent if all are merged.",
)
TABLE_HOLD = _table(
    "automatic_compaction",
    "1 at the label that says what automatic compaction waits for; absent if it is off.",
    HOLD,
)

FAMILIES: Final[tuple[Family, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Family)
)
"""All of them, in the order above."""

LOOKED_UP: Final = frozenset(
    family for family in FAMILIES if family.type == "gauge" and family not in (BUILD, LOCK_STORE_UP)
)
"""Those that are computed at each scrape (`tandem.kube.state_metrics`); the others are recorded."""


def bound(tables: int) -> int:
    """The most series of all families together."""
    return sum(family.bound(tables) for family in FAMILIES)
