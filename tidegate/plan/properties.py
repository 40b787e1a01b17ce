"""What a plan promises: boundedness, watermark, changelog kind, key, and what bounds its state."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.statements import Emit, EmitMode
from tidegate.types import ChangelogKind, format_duration

APPEND, UPSERT, CHANGELOG = ChangelogKind.APPEND, ChangelogKind.UPSERT, ChangelogKind.CHANGELOG


@dataclass(frozen=True)
class Properties:
    """Read off a node once; nodes never change."""

    bounded: bool
    has_watermark: bool
    changelog: ChangelogKind
    key: tuple[str, ...] | None
    state: str | None

    @property
    def unbounded(self) -> bool:
        return not self.bounded


_KNOWN: WeakKeyDictionary[n.Node, Properties] = WeakKeyDictionary()


def properties(node: n.Node) -> Properties:
    """The properties of a node, worked out from those of its inputs."""
    known = _KNOWN.get(node)
    if known is None:
        known = _KNOWN[node] = _compute(node)
    return known


def _compute(node: n.Node) -> Properties:
    inputs = [properties(child) for child in node.inputs]
    bounded = _bounded(node, inputs)
    watermark = _has_watermark(node, inputs)
    kind, key = _changelog(node, inputs)
    return Properties(bounded, watermark, kind, key, _state(node, bounded, inputs))


def _bounded(node: n.Node, inputs: list[Properties]) -> bool:
    if isinstance(node, n.Scan):
        return node.source.bounded
    if isinstance(node, n.SideScan):
        return False
    if isinstance(node, n.Join) and node.kind is n.JoinKind.LOOKUP:
        return inputs[0].bounded
    return all(item.bounded for item in inputs)


def _has_watermark(node: n.Node, inputs: list[Properties]) -> bool:
    if isinstance(node, n.Scan):
        return node.source.watermark is not None
    if isinstance(node, n.Join) and node.kind is n.JoinKind.LOOKUP:
        return inputs[0].has_watermark
    # An input that ends holds nothing back for good: the others' watermark counts.
    moving = [item for item in inputs if not item.bounded or item.has_watermark]
    return bool(moving) and all(item.has_watermark for item in moving)


def _changelog(
    node: n.Node, inputs: list[Properties]
) -> tuple[ChangelogKind, tuple[str, ...] | None]:
    if isinstance(node, n.Scan):
        names = {key.lower() for key in node.source.primary_key}
        key = tuple(item.id for item in node.fields if item.name.lower() in names)
        return node.source.changelog, key or None
    if isinstance(node, n.SideScan | n.LookupScan | n.Values):
        return APPEND, None
    if isinstance(node, n.Project):
        return _project(node, inputs[0])
    if isinstance(node, n.Aggregate):
        return _aggregate(node, inputs[0])
    if isinstance(node, n.Join):
        return _join(node, inputs)
    if isinstance(node, n.TopN):
        return _top_n(node, inputs[0])
    if isinstance(node, n.Normalize):
        return CHANGELOG, node.key
    if isinstance(node, n.Distinct) and inputs[0].changelog is not APPEND:
        # The old row of a key goes and the new one comes, in no order: no key tells which stays.
        return CHANGELOG, None
    if isinstance(node, n.Window | n.Explode):
        return inputs[0].changelog, _key_of_copies(node, inputs[0].key)
    if isinstance(node, n.Emit):
        return _emit(node, inputs[0])
    if isinstance(node, n.SetOperation):
        append = all(item.changelog is APPEND for item in inputs)
        final = node.operation == "UNION" or all(item.bounded for item in inputs)
        return (APPEND if append and final else CHANGELOG), None
    return inputs[0].changelog, inputs[0].key


def _key_of_copies(
    node: n.Window | n.Explode, key: tuple[str, ...] | None
) -> tuple[str, ...] | None:
    """A row in several windows is told apart by their end; the rows of an array are not."""
    if key is None or isinstance(node, n.Explode):
        return None
    return (*key, node.fields[-2].id)


def _project(node: n.Project, below: Properties) -> tuple[ChangelogKind, tuple[str, ...] | None]:
    """A key survives a projection if all its columns are kept as they are."""
    kept: dict[str, str] = {}
    for item, expression in zip(node.fields, node.expressions, strict=True):
        bare = expression.unnest()
        if isinstance(bare, exp.Column):
            kept.setdefault(bare.name, item.id)
    if below.key is None or any(ex.has_generator(part) for part in node.expressions):
        return below.changelog, None
    key = [column for column in below.key if column in kept]
    lost = [node.input.field(column) for column in below.key if column not in kept]
    held = [node.input.field(column) for column in key]
    if all(_told_by(item, held, lost) for item in lost):
        return below.changelog, tuple(kept[column] for column in key)
    return below.changelog, None


def _told_by(item: n.Field, held: list[n.Field], lost: list[n.Field]) -> bool:
    """Whether the columns of a key that are held tell one that was dropped.

    One end of a window of fixed length tells the other; window_time and window_end tell each other.
    Two windows of the same shape in one key could be taken for each other, so they tell nothing.
    """
    same = [other for other in held if other.window == item.window]
    roles = [other.role for other in (*held, *lost) if other.window == item.window]
    if item.window is None or not same or len(set(roles)) < len(roles):
        return False
    ends = (n.Role.WINDOW_END, n.Role.TIME)
    return item.fixed_length or (item.role in ends and any(other.role in ends for other in same))


def _mode(emit: Emit | None) -> EmitMode | None:
    return emit.mode if emit is not None and emit.mode is not EmitMode.DEFAULT else None


def _aggregate(
    node: n.Aggregate, below: Properties
) -> tuple[ChangelogKind, tuple[str, ...] | None]:
    key = tuple(item.id for item in node.key_fields)
    mode = _mode(node.emit)
    if below.bounded and mode is None:
        return APPEND, key
    if mode in (EmitMode.UPDATE, EmitMode.CHANGES, EmitMode.EVERY):
        return CHANGELOG, key
    late = node.emit is not None and bool(node.emit.lateness_us)
    return (CHANGELOG if late or not node.windowed else APPEND), key


def _join(node: n.Join, inputs: list[Properties]) -> tuple[ChangelogKind, tuple[str, ...] | None]:
    bounded = all(item.bounded for item in inputs)
    if node.kind is n.JoinKind.ASOF and not node.timed and not bounded:
        # A nearer row may come later: the answer is then retracted.
        return CHANGELOG, inputs[0].key
    if node.kind is n.JoinKind.LOOKUP:
        return inputs[0].changelog, inputs[0].key if _finds_one(node) else None
    if node.kind in (n.JoinKind.TEMPORAL, n.JoinKind.ASOF):
        return inputs[0].changelog, inputs[0].key
    if any(item.changelog is not APPEND for item in inputs):
        return CHANGELOG, None
    outer = node.how not in ("INNER", "SEMI")
    if node.kind is n.JoinKind.REGULAR and outer and not bounded:
        # An outer row may get its match later: it is then retracted.
        return CHANGELOG, None
    return APPEND, None


def _finds_one(node: n.Join) -> bool:
    """Whether a lookup by these columns finds at most one row: they hold the primary key."""
    if not isinstance(node.right, n.LookupScan):
        return False
    names = {item.id: item.name.lower() for item in node.right.fields}
    asked = {names.get(p.right.name) for p in node.equal if isinstance(p.right, exp.Column)}
    key = {name.lower() for name in node.right.table.primary_key}
    return bool(key) and key <= asked


def _top_n(node: n.TopN, below: Properties) -> tuple[ChangelogKind, tuple[str, ...] | None]:
    one = node.function == "ROW_NUMBER" and node.limit is not None and node.limit.name == "1"
    columns = [part.name for part in node.partition if isinstance(part, exp.Column)]
    key = tuple(columns) if one and len(columns) == len(node.partition) else None
    if below.bounded or deduplicates(node) or (node.windowed and below.changelog is APPEND):
        return APPEND, key
    return CHANGELOG, key


def deduplicates(node: n.TopN) -> bool:
    """Whether the first row of each partition comes out once and stays.

    By arrival it does so at once, unless it is to wait for the end of a window; by event time when
    the watermark has passed it, if the query waits for that.
    """
    below = properties(node.input)
    if below.changelog is not APPEND or below.bounded or not node.keeps_one:
        return False
    if node.at_close:
        return not node.windowed and node.first_by_time is not None
    return not node.order and not (node.windowed and node.closing_key is None)


def _emit(node: n.Emit, below: Properties) -> tuple[ChangelogKind, tuple[str, ...] | None]:
    mode = _mode(node.clause)
    if mode is EmitMode.CHANGES:
        return CHANGELOG, below.key
    if mode in (EmitMode.UPDATE, EmitMode.EVERY) and below.key is not None:
        return UPSERT, below.key
    return below.changelog, below.key


def _state(node: n.Node, bounded: bool, inputs: list[Properties]) -> str | None:
    """What bounds the state of a node, in words; None if it keeps none."""
    if isinstance(node, (*n.STATELESS, n.LookupScan)):
        return None
    if isinstance(node, n.SetOperation) and node.operation == "UNION" and node.all:
        return None
    if isinstance(node, n.Window):
        return "rows of open sessions" if node.makes_sessions else None
    if isinstance(node, n.Hold):
        return f"rows until {'their window closes' if node.spec else 'the watermark passes them'}"
    if isinstance(node, n.Normalize):
        return "the last row of each key"
    ttl = getattr(node, "ttl_us", None)
    if isinstance(node, n.Aggregate):
        return _aggregate_state(node, inputs[0])
    if isinstance(node, n.Join):
        return _join_state(node, bounded)
    if isinstance(node, n.TopN):
        return _top_n_state(node, inputs[0])
    if isinstance(node, n.Over) and (ttl is None or inputs[0].changelog is APPEND):
        return "rows until the watermark passes them, and what their frames still need"
    if ttl is not None:
        return "rows" + _expiry(ttl)
    if any(item.closes for item in node.fields):
        return "rows until the watermark passes them"
    return "all input, which is bounded" if bounded else "without bound"


def _aggregate_state(node: n.Aggregate, below: Properties) -> str:
    late = node.emit.lateness_us if node.emit is not None else None
    clock = node.window is not None and node.window.processing_time
    if not node.windowed or not (below.has_watermark or below.bounded or clock):
        return "one entry a group" + _expiry(node.ttl_us)
    session, window = "one entry a key and open session", "one entry a group and open window"
    text = session if node.makes_sessions else window
    if not clock and not below.has_watermark:
        return f"{text}, until the input ends"
    text += f", until the {'clock' if clock else 'watermark'} passes its end"
    return text + (f" + {format_duration(late)}" if late else "")


def _top_n_state(node: n.TopN, below: Properties) -> str:
    """Rows beyond the limit can move up if others are retracted or the limit is their own."""
    if deduplicates(node):
        until = ", until the watermark closes them" if node.closing_key is not None else ""
        return "the keys that came out" + (until or _expiry(node.ttl_us))
    fixed = node.limit is not None and not node.limit.find(exp.Column)
    rows = "the first rows" if fixed and below.changelog is APPEND else "the rows"
    if node.windowed:
        return f"{rows} of each window until it closes"
    return f"{rows} of each partition" + _expiry(node.ttl_us)


def _expiry(ttl_us: int | None) -> str:
    return "" if ttl_us is None else f" for {format_duration(ttl_us)} (state_ttl)"


def _join_state(node: n.Join, bounded: bool) -> str:
    if node.kind is n.JoinKind.LOOKUP:
        return "none: asked for each row, with a cache"
    if node.kind is n.JoinKind.WINDOW:
        return "rows of both sides until their window closes"
    if node.kind is n.JoinKind.TEMPORAL:
        return "rows until the watermark passes them, and versions a later row can still see"
    if node.kind is n.JoinKind.ASOF and node.timed:
        return "rows until the watermark passes them, and the candidates they can still match"
    if node.kind is n.JoinKind.INTERVAL and node.bounds is not None:
        lower, upper = node.bounds.lower_us, node.bounds.upper_us
        assert lower is not None and upper is not None, "an interval join has both bounds"
        return (
            f"left rows for {format_duration(max(0, -lower))}, right rows for "
            f"{format_duration(max(0, upper))} of event time"
        )
    if node.ttl_us is not None:
        return "rows of both sides" + _expiry(node.ttl_us)
    return "all input, which is bounded" if bounded else "without bound"
