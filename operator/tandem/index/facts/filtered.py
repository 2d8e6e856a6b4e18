"""What bloom filters say of the constants of a condition, in some row groups.

Pure, but for the function that loads filters, which the caller brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tandem.delta.schema import Field
from tandem.distinct import BoolArray, IntArray
from tandem.index.facts.columns import column_keys
from tandem.index.facts.encoded import encodings
from tandem.index.facts.model import UNKNOWN, FileFacts
from tandem.index.facts.parquet.bloom import BloomFilter, FilterPlace, Hashes
from tandem.pruning.bounds import ColumnBounds, RangeComparison, SortedKeys
from tandem.pruning.constants import comparable_constant
from tandem.statements import tree
from tandem.statements.tree import Expr

LoadFilters = Callable[[Sequence[FilterPlace]], Sequence[BloomFilter | None]]
"""Reads filters; None for one that cannot be read or is not believed."""

_AT_ONCE = 16
"""Filters that are in memory together for one question; most have up to a mebibyte."""
_EQUALITIES = ("=", "!=", "<=>")


def equalities(where: Expr) -> dict[str, list[Any]]:
    """The constants that columns are compared with for equality."""
    found: dict[str, dict[Any, None]] = {}
    for column, literal in _comparisons(where):
        value = comparable_constant(literal, column.type)
        if value is not None and len(column.parts) == 1:
            found.setdefault(column.parts[0], {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _comparisons(where: Expr) -> Iterator[tuple[tree.ColumnRef, tree.Literal]]:
    for node in tree.walk(where):
        match node:
            case tree.Binary(left=tree.ColumnRef() as column, right=tree.Literal() as literal):
                if node.op in _EQUALITIES:
                    yield column, literal
            case tree.Binary(left=tree.Literal() as literal, right=tree.ColumnRef() as column):
                if node.op in _EQUALITIES:
                    yield column, literal
            case tree.InList(value=tree.ColumnRef() as column):
                for item in node.items:
                    if isinstance(item, tree.Literal):
                        yield column, item


class Probe:
    """What the filters of a column say of constants, in some row groups."""

    def __init__(
        self,
        facts: FileFacts,
        groups: IntArray,
        field: Field,
        bounds: ColumnBounds,
        constants: Sequence[Any],
        *,
        by_id: bool,
    ) -> None:
        self.name = field.name
        self._facts, self._groups = facts, groups
        self._places = {value: place for place, value in enumerate(constants)}
        self._hashes: list[Hashes] = []
        # By row group: the entry of `_hashes` for the type of its column, and its filter.
        self._kind = np.full(len(groups), UNKNOWN)
        self._start, self._bytes = (np.full(len(groups), UNKNOWN) for _ in range(2))
        for key in column_keys(facts, field, by_id=by_id):
            column = facts.columns[key]
            start = column.filter_start[groups]
            here = start != UNKNOWN
            self._kind[here] = len(self._hashes)
            self._start[here] = start[here]
            self._bytes[here] = column.filter_bytes[groups][here]
            self._hashes.append(Hashes([encodings(v, key.type, bounds.type) for v in constants]))
        # Statistics may say already that no row has one of the constants.
        near = np.logical_or.reduce([bounds.place(value).touches() for value in constants])
        self._kind[~near] = UNKNOWN
        self._asked = np.zeros(len(groups), bool)
        self._found = np.ones((len(constants), len(groups)), bool)
        self.assume(False)

    def __bool__(self) -> bool:
        return bool((self._kind != UNKNOWN).any())

    def assume(self, present: bool) -> None:
        """Whether filters that were not asked have the constants."""
        self._found[:, (self._kind != UNKNOWN) & ~self._asked] = present

    def ask(self, rows: IntArray, load: LoadFilters) -> None:
        """Load the filters of some row groups."""
        rows = rows[(self._kind[rows] != UNKNOWN) & ~self._asked[rows]]
        if not len(rows):
            return
        files = self._facts.file_of_group[self._groups[rows]]
        places = [
            FilterPlace(path, size, start, length)
            for path, size, start, length in zip(
                self._facts.paths.take(files).to_pylist(),
                self._facts.sizes[files].tolist(),
                self._start[rows].tolist(),
                self._bytes[rows].tolist(),
                strict=True,
            )
        ]
        anything = [True] * len(self._places)
        for first in range(0, len(rows), _AT_ONCE):
            piece = rows[first : first + _AT_ONCE]
            filters = load(places[first : first + _AT_ONCE])
            answers = [
                anything if filter_ is None else filter_.may_have(self._hashes[kind])
                for kind, filter_ in zip(self._kind[piece].tolist(), filters, strict=True)
            ]
            self._found[:, piece] = np.array(answers).T
        self._asked[rows] = True

    def may_equal(self, value: Any) -> BoolArray | bool:
        place = self._places.get(value)
        return True if place is None else self._found[place]


class FilteredBounds(ColumnBounds):
    """The bounds of a column, which equals a constant only where its filter allows that."""

    def __init__(self, bounds: ColumnBounds, probe: Probe) -> None:
        super().__init__(bounds.some_null, bounds.some_value)
        self.type = bounds.type
        self._bounds, self._probe = bounds, probe

    def place(self, value: Any) -> RangeComparison:
        found = self._bounds.place(value)
        return RangeComparison(
            found.below, lambda: found.touches() & self._probe.may_equal(value), found.above
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        return self._bounds.may_begin(prefix)

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        return self._bounds.may_equal(keys)
