"""Spark SQL of a stage that feeds an operator: rows that are filtered out still tell the time.

Next to its own columns every row carries where it came from, its event time, and whether it
is still a row. A filter turns a row off instead of dropping it, because the event time of a dropped
row moves the watermark too. A row that is turned off evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, LIVE, MARK, NOW, ORIGIN, SIDE
from tidegate.physical.guard import Guard
from tidegate.physical.stage_sql import Leaf, SqlWriter, printed, window_bounds
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import volatile
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quoted

# Generators that give no row for an empty collection, and those that always give some.
_OF_COLLECTION = frozenset({"EXPLODE", "POSEXPLODE", "INLINE"})
_OUTER = {"EXPLODE_OUTER": "EXPLODE", "POSEXPLODE_OUTER": "POSEXPLODE", "INLINE_OUTER": "INLINE"}
_ALWAYS = frozenset({"STACK", "JSON_TUPLE"})
# The first rows of a task, and then every Nth.
_ROW = "(monotonically_increasing_id() & 8589934591)"
_SAMPLE = f"({_ROW} < 1000 OR {_ROW} % 128 = 0)"
_NONE: Mapping[str, str | None] = {}
GENERATORS = _OF_COLLECTION | _OUTER.keys() | _ALWAYS


def when_live(sql: str) -> str:
    """An expression that is computed for rows only."""
    return f"CASE WHEN {LIVE} THEN {sql} END"


class TickedWriter(SqlWriter):
    """Prints a stage with the hidden columns; its leaves have them already."""

    def __init__(
        self,
        leaf: Leaf,
        with_arrival: bool = False,
        with_now: bool = False,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(leaf)
        self.guard = guard
        self.carried: tuple[str, ...] = (ORIGIN, MARK, SIDE)
        self.carried += (ARRIVAL_FILE, ARRIVAL_ROW) if with_arrival else ()
        self.carried += (NOW,) if with_now else ()
        self.hidden = (*self.carried, LIVE)

    def child(self, node: n.Node) -> str:
        view = self.leaf(node)
        return quoted(view) if view is not None else super().child(node)

    def guarded(
        self, node: n.Node, expressions: Sequence[str], kinds: Mapping[str, str | None] = _NONE
    ) -> str:
        """The rows of a node for FROM; where failures do not stop, those that do not fail."""
        rows = self.child(node)
        return rows if self.guard is None else self.guard.below(rows, node, expressions, kinds)

    def _leaf(self, node: n.Node, view: str) -> str:
        return f"SELECT {', '.join(self.ids(node))} FROM {quoted(view)}"

    def _filter(self, node: n.Filter) -> str:
        kept = [*(quoted(item.id) for item in node.fields), *self._op(node), *self.carried]
        live = f"CASE WHEN {LIVE} THEN coalesce({printed(node.condition)}, false) ELSE false END"
        below = self.guarded(node.input, [printed(node.condition)])
        return f"SELECT {', '.join(kept)}, {live} AS {LIVE} FROM {below}"

    def _project(self, node: n.Project) -> str:
        if self.guard is None:
            return super()._project(node)
        kinds = {
            printed(tree): item.type
            for item, tree in zip(node.fields, node.expressions, strict=True)
            if not volatile(tree, {})
        }
        columns = [
            f"{self._projected(tree)} AS {quoted(item.id)}"
            for item, tree in zip(node.fields, node.expressions, strict=True)
        ]
        columns += [*self._op(node), *self.hidden]
        return f"SELECT {', '.join(columns)} FROM {self.guarded(node.input, [*kinds], kinds)}"

    def _projected(self, expression: exp.Expr) -> str:
        plain = isinstance(expression.unnest(), exp.Column | exp.Literal)
        return printed(expression) if plain else when_live(printed(expression))

    def _explode(self, node: n.Explode) -> str:
        names = ", ".join(quoted(name) for name in node.generated)
        name = ex.call_name(node.generator) or ""
        outer = node.outer or name in _OUTER
        name = _OUTER.get(name, name)
        arguments = [to_sql(part) for part in node.generator.expressions]
        below = self.guarded(node.input, arguments)
        live = LIVE
        if name in _OF_COLLECTION:
            if not outer:
                has = f"coalesce(size({arguments[0]}) > 0, false)"
                live = f"CASE WHEN {LIVE} THEN {has} ELSE false END"
            arguments[0] = when_live(arguments[0])
        call = f"{name.lower()}({', '.join(arguments)})"
        generated = set(node.generated)
        kept = [quoted(item.id) for item in node.fields if item.id not in generated]
        kept += self._op(node)
        own = [quoted(name) for name in node.generated]
        return (
            f"SELECT {', '.join([*kept, *own, *self.carried])}, {live} AS {LIVE} "
            f"FROM {below} LATERAL VIEW OUTER {call} generated AS {names}"
        )

    def _filters(self, node: n.Node) -> bool:
        return self.guard is not None or super()._filters(node)

    def _computed(self, sql: str) -> str:
        return when_live(sql)

    def _bounds(self, spec: n.WindowSpec, us: str) -> str:
        # A row that is turned off has no time, and so no window; it must stay all the same.
        return window_bounds(spec, us).replace("explode(", "explode_outer(", 1)

    def _hidden_where(self, condition: str) -> list[str]:
        return [*self.carried, f"{LIVE} AND {condition} AS {LIVE}"]

    def _only(self, node: n.Node, condition: str) -> str:
        live = f"{LIVE} AND coalesce({condition}, false) AS {LIVE}"
        return f"SELECT * EXCEPT ({LIVE}), {live} FROM {self.child(node)}"


class LastWriter(TickedWriter):
    """Prints the stage that feeds sinks: rows that are filtered out go, but for some of them, whose
    time is looked at (`samples`). So the time that is shown is never too late."""

    def __init__(
        self, leaf: Leaf, with_now: bool, samples: bool, guard: Guard | None = None
    ) -> None:
        super().__init__(leaf, with_now=with_now, guard=guard)
        self.samples = samples

    def _filter(self, node: n.Filter) -> str:
        condition = f"CASE WHEN {LIVE} THEN {printed(node.condition)} ELSE true END"
        rows = self.guarded(node.input, [printed(node.condition)])
        if not self.samples:
            columns = ", ".join(self.ids(node))
            return f"SELECT {columns} FROM {rows} WHERE {condition}"
        kept = [*(quoted(item.id) for item in node.fields), *self._op(node), *self.carried]
        below = [*kept, LIVE, f"coalesce({condition}, false) AS _tg_kept", f"{_SAMPLE} AS _tg_some"]
        inner = f"SELECT {', '.join(below)} FROM {rows}"
        columns = ", ".join([*kept, f"{LIVE} AND _tg_kept AS {LIVE}"])
        return f"SELECT {columns} FROM ({inner}) WHERE _tg_kept OR _tg_some"

    def _only(self, node: n.Node, condition: str) -> str:
        kept = f"CASE WHEN {LIVE} THEN {condition} ELSE true END"
        return f"SELECT * FROM {self.child(node)} WHERE {kept}"
