"""The index of a table in the caller's own process, without a server: `count`, `bounds`, `splits`,
`reader`, `paths`.

`TableIndex` holds the entries between calls, and follows the log: a call costs a listing, and the
commits since the last one. The functions of the same names open a table for one call.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypedDict, Unpack

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.files import to_adds
from tandem.delta.scan import column_names
from tandem.delta.schema import column_mapping_mode
from tandem.errors import InvalidSpec, TableReplaced, UnsupportedFeature
from tandem.index import answers, rows
from tandem.index.answers import (
    CertainBounds,
    CertainCount,
    Cut,
    PathRange,
    Portions,
    Scope,
    Splits,
    portions_of,
)
from tandem.index.facts.cache import FactsCache
from tandem.index.narrowing import GroupMatches, Narrower, narrowed
from tandem.index.rows import RowTest
from tandem.index.table import FollowedTable
from tandem.index.window import Chosen, Head, Holds, View
from tandem.mergelog.log_table import MergeLog
from tandem.statements import parse_where
from tandem.statements.tree import Expr
from tandem.statements.types import Schema
from tandem.storage import open_store
from tandem.storage.store import Store
from tandem.timeline.names import LONGEST_S

LONGEST_STALE_S: Final = 86_400
"""No answer may be older than so many seconds."""
_SHORT = 4_096
"""The trees of conditions of so many characters are kept."""


@dataclass(frozen=True)
class Query:
    """What a question is about.

    Attributes:
        where: a condition in Spark SQL; empty for all rows.
        version: the newest by default.
        timestamp_ms: the newest version not after a time, Unix milliseconds.
        segments: only rows in files of these; empty for all.
        at_least, max_staleness_s: as of `FollowedTable.view`; without `max_staleness_s` a server
            decides, and in this process none is older than the question.
        hold_s: for so many seconds cleaning of Tandem leaves the files of the version; 0 for as
            long as the table keeps removed files. Of splits and readers; needs write access.
        paths: only rows in files of these; None for all.
        table_id: of the table that must be there; "" for any.
    Raises: InvalidSpec if the question contradicts itself, or a number is out of its range.
    """

    where: str = ""
    version: int | None = None
    timestamp_ms: int | None = None
    segments: Collection[str] = ()
    at_least: int | None = None
    max_staleness_s: float | None = None
    hold_s: int = 0
    paths: PathRange | None = None
    table_id: str = ""

    def __post_init__(self) -> None:
        named = {
            name: value
            for name in ("version", "timestamp_ms", "at_least")
            if (value := getattr(self, name)) is not None
        }
        if len(named) > 1:
            raise InvalidSpec(
                "a version, a time and a least version exclude each other",
                field=next(iter(named)),
                found=", ".join(f"{name}={value}" for name, value in named.items()),
                expected="one of them at most",
                remedy="Leave out the others",
            )
        for name, value, most in (
            ("max_staleness_s", self.max_staleness_s, LONGEST_STALE_S),
            ("hold_s", self.hold_s, LONGEST_S),
        ):
            if value is not None and not 0 <= value <= most:
                raise InvalidSpec(
                    "the number is out of its range",
                    field=name,
                    found=value,
                    expected=f"seconds from 0 to {most:,}",
                    remedy="Correct it, or leave it out",
                )


EVERYTHING = Query()
MERGE_LOG_S: Final = 5.0
"""An index that is held looks so often, in seconds, whether its table has become merge-on-read."""


class IndexReader(ABC):
    """Answers about one table, wherever its index is held: numbers are finished here, with the
    caller's own access to the rows.

    What it raises: InvalidStatement, UnknownSegment; as `FollowedTable.view`, and as `rows.read`
    while rows are read.
    """

    @property
    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def certain_count(self, query: Query) -> CertainCount:
        """The rows that match for sure, and what is left to count."""

    @abstractmethod
    def certain_bounds(self, columns: Sequence[str], query: Query) -> Sequence[CertainBounds]:
        """What the log says of the least and greatest values. Raises: InvalidSpec."""

    @abstractmethod
    def splits(self, query: Query = EVERYTHING) -> Splits:
        """The files that have to be read."""

    def portions(self, cut: Cut, query: Query = EVERYTHING) -> Portions:
        """Where the files that have to be read are cut, for tasks that ask for their own."""
        found = self.splits(query)
        return portions_of(found.head, found.files, cut)

    def count(self, query: Query = EVERYTHING, *, test: RowTest | None = None) -> int:
        """The number of rows that match.

        Args:
            test: evaluates the condition on rows whose files leave it open; by default it is
                evaluated here, without Spark.
        """
        found = self.certain_count(query)
        where = condition(found.rest.head, query.where)
        return rows.count(found, self.store, where, test)

    def bounds(
        self, columns: Sequence[str], query: Query = EVERYTHING, *, test: RowTest | None = None
    ) -> dict[str, tuple[Any, Any]]:
        """The least and the greatest value of each column among the rows that match. Raises:
        InvalidSpec for an unknown column, or one without an order."""
        return {
            found.column: rows.bounds(
                found, self.store, condition(found.below.head, query.where), test
            )
            for found in self.certain_bounds(columns, query)
        }

    def reader(
        self,
        query: Query = EVERYTHING,
        columns: Sequence[str] | None = None,
        *,
        test: RowTest | None = None,
    ) -> pa.RecordBatchReader:
        """The rows that match, as a stream of Arrow batches: for DuckDB, Polars, pandas.

        Args:
            columns: in the order wanted; None for all.
        Raises: InvalidSpec for an unknown column.
        """
        found = self.splits(query)
        where = condition(found.head, query.where)
        names = None if columns is None else _names(found.head, columns)
        return rows.read(found, self.store, names, where, test)

    def paths(self, query: Query = EVERYTHING) -> list[str]:
        """The paths of the files that have to be read, relative to the table unless they are
        absolute: for engines that read plain Parquet. The filter still has to be applied.

        Raises: UnsupportedFeature if a row of one of them is deleted, or if their columns have
            other names.
        """
        found = self.splits(query)
        _require_plain(found)
        return [add.path for add in to_adds(found.files)]


class TableIndex(IndexReader):
    """The index of one table, held in this process. Thread-safe.

    Args:
        base: also of a merge-on-read table: of its base alone, as of the last merge. Without it,
            such a table is refused, since rows in its log would be missing.
        row_groups: narrow conditions to row groups, too: footers of large files are read when a
            condition leaves them open, and what is needed of them is held.
        kept_ms: how long its LakeTable keeps removed files, in milliseconds; None for the table's
            property.
        history_s: as of `FollowedTable`.
        now: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        log: DeltaLog,
        *,
        base: bool = False,
        row_groups: bool = True,
        kept_ms: int | None = None,
        history_s: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base, self._now = base, now
        if not base:
            require_no_merge_log(log)
        self._checked = now()
        self.table = FollowedTable(log, history_s=history_s)
        self._holds = Holds(log, kept_ms=kept_ms)
        self._facts = FactsCache(log.store) if row_groups else None
        self._narrower = None if self._facts is None else Narrower(self._known)

    @property
    def store(self) -> Store:
        return self.table.log.store

    @property
    def log(self) -> DeltaLog:
        return self.table.log

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self.table.nbytes + (0 if self._facts is None else self._facts.nbytes)

    def view(self, query: Query = EVERYTHING) -> View:
        """The version that a question is about. Raises: as `FollowedTable.view`; UnsupportedFeature
        if the table has become merge-on-read; TableReplaced."""
        if not self._base and self._now() - self._checked >= MERGE_LOG_S:
            require_no_merge_log(self.log)
            self._checked = self._now()
        view = self.table.view(
            query.version,
            timestamp_ms=query.timestamp_ms,
            at_least=query.at_least,
            max_staleness_s=query.max_staleness_s or 0.0,
        )
        require_table(view.head, query)
        return view

    def certain_count(self, query: Query = EVERYTHING) -> CertainCount:
        view = self.view(query)
        return answers.certain_count(view, *scope(view, query, self._narrower))

    def certain_bounds(
        self, columns: Sequence[str], query: Query = EVERYTHING
    ) -> Sequence[CertainBounds]:
        view = self.view(query)
        where = condition(view.head, query.where)
        names = _names(view.head, columns)
        return answers.certain_bounds(view, names, where, query.segments, query.paths)

    def splits(self, query: Query = EVERYTHING) -> Splits:
        view = self.view(query)
        asked = scope(view, query, self._narrower)
        until_ms = self.kept_until_ms(view, query.hold_s)
        return answers.splits(view, *asked).kept(until_ms)

    def portions(self, cut: Cut, query: Query = EVERYTHING) -> Portions:
        view = self.view(query)
        asked = scope(view, query, self._narrower)
        if query.hold_s:
            self.kept_until_ms(view, query.hold_s)
        return answers.portions(view, cut, *asked)

    def _known(
        self, head: Head, where: Expr, files: pa.Table, _chosen: Sequence[Chosen]
    ) -> GroupMatches:
        assert self._facts is not None
        return narrowed(head, where, files, self._facts)

    def kept_until_ms(self, view: View, hold_s: int = 0) -> int:
        """Until when cleaning leaves the files of a version (Unix milliseconds), which is held for
        so many seconds. Raises: as `Holds.place`."""
        held_ms = self._holds.place(view.head, hold_s).end_ms if hold_s else 0
        return max(held_ms, self._holds.readable_until_ms(view.head, self.table.window))


def require_no_merge_log(log: DeltaLog) -> None:
    """Raises: UnsupportedFeature if the table is merge-on-read."""
    if MergeLog(log).exists():
        raise UnsupportedFeature(
            "the index does not see the log of a merge-on-read table",
            resource=log.store.location,
            found="rows by key that no merge has taken into the table yet",
            expected="a table without a log",
            remedy="`tandem scan` reads the merged view; the index of the base alone takes "
            "`--base`, in Python `base=True`",
        )


def require_table(head: Head, query: Query) -> None:
    """Raises: TableReplaced if a version is of another table than the one that is asked about."""
    if query.table_id and head.metadata.id != query.table_id:
        raise TableReplaced(
            "the table at this location was replaced",
            resource=head.location,
            field="metaData.id",
            found=head.metadata.id,
            expected=query.table_id,
            remedy="Read the table again",
        )


def open_index(
    location: str,
    options: Mapping[str, str] | None = None,
    *,
    base: bool = False,
    row_groups: bool = True,
    allowed_prefixes: Sequence[str] = (),
) -> TableIndex:
    """The index of the table at a location.

    Args:
        location: a URL, or an absolute path.
        options: settings of the object store that are not secret. Credentials come from the
            environment.
        base, row_groups: as of `TableIndex`.
        allowed_prefixes: of a shallow clone, the locations of its sources.
    Raises: InvalidSpec, UnsupportedFeature.
    """
    log = DeltaLog(open_store(location, options, allowed_prefixes=allowed_prefixes))
    return TableIndex(log, base=base, row_groups=row_groups)


class Options(TypedDict, total=False):
    """What the functions below take beside a condition: as of `Query` and `open_index`."""

    version: int | None
    timestamp_ms: int | None
    segments: Collection[str]
    options: Mapping[str, str] | None
    base: bool


def count(location: str, where: str = "", **given: Unpack[Options]) -> int:
    """The number of rows of the table at a location for which a condition is true.
    Raises: as `IndexReader`."""
    index, query = _opened(location, where, given)
    return index.count(query)


def bounds(
    location: str, columns: Sequence[str], where: str = "", **given: Unpack[Options]
) -> dict[str, tuple[Any, Any]]:
    """As `IndexReader.bounds`."""
    index, query = _opened(location, where, given)
    return index.bounds(columns, query)


def splits(location: str, where: str = "", **given: Unpack[Options]) -> Splits:
    """As `IndexReader.splits`."""
    index, query = _opened(location, where, given)
    return index.splits(query)


def reader(
    location: str, where: str = "", columns: Sequence[str] | None = None, **given: Unpack[Options]
) -> pa.RecordBatchReader:
    """As `IndexReader.reader`."""
    index, query = _opened(location, where, given)
    return index.reader(query, columns)


def paths(location: str, where: str = "", **given: Unpack[Options]) -> list[str]:
    """As `IndexReader.paths`."""
    index, query = _opened(location, where, given)
    return index.paths(query)


def scope(view: View, query: Query, narrower: Narrower | None) -> Scope:
    """What a question is about, of a version. Raises: InvalidStatement."""
    return condition(view.head, query.where), query.segments, narrower, query.paths


def condition(head: Head, text: str) -> Expr | None:
    """The condition of a question, for a version's columns. Equal questions get the same one.
    Raises: InvalidStatement."""
    if not text:
        return None
    parsed = _condition if len(text) <= _SHORT else _condition.__wrapped__
    return parsed(text, head.metadata.schema_string, head.location)


@lru_cache(maxsize=1_024)
def _condition(text: str, schema_string: str, location: str) -> Expr:
    return parse_where(text, _schema(schema_string), resource=location)


@lru_cache(maxsize=64)
def _schema(schema_string: str) -> Schema:
    return Schema.from_json(schema_string)


def _opened(location: str, where: str, given: Options) -> tuple[TableIndex, Query]:
    query = Query(where, given.get("version"), given.get("timestamp_ms"), given.get("segments", ()))
    index = open_index(location, given.get("options"), base=given.get("base", False))
    return index, query


def _names(head: Head, columns: Sequence[str]) -> tuple[str, ...]:
    return column_names(head.schema, columns, resource=head.location)


def _require_plain(found: Splits) -> None:
    """Raises: UnsupportedFeature if the rows of the files are not those of the table."""
    head = found.head
    if column_mapping_mode(head.metadata.configuration) != "none":
        raise UnsupportedFeature(
            "the columns of the files have other names than those of the table",
            resource=head.location,
            found="column mapping",
            expected="a table without it",
            remedy="Read the table with `reader`",
        )
    vectors = found.files.filter(pc.is_valid(found.files["deletion_vector"]))
    if vectors.num_rows:
        raise UnsupportedFeature(
            "paths alone do not say which rows are deleted",
            resource=head.location,
            found=f"{vectors.num_rows} files with a deletion vector, one of them "
            f"{vectors['path'][0].as_py()}",
            expected="files without deleted rows",
            remedy="Read the table with `reader`, or compact these files",
        )
