"""Names in a query: relations, scopes, and the fields that expressions make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sqlglot import exp

from tidegate.catalog.catalog import Catalog
from tidegate.errors import Location, SqlError, TidegateError
from tidegate.plan import nodes as n
from tidegate.plan.nodes import Field, Role
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.sql.statements import EmitClause
from tidegate.types import Span


@dataclass
class Context:
    """What binding one stream needs, and the errors it has found so far."""

    catalog: Catalog
    text: str
    file: str | None
    fallback: Span
    emit: EmitClause | None = None
    ttl_us: int | None = None
    function_exists: Callable[[str], bool] = lambda name: False
    broken: frozenset[str] = frozenset()
    errors: list[TidegateError] = field(default_factory=list)
    ids: dict[str, int] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        """An id nobody has yet; the name itself when it is free."""
        base = name.lower()
        count = self.ids.get(base, 0)
        self.ids[base] = count + 1
        if count == 0:
            return name
        return self.fresh(f"{name}_{count}")

    def location(self, node: exp.Expr | Span | None) -> Location:
        span = own_span(node) if isinstance(node, exp.Expr) else node
        span = span or self.fallback
        return Location(self.text, span.start, span.end, self.file)

    def report(
        self, code: str, message: str, at: exp.Expr | Span | None, hint: str | None = None
    ) -> None:
        """Note an error and go on, so that one run finds all of them."""
        error = SqlError(code, message, location=self.location(at), hint=hint)
        known = {(other.code, other.message, other.location) for other in self.errors}
        if (error.code, error.message, error.location) not in known:
            self.errors.append(error)


@dataclass(frozen=True)
class Relation:
    """A table in FROM under the name the query knows it by."""

    alias: str | None
    fields: tuple[Field, ...]


@dataclass
class Scope:
    """The relations a name can come from; `merged` are the columns of JOIN … USING."""

    relations: list[Relation] = field(default_factory=list)
    merged: dict[str, exp.Expr] = field(default_factory=dict)
    parent: Scope | None = None
    # The window of GROUP BY: after grouping, a bare window_end is its end and no other.
    grouped: tuple[Field, ...] = ()

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(item for relation in self.relations for item in relation.fields)

    def named(self, alias: str) -> Relation | None:
        for relation in self.relations:
            if relation.alias is not None and relation.alias.lower() == alias.lower():
                return relation
        return None

    def find(self, name: str) -> list[Field]:
        own = [item for item in self.grouped if item.name.lower() == name.lower()]
        return own or [item for item in self.fields if item.name.lower() == name.lower()]


def column(item: Field, like: exp.Expr | None = None) -> exp.Column:
    """A reference to a field by id; keeps the place of what it stands for."""
    node = exp.Column(this=exp.to_identifier(item.id, quoted=True))
    span = own_span(like) if like is not None else None
    if span is not None:
        node.meta["span"] = (span.start, span.end)
    return node


def referenced_ids(node: exp.Expr) -> set[str]:
    """The ids an expression over fields refers to."""
    return {part.name for part in node.find_all(exp.Column)}


def parenthesize(node: exp.Expr) -> exp.Expr:
    """An expression that may stand inside any other: operators get parentheses."""
    operators = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Interval, exp.Case)
    return exp.Paren(this=node) if isinstance(node, operators) else node


def field_path(node: exp.Expr, parts: list[str]) -> exp.Expr:
    """a.b.c on a struct column."""
    for part in parts:
        node = exp.Dot(this=node, expression=exp.to_identifier(part, quoted=True))
    return node


def infer_type(node: exp.Expr, fields: Mapping[str, Field]) -> str | None:
    """The type of an expression where it is obvious; Spark decides all the others."""
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
        return "INT" if inner in ex.RANK_FUNCTIONS else infer_type(node.this, fields)
    return None


def derived_field(
    context: Context, name: str, node: exp.Expr, fields: Mapping[str, Field]
) -> Field:
    """The field that a computed expression makes; a bare column keeps its role."""
    bare = node.unnest()
    source = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    if source is not None:
        return Field(
            context.fresh(name),
            name,
            source.type,
            source.role,
            source.window,
            source.volatile,
            source.nullable,
        )
    return Field(
        context.fresh(name),
        name,
        infer_type(node, fields),
        Role.PLAIN,
        None,
        volatile(node, fields),
    )


def volatile(node: exp.Expr, fields: Mapping[str, Field]) -> bool:
    """Whether an expression gives another value when its rows are replayed."""
    if any(ex.is_volatile_call(name, call) for name, call in ex.calls(node)):
        return True
    return any(fields[name].volatile for name in referenced_ids(node) if name in fields)


def fields_by_id(fields: tuple[Field, ...]) -> dict[str, Field]:
    return {item.id: item for item in fields}


# ---- A plan once more with columns of its own, so that both can stand in one plan.

# Parts of nodes that hold ids of columns as plain strings.
_IDS = frozenset({"time_id", "end_id", "rank_id", "as_of_id", "validity_id", "left_id", "right_id"})
_ID_LISTS = frozenset({"generated", "key"})

# What holds expressions and ids.
_HOLDERS = (
    n.Node,
    n.KeyPair,
    n.TimeBounds,
    n.AsofCondition,
    n.Navigation,
    n.MatchAggregate,
    n.DefineCondition,
)

Names = Mapping[str, str]


def copy_with_new_ids(context: Context, node: n.Node) -> tuple[n.Node, Names]:
    """The same plan with other ids, and the new id for each old one."""
    ids = {item.id: item.name for part in n.walk(node) for item in part.fields}
    names = {old: context.fresh(name) for old, name in ids.items()}
    copied = _renamed(node, names)
    assert isinstance(copied, n.Node), "a node stays a node"
    return copied, names


def with_names(tree: exp.Expr, names: Names) -> exp.Expr:
    """An expression over the columns of a copy."""

    def swap(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column) or part.name not in names:
            return part
        other = part.copy()
        other.set("this", exp.to_identifier(names[part.name], quoted=True))
        return other

    return tree.copy().transform(swap)


def _renamed(value: Any, names: Names) -> Any:
    if isinstance(value, exp.Expr):
        return with_names(value, names)
    if isinstance(value, n.Field):
        return replace(value, id=names.get(value.id, value.id))
    if isinstance(value, tuple):
        return tuple(_renamed(part, names) for part in value)
    if not isinstance(value, _HOLDERS):
        return value
    changed: dict[str, Any] = {}
    for part in fields(value):
        inner = getattr(value, part.name)
        if part.name in _IDS:
            changed[part.name] = names.get(inner, inner)
        elif part.name in _ID_LISTS:
            changed[part.name] = tuple(names.get(one, one) for one in inner)
        else:
            changed[part.name] = _renamed(inner, names)
    return replace(value, **changed)
