"""Merges over Arrow tables: the join, the clause that applies, and the rows that it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import number_rows
from tandem.statements import coercion, tree
from tandem.statements.local.expression import LocalExpression, compile_expression, rewritten
from tandem.statements.local.kernels import LocalRows, NeedsSpark
from tandem.statements.merge import SOURCE, TABLE, Clause, ClauseAction, MergeStatement, When
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType

# Finds the rows of two sides with equal keys: a hash join on codes.
#
# The values of a key on both sides are numbered together, equal values with the same code, by
# Spark's equality: NaN equals NaN, -0.0 equals 0.0. NULL equals nothing, except by `<=>`.


# Finds the rows whose key is among some values, much faster than a join. Pure.
#
# Equality is that of Arrow, so floating point keys are not looked for: -0.0 equals 0.0 in Spark.


_MULTIPLIER: Final = np.array([0x9E3779B97F4A7C15], np.uint64)
_MARKS_PER_VALUE: Final = 16
_MOST_BITS: Final = 24
"""Marks take a byte each."""


class SoughtValues:
    """The distinct values of one key; with NULL among them, NULL is found, too."""

    def __init__(self, values: Any) -> None:
        self._values = values
        self._marks: Any = None
        if pa.types.is_signed_integer(values.type) and not values.null_count:
            wanted = max(1, len(values)) * _MARKS_PER_VALUE
            self._bits = min(wanted.bit_length(), _MOST_BITS)
            self._marks = np.zeros(1 << self._bits, bool)
            self._marks[self._places(values)] = True

    def rows(self, column: Any) -> Places:
        """The indexes of the rows that have one of the values, ascending."""
        if self._marks is None:
            return np.flatnonzero(np.asarray(pc.is_in(column, self._values)))
        # Nearly all others are left out by one look at a small array.
        marked = np.flatnonzero(self._marks[self._places(pc.fill_null(column, 0))])
        found = pc.is_in(column.take(pa.array(marked)), self._values)
        return marked[np.flatnonzero(np.asarray(found))]

    def _places(self, column: Any) -> Any:
        words = np.asarray(column.cast(pa.int64())).view(np.uint64)
        return (words * _MULTIPLIER) >> np.uint64(64 - self._bits)


Places = npt.NDArray[np.int64]

MAX_PAIRS = 5_000_000
"""Larger joins are left to Spark, which need not hold all pairs in memory."""


@dataclass(frozen=True)
class RowPairs:
    """Pairs of rows, by their indexes on either side; ascending by `target`, then `source`."""

    target: Places
    source: Places

    def __len__(self) -> int:
        return len(self.target)

    def take(self, places: Any) -> RowPairs:
        """Some of the pairs; `places` ascending."""
        chosen = np.asarray(places, dtype=np.int64)
        return RowPairs(self.target[chosen], self.source[chosen])

    def doubled(self) -> Places:
        """Rows of the target in more than one pair, without duplicates, ascending."""
        again = self.target[1:][self.target[1:] == self.target[:-1]]
        return np.unique(again)


@dataclass(frozen=True)
class KeyValues:
    """The values of one key on both sides, as arrays of one type."""

    target: Any
    source: Any
    null_safe: bool = False


def equal_pairs(keys: Sequence[KeyValues], *, most: int = MAX_PAIRS) -> RowPairs:
    """The pairs whose values are equal for every key (at least one).

    Raises: NeedsSpark if there are more than `most`; pa.ArrowException for values that cannot be
    hashed.
    """
    target, source = _codes(keys)
    # Source rows by code: those of code c are order[start[c] : start[c + 1]].
    order = np.argsort(source, kind="stable")
    order = order[np.searchsorted(source[order], 0) :]
    highest = int(max(target.max(initial=-1), source.max(initial=-1)))
    counts = np.bincount(source[order], minlength=highest + 1)
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1] if len(counts) else counts
    found = np.flatnonzero(target >= 0)
    codes = target[found]
    each = counts[codes]
    total = int(each.sum())
    if total > most:
        raise NeedsSpark(f"{total} pairs of rows have equal keys")
    targets = np.repeat(found, each)
    # The position of each pair within its target row.
    within = np.arange(total) - np.repeat(np.cumsum(each) - each, each)
    sources = order[np.repeat(starts[codes], each) + within]
    return RowPairs(targets.astype(np.int64), sources.astype(np.int64))


def _codes(keys: Sequence[KeyValues]) -> tuple[Places, Places]:
    """A number for each row, equal for equal keys; -1 for a row whose key equals nothing."""
    columns = [_numbered(key) for key in keys]
    codes = columns[0]
    if len(columns) > 1:
        codes, _ = number_rows(columns)
        codes[np.any([column < 0 for column in columns], axis=0)] = -1
    split = len(keys[0].target)
    return codes[:split], codes[split:]


def _numbered(key: KeyValues) -> Places:
    values = pa.concat_arrays([key.target, key.source])
    if pa.types.is_floating(values.type):
        zero, nan = pa.scalar(0.0, values.type), pa.scalar(float("nan"), values.type)
        values = pc.if_else(pc.equal(values, zero), zero, values)
        values = pc.if_else(pc.is_nan(values), nan, values)
    nulls = "encode" if key.null_safe else "mask"
    if pa.types.is_null(values.type):
        return np.full(len(values), 0 if key.null_safe else -1, dtype=np.int64)
    indices = values.dictionary_encode(null_encoding=nulls).indices
    return np.asarray(pc.fill_null(indices, -1).cast(pa.int64()))


_RELATIONS = (TABLE, SOURCE)
NO_CLAUSE = -1
Sought = tuple[SoughtValues | None, ...]
"""For each key the values of the source; None if they are not looked for."""


@dataclass(frozen=True)
class LocalClause:
    """A clause. `number`: its index among all clauses of the merge."""

    number: int
    when: When
    action: ClauseAction
    where: LocalExpression | None
    assignments: Mapping[str, LocalExpression]

    def written(self, rows: LocalRows, table: pa.Table, places: Any) -> pa.Table:
        """The rows that an update or insert writes for those to which the clause applies.

        Args:
            rows: these rows, from `LocalMerge.matched_rows` or `LocalMerge.unmatched_rows`.
            table: for an update, the target; for an insert, any table with the target's schema.
            places: for an update, the indexes of the rows in `table`. Ignored by an insert.
        Returns: a table with the columns of `table`, in the order of `rows`.
        Raises: NeedsSpark.
        """
        if self.action == "Insert":
            empty = [pa.nulls(rows.length, field.type) for field in table.schema]
            schema = pa.schema([field.with_nullable(True) for field in table.schema])
            return rewritten(pa.Table.from_arrays(empty, schema=schema), self.assignments, rows)
        return rewritten(table.take(pa.array(places, pa.int64())), self.assignments, rows)


@dataclass(frozen=True)
class _Key:
    """A key: equal on both sides, each computed from the columns of its own side."""

    target: LocalExpression
    source: LocalExpression
    null_safe: bool


@dataclass(frozen=True)
class LocalMerge:
    """A merge that can be evaluated over Arrow.

    `on` is split into keys, conditions on the rows of one side, and the rest.
    """

    keys: tuple[_Key, ...]
    target_conditions: tuple[LocalExpression, ...]
    source_conditions: tuple[LocalExpression, ...]
    rest: tuple[LocalExpression, ...]
    clauses: tuple[LocalClause, ...]

    def sought(self, source: pa.Table) -> Sought:
        """The values that `may_match` looks for. Raises: NeedsSpark."""
        rows = LocalRows.of(source, SOURCE)
        passing = _passing(rows, self.source_conditions)
        found: list[SoughtValues | None] = []
        for key in self.keys:
            values = _of(key.source.evaluate(rows), passing)
            if pa.types.is_floating(values.type) or pa.types.is_null(values.type):
                found.append(None)
            else:
                known = values if key.null_safe else values.drop_null()
                found.append(SoughtValues(pc.unique(known)))
        return tuple(found)

    def may_match(self, target: pa.Table, sought: Sought) -> Places:
        """The indexes of all rows of the target that match, and perhaps of others: a row is left
        out by each of its keys alone. Costs much less than `match` if few rows match.

        Raises: NeedsSpark if Spark raises on one of the rows, or may do so.
        """
        rows = LocalRows.of(target, TABLE)
        values = [key.target.evaluate(rows) for key in self.keys]
        places = _passing(rows, self.target_conditions)
        for column, wanted in zip(values, sought, strict=True):
            if wanted is not None:
                among = wanted.rows(_of(column, places))
                places = among if places is None else places[among]
        return np.arange(rows.length) if places is None else places

    def match(self, target: pa.Table, source: pa.Table) -> RowPairs:
        """The pairs of rows for which `on` is true.

        Raises: NeedsSpark if Spark raises on one of the rows, or may do so, or for too many pairs.
        """
        target_rows, source_rows = LocalRows.of(target, TABLE), LocalRows.of(source, SOURCE)
        target_passing = _passing(target_rows, self.target_conditions)
        source_passing = _passing(source_rows, self.source_conditions)
        keys = [
            KeyValues(
                _of(key.target.evaluate(target_rows), target_passing),
                _of(key.source.evaluate(source_rows), source_passing),
                key.null_safe,
            )
            for key in self.keys
        ]
        try:
            found = equal_pairs(keys)
        except pa.ArrowException as error:
            raise NeedsSpark(str(error)) from error
        if target_passing is not None or source_passing is not None:
            found = RowPairs(
                found.target if target_passing is None else target_passing[found.target],
                found.source if source_passing is None else source_passing[found.source],
            )
        for condition in self.rest:
            pairs = self.matched_rows(target, source, found)
            found = found.take(condition.where(pairs))
        return found

    @staticmethod
    def matched_rows(target: pa.Table, source: pa.Table, matches: RowPairs) -> LocalRows:
        """The joined rows of matches, for `Matched` clauses."""
        sides = {
            TABLE: (target, pa.array(matches.target, pa.int64())),
            SOURCE: (source, pa.array(matches.source, pa.int64())),
        }
        return LocalRows(sides, len(matches))

    @staticmethod
    def unmatched_rows(table: pa.Table, places: Any, when: When) -> LocalRows:
        """Rows of one side without a match: of the source for `NotMatched` clauses, of the target
        for `NotMatchedBySource` ones."""
        chosen = pa.array(places, pa.int64())
        relation = SOURCE if when == "NotMatched" else TABLE
        return LocalRows({relation: (table, chosen)}, len(chosen))

    def clause_numbers(self, when: When, rows: LocalRows) -> Places:
        """The number of the clause that applies to each row: the first of this `when` whose
        condition is true, `NO_CLAUSE` if there is none.

        Raises: NeedsSpark.
        """
        chosen = np.full(rows.length, NO_CLAUSE, dtype=np.int64)
        for clause in self.when(when):
            affected = chosen == NO_CLAUSE
            if clause.where is not None:
                holds = np.zeros(rows.length, dtype=bool)
                holds[np.asarray(clause.where.where(rows))] = True
                affected &= holds
            chosen[affected] = clause.number
        return chosen

    def when(self, when: When) -> tuple[LocalClause, ...]:
        return tuple(clause for clause in self.clauses if clause.when == when)


def compile_merge(merge: MergeStatement) -> LocalMerge | None:
    """The merge over Arrow; None if only Spark can evaluate a part of it, or if `on` compares no
    expression on the table with one on the source by = or <=>."""
    keys: list[_Key] = []
    conditions: dict[str, list[LocalExpression]] = {TABLE: [], SOURCE: [], "": []}
    for part in _conjuncts(merge.on):
        key = _key(part)
        if key is not None:
            keys.append(key)
            continue
        compiled = compile_expression(part, _RELATIONS)
        if compiled is None:
            return None
        sides = _sides(part)
        conditions[next(iter(sides)) if len(sides) == 1 else ""].append(compiled)
    types = {column.name: column.type for column in merge.table.columns}
    clauses = [_clause(number, clause, types) for number, clause in enumerate(merge.clauses)]
    known = tuple(clause for clause in clauses if clause is not None)
    if not keys or len(known) < len(clauses):
        return None
    return LocalMerge(
        tuple(keys),
        tuple(conditions[TABLE]),
        tuple(conditions[SOURCE]),
        tuple(conditions[""]),
        known,
    )


def _conjuncts(root: Expr) -> Iterator[Expr]:
    if isinstance(root, tree.Logical) and root.op == "AND":
        for operand in root.operands:
            yield from _conjuncts(operand)
    else:
        yield root


def _sides(root: Expr) -> frozenset[str]:
    return frozenset(n.parts[0] for n in tree.walk(root) if isinstance(n, tree.ColumnRef))


def _key(part: Expr) -> _Key | None:
    if not isinstance(part, tree.Binary) or part.op not in ("=", "<=>"):
        return None
    left, right = part.left, part.right
    if _sides(left) == {SOURCE}:
        left, right = right, left
    if _sides(left) != {TABLE} or _sides(right) != {SOURCE}:
        return None
    met = coercion.common_of_all((left, right))
    # The comparison itself leaves a decimal that does not hold both sides to Spark.
    if met is None or compile_expression(part, _RELATIONS) is None:
        return None
    ends = [
        compile_expression(
            side if side.type == met else tree.Cast(operand=side, type=met), _RELATIONS
        )
        for side in (left, right)
    ]
    target, source = ends
    if target is None or source is None:
        return None
    return _Key(target, source, part.op == "<=>")


def _clause(number: int, clause: Clause, types: Mapping[str, SqlType]) -> LocalClause | None:
    where = None
    if clause.where is not None:
        where = compile_expression(clause.where, _RELATIONS)
        if where is None:
            return None
    if clause.every and not all(
        types[item.column].same_as(item.value.type) or not item.value.type.is_nested
        for item in clause.assignments
    ):
        return None  # Spark says what differs
    if any(_reads_map(item.value) for item in clause.assignments):
        return None  # in which Spark looks for a key that occurs twice
    values = {
        item.column: compile_expression(item.value, _RELATIONS) for item in clause.assignments
    }
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        return None
    return LocalClause(number, clause.when, clause.action, where, known)


def _reads_map(value: Expr) -> bool:
    """Whether a value holds a map of the source."""
    columns = (node for node in tree.walk(value) if isinstance(node, tree.ColumnRef))
    return any(node.parts[0] == SOURCE and node.type.has_map for node in columns)


def _passing(rows: LocalRows, conditions: Sequence[LocalExpression]) -> Places | None:
    """The indexes of the rows for which all conditions are true; None for all rows."""
    if not conditions:
        return None
    passing = np.ones(rows.length, dtype=bool)
    for condition in conditions:
        holds = np.zeros(rows.length, dtype=bool)
        holds[np.asarray(condition.where(rows))] = True
        passing &= holds
    return np.flatnonzero(passing)


def _of(values: Any, places: Places | None) -> Any:
    return values if places is None else values.take(pa.array(places, pa.int64()))
