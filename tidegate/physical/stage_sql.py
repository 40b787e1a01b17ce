"""Spark SQL for plan nodes.

For a stage the leaves are views: sources and the outputs of operators. For finding types at
declaration time every node can be printed: the columns and types are those of the stream, while
the rows of session windows, temporal and ASOF joins are not (nobody runs that SQL).
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from tidegate.columns import NOW, OP
from tidegate.plan import nodes as n
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quoted
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind

Leaf = Callable[[n.Node], str | None]


def micros(sql: str) -> str:
    """A time as whole microseconds since 1970."""
    return f"unix_micros(CAST({sql} AS TIMESTAMP))"


def is_failure(sql: str, hashable: bool = True) -> str:
    """A condition, never NULL: whether an expression fails on a row.

    Spark has no TRY(expression), but `try_to_binary` gives NULL for whatever fails below it: what
    hashes to something did not fail. Hashing is cheap, but Spark does not hash everything.
    """
    seen = f"hash({sql})" if hashable else f"to_json(struct({sql} AS c))"
    return f"try_to_binary(CAST({seen} AS STRING), 'utf-8') IS NULL"


def carries_op(node: n.Node) -> bool:
    """Whether the rows of a node have the hidden column _op."""
    if isinstance(node, n.Scan):
        return node.source.carries_op
    if isinstance(node, n.Emit | n.Inlined | n.Project | n.Filter) and carries_op(node.input):
        return True
    return node.changelog is ChangelogKind.CHANGELOG


def gives_upserts(node: n.Node) -> bool:
    """Whether a stream gives out only the new rows of its keys, and `-D` for those that go."""
    return isinstance(node, n.Emit) and node.changelog is ChangelogKind.UPSERT


def filters_changes(node: n.Node) -> bool:
    """Whether an old row may pass and its new one not, or in another window."""
    if isinstance(node, n.Filter | n.Window | n.Hold | n.Over):
        return True
    through = isinstance(node, n.Emit | n.Project | n.Inlined | n.SetOperation | n.Explode)
    return through and any(filters_changes(child) for child in node.inputs)


class SqlWriter:
    """Prints a plan as one SELECT; `leaf` names the view of a node that is not to be entered.

    The columns of a view have the names of the fields, or with `by_id` their ids.
    """

    # Columns that every row has besides its own.
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
        # Operators print themselves with what is here, so this module cannot import them above.
        from tidegate.physical.registry import kind_of

        return kind_of(node).sql(node, self)

    def _leaf(self, node: n.Node, view: str) -> str:
        if self.by_id:
            columns = [quoted(f.id) for f in node.fields]
        else:
            columns = [f"{quoted(f.name)} AS {quoted(f.id)}" for f in node.fields]
        if carries_op(node):
            columns.append(OP)
        return f"SELECT {', '.join(columns)} FROM {quoted(view)}"

    def child(self, node: n.Node) -> str:
        return f"({self.write(node)})"

    def ids(self, node: n.Node) -> list[str]:
        return [*(quoted(item.id) for item in node.fields), *self._op(node), *self.hidden]

    def _inlined(self, node: n.Inlined) -> str:
        return self.write(node.input)

    def _filter(self, node: n.Filter) -> str:
        columns = ", ".join(self.ids(node))
        condition = printed(node.condition)
        return f"SELECT {columns} FROM {self.child(node.input)} WHERE {condition}"

    def _project(self, node: n.Project) -> str:
        columns = [
            f"{self._projected(expression)} AS {quoted(item.id)}"
            for item, expression in zip(node.fields, node.expressions, strict=True)
        ]
        columns += [*self._op(node), *self.hidden]
        return f"SELECT {', '.join(columns)} FROM {self.child(node.input)}"

    def _projected(self, expression: exp.Expr) -> str:
        return printed(expression)

    def _explode(self, node: n.Explode) -> str:
        names = ", ".join(quoted(name) for name in node.generated)
        outer = "OUTER " if node.outer else ""
        columns = ", ".join(self.ids(node))
        return (
            f"SELECT {columns} FROM {self.child(node.input)} LATERAL VIEW {outer}"
            f"{to_sql(node.generator)} generated AS {names}"
        )

    def _window(self, node: n.Window) -> str:
        """Assign windows with whole microseconds: exact, and right before 1970 too."""
        kept = [*(quoted(item.id) for item in node.input.fields), *self._op(node.input)]
        start, end, time = (quoted(item.id) for item in node.fields[-3:])
        at = self._now() if node.spec.processing_time else to_sql(node.time)
        taken = {item.id.lower() for item in node.input.fields}
        us, window = _free_name("_us", taken), _free_name("_window", taken)
        at = self._computed(micros(at))
        below = f"SELECT {', '.join([*kept, *self.hidden, f'{at} AS {us}'])} "
        below += f"FROM {self.child(node.input)}"
        bounds = self._bounds(node.spec, us)
        inner = [*kept, *self.hidden, us, f"{bounds} AS {window}"]
        columns = [
            *kept,
            *self._hidden_where(f"{us} IS NOT NULL"),
            f"timestamp_micros({window}.s) AS {start}",
            f"timestamp_micros({window}.e) AS {end}",
            f"timestamp_micros({window}.e - 1) AS {time}",
        ]
        return f"SELECT {', '.join(columns)} FROM (SELECT {', '.join(inner)} FROM ({below}))"

    # What rows carry besides their own columns

    def _op(self, node: n.Node) -> list[str]:
        return [OP] if carries_op(node) else []

    def _computed(self, sql: str) -> str:
        """An expression as it is computed for a row."""
        return sql

    def _now(self) -> str:
        """The processing time: that of the epoch, where there is one."""
        return f"timestamp_micros({NOW})" if NOW in self.hidden else "current_timestamp()"

    def _bounds(self, spec: n.WindowSpec, us: str) -> str:
        return window_bounds(spec, us)

    def _hidden_where(self, condition: str) -> list[str]:
        """The hidden columns of rows for which a condition holds."""
        return list(self.hidden)

    def _only(self, node: n.Node, condition: str) -> str:
        """The rows of a node for which a condition on _op holds."""
        return f"SELECT * FROM {self.child(node)} WHERE {condition}"

    def _filters(self, node: n.Node) -> bool:
        """Whether an old row may pass and its new one not."""
        return filters_changes(node)

    def _setoperation(self, node: n.SetOperation) -> str:
        """Members line up by position; an appended row of a mixed union is an insert."""
        with_op = carries_op(node)
        word = f" {node.operation}{' ALL' if node.all else ''} "
        parts = []
        for member in node.members:
            columns = [
                f"{quoted(theirs.id)} AS {quoted(ours.id)}"
                for ours, theirs in zip(node.fields, member.fields, strict=True)
            ]
            if with_op:
                columns.append(OP if carries_op(member) else f"'+I' AS {OP}")
            columns += self.hidden
            parts.append(f"SELECT {', '.join(columns)} FROM {self.child(member)}")
        return word.join(parts)

    def _emit(self, node: n.Emit) -> str:
        """EMIT CHANGES marks appended rows as inserts."""
        inner = node.input
        changes = node.clause is not None and node.clause.mode is EmitMode.CHANGES
        if carries_op(inner) and gives_upserts(node) and not self._filters(node):
            return self._only(inner, f"{OP} <> '-U'")
        if not changes or carries_op(inner):
            return self.write(inner)
        columns = [*(quoted(item.id) for item in node.fields), f"'+I' AS {OP}", *self.hidden]
        return f"SELECT {', '.join(columns)} FROM {self.child(inner)}"


def printed(tree: exp.Expr) -> str:
    """An expression as SQL. Subqueries in it only matter for types: such plans do not run yet."""

    def swap(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Exists) or (isinstance(part, exp.In) and part.args.get("query")):
            return exp.true()
        return exp.null() if isinstance(part, exp.Query) else part

    return to_sql(tree.copy().transform(swap) if tree.find(exp.Query) else tree)


def output_sql(
    node: n.Node, leaf: Leaf, writer: SqlWriter | None = None, extra: tuple[str, ...] = ()
) -> str:
    """The whole of a stage, with the names the user gave."""
    inner = (writer or SqlWriter(leaf)).write(node)
    columns = [f"{quoted(item.id)} AS {quoted(item.name)}" for item in node.fields]
    if carries_op(node):
        columns.append(OP)
    return f"SELECT {', '.join([*columns, *extra])} FROM ({inner})"


def _free_name(name: str, taken: set[str]) -> str:
    """A name that no column has."""
    while name in taken:
        name += "_"
    return name


def window_bounds(spec: n.WindowSpec, us: str = "_us") -> str:
    """struct(s, e) of the microseconds in `us`, exploded where a row has several windows."""
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
