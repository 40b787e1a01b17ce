"""Window functions TUMBLE, HOP, SESSION and CUMULATE, in GROUP BY and as table functions."""

from __future__ import annotations

import math
from dataclasses import replace

from sqlglot import exp

from tidegate.errors import SqlError
from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import Resolver
from tidegate.plan.bind.scope import (
    BindingContext,
    Relation,
    column,
    derived_field,
    fields_by_id,
    function_call,
    struct_of,
)
from tidegate.plan.nodes import Field, Node, Role, Window, WindowKind, WindowSpec
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.types import MICROS, format_duration_us, interval_sql

# A row is copied into each of its windows, so a wrong unit could exhaust the memory.
MAX_WINDOWS_PER_ROW = 10_000
# Windows are combined from panes as wide as the greatest common divisor of slide and size. Very
# narrow panes contain about one row each, so the state would grow with the number of rows.
MAX_PANES_PER_WINDOW = 1_000
TIME_TYPES = ("TIMESTAMP", "TIMESTAMP_NTZ")
SIGNATURES = {
    "TUMBLE": ("(ts, size [, offset])", 1),
    "HOP": ("(ts, slide, size [, offset])", 2),
    "SESSION": ("(ts, gap)", 1),
    "CUMULATE": ("(ts, step, size [, offset])", 2),
}

_EXAMPLES = {
    "TUMBLE": ("a size", "TUMBLE(ts, INTERVAL '1' MINUTE)"),
    "HOP": ("a slide and a size", "HOP(ts, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)"),
    "SESSION": ("a gap", "SESSION(ts, INTERVAL '1' MINUTE)"),
    "CUMULATE": ("a step and a size", "CUMULATE(ts, INTERVAL '1' HOUR, INTERVAL '1' DAY)"),
}


def is_window_call(node: exp.Expr) -> bool:
    """Return whether an expression is a call of a window function."""
    return (ex.call_name(node) or "") in ex.WINDOW_FUNCTIONS


def window_spec(
    context: BindingContext, call: exp.Expr, arguments: list[exp.Expr], processing_time: bool
) -> WindowSpec | None:
    """Return the sizes of a window function, or None after reporting an error."""
    name = ex.call_name(call)
    assert name in SIGNATURES, f"{name} is not a window function"
    signature, size_count = SIGNATURES[name]
    needs, example = _EXAMPLES[name]
    max_arguments = size_count if name == "SESSION" else size_count + 1
    if not size_count <= len(arguments) <= max_arguments:
        too_few = len(arguments) < size_count
        context.report(
            "TG-306",
            f"{name} needs {needs}" if too_few else f"{name} has too many arguments",
            call,
            f"write {name}{signature}, for example {example}.",
        )
        return None
    try:
        sizes = [
            ex.require_interval(
                _as_interval(node), context.text, context.file, f"the size of {name}"
            )
            for node in arguments
        ]
    except SqlError as error:
        context.errors.append(error)
        return None
    return _build_spec(context, call, WindowKind[name], sizes, processing_time)


def _as_interval(node: exp.Expr) -> exp.Expr:
    """Accept a string as a size: '1 minute' is INTERVAL '1 minute'."""
    if not isinstance(node, exp.Literal) or not node.is_string:
        return node
    interval = exp.Interval(this=node.copy())
    interval._meta = dict(node.meta)
    return interval


def _build_spec(
    context: BindingContext,
    call: exp.Expr,
    kind: WindowKind,
    sizes: list[int],
    processing_time: bool,
) -> WindowSpec | None:
    has_slide = kind in (WindowKind.HOP, WindowKind.CUMULATE)
    slide, size = (sizes[0], sizes[1]) if has_slide else (sizes[0], sizes[0])
    offset = sizes[2 if has_slide else 1] if len(sizes) > (2 if has_slide else 1) else 0
    if size <= 0 or slide <= 0:
        signature = f"{kind.value}{SIGNATURES[kind.value][0]}"
        message = f"the sizes of {kind.value} must be greater than zero"
        context.report(
            "TG-306", message, call, f"write {signature} with intervals such as '1' MINUTE."
        )
        return None
    if has_slide and slide > size:
        context.report(
            "TG-306",
            f"the {'slide' if kind is WindowKind.HOP else 'step'} of {kind.value} is longer than "
            "its size, so rows in between would not be in any window",
            call,
            f"the order is {kind.value}{SIGNATURES[kind.value][0]}.",
        )
        return None
    if has_slide and size // slide > MAX_WINDOWS_PER_ROW:
        context.report(
            "TG-306",
            f"every row would be in {size // slide:,} windows (limit {MAX_WINDOWS_PER_ROW:,})",
            call,
            f"use a longer {'slide' if kind is WindowKind.HOP else 'step'}: "
            f"{kind.value}(…, {interval_sql(_example_slide(size))}, {interval_sql(size)}).",
        )
        return None
    if kind is WindowKind.CUMULATE and size % slide:
        context.report(
            "TG-306",
            "the size of CUMULATE must be a multiple of its step",
            call,
            f"for example a step of {format_duration_us(slide)} and a size of "
            f"{format_duration_us(size // slide * slide)}.",
        )
        return None
    return WindowSpec(kind, size, slide, offset, processing_time)


def _example_slide(size: int) -> int:
    """Return a round slide that divides a size into few enough windows; otherwise the size."""
    units = (1, 10, 60, 600, 3600)
    slides = (unit * MICROS["second"] for unit in units)
    fits = (s for s in slides if size % s == 0 and size // s <= MAX_WINDOWS_PER_ROW)
    return next(fits, size)


def is_processing_time(node: exp.Expr) -> bool:
    return ex.call_name(node) == "PROCTIME"


def resolve_time(node: exp.Expr, resolver: Resolver) -> exp.Expr:
    """Resolve the time of a window or version: an expression over columns, or PROCTIME()."""
    return exp.Anonymous(this="PROCTIME") if is_processing_time(node) else resolver.resolve(node)


def assign_windows(
    context: BindingContext, node: Node, call: exp.Expr, time: exp.Expr, grouped: bool = False
) -> Window | None:
    """Return a Window node over `node`; `time` is already resolved. None after an error."""
    spec = window_spec(context, call, _size_arguments(call), is_processing_time(time))
    if spec is None or (grouped and not _check_panes(context, call, spec)):
        return None
    fields = fields_by_id(node.fields)
    bare = time.unnest()
    item = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    time_id = item.id if item is not None else None
    if item is not None and item.type not in (None, *TIME_TYPES):
        context.report(
            "TG-306",
            f"{ex.call_name(call)} needs a TIMESTAMP, but {item.name} is {item.type}",
            time,
            "use the event time, or a computed column: ts AS timestamp_millis(ms).",
        )
    added = window_fields(context, spec)
    return Window(
        node.fields + added,
        input=node,
        spec=spec,
        time=time,
        time_id=time_id,
        grouped=grouped,
        span=own_span(call),
    )


def _check_panes(context: BindingContext, call: exp.Expr, spec: WindowSpec) -> bool:
    """Return whether an overlapping window has few enough panes; report it otherwise."""
    width = math.gcd(spec.size_us, spec.slide_us)
    panes = spec.size_us // width
    if spec.kind is not WindowKind.HOP or width == spec.slide_us or panes <= MAX_PANES_PER_WINDOW:
        return True
    slide = interval_sql(spec.slide_us)
    size = interval_sql(spec.slide_us * max(1, round(spec.size_us / spec.slide_us)))
    context.report(
        "TG-306",
        f"the slide of {format_duration_us(spec.slide_us)} does not divide the size of "
        f"{format_duration_us(spec.size_us)}, so each window needs {panes:,} partial results "
        f"(limit {MAX_PANES_PER_WINDOW:,})",
        call,
        f"use a slide that divides the size: HOP(…, {slide}, {size}).",
    )
    return False


def _size_arguments(call: exp.Expr) -> list[exp.Expr]:
    """Return the intervals of a call. As a table function, the table comes before the time."""
    is_table_function = call.meta.get("table_function", False)
    return list(call.expressions[2 if is_table_function else 1 :])


def window_fields(context: BindingContext, spec: WindowSpec) -> tuple[Field, Field, Field]:
    """Return window_start, window_end (exclusive) and window_time (the last instant inside)."""
    names = ("window_start", "window_end", "window_time")
    roles = (Role.WINDOW_START, Role.WINDOW_END, Role.TIME)
    start, end, time = (
        Field(context.new_id(name), name, "TIMESTAMP", role, spec, nullable=False)
        for name, role in zip(names, roles, strict=True)
    )
    return start, end, time


# ---- SESSION in FROM: the rows of each session are collected in a list until it closes


def bind_session_table(
    context: BindingContext, node: n.Node, relation: Relation, call: exp.Expr, resolver: Resolver
) -> tuple[n.Node, Relation]:
    """Bind SESSION(bids PARTITION BY k, ts, gap): emit rows when their session closes."""
    table, *keys, time, gap = call.expressions
    plain = call.copy()
    plain.set("expressions", [table.copy(), time.copy(), gap.copy()])
    resolved = [resolver.resolve(key) for key in keys]
    rows = _plan_sessions(context, node, plain, resolve_time(time, resolver), resolved)
    if rows is None:
        return node, relation
    pairs = zip(rows.fields, relation.fields, strict=False)
    named = tuple(item.with_name(field.name) for item, field in pairs)
    return rows, Relation(relation.alias, named + rows.fields[-3:])


def _plan_sessions(
    context: BindingContext, node: n.Node, call: exp.Expr, time: exp.Expr, keys: list[exp.Expr]
) -> n.Node | None:
    """Return the rows of a node with their session, emitted when it closes; None after an error."""
    window = assign_windows(context, node, call, time, grouped=True)
    if window is None:
        return None
    columns = fields_by_id(window.fields)
    added = window.fields[-3:]
    trees = (*(column(item, call) for item in added), *keys)
    key_fields = [columns.get(t.name) or derived_field(context, "key", t, columns) for t in trees]
    rows = n.Field(context.new_id("rows"), "rows")
    sessions = n.Aggregate(
        (*key_fields, rows),
        input=window,
        keys=trees,
        aggregates=(
            function_call("COLLECT_LIST", [struct_of([column(item) for item in node.fields])]),
        ),
        window=window.spec,
        emit=context.emit,
        ttl_us=context.ttl_us,
        span=window.span,
    )
    # The times of the rows are anywhere in the session, so only its end is an event time.
    copies = tuple(
        replace(item, id=context.new_id(item.name), role=n.Role.PLAIN, window=None)
        for item in node.fields
    )
    exploded = n.Explode(
        sessions.fields + copies,
        input=sessions,
        generator=function_call("INLINE", [column(rows)]),
        generated=tuple(item.id for item in copies),
        span=window.span,
    )
    fields = copies + added
    return n.Project(
        fields, input=exploded, expressions=tuple(column(item) for item in fields), span=window.span
    )
