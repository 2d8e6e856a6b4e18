"""`TableReplace`: replace intervals, partitions or segments of a table from a source, or drop
them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from tandem.spec.common import LogUse, Mode, Operation, OperationSpec
from tandem.spec.fields import (
    Bytes,
    Granularity,
    Model,
    StrictInt,
    StrictStr,
    Text,
    UniqueSegmentsOrChunks,
    cel,
    misfit,
)
from tandem.spec.update import Source

_MIB = 2**20

_INTERVAL = re.compile(
    r"\s*([aA][lL][lL]|[0-9]{4}(-Q[1-4]|-W[0-9]{2}|-[0-9]{2}(-[0-9]{2}(T[0-9]{2})?)?)?|[^/]+/[^/]+)\s*"
)


@cel(
    r"self.matches(r'^\s*([aA][lL][lL]|[0-9]{4}(-Q[1-4]|-W[0-9]{2}|"
    r"-[0-9]{2}(-[0-9]{2}(T[0-9]{2})?)?)?|[^/]+/[^/]+)\s*$')",
    "must be an interval of time such as 2013-04, 2013-04-01T05, 2013-03-02/2013-03-05 or all",
)
def _interval(value: str) -> str:
    """The form only: calendars are for the operator."""
    if not _INTERVAL.fullmatch(value):
        raise ValueError(
            "must be an interval of time such as 2013-04, 2013-04-01T05, 2013-03-02/2013-03-05 or "
            "all"
        )
    return value


Intervals = Annotated[
    tuple[Annotated[StrictStr, Field(max_length=64), AfterValidator(_interval)], ...],
    Field(min_length=1, max_length=1_000),
]
Partition = Annotated[
    dict[Text, Annotated[StrictStr, Field(max_length=1_024)]], Field(min_length=1, max_length=32)
]
"""Partition column → value."""


class Scope(StrEnum):
    AT_START = "AtStart"
    AT_COMMIT = "AtCommit"


class Outside(StrEnum):
    FAIL = "Fail"
    DROP = "Drop"


class Replaced(Model):
    intervals: Intervals | None = None
    """Intervals of the table's time column in UTC, at any grain: `2013`, `2013-Q1`, `2013-04`,
    `2013-W05`, `2013-04-01`, `2013-04-01T05`, or `start/end`, where the end is not included. `all`
    is the only one that has rows without a time."""
    partitions: Annotated[tuple[Partition, ...], Field(min_length=1, max_length=1_000)] | None = (
        None
    )
    """Partitions by the values of partition columns, as text; `__HIVE_DEFAULT_PARTITION__` is
    NULL. With intervals, a row must be in one of both."""
    segments: UniqueSegmentsOrChunks | None = None
    """Names of segments, as `tandem table segments` shows them, in quotes: all of their rows."""

    @misfit(
        "has(self.intervals) || has(self.partitions) || has(self.segments)",
        "must have intervals, partitions or segments",
        expected="one of them, at least",
        remedy="Add intervals; intervals: [all] replaces the whole table",
    )
    def _selects_something(self) -> str:
        given = (self.intervals, self.partitions, self.segments)
        return "none of them" if all(each is None for each in given) else ""

    @misfit(
        "!has(self.segments) || !(has(self.intervals) || has(self.partitions))",
        "segments goes neither with intervals nor with partitions",
        field=".segments",
        expected="one of them",
        remedy="Remove segments, or the others",
    )
    def _segments_alone(self) -> str:
        others = self.intervals is not None or self.partitions is not None
        return "both" if others and self.segments is not None else ""


class TableReplaceSpec(OperationSpec):
    replace: Replaced
    """What is replaced."""
    source: Source | None = None
    """The rows that take its place; without it, what is named is dropped. Where the source has no
    rows, the table has none afterwards."""
    scope: Scope = Scope.AT_START
    """`AtStart` removes the rows that the table had when the operation started: rows that came
    later stay. `AtCommit` removes what is there when it commits."""
    start_version: Annotated[StrictInt, Field(ge=0)] | None = None
    """The version that counts as the start, for `AtStart`: the one that the source was computed
    from. By default, the version at which the locks were granted first."""
    outside: Outside | None = None
    """What to do with rows of the source that are not in the intervals and partitions: `Fail`, by
    default, or `Drop`."""
    target_file_size: Bytes = 128 * _MIB
    """Target size of output files."""
    granularity: Granularity | None = None
    """Output files end at the borders of chunks of this length. By default that is the granularity
    of a table whose `time.align` is set; other tables have no such borders. Needs a table with a
    time column."""

    @misfit(
        "!has(self.startVersion) || self.scope == 'AtStart'",
        "startVersion only goes with scope AtStart",
        field=".startVersion",
        expected="scope AtStart, or no startVersion",
        remedy="Remove startVersion, or set scope: AtStart",
    )
    def _start_has_a_version(self) -> str:
        misfits = self.scope is Scope.AT_COMMIT and self.start_version is not None
        return "startVersion with scope AtCommit" if misfits else ""

    @misfit(
        "!has(self.replace.segments) || self.scope == 'AtStart'",
        "segments only go with scope AtStart",
        field=".scope",
        expected="scope AtStart, or intervals or partitions",
        remedy="Set scope: AtStart",
    )
    def _segments_are_of_the_start(self) -> str:
        misfits = self.scope is Scope.AT_COMMIT and self.replace.segments is not None
        return "segments with scope AtCommit" if misfits else ""

    @misfit(
        "!has(self.outside) || has(self.source)",
        "outside only goes with a source",
        field=".outside",
        expected="a source, or no outside",
        remedy="Add source, or remove outside to drop what is named",
    )
    def _outside_is_of_a_source(self) -> str:
        misfits = self.source is None and self.outside is not None
        return "outside without a source" if misfits else ""

    @misfit(
        "!has(self.granularity) || has(self.source)",
        "granularity only goes with a source",
        field=".granularity",
        expected="a source, or no granularity",
        remedy="Add source, or remove granularity to drop what is named",
    )
    def _granularity_is_of_a_source(self) -> str:
        misfits = self.source is None and self.granularity is not None
        return "granularity without a source" if misfits else ""

    @misfit(
        "!has(self.granularity) || self.granularity != 'All'",
        "granularity must be shorter than All",
        field=".granularity",
        expected="Hour, Day, Week, Month, Quarter or Year",
        remedy="Remove granularity, or set a shorter one",
    )
    def _has_borders(self) -> str:
        return "granularity All" if self.granularity is Granularity.ALL else ""

    @misfit(
        "!has(self.outside) || !has(self.replace.segments)",
        "outside does not go with segments",
        field=".outside",
        expected="no outside: a source may have any rows in place of segments",
        remedy="Remove outside",
    )
    def _segments_have_no_outside(self) -> str:
        misfits = self.replace.segments is not None and self.outside is not None
        return "outside with segments" if misfits else ""


class TableReplace(Operation):
    """Replace a part of a table from a source, or drop it, in one commit, while others write."""

    kind_name: ClassVar[str] = "TableReplace"
    short_name: ClassVar[str] = "trepl"
    mode: ClassVar[Mode] = Mode.REPLACE
    default_priority: ClassVar[int] = 50
    columns: ClassVar[Mapping[str, str]] = {"Scope": ".spec.scope"}
    reports: ClassVar[frozenset[str]] = frozenset({"result.replaced", "result.rowsAffected"})
    result_columns: ClassVar[Mapping[str, str]] = {
        "Replaced": ".status.result.replaced.rows",
        "Late": ".status.result.replaced.late",
    }
    kind: Literal["TableReplace"]
    spec: TableReplaceSpec

    @property
    def log_use(self) -> LogUse:
        return LogUse.NONE

    @classmethod
    def source_in(cls, spec: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return "spec.source", spec.get("source") or {}

    @classmethod
    def plan_lines(cls, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
        """What is replaced, and which of its rows."""
        replaced = spec.get("replace") or {}
        found = [
            ", ".join(map(str, replaced.get(name) or ())) for name in ("intervals", "segments")
        ]
        found.append(
            ", ".join(
                "/".join(f"{column}={value}" for column, value in partition.items())
                for partition in replaced.get("partitions") or ()
            )
        )
        verb = "replace" if spec.get("source") else "drop"
        start = spec.get("startVersion")
        lines = [
            (verb, "; ".join(part for part in found if part)),
            (
                "scope",
                str(spec.get("scope") or Scope.AT_START.value)
                + (f" of version {start}" if start is not None else ""),
            ),
        ]
        if spec.get("outside") == Outside.DROP.value:
            lines.append(("outside", "Drop: other rows of the source are left out"))
        if spec.get("granularity"):
            lines.append(("borders", f"of each {spec['granularity']}"))
        return lines
