"""Checks of lookup, ASOF and temporal joins."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from tidegate.compile.validate.finding import (
    Finding,
    Subject,
    table_name,
    time_column,
    unbounded,
    user_sql,
)
from tidegate.plan import nodes as n
from tidegate.plan.bind.windows import is_processing_time
from tidegate.plan.rewrite.semantics import versions_of
from tidegate.sql.statements import EmitMode
from tidegate.types import ChangelogKind


def join_sides(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if not isinstance(node, n.Join):
            continue
        if isinstance(node.left, n.LookupScan):
            yield _side_finding(
                node,
                f"{node.left.table.name} is a lookup table: it can only be on the right of a join",
                f"write the stream first: FROM my_stream JOIN {node.left.table.name} ON …",
            )
        elif node.kind is n.JoinKind.LOOKUP:
            yield from _check_lookup(node)
        elif node.kind is n.JoinKind.ASOF:
            yield from _check_asof(node, subject)


def _check_lookup(node: n.Join) -> Iterable[Finding]:
    if not isinstance(node.right, n.LookupScan):
        assert node.as_of is not None and is_processing_time(node.as_of)
        yield _side_finding(
            node,
            "FOR SYSTEM_TIME AS OF PROCTIME() needs a lookup table on the right",
            "declare it with CREATE LOOKUP TABLE, or join by event time: FOR SYSTEM_TIME AS OF "
            f"{time_column(node.left) or 'ts'}.",
        )
    elif node.as_of is not None and not is_processing_time(node.as_of):
        yield _side_finding(
            node,
            f"lookup table {node.right.table.name} is read when a row is processed; its earlier "
            "content is unknown",
            "FOR SYSTEM_TIME AS OF PROCTIME(); or, for versions, declare it with CREATE SOURCE, a "
            "PRIMARY KEY and a WATERMARK.",
        )
    elif node.how not in ("INNER", "LEFT"):
        yield _side_finding(
            node,
            f"a {node.how} join needs all rows of lookup table {node.right.table.name}",
            "use JOIN or LEFT JOIN.",
        )
    elif not node.lookup_keys and not node.right.table.consistent_in_epoch:
        left, right = node.aliases or ("…", node.right.table.name)
        key = (*node.right.table.primary_key, *(c.name for c in node.right.table.columns))[0]
        yield _side_finding(
            node,
            f"this join has no equality with a column of lookup table {node.right.table.name}, so "
            "the table cannot be searched",
            f"compare a column of the table with the stream: ON {left}.… = {right}.{key}.",
        )
    elif node.left.changelog is not ChangelogKind.APPEND:
        yield _side_finding(
            node,
            "the left side updates its rows, and a second lookup could return another value than "
            "the first",
            f"join {node.right.table.name} with the rows before they are aggregated; or make the "
            "table a source with a PRIMARY KEY and join that, WITH (state_ttl = '1 day').",
        )


def _check_asof(node: n.Join, subject: Subject) -> Iterable[Finding]:
    if isinstance(node.right, n.LookupScan):
        name = node.right.table.name
        yield _side_finding(
            node,
            f"a lookup in {name} returns all rows of a key, but ASOF needs the nearest",
            "remove ASOF and put the comparison into ON; or declare the table with CREATE SOURCE.",
        )
    elif node.as_of is not None:
        yield _side_finding(
            node,
            "ASOF and FOR SYSTEM_TIME AS OF both select the row of the right side",
            "remove one of them.",
        )
    elif node.match is None:
        yield _side_finding(
            node,
            "an ASOF join needs a MATCH_CONDITION, which selects the nearest row",
            f"ASOF JOIN … {_match_hint(node)} ON …",
        )
    elif node.how not in ("INNER", "LEFT"):
        yield _side_finding(
            node, f"ASOF {node.how} JOIN does not exist", "use ASOF JOIN or ASOF LEFT JOIN."
        )
    elif node.asof_condition is None:
        yield _side_finding(
            node,
            _match_problem(node),
            _nearest_hint(node),
        )
    elif node.by_watermark or not unbounded(node) or _emits_corrections(node, subject):
        return
    elif node.timed:
        replaced = "can be replaced (PRIMARY KEY)" if _primary_key(node.right) else "are updated"
        yield _side_finding(
            node,
            f"rows of {table_name(node.right)} {replaced}, so the nearest row of an ASOF join "
            "could change",
            "for versions of rows use JOIN … FOR SYSTEM_TIME AS OF; or allow corrections of "
            f"results with {_CORRECTIONS}.",
        )
    else:
        yield _side_finding(
            node,
            "this MATCH_CONDITION does not compare the event times of both sides, so later rows "
            "could change the result",
            f"{_match_hint(node)}; or allow corrections of results with {_CORRECTIONS}.",
        )


_CORRECTIONS = "EMIT CHANGES and WITH (state_ttl = '1 day')"


def _match_hint(node: n.Join) -> str:
    left, right = (time or "ts" for time in node.times)
    return f"MATCH_CONDITION ({left} >= {right})"


def _match_problem(node: n.Join) -> str:
    if node.match is None or not _compares_both_sides(node.match, node):
        return "MATCH_CONDITION must compare a value of the left side with one of the right side"
    if isinstance(node.match, exp.EQ):
        return "MATCH_CONDITION with = needs ASOF NEAREST; ASOF compares with >=, >, <= or <"
    return "ASOF NEAREST finds the row with the smallest distance, so its MATCH_CONDITION needs ="


def _nearest_hint(node: n.Join) -> str:
    """Suggest a condition: `=` belongs to ASOF NEAREST, the other comparisons to ASOF."""
    left, right = (time or "ts" for time in node.times)
    if isinstance(node.match, exp.EQ):
        return f"{_match_hint(node)}, or ASOF NEAREST JOIN … MATCH_CONDITION ({left} = {right})"
    if isinstance(node.match, exp.GT | exp.GTE | exp.LT | exp.LTE) and _compares_both_sides(
        node.match, node
    ):
        return f"MATCH_CONDITION ({left} = {right}), or remove NEAREST."
    return _match_hint(node)


def _compares_both_sides(tree: exp.Expr, node: n.Join) -> bool:
    ids = {part.name for part in tree.find_all(exp.Column)}
    return all(ids & {item.id for item in side.fields} for side in node.inputs)


def _emits_corrections(node: n.Join, subject: Subject) -> bool:
    """Return whether results may be retracted and state expires, so no watermark is needed."""
    final = (EmitMode.WINDOW_CLOSE, EmitMode.DEFAULT)
    closes = subject.emit is None or subject.emit.mode in final
    return node.ttl_us is not None and not closes


def _side_finding(node: n.Join, message: str, hint: str) -> Finding:
    return Finding("TG-417", message, node, hint)


# ---- FOR SYSTEM_TIME AS OF needs versions on the right and the event time of the left


def temporal_join_versions(subject: Subject) -> Iterable[Finding]:
    for node in subject.nodes():
        if isinstance(node, n.Join) and node.kind is n.JoinKind.TEMPORAL:
            yield from _check_temporal(node)


def _check_temporal(node: n.Join) -> Iterable[Finding]:
    left = {item.id: item for item in node.left.fields}
    as_of = left.get(node.as_of_id) if node.as_of_id is not None else None
    if as_of is None or not as_of.is_event_time:
        time_sql = user_sql(node.as_of, node) if node.as_of is not None else "?"
        time = node.times[0]
        yield _version_finding(
            node,
            f"FOR SYSTEM_TIME AS OF needs the event time of {_left_name(node)}, not {time_sql}",
            f"FOR SYSTEM_TIME AS OF {time}"
            if time is not None
            else "declare a WATERMARK on the left source.",
        )
    if not isinstance(node.as_of, exp.Column):
        # Without a column the rewriter has not determined the key of the versions.
        return
    if not any(item.role is n.Role.TIME for item in node.right.fields):
        yield _version_finding(
            node,
            f"{table_name(node.right)} has no event time, so its rows are not versions",
            f"declare PRIMARY KEY and WATERMARK on {table_name(node.right)}.",
        )
    if not node.key_pairs:
        yield _version_finding(
            node,
            "a temporal join needs an equality with the key of the right side",
            _equality_hint(node),
        )
    elif not node.versioned and any(item.role is n.Role.TIME for item in node.right.fields):
        yield _missing_key(node)
    if node.how not in ("INNER", "LEFT"):
        yield _version_finding(
            node,
            f"temporal joins support JOIN and LEFT JOIN, not {node.how} JOIN",
            "use JOIN or LEFT JOIN.",
        )


def _left_name(node: n.Join) -> str:
    is_table = isinstance(node.left, n.Scan | n.StreamReference)
    return table_name(node.left) if is_table else "the left side"


def _equality_hint(node: n.Join) -> str:
    """Suggest to compare the primary key, or a column that both sides have."""
    left, right = node.aliases or ("…", "…")
    names = [item.name for item in node.right.fields]
    common = {item.name.lower() for item in node.left.fields}
    key = next((name for name in names if name.lower() in common), names[0])
    key = next(iter(_primary_key(node.right)), key)
    column = key if key.lower() in common else "…"
    return f"add it to the join condition: ON {left}.{column} = {right}.{key}."


def _primary_key(node: n.Node) -> tuple[str, ...]:
    """Return the primary key of the source that a side of a join reads."""
    while isinstance(node, n.Unary) and not isinstance(node, n.StreamReference):
        node = node.input
    return node.source.primary_key if isinstance(node, n.Scan) else ()


def _missing_key(node: n.Join) -> Finding:
    """Return the finding for a join whose condition does not contain the whole key."""
    versions = versions_of(node.right)
    alias = (node.times[1] or "").rpartition(".")[0] or "r"
    compared = [pair.right.name for pair in node.key_pairs if isinstance(pair.right, exp.Column)]
    if versions is not None:
        names = [versions.rows.field(key).name for key in versions.key if key not in compared]
        return _version_finding(
            node,
            f"the join does not compare {', '.join(names)}, which is part of the key of the "
            "versions",
            f"add AND … = {alias}.{names[0]}.",
        )
    by_name = {item.id: item.name for item in node.right.fields}
    key = ", ".join(by_name[name] for name in compared if name in by_name)
    return _version_finding(
        node,
        "the right side of this temporal join has no key that identifies the versions of an entity",
        _key_hint(node, key),
    )


def _key_hint(node: n.Join, key: str) -> str:
    """Suggest how to declare versions: by a key, or as the last row of each key."""
    time = next(item.name for item in node.right.fields if item.role is n.Role.TIME)
    last = "QUALIFY row_number() OVER (PARTITION BY {0} ORDER BY {1} DESC) = 1"
    named = isinstance(node.right, n.Scan | n.StreamReference)
    if node.right.changelog is not ChangelogKind.APPEND or not key or not named:
        return (
            "versions are the rows of a source with PRIMARY KEY and WATERMARK, or the last row of "
            f"each key: add {last.format(key or '…', time)} to an append-only query."
        )
    name = table_name(node.right)
    declare = f", or declare PRIMARY KEY ({key}) on it" if isinstance(node.right, n.Scan) else ""
    rows = f"(SELECT * FROM {name} {last.format(key, time)})"
    return f"write {rows} in place of {name}{declare}."


def _version_finding(node: n.Join, message: str, hint: str) -> Finding:
    return Finding("TG-415", message, node, hint)
