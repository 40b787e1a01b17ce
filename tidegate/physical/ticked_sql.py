"""Spark SQL of a stage that feeds an operator: rows that are filtered out still tell the time.

Next to its own columns every row carries where it came from, how far time is there, and whether it
is still a row. A filter turns a row off instead of dropping it, because the event time of a dropped
row moves the watermark too. What is turned off computes nothing.
"""

from __future__ import annotations

from sqlglot import exp

from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, LATE, LIVE, MARK, OP, ORIGIN
from tidegate.errors import RunError
from tidegate.physical.stage_sql import (
    Leaf,
    SqlWriter,
    _free_name,
    _printed,
    carries_op,
    filters_changes,
    gives_upserts,
    quoted,
    window_bounds,
)
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.sql.statements import EmitMode

# Generators that give no row for an empty collection, and those that always give some.
_OF_COLLECTION = frozenset({"EXPLODE", "POSEXPLODE", "INLINE"})
_OUTER = {"EXPLODE_OUTER": "EXPLODE", "POSEXPLODE_OUTER": "POSEXPLODE", "INLINE_OUTER": "INLINE"}
_ALWAYS = frozenset({"STACK", "JSON_TUPLE"})


def when_live(sql: str) -> str:
    """An expression that is computed for rows only."""
    return f"CASE WHEN {LIVE} THEN {sql} END"


class TickedWriter(SqlWriter):
    """Prints a stage with the hidden columns; its leaves have them already."""

    def __init__(self, leaf: Leaf, with_late: bool = False, with_arrival: bool = False) -> None:
        super().__init__(leaf)
        # Rows that came too late for an operator below travel along as they are.
        self.carried: tuple[str, ...] = (ORIGIN, MARK, LATE) if with_late else (ORIGIN, MARK)
        self.carried += (ARRIVAL_FILE, ARRIVAL_ROW) if with_arrival else ()
        self.hidden = (*self.carried, LIVE)

    def child(self, node: n.Node) -> str:
        view = self.leaf(node)
        return quoted(view) if view is not None else super().child(node)

    def _leaf(self, node: n.Node, view: str) -> str:
        columns = [f"{quoted(f.id)}" for f in node.fields]
        columns += [OP] if carries_op(node) else []
        return f"SELECT {', '.join([*columns, *self.hidden])} FROM {quoted(view)}"

    def _ids(self, node: n.Node) -> list[str]:
        return [*super()._ids(node), *self.hidden]

    def _values(self, node: n.Values) -> str:
        kinds = {ORIGIN: "INT", MARK: "BIGINT", LATE: "BINARY"}
        kinds |= {ARRIVAL_FILE: "STRING", ARRIVAL_ROW: "BIGINT"}
        nothing = [f"CAST(NULL AS {kinds[name]}) AS {name}" for name in self.carried]
        constant = ", ".join([*nothing, f"true AS {LIVE}"])
        return f"SELECT *, {constant} FROM ({super()._values(node)})"

    def _filter(self, node: n.Filter) -> str:
        kept = [*super()._ids(node), *self.carried]
        live = f"CASE WHEN {LIVE} THEN coalesce({_printed(node.condition)}, false) ELSE false END"
        return f"SELECT {', '.join(kept)}, {live} AS {LIVE} FROM {self.child(node.input)}"

    def _project(self, node: n.Project) -> str:
        if any(ex.has_generator(expression) for expression in node.expressions):
            raise RunError(
                "TG-501",
                "a generator such as explode in SELECT below an operator cannot run yet",
                hint="use LATERAL VIEW explode(…) t AS x.",
            )
        columns = [
            f"{_guarded(expression)} AS {quoted(item.id)}"
            for item, expression in zip(node.fields, node.expressions, strict=True)
        ]
        columns += [OP] if carries_op(node) else []
        return f"SELECT {', '.join([*columns, *self.hidden])} FROM {self.child(node.input)}"

    def _explode(self, node: n.Explode) -> str:
        names = ", ".join(quoted(name) for name in node.generated)
        name = ex.call_name(node.generator) or ""
        outer = node.outer or name in _OUTER
        name = _OUTER.get(name, name)
        if name not in _OF_COLLECTION | _ALWAYS:
            raise RunError("TG-501", f"{name.lower()} below an operator cannot run yet")
        arguments = [to_sql(part) for part in node.generator.expressions]
        live = LIVE
        if name in _OF_COLLECTION:
            if not outer:
                has = f"coalesce(size({arguments[0]}) > 0, false)"
                live = f"CASE WHEN {LIVE} THEN {has} ELSE false END"
            arguments[0] = when_live(arguments[0])
        call = f"{name.lower()}({', '.join(arguments)})"
        generated = set(node.generated)
        kept = [quoted(item.id) for item in node.fields if item.id not in generated]
        kept += [OP] if carries_op(node) else []
        own = [quoted(name) for name in node.generated]
        return (
            f"SELECT {', '.join([*kept, *own, *self.carried])}, {live} AS {LIVE} "
            f"FROM {self.child(node.input)} LATERAL VIEW OUTER {call} generated AS {names}"
        )

    def _window(self, node: n.Window) -> str:
        spec = node.spec
        kept = [quoted(item.id) for item in node.input.fields]
        kept += [OP] if carries_op(node.input) else []
        kept += self.carried
        start, end, time = (quoted(item.id) for item in node.fields[-3:])
        taken = {item.id.lower() for item in node.input.fields}
        us, window = _free_name("_us", taken), _free_name("_window", taken)
        at = when_live(f"unix_micros(CAST({to_sql(node.time)} AS TIMESTAMP))")
        below = f"SELECT {', '.join([*kept, LIVE, f'{at} AS {us}'])} "
        below += f"FROM {self.child(node.input)}"
        # A row that is turned off has no time, and so no window; it must stay all the same.
        bounds = window_bounds(spec, us).replace("explode(", "explode_outer(", 1)
        inner = f"SELECT {', '.join([*kept, LIVE, us, f'{bounds} AS {window}'])} FROM ({below})"
        return (
            f"SELECT {', '.join(kept)}, {LIVE} AND {us} IS NOT NULL AS {LIVE}, "
            f"timestamp_micros({window}.s) AS {start}, "
            f"timestamp_micros({window}.e) AS {end}, timestamp_micros({window}.e - 1) AS {time} "
            f"FROM ({inner})"
        )

    def _setoperation(self, node: n.SetOperation) -> str:
        with_op = carries_op(node)
        parts = []
        for member in node.members:
            columns = [
                f"{quoted(theirs.id)} AS {quoted(ours.id)}"
                for ours, theirs in zip(node.fields, member.fields, strict=True)
            ]
            if with_op:
                columns.append(OP if carries_op(member) else f"'+I' AS {OP}")
            parts.append(f"SELECT {', '.join([*columns, *self.hidden])} FROM {self.child(member)}")
        return " UNION ALL ".join(parts)

    def _emit(self, node: n.Emit) -> str:
        inner = node.input
        changes = node.clause is not None and node.clause.mode is EmitMode.CHANGES
        if carries_op(inner) and gives_upserts(node) and not filters_changes(node):
            return (
                f"SELECT * EXCEPT ({LIVE}), {LIVE} AND coalesce({OP}, '') <> '-U' AS {LIVE} "
                f"FROM {self.child(inner)}"
            )
        if not changes or carries_op(inner):
            return self.write(inner)
        columns = [quoted(item.id) for item in node.fields]
        return (
            f"SELECT {', '.join(columns)}, '+I' AS {OP}, {', '.join(self.hidden)} "
            f"FROM {self.child(inner)}"
        )


def _guarded(expression: exp.Expr) -> str:
    if isinstance(expression.unnest(), exp.Column | exp.Literal):
        return _printed(expression)
    return when_live(_printed(expression))
