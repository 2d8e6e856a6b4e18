"""The files in which a condition can be true, and those in which it must be, decided for all files
at once.

Computes a superset of the values of each condition on the rows of each file (true, false, NULL),
and keeps a file if they are unknown. An excluded file is not evaluated, so an error that only its
rows raise does not occur, as with any engine that skips files.

The bounds of a working set: the columns of a condition, read from all files at once.

Columns are top-level ones, by their name in the schema; statistics and partition values use their
physical name (column mapping). Fields of structs have no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.partitions import to_scalar
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.distinct import BoolArray, IntArray
from tandem.errors import CorruptLog
from tandem.pruning.bounds import (
    FLOATING,
    ColumnBounds,
    HeldBounds,
    PartitionBounds,
    comparable_constant,
    held,
    statistics_bounds,
    statistics_type,
    usable,
)
from tandem.pruning.scope import MISSING, partition_codes
from tandem.statements import tree
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, DOUBLE, FLOAT, SqlType

_NO_ROWS = 0


@dataclass(frozen=True)
class FileBounds:
    """The bounds of `count` files; a column that is not in `columns` is unknown.

    `empty` are the files that hold no rows.
    """

    count: int
    columns: Mapping[str, ColumnBounds]
    empty: BoolArray


@dataclass(frozen=True)
class StatedBounds:
    """What the statistics of files say.

    Attributes:
        columns: the bounds of columns that have usable statistics.
        rows: physical rows of each file, -1 if unknown.
        tight: whether the statistics are those of its rows, and not merely bound them.
    """

    columns: Mapping[str, HeldBounds]
    rows: IntArray
    tight: BoolArray


def bounds_of(
    files: pa.Table,
    schema: StructType,
    partition_columns: Iterable[str],
    wanted: Mapping[str, SqlType],
) -> FileBounds:
    """The bounds of the wanted columns.

    Args:
        files: `path`, `stats` and `partition_values` as in `Snapshot.files`.
        wanted: names as in the schema, with their types.
    """
    partitions = set(partition_columns)
    found = partition_bounds(files["partition_values"], schema, partitions, wanted)
    others = {name: type_ for name, type_ in wanted.items() if name not in partitions}
    stated = stated_bounds(files["stats"], schema, others)
    empty = stated.rows == _NO_ROWS
    return FileBounds(files.num_rows, {**found, **stated.columns}, empty)


def partition_bounds(
    values: pa.ChunkedArray,
    schema: StructType,
    partition_columns: Iterable[str],
    wanted: Mapping[str, SqlType],
) -> dict[str, PartitionBounds]:
    """The bounds of those wanted columns that are partition columns.

    Args:
        values: `partition_values` of `Snapshot.files`.
    """
    partitions = set(partition_columns)
    columns = {}
    for name, type_ in wanted.items():
        field = schema.get(name)
        if name in partitions and field is not None and isinstance(field.type, PrimitiveType):
            codes = partition_codes(values, field.physical_name)
            columns[name] = _partition(*codes, field.type, type_)
    return columns


def stated_bounds(
    stats: pa.ChunkedArray, schema: StructType, wanted: Mapping[str, SqlType]
) -> StatedBounds:
    """The bounds of the wanted columns by statistics.

    Args:
        stats: as in `Snapshot.files`.
        wanted: names as in the schema, with their types; no partition columns.
    """
    used = {
        name: type_
        for name, type_ in wanted.items()
        if (field := schema.get(name)) is not None
        and isinstance(field.type, PrimitiveType)
        and statistics_type(type_) is not None
    }
    physical = {name: schema[name].physical_name for name in used}
    table = stats_.read(stats, _fields(used, physical)).combine_chunks()
    rows = _numbers(table["numRecords"])
    tight = np.asarray(pc.fill_null(table["tightBounds"], True)).astype(bool)
    columns = {}
    for at, (name, type_) in enumerate(used.items()):
        low, high, nulls = (
            # By index: Arrow parses a name that begins with a dot as a path.
            _one(pc.struct_field(table[field], [at]))
            for field in ("minValues", "maxValues", "nullCount")
        )
        known = np.where(tight, _numbers(nulls), MISSING)
        columns[name] = statistics_bounds(
            type_,
            *held(low, high, _written_as(schema[name], type_)),
            some_null=known != _NO_ROWS,
            some_value=(known != rows) | (known == MISSING),
        )
    return StatedBounds(columns, rows, tight)


def _written_as(field: Field, type_: SqlType) -> SqlType:
    """The type whose limits the statistics of a column have. A double may have been a float, whose
    0.7 was written as 0.7 (type widening)."""
    return FLOAT if type_ == DOUBLE and "delta.typeChanges" in field.metadata else type_


def _partition(
    codes: npt.NDArray[np.int64], texts: Sequence[str | None], type_: PrimitiveType, as_: SqlType
) -> PartitionBounds:
    values: list[Any] = []
    unknown: list[int] = []
    nulls: list[int] = []
    for code, text in enumerate(texts):
        known, value = _value(text, type_)
        values.append(usable(value, as_))
        if not known:
            unknown.append(code)
        elif value is None:
            nulls.append(code)
    codes = np.where(np.isin(codes, unknown), MISSING, codes)
    codes = np.where(np.isin(codes, nulls[1:]), nulls[0] if nulls else MISSING, codes)
    return PartitionBounds(as_, codes, values, nulls[0] if nulls else None)


def _value(text: str | None, type_: PrimitiveType) -> tuple[bool, Any]:
    try:
        return True, to_scalar(text, type_).as_py()
    except (CorruptLog, ValueError, OverflowError):  # also values outside Python's calendar
        return False, None


def _fields(types: Mapping[str, SqlType], physical: Mapping[str, str]) -> pa.Schema:
    fields = [("numRecords", pa.int64()), ("tightBounds", pa.bool_())]
    if types:
        bounds = pa.struct([(physical[name], statistics_type(t)) for name, t in types.items()])
        nulls = pa.struct([(physical[name], pa.int64()) for name in types])
        fields += [("minValues", bounds), ("maxValues", bounds), ("nullCount", nulls)]
    return pa.schema(fields)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _numbers(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    """Numbers of rows or NULLs; -1 if unknown."""
    return np.asarray(pc.fill_null(stats_.valid_counts(column), MISSING)).astype(np.int64)


def columns_of(where: Expr, relation: str = "") -> Iterator[tuple[str, SqlType]]:
    """The top-level columns that a condition names. `relation` qualifies those of the table in a
    condition over several relations; columns of the others are left out."""
    if isinstance(where, tree.ColumnRef):
        name = _column_name(where, relation)
        if name is not None:
            yield name, where.type
    for child in where.children():
        yield from columns_of(child, relation)


def may_match(where: Expr, files: FileBounds, relation: str = "") -> BoolArray:
    """False only for files on whose rows the condition is never true."""
    return _Evaluation(files, relation).possible(where).true & ~files.empty


def must_match(where: Expr, files: FileBounds, relation: str = "") -> BoolArray:
    """True only for files on all of whose rows the condition is true, as in one without rows."""
    possible = _Evaluation(files, relation).possible(where)
    return (possible.true & ~(possible.false | possible.null)) | files.empty


Mask = Callable[[], BoolArray]


@dataclass(frozen=True)
class _Possible:
    """The possible values of a condition on the rows of each file; several may be true.

    Each is computed when it is needed, once: most questions need a few of them."""

    may_be_true: Mask
    may_be_false: Mask
    may_be_null: Mask
    # Not `cached_property`: before Python 3.12 it computes under a lock that all instances share.
    # Two threads, of which one needs `false` for `true` and one `true` for `false`, as NOT does,
    # would wait for each other for ever.
    _found: dict[str, BoolArray] = field(default_factory=dict, init=False)

    @property
    def true(self) -> BoolArray:
        return self._once("true", self.may_be_true)

    @property
    def false(self) -> BoolArray:
        return self._once("false", self.may_be_false)

    @property
    def null(self) -> BoolArray:
        return self._once("null", self.may_be_null)

    def _once(self, name: str, mask: Mask) -> BoolArray:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = mask()
        return found

    def negated(self) -> _Possible:
        return _Possible(lambda: self.false, lambda: self.true, lambda: self.null)

    def negated_if(self, negated: bool) -> _Possible:
        return self.negated() if negated else self

    def and_(self, other: _Possible) -> _Possible:
        return _all_of(lambda: (self, other))


def _all_of(parts: Callable[[], Iterable[_Possible]]) -> _Possible:
    """All possible values of x AND y AND …, in three-valued logic.

    Without recursion, since there may be thousands.

    Args:
        parts: makes them each time, so that the masks of many are not held together.
    """
    return _Possible(
        lambda: _reduced(parts(), lambda part: part.true, np.logical_and),
        lambda: _reduced(parts(), lambda part: part.false, np.logical_or),
        # One is NULL, and none is false.
        lambda: (
            _reduced(parts(), lambda part: part.null, np.logical_or)
            & _reduced(parts(), lambda part: part.true | part.null, np.logical_and)
        ),
    )


def _any_of(parts: Callable[[], Iterable[_Possible]]) -> _Possible:
    """As `_all_of`, of x OR y OR …"""
    return _all_of(lambda: (part.negated() for part in parts())).negated()


def _reduced(
    parts: Iterable[_Possible], mask: Callable[[_Possible], BoolArray], join: np.ufunc
) -> BoolArray:
    found: BoolArray | None = None
    for part in parts:
        found = mask(part) if found is None else join(found, mask(part))
        # What is decided for all files stays so.
        if join is np.logical_and and not found.any():
            break
    assert found is not None
    return found


_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!=", "<=>": "<=>"}


class _Evaluation:
    def __init__(self, files: FileBounds, relation: str) -> None:
        self._files, self._relation = files, relation
        self._any = _Possible(self._all, self._all, self._all)

    @cached_property
    def _every(self) -> BoolArray:
        return np.ones(self._files.count, bool)

    def _all(self) -> BoolArray:
        return self._every

    def _none(self) -> BoolArray:
        return ~self._every

    def possible(self, node: Expr) -> _Possible:
        match node:
            case tree.Literal():
                return self._constant(node.value)
            case tree.Cast(operand=tree.Literal(value=None)):
                return self._constant(None)
            case tree.ColumnRef():
                return self._compared("=", node, tree.Literal(value=True, type=BOOLEAN))
            case tree.Unary(op="NOT"):
                return self.possible(node.operand).negated()
            case tree.Logical():
                return self._logical(node)
            case tree.Binary():
                return self._binary(node.op, node.left, node.right)
            case tree.Between():
                low = self._binary(">=", node.value, node.low)
                high = self._binary("<=", node.value, node.high)
                return low.and_(high).negated_if(node.negated)
            case tree.InList(items=()):
                return self._constant(False)
            case tree.InList():
                found = _any_of(
                    lambda: (self._binary("=", node.value, item) for item in node.items)
                )
                return found.negated_if(node.negated)
            case tree.IsTest():
                return self._is(node).negated_if(node.negated)
            case tree.Match(op="LIKE"):
                return self._like(node).negated_if(node.negated)
            case _:
                return self._any

    def _constant(self, value: object) -> _Possible:
        chosen = [value is not None and bool(value), value is not None and not value, value is None]
        return _Possible(*(self._all if each else self._none for each in chosen))

    def _logical(self, node: tree.Logical) -> _Possible:
        operands = [self.possible(operand) for operand in node.operands]
        return (_all_of if node.op == "AND" else _any_of)(lambda: operands)

    def _binary(self, op: str, left: Expr, right: Expr) -> _Possible:
        if isinstance(left, tree.Literal) and isinstance(right, tree.ColumnRef) and op in _MIRRORED:
            left, right, op = right, left, _MIRRORED[op]
        if not (isinstance(left, tree.ColumnRef) and isinstance(right, tree.Literal)):
            return self._any
        if op not in _MIRRORED:
            return self._any
        return self._compared(op, left, right)

    def _compared(self, op: str, column: tree.ColumnRef, literal: tree.Literal) -> _Possible:
        known = self._known(column)
        some_null, some_value = self._nulls(known)
        if literal.value is None:
            if op == "<=>":
                return _Possible(some_null, some_value, self._none)
            return self._constant(None)
        if op == "<=>":
            equal = self._compared("=", column, literal)
            return _Possible(lambda: equal.true, lambda: equal.false | some_null(), self._none)
        true, false = self._ordered(op, known, literal)
        return _Possible(lambda: true() & some_value(), lambda: false() & some_value(), some_null)

    def _ordered(
        self, op: str, known: ColumnBounds | None, literal: tree.Literal
    ) -> tuple[Mask, Mask]:
        """Where a comparison can be true, and where false, for values that are not NULL."""
        if op == "!=":
            return self._ordered("=", known, literal)[::-1]
        value = comparable_constant(literal, known.type) if known is not None else None
        if known is None or value is None:
            return self._all, self._all
        place = known.place(value)
        below, touches = place.below, place.touches
        # A NaN, which statistics omit, is greater than everything and equal to nothing else.
        above = self._all if known.type.name in FLOATING else place.above
        match op:
            case "=":
                return touches, lambda: below() | above()
            case "<":
                return below, lambda: touches() | above()
            case "<=":
                return lambda: below() | touches(), above
            case ">":
                return above, lambda: touches() | below()
            case _:
                return lambda: above() | touches(), below

    def _is(self, node: tree.IsTest) -> _Possible:
        if node.what == "NULL":
            match node.value:
                case tree.ColumnRef():
                    return _Possible(*self._nulls(self._known(node.value)), self._none)
                case tree.Literal():
                    return self._constant(node.value.value is None)
                case _:
                    return _Possible(self._all, self._all, self._none)
        possible = self.possible(node.value)
        wanted: dict[str, Mask] = {
            "TRUE": lambda: possible.true,
            "FALSE": lambda: possible.false,
            "UNKNOWN": lambda: possible.null,
        }
        others = [mask for what, mask in wanted.items() if what != node.what]
        return _Possible(wanted[node.what], lambda: others[0]() | others[1](), self._none)

    def _like(self, node: tree.Match) -> _Possible:
        """LIKE 'abc%': the value lies between 'abc' and the first text after all with that
        prefix."""
        if not isinstance(node.value, tree.ColumnRef):
            return self._any
        known = self._known(node.value)
        some_null, some_value = self._nulls(known)
        if known is None or known.type.name != "string":
            return _Possible(some_value, some_value, some_null)
        prefix = _prefix(node.pattern, node.escape).encode()
        return _Possible(lambda: known.may_begin(prefix) & some_value(), some_value, some_null)

    def _known(self, column: tree.ColumnRef) -> ColumnBounds | None:
        name = _column_name(column, self._relation)
        return self._files.columns.get(name) if name is not None else None

    def _nulls(self, known: ColumnBounds | None) -> tuple[Mask, Mask]:
        """Where the column can be NULL, and where it can have a value."""
        if known is None:
            return self._all, self._all
        return lambda: known.some_null, lambda: known.some_value


def _column_name(column: tree.ColumnRef, relation: str) -> str | None:
    parts = column.parts
    if relation:
        if parts[0] != relation:
            return None
        parts = parts[1:]
    return parts[0] if len(parts) == 1 else None


def _prefix(pattern: str, escape: str) -> str:
    out: list[str] = []
    chars = iter(pattern)
    for char in chars:
        if char in "%_" and char != escape:
            break
        out.append(next(chars, "") if char == escape else char)
    return "".join(out)
