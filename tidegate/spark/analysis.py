"""Types are Spark's own: a declared stream is analysed on empty tables, and errors point home.

The whole plan goes to Spark as one statement. Only when Spark refuses it are the expressions tried
one by one, bottom up, to find the one that is to blame and its place in the user's SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from sqlglot import exp

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Column, LookupTable, SideStream, Source, Stream
from tidegate.columns import OP
from tidegate.errors import Place, SqlError
from tidegate.physical.stage_sql import SqlWriter, output_sql, quoted
from tidegate.plan import nodes as n
from tidegate.spark.failure import describe
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import Span


def analyse_source(spark: SparkSession, source: Source) -> Source:
    """The source with the types of its computed columns."""
    stored = [f"CAST(NULL AS {c.type}) AS {quoted(c.name)}" for c in source.stored_columns]
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
        columns.append(replace(column, type=_type_name(schema, 0)))
    checked = replace(source, columns=tuple(columns))
    _require_timestamp(checked)
    return checked


def _require_timestamp(source: Source) -> None:
    watermark = source.watermark
    if watermark is None:
        return
    column = next(c for c in source.columns if c.name.lower() == watermark.column.lower())
    if column.type not in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        raise SqlError(
            "TG-210",
            f"the event time {column.name} must be a TIMESTAMP, not {column.type}",
            place=_place(own_span(column.computed) if column.computed else None, source),
            hint=f"{column.name} AS timestamp_millis(…), or CAST(… AS TIMESTAMP).",
        )


def analyse_stream(spark: SparkSession, stream: Stream, catalog: Catalog) -> Stream:
    """The stream with the types of all its columns."""
    analyst = _Analyst(spark, catalog)
    query = analyst.with_tables(output_sql(stream.plan, _table_name), stream.plan)
    try:
        schema = spark.sql(query).schema
    except PySparkException as error:
        raise _type_error(error, analyst.blame(stream.plan), stream) from None
    fields = tuple(
        replace(item, type=_type_name(schema, index))
        for index, item in enumerate(stream.plan.fields)
    )
    return replace(stream, plan=replace(stream.plan, fields=fields))


def node_schema(
    spark: SparkSession, catalog: Catalog, node: n.Node, expressions: Sequence[str] | None = None
) -> StructType:
    """The types of a node's columns, or of expressions over them."""
    analyst = _Analyst(spark, catalog)
    query = SqlWriter(_table_name).write(node)
    if expressions is not None:
        if not expressions:
            return StructType([])
        listed = [f"{sql} AS c{index}" for index, sql in enumerate(expressions)]
        query = f"SELECT {', '.join(listed)} FROM ({query})"
    return spark.sql(analyst.with_tables(query, node)).schema


def _type_name(schema: StructType, index: int) -> str:
    return _spelled(schema.fields[index].dataType)


def _spelled(kind: DataType) -> str:
    """A type as SQL has it: in capitals, except for the names of fields."""
    if isinstance(kind, StructType):
        fields = [f"{_field_name(item.name)}:{_spelled(item.dataType)}" for item in kind.fields]
        return f"STRUCT<{','.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"ARRAY<{_spelled(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"MAP<{_spelled(kind.keyType)},{_spelled(kind.valueType)}>"
    return str(kind.simpleString()).upper()


def _field_name(name: str) -> str:
    return name if name.isidentifier() else quoted(name)


def _table_name(node: n.Node) -> str | None:
    """The name of the empty table that stands for a source."""
    declared = _declared(node)
    return f"declared_{declared.name.lower()}" if declared is not None else None


def _declared(node: n.Node) -> Source | SideStream | LookupTable | None:
    if isinstance(node, n.Scan):
        return node.source
    if isinstance(node, n.SideScan):
        return node.side
    return node.table if isinstance(node, n.LookupScan) else None


@dataclass(frozen=True)
class _Analyst:
    """Asks Spark about parts of a plan."""

    spark: SparkSession
    catalog: Catalog

    def with_tables(self, query: str, plan: n.Node) -> str:
        """Put empty tables of the declared types in front of a query."""
        tables: dict[str, str] = {}
        for node in n.walk(plan):
            declared, name = _declared(node), _table_name(node)
            if declared is None or name is None or name in tables:
                continue
            # The catalog knows the types of computed columns; the plan was bound before Spark did.
            known = self.catalog.get(declared.name)
            columns: tuple[Column, ...] = getattr(known, "columns", declared.columns)
            cells = [
                f"CAST(NULL AS {column.type or 'STRING'}) AS {quoted(column.name)}"
                for column in columns
            ]
            tables[name] = f"{quoted(name)} AS (SELECT {', '.join(cells)}, '+I' AS {OP})"
        return f"WITH {', '.join(tables.values())} {query}" if tables else query

    def accepts(self, query: str, node: n.Node) -> bool:
        try:
            _ = self.spark.sql(self.with_tables(query, node)).schema
        except PySparkException:
            return False
        return True

    def blame(self, node: n.Node) -> Span | None:
        """The place of the first expression, bottom up, that Spark refuses on its own."""
        for child in node.inputs:
            found = self.blame(child)
            if found is not None:
                return found
        writer = SqlWriter(_table_name)
        if not node.inputs or self.accepts(writer.write(node), node):
            return None
        below = ", ".join(f"({writer.write(child)})" for child in node.inputs)
        for expression in _expressions(node):
            if not self.accepts(f"SELECT {to_sql(expression)} AS c FROM {below}", node):
                return self._innermost(expression, below, node) or own_span(expression)
        return node.span

    def _innermost(self, tree: exp.Expr, below: str, node: n.Node) -> Span | None:
        """Descend to the smallest part of an expression that is refused."""
        for child in tree.iter_expressions():
            if not isinstance(child, exp.Condition) or isinstance(child, exp.Column | exp.Literal):
                continue
            if not self.accepts(f"SELECT {to_sql(child)} AS c FROM {below}", node):
                return self._innermost(child, below, node) or own_span(child)
        return None


def _expressions(node: n.Node) -> Iterator[exp.Expr]:
    """The expressions of a node that Spark can judge on their own."""
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
        yield from node.functions
    elif isinstance(node, n.Join) and node.condition is not None:
        yield node.condition


def _place(span: Span | None, declared: Source | Stream) -> Place:
    at = span or declared.statement.name_span
    return Place(declared.origin.text, at.start, at.end, declared.origin.file)


def _type_error(error: PySparkException, span: Span | None, declared: Source | Stream) -> SqlError:
    message = describe(error).replace("`", "").split(" SQLSTATE:")[0].rstrip(". ")
    return SqlError("TG-307", message, place=_place(span, declared))
