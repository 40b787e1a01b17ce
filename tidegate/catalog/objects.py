"""Declared objects: sources, lookup tables, streams, side streams, sinks and functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidegate.catalog.options import Options
from tidegate.errors import without_secrets
from tidegate.sql import statements as st
from tidegate.sql.expressions import calls, registered_name
from tidegate.types import ChangelogKind

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFAULT_PIPELINE = "main"


@dataclass(frozen=True)
class Column:
    """A column of a source. The type of a computed column is known after Spark's analysis."""

    name: str
    type: str | None
    not_null: bool = False
    computed: exp.Expr | None = None
    # The metadata field of the connector that the column contains, such as the offset.
    metadata: str | None = None


@dataclass(frozen=True)
class Watermark:
    """The event-time column of a source, and the delay of its watermark."""

    column: str
    delay_us: int


@dataclass(frozen=True)
class ScriptText:
    """The script that contains a statement, so that errors can point into it."""

    text: str
    file: str | None

    @property
    def folder(self) -> str:
        """The directory that relative paths refer to: that of the script, or the current one."""
        return os.path.dirname(self.file or "")  # noqa: PTH120 - "" stays ""


@dataclass(frozen=True)
class Declared:
    """Base class of declared objects."""

    name: str
    options: Options
    statement: st.Declaration
    script: ScriptText

    @property
    def kind(self) -> st.ObjectKind:
        raise TypeError(f"{type(self).__name__} has no kind")

    def create_sql(self) -> str:
        """Return the CREATE statement, with secrets masked."""
        return without_secrets(self.statement.text) + ";"


@dataclass(frozen=True)
class Source(Declared):
    """A source of rows."""

    connector: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    watermark: Watermark | None
    bounded: bool
    insertable: bool
    # True if each partition has its own watermark.
    partitioned: bool = False

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.SOURCE

    @property
    def changelog(self) -> ChangelogKind:
        if self.primary_key:
            return ChangelogKind.UPSERT
        return ChangelogKind.CHANGELOG if self.options["changelog"] else ChangelogKind.APPEND

    @property
    def carries_op(self) -> bool:
        """Whether rows contain the column _op."""
        return bool(self.options["changelog"])

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns that the connector reads: all except computed ones."""
        return tuple(column for column in self.columns if column.computed is None)

    @property
    def record_columns(self) -> tuple[Column, ...]:
        """The columns that are part of a record: stored columns without metadata."""
        return tuple(column for column in self.stored_columns if column.metadata is None)


@dataclass(frozen=True)
class LookupTable(Declared):
    """A table for lookup joins."""

    connector: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    insertable: bool
    # True if all lookups of an epoch see the same rows.
    consistent_in_epoch: bool

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.LOOKUP_TABLE

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        return self.columns

    @property
    def carries_op(self) -> bool:
        """Whether rows are inserted with _op, so that they can be deleted."""
        return bool(self.options.get("changelog"))

    @property
    def watermark(self) -> None:
        return None


@dataclass(frozen=True)
class Stream(Declared):
    """A named query.

    `plan` is the bound logical plan, a node of `tidegate.plan`. `typed_plan` is the optimized plan
    with Spark's types, a `TypedPlan` of `tidegate.physical`.
    """

    query: st.Query
    plan: Any
    typed_plan: Any = None

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.STREAM

    @property
    def pipeline(self) -> str:
        name = self.options["pipeline"]
        return str(name).lower() if name else DEFAULT_PIPELINE

    @property
    def on_error(self) -> str:
        """The action for rows on which an expression fails."""
        return str(self.options["on_error"])

    @property
    def materialized(self) -> bool:
        """Whether the stream is a materialized view, whose rows are stored for queries."""
        return isinstance(self.statement, st.CreateStream) and self.statement.materialized


class SideKind(Enum):
    """The kind of rows in a side stream."""

    DEAD_LETTERS = "dead letters"
    LATE_ROWS = "late rows"
    FAILED_ROWS = "rows that failed"


@dataclass(frozen=True)
class SideStream(Declared):
    """A stream that another declaration creates: dead letters or late rows."""

    columns: tuple[Column, ...]
    parent: str
    side_kind: SideKind
    # True if late rows may be changes, so that they need the column _op.
    is_changelog: bool = False
    # For late rows, the canonical text of the operators that emit them, after analysis.
    canonical_form: str = ""

    @property
    def is_late(self) -> bool:
        return self.side_kind is SideKind.LATE_ROWS

    @property
    def is_from_stream(self) -> bool:
        """Whether a stream emits the rows; False for dead letters of a source."""
        return self.side_kind is not SideKind.DEAD_LETTERS

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.STREAM

    def create_sql(self) -> str:
        return (
            f"-- {self.side_kind.value} of {self.parent}, declared with it\n" + super().create_sql()
        )


@dataclass(frozen=True)
class Sink(Declared):
    """A sink of a stream."""

    connector: str
    stream: str
    # True if the sink was not declared, but added for a subscriber, a view or the console.
    implicit: bool = False

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.SINK


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function; without a type it accepts any type."""

    name: str
    type: str | None


@dataclass(frozen=True)
class PythonCode:
    """A Python function. Its version identifies its behavior."""

    call: Callable[..., Any] = field(compare=False, repr=False)
    version: str
    # True if the function receives the values of one row instead of arrays.
    scalar: bool = False
    deterministic: bool = True


@dataclass(frozen=True)
class Function(Declared):
    """A user-defined function: an SQL expression over its parameters, or Python."""

    parameters: tuple[Parameter, ...]
    returns: str | None
    # The bound expression: parameters are columns, and calls of other SQL functions are inlined.
    body: exp.Expr | None = None
    python: PythonCode | None = None

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.FUNCTION

    @property
    def signature(self) -> str:
        """The parameters and the result type."""
        parameters = ", ".join(f"{p.name} {p.type}" if p.type else p.name for p in self.parameters)
        return f"{self.name}({parameters})" + (f" RETURNS {self.returns}" if self.returns else "")

    @property
    def registered_name(self) -> str:
        """The name under which the function is registered in Spark; it contains the version."""
        assert self.python is not None, f"{self.name} is an SQL function"
        return registered_name(self.name, self.python.version, self.python.deterministic)

    def create_sql(self) -> str:
        if not self.statement.text:
            return f"-- {self.signature}: declared in Python, with db.function"
        return super().create_sql()


def functions_in(declared: Declared) -> set[str]:
    """Return the lower-case names of the functions that a declaration calls."""
    trees: list[exp.Expr | None] = []
    statement = declared.statement
    if isinstance(declared, Stream):
        trees.append(declared.query.tree)
    elif isinstance(declared, Source) and isinstance(statement, st.CreateSource):
        trees += [column.computed for column in statement.columns]
    elif isinstance(declared, Function) and isinstance(statement, st.CreateFunction):
        trees.append(statement.body)
    return set(functions_called(trees))


def functions_called(trees: Sequence[exp.Expr | None]) -> list[str]:
    """Return the lower-case names of all functions in expressions."""
    names = (name for tree in trees if tree is not None for name, _ in calls(tree))
    return [name.lower() for name in names]


def tables_in(tree: exp.Expr, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the names of the tables that a query reads, including those of window table functions.

    A common table expression hides a table of the same name, except in its own definition.
    """
    clause = tree.args.get("with_")
    for cte in clause.expressions if clause is not None else []:
        yield from tables_in(cte.this, hidden)
        hidden |= {cte.alias.lower()}
    if isinstance(tree, exp.Table):
        name = _table_name(tree)
        if name and name.lower() not in hidden:
            yield name
    for child in tree.iter_expressions():
        if child is not clause:
            yield from tables_in(child, hidden)


def _table_name(table: exp.Table) -> str:
    target = table.this
    if isinstance(target, exp.Anonymous) and target.expressions:
        first = target.expressions[0]
        return first.name if isinstance(first, exp.Column) else ""
    return table.name
