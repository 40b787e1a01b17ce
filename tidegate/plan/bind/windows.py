"""TUMBLE, HOP, SESSION and CUMULATE, in GROUP BY and as table functions."""

from __future__ import annotations

import math
from dataclasses import replace

from sqlglot import exp

from tidegate.errors import SqlError
from tidegate.plan import nodes as n
from tidegate.plan.bind.resolve import Resolver
from tidegate.plan.bind.scope import Context, Relation, column, derived_field, fields_by_id
from tidegate.plan.nodes import Field, Node, Role, Window, WindowKind, WindowSpec
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import own_span
from tidegate.types import format_duration, interval_sql

# A row is copied into each of its windows, so a slip in a unit could fill the memory.
MOST_WINDOWS = 10_000
# Windows are put together from panes as wide as the greatest common divisor of slide and size: very
# narrow ones hold hardly more than a row each, and state would grow with the rows.
MOST_PANES = 1_000
TIME_TYPES = ("TIMESTAMP", "TIMESTAMP_NTZ")
SHAPES = {
    "TUMBLE": ("(ts, size [, offset])", 1),
    "HOP": ("(ts, slide, size [, offset])", 2),
    "SESSION": ("(ts, gap)", 1),
    "CUMULATE": ("(ts, step, size [, offset])", 2),
}


def window_call(node: exp.Expr) -> bool:
    """Whether this expression is one of the window functions."""
    return (ex.call_name(node) or "") in ex.WINDOW_FUNCTIONS


def window_spec(
    context: Context, call: exp.Expr, arguments: list[exp.Expr], processing_time: bool
) -> WindowSpec | None:
    """The sizes of a window function; None after reporting what is wrong with them."""
    name = ex.call_name(call)
    assert name in SHAPES, f"{name} is not a window function"
    shape, needed = SHAPES[name]
    most = needed if name == "SESSION" else needed + 1
    if not needed <= len(arguments) <= most:
        context.report(
            "TG-306", f"{name} takes {name}{shape}", call, f"write {name}{shape} with intervals."
        )
        return None
    try:
        sizes = [
            ex.require_interval(_interval(node), context.text, context.file, f"the sizes of {name}")
            for node in arguments
        ]
    except SqlError as error:
        context.errors.append(error)
        return None
    return _checked(context, call, WindowKind[name], sizes, processing_time)


def _interval(node: exp.Expr) -> exp.Expr:
    """A size may be a text: '1 minute' is INTERVAL '1 minute'."""
    if not isinstance(node, exp.Literal) or not node.is_string:
        return node
    interval = exp.Interval(this=node.copy())
    interval._meta = dict(node.meta)
    return interval


def _checked(
    context: Context, call: exp.Expr, kind: WindowKind, sizes: list[int], processing_time: bool
) -> WindowSpec | None:
    two = kind in (WindowKind.HOP, WindowKind.CUMULATE)
    slide, size = (sizes[0], sizes[1]) if two else (sizes[0], sizes[0])
    offset = sizes[2 if two else 1] if len(sizes) > (2 if two else 1) else 0
    if size <= 0 or slide <= 0:
        shape = f"{kind.value}{SHAPES[kind.value][0]}"
        message = f"the sizes of {kind.value} must be above zero"
        context.report("TG-306", message, call, f"write {shape} with intervals such as '1' MINUTE.")
        return None
    if two and slide > size:
        context.report(
            "TG-306",
            f"the {'slide' if kind is WindowKind.HOP else 'step'} of {kind.value} is longer than "
            "its size, so rows in between would belong to no window",
            call,
            f"the order is {kind.value}{SHAPES[kind.value][0]}.",
        )
        return None
    if two and size // slide > MOST_WINDOWS:
        context.report(
            "TG-306",
            f"every row would be in {size // slide} windows of this {kind.value}",
            call,
            f"at most {MOST_WINDOWS} are allowed: make the first interval longer.",
        )
        return None
    if kind is WindowKind.CUMULATE and size % slide:
        context.report(
            "TG-306",
            "the size of CUMULATE must be a multiple of its step",
            call,
            f"for example a step of {format_duration(slide)} and a size of "
            f"{format_duration(size // slide * slide)}.",
        )
        return None
    return WindowSpec(kind, size, slide, offset, processing_time)


def is_processing_time(node: exp.Expr) -> bool:
    return ex.call_name(node) == "PROCTIME"


def resolved_time(node: exp.Expr, resolver: Resolver) -> exp.Expr:
    """The time of a window or of a version: an expression over columns, or PROCTIME()."""
    return exp.Anonymous(this="PROCTIME") if is_processing_time(node) else resolver.resolve(node)


def assign_windows(
    context: Context, node: Node, call: exp.Expr, time: exp.Expr, grouped: bool = False
) -> Window | None:
    """A Window node over `node`; `time` is already resolved."""
    spec = window_spec(context, call, _size_arguments(call), is_processing_time(time))
    if spec is None or (grouped and not _few_panes(context, call, spec)):
        return None
    fields = fields_by_id(node.fields)
    bare = time.unnest()
    item = fields.get(bare.name) if isinstance(bare, exp.Column) else None
    time_id = item.id if item is not None else None
    if item is not None and item.type not in (None, *TIME_TYPES):
        context.report(
            "TG-306",
            f"{ex.call_name(call)} needs a TIMESTAMP, and {item.name} is {item.type}",
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


def _few_panes(context: Context, call: exp.Expr, spec: WindowSpec) -> bool:
    """Whether a window that overlaps others is made of few enough pieces; reported if not."""
    width = math.gcd(spec.size_us, spec.slide_us)
    panes = spec.size_us // width
    if spec.kind is not WindowKind.HOP or width == spec.slide_us or panes <= MOST_PANES:
        return True
    slide = interval_sql(spec.slide_us)
    size = interval_sql(spec.slide_us * max(1, round(spec.size_us / spec.slide_us)))
    context.report(
        "TG-306",
        f"a HOP of {format_duration(spec.size_us)} that begins every "
        f"{format_duration(spec.slide_us)} is made of {panes:,} pieces of "
        f"{format_duration(width)}, and {MOST_PANES:,} are allowed",
        call,
        f"make the size a multiple of the slide: HOP(…, {slide}, {size}).",
    )
    return False


def _size_arguments(call: exp.Expr) -> list[exp.Expr]:
    """The intervals of a call: as a table function the table comes before the time."""
    is_table_function = call.meta.get("table_function", False)
    return list(call.expressions[2 if is_table_function else 1 :])


def window_fields(context: Context, spec: WindowSpec) -> tuple[Field, Field, Field]:
    """window_start, window_end (exclusive) and window_time (the last moment inside)."""
    names = ("window_start", "window_end", "window_time")
    roles = (Role.WINDOW_START, Role.WINDOW_END, Role.TIME)
    start, end, time = (
        Field(context.fresh(name), name, "TIMESTAMP", role, spec, nullable=False)
        for name, role in zip(names, roles, strict=True)
    )
    return start, end, time


# ---- SESSION as a table: the rows of each session are kept in a list until it closes.


def session_table(
    context: Context, node: n.Node, relation: Relation, call: exp.Expr, resolver: Resolver
) -> tuple[n.Node, Relation]:
    """SESSION(bids PARTITION BY k, ts, gap): a row comes once, when its session closes."""
    table, *keys, time, gap = call.expressions
    plain = call.copy()
    plain.set("expressions", [table.copy(), time.copy(), gap.copy()])
    resolved = [resolver.resolve(key) for key in keys]
    rows = _session_rows(context, node, plain, resolved_time(time, resolver), resolved)
    if rows is None:
        return node, relation
    pairs = zip(rows.fields, relation.fields, strict=False)
    named = tuple(item.with_name(known.name) for item, known in pairs)
    return rows, Relation(relation.alias, named + rows.fields[-3:])


def _session_rows(
    context: Context, node: n.Node, call: exp.Expr, time: exp.Expr, keys: list[exp.Expr]
) -> n.Node | None:
    """Every row of a node with the session it is in, when that closes; None after an error."""
    window = assign_windows(context, node, call, time, grouped=True)
    if window is None:
        return None
    known = fields_by_id(window.fields)
    added = window.fields[-3:]
    trees = (*(column(item, call) for item in added), *keys)
    fields = [known.get(t.name) or derived_field(context, "key", t, known) for t in trees]
    rows = n.Field(context.fresh("rows"), "rows")
    sessions = n.Aggregate(
        (*fields, rows),
        input=window,
        keys=trees,
        aggregates=(_call("COLLECT_LIST", [_row(node.fields)]),),
        window=window.spec,
        emit=context.emit,
        ttl_us=context.ttl_us,
        span=window.span,
    )
    # The times of the rows lie anywhere in the session, so only its end is an event time.
    copies = tuple(
        replace(item, id=context.fresh(item.name), role=n.Role.PLAIN, window=None)
        for item in node.fields
    )
    exploded = n.Explode(
        sessions.fields + copies,
        input=sessions,
        generator=_call("INLINE", [column(rows)]),
        generated=tuple(item.id for item in copies),
        span=window.span,
    )
    shown = copies + added
    return n.Project(
        shown, input=exploded, expressions=tuple(column(item) for item in shown), span=window.span
    )


def _row(fields: tuple[n.Field, ...]) -> exp.Expr:
    cells: list[exp.Expr] = []
    for place, item in enumerate(fields):
        cells += [exp.Literal.string(f"c{place}"), column(item)]
    return _call("NAMED_STRUCT", cells)


def _call(name: str, parts: list[exp.Expr]) -> exp.Expr:
    return exp.Anonymous(this=name, expressions=parts)
