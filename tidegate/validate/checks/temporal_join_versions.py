"""FOR SYSTEM_TIME AS OF needs versions on the right and the event time of the left."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.plan import nodes as n
from tidegate.plan.rewrite.semantics import versions_of
from tidegate.types import ChangelogKind
from tidegate.validate.finding import Finding, Subject, table_name, written


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
    if not isinstance(node.as_of, exp.Column):
        # No versions were looked for, so nothing is known about their key.
        return
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
    elif not node.versioned and any(item.role is n.Role.TIME for item in node.right.fields):
        yield _keyless(node)
    if node.how not in ("INNER", "LEFT"):
        yield _finding(node, f"a temporal {node.how} join is not defined", "use JOIN or LEFT JOIN.")


def _keyless(node: n.Join) -> Finding:
    """A version belongs to a whole key; part of it would match several."""
    versions = versions_of(node.right)
    alias = (node.times[1] or "").rpartition(".")[0] or "r"
    fixed = [pair.right.name for pair in node.equal if isinstance(pair.right, exp.Column)]
    if versions is not None:
        names = [versions.rows.field(key).name for key in versions.key if key not in fixed]
        return _finding(
            node,
            f"the key of the versions has {', '.join(names)} too, which the join does not fix",
            f"add AND … = {alias}.{names[0]}.",
        )
    by_name = {item.id: item.name for item in node.right.fields}
    key = ", ".join(by_name[name] for name in fixed if name in by_name)
    return _finding(
        node,
        "the right side of this temporal join has no key that says which of its rows are versions "
        "of the same thing",
        _key_hint(node, key),
    )


def _key_hint(node: n.Join, key: str) -> str:
    """The last row of each key is a version."""
    time = next(item.name for item in node.right.fields if item.role is n.Role.TIME)
    last = "QUALIFY row_number() OVER (PARTITION BY {0} ORDER BY {1} DESC) = 1"
    named = isinstance(node.right, n.Scan | n.Inlined)
    if node.right.changelog is not ChangelogKind.APPEND or not key or not named:
        return (
            "versions are the rows of a source with PRIMARY KEY and WATERMARK, or the last row of "
            f"each key: add {last.format(key or '…', time)} to a query of rows that only append."
        )
    name = table_name(node.right)
    declare = f", or declare PRIMARY KEY ({key}) on it" if isinstance(node.right, n.Scan) else ""
    rows = f"(SELECT * FROM {name} {last.format(key, time)})"
    return f"write {rows} in place of {name}{declare}."


def _finding(node: n.Join, message: str, hint: str) -> Finding:
    return Finding("TG-415", message, node, hint)
