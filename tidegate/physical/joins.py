"""Joins that time bounds, as an operator runs them: the time of each side, keys, and bounds."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tidegate.physical.stage_sql import carries_op, quoted
from tidegate.physical.times import behind_us
from tidegate.plan import nodes as n
from tidegate.plan.scope import referenced
from tidegate.sql import expressions as ex

RUN = (n.JoinKind.INTERVAL, n.JoinKind.WINDOW, n.JoinKind.REGULAR)


@dataclass(frozen=True)
class JoinPlan:
    """`times` is the SQL of each side's time in microseconds; `step_us` as the operators have it.

    A join without bounds has neither. `changes` says that its result may be taken back, or waits
    for the end of its input.
    """

    node: n.Join
    times: tuple[str, str] | None
    pairs: tuple[n.KeyPair, ...]
    lower_us: int
    upper_us: int
    step_us: int | None
    held_back_us: int

    @property
    def retracts(self) -> tuple[bool, bool]:
        return carries_op(self.node.left), carries_op(self.node.right)

    @property
    def changes(self) -> bool:
        return self.times is None or any(self.retracts)

    @property
    def at_end(self) -> bool:
        """Whether rows without a match are only known when the input has ended."""
        return self.times is None and waits_for_end(self.node, False)


def plan_join(node: n.Join) -> JoinPlan:
    assert join_refusal(node) is None, "it was checked before anything started"
    pairs = node.equal + tuple(_as_pair(piece, node) for piece in ex.conjuncts(node.residual))
    if node.kind is n.JoinKind.REGULAR:
        return JoinPlan(node, None, pairs, 0, 0, None, 0)
    closing = _closing(node)
    behind = max(behind or 0 for behind in _behind(node, closing))
    times = (closing_sql(closing[0]), closing_sql(closing[1]))
    if node.kind is n.JoinKind.WINDOW:
        return JoinPlan(node, times, pairs, 0, 0, 0, behind)
    assert node.bounds is not None, "an interval join has bounds"
    lower, upper = node.bounds.lower_us, node.bounds.upper_us
    assert lower is not None and upper is not None, "an interval join has both bounds"
    waits = upper - lower if node.at_close else 0
    back = max(0, upper, -lower, waits) + behind
    return JoinPlan(node, times, pairs, lower, upper, 1, back)


def waits_for_end(node: n.Join, has_watermark: bool) -> bool:
    """Whether some of its rows come out only when its inputs have ended."""
    if node.kind not in RUN or carries_op(node):
        return False
    outer = node.how not in ("INNER", "SEMI")
    return (
        outer if node.kind is n.JoinKind.REGULAR else not has_watermark and (outer or node.at_close)
    )


def closing_sql(item: n.Field) -> str:
    """The moment that closes a row; the start of a window tells its end."""
    at = f"unix_micros(CAST({quoted(item.id)} AS TIMESTAMP))"
    if item.role is n.Role.WINDOW_START and item.window is not None:
        return f"{at} + {item.window.size_us}L"
    return at


def _closing(node: n.Join) -> tuple[n.Field, n.Field]:
    """The columns of both sides that say when a row is closed."""
    if node.kind is n.JoinKind.INTERVAL:
        assert node.bounds is not None, "an interval join has bounds"
        return node.left.field(node.bounds.left_id), node.right.field(node.bounds.right_id)
    found: dict[n.Role, tuple[n.Field, n.Field]] = {}
    left = {item.id: item for item in node.left.fields}
    right = {item.id: item for item in node.right.fields}
    for pair in node.equal:
        one, other = left.get(pair.left.name), right.get(pair.right.name)
        if one is None or other is None or one.role is not other.role or one.window is None:
            continue
        if one.window == other.window:
            found.setdefault(one.role, (one, other))
    return found.get(n.Role.WINDOW_END) or found[n.Role.WINDOW_START]


def _behind(node: n.Join, closing: tuple[n.Field, n.Field]) -> list[int | None]:
    sides = zip(node.inputs, closing, strict=True)
    return [behind_us(side.fields, item) for side, item in sides]


def _as_pair(piece: exp.Expr, node: n.Join) -> n.KeyPair:
    """A condition on one side: its rows match only where it is true."""
    true = exp.true()
    if referenced(piece) <= {item.id for item in node.left.fields}:
        return n.KeyPair(piece, true)
    return n.KeyPair(true, piece)


def join_refusal(node: n.Join) -> tuple[str, str] | None:
    """Why a join cannot run, and what to do instead."""
    if node.kind not in RUN:
        return None
    left = {item.id for item in node.left.fields}
    right = {item.id for item in node.right.fields}
    for piece in ex.conjuncts(node.residual):
        ids = referenced(piece)
        if not (ids <= left or ids <= right):
            return (
                f"a {node.how} join with a condition on both sides that is neither an equality "
                "nor a bound of time cannot run yet",
                "use JOIN, or compute the condition in a stream below.",
            )
    if node.kind is n.JoinKind.REGULAR:
        return None
    if node.at_close and any(carries_op(side) for side in node.inputs):
        return (
            "EMIT ON WINDOW CLOSE over a join of rows that are taken back cannot run yet",
            "use EMIT CHANGES, or join streams without ALLOW LATENESS.",
        )
    if None in _behind(node, _closing(node)):
        return (
            "rows of sessions that keep other event times cannot be joined yet",
            "leave those columns out of the join's inputs.",
        )
    return None
