"""Rules that drop unneeded columns, in sources, projections and below every operator.

From the root down, each node gets the set of needed columns and passes on what it needs itself.
Where an operator keeps whole rows, a projection below it selects only the needed columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import column, referenced_ids
from tidegate.plan.rewrite.expressions import is_deterministic, is_trivial, substitute
from tidegate.plan.rewrite.pushdown_filters import LateOperators
from tidegate.types import ChangelogKind

ColumnIds = frozenset[str]


def prune_columns(plan: n.Node, late_operators: LateOperators) -> n.Node:
    """Drop the columns of all nodes that the output does not need."""
    return _Pruner(late_operators).prune(plan, _ids_of(plan))


def _ids_of(node: n.Node) -> ColumnIds:
    return frozenset(item.id for item in node.fields)


def _referenced(trees: Iterable[exp.Expr | None]) -> ColumnIds:
    return frozenset(name for tree in trees if tree is not None for name in referenced_ids(tree))


def _fields_with(fields: tuple[n.Field, ...], ids: ColumnIds) -> tuple[n.Field, ...]:
    return tuple(item for item in fields if item.id in ids)


def _replace_changed(node: n.Node, **changes: Any) -> n.Node:
    """Return the node with other attributes, or the same node if none differs."""
    same = all(_is_same(getattr(node, name), value) for name, value in changes.items())
    return node if same else replace(node, **changes)


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one is other


@dataclass(frozen=True)
class _Pruner:
    """Prunes nodes from the root down. `_METHODS` has the method for each class of nodes."""

    late_operators: LateOperators

    def prune(self, node: n.Node, needed: ColumnIds) -> n.Node:
        """Return the node with the needed columns, in their order; it may keep others."""
        if node.changelog is ChangelogKind.UPSERT:
            # The key identifies the row that an upsert replaces.
            needed |= frozenset(node.key) if node.key is not None else _ids_of(node)
        method = _METHODS.get(type(node), _Pruner._keep_all_columns)
        pruned = method(self, node, needed)
        assert isinstance(pruned, n.Node), "a method returns the pruned node"
        assert needed <= _ids_of(pruned), f"{node.label()} lost a column"
        return pruned

    def _prune_exactly(self, node: n.Node, needed: ColumnIds) -> n.Node:
        """Return the node with the needed columns only; a projection drops all others."""
        needed = needed or frozenset([_cheapest_column(node.fields)])
        pruned = self.prune(node, needed)
        if pruned.changelog is ChangelogKind.UPSERT:
            needed |= frozenset(pruned.key or _ids_of(pruned))
        if isinstance(pruned, n.LookupScan) or _ids_of(pruned) == needed:
            return pruned
        fields = _fields_with(pruned.fields, needed)
        expressions = tuple(column(item) for item in fields)
        return n.Project(fields, input=pruned, expressions=expressions, span=node.span)

    def _needed_input(self, node: n.Unary, needed: ColumnIds) -> ColumnIds:
        """Return the input columns that a node needs: all of them if its late rows are kept."""
        if node not in self.late_operators:
            return needed
        return needed | (_ids_of(node.late_rows(0)) & _ids_of(node.input))

    def _keep_all_columns(self, node: n.Node, needed: ColumnIds) -> n.Node:
        """Keep all input columns. Used for DISTINCT, INTERSECT, EXCEPT and unknown nodes."""
        inputs = tuple(self.prune(child, _ids_of(child)) for child in node.inputs)
        return node if _is_same(inputs, node.inputs) else node.with_inputs(*inputs)

    # Leaves

    def _prune_scan(self, node: n.Scan, needed: ColumnIds) -> n.Node:
        """Keep the event time and the primary key, which every row of a source needs."""
        source = node.source
        names = {name.lower() for name in source.primary_key}
        names |= {source.watermark.column.lower()} if source.watermark is not None else set()
        return self._leaf(node, needed, names)

    def _prune_side_scan(self, node: n.SideScan, needed: ColumnIds) -> n.Node:
        return self._leaf(node, needed, set())

    def _prune_lookup_scan(self, node: n.LookupScan, needed: ColumnIds) -> n.Node:
        return self._leaf(node, needed, {name.lower() for name in node.table.primary_key})

    def _leaf(self, node: n.Node, needed: ColumnIds, required_names: set[str]) -> n.Node:
        fields = tuple(i for i in node.fields if i.id in needed or i.name.lower() in required_names)
        fields = fields or _fields_with(node.fields, frozenset([_cheapest_column(node.fields)]))
        return _replace_changed(node, fields=fields)

    # Nodes that pass rows through

    def _pass_through(self, node: n.Unary, needed: ColumnIds, read: ColumnIds) -> n.Node:
        child = self.prune(node.input, self._needed_input(node, needed | read))
        return _replace_changed(node, input=child, fields=_fields_with(node.fields, _ids_of(child)))

    def _prune_stream_reference(self, node: n.StreamReference, needed: ColumnIds) -> n.Node:
        return self._pass_through(node, needed, frozenset())

    def _prune_emit(self, node: n.Emit, needed: ColumnIds) -> n.Node:
        return self._pass_through(node, needed, frozenset())

    def _prune_filter(self, node: n.Filter, needed: ColumnIds) -> n.Node:
        if node.subqueries:
            return self._keep_all_columns(node, needed)
        return self._pass_through(node, needed, _referenced([node.condition]))

    def _prune_limit(self, node: n.Limit, needed: ColumnIds) -> n.Node:
        return self._pass_through(node, needed, frozenset())

    def _prune_sort(self, node: n.Sort, needed: ColumnIds) -> n.Node:
        return self._prune_rows(node, needed, _referenced(node.order))

    def _prune_hold(self, node: n.Hold, needed: ColumnIds) -> n.Node:
        if isinstance(node.input, n.Window):
            # Hold finds the columns that the window adds by position.
            added = frozenset(item.id for item in node.input.fields[-3:])
            return self._pass_through(node, needed, added)
        return self._prune_rows(node, needed, frozenset([node.end_id]))

    def _prune_normalize(self, node: n.Normalize, needed: ColumnIds) -> n.Node:
        return self._prune_rows(node, needed, frozenset(node.key))

    def _prune_rows(self, node: n.Unary, needed: ColumnIds, read: ColumnIds) -> n.Node:
        """Prune the input of an operator that keeps rows, so that it gets no unneeded column."""
        child = self._prune_exactly(node.input, self._needed_input(node, needed | read))
        return _replace_changed(node, input=child, fields=_fields_with(node.fields, _ids_of(child)))

    # Nodes that compute columns

    def _prune_project(self, node: n.Project, needed: ColumnIds) -> n.Node:
        if node.subqueries:
            return self._keep_all_columns(node, needed)
        pairs = list(zip(node.fields, node.expressions, strict=True))
        needed_pairs = [(i, part) for i, part in pairs if i.id in needed]
        if not needed_pairs:
            columns = [pair for pair in pairs if isinstance(pair[1].unnest(), exp.Column)]
            needed_pairs = (columns or pairs)[:1]
        fields, expressions = (
            tuple(i for i, _ in needed_pairs),
            tuple(part for _, part in needed_pairs),
        )
        child = self.prune(node.input, _referenced(expressions))
        return _replace_changed(node, input=child, fields=fields, expressions=expressions)

    def _prune_explode(self, node: n.Explode, needed: ColumnIds) -> n.Node:
        generated = frozenset(node.generated)
        child = self.prune(node.input, (needed - generated) | _referenced([node.generator]))
        return _replace_changed(
            node, input=child, fields=_fields_with(node.fields, _ids_of(child) | generated)
        )

    def _prune_window(self, node: n.Window, needed: ColumnIds) -> n.Node:
        added = node.fields[-3:]
        read = (needed - {item.id for item in added}) | _referenced([node.time])
        child = self._prune_exactly(node.input, read) if node.holds_sessions else None
        child = child or self.prune(node.input, self._needed_input(node, read))
        fields = (*_fields_with(node.fields[:-3], _ids_of(child)), *added)
        return _replace_changed(node, input=child, fields=fields)

    def _prune_over(self, node: n.Over, needed: ColumnIds) -> n.Node:
        if node.input.changelog is not ChangelogKind.APPEND:
            # As in top-N, a retraction could remove a row that differs only in a dropped column.
            return self._keep_all_columns(node, needed)
        added = node.fields[len(node.input.fields) :]
        pairs = list(zip(added, node.functions, strict=True))
        needed_pairs = [(item, part) for item, part in pairs if item.id in needed] or pairs[:1]
        functions = tuple(part for _, part in needed_pairs)
        read = (needed - {item.id for item in added}) | _referenced(functions)
        child = self._prune_exactly(node.input, self._needed_input(node, read))
        fields = (*_fields_with(node.fields, _ids_of(child)), *(item for item, _ in needed_pairs))
        return _replace_changed(node, input=child, fields=fields, functions=functions)

    def _prune_match(self, node: n.Match, needed: ColumnIds) -> n.Node:
        """Keep the columns that conditions and measures read."""
        pairs = list(zip(node.fields[len(node.partition) :], node.measures, strict=True))
        needed_pairs = [(item, part) for item, part in pairs if item.id in needed]
        needed_pairs = needed_pairs or ([] if node.partition else pairs[:1])
        measures = tuple(part for _, part in needed_pairs)
        parts = [*node.conditions, *measures]
        trees = [tree for part in parts for tree in part.trees]
        read = _referenced([*node.partition, *node.order, *trees]) | {node.time_id}
        child = self.prune(node.input, self._needed_input(node, read))
        fields = (*node.key_fields, *(item for item, _ in needed_pairs))
        return _replace_changed(node, input=child, fields=fields, measures=measures)

    # Aggregates, top-N, joins and set operations

    def _prune_aggregate(self, node: n.Aggregate, needed: ColumnIds) -> n.Node:
        """Keep all keys, because they define the groups, and the columns that aggregates read."""
        results = node.fields[len(node.keys) :]
        pairs = list(zip(results, node.aggregates, strict=True))
        needed_pairs = [(item, call) for item, call in pairs if item.id in needed]
        needed_pairs = needed_pairs or ([] if node.keys else pairs[:1])
        calls = tuple(call for _, call in needed_pairs)
        read = self._needed_input(node, _referenced([*node.keys, *calls]))
        if node in self.late_operators:
            read |= _ids_of(node.late_rows(0))
        child = self.prune(node.input, read)
        fields = (*node.key_fields, *(item for item, _ in needed_pairs))
        return _replace_changed(node, input=child, fields=fields, aggregates=calls)

    def _prune_top_n(self, node: n.TopN, needed: ColumnIds) -> n.Node:
        if node.input.changelog is not ChangelogKind.APPEND:
            # A retraction could remove a row that differs only in a dropped column, and the order
            # of arrival of such rows matters for ties.
            return self._keep_all_columns(node, needed)
        read = _referenced([*node.partition, *node.order, node.limit])
        child = self._prune_exactly(
            node.input, self._needed_input(node, (needed & _ids_of(node.input)) | read)
        )
        rank = frozenset([node.rank_id]) if node.rank_id is not None else frozenset()
        return _replace_changed(
            node, input=child, fields=_fields_with(node.fields, _ids_of(child) | rank)
        )

    def _prune_join(self, node: n.Join, needed: ColumnIds) -> n.Node:
        trees = [node.condition, node.residual, node.as_of, node.match]
        trees += [tree for pair in node.key_pairs for tree in (pair.left, pair.right)]
        read = needed | _referenced(trees)
        if node.bounds is not None:
            read |= {node.bounds.left_id, node.bounds.right_id}
        if node.asof_condition is not None:
            read |= _referenced([node.asof_condition.left, node.asof_condition.right])
        if node.validity_id is not None:
            read |= {node.validity_id}
        left = self._side(node, 0, read)
        right = self._side(node, 1, read)
        sides = _ids_of(left) | (
            _ids_of(right) if node.how not in ("SEMI", "ANTI") else frozenset()
        )
        return _replace_changed(
            node, left=left, right=right, fields=_fields_with(node.fields, sides)
        )

    def _side(self, node: n.Join, side: int, read: ColumnIds) -> n.Node:
        child = node.inputs[side]
        picks_version = side == 1 and node.kind is n.JoinKind.ASOF
        if picks_version and child.changelog is not ChangelogKind.APPEND:
            # The last of tied rows matches, so rows that differ must stay distinguishable.
            return self.prune(child, _ids_of(child))
        if node in self.late_operators:
            return self.prune(child, _ids_of(child))
        return self._prune_exactly(child, read & _ids_of(child))

    def _prune_set_operation(self, node: n.SetOperation, needed: ColumnIds) -> n.Node:
        if not node.union_all:
            return self._keep_all_columns(node, needed)
        needed = needed or frozenset([_cheapest_column(node.fields)])
        indexes = [index for index, item in enumerate(node.fields) if item.id in needed]
        members = tuple(
            self._prune_exactly(member, frozenset(member.fields[index].id for index in indexes))
            for member in node.members
        )
        if any(len(member.fields) != len(indexes) for member in members):
            # A member needs a column that the others drop, but columns line up by position.
            return self._keep_all_columns(node, needed)
        fields = tuple(node.fields[index] for index in indexes)
        return _replace_changed(node, members=members, fields=fields)


_METHODS: dict[type[n.Node], Callable[[_Pruner, Any, ColumnIds], n.Node]] = {
    n.Scan: _Pruner._prune_scan,
    n.SideScan: _Pruner._prune_side_scan,
    n.LookupScan: _Pruner._prune_lookup_scan,
    n.StreamReference: _Pruner._prune_stream_reference,
    n.Emit: _Pruner._prune_emit,
    n.Filter: _Pruner._prune_filter,
    n.Limit: _Pruner._prune_limit,
    n.Sort: _Pruner._prune_sort,
    n.Hold: _Pruner._prune_hold,
    n.Normalize: _Pruner._prune_normalize,
    n.Project: _Pruner._prune_project,
    n.Explode: _Pruner._prune_explode,
    n.Window: _Pruner._prune_window,
    n.Over: _Pruner._prune_over,
    n.Match: _Pruner._prune_match,
    n.Aggregate: _Pruner._prune_aggregate,
    n.TopN: _Pruner._prune_top_n,
    n.Join: _Pruner._prune_join,
    n.SetOperation: _Pruner._prune_set_operation,
}


def _cheapest_column(fields: tuple[n.Field, ...]) -> str:
    """Return the column to keep if none is needed: rows must have one."""
    numbers = [item for item in fields if item.type in ("INT", "BIGINT", "TIMESTAMP")]
    return (numbers or list(fields))[0].id


def merge_projects(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Merge two adjacent projections, unless an expression would be evaluated more often."""
    if not isinstance(node, n.Project) or not isinstance(node.input, n.Project):
        return node
    child = node.input
    if node.subqueries or child.subqueries:
        return node
    mapping = {item.id: part for item, part in zip(child.fields, child.expressions, strict=True)}
    if not all(_is_evaluated_once(node, name, part) for name, part in mapping.items()):
        return node
    merged = tuple(substitute(part, mapping) for part in node.expressions)
    expressions = tuple(part for part in merged if part is not None)
    if len(expressions) < len(merged):
        return node
    return replace(node, input=child.input, expressions=expressions)


def _is_evaluated_once(above: n.Project, name: str, expression: exp.Expr) -> bool:
    """Return whether inlining a column evaluates its expression no more often."""
    uses: Counter[bool] = Counter()
    for tree in above.expressions:
        for use in tree.find_all(exp.Column):
            if use.name == name:
                # Inside a lambda it would be evaluated for each element.
                uses[use.find_ancestor(exp.Lambda) is not None] += 1
    if not uses or is_trivial(expression):
        return True
    return is_deterministic(expression) and uses[False] == 1 and not uses[True]


def remove_projects(node: n.Node, late_operators: LateOperators) -> n.Node:
    """Remove a projection that selects exactly the columns of its input."""
    if not isinstance(node, n.Project) or node.subqueries:
        return node
    child = node.input
    if len(node.fields) != len(child.fields):
        return node
    triples = zip(node.fields, node.expressions, child.fields, strict=True)
    # Names may differ: readers refer to columns by id.
    same = all(
        isinstance(part, exp.Column)
        and part.name == input_field.id
        and input_field.with_name(item.name) == item
        for item, part, input_field in triples
    )
    return child if same else node
