"""Sizes and durations as people type them.

Sizes are Kubernetes quantities and become bytes; durations are Go durations and become
milliseconds; both print again in the form people type.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from tandem.spec.rules import cel

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
