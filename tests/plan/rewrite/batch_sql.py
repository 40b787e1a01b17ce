"""A logical plan as one DuckDB query over tables: the result of a batch run of the plan.

It is built from the attributes that operators use (keys, bounds and residual of a join, keys of
upserts), not from the text of the user. Upserts have a column with their order of arrival.
"""

from __future__ import annotations

from sqlglot import exp

from tidegate.plan import nodes as n

ARRIVAL = "_n"


def sql_of(plan: n.Emit) -> str:
    columns = ", ".join(quoted(item.id) for item in plan.fields)
    return f"SELECT {columns} FROM {_child(plan.input)}"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(tree: exp.Expr) -> str:
    return tree.sql(dialect="duckdb")


def _child(node: n.Node) -> str:
    write = globals()[f"_{type(node).__name__.lower()}"]
    return f"({write(node)}) AS t"


def _orders_upserts(node: n.Node) -> bool:
    if isinstance(node, n.Scan):
        return bool(node.source.primary_key)
    passes = isinstance(node, n.Filter | n.Project | n.StreamReference | n.Emit)
    return passes and _orders_upserts(node.inputs[0])


def _ids(node: n.Node) -> list[str]:
    ids = [quoted(item.id) for item in node.fields]
    return [*ids, ARRIVAL] if _orders_upserts(node) else ids


def _select(columns: list[str], below: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {below}"


def _scan(node: n.Scan) -> str:
    columns = [f"{quoted(item.name)} AS {quoted(item.id)}" for item in node.fields]
    columns += [ARRIVAL] if _orders_upserts(node) else []
    return _select(columns, node.source.name)


def _lookupscan(node: n.LookupScan) -> str:
    columns = [f"{quoted(item.name)} AS {quoted(item.id)}" for item in node.fields]
    return _select(columns, node.table.name)


def _streamreference(node: n.Unary) -> str:
    return _select(_ids(node), _child(node.input))


_emit = _hold = _streamreference


def _filter(node: n.Filter) -> str:
    return f"{_select(_ids(node), _child(node.input))} WHERE {text(node.condition)}"


def _project(node: n.Project) -> str:
    pairs = zip(node.fields, node.expressions, strict=True)
    columns = [f"{text(part)} AS {quoted(item.id)}" for item, part in pairs]
    columns += [ARRIVAL] if _orders_upserts(node) else []
    return _select(columns, _child(node.input))


def _explode(node: n.Explode) -> str:
    (name,) = node.generated
    array = text(node.generator.expressions[0])
    if node.outer:
        array = f"CASE WHEN coalesce(len({array}), 0) = 0 THEN [NULL] ELSE {array} END"
    columns = [quoted(item.id) for item in node.fields if item.id != name]
    inner = _select(["*", f"unnest({array}) AS {quoted(name)}"], _child(node.input))
    return _select([*columns, quoted(name)], f"({inner}) AS t")


def _window(node: n.Window) -> str:
    spec, us = node.spec, f"epoch_us({text(node.time)})"
    columns = [quoted(item.id) for item in node.input.fields]
    floor = f"({us} - ((({us} - {spec.offset_us}) % {{0}} + {{0}}) % {{0}}))"
    if spec.kind is n.WindowKind.TUMBLE:
        starts, end = f"[{floor.format(spec.size_us)}]", f"_s + {spec.size_us}"
    else:
        assert spec.kind is n.WindowKind.HOP
        last = floor.format(spec.slide_us)
        starts = f"range({last} - {spec.size_us // spec.slide_us * spec.slide_us}, {last} + 1, {spec.slide_us})"
        end = f"_s + {spec.size_us}"
    inner = _select([*columns, f"unnest({starts}) AS _s", f"{us} AS _us"], _child(node.input))
    window_columns = [f"make_timestamp(_s) AS {quoted(node.fields[-3].id)}"]
    window_columns += [f"make_timestamp({end}) AS {quoted(node.fields[-2].id)}"]
    window_columns += [f"make_timestamp({end} - 1) AS {quoted(node.fields[-1].id)}"]
    return f"{_select([*columns, *window_columns], f'({inner}) AS t')} WHERE _us < {end} AND _us IS NOT NULL"


def _sessions(window: n.Window, keys: list[str]) -> str:
    """Return every row with the session of its key."""
    gap, columns = window.spec.size_us, [quoted(item.id) for item in window.input.fields]
    by = ", ".join(keys or ["true"])
    rows = _select([*columns, f"epoch_us({text(window.time)}) AS _us"], _child(window.input))
    new = f"coalesce(_us - lag(_us) OVER (PARTITION BY {by} ORDER BY _us) > {gap}, true) AS _new"
    starts = _select(["*", new], f"({rows} WHERE {text(window.time)} IS NOT NULL) AS t")
    number = f"sum(_new::INT) OVER (PARTITION BY {by} ORDER BY _us) AS _number"
    numbered = _select(["*", number], f"({starts}) AS t")
    over = f"OVER (PARTITION BY {by}, _number)"
    ends = (f"min(_us) {over}", f"max(_us) {over} + {gap}", f"max(_us) {over} + {gap} - 1")
    names = [quoted(item.id) for item in window.fields[-3:]]
    window_columns = [
        f"make_timestamp({end}) AS {name}" for end, name in zip(ends, names, strict=True)
    ]
    return _select([*columns, *window_columns], f"({numbered}) AS t")


def _aggregate(node: n.Aggregate) -> str:
    trees = [*node.keys, *node.aggregates]
    columns = [f"{text(t)} AS {quoted(i.id)}" for i, t in zip(node.fields, trees, strict=True)]
    keys = [text(key) for key in node.keys]
    rows = _child(node.input) if not node.merges_sessions else ""
    if node.merges_sessions:
        assert isinstance(node.input, n.Window)
        window_ids = {item.id for item in node.input.fields[-3:]}
        by = [text(key) for key in node.keys if key.name not in window_ids]
        rows = f"({_sessions(node.input, by)}) AS t"
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    return _select(columns or ["1 AS one"], rows) + group


def _conditions(node: n.Join) -> list[str]:
    operators = {False: "=", True: "IS NOT DISTINCT FROM"}
    conditions = [
        f"({text(p.left)}) {operators[p.null_safe]} ({text(p.right)})" for p in node.key_pairs
    ]
    if node.bounds is not None:
        left, right = quoted(node.bounds.left_id), quoted(node.bounds.right_id)
        lower, upper = node.bounds.lower_us, node.bounds.upper_us
        conditions.append(f"epoch_us({left}) - epoch_us({right}) BETWEEN {lower} AND {upper}")
    if node.residual is not None:
        conditions.append(f"({text(node.residual)})")
    return conditions


def _join(node: n.Join) -> str:
    columns = [quoted(item.id) for item in node.fields]
    left, right = _child(node.left)[:-1] + "l", _child(node.right)[:-1] + "r"
    conditions = _conditions(node)
    if node.kind in (n.JoinKind.TEMPORAL, n.JoinKind.ASOF):
        return _latest(node, columns, left, right, conditions)
    condition = " AND ".join(conditions) or "true"
    return _select(columns, f"{left} {node.how} JOIN {right} ON {condition}")


def _latest(node: n.Join, columns: list[str], left: str, right: str, conditions: list[str]) -> str:
    """Return the nearest right row of each left row; a tombstone is no match."""
    condition = node.asof_condition
    assert (
        condition is not None
        and not condition.only_first_version
        and not (condition.lower_open or condition.upper_open)
    )
    distance = f"(epoch_us({text(condition.left)}) - epoch_us({text(condition.right)}))"
    limits = ((condition.lower, ">="), (condition.upper, "<="))
    conditions += [
        f"{distance} {operator} {limit}" for limit, operator in limits if limit is not None
    ]
    order = {n.BACKWARD: distance, n.FORWARD: f"-{distance}"}.get(
        condition.direction, f"abs({distance})"
    )
    order += f", {ARRIVAL} DESC" if _orders_upserts(node.right) else ""
    numbered = f"(SELECT *, row_number() OVER () AS _l FROM {left}) AS l"
    joined = f"{numbered} {node.how} JOIN {right} ON {' AND '.join(conditions) or 'true'}"
    newest = f"row_number() OVER (PARTITION BY _l ORDER BY {order}) = 1"
    if node.validity_id is None:
        return f"{_select(columns, joined)} QUALIFY {newest}"
    is_valid, right_ids = quoted(node.validity_id), {item.id for item in node.right.fields}
    matches = f"({_select([*columns, is_valid], joined)} QUALIFY {newest}) AS t"
    if node.how == "INNER":
        return f"{_select(columns, matches)} WHERE {is_valid}"
    selected = [
        f"CASE WHEN {is_valid} THEN {quoted(item.id)} END AS {quoted(item.id)}"
        if item.id in right_ids
        else quoted(item.id)
        for item in node.fields
    ]
    return _select(selected, matches)


def _over(node: n.Over) -> str:
    pairs = zip(node.fields[len(node.input.fields) :], node.functions, strict=True)
    computed = [f"{text(function)} AS {quoted(item.id)}" for item, function in pairs]
    return _select([*_ids(node.input), *computed], _child(node.input))


def _topn(node: n.TopN) -> str:
    by = ", ".join(text(part) for part in node.partition)
    order = ", ".join(text(part) for part in node.order)
    over = f"({f'PARTITION BY {by} ' if by else ''}{f'ORDER BY {order}' if order else ''})"
    inner = _select(["*", f"{node.function}() OVER {over} AS _rank"], _child(node.input))
    columns = [
        f"_rank AS {quoted(i.id)}" if i.id == node.rank_id else quoted(i.id) for i in node.fields
    ]
    limit = f" WHERE _rank <= {text(node.limit)}" if node.limit is not None else ""
    return _select(columns, f"({inner}) AS t") + limit


def _distinct(node: n.Distinct) -> str:
    return f"SELECT DISTINCT {', '.join(_ids(node))} FROM {_child(node.input)}"


def _normalize(node: n.Normalize) -> str:
    key = ", ".join(quoted(name) for name in node.key)
    last = f"row_number() OVER (PARTITION BY {key} ORDER BY {ARRIVAL} DESC) = 1"
    columns = [quoted(item.id) for item in node.fields]
    return f"{_select(columns, _child(node.input))} QUALIFY {last}"


def _setoperation(node: n.SetOperation) -> str:
    parts = []
    for member in node.members:
        pairs = zip(node.fields, member.fields, strict=True)
        columns = [
            f"{quoted(member_field.id)} AS {quoted(field.id)}" for field, member_field in pairs
        ]
        parts.append(_select(columns, _child(member)))
    return f" {node.operation}{' ALL' if node.all else ''} ".join(parts)
