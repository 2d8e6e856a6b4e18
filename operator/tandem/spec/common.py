"""What every resource has: metadata, and the fields that every operation takes.

Field names are fixed by the contract of `v1alpha1`: add where it helps, rename none.

Names of labels, annotations and finalizers (docs/labels-and-annotations.md) are persisted in
clusters: add where it helps, rename none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from tandem.spec.fields import (
    DnsName,
    IncompatibleFields,
    Milliseconds,
    Model,
    OneOf,
    Opaque,
    StrictBool,
    StrictInt,
    StrictStr,
    cel,
    format_duration,
    misfit,
)

API_VERSION: Final = "tandem.dev/v1alpha1"
GROUP: Final = API_VERSION.split("/")[0]
VERSION: Final = API_VERSION.split("/")[1]

ResourceKey = tuple[str, str, str]
"""Kind, namespace and name: what makes a resource the same resource."""

_INT32 = 2**31 - 1  # of Kubernetes' own fields of this name

# Kubernetes' ObjectMeta fields that the API server adds; accepted and not looked at.
_SERVER_FIELDS = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
    }
)


class ObjectMetadata(Model):
    name: DnsName
    """Name of the resource, unique per kind and namespace."""
    namespace: DnsName = "default"
    """Namespace; without a cluster it is part of an operation's identity all the same."""
    labels: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    """Kept as they are."""
    annotations: dict[StrictStr, StrictStr] = Field(default_factory=dict)
    """Kept as they are."""
    uid: StrictStr = ""
    """Set by the API server."""
    generation: StrictInt = 1
    """Set by the API server; copied to `status.observedGeneration`."""

    @model_validator(mode="before")
    @classmethod
    def _drop_server_fields(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if key not in _SERVER_FIELDS}


class TableRef(Model):
    name: DnsName
    """Name of a `LakeTable` in the same namespace."""


class Dependency(Model):
    kind: Annotated[StrictStr, OneOf(lambda: OPERATIONS)]
    """Kind of the operation to wait for."""
    name: DnsName
    """Its name, in the same namespace."""


class LockMode(StrEnum):
    CONCURRENT = "Concurrent"
    EXCLUSIVE = "Exclusive"


_HOUR_MS = 3_600_000


class Exclusive(Model):
    """How an operation with `lockMode: Exclusive` yields to other writers."""

    max_yields: Annotated[StrictInt, Field(ge=1, le=100)] = 5
    """After this many yields it continues as `Concurrent`, so that it ends even if others never
    pause."""
    backoff: Annotated[Milliseconds, Field(gt=0, le=_HOUR_MS)] = 60_000
    """Time from the first yield to the next attempt; it doubles with each yield, up to an hour."""

    def backoff_ms(self, yields: int) -> int:
        """Time from the yield of this number (from 1) to the next attempt."""
        return min(_HOUR_MS, self.backoff << (yields - 1))


class Mode(StrEnum):
    """What an operation does to the segments that it names: it decides what may run beside it."""

    APPEND = "Append"
    UPDATE = "Update"
    REWRITE = "Rewrite"
    REPLACE = "Replace"
    EXCLUSIVE = "Exclusive"


class LogUse(Enum):
    """What an operation does with the log of a merge-on-read table, if there is one."""

    NONE = auto()
    MERGES_IT_FIRST = auto()
    APPENDS = auto()
    APPENDS_AND_NEEDS_IT = auto()
    IS_ITS_TABLE = auto()


class OperationSpec(Model):
    """Fields that every operation takes, beside its own."""

    changeable: ClassVar[frozenset[str]] = frozenset(
        {"suspend", "priority", "ttl_seconds_after_finished"}
    )
    """What may change in a cluster; the API server refuses every other change. A different spec
    is a different operation, with a name and a result of its own."""

    table_ref: TableRef
    """The table to work on."""
    suspend: StrictBool = False
    """Do not start (or, in a cluster, stop) while true. May be changed at any time."""
    dry_run: StrictBool = False
    """Plan only: `status.plan` says what would happen, nothing is written."""
    priority: Annotated[StrictInt, Field(ge=-1_000_000_000, le=1_000_000_000)] | None = None
    """A strictly higher priority revokes the locks of conflicting operations with a lower one.
    Without it: 75 for a TableIngest, 50 for a TableUpdate and a TableReplace, 25 for compactions
    and rewrites."""
    backoff_limit: Annotated[StrictInt, Field(ge=0, le=1_000)] = 3
    """How many times an attempt is retried after a transient failure."""
    active_deadline_seconds: Annotated[StrictInt, Field(ge=1, le=_INT32)] | None = None
    """Seconds after its start at which an operation that has not committed fails; none by
    default."""
    ttl_seconds_after_finished: Annotated[StrictInt, Field(ge=0, le=_INT32)] | None = None
    """Seconds after its end at which the resource is deleted (in a cluster); never by default."""
    lock_mode: LockMode = LockMode.CONCURRENT
    """`Concurrent`: other writers continue, and their commits are reconciled. `Exclusive`, of a
    TableCompaction or SegmentRewrite: it locks its time chunks and commits only if no other writer
    changed a file in them; it stops and tries again later if one did."""
    spark_template: Opaque | None = None
    """A partial `SparkApplication` that is merged into the one of this operation. `tandem run`
    checks it and does not use it; `tandem dev` uses the driver's cores, memory and variables."""
    depends_on: Annotated[tuple[Dependency, ...], Field(max_length=64)] = ()
    """Operations that must have succeeded before this one starts; without it, operations
    that are applied together start together."""

    @model_validator(mode="after")
    @cel(
        "!has(self.lockMode) || self.lockMode != 'Exclusive'",
        "lockMode Exclusive only goes with TableCompaction and SegmentRewrite",
        field=".lockMode",
    )
    def _lock_mode_fits(self) -> Self:
        if self.lock_mode is LockMode.EXCLUSIVE:
            raise exclusive_refused("only goes with TableCompaction and SegmentRewrite")
        return self

    def canonical(self) -> dict[str, Any]:
        """With defaults filled in, by the names that people type; plain JSON types."""
        return self.model_dump(by_alias=True, exclude_none=True)


def exclusive_refused(why: str) -> IncompatibleFields:
    """The refusal of `lockMode: Exclusive` by an operation that cannot yield."""
    return IncompatibleFields(
        f"lockMode Exclusive {why}",
        found="lockMode Exclusive",
        expected="lockMode Concurrent",
        remedy="Remove lockMode: this operation then runs concurrently with writers",
    )


class RewritingSpec(OperationSpec):
    """Fields of operations that rewrite files and change no rows."""

    exclusive: Exclusive | None = None
    """How it yields; only with `lockMode: Exclusive`."""

    @misfit(
        "!has(self.exclusive) || (has(self.lockMode) && self.lockMode == 'Exclusive')",
        "exclusive only goes with lockMode Exclusive",
        field=".exclusive",
        expected="lockMode Exclusive, or no exclusive",
        remedy="Set lockMode: Exclusive, or remove exclusive",
    )
    def _lock_mode_fits(self) -> str:
        misfits = self.exclusive is not None and self.lock_mode is not LockMode.EXCLUSIVE
        return f"exclusive with lockMode {self.lock_mode}" if misfits else ""


class Resource(Model):
    """Base of all kinds."""

    kind_name: ClassVar[str]
    short_name: ClassVar[str]

    api_version: Literal["tandem.dev/v1alpha1"]
    metadata: ObjectMetadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def id(self) -> str:
        """How errors and people name it: `TableCompaction/nightly`."""
        return f"{self.kind_name}/{self.metadata.name}"

    @property
    def key(self) -> ResourceKey:
        return (self.kind_name, self.metadata.namespace, self.metadata.name)

    def manifest(self) -> dict[str, Any]:
        """The resource as people type it: only the fields that were given, JSON types."""
        fields = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return {name: fields[name] for name in ("apiVersion", "kind", "metadata", "spec")}


class Operation(Resource):
    """Base of the kinds that do something once, and end.

    A kind is one subclass, which says all that differs by kind but how it is performed: that is
    one entry of `tandem.operations.registry`.
    """

    mode: ClassVar[Mode]
    """Its lock. Commits of a kind that only appends are blind appends to other operations."""
    default_priority: ClassVar[int]
    """That of its locks, unless the resource gives another one."""
    on_log: ClassVar[bool] = False
    """Whether it works on the log of a merge-on-read table, not on the table."""
    columns: ClassVar[Mapping[str, str]] = {}
    """What `kubectl get` prints of it after the table: name and JSON path."""
    result_columns: ClassVar[Mapping[str, str]] = {}
    """The same after the phase."""
    reports: ClassVar[frozenset[str]] = frozenset()
    """What its status has beside what each kind reports, by JSON path below `status`. A path that
    one kind names is in the definitions of those only that name it, too."""

    spec: OperationSpec

    @property
    def lock_priority(self) -> int:
        """The priority of its locks."""
        given = self.spec.priority
        return self.default_priority if given is None else given

    @property
    def exclusive(self) -> Exclusive | None:
        """How it yields, if its lock mode is `Exclusive`."""
        spec = self.spec
        if not isinstance(spec, RewritingSpec) or spec.lock_mode is not LockMode.EXCLUSIVE:
            return None
        return spec.exclusive or Exclusive()

    @property
    def log_use(self) -> LogUse:
        return LogUse.IS_ITS_TABLE if self.on_log else LogUse.NONE

    @classmethod
    def source_in(cls, spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:  # noqa: ARG003
        """The field and the content of the source in a spec as it is typed; {} for none."""
        return "", {}

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:  # noqa: ARG003
        """What `plan` prints of a spec as it is typed, beside its table and its source: names
        and values."""
        return []


def lock_mode_lines(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What `plan` prints of the lock mode in a spec as it is typed; nothing for `Concurrent`."""
    if spec.get("lockMode") != LockMode.EXCLUSIVE:
        return []
    found = Exclusive.model_validate(spec.get("exclusive") or {})
    backoff = format_duration(found.backoff)
    how = f"yields up to {found.max_yields} times, first for {backoff}, then goes on as Concurrent"
    return [("lock mode", f"Exclusive: {how}")]


OPERATIONS: Final[dict[str, type[Operation]]] = {}
"""The kinds of operations by name. `tandem.spec.resources` lists them; read it when it is
needed, not when a module is imported."""


def plural(kind: str) -> str:
    """The kind as it stands in addresses and roles: `tablecompactions`."""
    return f"{kind.lower()}s"


PREFIX: Final = f"{GROUP}/"
MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "tandem")
"""Label, and its value, of every object that Tandem creates."""

FINALIZER: Final = f"{PREFIX}cleanup"
"""Earlier releases put it on operations; it is taken off."""
RETRY_ANNOTATION: Final = f"{PREFIX}retry"
"""Any new value requests one more run of an operation that failed."""
PLAN_LABEL: Final = f"{PREFIX}plan"
"""Marks an operation that `kubectl tandem plan` has created, to show its plan and delete it."""

TABLE_LABEL: Final = f"{PREFIX}table"
KIND_LABEL: Final = f"{PREFIX}kind"
INDEX_SERVER_LABEL: Final = f"{PREFIX}index-server"
"""On the pods of an IndexServer: its Service selects the driver's by it."""
OPERATION_LABEL: Final = f"{PREFIX}operation"
ATTEMPT_LABEL: Final = f"{PREFIX}attempt"

AUTOMATIC_LABEL: Final = f"{PREFIX}automatic"
"""`minor`, the digest of a schedule, `chunks-` and the digest of a chunk, `retention`,
`log-compaction` or `log-merge`."""
SCHEDULED_LABEL: Final = f"{PREFIX}scheduled"
"""The minute (since 1970) at which a compaction was due."""
RETRIES_LABEL: Final = f"{PREFIX}retries"
"""How many compactions of the same schedule failed in a row before this one."""

INPUT_BYTES_ANNOTATION: Final = f"{PREFIX}input-bytes"
ENDPOINT_ANNOTATION: Final = f"{PREFIX}endpoint"
"""Where an IndexServer answers if there is no Service: `tandem dev` writes it."""
LOG_ANNOTATION: Final = f"{PREFIX}log"
"""The location of the log if there is no pod: `tandem dev` writes it."""


def label_value(text: str) -> str:
    """A name as a label's value: names longer than 63 characters are truncated and hashed."""
    if len(text) <= 63:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[:54].rstrip('-_.')}-{digest}"
