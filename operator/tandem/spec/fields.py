"""Field types that the resources share: sizes, durations, names, locations and texts.

Each has its bounds and its validators, and beside every validator the rule in CEL that the API
server checks instead. Nothing here knows a resource.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)
from pydantic import StrictBool as StrictBool
from pydantic import StrictFloat as StrictFloat
from pydantic import StrictInt as StrictInt
from pydantic import StrictStr as StrictStr
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

# Ties what a validator checks to what the API server checks.
#
# `@cel(...)` stands on the very function that pydantic calls, so that the two judges of one rule
# are read, and changed, together. The rule has no effect here: `tandem.spec.crd`
# writes it into the custom resource definitions, and `tests/crds` tries both on the same wrong
# resources. What a rule cannot say (other resources, calendars, a table's schema) stays with the
# validator alone; the operator runs the validators again on what it gets.


_ATTRIBUTE: Final = "__cel_rules__"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    """One entry of `x-kubernetes-validations`."""

    rule: str
    """True where the value is right; `self` is the value that the validator gets, with its
    fields named as people type them."""
    message: str
    """What people read if it is not: that of the validator, where that one is constant."""
    field: str = ""
    """The field below `self` that is wrong, as a JSON path (`.update.set`)."""
    expression: str = ""
    """CEL that makes the message, where it depends on the value; `message` if it fails."""
    hides_value: bool = False
    """The API server must not repeat the value: it may hold a credential, or is long."""

    def schema(self) -> dict[str, str]:
        """As the custom resource definition spells it."""
        spelled = {"rule": self.rule, "message": self.message}
        if self.expression:
            spelled["messageExpression"] = self.expression
        if self.field:
            spelled["fieldPath"] = self.field
        if self.hides_value:
            spelled["reason"] = "FieldValueForbidden"
        return spelled


def cel(
    rule: str,
    message: str,
    *,
    field: str = "",
    expression: str = "",
    hides_value: bool = False,
) -> Callable[[_Function], _Function]:
    """Say in CEL what the decorated validator says in Python; see `Rule` for the arguments."""

    def mark(function: _Function) -> _Function:
        added = Rule(rule, message, field, expression, hides_value)
        setattr(function, _ATTRIBUTE, (added, *rules_of(function)))
        return function

    return mark


def rules_of(function: Callable[..., Any]) -> tuple[Rule, ...]:
    """The rules on a validator, in the order in which they are written."""
    rules: tuple[Rule, ...] = getattr(function, _ATTRIBUTE, ())
    return rules


# Sizes and durations as people type them.
#
# Sizes are Kubernetes quantities and become bytes; durations are Go durations and become
# milliseconds; both print again in the form people type.


# Kubernetes' apimachinery/pkg/api/resource: decimal and binary suffixes. Fractions of a byte
# (`m`, `u`, `n`) make no sense for a size and are refused.
_SUFFIXES: dict[str, int] = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = re.compile(
    r"\+?(\d+(?:\.\d*)?|\.\d+)(?:([kMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII
)
_MAX_SIZE_LENGTH = 32
_MAX_EXPONENT_LENGTH = 6  # of the whole text
_MAX_BYTES = 2**63 - 2  # Kubernetes makes every larger quantity 2^63 - 1


# The API server takes text that may also be a number for as long as a whole request, so a pattern
# would cost more than it spends. It reads the quantity itself, once long exponents are ruled out:
# 1e99999999 keeps it busy for minutes.
@cel(
    "type(self) == int ? self > 0 && self < 9223372036854775807 "
    ": (size(self) <= 6 || (!self.contains('e') "
    "&& (!self.contains('E') || self.endsWith('E') || self.endsWith('Ei')))) "
    "&& !self.endsWith('m') && !self.endsWith('u') && !self.endsWith('n') && isQuantity(self) "
    "&& quantity(self).isGreaterThan(quantity('0')) "
    "&& quantity(self).isLessThan(quantity('9223372036854775807'))",
    "must be a size such as 128Mi, 1Gi, 1G or a number of bytes, greater than 0 and less than 8Ei",
)
def parse_quantity(value: object) -> int:
    """Bytes of a Kubernetes quantity (`1Gi`, `128Mi`, `1G`, `1e9`, `1073741824`).

    Rounds up to a whole byte, as Kubernetes does. Raises `ValueError`.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a bare 1e9, which is a whole number to kubectl
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a size such as 128Mi, 1Gi, 1G or a number of bytes")
    text = str(value)
    match = _QUANTITY.fullmatch(text)
    if match is None or len(text) > _MAX_SIZE_LENGTH:
        raise ValueError("must be a size such as 128Mi, 1Gi, 1G or a number of bytes")
    number, suffix, exponent = match.groups()
    if exponent and len(text) > _MAX_EXPONENT_LENGTH:
        raise ValueError("must be a size such as 128Mi, 1Gi, 1G or a number of bytes")
    try:
        exact = Decimal(number) * _SUFFIXES[suffix or ""] * Decimal(10) ** int(exponent or 0)
    except InvalidOperation as error:
        raise ValueError("must be a size such as 128Mi") from error
    size = int(exact.to_integral_value(rounding="ROUND_CEILING"))
    if size > _MAX_BYTES:
        raise ValueError("must be less than 8Ei")
    return size


def format_quantity(size: int) -> str:
    """The shortest exact quantity with a binary suffix: 134217728 → `128Mi`."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if size and size % _SUFFIXES[suffix] == 0:
            return f"{size // _SUFFIXES[suffix]}{suffix}"
    return str(size)


_UNITS_NS: dict[str, int] = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_MAX_DURATION_NS = 876_000 * 3600 * 10**9  # Go's int64 of nanoseconds ends at 292 years


@cel(
    r"self.matches('^(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$')",
    "must be a duration such as 10m, 1h30m or 168h",
)
# More nanoseconds than 64 bits hold make CEL's function fail; that is an error with this message.
@cel(
    "!self.matches('^([0-9.]+[nuµμm]?[smh])+$') || duration(self) <= duration('876000h')",
    "must be at most 100 years (876000h)",
)
def parse_duration(value: object) -> int:
    """Milliseconds of a Go duration (`168h`, `1h30m`, `1.5s`, `0`). Raises `ValueError`."""
    hint = "must be a duration such as 10m, 1h30m or 168h"
    if value == "0" or (value == 0 and not isinstance(value, bool)):
        return 0
    if not isinstance(value, str) or not value:
        raise ValueError(hint)
    position, total = 0, Decimal(0)
    while position < len(value):
        match = _DURATION_PART.match(value, position)
        if match is None:
            raise ValueError(hint)
        total += Decimal(match.group(1)) * _UNITS_NS[match.group(2)]
        position = match.end()
    if total > _MAX_DURATION_NS:
        raise ValueError("must be at most 100 years (876000h)")
    return int(total // 10**6)


def format_duration(milliseconds: int) -> str:
    """A Go duration: 5400000 → `1h30m`."""
    text = ""
    for unit in ("h", "m", "s", "ms"):
        count, milliseconds = divmod(milliseconds, _UNITS_NS[unit] // 10**6)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


class IncompatibleFields(ValueError):
    """Fields that do not go together: what was found, what would do, and how to come there, as
    every other error says it."""

    def __init__(self, message: str, *, found: str, expected: str, remedy: str) -> None:
        super().__init__(message)
        self.found = found
        self.expected = expected
        self.remedy = remedy


def misfit(
    rule: str,
    message: str,
    *,
    expected: str,
    remedy: str,
    field: str = "",
    hides_value: bool = False,
) -> Callable[[Callable[[Any], str]], Any]:
    """A rule about several fields of a model. The decorated method says in Python what `rule` says
    in CEL: it returns what was found if they do not go together, otherwise "". See `Rule` and
    `IncompatibleFields` for the arguments."""

    def validator(found_in: Callable[[Any], str]) -> Any:
        @cel(rule, message, field=field, hides_value=hides_value)
        def check(self: Any) -> Any:
            if found := found_in(self):
                raise IncompatibleFields(message, found=found, expected=expected, remedy=remedy)
            return self

        return model_validator(mode="after")(check)

    return validator


def exactly_one(*names: str) -> Any:
    """The rule of a model that exactly one of these fields is given."""
    spelled = [to_camel(name) for name in names]

    @cel(
        f"[{', '.join(f'has(self.{name})' for name in spelled)}].exists_one(given, given)",
        f"must have exactly one of {', '.join(spelled)}",
        hides_value=True,
    )
    def check(self: Any) -> Any:
        given = [to_camel(name) for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            keep = f"Keep one, and remove the {'others' if len(given) > 2 else 'other'}"
            raise IncompatibleFields(
                f"must have exactly one of {', '.join(spelled)}",
                found=", ".join(given) or "none of them",
                expected="one of them",
                remedy=keep if given else "Add one of them",
            )
        return self

    return model_validator(mode="after")(check)


class Model(BaseModel):
    """Base of everything people type: camelCase, closed, immutable.

    The docstring under an attribute becomes its description in `docs/resources.md` and in
    the CRDs.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        # As the API server does, which drops null values of fields that are not nullable.
        if isinstance(value, dict):
            return {key: item for key, item in value.items() if item is not None}
        return value


# Kubernetes: an object's name is a DNS-1123 subdomain.
_DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"{_DNS_LABEL}(\.{_DNS_LABEL})*")


@cel(
    "self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')",
    "must be a DNS-1123 name: lower-case letters, digits, '-' and '.', beginning and ending with "
    "a letter or digit",
)
def _dns_name(value: str) -> str:
    if len(value) > 253 or not _DNS_NAME.fullmatch(value):
        raise ValueError(
            "must be a DNS-1123 name: lower-case letters, digits, '-' and '.', beginning and "
            "ending with a letter or digit"
        )
    return value


_SCHEMES = ("file", "s3", "gs", "abfss")
_SCHEME_HINTS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "az": "abfss"}


_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@cel(
    "!self.contains('${') && !self.startsWith('~') && !self.startsWith('$')",
    "must be a whole URL: variables and ~ are not replaced",
    hides_value=True,
)
@cel(
    "self.startsWith('~') || self.startsWith('$') || self.matches('^(file|s3|gs|abfss)://')",
    "must be a URL with one of the schemes file, s3, gs, abfss",
    expression="'must be a URL with one of the schemes file, s3, gs, abfss' + ("
    "self.startsWith('/') ? ': file://' + self "
    ": self.matches('^(?i)s3[an]?://') ? '; write s3://' "
    ": self.matches('^(?i)(gs|gcs)://') ? '; write gs://' "
    ": self.matches('^(?i)(abfss?|az)://') ? '; write abfss://' : '')",
    hides_value=True,
)
@cel(
    "!self.contains('?') && !self.contains('#')",
    "must have no '?' and no '#': percent-encode them in a path",
    hides_value=True,
)
@cel(
    "!self.matches('(/|%2[fF])([.]|%2[eE]){2}(/|%2[fF]|$)')",
    "must not contain '..'",
    hides_value=True,
)
@cel(
    r"!self.matches(r'[\x00-\x1f]|%[01][0-9A-Fa-f]')",
    "must not contain control characters",
    hides_value=True,
)
@cel(
    "!self.startsWith('file://') || self.matches('^file://(localhost)?/')",
    "must be absolute: three slashes, as in file:///data/flights",
    hides_value=True,
)
@cel(
    "!self.matches('^file://(localhost)?(/|%2[fF])+$')",
    "must not be the root of the file system",
    hides_value=True,
)
@cel(
    "!self.matches('^(s3|gs)://[^/]*@')",
    "must not contain credentials: put them into the table's storage.secretRef",
    hides_value=True,
)
@cel(
    "!self.matches('^(s3|gs)://') || self.matches('^(s3|gs)://[^/]*@') "
    "|| self.matches('^(s3|gs)://[A-Za-z0-9][A-Za-z0-9._-]*(/|[?#]|$)')",
    "must name a bucket, as in s3://bucket/path",
    hides_value=True,
)
@cel(
    "!self.startsWith('abfss://') || self.matches('^abfss://[^@:/]+@[^@:/]+(/|[?#]|$)')",
    "must be abfss://container@account.dfs.core.windows.net/path",
    hides_value=True,
)
def _location(value: str) -> str:
    """An absolute URL without credentials, query or `..`; returned without trailing `/`."""
    if "${" in value or value.startswith(("~", "$")):
        raise ValueError("must be a whole URL: variables and ~ are not replaced")
    if "://" not in value:
        raise ValueError(
            "must be a URL with one of the schemes file, s3, gs, abfss"
            + (f": file://{value}" if value.startswith("/") else "")
        )
    scheme = value.split("://")[0]
    if scheme not in _SCHEMES:
        lowered = scheme.lower()
        nearest = lowered if lowered in _SCHEMES else _SCHEME_HINTS.get(lowered)
        raise ValueError(
            "must have one of the schemes file, s3, gs, abfss"
            + (f"; write {nearest}://" if nearest else "")
        )
    parts = urlsplit(value)
    if "?" in value or "#" in value:
        raise ValueError("must have no '?' and no '#': percent-encode them in a path")
    if any(part == ".." for part in unquote(parts.path).split("/")):
        raise ValueError("must not contain '..'")
    if any(ord(character) < 32 for character in unquote(value)):
        raise ValueError("must not contain control characters")
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise ValueError("must be absolute: three slashes, as in file:///data/flights")
    elif parts.scheme == "abfss":
        if not re.fullmatch(r"[^@:/]+@[^@:/]+", parts.netloc):
            raise ValueError("must be abfss://container@account.dfs.core.windows.net/path")
    elif "@" in parts.netloc:
        raise ValueError(
            "must not contain credentials: put them into the table's storage.secretRef"
        )
    elif not _BUCKET.fullmatch(parts.netloc):
        raise ValueError("must name a bucket, as in s3://bucket/path")
    if not unquote(parts.path).strip("/") and parts.scheme == "file":
        raise ValueError("must not be the root of the file system")
    return value.rstrip("/")


@cel("self.trim() != ''", "must not be empty")
def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value


@cel(
    "!('true' in self) && !('false' in self)",
    "put column names such as on, off, yes, no, y and n in quotes: kubectl reads them as true and "
    "false",
)
def _columns(value: dict[str, str]) -> dict[str, str]:
    if "true" in value or "false" in value:
        raise ValueError(
            "put column names such as on, off, yes, no, y and n in quotes: kubectl reads them as "
            "true and false"
        )
    return value


def once(value: tuple[str, ...]) -> tuple[str, ...]:
    # In CEL: `x-kubernetes-list-type: set`, which costs less than a rule.
    twice = next((item for item, count in Counter(value).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"must not name {twice!r} twice")
    return value


@dataclass(frozen=True)
class ListType:
    """How Kubernetes compares and merges a list: `x-kubernetes-list-type`."""

    name: str
    """`set`: no entry twice. `map`: no two entries with the same `key`."""
    key: str = ""


@dataclass(frozen=True)
class OneOf:
    """One of the names that `names` gives when it is asked: of a registry, for example."""

    names: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        names = tuple(self.names())
        if value not in names:
            context = {"expected": ", ".join(names)}
            raise PydanticCustomError("enum", "Input should be one of {expected}", context)
        return value


Bytes = Annotated[
    int,
    BeforeValidator(parse_quantity),
    Field(gt=0),
    PlainSerializer(format_quantity, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "x-tandem-type": "size",
        }
    ),
]
"""A size in bytes, typed as a Kubernetes quantity; more than 0."""

Milliseconds = Annotated[
    int,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "x-tandem-type": "duration"}),
]
"""A duration in milliseconds, typed as a Go duration."""

# Lengths are bounded, since the API server refuses rules whose cost it cannot bound.
DnsName = Annotated[StrictStr, Field(max_length=253), AfterValidator(_dns_name)]
Location = Annotated[StrictStr, Field(max_length=1024), AfterValidator(_location)]
Text = Annotated[StrictStr, Field(max_length=256), AfterValidator(_text)]
"""A column's name or other short text that must not be empty."""

SegmentOrChunk = Annotated[StrictStr, Field(max_length=64), AfterValidator(_text)]
"""The name of a segment or a chunk."""

SqlCondition = Annotated[StrictStr, Field(max_length=65_536), AfterValidator(_text)]
"""A Spark SQL condition."""

SqlExpression = Annotated[StrictStr, Field(max_length=8_192), AfterValidator(_text)]
"""A Spark SQL expression."""

Assignments = Annotated[
    dict[Text, SqlExpression], Field(min_length=1, max_length=256), AfterValidator(_columns)
]
"""Column → expression."""

Options = Annotated[
    dict[StrictStr, Annotated[StrictStr, Field(max_length=4_096)]], Field(max_length=128)
]
"""Names → values that Tandem hands on."""

UniqueSegmentsOrChunks = Annotated[
    tuple[SegmentOrChunk, ...],
    Field(min_length=1, max_length=10_000),
    AfterValidator(once),
    ListType("set"),
]
"""Names of different segments."""

Opaque = dict[str, Any]
"""Something that Tandem hands on without looking inside."""


class Granularity(StrEnum):
    """The length of a time chunk."""

    HOUR = "Hour"
    DAY = "Day"
    WEEK = "Week"
    MONTH = "Month"
    QUARTER = "Quarter"
    YEAR = "Year"
    ALL = "All"
