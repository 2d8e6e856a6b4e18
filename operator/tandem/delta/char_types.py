"""CHAR(n) and VARCHAR(n): texts of bounded length, which Delta stores as plain strings.

Spark writes the declared type into a column's metadata. In its own tables it checks and pads values
on writing (CharVarcharUtils, CharVarcharCodegenUtils): a text that is too long may lose only
trailing blanks, and a CHAR is padded with blanks. In a Delta table it refuses a text with too many
blanks, too (`CharVarcharConstraint`), stores a CHAR as it is, and pads it on reading, so that `a`
and `a  ` are one value.

New values of Tandem are padded and checked as in Spark's own tables: as Arrow arrays here, as
Spark's columns in `tandem.spark.sources.casts`. Values that other writers stored stay
unchanged, and are compared in padded form. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import SHOWN, SchemaMismatch
from tandem.delta.schema import Field

METADATA_KEY = "__CHAR_VARCHAR_TYPE_STRING"

_BOUNDED = re.compile(r"(char|varchar)\((\d+)\)", re.IGNORECASE)
_NAME = re.compile(r"`((?:[^`]|``)*)`|([^:<>,]*)")
_OTHER = re.compile(r"[^<>,()]*(?:\([^()]*\))?")


@dataclass(frozen=True, slots=True)
class BoundedText:
    """A CHAR (`padded`) or VARCHAR of so many characters."""

    length: int
    padded: bool

    def __str__(self) -> str:
        return f"{'char' if self.padded else 'varchar'}({self.length})"


Bounds = BoundedText | Mapping[str, "Bounds"]
"""What bounds a column: itself, or values inside it, by the name of a field in lower case, or by
`element`, `key` and `value`."""


def declared(metadata: Mapping[str, Any]) -> str:
    """The declared type of a column by its metadata, "" if nothing in it is bounded."""
    text = metadata.get(METADATA_KEY, "")
    return text if isinstance(text, str) else ""


def bounds_of(text: str) -> Bounds:
    """The bounds in a declared type, such as `struct<a:char(3),b:array<varchar(5)>>`. Raises:
    ValueError."""
    found, end = _bounds(text, 0)
    if end < len(text):
        raise ValueError(f"{text[end:]!r} follows the type")
    return found


def _bounds(text: str, at: int) -> tuple[Bounds, int]:
    """The bounds of the type that begins at a place, and the place after it."""
    bounded = _BOUNDED.match(text, at)
    if bounded is not None:
        return BoundedText(int(bounded[2]), bounded[1].lower() == "char"), bounded.end()
    start = _OTHER.match(text, at)
    assert start is not None  # it matches nothing, too
    if not text.startswith("<", start.end()):
        return {}, start.end()
    parts = {"array": ["element"], "map": ["key", "value"], "struct": []}[start[0].strip().lower()]
    found: dict[str, Bounds] = {}
    at = start.end()
    while text[at : at + 1] in ("<", ","):
        at += 1
        if parts:
            name = parts[len(found)]
        elif text.startswith(">", at):
            break
        else:
            named = _NAME.match(text, at)
            assert named is not None
            name = (named[1] or "").replace("``", "`") or named[2] or ""
            if not text.startswith(":", named.end()):
                raise ValueError(f"a field without a type: {text[at:]!r}")
            at = named.end() + 1
        found[name.lower()], at = _bounds(text, at)
    if not text.startswith(">", at):
        raise ValueError(f"a type without an end: {text!r}")
    return found, at + 1


def fitted(array: Any, field: Field) -> Any:
    """Values of a column in the form that is stored.

    Args:
        array: of the column's Arrow type.
    Raises: SchemaMismatch for a text that is too long, or a declaration that cannot be read.
    """
    text = declared(field.metadata)
    if not text:
        return array
    try:
        bounds = bounds_of(text)
    except (ValueError, KeyError, IndexError) as error:
        raise SchemaMismatch(field.name, text[:SHOWN], "declared type of the column") from error
    return _fitted(array, bounds, field.name)


def comparable(array: Any, field: Field) -> Any:
    """Values of a column in the form in which they are equal to others."""
    text = declared(field.metadata)
    bounds = _BOUNDED.fullmatch(text)
    if bounds is None or bounds[1].lower() != "char":
        return array
    length = int(bounds[2])
    try:
        return pc.utf8_rpad(array, length, " ")
    except pa.ArrowInvalid:  # other writers store bytes that are not UTF-8
        padded = [
            None if value is None else value + b" " * (length - len(value.decode(errors="replace")))
            for value in array.cast(pa.large_binary()).to_pylist()
        ]
        return pa.array(padded, pa.binary()).view(array.type)


def _fitted(array: Any, bounds: Bounds, path: str) -> Any:
    if isinstance(bounds, BoundedText):
        return _text(array, bounds, path)
    if not bounds:
        return array
    # Without values below a NULL, and without an offset, which `from_arrays` refuses.
    array = array.take(pa.array(range(len(array)), pa.int64()))
    type_ = array.type
    mask = array.is_null() if array.null_count else None

    def inner(values: Any, name: str) -> Any:
        return _fitted(values, bounds.get(name.lower(), {}), f"{path}.{name}")

    if pa.types.is_struct(type_):
        children = [
            inner(child, part.name) for part, child in zip(type_, array.flatten(), strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)
    if pa.types.is_map(type_):
        keys, items = inner(array.keys, "key"), inner(array.items, "value")
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=type_, mask=mask)
    values = inner(array.values, "element")
    return pa.ListArray.from_arrays(array.offsets, values, type=type_, mask=mask)


def _text(array: Any, bounds: BoundedText, path: str) -> Any:
    long = pc.greater(pc.utf8_length(array), bounds.length)
    if pc.any(long).as_py():
        trimmed = pc.utf8_rtrim(array, characters=" ")
        refused = array.filter(pc.greater(pc.utf8_length(trimmed), bounds.length))
        if len(refused):
            raise SchemaMismatch(path, repr(refused[0].as_py()[:SHOWN]), str(bounds))
        array = pc.if_else(long, pc.utf8_slice_codeunits(array, 0, bounds.length), array)
    return pc.utf8_rpad(array, bounds.length, " ") if bounds.padded else array
