"""Rules that give a bound plan its streaming meaning, applied bottom up in a fixed order.

Start reading at `rewrite` and the rule lists at the end of the module. Validation sees the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.functions import NEWEST_FIRST
from tidegate.plan.bind.scope import column, referenced_ids
from tidegate.sql import expressions as ex
from tidegate.sql.statements import EmitMode
from tidegate.types import RANK_FUNCTIONS, ChangelogKind

# ---- The first rows of each partition by event time, for queries with EMIT ON WINDOW CLOSE
#
# These rows are final once the watermark has passed them. Numbering rows in the order of event time
# finds them: the state contains only the numbers, and nothing is retracted.

_RANK = "_tg_rank"


def is_by_event_time(order: Sequence[exp.Expr], rows: n.Node) -> bool:
    """Return whether an order starts with the only event time of rows without windows."""
    first = order[0] if order else None
    if not isinstance(first, exp.Ordered) or first.args.get("desc"):
        return False
    times = [item.id for item in rows.fields if item.is_event_time]
    windows = any(item.window is not None for item in rows.fields)
    return not windows and isinstance(first.this, exp.Column) and times == [first.this.name]


def number_first_rows(node: n.Node) -> n.Node:
    """Replace a top-N by event time with EMIT ON WINDOW CLOSE by row numbers and a filter."""
    if isinstance(node, n.Project | n.Filter):
        return replace(node, input=number_first_rows(node.input))
    if not isinstance(node, n.TopN) or node.windowed or node.limit is None:
        return node
    if node.keeps_one_row and node.partition:
        # Deduplication has its own operator, which expires keys.
        return node
    rows = node.input
    if rows.bounded or rows.changelog is not ChangelogKind.APPEND:
        return node
    return _as_numbered_rows(node) if is_by_event_time(node.order, rows) else node


def _as_numbered_rows(node: n.TopN) -> n.Node:
    has_rank = node.rank_id is not None
    rank = node.fields[-1] if has_rank else n.Field(_RANK, _RANK, "INT")
    fields = node.fields if has_rank else (*node.fields, rank)
    function = exp.Window(
        this=exp.Anonymous(this=node.function, expressions=[]),
        partition_by=[part.copy() for part in node.partition],
        order=exp.Order(expressions=[part.copy() for part in node.order]),
    )
    over = n.Over(
        fields, input=node.input, functions=(function,), ttl_us=node.ttl_us, span=node.span
    )
    assert node.limit is not None, "a top-N without a limit is not rewritten"
    condition = exp.LTE(this=column(rank), expression=node.limit.copy())
    filtered = n.Filter(fields, input=over, condition=condition, span=node.span)
    if has_rank:
        return filtered
    expressions = tuple(column(item) for item in node.fields)
    return n.Project(node.fields, input=filtered, expressions=expressions, span=node.span)


# ---- The right side of a temporal join: each row of a key is a version, valid from its event time
#
# The right side at time t is the result of its query over the rows up to t. So a row that a WHERE
# drops ends the version before it, and a query for the last row of each key returns the last row
# before t. The join therefore reads the rows below such a query, and not the changes that it emits,
# which depend on the order of arrival.


@dataclass(frozen=True)
class Versions:
    """The rows of a versioned table, with the columns of the right side of a temporal join.

    `validity_id` is an additional column, if there is one: false for a tombstone. With `first_only`
    the first row of a key is its only version.
    """

    rows: n.Node
    key: tuple[str, ...]
    time: str
    validity_id: str | None = None
    first_only: bool = False


def versions_of(node: n.Node) -> Versions | None:
    """Return the versions behind the right side of a join; None without a key or an event time."""
    if isinstance(node, n.Scan):
        times = [item.id for item in node.fields if item.role is n.Role.TIME]
        return Versions(node, node.key, times[0]) if node.key is not None and times else None
    if isinstance(node, n.StreamReference | n.Emit | n.Normalize | n.Hold):
        return versions_of(node.input)
    if isinstance(node, n.TopN):
        return _versions_of_top_row(node)
    versions = versions_of(node.inputs[0]) if isinstance(node, n.Project | n.Filter) else None
    if versions is None or not node.stateless:
        return None
    if isinstance(node, n.Filter):
        return _filter_versions(node, versions)
    return _project_versions(node, versions)


def _versions_of_top_row(node: n.TopN) -> Versions | None:
    """Return the versions of a query for the first or last row of each key by event time."""
    order = node.order[0] if len(node.order) == 1 else None
    time_column = order.this if isinstance(order, exp.Ordered) else order
    columns = [part.name for part in node.partition if isinstance(part, exp.Column)]
    if not node.keeps_one_row or node.windowed or not isinstance(time_column, exp.Column):
        return None
    is_event_time = any(
        item.id == time_column.name and item.role is n.Role.TIME for item in node.input.fields
    )
    has_column_key = bool(columns) and len(columns) == len(node.partition)
    if not is_event_time or not has_column_key or node.input.changelog is not ChangelogKind.APPEND:
        return None
    first_only = not (isinstance(order, exp.Ordered) and order.args.get("desc"))
    rows: n.Node = node.input
    if node.rank_id is not None:
        rank = exp.cast(exp.Literal.number(1), "INT")
        parts = [rank if i.id == node.rank_id else column(i) for i in node.fields]
        rows = n.Project(node.fields, input=rows, expressions=tuple(parts), span=node.span)
    return Versions(rows, tuple(columns), time_column.name, first_only=first_only)


def _project_versions(node: n.Node, versions: Versions) -> Versions | None:
    """Return the versions with other columns; the validity column is kept."""
    assert isinstance(node, n.Project), "the node is a Project"
    pairs = list(zip(node.fields, node.expressions, strict=True))
    output_ids = {
        part.name: item.id for item, part in reversed(pairs) if isinstance(part, exp.Column)
    }
    if not {*versions.key, versions.time} <= set(output_ids):
        return None
    key = tuple(output_ids[column_id] for column_id in versions.key)
    fields, expressions = node.fields, node.expressions
    if versions.validity_id is not None:
        validity = versions.rows.field(versions.validity_id)
        fields, expressions = (*fields, validity), (*expressions, column(validity))
    rows = n.Project(fields, input=versions.rows, expressions=expressions, span=node.span)
    return replace(versions, rows=rows, key=key, time=output_ids[versions.time])


def _filter_versions(node: n.Node, versions: Versions) -> Versions | None:
    """Return the versions with rows that fail the filter as tombstones."""
    assert isinstance(node, n.Filter), "the node is a Filter"
    if referenced_ids(node.condition) <= set(versions.key):
        # The condition keeps all rows of a key or none.
        rows: n.Node = replace(node, input=versions.rows, fields=versions.rows.fields)
        return replace(versions, rows=rows)
    passes = exp.Anonymous(this="COALESCE", expressions=[node.condition.copy(), exp.false()])
    condition: exp.Expr = passes
    fields = versions.rows.fields
    if versions.validity_id is not None:
        input_validity = versions.rows.field(versions.validity_id)
        condition = exp.and_(column(input_validity), passes, copy=True)
        fields = tuple(item for item in fields if item.id != versions.validity_id)
    validity_id = versions.validity_id or _free_id(versions.rows)
    validity = n.Field(validity_id, "valid", "BOOLEAN", nullable=False)
    expressions = (*(column(item) for item in fields), condition)
    fields = (*fields, validity)
    rows = n.Project(fields, input=versions.rows, expressions=expressions, span=node.span)
    return replace(versions, rows=rows, validity_id=validity_id)


def _free_id(node: n.Node) -> str:
    ids = {item.id for part in n.walk(node) for item in part.fields}
    name = "valid"
    while name in ids:
        name += "_"
    return name


def plan_version_joins(node: n.Node) -> n.Node:
    """Bring a temporal or ASOF join into the form that its operator runs.

    Other parts of the condition move out of the join. A temporal join applies them to the version
    it found. An ASOF join applies conditions on right rows first, because they restrict which rows
    can match.
    """
    if not isinstance(node, n.Join) or node.asof_condition is None or node.versioned:
        return node
    if node.kind is n.JoinKind.TEMPORAL:
        return _plan_temporal_join(node)
    return _plan_asof_join(node) if node.kind is n.JoinKind.ASOF else node


def _plan_temporal_join(node: n.Join) -> n.Node:
    versions = versions_of(node.right)
    if versions is None or node.asof_condition is None:
        return node
    pairs = {}
    conditions = []
    for pair in node.key_pairs:
        name = pair.right.name if isinstance(pair.right, exp.Column) else None
        if name in versions.key and name not in pairs:
            pairs[name] = pair
        else:
            sign = exp.NullSafeEQ if pair.null_safe else exp.EQ
            conditions.append(sign(this=pair.left.copy(), expression=pair.right.copy()))
    if len(pairs) < len(versions.key):
        return node
    join = replace(
        node,
        right=versions.rows,
        versioned=True,
        validity_id=versions.validity_id,
        key_pairs=tuple(pairs.values()),
        residual=None,
        asof_condition=replace(
            node.asof_condition,
            right=column(versions.rows.field(versions.time)),
            only_first_version=versions.first_only,
        ),
    )
    return _apply_to_matches(join, [*conditions, *ex.conjuncts(node.residual)])


def _plan_asof_join(node: n.Join) -> n.Node:
    right = {item.id for item in node.right.fields}
    left = {item.id for item in node.left.fields}
    parts = ex.conjuncts(node.residual)
    right_only = [part for part in parts if referenced_ids(part) <= right]
    others = [part for part in parts if part not in right_only]
    left_only = [part for part in others if referenced_ids(part) <= left]
    mixed = [part for part in others if part not in left_only]
    join = replace(node, residual=ex.conjunction(mixed))
    condition = ex.conjunction(right_only)
    if condition is not None:
        rows = n.Filter(node.right.fields, input=node.right, condition=condition, span=node.span)
        join = replace(join, right=rows)
    return _apply_to_matches(join, left_only)


def _apply_to_matches(join: n.Join, conditions: list[exp.Expr]) -> n.Node:
    """Apply conditions to the matches of a join.

    If they do not hold, an inner join drops the row and a left join sets the right columns to NULL.
    """
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
    # The columns keep the ids of the join: expressions above refer to them.
    return n.Project(join.fields, input=join, expressions=expressions, span=join.span)


# ---- The rules

Rule = Callable[[n.Node], n.Node]


def rewrite(node: n.Node) -> n.Node:
    """Apply all rules to every node, inputs first: STRUCTURE_RULES before CHANGELOG_RULES."""
    node = top_n_of_changes(node)
    for rules in (STRUCTURE_RULES, CHANGELOG_RULES):
        node = _apply_rules(node, rules)
    return node


def _apply_rules(node: n.Node, rules: tuple[Rule, ...]) -> n.Node:
    inputs = tuple(_apply_rules(child, rules) for child in node.inputs)
    if inputs != node.inputs:
        node = node.with_inputs(*inputs)
    for rule in rules:
        node = rule(node)
    return node


def top_n_from_rank_filter(node: n.Node) -> n.Node:
    """Turn `… WHERE row_number <= n` over an OVER into a top-N, which does not rank all rows."""
    if not isinstance(node, n.Filter):
        return node
    over = _below_projections(node.input)
    if not isinstance(over, n.Over) or len(over.functions) != 1:
        return node
    window = over.functions[0]
    rank = over.fields[-1]
    function = ex.call_name(window.this)
    if function not in RANK_FUNCTIONS:
        return node
    rank_id = _output_id(node.input, rank.id)
    if rank_id is None:
        return node
    conjuncts = ex.conjuncts(node.condition)
    for index, conjunct in enumerate(conjuncts):
        limit = _rank_limit(conjunct, rank_id)
        if limit is None:
            continue
        limit = _push_down_expression(limit, node.input)
        if limit is None:
            continue
        top_n = _top_n(over, window, function, limit, rank)
        other_conjuncts = conjuncts[:index] + conjuncts[index + 1 :]
        if isinstance(conjunct, exp.EQ) and not (limit.is_int and int(limit.name) == 1):
            other_conjuncts = conjuncts
        rebuilt = _replace_below(node.input, top_n)
        condition = ex.conjunction(other_conjuncts)
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
    """Return whether the watermark determines when a partition is complete."""
    windows = [item for item in node.fields if item.window is not None]
    closing_ids = {item.id for item in windows if item.closed_by_watermark}
    return any(isinstance(part, exp.Column) and part.name in closing_ids for part in partition)


def _below_projections(node: n.Node) -> n.Node:
    while isinstance(node, n.Project):
        node = node.input
    return node


def _replace_below(node: n.Node, bottom: n.Node) -> n.Node:
    if isinstance(node, n.Project):
        return replace(node, input=_replace_below(node.input, bottom))
    return bottom


def _output_id(node: n.Node, column_id: str) -> str | None:
    """Return the id of a column of the lowest node at the output of the projections above it."""
    if not isinstance(node, n.Project):
        return column_id
    inner = _output_id(node.input, column_id)
    for item, expression in zip(node.fields, node.expressions, strict=True):
        if isinstance(expression, exp.Column) and expression.name == inner:
            return item.id
    return None


def _push_down_expression(tree: exp.Expr, node: n.Node) -> exp.Expr | None:
    """Translate an expression over the output of projections to their input."""
    if not isinstance(node, n.Project):
        return tree
    mapping = {
        item.id: expression for item, expression in zip(node.fields, node.expressions, strict=True)
    }
    if not referenced_ids(tree) <= set(mapping):
        return None

    def swap(part: exp.Expr) -> exp.Expr:
        return mapping[part.name].copy() if isinstance(part, exp.Column) else part

    return _push_down_expression(tree.copy().transform(swap), node.input)


def _rank_limit(piece: exp.Expr, rank_id: str) -> exp.Expr | None:
    """Return n of `rank <= n`, `rank < n + 1`, `rank = n`, or of the same with swapped sides."""
    flipped: dict[type[exp.Binary], type[exp.Binary]]
    flipped = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
    if not isinstance(piece, exp.LTE | exp.LT | exp.EQ | exp.GTE | exp.GT):
        return None
    operator: type[exp.Binary] = type(piece)
    left, right = piece.left, piece.right
    if isinstance(right, exp.Column) and right.name == rank_id and operator in flipped:
        left, right, operator = right, left, flipped[operator]
    if not isinstance(left, exp.Column) or left.name != rank_id or rank_id in referenced_ids(right):
        return None
    if operator in (exp.LTE, exp.EQ):
        return right
    if operator is exp.LT and isinstance(right, exp.Literal) and right.is_int:
        return exp.Literal.number(int(right.name) - 1)
    return None


def drop_unused_rank(node: n.Node) -> n.Node:
    """Remove a rank that no expression reads, so that rows do not change with it."""
    if not isinstance(node, n.Project):
        return node
    needed = set().union(*(referenced_ids(part) for part in node.expressions))
    input_node = _without_rank(node.input, needed)
    return node if input_node is None else replace(node, input=input_node)


def _without_rank(node: n.Node, needed: set[str]) -> n.Node | None:
    """Return the node without its rank; None if the rank is needed or there is none."""
    if isinstance(node, n.TopN):
        if node.rank_id is None or node.rank_id in needed:
            return None
        return replace(node, fields=node.fields[:-1], rank_id=None)
    if isinstance(node, n.Filter):
        input_node = _without_rank(node.input, needed | referenced_ids(node.condition))
        if input_node is None:
            return None
        return replace(node, input=input_node, fields=input_node.fields)
    if not isinstance(node, n.Project) or not isinstance(_below_projections(node), n.TopN):
        return None
    pairs = zip(node.fields, node.expressions, strict=True)
    needed_pairs = [(item, part) for item, part in pairs if item.id in needed]
    read_ids = set().union(*(referenced_ids(part) for _, part in needed_pairs))
    input_node = _without_rank(node.input, read_ids)
    if input_node is None:
        return None
    fields, expressions = (tuple(column) for column in zip(*needed_pairs, strict=True))
    return replace(node, input=input_node, fields=fields, expressions=expressions)


def top_n_from_window_limit(node: n.Node) -> n.Node:
    """Turn ORDER BY … LIMIT n over rows with a window into the top n of each window."""
    limit = node if isinstance(node, n.Limit) else None
    sorted_rows = limit.input if limit is not None else node
    sort = sorted_rows if isinstance(sorted_rows, n.Sort) else None
    if limit is None and sort is None:
        return node
    if limit is not None and limit.count is None:
        return node
    rows = sort.input if sort is not None else node.inputs[0]
    if rows.bounded:
        return node
    partition = tuple(column(item) for item in _window_columns(rows.fields))
    if not partition:
        return node
    if isinstance(rows, n.TopN) and rows.limit is None and sort is None and limit is not None:
        return _drop_offset(limit, replace(rows, limit=limit.count, span=limit.span))
    top_n = n.TopN(
        node.fields,
        input=rows,
        partition=partition,
        order=sort.order if sort is not None else (),
        limit=limit.count if limit is not None else None,
        windowed=True,
        span=node.span,
    )
    return top_n if limit is None else _drop_offset(limit, top_n)


def _drop_offset(limit: n.Limit, top_n: n.TopN) -> n.Node:
    """Apply OFFSET m to a top n: number the first n + m rows and drop the first m."""
    if limit.offset is None or limit.rank is None or limit.count is None:
        return top_n
    last = exp.Literal.number(int(limit.count.name) + int(limit.offset.name))
    ranked = replace(top_n, fields=(*top_n.fields, limit.rank), limit=last, rank_id=limit.rank.id)
    condition = exp.GT(this=column(limit.rank), expression=limit.offset.copy())
    filtered = n.Filter(ranked.fields, input=ranked, condition=condition, span=limit.span)
    return n.Project(top_n.fields, input=filtered, expressions=tuple(map(column, top_n.fields)))


def top_n_of_changes(node: n.Node, mode: EmitMode | None = None) -> n.Node:
    """Turn ORDER BY … LIMIT n with EMIT CHANGES into the top n of all rows so far.

    EMIT ON WINDOW CLOSE does the same if the order is by event time, because the first rows are
    final when the watermark has passed them. `mode` is the EMIT mode of the query that contains the
    node.
    """
    if isinstance(node, n.Emit):
        mode = node.clause.mode if node.clause is not None else None
    inputs = tuple(top_n_of_changes(child, mode) for child in node.inputs)
    if inputs != node.inputs:
        node = node.with_inputs(*inputs)
    if not isinstance(node, n.Limit) or not isinstance(node.input, n.Sort):
        return node
    rows = node.input.input
    has_constant_count = isinstance(node.count, exp.Literal) and node.count.is_int
    if not has_constant_count or rows.bounded or _window_columns(rows.fields):
        return node
    is_final_by_time = mode is EmitMode.WINDOW_CLOSE and is_by_event_time(node.input.order, rows)
    if not is_final_by_time and mode not in (EmitMode.CHANGES, EmitMode.UPDATE):
        return node
    top_n = n.TopN(
        node.fields,
        input=rows,
        partition=(),
        order=node.input.order,
        limit=node.count,
        span=node.span,
    )
    return _drop_offset(node, top_n)


def union_is_distinct(node: n.Node) -> n.Node:
    """Turn UNION into DISTINCT over UNION ALL.

    A UNION whose state would be unbounded is not changed, and the validator rejects it.
    """
    if not isinstance(node, n.SetOperation) or node.operation != "UNION" or node.all:
        return node
    has_closing_column = any(item.closed_by_watermark for item in node.fields)
    if node.ttl_us is None and not has_closing_column and not node.bounded:
        return node
    rows = replace(node, all=True, ttl_us=None)
    return n.Distinct(node.fields, input=rows, ttl_us=node.ttl_us, span=node.span)


def hold_rows_of_open_windows(node: n.Node) -> n.Node:
    """Hold rows until they are final under EMIT ON WINDOW CLOSE, if no operator does so."""
    if not isinstance(node, n.Emit) or node.clause is None:
        return node
    if node.clause.mode is not EmitMode.WINDOW_CLOSE:
        return node
    by_event_time = any(item.is_event_time for item in node.fields)
    return replace(node, input=number_first_rows(node.input).with_emit_on_close(by_event_time))


def _window_columns(fields: tuple[n.Field, ...]) -> list[n.Field]:
    """Return the columns that identify the window of a row; empty if the window is not known.

    One column suffices if all windows have the same length; other windows need start and end.
    """
    starts = [item for item in fields if item.role is n.Role.WINDOW_START][:1]
    ends = [item for item in fields if item.role is n.Role.WINDOW_END][:1]
    if (starts or ends) and (starts or ends)[0].has_fixed_length_window:
        return ends or starts
    return [*starts, *ends] if starts and ends else []


def filter_above_inner_join(node: n.Node) -> n.Node:
    """Move conditions that are neither keys nor time bounds out of an inner join, for Spark."""
    if not isinstance(node, n.Join) or node.residual is None or node.how != "INNER":
        return node
    if node.kind not in (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR):
        return node
    join = replace(node, residual=None)
    return n.Filter(node.fields, input=join, condition=node.residual, span=node.span)


def normalize_upserts(node: n.Node) -> n.Node:
    """Turn upserts into a changelog for nodes that need the old rows."""
    if isinstance(node, n.StreamReference) or not node.inputs:
        return node
    inputs = tuple(
        _normalize_at_origin(child) if _needs_old_rows(node, index) else child
        for index, child in enumerate(node.inputs)
    )
    return node.with_inputs(*inputs) if inputs != node.inputs else node


def _needs_old_rows(node: n.Node, index: int) -> bool:
    input_node = node.inputs[index]
    if input_node.changelog is not ChangelogKind.UPSERT:
        return False
    key = set(input_node.key or ())
    if isinstance(node, n.Emit):
        # The last row of a key wins, and only an operator knows the order of rows.
        return True
    if isinstance(node, n.Project):
        selected = {e.name for e in node.expressions if isinstance(e, exp.Column)}
        return input_node.key is None or not key <= selected
    if isinstance(node, n.Filter):
        return not referenced_ids(node.condition) <= key
    if isinstance(node, n.Join) and node.kind in (n.JoinKind.TEMPORAL, n.JoinKind.LOOKUP):
        return index == 0
    return True


def emit_initial_row(node: n.Node) -> n.Node:
    """Let an aggregate without keys emit its initial row if a regular join reads it."""
    if not isinstance(node, n.Join) or node.kind is not n.JoinKind.REGULAR:
        return node
    return node.with_inputs(*map(_with_initial_row, node.inputs))


def _with_initial_row(node: n.Node) -> n.Node:
    if isinstance(node, n.Aggregate):
        has_initial_row = not node.keys and node.window is None
        return replace(node, emits_initial_row=True) if has_initial_row else node
    if not isinstance(node, n.Project | n.Filter | n.StreamReference | n.Emit):
        return node
    input_node = _with_initial_row(node.input)
    return node if input_node is node.input else node.with_inputs(input_node)


def read_upserts_as_changelog(node: n.Node) -> n.Node:
    """Read a stream with EMIT ON UPDATE or EMIT EVERY as its changelog, including old rows."""
    if not isinstance(node, n.StreamReference) or not isinstance(node.input, n.Emit):
        return node
    emit = node.input
    if emit.clause is None or emit.clause.mode not in (EmitMode.UPDATE, EmitMode.EVERY):
        return node
    if emit.input.changelog is not ChangelogKind.CHANGELOG:
        return node
    clause = replace(emit.clause, mode=EmitMode.CHANGES, every_us=None)
    return replace(node, input=replace(emit, clause=clause))


def _normalize_at_origin(node: n.Node) -> n.Node:
    """Normalize upserts where they are emitted: below all nodes that keep their key."""
    if isinstance(node, n.Project | n.Filter | n.StreamReference | n.Emit):
        (input_node,) = node.inputs
        if input_node.changelog is ChangelogKind.UPSERT:
            return node.with_inputs(_normalize_at_origin(input_node))
    key = node.key if node.key is not None else tuple(item.id for item in node.fields)
    return n.Normalize(node.fields, input=node, key=key, span=node.span)


def set_tombstone_ttl(node: n.Node, ttl_us: int) -> n.Node:
    """Set state_ttl on all nodes that remember deleted keys."""
    inputs = tuple(set_tombstone_ttl(child, ttl_us) for child in node.inputs)
    if inputs != node.inputs:
        node = node.with_inputs(*inputs)
    return replace(node, ttl_us=ttl_us) if isinstance(node, n.Normalize) else node


# These rules replace one node by several. CHANGELOG_RULES must see all of them.
STRUCTURE_RULES: tuple[Rule, ...] = (
    top_n_from_rank_filter,
    drop_unused_rank,
    top_n_from_window_limit,
    filter_above_inner_join,
    union_is_distinct,
)
CHANGELOG_RULES: tuple[Rule, ...] = (
    hold_rows_of_open_windows,
    emit_initial_row,
    read_upserts_as_changelog,
    normalize_upserts,
    plan_version_joins,
)
