"""Resolves names in expressions to column ids, and binds calls, stars and the SELECT list."""

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
    arrival_order_problem,
    find_misuse,
    inline_call,
    name_struct_fields,
    order_by_arrival,
    orders_by_processing_time,
    rename_parameter,
    resolve_unit,
)
from tidegate.plan.bind.scope import (
    BindingContext,
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

# A variable of a script, as in WHERE price > ${LIMIT}.
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# ---- Literals that a function would reject at run time: date patterns and time zones

# An invalid literal, the message and the hint.
LiteralProblem = tuple[exp.Expr, str, str]

# The positions of arguments that are patterns or time zones.
_PATTERN_ARGUMENTS = {
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
_ZONE_ARGUMENTS = {
    "FROM_UTC_TIMESTAMP": (1,),
    "TO_UTC_TIMESTAMP": (1,),
    "CONVERT_TIMEZONE": (0, 1),
}
_ZONE_HINT = "write a time zone as 'Europe/Berlin' or '+02:00'."
# Spark's patterns for the letters of strftime, which many other systems use.
_STRFTIME_PATTERNS = {
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


def find_invalid_literal(call: exp.Expr) -> LiteralProblem | None:
    """Return a literal argument that the function cannot accept, with message and hint."""
    name = ex.call_name(call) or ""
    for position in _PATTERN_ARGUMENTS.get(name, ()):
        literal = _string_argument(call, position)
        if literal is not None and re.search(r"%[A-Za-z]", literal.name):
            message = f"'{literal.name}' is not a pattern for dates and times"
            hint = f"write it as Spark does: '{_to_spark_pattern(literal.name)}'."
            letters = re.findall(r"%[A-Za-z]", literal.name)
            unknown = next((item for item in letters if item not in _STRFTIME_PATTERNS), None)
            if unknown is not None:
                hint = f"{unknown} has no equivalent; {hint}"
            return literal, message, hint
    for position in _ZONE_ARGUMENTS.get(name, ()):
        literal = _string_argument(call, position)
        if literal is not None and _is_unknown_zone(literal.name):
            suggestion = nearest(literal.name, _time_zones())
            hint = f"did you mean {suggestion}?" if suggestion else _ZONE_HINT
            return literal, f"time zone {literal.name} does not exist", hint
    return None


def _string_argument(call: exp.Expr, position: int) -> exp.Literal | None:
    arguments = call.expressions
    if position >= len(arguments) or not isinstance(arguments[position], exp.Literal):
        return None
    literal: exp.Literal = arguments[position]
    return literal if literal.is_string else None


def _to_spark_pattern(pattern: str) -> str:
    return re.sub(r"%[A-Za-z]", lambda match: _STRFTIME_PATTERNS.get(match.group(), "…"), pattern)


@cache
def _time_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _is_unknown_zone(name: str) -> bool:
    """Return whether a zone with area and city does not exist; Spark accepts other formats."""
    # SystemV zones exist in Java only, and a machine may have no list of time zones.
    exists = name in _time_zones() or name.startswith("SystemV/") or not _time_zones()
    return re.fullmatch(r"[A-Za-z]+/[\w/+-]+", name) is not None and not exists


# ---- Stars: `*`, `t.*` and `s.*`, in the SELECT list and in the arguments of calls


@dataclass(frozen=True)
class SelectItem:
    """An output column: its name and its resolved expression."""

    name: str
    expression: exp.Expr


def is_star(tree: Any) -> bool:
    """Return whether an expression is * or t.*."""
    return isinstance(tree, exp.Star) or (
        isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star)
    )


def is_row_count(call: Any) -> bool:
    """Return whether a call is count(*), whose star does not stand for columns."""
    return (
        ex.call_name(call) == "COUNT"
        and len(call.expressions) == 1
        and isinstance(call.expressions[0], exp.Star)
    )


def star_items(tree: exp.Expr, scope: Scope, context: BindingContext) -> list[SelectItem]:
    """Return the columns for which a star stands."""
    star = tree.this if isinstance(tree, exp.Column) else tree
    if star.args.get("replace") or star.args.get("rename"):
        hint = "list the columns."
        context.report("TG-103", "* REPLACE and * RENAME are not supported", tree, hint)
    path = [part.name for part in tree.parts[:-1]] if isinstance(tree, exp.Column) else []
    if not path:
        items = [SelectItem(name, merged.copy()) for name, merged in scope.using_columns.items()]
        for relation in scope.relations:
            fields = [
                item for item in relation.fields if item.name.lower() not in scope.using_columns
            ]
            items += _items_of(fields, tree)
        return _apply_except(items, tree, star, context)
    table = scope.find_relation(path[0]) if len(path) == 1 else None
    expanded = _items_of(table.fields, tree) if table is not None else None
    if expanded is None:
        expanded = _struct_items(path, tree, scope)
    if expanded is None:
        _report_unknown_star(path, tree, scope, context)
        return []
    return _apply_except(expanded, tree, star, context)


def _items_of(fields: tuple[Field, ...] | list[Field], tree: exp.Expr) -> list[SelectItem]:
    return [SelectItem(item.name, column(item, tree)) for item in fields]


def _struct_items(path: list[str], tree: exp.Expr, scope: Scope) -> list[SelectItem] | None:
    """Return the fields of a column whose declared type is a struct; None for other columns."""
    item = _find_column(path, scope)
    if item is None or item.type is None:
        return None
    struct_type = exp.DataType.build(item.type, dialect="spark", udt=True)
    if not struct_type.is_type(exp.DataType.Type.STRUCT):
        return None
    names = [part.name for part in struct_type.expressions]
    return [SelectItem(name, field_path(column(item, tree), [name])) for name in names]


def _find_column(path: list[str], scope: Scope) -> Field | None:
    relation: Relation | None = scope.find_relation(path[0]) if len(path) > 1 else None
    fields = relation.fields if relation is not None else scope.fields
    matches = [item for item in fields if item.name.lower() == path[-1].lower()]
    is_complete = len(path) == (2 if relation is not None else 1)
    return matches[0] if is_complete and len(matches) == 1 else None


def _report_unknown_star(
    path: list[str], tree: exp.Expr, scope: Scope, context: BindingContext
) -> None:
    name = ".".join(path)
    if _find_column(path, scope) is not None:
        message = f"{name}.*: {name} is a column, but its type is not declared as a struct"
        context.report("TG-301", message, tree, f"list the fields: {name}.a, {name}.b.")
        return
    names = [item.alias for item in scope.relations if item.alias]
    hint = did_you_mean(path[0], names, "tables of this query")
    context.report("TG-301", f"{name}.*: table {name} does not exist", tree, hint)


def _apply_except(
    items: list[SelectItem], tree: exp.Expr, star: exp.Expr, context: BindingContext
) -> list[SelectItem]:
    """Apply * EXCEPT (a, b)."""
    parts = star.args.get("except_") or star.args.get("except") or []
    for part in parts:
        if isinstance(part, exp.Dot) or (isinstance(part, exp.Column) and len(part.parts) > 1):
            hint = "list the remaining fields: named_struct('x', s.x) AS s."
            context.report("TG-103", "* EXCEPT cannot exclude a field of a column", tree, hint)
    excluded = {part.name.lower() for part in parts}
    names = {item.name.lower() for item in items}
    for name in sorted(excluded - names):
        hint = did_you_mean(name, names, "columns")
        context.report("TG-301", f"* EXCEPT ({name}): column {name} does not exist", tree, hint)
    return [item for item in items if item.name.lower() not in excluded]


UNKNOWN_FIELD = Field("?", "?")
# The metadata key of calls of unknown functions; their columns are not checked further.
UNKNOWN_FUNCTION = "unknown_function"
# What to write for the window functions of Spark.
_SPARK_WINDOWS = {
    "WINDOW": "TUMBLE(ts, INTERVAL '1' MINUTE), HOP or CUMULATE, where ts is the event time.",
    "SESSION_WINDOW": "SESSION(ts, INTERVAL '1' MINUTE), where ts is the event time.",
    "WINDOW_TIME": "TUMBLE(ts, INTERVAL '1' MINUTE), and select its column window_time.",
}


@dataclass
class Resolver:
    """Resolves the names in the expressions of a query."""

    context: BindingContext
    scope: Scope
    aliases: Mapping[str, exp.Expr] = field(default_factory=dict)
    bind_subquery: Callable[[exp.Expr, Scope], Node] | None = None
    subqueries: dict[int, Node] = field(default_factory=dict)

    def resolve(self, node: exp.Expr) -> exp.Expr:
        """Return the expression over column ids; report names that cannot be resolved."""
        if is_star(node):
            hint = "list the columns."
            message = "* is only allowed in SELECT and in the arguments of functions"
            self.context.report("TG-103", message, node, hint)
            return column(UNKNOWN_FIELD, node)
        if isinstance(node, exp.Column):
            return self._resolve_column(node)
        if isinstance(node, exp.Lambda):
            return self._resolve_lambda(node)
        self._check_clauses(node)
        if isinstance(node, exp.Window):
            node = self._order_by_arrival(node)
        if isinstance(node, exp.Literal):
            self._check_quotes(node)
        self._check_null_comparison(node)
        if isinstance(node, exp.CurrentDate | exp.CurrentTimestamp) and not node.this:
            # A column of that name takes precedence over the function.
            named_column = self._resolve_in_scope(
                self.scope, [ex.call_name(node) or ""], exp.Column()
            )
            if named_column is not None:
                return named_column
        if isinstance(node, exp.Query) or _has_query(node):
            return self._resolve_subquery(node)
        if isinstance(node, exp.Placeholder | exp.Parameter | exp.SessionParameter):
            self._report_parameter(node)
        function = find_user_function(node, self.context)
        if function is not None and isinstance(node, exp.Anonymous):
            return self._inline(node, function)
        return self._resolve_parts(name_struct_fields(resolve_unit(node)))

    def _inline(self, node: exp.Anonymous, function: Function) -> exp.Expr:
        """Inline the call of a user-defined function."""
        arguments = [self.resolve(part) for part in node.expressions]
        problem = find_misuse(node, function, arguments)
        if problem is not None:
            self.context.report(*problem)
            node = node.copy()
            node.meta[UNKNOWN_FUNCTION] = True
            return node
        return inline_call(node, function, arguments)

    def _resolve_parts(self, node: exp.Expr) -> exp.Expr:
        result = node.copy() if not node.args else type(node)()
        result._meta = dict(node.meta) if node.meta else None
        for key, value in node.args.items():
            if isinstance(value, exp.Expr):
                result.set(key, self.resolve(value))
            elif isinstance(value, list):
                result.set(key, self._resolve_list(node, value))
            else:
                result.set(key, value)
        self._check_function(result)
        return result

    def _resolve_list(self, node: exp.Expr, values: list[Any]) -> list[Any]:
        """Resolve the arguments of a call; a star stands for columns."""
        if is_row_count(node):
            return values
        parts: list[Any] = []
        for value in values:
            if isinstance(node, exp.Anonymous | exp.Distinct) and is_star(value):
                parts += self._expand_star(node, value)
            else:
                parts.append(self.resolve(value) if isinstance(value, exp.Expr) else value)
        return parts

    def _expand_star(self, node: exp.Expr, star: exp.Expr) -> list[exp.Expr]:
        name = ex.call_name(node)
        if name == "COUNT":
            message = "count(t.*) counts the rows in which no column is NULL"
            self.context.report("TG-103", message, star, "write count(*), or count(a, b).")
        # The window of GROUP BY belongs to the groups, not to the rows.
        rows = [part for part in self.scope.relations if part.fields != self.scope.window_fields]
        items = star_items(star, replace(self.scope, relations=rows), self.context)
        if name != "STRUCT":
            return [item.expression for item in items]
        return [exp.alias_(item.expression, item.name, quoted=True) for item in items]

    def _resolve_lambda(self, node: exp.Lambda) -> exp.Expr:
        """Resolve a lambda; rename a parameter that would capture the id of a column."""
        tree = node.copy()
        names = {part.name.lower() for part in tree.expressions}
        for part in list(tree.this.find_all(exp.Column)):
            if part.parts[0].name.lower() in names:
                part.replace(part.to_dot() if len(part.parts) > 1 else part.this)
        result = self._resolve_parts(tree)
        captured = {name.lower() for name in referenced_ids(result.this)}
        used_names = captured | {part.name.lower() for part in result.find_all(exp.Identifier)}
        for parameter in result.expressions:
            old = parameter.name.lower()
            if old in captured:
                new = self.context.new_id(parameter.name)
                while new.lower() in used_names:
                    new = self.context.new_id(parameter.name)
                rename_parameter(result.this, old, new)
                parameter.replace(exp.to_identifier(new, quoted=True))
        return result

    def _check_quotes(self, node: exp.Literal) -> None:
        """Report double quotes around column names: they delimit strings in Spark."""
        start = node.meta.get("start")
        if not node.is_string or start is None or self.context.text[start : start + 1] != '"':
            return
        name = node.name.lower()
        scope: Scope | None = self.scope
        is_column = name in self.aliases
        while scope is not None and not is_column:
            is_column = bool(scope.find_fields(name)) or name in scope.using_columns
            scope = scope.parent
        if is_column:
            self.context.report(
                "TG-310",
                f'"{node.name}" is a string here, but {node.name} is also a column',
                node,
                f"write `{node.name}` for the column, '{node.name}' for the string.",
            )

    def _check_clauses(self, node: exp.Expr) -> None:
        """Report OVER and FILTER on user-defined functions, which are scalar."""
        if isinstance(node, exp.Tuple) and not node.expressions:
            self.context.report(
                "TG-101", "these parentheses are empty", node, "write an expression in them."
            )
        if isinstance(node, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            function = find_user_function(node.this, self.context)
            if function is not None:
                inner = "a window function", "sum(x) OVER (PARTITION BY k ORDER BY ts)"
                if isinstance(node, exp.Filter):
                    inner = "an aggregate", "sum(x) FILTER (WHERE …)"
                self.context.report(
                    "TG-305",
                    f"{function.name} is a scalar function: it takes neither OVER nor FILTER",
                    node,
                    f"apply it to {inner[0]}: {function.name}({inner[1]}).",
                )

    def _check_null_comparison(self, node: exp.Expr) -> None:
        """Report x = NULL and x <> NULL, which are never true."""
        if not isinstance(node, exp.EQ | exp.NEQ | exp.LT | exp.LTE | exp.GT | exp.GTE):
            return
        left, right = node.this.unnest(), node.expression.unnest()
        if not isinstance(left, exp.Null) and not isinstance(right, exp.Null):
            return
        other = right if isinstance(left, exp.Null) else left
        test = "IS NOT NULL" if isinstance(node, exp.NEQ) else "IS NULL"
        message = "a comparison with NULL is never true"
        self.context.report("TG-311", message, node, f"write {to_sql(other)} {test}.")

    def _order_by_arrival(self, node: exp.Window) -> exp.Expr:
        node = order_by_arrival(node)
        if not orders_by_processing_time(node):
            return node
        message, hint = arrival_order_problem(node)
        self.context.report("TG-305", message, node, hint)
        node = node.copy()
        node.set("order", None)
        return node

    def _check_function(self, node: exp.Expr) -> None:
        name = ex.call_name(node)
        if name is None or not isinstance(node, exp.Anonymous):
            return
        node.set("this", name)
        self._check_context(name, node)
        problem = find_invalid_literal(node)
        if problem is not None:
            literal, message, hint = problem
            self.context.report("TG-312", message, literal, hint)
        if (
            name in ex.spark_functions()
            or name in ex.TIDEGATE_FUNCTIONS
            or name in ex.UNIT_FUNCTIONS
        ):
            return
        if name.lower() in self.context.invalid_names:
            # The error in its declaration has been reported.
            node.meta[UNKNOWN_FUNCTION] = True
        elif not self.context.function_exists(name):
            span = own_span(node)
            start = node.meta.get("start")
            location = Span(start, node.meta["end"] + 1) if start is not None else span
            user_functions = {item.name.upper() for item in self.context.catalog.of_type(Function)}
            candidates = ex.spark_functions() | ex.TIDEGATE_FUNCTIONS | user_functions
            matches = difflib.get_close_matches(name, candidates, n=1, cutoff=0.75)
            hint = "use a function of Spark SQL, or declare one: CREATE FUNCTION "
            hint += f"{name.lower()}(x BIGINT) RETURNS BIGINT RETURN x * 2; or in Python, with "
            hint += "db.function."
            if matches:
                hint = f"did you mean {matches[0].lower()}?"
            hint = function_hint(name) or hint
            self.context.report("TG-303", f"function {name.lower()} does not exist", location, hint)
            node.meta[UNKNOWN_FUNCTION] = True

    def _check_context(self, name: str, node: exp.Expr) -> None:
        """Report window functions and PROCTIME() where they are not allowed."""
        if name in ex.SPARK_WINDOW_FUNCTIONS or name in ex.WINDOW_FUNCTIONS:
            # Its arguments are not grouped; one error is enough.
            node.meta[UNKNOWN_FUNCTION] = True
        if name in ex.SPARK_WINDOW_FUNCTIONS:
            self.context.report(
                "TG-306",
                f"Spark's {name.lower()}() is not supported",
                node,
                f"use GROUP BY {_SPARK_WINDOWS[name]}",
            )
        elif name in ex.WINDOW_FUNCTIONS:
            self.context.report(
                "TG-306",
                f"{name} cannot be selected or compared: it is only allowed in GROUP BY and FROM",
                node,
                f"write GROUP BY {name}(…), and select window_start or window_end.",
            )
        elif name == "PROCTIME":
            self.context.report(
                "TG-305",
                "PROCTIME() is only allowed in windows, lookup joins and ORDER BY of OVER",
                node,
                "use GROUP BY TUMBLE(PROCTIME(), INTERVAL '1' MINUTE), or current_timestamp().",
            )

    def _report_parameter(self, node: exp.Expr) -> None:
        location = self.context.location(node)
        start = max(location.start - 2, 0)
        variable = _VARIABLE.search(location.text, start, location.end + 2)
        if variable is None:
            hint = "write the value."
            self.context.report("TG-103", "parameters in SQL are not supported", node, hint)
            return
        self.context.report(
            "TG-103",
            f"{variable[0]} has no value",
            Span(variable.start(), variable.end()),
            f"pass it on the command line: --var {variable[1]}=…",
        )

    def _resolve_subquery(self, node: exp.Expr) -> exp.Expr:
        query = node if isinstance(node, exp.Query) else _query_in(node)
        if self.bind_subquery is None:
            self.context.report(
                "TG-103", "a subquery is not allowed here", query, "write it as a join in FROM."
            )
        result = node.copy()
        if self.bind_subquery is not None:
            # Copies of the expression keep this number.
            number = len(self.subqueries)
            self.subqueries[number] = self.bind_subquery(query, self.scope)
            result.meta["subquery"] = number
        if isinstance(node, exp.In):
            result.set("this", self.resolve(node.this))
        return result

    def _resolve_column(self, node: exp.Column) -> exp.Expr:
        parts = [part.name for part in node.parts]
        scope: Scope | None = self.scope
        while scope is not None:
            reference = self._resolve_in_scope(scope, parts, node)
            if reference is not None:
                return reference
            scope = scope.parent
        alias = self.aliases.get(parts[0].lower())
        if alias is not None:
            if ex.is_random(alias):
                self.context.report(
                    "TG-103",
                    f"{parts[0]} is random, so each use of it would have another value",
                    node,
                    f"compute {parts[0]} in a subquery: FROM (SELECT …, … AS {parts[0]} FROM …).",
                )
            return field_path(parenthesize(alias.copy()), parts[1:])
        self._report_unknown_column(parts, node)
        return column(UNKNOWN_FIELD, node)

    def _resolve_in_scope(
        self, scope: Scope, parts: list[str], node: exp.Column
    ) -> exp.Expr | None:
        if len(parts) > 1:
            relation = scope.find_relation(parts[0])
            if relation is not None:
                matches = [f for f in relation.fields if f.name.lower() == parts[1].lower()]
                if not matches:
                    self._report_unknown_in(relation, parts, node)
                    return column(UNKNOWN_FIELD, node)
                return field_path(column(matches[0], node), parts[2:])
        if parts[0].lower() in scope.using_columns:
            return field_path(scope.using_columns[parts[0].lower()].copy(), parts[1:])
        matches = scope.find_fields(parts[0])
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

    def _report_unknown_in(self, relation: Relation, parts: list[str], node: exp.Column) -> None:
        names = [item.name for item in relation.fields]
        self.context.report(
            "TG-301",
            f"{relation.alias} has no column {parts[1]}",
            node,
            did_you_mean(parts[1], names, f"columns of {relation.alias}"),
        )

    def _report_unknown_column(self, parts: list[str], node: exp.Column) -> None:
        name = ".".join(parts)
        names = [item.name for item in self.scope.fields]
        if len(parts) > 1:
            aliases = [relation.alias for relation in self.scope.relations if relation.alias]
            hint = did_you_mean(parts[0], aliases, "tables of this query")
        elif parts[0].lower() == OP:
            hint = "_op is part of every row of a changelog; it cannot be selected."
        elif parts[0].lower() in {"window_start", "window_end", "window_time"}:
            hint = "assign rows to windows: GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)."
            if any(item.window is not None for item in self.scope.fields):
                hint = f"also select {parts[0].lower()} in the query that defines the windows."
        else:
            hint = did_you_mean(parts[0], names, "columns")
        self.context.report("TG-301", f"column {name} does not exist", node, hint)


def find_user_function(node: object, context: BindingContext) -> Function | None:
    """Return the user-defined function that an expression calls."""
    name = ex.call_name(node) if isinstance(node, exp.Anonymous) else None
    declared = context.catalog.get(name) if name is not None else None
    return declared if isinstance(declared, Function) else None


def _has_query(node: exp.Expr) -> bool:
    if isinstance(node, exp.In):
        return node.args.get("query") is not None
    return isinstance(node, exp.Exists) and isinstance(node.this, exp.Query)


def _query_in(node: exp.Expr) -> exp.Expr:
    query = node.args.get("query") if isinstance(node, exp.In) else node.this
    assert isinstance(query, exp.Expr), "the predicate has a query"
    return query


# ---- The SELECT list: stars, aliases, and names of unnamed expressions


def select_items(
    trees: list[exp.Expr], scope: Scope, resolver: Callable[[dict[str, exp.Expr]], Resolver]
) -> list[SelectItem]:
    """Resolve the SELECT list with its stars; later items may use earlier aliases."""
    items: list[SelectItem] = []
    aliases: dict[str, exp.Expr] = {}
    if not trees:
        resolver({}).context.report("TG-101", "SELECT needs a column", None, "SELECT * FROM …")
    for tree in trees:
        item_resolver = resolver(aliases)
        if is_star(tree):
            items += star_items(tree, scope, item_resolver.context)
            continue
        _reject_unsupported(tree, item_resolver.context)
        expression = item_resolver.resolve(tree.unalias())
        items.append(SelectItem(tree.alias_or_name or to_sql(tree), expression))
        if isinstance(tree, exp.Alias):
            aliases[tree.alias.lower()] = expression
    return items


def _reject_unsupported(tree: exp.Expr, context: BindingContext) -> None:
    if isinstance(tree, exp.QueryTransform):
        message = "TRANSFORM … USING is not supported: it would run external programs"
        hint = "declare a function: CREATE FUNCTION f(x STRING) RETURNS STRING LANGUAGE PYTHON AS "
        context.report("TG-103", message, tree, hint + "'my_module:f';")
    if isinstance(tree, exp.Aliases):
        hint = "use LATERAL VIEW explode(…) t AS key, value."
        context.report("TG-103", "an expression can only have one alias", tree, hint)
