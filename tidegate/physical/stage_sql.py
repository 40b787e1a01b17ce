"""Spark SQL for plan nodes.

The leaves of a stage are views: sources and the outputs of operators. For type analysis every node
can be printed: that SQL has the columns and types of the stream, but is never run, as it has other
rows for session windows, temporal and ASOF joins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.columns import (
    ARRIVAL,
    ARRIVAL_FILE,
    ARRIVAL_ROW,
    CONTROL,
    DEAD_LETTER,
    DEAD_LETTER_FIELDS,
    EVENT_TIME,
    MALFORMED_EVENT_TIME,
    NOW,
    OP,
    ORIGIN,
    SELECTED,
)
from tidegate.physical.typed import Types
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import is_volatile
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import string_literal, to_sql
from tidegate.sql.quoting import quote_identifier
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from tidegate.operators.aggregate.groups import PaneGrid

Leaf = Callable[[n.Node], str | None]


def unix_micros_sql(sql: str) -> str:
    """Return the SQL of a time in whole microseconds since 1970."""
    return f"unix_micros(CAST({sql} AS TIMESTAMP))"


def is_failure(sql: str, hashable: bool = True) -> str:
    """Return a condition, never NULL, that is true where an expression fails on a row.

    Spark has no TRY(expression), but `try_to_binary` returns NULL if anything below it fails: an
    expression with a hash did not fail. Hashing is cheap, but some types have no hash.
    """
    seen = f"hash({sql})" if hashable else f"to_json(struct({sql} AS c))"
    return f"try_to_binary(CAST({seen} AS STRING), 'utf-8') IS NULL"


def carries_op(node: n.Node) -> bool:
    """Return whether the rows of a node have the hidden column _op."""
    if isinstance(node, n.Scan):
        return node.source.carries_op
    if isinstance(node, n.Emit | n.StreamReference | n.Project | n.Filter) and carries_op(
        node.input
    ):
        return True
    return node.changelog is ChangelogKind.CHANGELOG


def emits_upserts(node: n.Node) -> bool:
    """Return whether a stream emits only new rows by key, and `-D` for deleted ones."""
    return isinstance(node, n.Emit) and node.changelog is ChangelogKind.UPSERT


def may_split_updates(node: n.Node) -> bool:
    """Return whether the old row of an update may pass without its new row, or change windows."""
    if isinstance(node, n.Filter | n.Window | n.Hold | n.Over):
        return True
    through = isinstance(node, n.Emit | n.Project | n.StreamReference | n.SetOperation | n.Explode)
    return through and any(may_split_updates(child) for child in node.inputs)


class SqlWriter:
    """Prints a plan as one SELECT; `leaf` returns the view of a node that is a leaf.

    The method for a class of nodes has its name in lower case. The columns of a view have the names
    of the fields, or with `by_id` their ids.
    """

    # Hidden columns of every row.
    hidden: tuple[str, ...] = ()

    def __init__(self, leaf: Leaf, by_id: bool = False) -> None:
        self.leaf = leaf
        self.by_id = by_id

    def write(self, node: n.Node) -> str:
        view = self.leaf(node)
        if view is not None:
            return self._leaf(node, view)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is not None:
            return str(method(node))
        # Operators import this module, so it cannot import them at the top.
        from tidegate.physical.registry import kind_of

        return kind_of(node).sql(node, self)

    def _leaf(self, node: n.Node, view: str) -> str:
        if self.by_id:
            columns = [quote_identifier(f.id) for f in node.fields]
        else:
            columns = [
                f"{quote_identifier(f.name)} AS {quote_identifier(f.id)}" for f in node.fields
            ]
        if carries_op(node):
            columns.append(OP)
        return f"SELECT {', '.join(columns)} FROM {quote_identifier(view)}"

    def child(self, node: n.Node) -> str:
        return f"({self.write(node)})"

    def ids(self, node: n.Node) -> list[str]:
        return [*(quote_identifier(item.id) for item in node.fields), *self._op(node), *self.hidden]

    def _streamreference(self, node: n.StreamReference) -> str:
        return self.write(node.input)

    def _filter(self, node: n.Filter) -> str:
        columns = ", ".join(self.ids(node))
        condition = expression_sql(node.condition)
        return f"SELECT {columns} FROM {self.child(node.input)} WHERE {condition}"

    def _project(self, node: n.Project) -> str:
        columns = [
            f"{self._projected(expression)} AS {quote_identifier(item.id)}"
            for item, expression in zip(node.fields, node.expressions, strict=True)
        ]
        columns += [*self._op(node), *self.hidden]
        return f"SELECT {', '.join(columns)} FROM {self.child(node.input)}"

    def _projected(self, expression: exp.Expr) -> str:
        return expression_sql(expression)

    def _explode(self, node: n.Explode) -> str:
        names = ", ".join(quote_identifier(name) for name in node.generated)
        outer = "OUTER " if node.outer else ""
        columns = ", ".join(self.ids(node))
        return (
            f"SELECT {columns} FROM {self.child(node.input)} LATERAL VIEW {outer}"
            f"{to_sql(node.generator)} generated AS {names}"
        )

    def _window(self, node: n.Window) -> str:
        """Assign windows with whole microseconds: exact, and right before 1970 too."""
        input_columns = [
            *(quote_identifier(item.id) for item in node.input.fields),
            *self._op(node.input),
        ]
        start, end, time = (quote_identifier(item.id) for item in node.fields[-3:])
        at = self._now() if node.spec.processing_time else to_sql(node.time)
        taken = {item.id.lower() for item in node.input.fields}
        us, window = _free_name("_us", taken), _free_name("_window", taken)
        at = self._computed(unix_micros_sql(at))
        input_sql = f"SELECT {', '.join([*input_columns, *self.hidden, f'{at} AS {us}'])} "
        input_sql += f"FROM {self.child(node.input)}"
        bounds = self._bounds(node.spec, us)
        inner = [*input_columns, *self.hidden, us, f"{bounds} AS {window}"]
        columns = [
            *input_columns,
            *self._hidden_where(f"{us} IS NOT NULL"),
            f"timestamp_micros({window}.s) AS {start}",
            f"timestamp_micros({window}.e) AS {end}",
            f"timestamp_micros({window}.e - 1) AS {time}",
        ]
        return f"SELECT {', '.join(columns)} FROM (SELECT {', '.join(inner)} FROM ({input_sql}))"

    # Hidden columns

    def _op(self, node: n.Node) -> list[str]:
        return [OP] if carries_op(node) else []

    def _computed(self, sql: str) -> str:
        """Return an expression as it is computed for a row."""
        return sql

    def _now(self) -> str:
        """Return the processing time: that of the epoch, if there is one."""
        return f"timestamp_micros({NOW})" if NOW in self.hidden else "current_timestamp()"

    def _bounds(self, spec: n.WindowSpec, us: str) -> str:
        return window_bounds(spec, us)

    def _hidden_where(self, condition: str) -> list[str]:
        """Return the hidden columns of rows for which a condition holds."""
        return list(self.hidden)

    def _only(self, node: n.Node, condition: str) -> str:
        """Select the rows of a node for which a condition on _op holds."""
        return f"SELECT * FROM {self.child(node)} WHERE {condition}"

    def _may_split_updates(self, node: n.Node) -> bool:
        """Return whether this node or one below may separate the rows of an update."""
        return may_split_updates(node)

    def _setoperation(self, node: n.SetOperation) -> str:
        """Align the inputs by position; an appended row of a mixed union is an insert."""
        with_op = carries_op(node)
        word = f" {node.operation}{' ALL' if node.all else ''} "
        parts = []
        for branch in node.members:
            columns = [
                f"{quote_identifier(column.id)} AS {quote_identifier(output.id)}"
                for output, column in zip(node.fields, branch.fields, strict=True)
            ]
            if with_op:
                columns.append(OP if carries_op(branch) else f"'+I' AS {OP}")
            columns += self.hidden
            parts.append(f"SELECT {', '.join(columns)} FROM {self.child(branch)}")
        return word.join(parts)

    def _emit(self, node: n.Emit) -> str:
        """Mark appended rows as inserts under EMIT CHANGES."""
        inner = node.input
        changes = node.clause is not None and node.clause.mode is EmitMode.CHANGES
        if carries_op(inner) and emits_upserts(node) and not self._may_split_updates(node):
            return self._only(inner, f"{OP} <> '-U'")
        if not changes or carries_op(inner):
            return self.write(inner)
        columns = [
            *(quote_identifier(item.id) for item in node.fields),
            f"'+I' AS {OP}",
            *self.hidden,
        ]
        return f"SELECT {', '.join(columns)} FROM {self.child(inner)}"


def expression_sql(tree: exp.Expr) -> str:
    """Return an expression as SQL.

    Subqueries in it only matter for types: such plans do not run yet.
    """

    def swap(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Exists) or (isinstance(part, exp.In) and part.args.get("query")):
            return exp.true()
        return exp.null() if isinstance(part, exp.Query) else part

    return to_sql(tree.copy().transform(swap) if tree.find(exp.Query) else tree)


def output_sql(
    node: n.Node, leaf: Leaf, writer: SqlWriter | None = None, extra: tuple[str, ...] = ()
) -> str:
    """Return the SQL of a whole stage, with the names of the query."""
    inner = (writer or SqlWriter(leaf)).write(node)
    columns = [
        f"{quote_identifier(item.id)} AS {quote_identifier(item.name)}" for item in node.fields
    ]
    if carries_op(node):
        columns.append(OP)
    return f"SELECT {', '.join([*columns, *extra])} FROM ({inner})"


def _free_name(name: str, taken: set[str]) -> str:
    """Return a name that no column has."""
    while name in taken:
        name += "_"
    return name


def window_bounds(spec: n.WindowSpec, us: str = "_us") -> str:
    """Return struct(s, e) in microseconds for the time in `us`; several windows are exploded."""
    size, slide, offset = spec.size_us, spec.slide_us, spec.offset_us
    if spec.kind is n.WindowKind.TUMBLE:
        start = f"{us} - pmod({us} - {offset}L, {size}L)"
        return f"named_struct('s', {start}, 'e', {start} + {size}L)"
    if spec.kind is n.WindowKind.HOP:
        last = f"{us} - pmod({us} - {offset}L, {slide}L)"
        first = f"{last} - {(size - 1) // slide * slide}L"
        starts = f"filter(sequence({first}, {last}, {slide}L), s -> s + {size}L > {us})"
        return f"explode(transform({starts}, s -> named_struct('s', s, 'e', s + {size}L)))"
    if spec.kind is n.WindowKind.CUMULATE:
        base = f"({us} - pmod({us} - {offset}L, {size}L))"
        first = f"{base} + (({us} - {base}) div {slide}L + 1) * {slide}L"
        ends = f"sequence({first}, {base} + {size}L, {slide}L)"
        return f"explode(transform({ends}, e -> named_struct('s', {base}, 'e', e)))"
    return f"named_struct('s', {us}, 'e', {us} + {size}L)"


# ---- Rows on which an expression fails: they are deselected and become dead letters.

_FAILED = "_tg_failed"
_LITERAL = re.compile(r"-?\d+L?|'[^'\\]*'|true|false|null", re.IGNORECASE)


@dataclass(frozen=True)
class FailedRowFilter:
    """Filters rows on which an expression fails, in streams with on_error = 'dead_letter'."""

    stream: str
    types: Types

    def without_failed_rows(
        self,
        rows: str,
        node: n.Node,
        expressions: Sequence[str],
        sql_types: Mapping[str, str | None] | None = None,
    ) -> str:
        """Return SQL for FROM: the rows of a node, without those on which an expression fails.

        `sql_types` are types of expressions that no operator requests.
        `explode` keeps the tests where they are written; elsewhere Spark extracts common
        subexpressions and evaluates them without the test.
        """
        plain = {quote_identifier(item.id) for item in node.fields} | {OP, *ARRIVAL}
        risky = [
            sql
            for sql in dict.fromkeys(expressions)
            if sql not in plain and not _LITERAL.fullmatch(sql)
        ]
        if not risky:
            return rows
        tests = " ".join(
            f"WHEN {is_failure(sql, self._hashable(sql, sql_types or {}))} "
            f"THEN {string_literal(_in_words(sql, node))}"
            for sql in risky
        )
        tried = f"explode(array(CASE WHEN {SELECTED} THEN CASE {tests} END END)) AS {_FAILED}"
        control = f"CASE WHEN {_FAILED} IS NULL THEN {CONTROL} ELSE {self._letter(node)} END"
        return (
            f"(SELECT * EXCEPT ({SELECTED}, {CONTROL}, {_FAILED}), "
            f"{SELECTED} AND {_FAILED} IS NULL AS {SELECTED}, {control} AS {CONTROL} "
            f"FROM (SELECT *, {tried} FROM {rows}))"
        )

    def _hashable(self, sql: str, sql_types: Mapping[str, str | None]) -> bool:
        sql_type = sql_types.get(sql) or self.types.by_sql.get(sql, "")
        return "MAP<" not in sql_type and "VARIANT" not in sql_type

    def _letter(self, node: n.Node) -> str:
        columns = ", ".join(
            f"{quote_identifier(item.id)} AS {quote_identifier(item.name)}" for item in node.fields
        )
        row = f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"
        fields = zip((string_literal(self.stream), _FAILED, row), DEAD_LETTER_FIELDS, strict=True)
        letter = ", ".join(f"{sql} AS {name}" for sql, name in fields)
        return f"CAST(concat('{DEAD_LETTER}', to_json(struct({letter}))) AS BINARY)"


def _in_words(sql: str, node: n.Node) -> str:
    """Return an expression with the names of columns instead of their ids."""
    for item in node.fields:
        sql = sql.replace(quote_identifier(item.id), item.name)
    return sql


# ---- SQL of a stage below an operator: deselected rows still advance the watermark.
#
# Every row has hidden columns for its origin, its event time, and whether it is selected. A filter
# deselects rows instead of dropping them, because their event times advance the watermark too.
# Expressions are not evaluated for deselected rows.

# Generators that return no row for an empty collection, and those that always return rows.
_OF_COLLECTION = frozenset({"EXPLODE", "POSEXPLODE", "INLINE"})
_OUTER = {"EXPLODE_OUTER": "EXPLODE", "POSEXPLODE_OUTER": "POSEXPLODE", "INLINE_OUTER": "INLINE"}
_ALWAYS = frozenset({"STACK", "JSON_TUPLE"})
# The first rows of a task, and then every Nth.
_ROW = "(monotonically_increasing_id() & 8589934591)"
_SAMPLE = f"({_ROW} < 1000 OR {_ROW} % 128 = 0)"
_NONE: Mapping[str, str | None] = {}
GENERATORS = _OF_COLLECTION | _OUTER.keys() | _ALWAYS


def when_selected(sql: str) -> str:
    """Return an expression that is NULL for rows that are not selected."""
    return f"CASE WHEN {SELECTED} THEN {sql} END"


class StageSqlWriter(SqlWriter):
    """Prints a stage with the hidden columns; its leaves have them already."""

    def __init__(
        self,
        leaf: Leaf,
        with_arrival: bool = False,
        has_processing_time: bool = False,
        failed_row_filter: FailedRowFilter | None = None,
    ) -> None:
        super().__init__(leaf)
        self.failed_row_filter = failed_row_filter
        self.carried: tuple[str, ...] = (ORIGIN, EVENT_TIME, CONTROL)
        self.carried += (ARRIVAL_FILE, ARRIVAL_ROW) if with_arrival else ()
        self.carried += (NOW,) if has_processing_time else ()
        self.hidden = (*self.carried, SELECTED)

    def child(self, node: n.Node) -> str:
        view = self.leaf(node)
        return quote_identifier(view) if view is not None else super().child(node)

    def without_failed_rows(
        self, node: n.Node, expressions: Sequence[str], sql_types: Mapping[str, str | None] = _NONE
    ) -> str:
        """Return the rows of a node for FROM, without failing rows if they become dead letters."""
        rows = self.child(node)
        return (
            rows
            if self.failed_row_filter is None
            else self.failed_row_filter.without_failed_rows(rows, node, expressions, sql_types)
        )

    def _leaf(self, node: n.Node, view: str) -> str:
        return f"SELECT {', '.join(self.ids(node))} FROM {quote_identifier(view)}"

    def _filter(self, node: n.Filter) -> str:
        columns = [
            *(quote_identifier(item.id) for item in node.fields),
            *self._op(node),
            *self.carried,
        ]
        condition = expression_sql(node.condition)
        live = f"CASE WHEN {SELECTED} THEN coalesce({condition}, false) ELSE false END"
        input_sql = self.without_failed_rows(node.input, [condition])
        return f"SELECT {', '.join(columns)}, {live} AS {SELECTED} FROM {input_sql}"

    def _project(self, node: n.Project) -> str:
        if self.failed_row_filter is None:
            return super()._project(node)
        sql_types = {
            expression_sql(tree): item.type
            for item, tree in zip(node.fields, node.expressions, strict=True)
            if not is_volatile(tree, {})
        }
        columns = [
            f"{self._projected(tree)} AS {quote_identifier(item.id)}"
            for item, tree in zip(node.fields, node.expressions, strict=True)
        ]
        columns += [*self._op(node), *self.hidden]
        rows = self.without_failed_rows(node.input, [*sql_types], sql_types)
        return f"SELECT {', '.join(columns)} FROM {rows}"

    def _projected(self, expression: exp.Expr) -> str:
        plain = isinstance(expression.unnest(), exp.Column | exp.Literal)
        return expression_sql(expression) if plain else when_selected(expression_sql(expression))

    def _explode(self, node: n.Explode) -> str:
        names = ", ".join(quote_identifier(name) for name in node.generated)
        name = ex.call_name(node.generator) or ""
        outer = node.outer or name in _OUTER
        name = _OUTER.get(name, name)
        arguments = [to_sql(part) for part in node.generator.expressions]
        input_sql = self.without_failed_rows(node.input, arguments)
        live = SELECTED
        if name in _OF_COLLECTION:
            if not outer:
                has = f"coalesce(size({arguments[0]}) > 0, false)"
                live = f"CASE WHEN {SELECTED} THEN {has} ELSE false END"
            arguments[0] = when_selected(arguments[0])
        call = f"{name.lower()}({', '.join(arguments)})"
        generated = set(node.generated)
        input_columns = [
            quote_identifier(item.id) for item in node.fields if item.id not in generated
        ]
        input_columns += self._op(node)
        generated_columns = [quote_identifier(name) for name in node.generated]
        return (
            f"SELECT {', '.join([*input_columns, *generated_columns, *self.carried])}, "
            f"{live} AS {SELECTED} "
            f"FROM {input_sql} LATERAL VIEW OUTER {call} generated AS {names}"
        )

    def _may_split_updates(self, node: n.Node) -> bool:
        return self.failed_row_filter is not None or super()._may_split_updates(node)

    def _computed(self, sql: str) -> str:
        return when_selected(sql)

    def _bounds(self, spec: n.WindowSpec, us: str) -> str:
        # A deselected row has no time and no window; it must not be lost.
        return window_bounds(spec, us).replace("explode(", "explode_outer(", 1)

    def _hidden_where(self, condition: str) -> list[str]:
        return [*self.carried, f"{SELECTED} AND {condition} AS {SELECTED}"]

    def _only(self, node: n.Node, condition: str) -> str:
        live = f"{SELECTED} AND coalesce({condition}, false) AS {SELECTED}"
        return f"SELECT * EXCEPT ({SELECTED}), {live} FROM {self.child(node)}"


class OutputStageSqlWriter(StageSqlWriter):
    """Prints the stage of sinks, without filtered rows.

    With `samples` some of them stay, so that their event times are reported.
    """

    def __init__(
        self,
        leaf: Leaf,
        has_processing_time: bool,
        samples: bool,
        failed_row_filter: FailedRowFilter | None = None,
    ) -> None:
        super().__init__(
            leaf, has_processing_time=has_processing_time, failed_row_filter=failed_row_filter
        )
        self.samples = samples

    def _filter(self, node: n.Filter) -> str:
        condition = f"CASE WHEN {SELECTED} THEN {expression_sql(node.condition)} ELSE true END"
        rows = self.without_failed_rows(node.input, [expression_sql(node.condition)])
        if not self.samples:
            columns = ", ".join(self.ids(node))
            return f"SELECT {columns} FROM {rows} WHERE {condition}"
        passed_columns = [
            *(quote_identifier(item.id) for item in node.fields),
            *self._op(node),
            *self.carried,
        ]
        inner_columns = [
            *passed_columns,
            SELECTED,
            f"coalesce({condition}, false) AS _tg_kept",
            f"{_SAMPLE} AS _tg_some",
        ]
        inner = f"SELECT {', '.join(inner_columns)} FROM {rows}"
        columns = ", ".join([*passed_columns, f"{SELECTED} AND _tg_kept AS {SELECTED}"])
        return f"SELECT {columns} FROM ({inner}) WHERE _tg_kept OR _tg_some"

    def _only(self, node: n.Node, condition: str) -> str:
        predicate = f"CASE WHEN {SELECTED} THEN {condition} ELSE true END"
        return f"SELECT * FROM {self.child(node)} WHERE {predicate}"


# ---- Ports: the inputs of operators, with the SQL of their columns.


@dataclass(frozen=True, eq=False)
class PortSchema:
    """The columns of one input port of an operator."""

    # The node that emits the rows.
    node: n.Node
    # The columns of the stage, as (name, SQL). Equal SQL is computed once.
    stage: tuple[tuple[str, str], ...]
    # The columns of the operator, as (name in the operator, name in the stage).
    columns: tuple[tuple[str, str], ...]
    grid: PaneGrid | None = None
    # The column whose value is the pane, before the grid; often the event time itself.
    time_id: str | None = None
    # The columns of the hash, after pre-aggregation.
    hash_columns: tuple[str, ...] = ()
    # True if rows need their arrival position, because their order matters.
    arrival: bool = False
    # Partial aggregates that Spark computes, as (name, SQL over the columns of the stage).
    partials: tuple[tuple[str, str], ...] | None = None

    def with_pane(self, column: str) -> PortSchema:
        """Return the same port with the pane read from an existing column."""
        from tidegate.columns import PANE

        pane = dict(self.columns)[PANE]
        columns = tuple(
            (operator_name, column if operator_name == PANE else name)
            for operator_name, name in self.columns
        )
        used = {name for _, name in columns}
        stage = tuple((name, sql) for name, sql in self.stage if name != pane or name in used)
        return replace(self, columns=columns, stage=stage)

    def pre_aggregated_sql(self, input_sql: str, hidden: Sequence[str]) -> str | None:
        """Return SQL that groups the rows of `input_sql`; None if they cannot be pre-aggregated."""
        from tidegate.columns import PANE, ROWS

        if self.partials is None:
            return None
        stage_columns = dict(self.columns)
        keys = [(name, column) for name, column in self.columns if name[0] == "k"]
        by = [(name, f"CASE WHEN {SELECTED} THEN {column} END") for name, column in keys]
        if PANE in stage_columns:
            by.append((PANE, f"CASE WHEN {SELECTED} THEN {self._pane(stage_columns[PANE])} END"))
        passed_columns = [name for name in hidden if name != EVENT_TIME]
        columns = [
            *passed_columns,
            f"max({EVENT_TIME}) AS {EVENT_TIME}",
            *(f"{sql} AS {name}" for name, sql in by),
        ]
        columns += [f"count(1) AS {ROWS}", *(f"{sql} AS {name}" for name, sql in self.partials)]
        # Malformed records are counted separately from rows that were filtered out.
        groups = [
            *passed_columns,
            f"{EVENT_TIME} <=> {MALFORMED_EVENT_TIME + 1}L - 1L",
            *(sql for _, sql in by),
        ]
        return f"SELECT {', '.join(columns)} FROM ({input_sql}) GROUP BY {', '.join(groups)}"

    def _pane(self, column: str) -> str:
        if self.grid is None:
            return column
        offset, width = self.grid.offset_us, self.grid.width_us
        return f"{column} - pmod({column} - {offset}L, {width}L)"

    def select(self) -> list[str]:
        """Return the SELECT list of the stage: NULL for rows that are not selected."""
        trivial = {quote_identifier(item.id) for item in self.node.fields}
        return [
            f"{sql if sql in trivial else when_selected(sql)} AS {name}" for name, sql in self.stage
        ]


class PortColumns:
    """Collects the columns of a port; equal SQL is sent once."""

    def __init__(self) -> None:
        self.by_sql: dict[str, str] = {}
        self.named: list[tuple[str, str]] = []

    def add(self, name: str, sql: str) -> None:
        column = self.by_sql.setdefault(sql, f"x{len(self.by_sql)}")
        self.named.append((name, column))

    def add_all(self, letter: str, texts: Sequence[str]) -> None:
        """Add numbered columns: k0, k1, …"""
        for index, sql in enumerate(texts):
            self.add(f"{letter}{index}", sql)

    def sql_of(self, column: str) -> str:
        return next(sql for sql, name in self.by_sql.items() if name == column)

    def port(self, node: n.Node, **rest: Any) -> PortSchema:
        stage = tuple((name, sql) for sql, name in self.by_sql.items())
        return PortSchema(node, stage, tuple(self.named), **rest)

    @property
    def keys(self) -> tuple[str, ...]:
        """The key columns. Rows are hashed by them after pre-aggregation, when they are few."""
        return tuple(name for name, _ in self.named if name[0] == "k")


def column_sql(node: n.Node) -> list[str]:
    """Return the quoted columns of a node."""
    return [quote_identifier(item.id) for item in node.fields]
