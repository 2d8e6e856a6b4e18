"""Identity columns: their properties, and what was given of them (protocol, "Identity Columns").

A column's high-water mark is the last value that was given, in the direction of its step. The next
ones lie above it. It is raised by a commit before the rows are committed: other writers begin above
it from then on. Gaps are legal. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.delta.schema import Field, PrimitiveType, fields_of, parse
from tandem.errors import CorruptLog, InvalidSpec, StatementFailed

START: Final = "delta.identity.start"
STEP: Final = "delta.identity.step"
MARK: Final = "delta.identity.highWaterMark"
EXPLICIT: Final = "delta.identity.allowExplicitInsert"
KEYS: Final = (START, STEP, MARK, EXPLICIT)
SCHEMA_UPDATE: Final = "delta.identity.schemaUpdate"
"""The tag of a commit whose metadata differs in marks alone: Spark's running writes go on."""
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class IdentityColumn:
    """A column whose values a table gives: `start` + n × `step`. `explicit`: an insert may give
    them itself."""

    start: int
    step: int
    mark: int | None
    explicit: bool

    @property
    def reserved(self) -> int:
        """The last value that may have been given; one step before the first if there is none."""
        none = self.start - self.step
        return none if self.mark is None or self.beyond(none, self.mark) else self.mark

    def beyond(self, value: int, other: int) -> bool:
        """Whether a value comes after the other one."""
        return value > other if self.step > 0 else value < other


def value_after(name: str, value: int, step: int, count: int) -> int:
    """The value of a column so many steps after another one. Raises: StatementFailed if there is
    none."""
    found = value + count * step
    if _LOWEST <= found <= _HIGHEST:
        return found
    raise StatementFailed(
        "the values of an identity column are used up",
        field=name[:80],
        found=f"{count} steps of {step} after {value}",
        expected="values of 64 bits",
        remedy="Insert fewer rows, or rows with values of their own if the column allows it",
    )


def has_columns(schema_string: str) -> bool:
    """Whether a table may have identity columns."""
    return "delta.identity." in schema_string


def identity_columns(schema_string: str, *, resource: str = "") -> dict[str, IdentityColumn]:
    """The identity columns of a table by name. Raises: CorruptLog for properties that are not
    usable."""
    if not has_columns(schema_string):
        return {}
    schema = parse(schema_string)
    found = {field.name: _column(field, resource) for field in schema if _marked(field)}
    names = [field.name for field in fields_of(schema) if _marked(field)]
    if len(names) > len(found):
        within = ", ".join(names)
        raise _unusable(within, resource, "a field of a struct", "columns of the table alone")
    return found


def _marked(field: Field) -> bool:
    return any(key in field.metadata for key in KEYS)


def _column(field: Field, resource: str) -> IdentityColumn:
    numbers = {}
    for key in (START, STEP, MARK):
        value = field.metadata.get(key)
        if value is None and key == MARK:
            continue
        if type(value) is not int or not _LOWEST <= value <= _HIGHEST:
            raise _unusable(field.name, resource, f"{key}: {value!r}", "a number of 64 bits", key)
        numbers[key] = value
    explicit = field.metadata.get(EXPLICIT)
    if type(explicit) is not bool:
        raise _unusable(field.name, resource, f"{explicit!r}", "true or false", EXPLICIT)
    if field.type != PrimitiveType("long"):
        raise _unusable(field.name, resource, "another type", "a column of type BIGINT")
    start, step, mark = numbers[START], numbers[STEP], numbers.get(MARK)
    if step == 0:
        raise _unusable(field.name, resource, "0", "a step other than 0", STEP)
    if mark is not None and (mark - start) % step:
        expected = f"{start} and a multiple of {step}"
        raise _unusable(field.name, resource, str(mark), expected, MARK)
    return IdentityColumn(start, step, mark, explicit)


def _unusable(column: str, resource: str, found: str, expected: str, key: str = "") -> CorruptLog:
    return CorruptLog(
        "the properties of an identity column are not usable",
        resource=resource,
        field=f"{key or 'delta.identity'} of {column[:80]}",
        found=found[:200],
        expected=expected,
        remedy="Correct them with the table's own engine (ALTER TABLE … ALTER COLUMN … SYNC "
        "IDENTITY sets a mark); until then deletes and compactions are possible",
    )


def with_marks(schema_string: str, marks: Mapping[str, int]) -> str:
    """The schema with these marks of columns."""
    body = json.loads(schema_string)
    for field in body["fields"]:
        if field["name"] in marks:
            field["metadata"] = {**field["metadata"], MARK: marks[field["name"]]}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def without_mark(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of a column without what each insert changes."""
    return {key: value for key, value in metadata.items() if key != MARK}


def given_by_table(
    columns: Mapping[str, IdentityColumn], given: Iterable[str], *, source: str
) -> list[str]:
    """The names of the columns whose values rows of a source lack. Raises: InvalidSpec if they have
    those of a column that allows none."""
    known = {name.lower() for name in given}
    absent = [name for name in columns if name.lower() not in known]
    refused = [name for name, each in columns.items() if name not in absent and not each.explicit]
    if refused:
        raise InvalidSpec(
            "the source has values of an identity column, which the table gives itself",
            resource=source,
            field=EXPLICIT,
            found=", ".join(name[:80] for name in refused),
            expected=f"no such column, since {EXPLICIT} is not true",
            remedy="Leave the column out of the source",
        )
    return absent
