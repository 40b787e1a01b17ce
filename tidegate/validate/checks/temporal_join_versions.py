"""FOR SYSTEM_TIME AS OF needs versions on the right and the event time of the left."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.validate.finding import Finding, Subject, written


def temporal_join_versions(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Join) and node.kind is n.JoinKind.TEMPORAL:
            yield from _check(node)


def _check(node: n.Join) -> Iterable[Finding]:
    left = {item.id: item for item in node.left.fields}
    as_of = left.get(node.as_of_id) if node.as_of_id is not None else None
    if as_of is None or not as_of.on_time:
        shown = written(node.as_of, node) if node.as_of is not None else "?"
        time = node.times[0]
        yield _finding(
            node,
            f"FOR SYSTEM_TIME AS OF {shown}: it must be the event time of the left side",
            f"FOR SYSTEM_TIME AS OF {time}"
            if time is not None
            else "declare a WATERMARK on the left source.",
        )
    if not any(item.role is n.Role.TIME for item in node.right.fields):
        yield _finding(
            node,
            "the right side of this temporal join has no event time, so its rows are not versions",
            "declare PRIMARY KEY and WATERMARK on the right source.",
        )
    if not node.equal:
        yield _finding(
            node,
            "nothing says whose version to take",
            "join on the key of the right side: ON o.currency = r.currency.",
        )
    yield from _whole_key(node)
    if node.how not in ("INNER", "LEFT"):
        yield _finding(node, f"a temporal {node.how} join is not defined", "use JOIN or LEFT JOIN.")


def _whole_key(node: n.Join) -> Iterable[Finding]:
    """A version belongs to a whole primary key; part of it would match several."""
    scan = node.right
    if not isinstance(scan, n.Scan) or not scan.source.primary_key or not node.equal:
        return
    joined = {
        scan.field(pair.right.name).name.lower()
        for pair in node.equal
        if isinstance(pair.right, exp.Column)
    }
    missing = [key for key in scan.source.primary_key if key.lower() not in joined]
    if missing:
        alias = (node.times[1] or "").rpartition(".")[0] or scan.source.name
        yield _finding(
            node,
            f"the primary key of {scan.source.name} has {', '.join(missing)} too, which the join "
            "does not fix",
            f"add AND … = {alias}.{missing[0]}.",
        )


def _finding(node: n.Join, message: str, hint: str) -> Finding:
    return Finding("TG-415", message, node, hint)
