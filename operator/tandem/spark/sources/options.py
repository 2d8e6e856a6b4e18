"""The options that a source may have, and those of its store. Pure.

Reader options are an allow-list: an option that we ignored would silently change what is read,
and some of Spark's (`pathGlobFilter`, `mode`, `columnNameOfCorruptRecord`) drop rows, or accept
ambiguous text (`unescapedQuoteHandling`).
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence

from tandem.delta.protocol import HIDDEN_PREFIX, is_reserved_column
from tandem.errors import InvalidSpec
from tandem.jobs.formats import JobSpec, SourceJob
from tandem.storage.paths import canonical_location, split_location

ENCODINGS = ("utf-8", "us-ascii", "iso-8859-1")
"""Encodings in which exactly the byte 0x0A ends a line, so that files can be split."""

_TIMES = ("dateFormat", "timestampFormat", "timestampNTZFormat")
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "Csv": (
        *_TIMES,
        "charset",
        "comment",
        "delimiter",
        "emptyValue",
        "encoding",
        "escape",
        "header",
        "ignoreLeadingWhiteSpace",
        "ignoreTrailingWhiteSpace",
        "maxCharsPerColumn",
        "maxColumns",
        "nullValue",
        "quote",
        "sep",
    ),
    "Json": (
        *_TIMES,
        "allowBackslashEscapingAnyCharacter",
        "allowComments",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
        "charset",
        "encoding",
    ),
    "Parquet": (),
    "Delta": (),
}


_SWITCHES = ("header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace")
_SIGNS = ("quote", "escape", "comment")
_COUNTS = {"maxColumns": r"[1-9]\d{0,8}", "maxCharsPerColumn": r"-1|\d{1,9}"}
_ESCAPES = {
    "t": "\t",
    "b": "\b",
    "f": "\f",
    '"': '"',
    "'": "'",
    "\\": "\\",
    "u0000": "\0",
}


def source_job(spec: JobSpec) -> SourceJob:
    """The job, which must be one with a source."""
    assert isinstance(spec.job, SourceJob)
    return spec.job


def check_option_names(names: Sequence[str], job: SourceJob) -> None:
    """Check that no column of the source has a name reserved by jobs. Raises:
    InvalidSpec."""
    hidden = sorted(filter(is_reserved_column, names))
    if hidden:
        raise InvalidSpec(
            "the source has a column with a name that is reserved for jobs",
            resource=job.source_location,
            field=job.source_field,
            found=", ".join(hidden),
            expected=f"names that do not begin with {HIDDEN_PREFIX}",
            remedy="Rename the column in the source",
        )


def checked(
    source_format: str, options: Mapping[str, str], place: str = "spec.source"
) -> dict[str, str]:
    """The options under their canonical names; Spark's names are case-insensitive. `place` is the
    field of the resource that describes the source.

    Raises:
        InvalidSpec: an unknown format or option, a duplicate option, an encoding in which line ends
            cannot be found, an invalid value.
    """
    if source_format not in _ALLOWED:
        raise InvalidSpec(
            "no such source format",
            field=f"{place}.format",
            found=source_format,
            expected="Parquet, Csv, Json or Delta",
        )
    names = {name.lower(): name for name in _ALLOWED[source_format]}
    found: dict[str, str] = {}
    for given, value in options.items():
        name = {"delimiter": "sep", "charset": "encoding"}.get(given.lower()) or names.get(
            given.lower()
        )
        if name is None or given.lower() not in names:
            raise _bad(
                place,
                given,
                "unknown option of a source",
                ", ".join(_ALLOWED[source_format]) or f"no options for {source_format}",
            )
        if name in found:
            raise _bad(place, given, "an option is given twice", f"{name} once")
        found[name] = value
    if "encoding" in found:
        found["encoding"] = _encoding(place, found["encoding"])
    _check_values(place, found)
    return found


def _check_values(place: str, found: dict[str, str]) -> None:
    for name, value in found.items():
        if name in _SWITCHES or name.startswith("allow"):
            if value.lower() not in ("true", "false"):
                raise _bad(
                    place, name, "an option is neither true nor false", "true or false", value
                )
        elif name in _SIGNS:
            if len(value) > 1 or value in ("\n", "\r"):
                raise _bad(
                    place, name, "an option is not a single character", "one, or none", value
                )
        elif name in _COUNTS and not re.fullmatch(_COUNTS[name], value):
            raise _bad(place, name, "an option is not a valid number", "an integer", value)
    if "sep" in found:
        found["sep"] = _separator(place, found)


def _separator(place: str, found: Mapping[str, str]) -> str:
    """The separator; like Spark, it resolves `\\t` and similar escapes."""
    text = re.sub(r"\\([tbf\"'\\]|u0000)", lambda m: _ESCAPES[m[1]], found["sep"])
    signs = {found.get("quote", '"'), found.get("escape", '"'), "\n", "\r"} - {""}
    if not text or any(sign in text for sign in signs):
        expected = "one or more characters, without the quote, the escape and line ends"
        raise _bad(place, "sep", "the separator is not valid", expected, found["sep"])
    return text


def storage_options(location: str, table: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options for a source's store: those of the table's store if it is of the same kind (an
    endpoint is configured once); otherwise none."""
    same = split_location(canonical_location(location))[0] == split_location(table)[0]
    return dict(options) if same else {}


def _encoding(place: str, text: str) -> str:
    try:
        name = codecs.lookup(text).name
    except LookupError:
        name = ""
    for known in ENCODINGS:
        if name == codecs.lookup(known).name:
            return known
    expected = ", ".join(ENCODINGS)
    raise _bad(place, "encoding", "this encoding is not supported", expected, text)


def _bad(place: str, name: str, message: str, expected: str, found: str = "") -> InvalidSpec:
    return InvalidSpec(
        message,
        field=f"{place}.options.{name}",
        found=found or name,
        expected=expected,
        remedy="Remove or correct the option",
    )
