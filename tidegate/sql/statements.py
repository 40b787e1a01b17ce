"""The statements of the SQL dialect, with their spans in the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sqlglot import exp

from tidegate.types import Span


class EmitMode(Enum):
    """When a query emits its rows."""

    WINDOW_CLOSE = "EMIT ON WINDOW CLOSE"
    UPDATE = "EMIT ON UPDATE"
    CHANGES = "EMIT CHANGES"
    EVERY = "EMIT EVERY"
    # LATE DATA TO without EMIT: rows are emitted as without a clause.
    DEFAULT = "LATE DATA TO"


class ObjectKind(Enum):
    """The kinds of objects that can be declared, shown and dropped."""

    SOURCE = "SOURCE"
    STREAM = "STREAM"
    SINK = "SINK"
    LOOKUP_TABLE = "LOOKUP TABLE"
    FUNCTION = "FUNCTION"


@dataclass(frozen=True)
class EmitClause:
    """The EMIT clause of a query."""

    mode: EmitMode
    span: Span
    every_us: int | None = None
    lateness_us: int | None = None
    lateness_span: Span | None = None
    late_to: str | None = None
    late_to_span: Span | None = None


@dataclass(frozen=True)
class Query:
    """A query with its EMIT clause."""

    tree: exp.Expr
    emit: EmitClause | None
    span: Span


@dataclass(frozen=True)
class Option:
    """One `name = value` of a WITH clause; the value is not parsed yet."""

    name: str
    value: str = field(repr=False)
    span: Span
    value_span: Span


@dataclass(frozen=True)
class ColumnDef:
    """A declared column: a field, a computed expression, or a metadata field of a record."""

    name: str
    type: str | None
    span: Span
    not_null: bool = False
    computed: exp.Expr | None = None
    metadata: str | None = None


@dataclass(frozen=True)
class WatermarkDef:
    """`WATERMARK FOR column AS column - delay`."""

    column: str
    delay_us: int
    span: Span
    column_span: Span


@dataclass(frozen=True)
class Statement:
    """Base class of statements: the text and its span in the script."""

    text: str
    span: Span


@dataclass(frozen=True)
class Declaration(Statement):
    """A statement that declares a named object."""

    name: str
    name_span: Span
    options: tuple[Option, ...] = ()
    if_not_exists: bool = False


@dataclass(frozen=True)
class CreateSource(Declaration):
    columns: tuple[ColumnDef, ...] = ()
    primary_key: tuple[str, ...] = ()
    primary_key_span: Span | None = None
    watermark: WatermarkDef | None = None


@dataclass(frozen=True)
class CreateLookupTable(Declaration):
    columns: tuple[ColumnDef, ...] = ()
    primary_key: tuple[str, ...] = ()
    primary_key_span: Span | None = None


@dataclass(frozen=True, kw_only=True)
class CreateStream(Declaration):
    """CREATE STREAM, or CREATE MATERIALIZED VIEW: a stream whose rows are stored for queries."""

    query: Query
    materialized: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class ParameterDef:
    """A parameter of a function."""

    name: str
    type: str
    span: Span


@dataclass(frozen=True, kw_only=True)
class CreateFunction(Declaration):
    """CREATE FUNCTION: either `body`, an SQL expression, or `python`, `module:function`."""

    parameters: tuple[ParameterDef, ...]
    returns: str | None
    body: exp.Expr | None = None
    python: str | None = None
    definition_span: Span
    or_replace: bool = False


@dataclass(frozen=True, kw_only=True)
class CreateSink(Declaration):
    source: str
    source_span: Span


@dataclass(frozen=True)
class Insert(Statement):
    """INSERT INTO a memory source; `tree` is the VALUES or SELECT."""

    target: str
    target_span: Span
    columns: tuple[str, ...]
    tree: exp.Expr


@dataclass(frozen=True)
class Drop(Statement):
    kind: ObjectKind
    name: str
    name_span: Span
    if_exists: bool = False


@dataclass(frozen=True)
class AlterStream(Statement):
    """ALTER STREAM name SET (option = value, …)."""

    name: str
    name_span: Span
    options: tuple[Option, ...]


@dataclass(frozen=True)
class Show(Statement):
    """SHOW SOURCES | STREAMS | … | STATUS | SETTINGS | CHECKPOINTS."""

    kind: str


@dataclass(frozen=True)
class ShowCreate(Statement):
    name: str
    name_span: Span


@dataclass(frozen=True)
class Describe(Statement):
    name: str
    name_span: Span


@dataclass(frozen=True)
class Explain(Statement):
    """EXPLAIN [LOGICAL] SELECT … or STREAM name: either `query` or `stream` is set.

    With `logical`, the plan before optimization is shown.
    """

    query: Query | None = None
    stream: str | None = None
    stream_span: Span | None = None
    logical: bool = False


@dataclass(frozen=True)
class CreateCheckpoint(Statement):
    """CHECKPOINT ['name']."""

    name: str | None = None
    name_span: Span | None = None


@dataclass(frozen=True)
class DropCheckpoint(Statement):
    name: str
    name_span: Span
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class Restore(Statement):
    """RESTORE FROM CHECKPOINT 'name' | epoch: either `name` or `epoch` is set."""

    epoch: int | None = None
    name: str | None = None
    name_span: Span
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Set(Statement):
    key: str
    value: str
    key_span: Span
    value_span: Span


@dataclass(frozen=True)
class Script:
    """The valid statements of a text, and the errors of the others."""

    text: str
    statements: tuple[Statement, ...]
    errors: tuple[Exception, ...] = field(default=())
    file: str | None = None
    # Names that invalid statements would declare.
    invalid_names: tuple[str, ...] = ()
