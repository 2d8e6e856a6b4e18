"""Compiles trees to functions over Arrow: the part of the language that is proven equal to Spark.

Each node becomes a function of the rows. All operands are evaluated on all rows; Spark may skip
some (the right side of AND, the branches of CASE). So an error here, on rows where Spark might not
raise, only sends the rows to Spark; the reverse does not happen. So updates and deletes are
evaluated over Arrow tables (`LocalStatement`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.statements import coercion, tree
from tandem.statements.local import kernels
from tandem.statements.local.kernels import (
    LocalRows,
    NeedsSpark,
    Value,
    arrow_type,
    constant,
    constant_as,
    function_of,
)
from tandem.statements.statement import Statement
from tandem.statements.tree import Expr
from tandem.statements.types import BOOLEAN, NULL, STRING, SqlType, as_decimal

Step = Callable[[LocalRows], Value]

_COMPARISONS: Final = frozenset({"=", "!=", "<", "<=", ">", ">=", "<=>"})
_EQUALITIES: Final = frozenset({"=", "!=", "<=>"})
_MAX_CHAIN: Final = 50
"""Items of an IN list that are compared one by one. For floats, Spark looks up lists of more than
ten (`spark.sql.optimizer.inSetConversionThreshold`) in a separate set."""
_MAX_FLOATS: Final = 10
_NEGATED_DIGITS: Final = 34


@dataclass(frozen=True)
class LocalExpression:
    """An expression that can be evaluated over Arrow. `type` is the statement's type."""

    type: SqlType
    step: Step

    def evaluate(self, rows: LocalRows | pa.Table) -> Any:
        """The value for each row, as one `pa.Array` of the Arrow type of `type`.

        Args:
            rows: the rows, or the whole table for an expression on one table. Columns have the
                names of the table's schema.
        Raises: NeedsSpark if Spark raises on one of the rows, or may do so.
        """
        given = LocalRows.of(rows) if isinstance(rows, pa.Table) else rows
        try:
            return kernels.broadcast(self.step(given), given.length)
        except pa.ArrowException as error:
            raise NeedsSpark(str(error)) from error

    def where(self, rows: LocalRows | pa.Table) -> Any:
        """The indexes of the rows for which a condition is true, ascending, as int64.

        Raises: NeedsSpark.
        """
        found = self.evaluate(rows)
        if self.type == NULL:
            return pa.array([], pa.int64())
        return pc.indices_nonzero(kernels.is_true(found)).cast(pa.int64())


class NotLocal(Exception):
    """A node that is not in the proven subset."""


def compile_expression(root: Expr, relations: Sequence[str] = ()) -> LocalExpression | None:
    """The expression as a function over Arrow; None if only Spark can evaluate a part of it.

    Args:
        relations: names of the two relations of a merge; empty for a statement on one table.
    """
    try:
        return LocalExpression(root.type, _Compiler(relations).step(root))
    except NotLocal:
        return None


class _Compiler:
    def __init__(self, relations: Sequence[str]) -> None:
        self.relations = relations

    def step(self, node: Expr) -> Step:
        match node:
            case tree.Literal():
                try:
                    value = need(constant(node))
                except KeyError as error:
                    raise NotLocal(str(node.type)) from error
                return lambda _rows: value
            case tree.ColumnRef():
                need((node.type.is_atomic or node.type.is_nested) and node.type.name != "unknown")
                return self.column(node)
            case tree.Unary():
                return self.unary(node)
            case tree.Binary():
                return self.binary(node)
            case tree.Logical():
                return self.logical(node)
            case tree.Between():
                return self.between(node)
            case tree.InList():
                return self.in_list(node)
            case tree.IsTest():
                return self.is_test(node)
            case tree.Match():
                return self.match(node)
            case tree.Case():
                return self.case(node)
            case tree.Cast():
                return self.cast(node)
            case tree.Call():
                return self.call(node)
            case _:
                raise NotLocal(type(node).__name__)

    def column(self, node: tree.ColumnRef) -> Step:
        relation, path = "", node.parts
        if self.relations:
            relation, path = node.parts[0], node.parts[1:]
        if not node.type.is_atomic:
            return lambda rows: rows.column(relation, path)
        wanted = arrow_type(node.type)

        def read(rows: LocalRows) -> Value:
            column = rows.column(relation, path)
            return column if column.type.equals(wanted) else kernels.cast(column, wanted)

        return read

    def converted(self, node: Expr, target: SqlType) -> Step:
        """A node converted to another type, by the cast that Spark adds."""
        if isinstance(node, tree.Literal) and node.type != target:
            value = constant_as(node, target)
            if value is not None:
                return lambda _rows: value
        convert = need(kernels.converter(node.type, target))
        step = self.step(node)
        return lambda rows: convert(step(rows))

    def together(self, nodes: Sequence[Expr]) -> tuple[list[Step], SqlType]:
        """Nodes converted to their common type, and that type."""
        met = need(coercion.common_of_all(nodes))
        need(met.is_atomic and met.name != "unknown" and not _is_cut(met, nodes))
        return [self.converted(node, met) for node in nodes], met

    def unary(self, node: tree.Unary) -> Step:
        if node.op == "NOT":
            operand = self.converted(node.operand, BOOLEAN)
            return lambda rows: pc.invert(operand(rows))
        need(node.type.is_numeric)
        step, data_type = self.step(node.operand), node.type
        if node.op == "+":
            return step
        need(not _may_be_negative_zero(node))
        # Spark rounds a negated decimal to 34 digits.
        need(data_type.precision <= _NEGATED_DIGITS)
        return lambda rows: kernels.negate(step(rows), data_type)

    def binary(self, node: tree.Binary) -> Step:
        if node.op in _COMPARISONS:
            return self.comparison(node.op, node.left, node.right)
        if node.op == "||":
            return self.joined((node.left, node.right))
        need(not (node.left.type == STRING or node.right.type == STRING))
        if node.type.name == "decimal":
            return self.decimals(node)
        need(node.type.is_numeric and node.op in _arithmetic(node.type))
        need(not _may_be_negative_zero(node))
        # Spark divides integers as DOUBLE, and DIV uses BIGINT.
        kernel = _arithmetic(node.type)[node.op]
        need(node.op != "DIV" or _integral(node.left, node.right))
        left, right = (self.converted(side, node.type) for side in (node.left, node.right))
        return lambda rows: kernel(left(rows), right(rows))

    def decimals(self, node: tree.Binary) -> Step:
        """+ - * that drop no digit: Arrow's result type is then Spark's."""
        need(node.op in _DECIMAL)
        kernel, to = _DECIMAL[node.op], arrow_type(node.type)
        sides = []
        for side in (node.left, node.right):
            need(side.type.name == "decimal" or side.type.is_integral)
            sides.append(self.converted(side, coercion.as_exact_decimal(side, side.type)))
        left, right = sides

        def step(rows: LocalRows) -> Value:
            return kernel(left(rows), right(rows))

        exact = [pa.scalar(None, arrow_type(coercion.as_exact_decimal(s, s.type)))
                 for s in (node.left, node.right)]  # fmt: skip
        try:
            need(kernel(*exact).type.equals(to))
        except pa.ArrowException as error:
            raise NotLocal("more digits than a decimal has") from error
        return step

    def comparison(self, op: str, left: Expr, right: Expr) -> Step:
        need(op in _EQUALITIES or not _beyond_integers(left, right))
        (one, other), met = self.together((left, right))
        if met == NULL:
            known = pa.scalar(True if op == "<=>" else None, pa.bool_())
            return lambda _rows: known
        return lambda rows: kernels.compare(op, one(rows), other(rows), met)

    def logical(self, node: tree.Logical) -> Step:
        kernel = pc.and_kleene if node.op == "AND" else pc.or_kleene
        operands = [self.converted(operand, BOOLEAN) for operand in node.operands]

        def step(rows: LocalRows) -> Value:
            found = operands[0](rows)
            for operand in operands[1:]:
                found = kernel(found, operand(rows))
            return found

        return step

    def between(self, node: tree.Between) -> Step:
        low = self.comparison(">=", node.value, node.low)
        high = self.comparison("<=", node.value, node.high)
        return _negated(lambda rows: pc.and_kleene(low(rows), high(rows)), node.negated)

    def in_list(self, node: tree.InList) -> Step:
        steps, met = self.together((node.value, *node.items))
        value, *items = steps
        if met == NULL:
            return lambda _rows: pa.scalar(None, pa.bool_())
        literals = all(isinstance(item, tree.Literal) for item in node.items)
        if literals and not kernels.is_floating(met):
            return _negated(_in_set(value, items, met), node.negated)
        need(len(items) <= (_MAX_FLOATS if kernels.is_floating(met) else _MAX_CHAIN))

        def step(rows: LocalRows) -> Value:
            searched = value(rows)
            found = kernels.equal(searched, items[0](rows), met)
            for item in items[1:]:
                found = pc.or_kleene(found, kernels.equal(searched, item(rows), met))
            return found

        return _negated(step, node.negated)

    def is_test(self, node: tree.IsTest) -> Step:
        if node.what == "NULL":
            # IS NULL accepts columns of any type, including those that no operator accepts.
            whole = node.value
            value = self.column(whole) if isinstance(whole, tree.ColumnRef) else self.step(whole)
            return _negated(lambda rows: pc.is_null(value(rows)), node.negated)
        tested = self.converted(node.value, BOOLEAN)
        tests: dict[str, Callable[[Value], Value]] = {
            "TRUE": kernels.is_true,
            "FALSE": lambda found: kernels.is_true(pc.invert(found)),
            "UNKNOWN": pc.is_null,
        }
        test = tests[node.what]
        return _negated(lambda rows: test(tested(rows)), node.negated)

    def match(self, node: tree.Match) -> Step:
        need(node.op == "LIKE")
        value = self.converted(node.value, STRING)
        test = kernels.like(node.pattern, node.escape)
        return _negated(lambda rows: test(value(rows)), node.negated)

    def case(self, node: tree.Case) -> Step:
        tests = [
            self.converted(condition, BOOLEAN)
            if node.operand is None
            else self.comparison("=", node.operand, condition)
            for condition, _ in node.branches
        ]
        results = [result for _, result in node.branches]
        results.append(node.otherwise or tree.Literal(value=None, type=NULL))
        return self.chosen(tests, results, node.type)

    def chosen(self, tests: Sequence[Step], results: Sequence[Expr], met: SqlType) -> Step:
        """The result of the first test that is true, else the last result."""
        need(met.is_atomic and not _is_cut(met, results))
        steps = [self.converted(result, met) for result in results]

        def step(rows: LocalRows) -> Value:
            found = steps[-1](rows)
            for test, result in zip(reversed(tests), reversed(steps[:-1]), strict=True):
                found = kernels.choose(test(rows), result(rows), found)
            return found

        return step

    def cast(self, node: tree.Cast) -> Step:
        # TRY_CAST gives NULL instead of an error, which this does not implement.
        need(not node.safe)
        return self.converted(node.operand, node.type)

    def struct(self, args: Sequence[Expr]) -> Step:
        names = [str(cast(tree.Literal, arg).value) for arg in args[::2]]
        # The type of an untyped NULL is known where it is stored alone.
        need(all(value.type != NULL for value in args[1::2]))
        steps = [self.step(value) for value in args[1::2]]

        def step(rows: LocalRows) -> Value:
            parts = [kernels.broadcast(value(rows), rows.length) for value in steps]
            return pa.StructArray.from_arrays(parts, names)

        return step

    def joined(self, nodes: Sequence[Expr]) -> Step:
        parts = [self.converted(node, STRING) for node in nodes]
        return lambda rows: kernels.join([part(rows) for part in parts])

    def call(self, node: tree.Call) -> Step:
        args = node.args
        match node.function:
            case "if":
                return self.chosen([self.converted(args[0], BOOLEAN)], args[1:], node.type)
            case "coalesce" | "nvl":
                tests = [_valid(self.step(arg)) for arg in args[:-1]]
                return self.chosen(tests, args, node.type)
            case "nullif":
                same = self.comparison("=", args[0], args[1])
                return self.chosen(
                    [same], (tree.Literal(value=None, type=NULL), args[0]), node.type
                )
            case "named_struct":
                return self.struct(args)
            case "isnan":
                need(kernels.is_floating(args[0].type))
                value = self.step(args[0])
                return lambda rows: kernels.is_true(pc.is_nan(value(rows)))
            case "abs":
                need(node.type.is_integral)
                value = self.step(args[0])
                return lambda rows: pc.abs_checked(value(rows))
            case "concat":
                return self.joined(args)
            case "length":
                need(args[0].type == STRING)
                value = self.step(args[0])
                return lambda rows: pc.utf8_length(kernels.characters(value(rows)))
            case "startswith" | "endswith" | "contains":
                need(args[0].type == STRING and isinstance(args[1], tree.Literal))
                need(args[1].type == STRING)
                value, part = self.step(args[0]), str(cast(tree.Literal, args[1]).value)
                kernel = _PARTS[node.function]
                return lambda rows: kernel(value(rows), part)
            case _:
                function = need(function_of(node.function, args[0].type) if args else None)
                value = self.step(args[0])
                return lambda rows: function(value(rows))


def need(found: Any) -> Any:
    """Return `found`. Raises: NotLocal if it is None or False."""
    if found is None or found is False:
        raise NotLocal
    return found


def _negated(step: Step, negated: bool) -> Step:
    return (lambda rows: pc.invert(step(rows))) if negated else step


def _valid(step: Step) -> Step:
    return lambda rows: pc.is_valid(step(rows))


def _is_cut(met: SqlType, nodes: Iterable[Expr]) -> bool:
    """Whether operands have a common decimal type that does not hold all of them: then it depends
    on casts inside Spark which values raise."""
    if met.name != "decimal":
        return False
    exact = [as_decimal(n.type) for n in nodes if n.type.name == "decimal" or n.type.is_integral]
    return any(e.scale > met.scale or e.precision - e.scale > met.precision - met.scale
               for e in exact)  # fmt: skip


def _may_be_negative_zero(node: Expr) -> bool:
    """Whether Spark may fold an operation on floats to the constant -0.0 (`constants.constant`)."""
    return kernels.is_floating(node.type) and not _stays(node)


def _stays(node: Expr) -> bool:
    """Whether a value is certain to depend on a column after all that Spark simplifies: it chooses
    branches whose condition is constant, and moves operations into branches that are constant."""
    match node:
        case tree.ColumnRef():
            return True
        case tree.Unary() | tree.Binary() | tree.Cast():
            return any(map(_stays, node.children()))
        case tree.Call(function="coalesce" | "nvl"):
            return _stays(node.args[0])
        case _:
            return False


def _beyond_integers(left: Expr, right: Expr) -> bool:
    """Whether an integer is compared with a decimal constant outside the range of BIGINT. Spark
    folds such a comparison, also for NULL (DecimalPrecision.integralAndDecimalLiteral)."""
    for node, other in ((left, right), (right, left)):
        if isinstance(node, tree.Literal) and node.type.name == "decimal":
            value = Decimal(str(node.value or 0))
            if other.type.is_integral and not -(2**63) <= value < 2**63:
                return True
    return False


def _integral(*nodes: Expr) -> bool:
    return all(node.type.is_integral for node in nodes)


def _arithmetic(data_type: SqlType) -> Mapping[str, Callable[[Value, Value], Value]]:
    return _INTEGRAL if data_type.is_integral else _FLOATING


def _in_set(value: Step, items: Sequence[Step], met: SqlType) -> Step:
    """IN a list of constants of any length, as a lookup."""
    nothing = LocalRows({}, 0)
    try:
        constants = [item(nothing) for item in items]
    except pa.ArrowException as error:
        raise NotLocal("a constant does not fit the type of the list") from error
    known = [pa.repeat(item, 1) for item in constants if item.is_valid]
    listed = pa.concat_arrays([pa.array([], arrow_type(met)), *known])
    missing = pa.scalar(None, pa.bool_())
    has_null = len(known) < len(items)

    def step(rows: LocalRows) -> Value:
        searched = value(rows)
        if isinstance(searched, pa.Scalar):
            searched = kernels.broadcast(searched, rows.length)
        found = pc.is_in(searched, value_set=listed)
        if has_null:
            return pc.if_else(found, pa.scalar(True), missing)
        return pc.if_else(pc.is_valid(searched), found, missing)

    return step


_INTEGRAL: Final[Mapping[str, Callable[[Value, Value], Value]]] = {
    "+": kernels.add,
    "-": kernels.subtract,
    "*": kernels.multiply,
    "%": kernels.remainder,
    "DIV": kernels.divide,
}
_FLOATING: Final = {
    "+": kernels.add,
    "-": kernels.subtract,
    "*": kernels.multiply,
    "/": kernels.divide,
}
_DECIMAL: Final = {"+": kernels.add, "-": kernels.subtract, "*": kernels.multiply}
_PARTS: Final[Mapping[str, Callable[[Value, str], Value]]] = {
    "startswith": pc.starts_with,
    "endswith": pc.ends_with,
    "contains": pc.match_substring,
}


@dataclass(frozen=True)
class LocalStatement:
    """A statement that can be evaluated over Arrow.

    Attributes:
        where: None affects every row.
        assignments: by column; the value has the column's type. Empty for a delete.
        kept: the other columns that new rows hold, with the values that they had; None for all.
    """

    where: LocalExpression | None
    assignments: Mapping[str, LocalExpression]
    kept: frozenset[str] | None = None

    def matching(self, table: pa.Table) -> Any:
        """The indexes of the rows that are affected, ascending, as an int64 array.

        Args:
            table: live rows, columns by the names of the schema, at least those of the condition.
        Raises: NeedsSpark if Spark raises on one of the rows, or may do so.
        """
        if self.where is None:
            return pa.array(np.arange(table.num_rows, dtype=np.int64))
        return self.where.where(LocalRows.of(table))

    def written(self, affected: pa.Table) -> pa.Table:
        """The new contents of affected rows, on which alone values are evaluated: all columns of
        the given table, or those that are set and kept. Raises: NeedsSpark; KeyError for a missing
        column."""
        rows = LocalRows.of(affected)
        if self.kept is None:
            return rewritten(affected, self.assignments, rows)
        found = {name: affected[name] for name in affected.column_names if name in self.kept}
        return pa.table(found | {n: value.evaluate(rows) for n, value in self.assignments.items()})


def rewritten(
    before: pa.Table, assignments: Mapping[str, LocalExpression], rows: LocalRows
) -> pa.Table:
    """The rows with new values of the set columns. Raises: NeedsSpark; KeyError for a missing
    column."""
    after = before
    for name, value in assignments.items():
        index = before.schema.get_field_index(name)
        if index < 0:
            raise KeyError(name)
        after = after.set_column(index, before.schema.field(index).name, value.evaluate(rows))
    return after


def compile_statement(statement: Statement) -> LocalStatement | None:
    """The statement over Arrow; None if only Spark can evaluate a part of it.

    Values are cast to their columns in the tree (`tandem.statements.statement.stored`), as
    Spark's ANSI store assignment does. A value that does not fit raises NeedsSpark.
    """
    where = None
    if statement.where is not None:
        where = compile_expression(statement.where)
        if where is None:
            return None
    values = {item.column: compile_expression(item.value) for item in statement.assignments}
    known = {name: value for name, value in values.items() if value is not None}
    return LocalStatement(where, known) if len(known) == len(values) else None
