"""What resources say about the index of tables.

Decides nothing: the index is a cache.

    table          the block `index` of a LakeTable
    bloom_filters  columns that get bloom filters
    server         `IndexServer`
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, model_validator

from tandem.spec.common import Resource
from tandem.spec.fields import (
    Bytes,
    DnsName,
    IncompatibleFields,
    ListType,
    Milliseconds,
    Model,
    Opaque,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Text,
    cel,
    format_quantity,
    misfit,
    once,
)

# Which columns of new data files get bloom filters.


@cel(
    "self.all(name, self.exists_one(other, other.lowerAscii() == name.lowerAscii()))",
    "must name each column once, ignoring case",
)
def _once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len({name.lower() for name in value}) < len(value):
        raise ValueError("must name each column once, ignoring case")
    return value


class BloomFilters(Model):
    columns: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32), AfterValidator(_once)]
    """Columns that are compared with `=` or `IN`, and whose values lie in all row groups: keys.
    Neither floats nor nested, boolean or binary ones, nor those of partitions."""
    false_positives: Annotated[StrictFloat, Field(ge=0.0001, le=0.5)] = 0.01
    """False positive rate of a filter: at 0.01, one value takes about ten bits."""


# `IndexServer`: the index of the namespace's tables as a service. Names of fields are those of the
# contract; nothing here knows a table.


MAX_NAME: Final = 40
"""Of an `IndexServer`: Kubernetes limits what its application and its Service are called."""
MIN_MEMORY: Final = 64 << 20
_MIB = 1 << 20
_GIB = 1 << 30
_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS


class LabelSelector(Model):
    match_labels: Annotated[
        dict[
            Annotated[StrictStr, Field(max_length=317)], Annotated[StrictStr, Field(max_length=63)]
        ],
        Field(min_length=1, max_length=32),
    ]
    """Labels that a LakeTable must have, each with this value."""


class TableSelection(Model):
    """Without either: all LakeTables of the namespace."""

    names: Annotated[
        tuple[DnsName, ...], Field(max_length=1_000), AfterValidator(once), ListType("set")
    ] = ()
    """Names of LakeTables."""
    selector: LabelSelector | None = None
    """The LakeTables that have these labels."""

    @misfit(
        "!has(self.selector) || !has(self.names) || size(self.names) == 0",
        "names does not go with selector",
        field=".names",
        expected="one of them, or neither for all tables of the namespace",
        remedy="Remove one of them",
    )
    def _one_of_both(self) -> str:
        return "both of them" if self.names and self.selector is not None else ""


class Levels(Model):
    """What is held beside the log's own statistics. Levels change how much is read, never a
    row."""

    row_groups: StrictBool = True
    """Statistics of row groups, from the footers of files."""
    bloom_filters: StrictBool = True
    """Bloom filters of row groups. Not without `rowGroups`."""


class Freshness(Model):
    max_staleness: Annotated[Milliseconds, Field(le=_DAY_MS)] = 0
    """How long ago a version may have been superseded, for questions that do not say so themselves.
    0: every question looks for newer commits first."""
    poll: Annotated[Milliseconds, Field(ge=_SECOND_MS, le=_HOUR_MS)] = 5 * _SECOND_MS
    """How often the tables that are held are checked for commits without being asked for."""


class Answers(Model):
    inline_limit: Bytes = 300 << 10
    """Larger answers wait in a file, from which readers fetch them."""
    ttl: Annotated[Milliseconds, Field(ge=_MINUTE_MS, le=7 * _DAY_MS)] = 3 * _HOUR_MS
    """How long such an answer is kept."""


class AccessMode(StrEnum):
    SERVICE_ACCOUNT = "ServiceAccount"
    SHARED_TOKEN = "SharedToken"
    PLAINTEXT = "Plaintext"


class AccessSecretRef(Model):
    name: DnsName
    """A Secret in the namespace."""


class AccessSecret(Model):
    secret_ref: AccessSecretRef
    """Where it is."""


class ServerAccess(Model):
    mode: AccessMode = AccessMode.SERVICE_ACCOUNT
    """`ServiceAccount`: callers present a token of their service account with the audience
    `tandem-index`, and need the right to get `laketables/splits`, in the namespace or of the table
    they ask about (`resourceNames`). `SharedToken`: they present the token of a Secret.
    `Plaintext`: neither encryption nor any check, for networks where everybody may read every
    table."""
    tls: AccessSecret | None = None
    """The Secret with the certificate (`tls.crt`, `tls.key`, and `ca.crt` unless clients trust its
    issuer anyway), for the name of the Service; by default `NAME-index-tls`."""
    token: AccessSecret | None = None
    """The Secret whose key `token` is what callers present, at least 16 characters; only with
    `SharedToken`. By default `NAME-index-token`."""

    @misfit(
        "!has(self.tls) || !has(self.mode) || self.mode != 'Plaintext'",
        "tls does not go with mode Plaintext",
        field=".tls",
        expected="mode ServiceAccount or SharedToken",
        remedy="Remove tls, or set another mode",
    )
    def _plaintext_has_no_tls(self) -> str:
        misfits = self.tls is not None and self.mode is AccessMode.PLAINTEXT
        return "tls with mode Plaintext" if misfits else ""

    @misfit(
        "!has(self.token) || (has(self.mode) && self.mode == 'SharedToken')",
        "token only goes with mode SharedToken",
        field=".token",
        expected="mode SharedToken",
        remedy="Remove token, or set mode: SharedToken",
    )
    def _token_is_shared(self) -> str:
        misfits = self.token is not None and self.mode is not AccessMode.SHARED_TOKEN
        return f"token with mode {self.mode}" if misfits else ""


_SIZES_COMPARABLE: Final = (
    "string(self.memory).matches('[eE][0-9+-]') || string(self.shardSize).matches('[eE][0-9+-]') "
    "|| !isQuantity(string(self.memory)) || !isQuantity(string(self.shardSize)) || "
)
"""What is no quantity violates another rule; one with an exponent is left to the validator."""


class IndexServerSpec(Model):
    tables: TableSelection = TableSelection()
    """Which LakeTables of the namespace it serves; all by default. Those that are not adopted yet
    are added when they are."""
    executors: Annotated[StrictInt, Field(ge=0, le=100)] = 0
    """Processes beside the driver that hold statistics of row groups and bloom filters. 0: the
    driver does all, which is enough for millions of files."""
    memory: Bytes = 4 * _GIB
    """Memory of each executor, or of the driver if there are none, for what is held; at least 64Mi,
    and not less than `shardSize`. What was asked for least recently is dropped first."""
    disk: Bytes = 20 * _GIB
    """Disk for statistics, filters and answers, of the same processes."""
    levels: Levels = Levels()
    """What is held beside the log's own statistics."""
    pre_prime: StrictBool = True
    """Load all tables at the start, and new commits at once; otherwise tables when they are first
    asked for."""
    freshness: Freshness = Freshness()
    """How old answers may be."""
    history: Annotated[Milliseconds, Field(le=_DAY_MS)] = 15 * _MINUTE_MS
    """For how long superseded versions can be asked for without being loaded again."""
    answers: Answers = Answers()
    """Answers that are too large to be sent at once."""
    access: ServerAccess = ServerAccess()
    """Who may ask."""
    service_account_name: DnsName = "tandem-index"
    """Service account of its pods. A table whose storage needs another identity is not served."""
    shard_size: Bytes = 16 * _MIB
    """Approximate size of the shards in which tables are distributed to executors."""
    suspend: StrictBool = False
    """Stop it while true. Readers go on without it."""
    spark_template: Opaque | None = None
    """A partial `SparkApplication` that is merged into its own."""

    @model_validator(mode="after")
    @cel(
        _SIZES_COMPARABLE
        + "!quantity(string(self.memory)).isLessThan(quantity(string(self.shardSize)))",
        "memory must not be less than shardSize",
        field=".memory",
    )
    @cel(
        _SIZES_COMPARABLE + "!quantity(string(self.memory)).isLessThan(quantity('64Mi'))",
        "memory must be at least 64Mi",
        field=".memory",
    )
    def _enough_memory(self) -> IndexServerSpec:
        for least, words in (
            (self.shard_size, "memory must not be less than shardSize"),
            (MIN_MEMORY, "memory must be at least 64Mi"),
        ):
            if self.memory < least:
                raise IncompatibleFields(
                    words,
                    found=format_quantity(self.memory),
                    expected=f"at least {format_quantity(least)}",
                    remedy="Raise memory, or remove it for 4Gi",
                )
        return self


class IndexServer(Resource):
    """Answer counts and prune files for all drivers and engines, from one cache of the tables' logs
    and statistics."""

    kind_name: ClassVar[str] = "IndexServer"
    short_name: ClassVar[str] = "ixs"
    kind: Literal["IndexServer"]
    spec: IndexServerSpec

    @model_validator(mode="after")
    @cel(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')",
        "metadata.name must be at most 40 lower-case letters, digits and '-', beginning with a "
        "letter",
    )
    def _short_name(self) -> IndexServer:
        name = self.metadata.name
        if len(name) > MAX_NAME or "." in name or not name[:1].isalpha():
            raise IncompatibleFields(
                "metadata.name must be at most 40 lower-case letters, digits and '-', beginning "
                "with a letter",
                found=name[:80],
                expected="a short name such as lake: its Service is named after it",
                remedy="Choose another name",
            )
        return self

    @property
    def service_name(self) -> str:
        """Of its Service."""
        return f"{self.name}-index"

    @property
    def tls_secret(self) -> str | None:
        """The Secret with its certificate; None in plain text."""
        access = self.spec.access
        if access.mode is AccessMode.PLAINTEXT:
            return None
        return access.tls.secret_ref.name if access.tls else f"{self.service_name}-tls"

    @property
    def token_secret(self) -> str | None:
        """The Secret with the token that callers present; None in other modes."""
        access = self.spec.access
        if access.mode is not AccessMode.SHARED_TOKEN:
            return None
        return access.token.secret_ref.name if access.token else f"{self.service_name}-token"


# What a `LakeTable` says about its index. Decides nothing: the index is a cache.


class IndexSettings(Model):
    bloom_filters: BloomFilters | None = None
    """Bloom filters that Tandem's jobs write into new data files; none by default. Existing files
    get them by a SegmentRewrite with `addBloomFilters`. See docs/index.md."""
    server: DnsName | None = None
    """Name of an `IndexServer` in the same namespace, which Tandem's readers ask first. Without
    it, and where it does not answer, each reader's own process answers: the rows are the same."""
