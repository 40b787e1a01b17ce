"""Compile SQL in tests, without Spark."""

from __future__ import annotations

from pathlib import Path

from tidegate.catalog.objects import Stream
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import TidegateError
from tidegate.physical.explain import explain
from tidegate.physical.typed import TypedPlan, Types, with_types
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.sql.quoting import quote_identifier

TESTS = Path(__file__).parents[1]

SOURCES = """
CREATE SOURCE bids (auction BIGINT NOT NULL, bidder BIGINT, price BIGINT, channel STRING,
    ts TIMESTAMP, other TIMESTAMP, info STRUCT<a: INT, b: STRING>, tags ARRAY<STRING>,
    WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (connector = 'memory');
CREATE SOURCE asks (auction BIGINT, seller BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE rates (currency STRING, rate DOUBLE, ts TIMESTAMP, PRIMARY KEY (currency),
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE orders (id BIGINT, state STRING, ts TIMESTAMP, WATERMARK FOR ts AS ts)
    WITH (connector = 'memory', changelog = true);
CREATE SOURCE plain (k BIGINT, v BIGINT, ts TIMESTAMP) WITH (connector = 'memory');
CREATE SOURCE history (k BIGINT, v BIGINT, ts TIMESTAMP)
    WITH (connector = 'files', path = 'x', bounded = true);
CREATE LOOKUP TABLE customers (id BIGINT, name STRING, PRIMARY KEY (id))
    WITH (connector = 'memory');
"""


def compile_text(text: str, file: str | None = None) -> Compiled:
    return Compiler(CONNECTORS).compile(text, file)


def compile_with_sources(text: str) -> Compiled:
    """Compile a script after the sources above."""
    return compile_text(SOURCES + text)


def as_stream(query: str, options: str = "") -> str:
    return f"CREATE STREAM s {f'WITH ({options}) ' if options else ''}AS {query};"


def accepted(query: str, options: str = "") -> n.Emit:
    """Return the plan of a query over the sources above; it must be accepted."""
    compiled = compile_with_sources(as_stream(query, options))
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    return plan_of(compiled, "s")


def rejected(query: str, options: str = "") -> list[TidegateError]:
    """Return the errors of a query over the sources above; it must be rejected."""
    compiled = compile_with_sources(as_stream(query, options))
    assert compiled.errors, f"accepted: {query}"
    return list(compiled.errors)


def typed(plan: n.Node) -> TypedPlan:
    """Give a plan its declared types; others are BIGINT."""
    types_by_name = {
        quote_identifier(item.id): item.type or "BIGINT"
        for node in n.walk(plan)
        for item in node.fields
    }
    types = Types(types_by_name)
    typed_plan = with_types(plan, types)
    assert isinstance(typed_plan, n.Emit)
    return TypedPlan(typed_plan, types)


def plan_of(compiled: Compiled, name: str) -> n.Emit:
    stream = compiled.catalog.get(name)
    assert isinstance(stream, Stream)
    assert isinstance(stream.plan, n.Emit)
    return stream.plan


def explained(compiled: Compiled, optimized: bool = False) -> str:
    """Explain the plans of all streams of a script."""
    streams = [item for item in compiled.declared if isinstance(item, Stream)]
    plans = [(optimize(s.plan) if optimized else s.plan, s.name) for s in streams]
    return "\n\n".join(explain(plan, name) for plan, name in plans) + "\n"


def find(plan: n.Node, kind: type[n.Node]) -> n.Node:
    """Return the only node of a kind in a plan."""
    (node,) = [node for node in n.walk(plan) if type(node) is kind]
    return node
