"""Type analysis: Spark determines the types of a declared stream over empty tables.

The whole plan goes to Spark as one statement: a common table expression per node, and one for the
expressions whose types operators need. Only if Spark rejects it, the expressions are tried one by
one, bottom up, to find the invalid one and its position in the user's SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from sqlglot import exp

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import (
    Column,
    Declared,
    Function,
    LookupTable,
    SideStream,
    Source,
    Stream,
)
from tidegate.columns import OP
from tidegate.errors import Location, SqlError
from tidegate.physical import lookup
from tidegate.physical.over import typed_function
from tidegate.physical.stage_sql import SqlWriter
from tidegate.physical.stages import all_lookups, all_stateful, plan_stages
from tidegate.physical.typed import Operands, TypedPlan, Types, with_types
from tidegate.plan import nodes as n
from tidegate.spark.errors import describe
from tidegate.sql import statements as st
from tidegate.sql.dialect import own_span, to_sql
from tidegate.sql.expressions import with_declared_names
from tidegate.sql.quoting import quote_identifier
from tidegate.types import Span


def analyse_source(spark: SparkSession, source: Source) -> Source:
    """Return the source with the types of its computed columns."""
    stored = [
        f"CAST(NULL AS {c.type}) AS {quote_identifier(c.name)}" for c in source.stored_columns
    ]
    base = f"(SELECT {', '.join(stored) or '1 AS one'})"
    columns: list[Column] = []
    for column in source.columns:
        if column.computed is None:
            columns.append(column)
            continue
        try:
            schema = spark.sql(f"SELECT {to_sql(column.computed)} AS c FROM {base}").schema
        except PySparkException as error:
            raise _type_error(error, own_span(column.computed), source) from None
        columns.append(replace(column, type=_sql_type(schema.fields[0].dataType)))
    checked = replace(source, columns=tuple(columns))
    _require_timestamp(checked)
    return checked


def analyse_function(spark: SparkSession, function: Function) -> None:
    """Reject an expression that does not fit the types of its parameters and its result."""
    assert function.body is not None, f"{function.name} is an expression"
    parameters = [
        f"CAST(NULL AS {p.type}) AS {quote_identifier(p.name)}" for p in function.parameters
    ]
    base = f"(SELECT {', '.join(parameters) or '1 AS one'})"
    sql = to_sql(function.body)
    if function.returns is not None:
        sql = f"CAST({sql} AS {function.returns})"
    try:
        _ = spark.sql(f"SELECT {sql} AS c FROM {base}").schema
    except PySparkException as error:
        statement = function.statement
        assert isinstance(statement, st.CreateFunction), "a function was declared by its statement"
        raise _type_error(error, statement.definition_span, function) from None


def _require_timestamp(source: Source) -> None:
    watermark = source.watermark
    if watermark is None:
        return
    column = next(c for c in source.columns if c.name.lower() == watermark.column.lower())
    if column.type not in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        raise SqlError(
            "TG-210",
            f"the event time {column.name} must be a TIMESTAMP, not {column.type}",
            location=_place(own_span(column.computed) if column.computed else None, source),
            hint=f"{column.name} AS timestamp_millis(…), or CAST(… AS TIMESTAMP).",
        )


def analyse_plan(
    spark: SparkSession, declared: Stream | SideStream, plan: n.Emit, catalog: Catalog
) -> TypedPlan:
    """Return the plan of a stream with the types of all its columns and operands."""
    plan = _with_sources(plan, catalog)
    try:
        types = _types(spark, plan)
    except PySparkException as error:
        fault = _ErrorLocator(spark).find(plan) or _Fault(error, None)
        raise _type_error(fault.error, fault.span, declared, fault.names) from None
    typed = with_types(plan, types)
    assert isinstance(typed, n.Emit), "the root of a plan emits"
    return TypedPlan(typed, types)


def _with_sources(node: n.Node, catalog: Catalog) -> n.Emit:
    """Replace the sources of a plan by those of the catalog, whose computed columns have types."""

    def swap(part: n.Node) -> n.Node:
        inputs = tuple(swap(child) for child in part.inputs)
        if isinstance(part, n.Scan):
            source = catalog.get(part.source.name)
            assert isinstance(source, Source), f"{part.source.name} is declared"
            return replace(part, source=source)
        if isinstance(part, n.SideScan):
            side_stream = catalog.get(part.side.name)
            assert isinstance(side_stream, SideStream), f"{part.side.name} is declared"
            return replace(part, side=side_stream)
        return part.with_inputs(*inputs) if inputs else part

    plan = swap(node)
    assert isinstance(plan, n.Emit), "the root of a plan emits"
    return plan


def _types(spark: SparkSession, plan: n.Emit) -> Types:
    """Ask Spark once for everything."""
    expressions: list[str] = []
    tables, columns = [], []
    names: dict[n.Node, str] = {}
    for node in reversed(n.walk(plan)):
        if node in names:
            continue
        names[node] = f"n{len(names)}"
        tables.append(f"{names[node]} AS ({_node_sql(node, names)})")
        input_ids = {item.id for child in node.inputs for item in child.fields}
        for item in node.fields:
            if item.id not in input_ids and quote_identifier(item.id) not in expressions:
                expressions.append(quote_identifier(item.id))
                columns.append(f"{names[node]}.{quote_identifier(item.id)}")
    for number, operands in enumerate(_operands(plan)):
        sql = [text for text in dict.fromkeys(operands.sql) if text not in expressions]
        if not sql:
            continue
        listed = ", ".join(f"{text} AS c{index}" for index, text in enumerate(sql))
        sides = ", ".join(names[node] for node in operands.nodes)
        tables.append(f"o{number} AS (SELECT {listed} FROM {sides})")
        columns += [f"o{number}.c{index}" for index, _ in enumerate(sql)]
        expressions += sql
    used = dict.fromkeys(column.partition(".")[0] for column in columns)
    listed = ", ".join(f"{column} AS c{index}" for index, column in enumerate(columns))
    query = f"WITH {', '.join(tables)} SELECT {listed or '1 AS c'} FROM {', '.join(used)}"
    schema = spark.sql(query).schema
    kinds = [_sql_type(field.dataType) for field in schema.fields]
    return Types(dict(zip(expressions, kinds, strict=False)))


def _operands(plan: n.Emit) -> Iterator[Operands]:
    stage = plan_stages(plan)
    for leaf in all_stateful(stage):
        yield from leaf.kind.operands(leaf.node)
    for enriched in all_lookups(stage):
        yield from lookup.operands(enriched.node)


def _node_sql(node: n.Node, names: dict[n.Node, str]) -> str:
    """Return the SQL of a node over the tables of its inputs; a source is an empty typed table."""
    declared = _declared(node)
    if declared is not None:
        return _empty_table(declared, node)
    return SqlWriter(lambda part: names.get(part) if part is not node else None, True).write(node)


def _empty_table(declared: Source | SideStream | LookupTable, node: n.Node) -> str:
    types = {column.name.lower(): column.type for column in declared.columns}
    cells = [
        f"CAST(NULL AS {types.get(item.name.lower()) or 'STRING'}) AS {quote_identifier(item.id)}"
        for item in node.fields
    ]
    cells.append(f"'+I' AS {OP}")
    return f"SELECT {', '.join(cells)}"


def _declared(node: n.Node) -> Source | SideStream | LookupTable | None:
    if isinstance(node, n.Scan):
        return node.source
    if isinstance(node, n.SideScan):
        return node.side
    return node.table if isinstance(node, n.LookupScan) else None


def _sql_type(kind: DataType) -> str:
    """Return the SQL of a type: upper case, except for the names of fields."""
    if isinstance(kind, StructType):
        fields = [f"{_field_name(item.name)}:{_sql_type(item.dataType)}" for item in kind.fields]
        return f"STRUCT<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_sql_type(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_sql_type(kind.keyType)},{_sql_type(kind.valueType)}>"
    return str(kind.simpleString()).upper()


def _field_name(name: str) -> str:
    return name if name.isidentifier() else quote_identifier(name)


@dataclass(frozen=True)
class _Fault:
    """Spark's error for an expression, its span, and the names of the columns it reads by id."""

    error: PySparkException
    span: Span | None
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _ErrorLocator:
    """Finds the expression that Spark rejects."""

    spark: SparkSession

    def find(self, node: n.Node) -> _Fault | None:
        """Return the first expression, bottom up, that Spark rejects."""
        for child in node.inputs:
            inner = self.find(child)
            if inner is not None:
                return inner
        rejected = self._rejection(_whole_sql(node)) if node.inputs else None
        if rejected is None:
            return None
        names = {item.id: item.name for child in node.inputs for item in child.fields}
        below = ", ".join(f"({_whole_sql(child)})" for child in node.inputs)
        for expression in _expressions(node):
            fault = self._innermost(expression, below)
            if fault is not None:
                return replace(fault, names=names)
        return _Fault(rejected, node.span, names)

    def _rejection(self, query: str) -> PySparkException | None:
        try:
            _ = self.spark.sql(query).schema
        except PySparkException as error:
            return error
        return None

    def _innermost(self, tree: exp.Expr, below: str) -> _Fault | None:
        """Return the smallest part of an expression that Spark rejects, if there is one."""
        error = self._rejection(f"SELECT {to_sql(tree)} AS c FROM {below}")
        if error is None:
            return None
        for part in _parts(tree):
            fault = self._innermost(part, below)
            if fault is not None:
                return fault if fault.span is not None else replace(fault, span=own_span(tree))
        return _Fault(error, own_span(tree))


def _parts(tree: exp.Expr) -> Iterator[exp.Expr]:
    """Return the largest parts of an expression that are expressions themselves."""
    for child in tree.iter_expressions():
        if _only_inside(tree, child):
            yield from _parts(child)
        elif isinstance(child, exp.Condition) and not isinstance(child, exp.Column | exp.Literal):
            yield child


def _only_inside(tree: exp.Expr, child: exp.Expr) -> bool:
    """Return True if a part has no meaning alone: WHEN without CASE, lag(x) without OVER."""
    if isinstance(tree, exp.Case):
        return isinstance(child, exp.If)
    kinds = exp.Window | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls
    return isinstance(tree, kinds) and child is tree.this


class _WholeWriter(SqlWriter):
    """A plan as one statement over empty tables."""

    def __init__(self) -> None:
        super().__init__(lambda node: None, by_id=True)

    def write(self, node: n.Node) -> str:
        declared = _declared(node)
        return _empty_table(declared, node) if declared is not None else super().write(node)


def _whole_sql(node: n.Node) -> str:
    return _WholeWriter().write(node)


def _expressions(node: n.Node) -> Iterator[exp.Expr]:
    """Return the expressions of a node that Spark can analyze separately."""
    if isinstance(node, n.Filter):
        yield node.condition
    elif isinstance(node, n.Project):
        yield from node.expressions
    elif isinstance(node, n.Explode):
        yield node.generator
    elif isinstance(node, n.Window) and not node.spec.processing_time:
        yield exp.Anonymous(this="unix_micros", expressions=[node.time.copy()])
    elif isinstance(node, n.Aggregate):
        yield from (*node.keys, *node.aggregates)
    elif isinstance(node, n.Over):
        yield from map(typed_function, node.functions)
    elif isinstance(node, n.Match):
        yield from node.state_expressions or ()
    elif isinstance(node, n.Join) and node.condition is not None:
        yield node.condition


def _place(span: Span | None, declared: Declared) -> Location:
    at = span or declared.statement.name_span
    return Location(declared.script.text, at.start, at.end, declared.script.file)


def _type_error(
    error: PySparkException,
    span: Span | None,
    declared: Declared,
    names: Mapping[str, str] = MappingProxyType({}),
) -> SqlError:
    message = describe(error).replace("`", "").split(" SQLSTATE:")[0].rstrip(". ")
    message = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), with_declared_names(message))
    return SqlError("TG-307", message, location=_place(span, declared))
