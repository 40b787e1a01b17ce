"""The logical nodes. Columns have ids that are unique in a plan; expressions refer to ids only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sqlglot import exp

from tidegate.catalog.objects import LookupTable, SideStream, Source
from tidegate.sql.statements import Emit as EmitClause
from tidegate.types import Span, format_duration


class Role(Enum):
    """What a column means to time; everything but PLAIN is moved by the watermark."""

    PLAIN = "plain"
    TIME = "event time"
    WINDOW_START = "window start"
    WINDOW_END = "window end"


class WindowKind(Enum):
    TUMBLE = "TUMBLE"
    HOP = "HOP"
    SESSION = "SESSION"
    CUMULATE = "CUMULATE"


class JoinKind(Enum):
    """How a join is bounded, which decides the operator that runs it."""

    INTERVAL = "interval"
    WINDOW = "window"
    TEMPORAL = "temporal"
    ASOF = "asof"
    LOOKUP = "lookup"
    REGULAR = "regular"


@dataclass(frozen=True)
class WindowSpec:
    """A window function with its sizes in microseconds; `slide_us` is the step of CUMULATE."""

    kind: WindowKind
    size_us: int
    slide_us: int
    offset_us: int = 0
    processing_time: bool = False

    def __post_init__(self) -> None:
        assert self.size_us > 0 and self.slide_us > 0, "windows have a length"

    def __str__(self) -> str:
        sizes = [format_duration(self.size_us)]
        if self.kind in (WindowKind.HOP, WindowKind.CUMULATE):
            sizes.insert(0, format_duration(self.slide_us))
        if self.offset_us:
            sizes.append(f"offset {format_duration(self.offset_us)}")
        clock = ", processing time" if self.processing_time else ""
        return f"{self.kind.value}({', '.join(sizes)}{clock})"


@dataclass(frozen=True)
class Field:
    """A column of a node's output."""

    id: str
    name: str
    type: str | None = None
    role: Role = Role.PLAIN
    window: WindowSpec | None = None
    volatile: bool = False
    nullable: bool = True

    def renamed(self, name: str) -> Field:
        return replace(self, name=name)

    @property
    def fixed_length(self) -> bool:
        """Whether it is an end of a window whose other end follows from it."""
        return self.window is not None and self.window.kind in (WindowKind.TUMBLE, WindowKind.HOP)

    @property
    def window_by_clock(self) -> bool:
        """Whether it belongs to a window of processing time."""
        return self.window is not None and self.window.processing_time

    @property
    def on_time(self) -> bool:
        """Whether it is the event time: rows come before the watermark passes its value.

        The start of a window is not: its rows may come until the watermark passes the end.
        """
        if self.window_by_clock:
            return False
        return self.role in (Role.TIME, Role.WINDOW_END)

    @property
    def closes(self) -> bool:
        """Whether the watermark says when no more rows with its value can come.

        The start of a session does not: the session may go on for as long as it likes.
        """
        if self.role is Role.WINDOW_START and self.window is not None:
            return self.window.kind is not WindowKind.SESSION
        return self.role is not Role.PLAIN


@dataclass(frozen=True, eq=False)
class Node:
    """A node has inputs and output fields; `span` is its place in the user's SQL."""

    fields: tuple[Field, ...]
    span: Span | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    def with_inputs(self, *inputs: Node) -> Node:
        """The same node over other inputs with the same fields."""
        assert len(inputs) == len(self.inputs), f"{self.label()} takes {len(self.inputs)} inputs"
        return self

    def label(self) -> str:
        """A short name for plan paths, such as Source(bids)."""
        return type(self).__name__

    def field(self, column_id: str) -> Field:
        return next(item for item in self.fields if item.id == column_id)


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """Reads a source."""

    source: Source = field(kw_only=True)

    def label(self) -> str:
        return f"Source({self.source.name})"


@dataclass(frozen=True, eq=False)
class SideScan(Node):
    """Reads the dead letters or late rows that belong to another declaration."""

    side: SideStream = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.side.name})"


@dataclass(frozen=True, eq=False)
class LookupScan(Node):
    """A lookup table; only the right side of a lookup join can be one."""

    table: LookupTable = field(kw_only=True)

    def label(self) -> str:
        return f"LookupTable({self.table.name})"


@dataclass(frozen=True, eq=False)
class Values(Node):
    """Constant rows: VALUES, or the one row of a SELECT without FROM."""

    rows: tuple[tuple[exp.Expr, ...], ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """A node with one input."""

    input: Node = field(kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    def with_inputs(self, *inputs: Node) -> Node:
        (new,) = inputs
        return replace(self, input=new)


@dataclass(frozen=True, eq=False)
class Inlined(Unary):
    """Another stream, put in place of its name."""

    name: str = field(kw_only=True)

    def label(self) -> str:
        return f"Stream({self.name})"


@dataclass(frozen=True, eq=False)
class Filter(Unary):
    condition: exp.Expr = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, eq=False)
class Project(Unary):
    """Computes each output field from the input; `expressions` line up with `fields`."""

    expressions: tuple[exp.Expr, ...] = field(kw_only=True)
    subqueries: tuple[Node, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        assert len(self.fields) == len(self.expressions), "one expression a field"


@dataclass(frozen=True, eq=False)
class Explode(Unary):
    """LATERAL VIEW: every input row once per row of a generator function."""

    generator: exp.Expr = field(kw_only=True)
    outer: bool = field(default=False, kw_only=True)
    generated: tuple[str, ...] = field(kw_only=True)
    # Whether it copies rows for the sets of a GROUP BY.
    of_sets: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, eq=False)
class Window(Unary):
    """Puts every row into its windows: adds window_start, window_end and window_time."""

    spec: WindowSpec = field(kw_only=True)
    time: exp.Expr = field(kw_only=True)
    time_id: str | None = field(kw_only=True)
    # In GROUP BY, sessions are per key: the aggregate makes them, from one window a row.
    grouped: bool = field(default=False, kw_only=True)

    @property
    def makes_sessions(self) -> bool:
        """Whether this node itself must wait for a session to end."""
        return self.spec.kind is WindowKind.SESSION and not self.grouped

    def label(self) -> str:
        return f"Window({self.spec})"


@dataclass(frozen=True, eq=False)
class Hold(Unary):
    """Keeps rows until their window closes: EMIT ON WINDOW CLOSE without aggregates.

    Rows without a window wait until the watermark has passed their event time.
    """

    spec: WindowSpec | None = field(kw_only=True)
    end_id: str = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Aggregate(Unary):
    """GROUP BY: `keys` then `aggregates` make up the fields."""

    keys: tuple[exp.Expr, ...] = field(kw_only=True)
    aggregates: tuple[exp.Expr, ...] = field(kw_only=True)
    window: WindowSpec | None = field(kw_only=True)
    emit: EmitClause | None = field(default=None, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @property
    def key_fields(self) -> tuple[Field, ...]:
        return self.fields[: len(self.keys)]

    @property
    def makes_sessions(self) -> bool:
        """Whether it merges rows into sessions, each key its own."""
        below = self.input
        return isinstance(below, Window) and below.grouped and below.spec.kind is WindowKind.SESSION

    @property
    def windowed(self) -> bool:
        """Whether the watermark closes its groups."""
        return any(item.closes for item in self.key_fields)


@dataclass(frozen=True)
class TimeBounds:
    """left time − right time lies in [lower, upper]; None is open."""

    left_id: str
    right_id: str
    lower_us: int | None
    upper_us: int | None


@dataclass(frozen=True, eq=False)
class KeyPair:
    """left = right in a join condition; null-safe if NULLs match each other."""

    left: exp.Expr
    right: exp.Expr
    null_safe: bool = False


@dataclass(frozen=True, eq=False)
class Join(Node):
    """A join; `equal` are its keys, `residual` is what is left of the condition."""

    left: Node = field(kw_only=True)
    right: Node = field(kw_only=True)
    how: str = field(kw_only=True)
    kind: JoinKind = field(kw_only=True)
    condition: exp.Expr | None = field(kw_only=True)
    equal: tuple[KeyPair, ...] = field(default=(), kw_only=True)
    bounds: TimeBounds | None = field(default=None, kw_only=True)
    residual: exp.Expr | None = field(default=None, kw_only=True)
    as_of: exp.Expr | None = field(default=None, kw_only=True)
    as_of_id: str | None = field(default=None, kw_only=True)
    match: exp.Expr | None = field(default=None, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # Whether pairs wait until the watermark says that the row they belong to gets no more.
    at_close: bool = field(default=False, kw_only=True)
    # The event times of both sides as the query would write them, for hints.
    times: tuple[str | None, str | None] = field(default=(None, None), kw_only=True)
    # The words of the query that ask for it, if it is not written as a join: IN, NOT EXISTS.
    predicate: str | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    def with_inputs(self, *inputs: Node) -> Node:
        left, right = inputs
        return replace(self, left=left, right=right)

    @property
    def matched(self) -> tuple[Field, Field] | None:
        """The columns of the left and the right that an ASOF join compares."""
        if self.match is None:
            return None
        sides = (self.match.args.get("this"), self.match.args.get("expression"))
        names = {side.name for side in sides if isinstance(side, exp.Column)}
        left = [item for item in self.left.fields if item.id in names]
        right = [item for item in self.right.fields if item.id in names]
        return (left[0], right[0]) if len(left) == len(right) == 1 else None

    @property
    def timed(self) -> bool:
        """Whether an ASOF join compares event times, so that the watermark makes it final."""
        return self.matched is not None and all(item.on_time for item in self.matched)

    def label(self) -> str:
        return f"Join({self.kind.value})"


@dataclass(frozen=True, eq=False)
class Over(Unary):
    """Window functions: the input's fields, then one field a function."""

    functions: tuple[exp.Expr, ...] = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class TopN(Unary):
    """The first rows of each partition; `limit` None keeps all of them, sorted."""

    partition: tuple[exp.Expr, ...] = field(kw_only=True)
    order: tuple[exp.Expr, ...] = field(kw_only=True)
    limit: exp.Expr | None = field(kw_only=True)
    function: str = field(default="ROW_NUMBER", kw_only=True)
    rank_id: str | None = field(default=None, kw_only=True)
    windowed: bool = field(default=False, kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)
    # EMIT ON WINDOW CLOSE: rows wait until the watermark makes them final.
    at_close: bool = field(default=False, kw_only=True)

    @property
    def keeps_one(self) -> bool:
        """Whether one row of each partition comes out, whatever its peers."""
        one = isinstance(self.limit, exp.Literal) and self.limit.name == "1"
        return one and self.function == "ROW_NUMBER"

    @property
    def first_by_time(self) -> Field | None:
        """The event time by which the first row of a partition is kept, if it is by that."""
        first = self.order[0] if self.order and self.keeps_one else None
        if not isinstance(first, exp.Ordered) or first.args.get("desc"):
            return None
        found = [item for item in self.input.fields if item.id == first.this.name]
        timed = isinstance(first.this, exp.Column) and found and found[0].on_time
        return found[0] if timed else None

    @property
    def closing_key(self) -> Field | None:
        """The column of the partition that tells from when on no row of it can come."""
        names = [part.name for part in self.partition if isinstance(part, exp.Column)]
        found = [item for item in self.input.fields if item.id in names and item.closes]
        if self.at_close and not self.windowed:
            # Rows of other times may come after the first one has.
            return self.first_by_time if self.first_by_time in found else None
        ends = [item for item in found if item.on_time]
        windows = [item for item in found if item.window and not item.window_by_clock]
        return next(iter([*ends, *windows]), None)


@dataclass(frozen=True, eq=False)
class Distinct(Unary):
    """Each row once, as soon as it comes; `at_close`: when the watermark has passed its time."""

    ttl_us: int | None = field(default=None, kw_only=True)
    at_close: bool = field(default=False, kw_only=True)

    @property
    def timed(self) -> bool:
        """Whether the watermark says when a row is forgotten; else a time to live, or nothing."""
        return any(item.closes for item in self.fields) and (self.ttl_us is None or self.at_close)


@dataclass(frozen=True, eq=False)
class Sort(Unary):
    order: tuple[exp.Expr, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Limit(Unary):
    count: exp.Expr | None = field(kw_only=True)
    offset: exp.Expr | None = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class SetOperation(Node):
    """UNION [ALL], INTERSECT, EXCEPT; columns line up by position."""

    members: tuple[Node, ...] = field(kw_only=True)
    operation: str = field(kw_only=True)
    all: bool = field(kw_only=True)
    ttl_us: int | None = field(default=None, kw_only=True)

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.members

    def with_inputs(self, *inputs: Node) -> Node:
        return replace(self, members=tuple(inputs))

    def label(self) -> str:
        return f"{self.operation.title()}{'All' if self.all else ''}"


@dataclass(frozen=True, eq=False)
class Normalize(Unary):
    """Turns upserts into a changelog by remembering the last row of each key."""

    key: tuple[str, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Emit(Unary):
    """The root of a stream: when its rows come out."""

    clause: EmitClause | None = field(kw_only=True)


STATELESS = (Scan, SideScan, Values, Inlined, Filter, Project, Explode, Emit)


def walk(node: Node, into_inlined: bool = True) -> list[Node]:
    """The node and everything below it, top down."""
    nodes = [node]
    if isinstance(node, Inlined) and not into_inlined:
        return nodes
    for child in node.inputs:
        nodes += walk(child, into_inlined)
    return nodes
