"""Rewrite rules: functions plan → plan, applied bottom up in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.functions import NEWEST_FIRST
from tidegate.plan.bind.scope import column, referenced_ids
from tidegate.sql import expressions as ex
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind

# ---- The first rows of each partition by event time, for queries that wait for the watermark.
#
# They are final once the watermark has passed them, so numbering rows along event time finds them:
# nothing but the numbers is kept, and nothing is retracted.

_RANK = "_tg_rank"


def along_time(order: Sequence[exp.Expr], rows: n.Node) -> bool:
    """Whether an order begins with the one event time of rows without windows, upwards."""
    first = order[0] if order else None
    if not isinstance(first, exp.Ordered) or first.args.get("desc"):
        return False
    times = [item.id for item in rows.fields if item.is_event_time]
    windows = any(item.window is not None for item in rows.fields)
    return not windows and isinstance(first.this, exp.Column) and times == [first.this.name]


def first_along_time(node: n.Node) -> n.Node:
    """The node with such a top-N as numbers and a condition on them."""
    if isinstance(node, n.Project | n.Filter):
        return replace(node, input=first_along_time(node.input))
    if not isinstance(node, n.TopN) or node.windowed or node.limit is None:
        return node
    if node.keeps_one and node.partition:
        # The first row of each key has an operator of its own, which forgets keys.
        return node
    rows = node.input
    if rows.bounded or rows.changelog is not ChangelogKind.APPEND:
        return node
    return _numbered(node) if along_time(node.order, rows) else node


def _numbered(node: n.TopN) -> n.Node:
    ranked = node.rank_id is not None
    rank = node.fields[-1] if ranked else n.Field(_RANK, _RANK, "INT")
    shown = node.fields if ranked else (*node.fields, rank)
    function = exp.Window(
        this=exp.Anonymous(this=node.function, expressions=[]),
        partition_by=[part.copy() for part in node.partition],
        order=exp.Order(expressions=[part.copy() for part in node.order]),
    )
    over = n.Over(
        shown, input=node.input, functions=(function,), ttl_us=node.ttl_us, span=node.span
    )
    assert node.limit is not None, "a top-N of all rows is none"
    within = exp.LTE(this=column(rank), expression=node.limit.copy())
    first = n.Filter(shown, input=over, condition=within, span=node.span)
    if ranked:
        return first
    expressions = tuple(column(item) for item in node.fields)
    return n.Project(node.fields, input=first, expressions=expressions, span=node.span)


# ---- The right side of a temporal join: rows of a key are versions, each from its time on.
#
# What the right side is at a moment is what its query gives for the rows up to that moment. So a
# version that a WHERE drops ends the one before it, and the last row of each key by event time is
# whatever row of it came last before that moment: the rows are read as they are, and not the changes
# that the query would give out, which depend on the order in which rows arrive.


@dataclass(frozen=True)
class Versions:
    """Rows with the columns of the right side; `alive` is the id of a further one, if any.

    `first`: the first row of a key is its only version.
    """

    rows: n.Node
    key: tuple[str, ...]
    time: str
    alive: str | None = None
    first: bool = False


def versions_of(node: n.Node) -> Versions | None:
    """The versions that a right side is made of; None if it has no key, or none that tells."""
    if isinstance(node, n.Scan):
        times = [item.id for item in node.fields if item.role is n.Role.TIME]
        return Versions(node, node.key, times[0]) if node.key is not None and times else None
    if isinstance(node, n.Inlined | n.Emit | n.Normalize | n.Hold):
        return versions_of(node.input)
    if isinstance(node, n.TopN):
        return _of_one_row(node)
    below = versions_of(node.inputs[0]) if isinstance(node, n.Project | n.Filter) else None
    if below is None or not node.stateless:
        return None
    return _filtered(node, below) if isinstance(node, n.Filter) else _projected(node, below)


def _of_one_row(node: n.TopN) -> Versions | None:
    """The first or last row of each key by event time, of rows that are never retracted."""
    order = node.order[0] if len(node.order) == 1 else None
    by = order.this if isinstance(order, exp.Ordered) else order
    columns = [part.name for part in node.partition if isinstance(part, exp.Column)]
    if not node.keeps_one or node.windowed or not isinstance(by, exp.Column):
        return None
    timed = any(item.id == by.name and item.role is n.Role.TIME for item in node.input.fields)
    whole = bool(columns) and len(columns) == len(node.partition)
    if not timed or not whole or node.input.changelog is not ChangelogKind.APPEND:
        return None
    first = not (isinstance(order, exp.Ordered) and order.args.get("desc"))
    rows: n.Node = node.input
    if node.rank_id is not None:
        one = exp.cast(exp.Literal.number(1), "INT")
        parts = [one if i.id == node.rank_id else column(i) for i in node.fields]
        rows = n.Project(node.fields, input=rows, expressions=tuple(parts), span=node.span)
    return Versions(rows, tuple(columns), by.name, first=first)


def _projected(node: n.Node, below: Versions) -> Versions | None:
    """The same rows with other columns; what tells the dead from the living stays beside them."""
    assert isinstance(node, n.Project), "a projection"
    pairs = list(zip(node.fields, node.expressions, strict=True))
    names = {part.name: item.id for item, part in reversed(pairs) if isinstance(part, exp.Column)}
    if not {*below.key, below.time} <= set(names):
        return None
    key = tuple(names[column_id] for column_id in below.key)
    fields, expressions = node.fields, node.expressions
    if below.alive is not None:
        alive = below.rows.field(below.alive)
        fields, expressions = (*fields, alive), (*expressions, column(alive))
    rows = n.Project(fields, input=below.rows, expressions=expressions, span=node.span)
    return replace(below, rows=rows, key=key, time=names[below.time])


def _filtered(node: n.Node, below: Versions) -> Versions | None:
    """A row that is dropped is no version, and ends the one before it."""
    assert isinstance(node, n.Filter), "a filter"
    if referenced_ids(node.condition) <= set(below.key):
        # It drops all rows of a key, or none.
        rows: n.Node = replace(node, input=below.rows, fields=below.rows.fields)
        return replace(below, rows=rows)
    kept = exp.Anonymous(this="COALESCE", expressions=[node.condition.copy(), exp.false()])
    condition: exp.Expr = kept
    fields = below.rows.fields
    if below.alive is not None:
        known = below.rows.field(below.alive)
        condition = exp.and_(column(known), kept, copy=True)
        fields = tuple(item for item in fields if item.id != below.alive)
    alive = n.Field(below.alive or _free_id(below.rows), "alive", "BOOLEAN", nullable=False)
    expressions = (*(column(item) for item in fields), condition)
    rows = n.Project((*fields, alive), input=below.rows, expressions=expressions, span=node.span)
    return replace(below, rows=rows, alive=alive.id)


def _free_id(node: n.Node) -> str:
    taken = {item.id for part in n.walk(node) for item in part.fields}
    name = "alive"
    while name in taken:
        name += "_"
    return name


def join_with_one_row(node: n.Node) -> n.Node:
    """A temporal or ASOF join as its operator has it: what else its condition asks stands around.

    Of a temporal join the version is picked first, and then the condition asked; of an ASOF join
    the condition says which rows of the right can be picked.
    """
    if not isinstance(node, n.Join) or node.asof_condition is None or node.versioned:
        return node
    if node.kind is n.JoinKind.TEMPORAL:
        return _temporal(node)
    return _asof(node) if node.kind is n.JoinKind.ASOF else node


def _temporal(node: n.Join) -> n.Node:
    versions = versions_of(node.right)
    if versions is None or node.asof_condition is None:
        return node
    pairs = {}
    others = []
    for pair in node.key_pairs:
        name = pair.right.name if isinstance(pair.right, exp.Column) else None
        if name in versions.key and name not in pairs:
            pairs[name] = pair
        else:
            sign = exp.NullSafeEQ if pair.null_safe else exp.EQ
            others.append(sign(this=pair.left.copy(), expression=pair.right.copy()))
    if len(pairs) < len(versions.key):
        return node
    join = replace(
        node,
        right=versions.rows,
        versioned=True,
        validity_id=versions.alive,
        key_pairs=tuple(pairs.values()),
        residual=None,
        asof_condition=replace(
            node.asof_condition,
            right=column(versions.rows.field(versions.time)),
            first=versions.first,
        ),
    )
    return _asked(join, [*others, *ex.conjuncts(node.residual)])


def _asof(node: n.Join) -> n.Node:
    right = {item.id for item in node.right.fields}
    left = {item.id for item in node.left.fields}
    pieces = ex.conjuncts(node.residual)
    before = [piece for piece in pieces if referenced_ids(piece) <= right]
    after = [piece for piece in pieces if piece not in before and referenced_ids(piece) <= left]
    both = [piece for piece in pieces if piece not in before and piece not in after]
    join = replace(node, residual=ex.conjunction(both))
    condition = ex.conjunction(before)
    if condition is not None:
        rows = n.Filter(node.right.fields, input=node.right, condition=condition, span=node.span)
        join = replace(join, right=rows)
    return _asked(join, after)


def _asked(join: n.Join, conditions: list[exp.Expr]) -> n.Node:
    """The join, of whose rows only those have a right part for which the conditions hold."""
    condition = ex.conjunction(conditions)
    if condition is None:
        return join
    if join.how == "INNER":
        return n.Filter(join.fields, input=join, condition=condition, span=join.span)
    if join.how != "LEFT":
        return join
    right = {item.id for item in join.right.fields}
    expressions = tuple(
        exp.Case(ifs=[exp.If(this=condition.copy(), true=column(item))])
        if item.id in right
        else column(item)
        for item in join.fields
    )
    # Ids are unique in a plan, and these columns are others than those of the join.
    return n.Project(join.fields, input=join, expressions=expressions, span=join.span)


Rule = Callable[[n.Node], n.Node]


def rewrite(node: n.Node) -> n.Node:
    """Apply every rule to every node, inputs first; the shape of a plan before what flows in it."""
    node = top_n_of_changes(node)
    for rules in (SHAPES, CHANGES):
        node = _rewritten(node, rules)
    return node


def _rewritten(node: n.Node, rules: tuple[Rule, ...]) -> n.Node:
    inputs = tuple(_rewritten(child, rules) for child in node.inputs)
    if inputs != node.inputs:
        node = node.with_inputs(*inputs)
    for rule in rules:
        node = rule(node)
    return node


def top_n_from_rank_filter(node: n.Node) -> n.Node:
    """`… WHERE row_number <= n` over an OVER becomes a top-N that never ranks the rest."""
    if not isinstance(node, n.Filter):
        return node
    below = _below_projections(node.input)
    if not isinstance(below, n.Over) or len(below.functions) != 1:
        return node
    window = below.functions[0]
    rank = below.fields[-1]
    function = ex.call_name(window.this)
    if function not in ex.RANK_FUNCTIONS:
        return node
    rank_id = _id_above(node.input, rank.id)
    if rank_id is None:
        return node
    pieces = ex.conjuncts(node.condition)
    for index, piece in enumerate(pieces):
        limit = _rank_limit(piece, rank_id)
        if limit is None:
            continue
        limit = _translate(limit, node.input)
        if limit is None:
            continue
        top = _top_n(below, window, function, limit, rank)
        rest = pieces[:index] + pieces[index + 1 :]
        if isinstance(piece, exp.EQ) and not (limit.is_int and int(limit.name) == 1):
            rest = pieces
        rebuilt = _replace_below(node.input, top)
        condition = ex.conjunction(rest)
        if condition is None:
            return rebuilt
        return replace(node, input=rebuilt, condition=condition)
    return node


def _top_n(over: n.Over, window: exp.Expr, function: str, limit: exp.Expr, rank: n.Field) -> n.TopN:
    clause = window.args.get("order")
    order = tuple(clause.expressions) if clause is not None else ()
    latest = any(part.meta.get(NEWEST_FIRST) for part in order)
    partition = tuple(window.args.get("partition_by") or ())
    return n.TopN(
        over.fields,
        input=over.input,
        partition=partition,
        order=() if latest else order,
        latest=latest,
        limit=limit,
        function=function,
        rank_id=rank.id,
        windowed=_partitioned_by_window(over.input, partition),
        ttl_us=over.ttl_us,
        span=over.span,
    )


def _partitioned_by_window(node: n.Node, partition: tuple[exp.Expr, ...]) -> bool:
    """Whether the watermark says when a partition is complete."""
    closing = {
        item.id for item in node.fields if item.closed_by_watermark and item.window is not None
    }
    return any(isinstance(part, exp.Column) and part.name in closing for part in partition)


def _below_projections(node: n.Node) -> n.Node:
    while isinstance(node, n.Project):
        node = node.input
    return node


def _replace_below(node: n.Node, bottom: n.Node) -> n.Node:
    if isinstance(node, n.Project):
        return replace(node, input=_replace_below(node.input, bottom))
    return bottom


def _id_above(node: n.Node, column_id: str) -> str | None:
    """The id under which a column of the bottom comes out of the projections above it."""
    if not isinstance(node, n.Project):
        return column_id
    inner = _id_above(node.input, column_id)
    for item, expression in zip(node.fields, node.expressions, strict=True):
        if isinstance(expression, exp.Column) and expression.name == inner:
            return item.id
    return None


def _translate(tree: exp.Expr, node: n.Node) -> exp.Expr | None:
    """An expression over a node's output as one over what its projections read."""
    if not isinstance(node, n.Project):
        return tree
    mapping = {
        item.id: expression for item, expression in zip(node.fields, node.expressions, strict=True)
    }
    if not referenced_ids(tree) <= set(mapping):
        return None

    def swap(part: exp.Expr) -> exp.Expr:
        return mapping[part.name].copy() if isinstance(part, exp.Column) else part

    return _translate(tree.copy().transform(swap), node.input)


def _rank_limit(piece: exp.Expr, rank_id: str) -> exp.Expr | None:
    """n of `rank <= n`, `rank < n + 1`, `rank = n` or the same the other way round."""
    flipped: dict[type[exp.Binary], type[exp.Binary]]
    flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    if not isinstance(piece, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
        return None
    operator: type[exp.Binary] = type(piece)
    one, other = piece.left, piece.right
    if isinstance(other, exp.Column) and other.name == rank_id and operator in flipped:
        one, other, operator = other, one, flipped[operator]
    if not isinstance(one, exp.Column) or one.name != rank_id or rank_id in referenced_ids(other):
        return None
    if operator in (exp.LTE, exp.EQ):
        return other
    if operator is exp.LT and isinstance(other, exp.Literal) and other.is_int:
        return exp.Literal.number(int(other.name) - 1)
    return None


def drop_unused_rank(node: n.Node) -> n.Node:
    """A rank that nobody reads is not told, so that rows do not change with it."""
    if not isinstance(node, n.Project):
        return node
    needed = set().union(*(referenced_ids(part) for part in node.expressions))
    below = _without_rank(node.input, needed)
    return node if below is None else replace(node, input=below)


def _without_rank(node: n.Node, needed: set[str]) -> n.Node | None:
    """The node without its rank if nothing above needs it; None if it stays as it is."""
    if isinstance(node, n.TopN):
        if node.rank_id is None or node.rank_id in needed:
            return None
        return replace(node, fields=node.fields[:-1], rank_id=None)
    if isinstance(node, n.Filter):
        below = _without_rank(node.input, needed | referenced_ids(node.condition))
        return None if below is None else replace(node, input=below, fields=below.fields)
    if not isinstance(node, n.Project) or not isinstance(_below_projections(node), n.TopN):
        return None
    pairs = zip(node.fields, node.expressions, strict=True)
    kept = [(item, part) for item, part in pairs if item.id in needed]
    read = set().union(*(referenced_ids(part) for _, part in kept))
    below = _without_rank(node.input, read)
    if below is None:
        return None
    fields, expressions = (tuple(column) for column in zip(*kept, strict=True))
    return replace(node, input=below, fields=fields, expressions=expressions)


def top_n_from_window_limit(node: n.Node) -> n.Node:
    """ORDER BY … LIMIT n over rows that have a window is the top n of each window."""
    limit = node if isinstance(node, n.Limit) else None
    below = limit.input if limit is not None else node
    sort = below if isinstance(below, n.Sort) else None
    if limit is None and sort is None:
        return node
    if limit is not None and limit.count is None:
        return node
    base = sort.input if sort is not None else node.inputs[0]
    if base.bounded:
        return node
    partition = tuple(column(item) for item in _one_window(base.fields))
    if not partition:
        return node
    if isinstance(base, n.TopN) and base.limit is None and sort is None and limit is not None:
        return _without_first(limit, replace(base, limit=limit.count, span=limit.span))
    top = n.TopN(
        node.fields,
        input=base,
        partition=partition,
        order=sort.order if sort is not None else (),
        limit=limit.count if limit is not None else None,
        windowed=True,
        span=node.span,
    )
    return top if limit is None else _without_first(limit, top)


def _without_first(limit: n.Limit, top: n.TopN) -> n.Node:
    """OFFSET m: the top n + m by their number, without the first m."""
    if limit.offset is None or limit.rank is None or limit.count is None:
        return top
    last = exp.Literal.number(int(limit.count.name) + int(limit.offset.name))
    ranked = replace(top, fields=(*top.fields, limit.rank), limit=last, rank_id=limit.rank.id)
    beyond = exp.GT(this=column(limit.rank), expression=limit.offset.copy())
    rest = n.Filter(ranked.fields, input=ranked, condition=beyond, span=limit.span)
    return n.Project(top.fields, input=rest, expressions=tuple(map(column, top.fields)))


def top_n_of_changes(node: n.Node, mode: EmitMode | None = None) -> n.Node:
    """ORDER BY … LIMIT n with EMIT CHANGES is the top n of all rows so far.

    With EMIT ON WINDOW CLOSE it is that too if it is by event time: the first rows are final when
    the watermark has passed them. `mode`: how the query that a node stands in gives out rows.
    """
    if isinstance(node, n.Emit):
        mode = node.clause.mode if node.clause is not None else None
    inputs = tuple(top_n_of_changes(child, mode) for child in node.inputs)
    if inputs != node.inputs:
        node = node.with_inputs(*inputs)
    if not isinstance(node, n.Limit) or not isinstance(node.input, n.Sort):
        return node
    rows = node.input.input
    counted = isinstance(node.count, exp.Literal) and node.count.is_int
    if not counted or rows.bounded or _one_window(rows.fields):
        return node
    closes = mode is EmitMode.WINDOW_CLOSE and along_time(node.input.order, rows)
    if not closes and mode not in (EmitMode.CHANGES, EmitMode.UPDATE):
        return node
    top = n.TopN(
        node.fields,
        input=rows,
        partition=(),
        order=node.input.order,
        limit=node.count,
        span=node.span,
    )
    return _without_first(node, top)


def union_is_distinct(node: n.Node) -> n.Node:
    """UNION without ALL is DISTINCT of UNION ALL; without a bound it is left to be rejected."""
    if not isinstance(node, n.SetOperation) or node.operation != "UNION" or node.all:
        return node
    forgets = node.ttl_us is not None or any(item.closed_by_watermark for item in node.fields)
    if not forgets and not node.bounded:
        return node
    rows = replace(node, all=True, ttl_us=None)
    return n.Distinct(node.fields, input=rows, ttl_us=node.ttl_us, span=node.span)


def hold_rows_of_open_windows(node: n.Node) -> n.Node:
    """EMIT ON WINDOW CLOSE over rows that no operator closes keeps them until then."""
    if not isinstance(node, n.Emit) or node.clause is None:
        return node
    if node.clause.mode is not EmitMode.WINDOW_CLOSE:
        return node
    by_time = any(item.is_event_time for item in node.fields)
    return replace(node, input=first_along_time(node.input).with_emit_on_close(by_time))


def _one_window(fields: tuple[n.Field, ...]) -> list[n.Field]:
    """The columns that tell the window of a row; empty if they do not tell it."""
    starts = [item for item in fields if item.role is n.Role.WINDOW_START][:1]
    ends = [item for item in fields if item.role is n.Role.WINDOW_END][:1]
    if (starts or ends) and (starts or ends)[0].has_fixed_length_window:
        return ends or starts
    return [*starts, *ends] if starts and ends else []


def filter_above_inner_join(node: n.Node) -> n.Node:
    """What is neither a key nor a bound of time only drops pairs: Spark does that."""
    if not isinstance(node, n.Join) or node.residual is None or node.how != "INNER":
        return node
    if node.kind not in (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR):
        return node
    join = replace(node, residual=None)
    return n.Filter(node.fields, input=join, condition=node.residual, span=node.span)


def normalize_upserts(node: n.Node) -> n.Node:
    """Whoever cannot work on bare upserts gets a changelog with the old rows in it."""
    if isinstance(node, n.Inlined) or not node.inputs:
        return node
    changed = tuple(
        _normalized(child) if _needs_old_rows(node, index) else child
        for index, child in enumerate(node.inputs)
    )
    return node.with_inputs(*changed) if changed != node.inputs else node


def _needs_old_rows(node: n.Node, index: int) -> bool:
    below = node.inputs[index]
    if below.changelog is not ChangelogKind.UPSERT:
        return False
    key = set(below.key or ())
    if isinstance(node, n.Emit):
        # Of several rows of a key the last one counts, and only an operator knows their order.
        return True
    if isinstance(node, n.Project):
        kept = {e.name for e in node.expressions if isinstance(e, exp.Column)}
        return below.key is None or not key <= kept
    if isinstance(node, n.Filter):
        return not referenced_ids(node.condition) <= key
    if isinstance(node, n.Join) and node.kind in (n.JoinKind.TEMPORAL, n.JoinKind.LOOKUP):
        return index == 0
    return True


def emit_empty_aggregate(node: n.Node) -> n.Node:
    """A join sees the one row of an aggregate without keys from the first epoch on."""
    if not isinstance(node, n.Join) or node.kind is not n.JoinKind.REGULAR:
        return node
    return node.with_inputs(*map(_from_start, node.inputs))


def _from_start(node: n.Node) -> n.Node:
    if isinstance(node, n.Aggregate):
        always = not node.keys and node.window is None
        return replace(node, emits_initial_row=True) if always else node
    if not isinstance(node, n.Project | n.Filter | n.Inlined | n.Emit):
        return node
    below = _from_start(node.input)
    return node if below is node.input else node.with_inputs(below)


def changes_of_streams_below(node: n.Node) -> n.Node:
    """Whoever reads a stream of updates gets its changes, with the old rows in them."""
    if not isinstance(node, n.Inlined) or not isinstance(node.input, n.Emit):
        return node
    emit = node.input
    updates = emit.clause is not None and emit.clause.mode in (EmitMode.UPDATE, EmitMode.EVERY)
    below = emit.input.changelog
    if not updates or below is not ChangelogKind.CHANGELOG or emit.clause is None:
        return node
    clause = replace(emit.clause, mode=EmitMode.CHANGES, every_us=None)
    return replace(node, input=replace(emit, clause=clause))


def _normalized(node: n.Node) -> n.Node:
    """Normalise where the upserts come from: below whatever keeps their key."""
    if isinstance(node, n.Project | n.Filter | n.Inlined | n.Emit):
        (below,) = node.inputs
        if below.changelog is ChangelogKind.UPSERT:
            return node.with_inputs(_normalized(below))
    key = node.key if node.key is not None else tuple(item.id for item in node.fields)
    return n.Normalize(node.fields, input=node, key=key, span=node.span)


def set_tombstone_ttl(node: n.Node, ttl_us: int) -> n.Node:
    """Give state_ttl to whatever remembers that keys were deleted."""
    inputs = tuple(set_tombstone_ttl(child, ttl_us) for child in node.inputs)
    if inputs != node.inputs:
        node = node.with_inputs(*inputs)
    return replace(node, ttl_us=ttl_us) if isinstance(node, n.Normalize) else node


# These put several nodes in the place of one. Those that follow must see all of them.
SHAPES: tuple[Rule, ...] = (
    top_n_from_rank_filter,
    drop_unused_rank,
    top_n_from_window_limit,
    filter_above_inner_join,
    union_is_distinct,
)
CHANGES: tuple[Rule, ...] = (
    hold_rows_of_open_windows,
    emit_empty_aggregate,
    changes_of_streams_below,
    normalize_upserts,
    join_with_one_row,
)
