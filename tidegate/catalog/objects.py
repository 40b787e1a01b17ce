"""The things that can be declared."""

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
    """A column of a source; the type of a computed one is known once Spark has seen it."""

    name: str
    type: str | None
    not_null: bool = False
    computed: exp.Expr | None = None
    # What the connector tells of a record besides its content: its offset, say.
    metadata: str | None = None


@dataclass(frozen=True)
class Watermark:
    """The event time of a source and how long it waits for rows that are out of order."""

    column: str
    delay_us: int


@dataclass(frozen=True)
class ScriptOrigin:
    """The script a statement came from, so that errors can point into it."""

    text: str
    file: str | None

    @property
    def folder(self) -> str:
        """Where its relative paths begin: beside the file, or in the current directory."""
        return os.path.dirname(self.file or "")  # noqa: PTH120 - "" stays ""


@dataclass(frozen=True)
class Declared:
    """What all declared things have."""

    name: str
    options: Options
    statement: st.Declaration
    origin: ScriptOrigin

    @property
    def kind(self) -> st.ObjectKind:
        raise TypeError(f"{type(self).__name__} has no kind")

    def create_sql(self) -> str:
        """The statement that declares it, secrets masked."""
        return without_secrets(self.statement.text) + ";"


@dataclass(frozen=True)
class Source(Declared):
    connector: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    watermark: Watermark | None
    bounded: bool
    insertable: bool
    # Whether its partitions have watermarks of their own.
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
        """Whether its rows say in _op what they do."""
        return bool(self.options["changelog"])

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns that the connector reads: all but the computed ones."""
        return tuple(column for column in self.columns if column.computed is None)

    @property
    def record_columns(self) -> tuple[Column, ...]:
        """The columns that stand in a record."""
        return tuple(column for column in self.stored_columns if column.metadata is None)


@dataclass(frozen=True)
class LookupTable(Declared):
    connector: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    insertable: bool
    # Whether all who ask in one epoch find the same.
    consistent_in_epoch: bool

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.LOOKUP_TABLE

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        return self.columns

    @property
    def carries_op(self) -> bool:
        """Whether rows are inserted with _op, so that they can be taken away again."""
        return bool(self.options.get("changelog"))

    @property
    def watermark(self) -> None:
        return None


@dataclass(frozen=True)
class Stream(Declared):
    """A named query; `plan` is the bound logical plan (a node of the plan layer).

    `typed` is the plan that runs (of the physical layer), once Spark has found its types.
    """

    query: st.Query
    plan: Any
    typed: Any = None

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.STREAM

    @property
    def pipeline(self) -> str:
        given = self.options["pipeline"]
        return str(given).lower() if given else DEFAULT_PIPELINE

    @property
    def on_error(self) -> str:
        """What happens to a row on which an expression fails."""
        return str(self.options["on_error"])

    @property
    def materialized(self) -> bool:
        """Whether its rows are kept to be queried."""
        return isinstance(self.statement, st.CreateStream) and self.statement.materialized


class SideKind(Enum):
    """What a stream holds that another declaration brings along."""

    DEAD_LETTERS = "dead letters"
    LATE_ROWS = "late rows"
    FAILED_ROWS = "rows that failed"


@dataclass(frozen=True)
class SideStream(Declared):
    """A stream that another declaration brings along: dead letters, late rows."""

    columns: tuple[Column, ...]
    parent: str
    holds: SideKind
    # Whether late rows may be changes: without _op nobody can tell what they do.
    changes: bool = False
    # What makes late rows: a canonical text of the operators that find them, once typed.
    canonical_form: str = ""

    @property
    def is_late(self) -> bool:
        return self.holds is SideKind.LATE_ROWS

    @property
    def of_stream(self) -> bool:
        """Whether a stream gives it out, and not a source."""
        return self.holds is not SideKind.DEAD_LETTERS

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.STREAM

    def create_sql(self) -> str:
        return f"-- {self.holds.value} of {self.parent}, declared with it\n" + super().create_sql()


@dataclass(frozen=True)
class Sink(Declared):
    connector: str
    source: str
    # Whether nobody declared it: it is there for whoever looks at the stream now.
    implied: bool = False

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.SINK


@dataclass(frozen=True)
class Parameter:
    """What a function takes; without a type, whatever it is given."""

    name: str
    type: str | None


@dataclass(frozen=True)
class PythonCode:
    """A function of Python: what it does is known by its version."""

    call: Callable[..., Any] = field(compare=False, repr=False)
    version: str
    # Whether it takes values, one row at a time, and not arrays.
    scalar: bool = False
    deterministic: bool = True


@dataclass(frozen=True)
class Function(Declared):
    """A function of the user's own: an expression over its parameters, or Python."""

    parameters: tuple[Parameter, ...]
    returns: str | None
    # The expression, bound: a parameter is a column of its name, other functions are written out.
    body: exp.Expr | None = None
    python: PythonCode | None = None

    @property
    def kind(self) -> st.ObjectKind:
        return st.ObjectKind.FUNCTION

    @property
    def signature(self) -> str:
        """How it is called, and what it gives."""
        listed = ", ".join(f"{p.name} {p.type}" if p.type else p.name for p in self.parameters)
        return f"{self.name}({listed})" + (f" RETURNS {self.returns}" if self.returns else "")

    @property
    def registered(self) -> str:
        """The name by which Spark knows a function of Python: another version is another one."""
        assert self.python is not None, f"{self.name} is an expression"
        return registered_name(self.name, self.python.version, self.python.deterministic)

    def create_sql(self) -> str:
        if not self.statement.text:
            return f"-- {self.signature}: declared in Python, with db.function"
        return super().create_sql()


def functions_in(declared: Declared) -> set[str]:
    """The names of the functions that a declaration calls as it was written, in lower case."""
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
    """The names of all functions in some expressions, in lower case."""
    found = (name for tree in trees if tree is not None for name, _ in calls(tree))
    return [name.lower() for name in found]


def tables_in(tree: exp.Expr, hidden: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of the tables a query reads, window table functions included.

    A common table expression hides a table of its name, but not from itself.
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
