"""The status of an `IndexServer`: where it answers, what it holds, and which tables it serves."""

from __future__ import annotations

from tandem.spec.status.conditions import Condition, StatusModel


class ServerExecutors(StatusModel):
    desired: int = 0
    """How many the spec asks for."""
    ready: int = 0
    """How many answer."""


class ServerCache(StatusModel):
    bytes: int = 0
    """What is held."""
    limit_bytes: int | None = None
    """How much may be held; absent for no limit."""
    evictions: int = 0
    """Number of tables dropped to make room for others since the server started."""


class ServedTable(StatusModel):
    name: str
    """Name of the LakeTable."""
    version: int | None = None
    """The newest version that is held; absent if nothing is."""
    latest: int | None = None
    """The newest version that the operator has seen."""
    files: int | None = None
    """Live data files of that version."""
    shards: int | None = None
    """Parts by which it is distributed to executors."""
    bytes: int | None = None
    """What is held of it."""
    level: str | None = None
    """The most that is held of a file: `Files` by the log, `RowGroups` with statistics of footers,
    `BloomFilters` with filters of row groups, too. These are read when a question first needs
    them."""


class UnservedTable(StatusModel):
    name: str
    """Name of the LakeTable."""
    reason: str
    """Why it is not served."""


class IndexServerStatus(StatusModel):
    """It has no phase, since it does not end."""

    observed_generation: int = 1
    """The generation of the spec that this status reports on; -1 until the operator has seen it."""
    conditions: tuple[Condition, ...] = ()
    """`Ready`, `Reconciling` and `Stalled`, each with a reason."""
    endpoint: str | None = None
    """Where it answers: `grpc+tls://lake-index.team-a.svc:8815`."""
    application: str | None = None
    """Name of its SparkApplication; absent while it is suspended."""
    executors: ServerExecutors | None = None
    """The processes beside its driver."""
    cache: ServerCache | None = None
    """What it holds, as last reported."""
    table_count: int | None = None
    """How many tables it serves."""
    tables: tuple[ServedTable, ...] | None = None
    """Those tables by name, the first 100."""
    not_served: tuple[UnservedTable, ...] | None = None
    """Tables that were chosen and are not served, by name, the first 100."""
