"""Turning the columns and calls of the user's expressions into ids and what they stand for."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sqlglot import exp

from tidegate.catalog.objects import Function
from tidegate.columns import OP
from tidegate.errors import did_you_mean, nearest
from tidegate.plan.bind.functions import (
    by_arrival,
    misused,
    orders_by_processing_time,
    rename_parameter,
    with_names,
    with_unit,
    written_out,
)
from tidegate.plan.bind.scope import (
    Context,
    Relation,
    Scope,
    column,
    field_path,
    parenthesize,
    referenced_ids,
)
from tidegate.plan.nodes import Field, Node
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span, to_sql
from tidegate.sql.suggestions import function_hint
from tidegate.types import Span

# ---- Constants that a function would reject at the first row: patterns of dates, time zones.

Wrong = tuple[exp.Expr, str, str]

# Which argument of a function is a pattern, or a time zone.
_PATTERN_AT = {
    "DATE_FORMAT": (1,),
    "TO_TIMESTAMP": (1,),
    "TRY_TO_TIMESTAMP": (1,),
    "TO_TIMESTAMP_NTZ": (1,),
    "TO_TIMESTAMP_LTZ": (1,),
    "TO_DATE": (1,),
    "TRY_TO_DATE": (1,),
    "UNIX_TIMESTAMP": (1,),
    "TO_UNIX_TIMESTAMP": (1,),
    "FROM_UNIXTIME": (1,),
}
_ZONE_AT = {
    "FROM_UTC_TIMESTAMP": (1,),
    "TO_UTC_TIMESTAMP": (1,),
    "CONVERT_TIMEZONE": (0, 1),
}
# The letters of strftime, which PostgreSQL's are not but those of most other systems are.
_LETTERS = {
    "%Y": "yyyy",
    "%y": "yy",
    "%m": "MM",
    "%b": "MMM",
    "%B": "MMMM",
    "%d": "dd",
    "%j": "DDD",
    "%a": "E",
    "%H": "HH",
    "%I": "hh",
    "%M": "mm",
    "%i": "mm",
    "%S": "ss",
    "%s": "ss",
    "%f": "SSSSSS",
    "%p": "a",
    "%z": "XX",
    "%F": "yyyy-MM-dd",
    "%T": "HH:mm:ss",
}


def wrong_literal(call: exp.Expr) -> Wrong | None:
    """A constant argument that cannot work, what is wrong with it, and a hint."""
    name = ex.call_name(call) or ""
    for at in _PATTERN_AT.get(name, ()):
        text = _text(call, at)
        if text is not None and re.search(r"%[A-Za-z]", text.name):
            message = f"'{text.name}' is not a pattern for dates and times"
            return text, message, f"Spark's letters are others: '{_sparks(text.name)}'."
    for at in _ZONE_AT.get(name, ()):
        text = _text(call, at)
        if text is not None and _unknown_zone(text.name):
            near = nearest(text.name, _zones())
            hint = f"did you mean {near}?" if near else "a zone is 'Europe/Berlin' or '+02:00'."
            return text, f"there is no time zone {text.name}", hint
    return None


def _text(call: exp.Expr, at: int) -> exp.Literal | None:
    arguments = call.expressions
    if at >= len(arguments) or not isinstance(arguments[at], exp.Literal):
        return None
    literal: exp.Literal = arguments[at]
    return literal if literal.is_string else None


def _sparks(pattern: str) -> str:
    return re.sub(r"%[A-Za-z]", lambda match: _LETTERS.get(match.group(), "…"), pattern)


@cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _unknown_zone(name: str) -> bool:
    """Whether a zone with area and city does not exist; of all other texts Spark knows more."""
    # Java alone has the zones of SystemV; and a machine may be without any list of zones.
    known = name in _zones() or name.startswith("SystemV/") or not _zones()
    return re.fullmatch(r"[A-Za-z]+/[\w/+-]+", name) is not None and not known


# ---- Stars: `*`, `t.*` and `s.*`, in the SELECT list and among the arguments of calls.


@dataclass(frozen=True)
class SelectItem:
    """One output column: its name and its expression, resolved."""

    name: str
    expression: exp.Expr


def is_star(tree: Any) -> bool:
    """Whether it is * or t.*."""
    return isinstance(tree, exp.Star) or (
        isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)
    )


def is_row_count(call: Any) -> bool:
    """Whether it is count(*), whose star stands for no column."""
    return (
        ex.call_name(call) == "COUNT"
        and len(call.expressions) == 1
        and isinstance(call.expressions[0], exp.Star)
    )


def star_items(tree: exp.Expr, scope: Scope, context: Context) -> list[SelectItem]:
    """The columns that a star stands for."""
    star = tree.this if isinstance(tree, exp.Column) else tree
    if star.args.get("replace") or star.args.get("rename"):
        hint = "write the columns."
        context.report("TG-103", "* REPLACE and * RENAME are not supported", tree, hint)
    path = [part.name for part in tree.parts[:-1]] if isinstance(tree, exp.Column) else []
    if not path:
        items = [SelectItem(name, merged.copy()) for name, merged in scope.merged.items()]
        for relation in scope.relations:
            known = [item for item in relation.fields if item.name.lower() not in scope.merged]
            items += _all_of(known, tree)
        return _without(items, tree, star, context)
    table = scope.named(path[0]) if len(path) == 1 else None
    found = _all_of(table.fields, tree) if table is not None else None
    if found is None:
        found = _fields_of_struct(path, tree, scope)
    if found is None:
        _report_unknown(path, tree, scope, context)
        return []
    return _without(found, tree, star, context)


def _all_of(fields: tuple[Field, ...] | list[Field], tree: exp.Expr) -> list[SelectItem]:
    return [SelectItem(item.name, column(item, tree)) for item in fields]


def _fields_of_struct(path: list[str], tree: exp.Expr, scope: Scope) -> list[SelectItem] | None:
    """The fields of a column, if its type was declared and is a struct."""
    item = _column(path, scope)
    if item is None or item.type is None:
        return None
    kind = exp.DataType.build(item.type, dialect="spark", udt=True)
    if not kind.is_type(exp.DataType.Type.STRUCT):
        return None
    names = [part.name for part in kind.expressions]
    return [SelectItem(name, field_path(column(item, tree), [name])) for name in names]


def _column(path: list[str], scope: Scope) -> Field | None:
    relation: Relation | None = scope.named(path[0]) if len(path) > 1 else None
    fields = relation.fields if relation is not None else scope.fields
    found = [item for item in fields if item.name.lower() == path[-1].lower()]
    whole = len(path) == (2 if relation is not None else 1)
    return found[0] if whole and len(found) == 1 else None


def _report_unknown(path: list[str], tree: exp.Expr, scope: Scope, context: Context) -> None:
    name = ".".join(path)
    if _column(path, scope) is not None:
        message = f"{name}.*: {name} is a column, and not known to be a struct"
        context.report("TG-301", message, tree, f"write the fields: {name}.a, {name}.b.")
        return
    names = [item.alias for item in scope.relations if item.alias]
    hint = did_you_mean(path[0], names, "tables of this query")
    context.report("TG-301", f"{name}.*: there is no table {name}", tree, hint)


def _without(
    items: list[SelectItem], tree: exp.Expr, star: exp.Expr, context: Context
) -> list[SelectItem]:
    """* EXCEPT (a, b)."""
    parts = star.args.get("except_") or star.args.get("except") or []
    for part in parts:
        if isinstance(part, exp.Dot) or (isinstance(part, exp.Column) and len(part.parts) > 1):
            hint = "write the fields that stay: named_struct('x', s.x) AS s."
            context.report("TG-103", "* EXCEPT of a field of a column", tree, hint)
    excluded = {part.name.lower() for part in parts}
    known = {item.name.lower() for item in items}
    for name in sorted(excluded - known):
        hint = did_you_mean(name, known, "columns")
        context.report("TG-301", f"* EXCEPT ({name}): there is no column {name}", tree, hint)
    return [item for item in items if item.name.lower() not in excluded]


UNKNOWN = Field("?", "?")
# Marks the call of a function that does not exist: what it makes of its columns nobody knows.
UNKNOWN_FUNCTION = "unknown_function"


@dataclass
class Resolver:
    """Turns an expression of the user's into one over ids."""

    context: Context
    scope: Scope
    aliases: Mapping[str, exp.Expr] = field(default_factory=dict)
    bind_subquery: Callable[[exp.Expr, Scope], Node] | None = None
    subqueries: dict[int, Node] = field(default_factory=dict)

    def resolve(self, node: exp.Expr) -> exp.Expr:
        """A new expression; what it cannot resolve is reported and left unknown."""
        if is_star(node):
            hint = "name the columns."
            self.context.report("TG-103", "* stands for columns in calls and in SELECT", node, hint)
            return column(UNKNOWN, node)
        if isinstance(node, exp.Column):
            return self._column(node)
        if isinstance(node, exp.Lambda):
            return self._lambda(node)
        self._check_clauses(node)
        if isinstance(node, exp.Window):
            node = self._by_arrival(node)
        if isinstance(node, exp.Literal):
            self._check_quotes(node)
        self._check_null(node)
        if isinstance(node, exp.CurrentDate | exp.CurrentTimestamp) and not node.this:
            # A column of that name comes before the function.
            named = self._in_scope(self.scope, [ex.call_name(node) or ""], exp.Column())
            if named is not None:
                return named
        if isinstance(node, exp.Query) or _holds_query(node):
            return self._subquery(node)
        if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
            self.context.report(
                "TG-103", "parameters in SQL are not supported", node, "write the value."
            )
        function = own_function(node, self.context)
        if function is not None and isinstance(node, exp.Anonymous):
            return self._call(node, function)
        return self._resolved_parts(with_names(with_unit(node)))

    def _call(self, node: exp.Anonymous, function: Function) -> exp.Expr:
        """What a function of the user's own stands for."""
        arguments = [self.resolve(part) for part in node.expressions]
        wrong = misused(node, function, arguments)
        if wrong is not None:
            self.context.report(*wrong)
            node = node.copy()
            node.meta[UNKNOWN_FUNCTION] = True
            return node
        return written_out(node, function, arguments)

    def _resolved_parts(self, node: exp.Expr) -> exp.Expr:
        result = node.copy() if not node.args else type(node)()
        result._meta = dict(node.meta) if node.meta else None
        for key, value in node.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self.resolve(value))
            elif isinstance(value, list):
                result.set(key, self._resolved_list(node, value))
            else:
                result.set(key, value)
        self._check_function(result)
        return result

    def _resolved_list(self, node: exp.Expr, values: list[Any]) -> list[Any]:
        """The arguments of a call; a star among them stands for columns."""
        if is_row_count(node):
            return values
        parts: list[Any] = []
        for value in values:
            if isinstance(node, exp.Anonymous | exp.Distinct) and is_star(value):
                parts += self._star(node, value)
            else:
                parts.append(self.resolve(value) if isinstance(value, exp.Expr) else value)
        return parts

    def _star(self, node: exp.Expr, star: exp.Expr) -> list[exp.Expr]:
        name = ex.call_name(node)
        if name == "COUNT":
            message = "count of the columns of a table counts rows without a NULL among them"
            self.context.report("TG-103", message, star, "count(*), or count(a, b).")
        # The window of GROUP BY belongs to the groups, and not to the rows.
        rows = [part for part in self.scope.relations if part.fields != self.scope.grouped]
        items = star_items(star, replace(self.scope, relations=rows), self.context)
        if name != "STRUCT":
            return [item.expression for item in items]
        return [exp.alias_(item.expression, item.name, quoted=True) for item in items]

    def _lambda(self, node: exp.Lambda) -> exp.Expr:
        """x -> x + t.x: a parameter that would hide the id of a column gets another name."""
        tree = node.copy()
        names = {part.name.lower() for part in tree.expressions}
        for part in list(tree.this.find_all(exp.Column)):
            if part.parts[0].name.lower() in names:
                part.replace(part.to_dot() if len(part.parts) > 1 else part.this)
        result = self._resolved_parts(tree)
        taken = {name.lower() for name in referenced_ids(result.this)}
        used = taken | {part.name.lower() for part in result.find_all(exp.Identifier)}
        for parameter in result.expressions:
            old = parameter.name.lower()
            if old in taken:
                new = self.context.fresh(parameter.name)
                while new.lower() in used:
                    new = self.context.fresh(parameter.name)
                rename_parameter(result.this, old, new)
                parameter.replace(exp.to_identifier(new, quoted=True))
        return result

    def _check_quotes(self, node: exp.Literal) -> None:
        """Other systems quote columns the way Spark quotes texts, which would be a text forever."""
        start = node.meta.get("start")
        if not node.is_string or start is None or self.context.text[start : start + 1] != '"':
            return
        name = node.name.lower()
        scope: Scope | None = self.scope
        known = name in self.aliases
        while scope is not None and not known:
            known = bool(scope.find(name)) or name in scope.merged
            scope = scope.parent
        if known:
            self.context.report(
                "TG-310",
                f'"{node.name}" is a text here, and {node.name} is a column',
                node,
                f"for the column write `{node.name}`, for the text '{node.name}'.",
            )

    def _check_clauses(self, node: exp.Expr) -> None:
        """OVER and FILTER are for aggregates, which functions of the user's own are not."""
        if isinstance(node, exp.Tuple) and not node.expressions:
            self.context.report("TG-101", "() holds no value", node, "write a value in it.")
        if isinstance(node, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            function = own_function(node.this, self.context)
            if function is not None:
                self.context.report(
                    "TG-305",
                    f"{function.name} is made of one row, and takes neither OVER nor FILTER",
                    node,
                    "give it an aggregate to work on: "
                    f"{function.name}(sum(x) OVER (PARTITION BY k ORDER BY ts)).",
                )

    def _check_null(self, node: exp.Expr) -> None:
        """x = NULL is never true, and neither is x <> NULL."""
        if not isinstance(node, exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
            return
        left, right = node.this.unnest(), node.expression.unnest()
        if not isinstance(left, exp.Null) and not isinstance(right, exp.Null):
            return
        other = right if isinstance(left, exp.Null) else left
        test = "IS NOT NULL" if isinstance(node, exp.NEQ) else "IS NULL"
        message = "a comparison with NULL is never true"
        self.context.report("TG-311", message, node, f"write {to_sql(other)} {test}.")

    def _by_arrival(self, node: exp.Window) -> exp.Expr:
        node = by_arrival(node)
        if not orders_by_processing_time(node):
            return node
        self.context.report(
            "TG-305",
            "ORDER BY PROCTIME() is the order in which rows arrive: it stands alone, goes upwards "
            "(for row_number also down), and its frames are of ROWS",
            node,
            "OVER (… ORDER BY PROCTIME() ROWS BETWEEN 9 PRECEDING AND CURRENT ROW)",
        )
        node = node.copy()
        node.set("order", None)
        return node

    def _check_function(self, node: exp.Expr) -> None:
        name = ex.call_name(node)
        if name is None or not isinstance(node, exp.Anonymous):
            return
        node.set("this", name)
        self._check_place(name, node)
        wrong = wrong_literal(node)
        if wrong is not None:
            literal, message, advice = wrong
            self.context.report("TG-312", message, literal, advice)
        if name in ex.spark_functions() or name in ex.OWN_FUNCTIONS or name in ex.UNIT_FUNCTIONS:
            return
        if name.lower() in self.context.broken:
            # Its declaration has an error of its own.
            node.meta[UNKNOWN_FUNCTION] = True
        elif not self.context.function_exists(name):
            span = own_span(node)
            start = node.meta.get("start")
            at = Span(start, node.meta["end"] + 1) if start is not None else span
            own = {item.name.upper() for item in self.context.catalog.of(Function)}
            known = ex.spark_functions() | ex.OWN_FUNCTIONS | own
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            hint = "functions are Spark SQL's; one of your own is declared: CREATE FUNCTION "
            hint += f"{name.lower()}(x BIGINT) RETURNS BIGINT RETURN x * 2; or in Python, with "
            hint += "db.function."
            if near:
                hint = f"did you mean {near[0].lower()}?"
            hint = function_hint(name) or hint
            self.context.report("TG-303", f"there is no function {name.lower()}", at, hint)
            node.meta[UNKNOWN_FUNCTION] = True

    def _check_place(self, name: str, node: exp.Expr) -> None:
        """Windows and processing time have their places, which do not come by here."""
        if name in ex.SPARK_WINDOW_FUNCTIONS:
            self.context.report(
                "TG-306",
                f"Spark's {name.lower()} function is not what makes windows here",
                node,
                "GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE), HOP, SESSION or CUMULATE.",
            )
        elif name in ex.WINDOW_FUNCTIONS:
            self.context.report(
                "TG-306",
                f"{name} makes windows in GROUP BY and FROM, not here",
                node,
                f"GROUP BY {name}(…), then select window_start or window_end.",
            )
        elif name == "PROCTIME":
            self.context.report(
                "TG-305",
                "PROCTIME() stands for the clock in windows and lookup joins, and nowhere else",
                node,
                "GROUP BY TUMBLE(PROCTIME(), INTERVAL '1' MINUTE), or current_timestamp().",
            )

    def _subquery(self, node: exp.Expr) -> exp.Expr:
        query = node if isinstance(node, exp.Query) else _query_in(node)
        if self.bind_subquery is None:
            self.context.report(
                "TG-103", "a subquery is not allowed here", query, "write it as a join in FROM."
            )
        result = node.copy()
        if self.bind_subquery is not None:
            # Copies of the expression say by this number which subquery they stand for.
            number = len(self.subqueries)
            self.subqueries[number] = self.bind_subquery(query, self.scope)
            result.meta["subquery"] = number
        if isinstance(node, exp.In):
            result.set("this", self.resolve(node.this))
        return result

    def _column(self, node: exp.Column) -> exp.Expr:
        parts = [part.name for part in node.parts]
        scope: Scope | None = self.scope
        while scope is not None:
            found = self._in_scope(scope, parts, node)
            if found is not None:
                return found
            scope = scope.parent
        alias = self.aliases.get(parts[0].lower())
        if alias is not None:
            if ex.is_random(alias):
                self.context.report(
                    "TG-103",
                    f"{parts[0]} is random, and would be drawn again where it is used again",
                    node,
                    f"compute {parts[0]} in a subquery: FROM (SELECT …, … AS {parts[0]} FROM …).",
                )
            return field_path(parenthesize(alias.copy()), parts[1:])
        self._unknown(parts, node)
        return column(UNKNOWN, node)

    def _in_scope(self, scope: Scope, parts: list[str], node: exp.Column) -> exp.Expr | None:
        if len(parts) > 1:
            relation = scope.named(parts[0])
            if relation is not None:
                matches = [f for f in relation.fields if f.name.lower() == parts[1].lower()]
                if not matches:
                    self._unknown_in(relation, parts, node)
                    return column(UNKNOWN, node)
                return field_path(column(matches[0], node), parts[2:])
        if parts[0].lower() in scope.merged:
            return field_path(scope.merged[parts[0].lower()].copy(), parts[1:])
        matches = scope.find(parts[0])
        if len(matches) > 1:
            owners = [
                relation.alias or "a table without a name"
                for relation in scope.relations
                for item in relation.fields
                if item.name.lower() == parts[0].lower()
            ]
            named = [relation.alias for relation in scope.relations if relation.alias]
            self.context.report(
                "TG-302",
                f"{parts[0]} could be a column of {' or of '.join(owners)}",
                node,
                f"write {named[0]}.{parts[0]}." if named else "give the tables names: … AS a.",
            )
        return field_path(column(matches[0], node), parts[1:]) if matches else None

    def _unknown_in(self, relation: Relation, parts: list[str], node: exp.Column) -> None:
        names = [item.name for item in relation.fields]
        self.context.report(
            "TG-301",
            f"{relation.alias} has no column {parts[1]}",
            node,
            did_you_mean(parts[1], names, f"columns of {relation.alias}"),
        )

    def _unknown(self, parts: list[str], node: exp.Column) -> None:
        name = ".".join(parts)
        known = [item.name for item in self.scope.fields]
        if len(parts) > 1:
            aliases = [relation.alias for relation in self.scope.relations if relation.alias]
            hint = did_you_mean(parts[0], aliases, "tables of this query")
        elif parts[0].lower() == OP:
            hint = "_op travels with the rows of a changelog by itself; it is not selected."
        elif parts[0].lower() in {"window_start", "window_end", "window_time"}:
            hint = "put the rows into windows: GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)."
            if any(item.window is not None for item in self.scope.fields):
                hint = f"select {parts[0].lower()} too in what is read here, where the windows are."
        else:
            hint = did_you_mean(parts[0], known, "columns")
        self.context.report("TG-301", f"there is no column {name}", node, hint)


def own_function(node: object, context: Context) -> Function | None:
    """The function of the user's own that is called here."""
    name = ex.call_name(node) if isinstance(node, exp.Anonymous) else None
    found = context.catalog.get(name) if name is not None else None
    return found if isinstance(found, Function) else None


def _holds_query(node: exp.Expr) -> bool:
    if isinstance(node, exp.In):
        return node.args.get("query") is not None
    return isinstance(node, exp.Exists) and isinstance(node.this, exp.Query)


def _query_in(node: exp.Expr) -> exp.Expr:
    query = node.args.get("query") if isinstance(node, exp.In) else node.this
    assert isinstance(query, exp.Expr), "a predicate that holds a query has one"
    return query


# ---- The SELECT list: stars, aliases, and names for what has none.


def select_items(
    trees: list[exp.Expr], scope: Scope, resolver: Callable[[dict[str, exp.Expr]], Resolver]
) -> list[SelectItem]:
    """The SELECT list with stars expanded; later items may use earlier aliases."""
    items: list[SelectItem] = []
    aliases: dict[str, exp.Expr] = {}
    if not trees:
        resolver({}).context.report("TG-101", "SELECT needs a column", None, "SELECT * FROM …")
    for tree in trees:
        resolving = resolver(aliases)
        if is_star(tree):
            items += star_items(tree, scope, resolving.context)
            continue
        _reject_extras(tree, resolving.context)
        expression = resolving.resolve(tree.unalias())
        items.append(SelectItem(tree.alias_or_name or to_sql(tree), expression))
        if isinstance(tree, exp.Alias):
            aliases[tree.alias.lower()] = expression
    return items


def _reject_extras(tree: exp.Expr, context: Context) -> None:
    if isinstance(tree, exp.QueryTransform):
        message = "TRANSFORM … USING runs programs of its own, which is not supported"
        context.report("TG-103", message, tree, "register a function on the SparkSession.")
    if isinstance(tree, exp.Aliases):
        hint = "use LATERAL VIEW explode(…) t AS key, value."
        context.report("TG-103", "several aliases for one expression", tree, hint)
