"""The row groups that a condition needs, and those on all of whose rows it is true.

Statistics decide for all row groups at once, with the evaluator that decides for files. Of what is
left open, bloom filters are asked, if they can exclude anything. A column of which nothing is known
excludes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.delta.schema import Field, StructType
from tandem.distinct import BoolArray, IntArray
from tandem.index.facts.bloom_filters import FilteredBounds, LoadFilters, Probe, equalities
from tandem.index.facts.row_groups import FileFacts, group_column
from tandem.pruning.bounds import ColumnBounds, HeldBounds
from tandem.pruning.predicate import FileBounds, columns_of, may_match, must_match
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What a condition can be on some row groups.

    Attributes:
        may: False only where it is true on no row.
        must: True only where it is true on every row.
    """

    may: BoolArray
    must: BoolArray


class RowGroups:
    """The row groups of the files of some facts. Thread-safe; columns are decoded when a condition
    first names them."""

    def __init__(self, facts: FileFacts) -> None:
        self.facts = facts
        self._columns: dict[tuple[str, int | None, SqlType], HeldBounds | None] = {}
        self._lock = threading.Lock()

    def narrow(
        self,
        where: Expr,
        schema: StructType,
        groups: IntArray | None = None,
        *,
        by_id: bool = False,
        known: Mapping[str, HeldBounds] | None = None,
        load: LoadFilters | None = None,
    ) -> Narrowed:
        """Decide by statistics, and what these leave open by bloom filters.

        Args:
            schema: of the columns that files hold: readers take partition columns from the log.
            groups: which row groups; None for all.
            by_id: the table maps columns by field id.
            known: bounds of partition columns in these row groups, by name.
            load: reads filters; None for statistics alone. Only filters that can exclude a row
                group are loaded, column by column.
        """
        known = known or {}
        bounds = self._bounds(where, schema, groups, by_id, known)
        groups = np.arange(bounds.count) if groups is None else groups
        may, must = may_match(where, bounds), must_match(where, bounds)
        if load is not None:
            open_ = np.flatnonzero(may & ~must)
            chosen = {name: column.take(open_) for name, column in known.items()}
            may[open_] = self._by_filters(where, schema, groups[open_], by_id, chosen, load)
        return Narrowed(may, must)

    def _by_filters(
        self,
        where: Expr,
        schema: StructType,
        groups: IntArray,
        by_id: bool,
        known: Mapping[str, HeldBounds],
        load: LoadFilters,
    ) -> BoolArray:
        """Whether a condition may be true on a row of some row groups."""
        bounds = self._bounds(where, schema, groups, by_id, known)
        probes = [
            probe
            for name, constants in equalities(where).items()
            if name in bounds.columns
            and name not in known
            and (
                probe := Probe(
                    self.facts, groups, schema[name], bounds.columns[name], constants, by_id=by_id
                )
            )
        ]
        columns = dict(bounds.columns) | {
            probe.name: FilteredBounds(bounds.columns[probe.name], probe) for probe in probes
        }
        filtered = FileBounds(bounds.count, columns, bounds.empty)
        for probe in probes:
            # Where no answer of the filters that are left changes anything, none is asked.
            possible = may_match(where, filtered)
            _assume(probes, True)
            certain = may_match(where, filtered)
            _assume(probes, False)
            probe.ask(np.flatnonzero(certain & ~possible), load)
        _assume(probes, True)
        return may_match(where, filtered) if probes else np.ones(bounds.count, bool)

    @property
    def nbytes(self) -> int:
        """Bytes of its buffers."""
        columns = [column for column in list(self._columns.values()) if column is not None]
        return self.facts.nbytes + sum(column.nbytes for column in columns)

    def _bounds(
        self,
        where: Expr,
        schema: StructType,
        groups: IntArray | None,
        by_id: bool,
        known: Mapping[str, HeldBounds],
    ) -> FileBounds:
        columns: dict[str, ColumnBounds] = dict(known)
        for name, type_ in columns_of(where):
            field = schema.get(name)
            if field is None or name in columns:
                continue
            column = self._column(field, type_, by_id)
            if column is not None:
                columns[name] = column if groups is None else column.take(groups)
        rows = self.facts.group_rows if groups is None else self.facts.group_rows[groups]
        return FileBounds(len(rows), columns, rows == 0)

    def _column(self, field: Field, type_: SqlType, by_id: bool) -> HeldBounds | None:
        key = (field.physical_name, field.field_id if by_id else None, type_)
        with self._lock:
            if key not in self._columns:
                self._columns[key] = group_column(self.facts, field, type_, by_id=by_id)
            return self._columns[key]


def _assume(probes: Sequence[Probe], present: bool) -> None:
    for probe in probes:
        probe.assume(present)
