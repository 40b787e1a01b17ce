"""Columns that nobody needs are dropped: in sources, projections and below every operator.

From the root down each node is told which of its columns are needed, and hands on what it needs
itself. Where an operator keeps whole rows, a projection below it leaves only the needed columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import column, referenced_ids
from tidegate.plan.rewrite.expressions import is_deterministic, is_trivial, substitute
from tidegate.plan.rewrite.pushdown_filters import LateOperators
from tidegate.types import ChangelogKind

Ids = frozenset[str]


def prune_columns(plan: n.Node, judges: LateOperators) -> n.Node:
    return _Pruner(judges).prune(plan, _ids(plan))


def _ids(node: n.Node) -> Ids:
    return frozenset(item.id for item in node.fields)


def _used(trees: Iterable[exp.Expr | None]) -> Ids:
    return frozenset(name for tree in trees if tree is not None for name in referenced_ids(tree))


def _kept(fields: tuple[n.Field, ...], ids: Ids) -> tuple[n.Field, ...]:
    return tuple(item for item in fields if item.id in ids)


def _changed(node: n.Node, **changes: Any) -> n.Node:
    """The node with other parts, or itself if they are the same."""
    same = all(_same(getattr(node, name), value) for name, value in changes.items())
    return node if same else replace(node, **changes)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return one is other


@dataclass(frozen=True)
class _Pruner:
    judges: LateOperators

    def prune(self, node: n.Node, needed: Ids) -> n.Node:
        """The node with the needed columns, in their order; it may keep more than these."""
        if node.changelog is ChangelogKind.UPSERT:
            # The key says which row a row replaces.
            needed |= frozenset(node.key) if node.key is not None else _ids(node)
        method = getattr(self, f"_{type(node).__name__.lower()}", self._whole)
        pruned = method(node, needed)
        assert isinstance(pruned, n.Node), "a method gives the node"
        assert needed <= _ids(pruned), f"{node.label()} lost a column"
        return pruned

    def _exactly(self, node: n.Node, needed: Ids) -> n.Node:
        """The node with the needed columns only: a projection drops what it keeps beyond them."""
        needed = needed or frozenset([_cheapest(node.fields)])
        pruned = self.prune(node, needed)
        if pruned.changelog is ChangelogKind.UPSERT:
            needed |= frozenset(pruned.key or _ids(pruned))
        if isinstance(pruned, n.LookupScan) or _ids(pruned) == needed:
            return pruned
        fields = _kept(pruned.fields, needed)
        expressions = tuple(column(item) for item in fields)
        return n.Project(fields, input=pruned, expressions=expressions, span=node.span)

    def _input_of(self, node: n.Unary, needed: Ids) -> Ids:
        """What a node asks of its input; all of it where late rows are kept as they came."""
        if node not in self.judges:
            return needed
        return needed | (_ids(node.late_rows(0)) & _ids(node.input))

    def _whole(self, node: n.Node, needed: Ids) -> n.Node:
        """Nothing is known to be unused: DISTINCT, INTERSECT, and what is new here."""
        inputs = tuple(self.prune(child, _ids(child)) for child in node.inputs)
        return node if _same(inputs, node.inputs) else node.with_inputs(*inputs)

    # Leaves

    def _scan(self, node: n.Scan, needed: Ids) -> n.Node:
        """The event time and the primary key belong to every row of a source."""
        source = node.source
        names = {name.lower() for name in source.primary_key}
        names |= {source.watermark.column.lower()} if source.watermark is not None else set()
        return self._leaf(node, needed, names)

    def _sidescan(self, node: n.SideScan, needed: Ids) -> n.Node:
        return self._leaf(node, needed, set())

    def _lookupscan(self, node: n.LookupScan, needed: Ids) -> n.Node:
        return self._leaf(node, needed, {name.lower() for name in node.table.primary_key})

    def _leaf(self, node: n.Node, needed: Ids, names: set[str]) -> n.Node:
        kept = tuple(i for i in node.fields if i.id in needed or i.name.lower() in names)
        kept = kept or _kept(node.fields, frozenset([_cheapest(node.fields)]))
        return _changed(node, fields=kept)

    # Rows pass as they are

    def _passed(self, node: n.Unary, needed: Ids, asked: Ids) -> n.Node:
        below = self.prune(node.input, self._input_of(node, needed | asked))
        return _changed(node, input=below, fields=_kept(node.fields, _ids(below)))

    def _inlined(self, node: n.Inlined, needed: Ids) -> n.Node:
        return self._passed(node, needed, frozenset())

    def _emit(self, node: n.Emit, needed: Ids) -> n.Node:
        return self._passed(node, needed, frozenset())

    def _filter(self, node: n.Filter, needed: Ids) -> n.Node:
        if node.subqueries:
            return self._whole(node, needed)
        return self._passed(node, needed, _used([node.condition]))

    def _limit(self, node: n.Limit, needed: Ids) -> n.Node:
        return self._passed(node, needed, frozenset())

    def _sort(self, node: n.Sort, needed: Ids) -> n.Node:
        return self._rows(node, needed, _used(node.order))

    def _hold(self, node: n.Hold, needed: Ids) -> n.Node:
        if isinstance(node.input, n.Window):
            # It goes by the place of the columns that the window adds.
            added = frozenset(item.id for item in node.input.fields[-3:])
            return self._passed(node, needed, added)
        return self._rows(node, needed, frozenset([node.end_id]))

    def _normalize(self, node: n.Normalize, needed: Ids) -> n.Node:
        return self._rows(node, needed, frozenset(node.key))

    def _rows(self, node: n.Unary, needed: Ids, asked: Ids) -> n.Node:
        """An operator that keeps rows gets no column that nobody needs."""
        below = self._exactly(node.input, self._input_of(node, needed | asked))
        return _changed(node, input=below, fields=_kept(node.fields, _ids(below)))

    # Columns are computed

    def _project(self, node: n.Project, needed: Ids) -> n.Node:
        if node.subqueries:
            return self._whole(node, needed)
        pairs = list(zip(node.fields, node.expressions, strict=True))
        kept = [(i, part) for i, part in pairs if i.id in needed]
        if not kept:
            plain = [pair for pair in pairs if isinstance(pair[1].unnest(), exp.Column)]
            kept = (plain or pairs)[:1]
        fields, expressions = tuple(i for i, _ in kept), tuple(part for _, part in kept)
        below = self.prune(node.input, _used(expressions))
        return _changed(node, input=below, fields=fields, expressions=expressions)

    def _explode(self, node: n.Explode, needed: Ids) -> n.Node:
        own = frozenset(node.generated)
        below = self.prune(node.input, (needed - own) | _used([node.generator]))
        return _changed(node, input=below, fields=_kept(node.fields, _ids(below) | own))

    def _window(self, node: n.Window, needed: Ids) -> n.Node:
        added = node.fields[-3:]
        asked = (needed - {item.id for item in added}) | _used([node.time])
        below = self._exactly(node.input, asked) if node.makes_sessions else None
        below = below or self.prune(node.input, self._input_of(node, asked))
        fields = (*_kept(node.fields[:-3], _ids(below)), *added)
        return _changed(node, input=below, fields=fields)

    def _over(self, node: n.Over, needed: Ids) -> n.Node:
        if node.input.changelog is not ChangelogKind.APPEND:
            # As in top-N, rows that differ only in a dropped column would be taken for another.
            return self._whole(node, needed)
        added = node.fields[len(node.input.fields) :]
        pairs = list(zip(added, node.functions, strict=True))
        kept = [(item, part) for item, part in pairs if item.id in needed] or pairs[:1]
        functions = tuple(part for _, part in kept)
        asked = (needed - {item.id for item in added}) | _used(functions)
        below = self._exactly(node.input, self._input_of(node, asked))
        fields = (*_kept(node.fields, _ids(below)), *(item for item, _ in kept))
        return _changed(node, input=below, fields=fields, functions=functions)

    def _match(self, node: n.Match, needed: Ids) -> n.Node:
        """It sends on only what its conditions and measures ask for."""
        pairs = list(zip(node.fields[len(node.partition) :], node.measures, strict=True))
        kept = [(item, part) for item, part in pairs if item.id in needed]
        kept = kept or ([] if node.partition else pairs[:1])
        measures = tuple(part for _, part in kept)
        parts = [*node.conditions, *measures]
        trees = [tree for part in parts for tree in part.trees]
        asked = _used([*node.partition, *node.order, *trees]) | {node.time_id}
        below = self.prune(node.input, self._input_of(node, asked))
        fields = (*node.key_fields, *(item for item, _ in kept))
        return _changed(node, input=below, fields=fields, measures=measures)

    # Groups and pairs

    def _aggregate(self, node: n.Aggregate, needed: Ids) -> n.Node:
        """Keys stay, or there would be other groups; it sends on only what its calls ask for."""
        results = node.fields[len(node.keys) :]
        pairs = list(zip(results, node.aggregates, strict=True))
        kept = [(item, call) for item, call in pairs if item.id in needed]
        kept = kept or ([] if node.keys else pairs[:1])
        calls = tuple(call for _, call in kept)
        asked = self._input_of(node, _used([*node.keys, *calls]))
        if node in self.judges:
            asked |= _ids(node.late_rows(0))
        below = self.prune(node.input, asked)
        fields = (*node.key_fields, *(item for item, _ in kept))
        return _changed(node, input=below, fields=fields, aggregates=calls)

    def _topn(self, node: n.TopN, needed: Ids) -> n.Node:
        if node.input.changelog is not ChangelogKind.APPEND:
            # Rows that differ only in a dropped column would be retracted for one another, and
            # among rows that are equal in order the one that came first counts.
            return self._whole(node, needed)
        asked = _used([*node.partition, *node.order, node.limit])
        below = self._exactly(node.input, self._input_of(node, (needed & _ids(node.input)) | asked))
        rank = frozenset([node.rank_id]) if node.rank_id is not None else frozenset()
        return _changed(node, input=below, fields=_kept(node.fields, _ids(below) | rank))

    def _join(self, node: n.Join, needed: Ids) -> n.Node:
        trees = [node.condition, node.residual, node.as_of, node.match]
        trees += [tree for pair in node.key_pairs for tree in (pair.left, pair.right)]
        asked = needed | _used(trees)
        if node.bounds is not None:
            asked |= {node.bounds.left_id, node.bounds.right_id}
        if node.asof_condition is not None:
            asked |= _used([node.asof_condition.left, node.asof_condition.right])
        if node.validity_id is not None:
            asked |= {node.validity_id}
        left = self._side(node, 0, asked)
        right = self._side(node, 1, asked)
        sides = _ids(left) | (_ids(right) if node.how not in ("SEMI", "ANTI") else frozenset())
        return _changed(node, left=left, right=right, fields=_kept(node.fields, sides))

    def _side(self, node: n.Join, side: int, asked: Ids) -> n.Node:
        child = node.inputs[side]
        ordered = side == 1 and node.kind is n.JoinKind.ASOF
        if ordered and child.changelog is not ChangelogKind.APPEND:
            # Of rows that tie the last one counts: those that differ must not be taken for one.
            return self.prune(child, _ids(child))
        if node in self.judges:
            return self.prune(child, _ids(child))
        return self._exactly(child, asked & _ids(child))

    def _setoperation(self, node: n.SetOperation, needed: Ids) -> n.Node:
        if not node.union_all:
            return self._whole(node, needed)
        needed = needed or frozenset([_cheapest(node.fields)])
        places = [place for place, item in enumerate(node.fields) if item.id in needed]
        members = tuple(
            self._exactly(member, frozenset(member.fields[place].id for place in places))
            for member in node.members
        )
        if any(len(member.fields) != len(places) for member in members):
            # A member cannot drop what the others drop, and they line up by position.
            return self._whole(node, needed)
        fields = tuple(node.fields[place] for place in places)
        return _changed(node, members=members, fields=fields)


def _cheapest(fields: tuple[n.Field, ...]) -> str:
    """The column to keep where none is needed: rows must have one."""
    numbers = [item for item in fields if item.type in ("INT", "BIGINT", "TIMESTAMP")]
    return (numbers or list(fields))[0].id


# ---- Two projections in a row become one, unless something would be computed twice.


def merge_projects(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Project) or not isinstance(node.input, n.Project):
        return node
    below = node.input
    if node.subqueries or below.subqueries:
        return node
    mapping = {item.id: part for item, part in zip(below.fields, below.expressions, strict=True)}
    if not all(_once(node, name, part) for name, part in mapping.items()):
        return node
    merged = tuple(substitute(part, mapping) for part in node.expressions)
    expressions = tuple(part for part in merged if part is not None)
    if len(expressions) < len(merged):
        return node
    return replace(node, input=below.input, expressions=expressions)


def _once(above: n.Project, name: str, part: exp.Expr) -> bool:
    """Whether a column is computed no more often when it is computed where it is used."""
    uses: Counter[bool] = Counter()
    for tree in above.expressions:
        for use in tree.find_all(exp.Column):
            if use.name == name:
                # Inside a lambda it would be computed for each element.
                uses[use.find_ancestor(exp.Lambda) is not None] += 1
    if not uses or is_trivial(part):
        return True
    return is_deterministic(part) and uses[False] == 1 and not uses[True]


# ---- A projection that hands on the columns of its input, and no other, is left out.


def remove_projects(node: n.Node, judges: LateOperators) -> n.Node:
    if not isinstance(node, n.Project) or node.subqueries:
        return node
    below = node.input
    if len(node.fields) != len(below.fields):
        return node
    triples = zip(node.fields, node.expressions, below.fields, strict=True)
    # Names may differ: whoever reads the columns goes by their ids.
    same = all(
        isinstance(part, exp.Column) and part.name == theirs.id and _as(theirs, own) == own
        for own, part, theirs in triples
    )
    return below if same else node


def _as(item: n.Field, other: n.Field) -> n.Field:
    return item.renamed(other.name)
