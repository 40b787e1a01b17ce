"""Spark SQL expressions as Arrow kernels, where both give the same result.

Supported are comparisons, addition and conditionals over whole numbers, strings, booleans, dates
and times, and products of decimals. Not supported are floating point (NaN and zeros compare
differently), other arithmetic of decimals (which has its own rules), collations, and all functions
of Spark except a few over microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

import pyarrow as pa
from sqlglot import exp, parse_one

from tidegate.catalog.objects import Source
from tidegate.columns import (
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    BEFORE,
    EVENT_TIME,
    INSERT,
    NOW,
    OP,
    SELECTED,
)
from tidegate.operators.vectorized import (
    Vector,
    VectorCall,
    VectorCast,
    VectorColumn,
    VectorConstant,
    VectorField,
    VectorInList,
    VectorStage,
)
from tidegate.physical.stage_sql import PortSchema, carries_op, emits_upserts, may_split_updates
from tidegate.physical.stages import ScanNode
from tidegate.physical.typed import Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import DIALECT, to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.sql.statements import EmitMode

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_PLAIN = (*_INTEGERS, "STRING", "BOOLEAN", "DATE", "TIMESTAMP")
_COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
# The digits of a whole number that is combined with a decimal.
_PRECISION = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
_FRACTION = re.compile(r"\d{1,18}\.\d{1,18}")
_MICROS = {"TIMESTAMP_MICROS": 1, "TIMESTAMP_MILLIS": 1_000, "TIMESTAMP_SECONDS": 1_000_000}


class Untranslatable(Exception):
    """Raised for an expression that only Spark can compute."""


@dataclass(frozen=True)
class TypedVector:
    """An expression with its type by Spark's name."""

    vector: Vector
    sql_type: str
    # True for a number as it is written: in products and comparisons with decimals, Spark gives it
    # the digits that it is written with.
    is_literal: bool = False


Columns = Mapping[str, TypedVector]


def typed_vector(vector: Vector, sql_type: str) -> TypedVector:
    """Return an expression with its type by Spark's name."""
    upper = sql_type.upper()
    return TypedVector(vector, upper if upper in _PLAIN or _DECIMAL.fullmatch(upper) else sql_type)


def translate(tree: exp.Expr, columns: Columns) -> TypedVector:
    """Translate an expression over typed columns; raise Untranslatable if only Spark can."""
    tree = tree.unnest()
    for expression_type, translator in _TRANSLATORS.items():
        if isinstance(tree, expression_type):
            return translator(tree, columns)
    raise Untranslatable(type(tree).__name__)


def _column(tree: exp.Expr, columns: Columns) -> TypedVector:
    if tree.name not in columns:
        raise Untranslatable(tree.name)
    return columns[tree.name]


def _literal(tree: exp.Expr, columns: Columns) -> TypedVector:
    if tree.args.get("is_string"):
        return _constant(tree.name, "STRING")
    if _FRACTION.fullmatch(tree.name):
        whole, _, fraction = tree.name.partition(".")
        digits = max(len((whole + fraction).lstrip("0")), len(fraction))
        return _constant(Decimal(tree.name), f"DECIMAL({digits},{len(fraction)})")
    if not tree.name.isdecimal():
        raise Untranslatable(tree.name)
    number = int(tree.name)
    if number >= 2**63:
        raise Untranslatable(tree.name)
    return replace(_constant(number, "INT" if number < 2**31 else "BIGINT"), is_literal=True)


def _constant(value: object, sql_type: str) -> TypedVector:
    return TypedVector(VectorConstant(value, arrow_type(sql_type)), sql_type)


def _compare(tree: exp.Expr, columns: Columns) -> TypedVector:
    one, other = _to_common_type(translate(tree.this, columns), translate(tree.expression, columns))
    return TypedVector(VectorCall(_COMPARISONS[type(tree)], (one.vector, other.vector)), "BOOLEAN")


def _between(tree: exp.Expr, columns: Columns) -> TypedVector:
    value = translate(tree.this, columns)
    bounds = []
    for word, kernel in (("low", ">="), ("high", "<=")):
        one, other = _to_common_type(value, translate(tree.args[word], columns))
        bounds.append(VectorCall(kernel, (one.vector, other.vector)))
    return TypedVector(VectorCall("and", tuple(bounds)), "BOOLEAN")


def _field(tree: exp.Expr, columns: Columns) -> TypedVector:
    """Translate a field of a struct."""
    value = translate(tree.this, columns)
    if not value.sql_type.upper().startswith("STRUCT<") or not isinstance(
        tree.expression, exp.Identifier
    ):
        raise Untranslatable("a field")
    fields = exp.DataType.build(value.sql_type, dialect=DIALECT).expressions
    names = [item.name.lower() for item in fields]
    if names.count(tree.expression.name.lower()) != 1:
        raise Untranslatable("a field")
    index = names.index(tree.expression.name.lower())
    sql_type = to_sql(fields[index].args["kind"]).upper()
    if sql_type not in _PLAIN:
        raise Untranslatable(f"a field of type {sql_type}")
    return TypedVector(VectorField(value.vector, index), sql_type)


def _to_common_type(one: TypedVector, other: TypedVector) -> tuple[TypedVector, TypedVector]:
    """Return two values in one type; whole numbers in the wider of both."""
    if one.sql_type == other.sql_type and one.sql_type in _PLAIN:
        return one, other
    if _is_decimal(one) or _is_decimal(other):
        return _to_common_decimal(one, other)
    if one.sql_type in _INTEGERS and other.sql_type in _INTEGERS:
        sql_type = max(one.sql_type, other.sql_type, key=_INTEGERS.index)
        return _as(one, sql_type), _as(other, sql_type)
    raise Untranslatable(f"{one.sql_type} with {other.sql_type}")


def _to_common_decimal(one: TypedVector, other: TypedVector) -> tuple[TypedVector, TypedVector]:
    """Return two decimals in a type that contains the digits of both."""
    (first, scale), (second, more) = _digits(one), _digits(other)
    digits = max(scale, more)
    precision = max(first - scale, second - more) + digits
    if precision > 38:
        raise Untranslatable("decimals that lose digits")
    sql_type = f"DECIMAL({precision},{digits})"
    return _cast_decimal(one, sql_type), _cast_decimal(other, sql_type)


def _cast_decimal(value: TypedVector, sql_type: str) -> TypedVector:
    if value.sql_type == sql_type:
        return value
    return TypedVector(VectorCast(_decimal(value).vector, arrow_type(sql_type)), sql_type)


def _as(value: TypedVector, sql_type: str) -> TypedVector:
    if value.sql_type == sql_type:
        return value
    if isinstance(value.vector, VectorConstant):
        return _constant(value.vector.value, sql_type)
    return TypedVector(VectorCast(value.vector, arrow_type(sql_type)), sql_type)


def _arithmetic(tree: exp.Expr, columns: Columns) -> TypedVector:
    shift = ex.interval_micros(tree.expression) if isinstance(tree, exp.Add | exp.Sub) else None
    left = translate(tree.this, columns)
    if shift is not None and left.sql_type == "TIMESTAMP":
        micros = VectorCast(left.vector, arrow_type("BIGINT"))
        shifted = VectorCall(_ARITHMETIC[type(tree)], (micros, _constant(shift, "BIGINT").vector))
        return TypedVector(VectorCast(shifted, arrow_type("TIMESTAMP")), "TIMESTAMP")
    right = translate(tree.expression, columns)
    if isinstance(tree, exp.Mul) and (_is_decimal(left) or _is_decimal(right)):
        return _product(left, right)
    one, other = _to_common_type(left, right)
    if one.sql_type not in _INTEGERS:
        raise Untranslatable(f"{one.sql_type} is not an integer")
    return TypedVector(
        VectorCall(_ARITHMETIC[type(tree)], (one.vector, other.vector)), one.sql_type
    )


def _is_decimal(value: TypedVector) -> bool:
    return value.sql_type.startswith("DECIMAL(")


def _product(one: TypedVector, other: TypedVector) -> TypedVector:
    """Multiply decimals: the digits of both and one more; beyond 38 digits precision is lost."""
    (first, scale), (second, more) = _digits(one), _digits(other)
    if first + second + 1 > 38:
        raise Untranslatable("a long product")
    sql_type = f"DECIMAL({first + second + 1},{scale + more})"
    return TypedVector(VectorCall("*", (_decimal(one).vector, _decimal(other).vector)), sql_type)


def _digits(value: TypedVector) -> tuple[int, int]:
    """Return precision and scale; whole numbers have those that Spark gives them."""
    if value.sql_type in _PRECISION:
        if isinstance(value.vector, VectorConstant):
            if not value.is_literal:
                raise Untranslatable("a constant")
            return len(str(value.vector.value)), 0
        return _PRECISION[value.sql_type], 0
    match = _DECIMAL.fullmatch(value.sql_type)
    if match is None:
        raise Untranslatable(f"{value.sql_type} is not a decimal")
    return int(match.group(1)), int(match.group(2))


def _decimal(value: TypedVector) -> TypedVector:
    if value.sql_type not in _PRECISION:
        return value
    if isinstance(value.vector, VectorConstant):
        return _constant(Decimal(value.vector.value), f"DECIMAL({_digits(value)[0]},0)")
    return _as(value, f"DECIMAL({_PRECISION[value.sql_type]},0)")


def _remainder(tree: exp.Expr, columns: Columns) -> TypedVector:
    one, other = _to_common_type(translate(tree.this, columns), translate(tree.expression, columns))
    by = other.vector
    # Division by zero is an error, and the minimum divided by -1 overflows.
    safe = isinstance(by, VectorConstant) and by.value not in (0, -1, None)
    if one.sql_type not in _INTEGERS or not safe:
        raise Untranslatable("a remainder")
    return TypedVector(VectorCall("%", (one.vector, other.vector)), one.sql_type)


def _negated(tree: exp.Expr, columns: Columns) -> TypedVector:
    value = translate(tree.this, columns)
    if value.sql_type not in _INTEGERS:
        raise Untranslatable(f"- {value.sql_type}")
    if isinstance(tree.this, exp.Literal):
        # The sign is part of the number, as in the minimum INT.
        number = -int(tree.this.name)
        return _constant(number, "INT" if number >= -(2**31) else "BIGINT")
    return TypedVector(VectorCall("negate", (value.vector,)), value.sql_type)


def _logical(kernel: str) -> Callable[[exp.Expr, Columns], TypedVector]:
    def translate_logical(tree: exp.Expr, columns: Columns) -> TypedVector:
        parts = tuple(_condition(part, columns) for part in (tree.this, tree.expression))
        return TypedVector(VectorCall(kernel, parts), "BOOLEAN")

    return translate_logical


def _condition(tree: exp.Expr, columns: Columns) -> Vector:
    value = translate(tree, columns)
    if value.sql_type != "BOOLEAN":
        raise Untranslatable(f"{value.sql_type} as a condition")
    return value.vector


def _not(tree: exp.Expr, columns: Columns) -> TypedVector:
    return TypedVector(VectorCall("not", (_condition(tree.this, columns),)), "BOOLEAN")


def _is_null(tree: exp.Expr, columns: Columns) -> TypedVector:
    if not isinstance(tree.expression, exp.Null):
        raise Untranslatable("IS")
    return TypedVector(VectorCall("is null", (translate(tree.this, columns).vector,)), "BOOLEAN")


def _in_list(tree: exp.Expr, columns: Columns) -> TypedVector:
    if tree.args.get("query") or tree.args.get("unnest") or not tree.expressions:
        raise Untranslatable("IN")
    operand = translate(tree.this, columns)
    values = [translate(part, columns) for part in tree.expressions]
    for value in values:
        operand, _ = _to_common_type(operand, value)
    if _is_decimal(operand):
        raise Untranslatable("IN with decimals")
    constants = [_as(value, operand.sql_type).vector for value in values]
    if not all(isinstance(item, VectorConstant) and item.value is not None for item in constants):
        raise Untranslatable("IN")
    alternatives = tuple(item.value for item in constants if isinstance(item, VectorConstant))
    return TypedVector(
        VectorInList(operand.vector, alternatives, arrow_type(operand.sql_type)), "BOOLEAN"
    )


def _cast(tree: exp.Expr, columns: Columns) -> TypedVector:
    value = translate(tree.this, columns)
    sql_type = to_sql(tree.args["to"]).upper()
    if sql_type == value.sql_type and sql_type in _PLAIN:
        return replace(value, is_literal=False)
    wider = sql_type in _INTEGERS and value.sql_type in _INTEGERS
    if wider and _INTEGERS.index(sql_type) >= _INTEGERS.index(value.sql_type):
        return replace(_as(value, sql_type), is_literal=False)
    raise Untranslatable(f"{value.sql_type} as {sql_type}")


def _case(tree: exp.Expr, columns: Columns) -> TypedVector:
    otherwise = tree.args.get("default")
    if tree.this is not None or otherwise is None:
        raise Untranslatable("CASE")
    conditions = [_condition(branch.this, columns) for branch in tree.args["ifs"]]
    values = [translate(branch.args["true"], columns) for branch in tree.args["ifs"]]
    values.append(translate(otherwise, columns))
    sql_types = {value.sql_type for value in values}
    if len(sql_types) != 1 or not sql_types <= set(_PLAIN):
        raise Untranslatable("CASE")
    pairs = [part for pair in zip(conditions, values[:-1], strict=True) for part in pair]
    vectors = [part.vector if isinstance(part, TypedVector) else part for part in pairs]
    return TypedVector(VectorCall("case", (*vectors, values[-1].vector)), values[-1].sql_type)


def _call(tree: exp.Expr, columns: Columns) -> TypedVector:
    name = (ex.call_name(tree) or "").upper()
    parts = [translate(part, columns) for part in tree.expressions]
    sql_types = {part.sql_type for part in parts}
    if name == "UNIX_MICROS" and sql_types == {"TIMESTAMP"} and len(parts) == 1:
        return TypedVector(VectorCast(parts[0].vector, arrow_type("BIGINT")), "BIGINT")
    if name in _MICROS and sql_types <= set(_INTEGERS) and len(parts) == 1:
        factor = _constant(_MICROS[name], "BIGINT").vector
        micros = VectorCall("*", (_as(parts[0], "BIGINT").vector, factor))
        return TypedVector(VectorCast(micros, arrow_type("TIMESTAMP")), "TIMESTAMP")
    if name == "COALESCE" and len(sql_types) == 1 and sql_types <= set(_PLAIN):
        return TypedVector(
            VectorCall("coalesce", tuple(part.vector for part in parts)), parts[0].sql_type
        )
    raise Untranslatable(name)


_TRANSLATORS: dict[type[exp.Expr], Callable[[exp.Expr, Columns], TypedVector]] = {
    exp.Column: _column,
    exp.Dot: _field,
    exp.Literal: _literal,
    exp.Boolean: lambda tree, columns: _constant(bool(tree.this), "BOOLEAN"),
    **dict.fromkeys(_COMPARISONS, _compare),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    exp.Mod: _remainder,
    exp.Neg: _negated,
    exp.Between: _between,
    exp.And: _logical("and"),
    exp.Or: _logical("or"),
    exp.Not: _not,
    exp.Is: _is_null,
    exp.In: _in_list,
    exp.Cast: _cast,
    exp.Case: _case,
    exp.Anonymous: _call,
}


# ---- Stages that tasks compute directly, without Spark SQL.
#
# Only expressions with exactly Spark's results are translated; everything else stays SQL.

_HIDDEN = {
    OP: TypedVector(VectorColumn(OP), "STRING"),
    SELECTED: TypedVector(VectorColumn(SELECTED), "BOOLEAN"),
    EVENT_TIME: TypedVector(VectorColumn(EVENT_TIME), "BIGINT"),
    NOW: TypedVector(VectorColumn(NOW), "BIGINT"),
    ARRIVAL_FILE: TypedVector(VectorColumn(ARRIVAL_FILE), "STRING"),
    ARRIVAL_ROW: TypedVector(VectorColumn(ARRIVAL_ROW), "BIGINT"),
}


@dataclass(frozen=True)
class _Rows:
    """The columns of a node as expressions over those of the leaf, and its row conditions."""

    columns: Mapping[str, TypedVector]
    conditions: tuple[Vector, ...] = ()


def port_stage(port: PortSchema, leaf: n.Node, types: Types) -> VectorStage | None:
    """Return the stage of a port over its only leaf; None if it needs SQL."""
    try:
        rows = _rows(port.node, leaf, types)
        columns = [
            (name, *_stage_column(_parse(sql), rows, types.by_sql.get(sql)))
            for name, sql in port.stage
        ]
        return VectorStage(tuple(columns), rows.conditions)
    except Untranslatable:
        return None


def last_stage(root: n.Emit, leaf: n.Node, types: Types) -> VectorStage | None:
    """Return the last stage of a stream over its only leaf; None if it needs SQL."""
    if emits_upserts(root) and carries_op(root) and may_split_updates(root):
        # A filter may separate an old row from its new one; Spark compares the rows of each key.
        return None
    try:
        rows = _rows(root, leaf, types)
        columns = [
            (
                item.name,
                *_stage_column(
                    exp.column(item.id), rows, types.by_sql.get(quote_identifier(item.id))
                ),
            )
            for item in root.fields
        ]
        if carries_op(root):
            columns.append((OP, *_stage_column(exp.column(OP), rows, "STRING")))
        return VectorStage(tuple(columns), rows.conditions)
    except Untranslatable:
        return None


def _parse(sql: str) -> exp.Expr:
    return parse_one(sql, dialect=DIALECT)


def _stage_column(tree: exp.Expr, rows: _Rows, sql_type: str | None) -> tuple[Vector, pa.DataType]:
    """Return an expression and the Arrow type of Spark's result."""
    value = translate(tree, rows.columns)
    return value.vector, arrow_type(sql_type or value.sql_type)


def _rows(node: n.Node, leaf: n.Node, types: Types) -> _Rows:
    if node is leaf:
        columns = {
            item.id: typed_vector(VectorColumn(item.id), types.name(quote_identifier(item.id)))
            for item in node.fields
        }
        hidden = {k: v for k, v in _HIDDEN.items() if k != OP or carries_op(node)}
        return _Rows({**hidden, **columns})
    step = _STEPS.get(type(node))
    if step is None or len(node.inputs) != 1:
        raise Untranslatable(node.label())
    return step(node, _rows(node.inputs[0], leaf, types))


def _stream_reference(node: n.Node, input_rows: _Rows) -> _Rows:
    return input_rows


def _filter(node: n.Node, input_rows: _Rows) -> _Rows:
    assert isinstance(node, n.Filter), "the node is a Filter"
    if node.subqueries:
        raise Untranslatable("a subquery")
    condition = translate(node.condition, input_rows.columns)
    return _Rows(input_rows.columns, (*input_rows.conditions, condition.vector))


def _project(node: n.Node, input_rows: _Rows) -> _Rows:
    assert isinstance(node, n.Project), "the node is a Project"
    if node.subqueries:
        raise Untranslatable("a subquery")
    projected = {
        item.id: translate(expression, input_rows.columns)
        for item, expression in zip(node.fields, node.expressions, strict=True)
    }
    return _Rows({**_carried(input_rows), **projected}, input_rows.conditions)


def _window(node: n.Node, input_rows: _Rows) -> _Rows:
    """Add window columns; a row without an event time has no window."""
    assert isinstance(node, n.Window), "the node is a Window"
    spec = node.spec
    time = translate(node.time, input_rows.columns)
    if spec.kind is not n.WindowKind.TUMBLE or spec.processing_time or time.sql_type != "TIMESTAMP":
        raise Untranslatable(node.label())
    us = VectorCast(time.vector, arrow_type("BIGINT"))
    start = VectorCall("floor", (us, _micros(spec.offset_us), _micros(spec.size_us)))
    end = VectorCall("+", (start, _micros(spec.size_us)))
    last = VectorCall("-", (end, _micros(1)))
    window_columns = {
        item.id: TypedVector(VectorCast(bound, arrow_type("TIMESTAMP")), "TIMESTAMP")
        for item, bound in zip(node.fields[-3:], (start, end, last), strict=True)
    }
    timed = VectorCall("not", (VectorCall("is null", (us,)),))
    return _Rows({**input_rows.columns, **window_columns}, (*input_rows.conditions, timed))


def _micros(value: int) -> Vector:
    return VectorConstant(value, arrow_type("BIGINT"))


def _emit(node: n.Node, input_rows: _Rows) -> _Rows:
    """Mark appended rows under EMIT CHANGES; drop the old rows of upserts."""
    assert isinstance(node, n.Emit), "the node is an Emit node"
    inner = node.input
    changes = node.clause is not None and node.clause.mode is EmitMode.CHANGES
    if carries_op(inner) and emits_upserts(node) and not may_split_updates(node):
        new_rows = VectorCall("<>", (VectorColumn(OP), _text(BEFORE).vector))
        return _Rows(input_rows.columns, (*input_rows.conditions, new_rows))
    if changes and not carries_op(inner):
        return _Rows({**input_rows.columns, OP: _text(INSERT)}, input_rows.conditions)
    return input_rows


def _text(value: str) -> TypedVector:
    return TypedVector(VectorConstant(value, arrow_type("STRING")), "STRING")


def _carried(rows: _Rows) -> dict[str, TypedVector]:
    return {name: rows.columns[name] for name in _HIDDEN if name in rows.columns}


_STEPS: dict[type[n.Node], Callable[[n.Node, _Rows], _Rows]] = {
    n.StreamReference: _stream_reference,
    n.Filter: _filter,
    n.Project: _project,
    n.Window: _window,
    n.Emit: _emit,
}


# ---- Columns of a source.


@dataclass(frozen=True)
class SourceVectors:
    """The columns of a scan as expressions over a reader's columns, and which must not be NULL."""

    columns: tuple[tuple[str, Vector], ...]
    required: tuple[Vector, ...]
    time: Vector | None
    max_future_us: int | None


def source_vectors(node: ScanNode, source: Source) -> SourceVectors | None:
    """Translate the columns of a scan to Arrow expressions; None if Spark's SQL is needed."""
    if not isinstance(node, n.Scan) or source.options["changelog"]:
        return None
    try:
        source_columns = _SourceColumns(source)
        columns = tuple((item.id, source_columns.of(item.name).vector) for item in node.fields)
        required = tuple(source_columns.of(c.name).vector for c in source.columns if c.not_null)
        time = None
        if source.watermark is not None:
            time = source_columns.of(source.watermark.column)
            if time.sql_type != "TIMESTAMP":
                return None
        micros = VectorCast(time.vector, arrow_type("BIGINT")) if time is not None else None
        return SourceVectors(columns, required, micros, source.options["max_future"])
    except Untranslatable:
        return None


class _SourceColumns:
    """Stored and computed columns of a source by case-insensitive name."""

    def __init__(self, source: Source) -> None:
        self.columns = {column.name.lower(): column for column in source.columns}

    def of(self, name: str) -> TypedVector:
        column = self.columns[name.lower()]
        if column.computed is None:
            return typed_vector(VectorColumn(column.name), str(column.type))
        tree = column.computed.copy()
        inner = {part.name.lower(): self.of(part.name) for part in tree.find_all(exp.Column)}
        return translate(tree.transform(_with_lower_case_name), inner)


def _with_lower_case_name(part: exp.Expr) -> exp.Expr:
    return exp.column(part.name.lower()) if isinstance(part, exp.Column) else part
