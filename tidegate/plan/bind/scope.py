"""Binding context, scopes, and helpers for column ids and fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sqlglot import exp

from tidegate.catalog.catalog import Catalog
from tidegate.errors import Location, SqlError, TidegateError, pluralize
from tidegate.plan import nodes as n
from tidegate.plan.nodes import Field, Role
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.sql.statements import EmitClause
from tidegate.types import RANK_FUNCTIONS, Span


@dataclass
class BindingContext:
    """The inputs of binding one statement, and the errors that it has reported."""

    catalog: Catalog
    text: str
    file: str | None
    default_span: Span
    emit: EmitClause | None = None
    ttl_us: int | None = None
    function_exists: Callable[[str], bool] = lambda name: False
    # Names in lower case whose declarations have errors.
    invalid_names: frozenset[str] = frozenset()
    errors: list[TidegateError] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)

    def new_id(self, name: str) -> str:
        """Return an unused column id: the name itself if it is free."""
        base = name.lower()
        count = self.ids.get(base, 0)
        self.ids[base] = count + 1
        if count == 0:
            return name
        return self.new_id(f"{name}_{count}")

    def location(self, node: exp.Expr | Span | None) -> Location:
        """Return the location of an expression or span, or that of the statement."""
        span = own_span(node) if isinstance(node, exp.Expr) else node
        span = span or self.default_span
        return Location(self.text, span.start, span.end, self.file)

    def report(
        self, code: str, message: str, at: exp.Expr | Span | None, hint: str | None = None
    ) -> None:
        """Add an error and continue, so that one run reports all errors."""
        error = SqlError(code, message, location=self.location(at), hint=hint)
        reported = {(other.code, other.message, other.location) for other in self.errors}
        if (error.code, error.message, error.location) not in reported:
            self.errors.append(error)


def report_position(
    context: BindingContext, clause: str, at: exp.Expr, position: int, names: list[str]
) -> None:
    """Report a position in GROUP BY or ORDER BY that SELECT does not have.

    `names` are the columns of SELECT; empty names are not suggested.
    """
    message = f"{clause} {position}: SELECT has {pluralize(len(names), 'column')}"
    numbered = ((number, name) for number, name in enumerate(names, 1) if name)
    number, name = next(numbered, (0, ""))
    hint = f"write {clause} {number} or {clause} {name}." if name else "name the columns."
    context.report("TG-301", message, at, hint)


@dataclass(frozen=True)
class Relation:
    """A table in FROM, under the name by which the query refers to it."""

    alias: str | None
    fields: tuple[Field, ...]


@dataclass
class Scope:
    """The relations to which names can refer."""

    relations: list[Relation] = field(default_factory=list)
    # The columns of JOIN … USING by name in lower case.
    using_columns: dict[str, exp.Expr] = field(default_factory=dict)
    parent: Scope | None = None
    # The window of GROUP BY. After grouping, an unqualified window_end refers to it.
    window_fields: tuple[Field, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(item for relation in self.relations for item in relation.fields)

    def find_relation(self, alias: str) -> Relation | None:
        for relation in self.relations:
            if relation.alias is not None and relation.alias.lower() == alias.lower():
                return relation
        return None

    def find_fields(self, name: str) -> list[Field]:
        window = [item for item in self.window_fields if item.name.lower() == name.lower()]
        return window or [item for item in self.fields if item.name.lower() == name.lower()]


def column(item: Field, origin: exp.Expr | None = None) -> exp.Column:
    """Return a reference to a field by id, with the location of `origin`."""
    node = exp.Column(this=exp.to_identifier(item.id, quoted=True))
    span = own_span(origin) if origin is not None else None
    if span is not None:
        node.meta["span"] = (span.start, span.end)
    return node


def referenced_ids(node: exp.Expr) -> set[str]:
    """Return the column ids that an expression refers to."""
    return {part.name for part in node.find_all(exp.Column)}


def parenthesize(node: exp.Expr) -> exp.Expr:
    """Put operators in parentheses, so that the expression can be part of another."""
    operators = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Interval, exp.Case)
    return exp.Paren(this=node) if isinstance(node, operators) else node


def field_path(node: exp.Expr, parts: list[str]) -> exp.Expr:
    """Return a.b.c for a struct column a."""
    for part in parts:
        node = exp.Dot(this=node, expression=exp.to_identifier(part, quoted=True))
    return node


def function_call(name: str, arguments: list[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=arguments)


def struct_of(values: list[exp.Expr]) -> exp.Expr:
    """Return a struct with the fields c0, c1, …"""
    cells: list[exp.Expr] = []
    for index, value in enumerate(values):
        cells += [exp.Literal.string(f"c{index}"), value]
    return function_call("NAMED_STRUCT", cells)


def typed_null(tree: exp.Expr) -> exp.Expr:
    """Return NULL with the type of an expression, which only Spark knows."""
    return exp.Case(ifs=[exp.If(this=exp.false(), true=tree.copy())])


def infer_type(node: exp.Expr, fields: Mapping[str, Field]) -> str | None:
    """Return the type of an expression if it is obvious; Spark determines all others."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        item = fields.get(node.name)
        return item.type if item else None
    if isinstance(node, exp.Cast):
        return str(node.to.sql(dialect="spark"))
    if isinstance(node, exp.Literal):
        return "STRING" if node.is_string else ("INT" if node.is_int else None)
    if isinstance(node, exp.Filter):
        return infer_type(node.this, fields)
    if isinstance(node, exp.Predicate | exp.And | exp.Or | exp.Not):
        return "BOOLEAN"
    name = ex.call_name(node)
    if name in {"COUNT", "COUNT_IF", "APPROX_COUNT_DISTINCT"}:
        return "BIGINT"
    if name in {"MIN", "MAX", "FIRST", "LAST", "ANY_VALUE"} and node.expressions:
        return infer_type(node.expressions[0], fields)
    if isinstance(node, exp.Window):
        inner = ex.call_name(node.this)
        return "INT" if inner in RANK_FUNCTIONS else infer_type(node.this, fields)
    return None


def derived_field(
    context: BindingContext, name: str, node: exp.Expr, fields: Mapping[str, Field]
) -> Field:
    """Return the field of a computed expression; a column keeps its role and type."""
    bare = node.unnest()
    input_field = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    if input_field is not None:
        return Field(
            context.new_id(name),
            name,
            input_field.type,
            input_field.role,
            input_field.window,
            input_field.volatile,
            input_field.nullable,
        )
    return Field(
        context.new_id(name),
        name,
        infer_type(node, fields),
        Role.PLAIN,
        None,
        is_volatile(node, fields),
    )


def is_volatile(node: exp.Expr, fields: Mapping[str, Field]) -> bool:
    """Return whether an expression may have another value when its rows are replayed."""
    if any(ex.is_volatile_call(name, call) for name, call in ex.calls(node)):
        return True
    return any(fields[name].volatile for name in referenced_ids(node) if name in fields)


def fields_by_id(fields: tuple[Field, ...]) -> dict[str, Field]:
    return {item.id: item for item in fields}


# ---- Copies of a plan with other column ids, so that a plan can contain both

# Attributes of nodes that contain column ids as strings.
_ID_ATTRIBUTES = frozenset(
    {"time_id", "end_id", "rank_id", "as_of_id", "validity_id", "left_id", "right_id"}
)
_ID_TUPLE_ATTRIBUTES = frozenset({"generated", "key"})

# Types whose attributes contain expressions and ids.
_RENAMED_TYPES = (
    n.Node,
    n.KeyPair,
    n.TimeBounds,
    n.AsofCondition,
    n.Navigation,
    n.MatchAggregate,
    n.DefineCondition,
)

IdMapping = Mapping[str, str]


def copy_with_new_ids(context: BindingContext, node: n.Node) -> tuple[n.Node, IdMapping]:
    """Return a copy of a plan with new column ids, and the new id for each old one."""
    names = {item.id: item.name for part in n.walk(node) for item in part.fields}
    ids = {old: context.new_id(name) for old, name in names.items()}
    copied = _rename(node, ids)
    assert isinstance(copied, n.Node), "a node stays a node"
    return copied, ids


def rename_columns(tree: exp.Expr, ids: IdMapping) -> exp.Expr:
    """Return an expression with other column ids."""

    def swap(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column) or part.name not in ids:
            return part
        renamed = part.copy()
        renamed.set("this", exp.to_identifier(ids[part.name], quoted=True))
        return renamed

    return tree.copy().transform(swap)


def _rename(value: Any, ids: IdMapping) -> Any:
    if isinstance(value, exp.Expr):
        return rename_columns(value, ids)
    if isinstance(value, n.Field):
        return replace(value, id=ids.get(value.id, value.id))
    if isinstance(value, tuple):
        return tuple(_rename(part, ids) for part in value)
    if not isinstance(value, _RENAMED_TYPES):
        return value
    changes: dict[str, Any] = {}
    for part in fields(value):
        inner = getattr(value, part.name)
        if part.name in _ID_ATTRIBUTES:
            changes[part.name] = ids.get(inner, inner)
        elif part.name in _ID_TUPLE_ATTRIBUTES:
            changes[part.name] = tuple(ids.get(column_id, column_id) for column_id in inner)
        else:
            changes[part.name] = _rename(inner, ids)
    return replace(value, **changes)
