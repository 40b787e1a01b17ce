"""Lookup joins: rows are enriched between two stages, in the same task.

The first stage computes the keys, in the type of the column they are compared with. The task adds
all matching rows of the table as an array. The second stage unnests the array and filters it by the
other parts of the join condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidegate.columns import SELECTED
from tidegate.physical.operator_kind import Rejection, Unrunnable
from tidegate.physical.stage_sql import StageSqlWriter, carries_op, when_selected
from tidegate.physical.typed import Operands, Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quote_identifier

# The matching rows, and one of them.
MATCHES, _MATCH = "_tg_matches", "_tg_match"
_EXACT = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL")
_KEYS = (*_EXACT, "BOOLEAN", "STRING", "VARCHAR", "CHAR", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")


@dataclass(frozen=True)
class LookupColumns:
    """The columns that a lookup reads, with their types, and the key columns."""

    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class LookupSql:
    """The SQL of the stages before and after a lookup."""

    # Columns that are passed on, as (name in the task, SQL).
    passed_columns: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...]
    output_columns: tuple[str, ...]
    # The SQL of the array of matching rows.
    matches: str

    def input_sql(self, rows: str) -> str:
        """Return the SQL of the stage before the lookup, over a relation in FROM."""
        columns = [f"{sql} AS {name}" for name, sql in (*self.passed_columns, *self.keys)]
        return f"SELECT {', '.join(columns)} FROM {rows}"

    def output_sql(self, view: str) -> str:
        """Return the SQL of the stage after the lookup, over a view of the enriched rows."""
        return (
            f"SELECT {', '.join(self.output_columns)} FROM {quote_identifier(view)} "
            f"LATERAL VIEW OUTER explode({self.matches}) generated AS {_MATCH}"
        )


def lookup_scan(node: n.Join) -> n.LookupScan:
    assert isinstance(node.right, n.LookupScan), "a lookup join has a lookup table on its right"
    return node.right


def lookup_columns(node: n.Join, types: Types) -> LookupColumns:
    """Return the columns that a lookup reads."""
    table = lookup_scan(node)
    names = {item.id: item.name for item in table.fields}
    columns = tuple((item.name, types.name(quote_identifier(item.id))) for item in table.fields)
    return LookupColumns(columns, tuple(names[pair.right.name] for pair in node.lookup_keys))


def operands(node: n.Join) -> Iterator[Operands]:
    """Yield the keys of the input rows, and pairs whose common type Spark determines."""
    if node.lookup_keys:
        yield Operands((node.left,), tuple(to_sql(pair.left) for pair in node.lookup_keys))
        yield Operands(node.inputs, tuple(_both(pair) for pair in node.lookup_keys))


def _both(pair: n.KeyPair) -> str:
    return f"coalesce({to_sql(pair.left)}, {to_sql(pair.right)})"


def rejections(node: n.Join) -> Iterator[Rejection]:
    table = node.right.table if isinstance(node.right, n.LookupScan) else None
    served = table is not None and node.how in ("INNER", "LEFT")
    # A table that tasks hold completely does not need a key.
    if not served or not (node.lookup_keys or (table is not None and table.consistent_in_epoch)):
        yield Rejection(
            "a lookup needs a lookup table on the right of JOIN or LEFT JOIN, and a column of it "
            "that is compared with =",
            "FROM my_stream AS s JOIN customers AS c ON s.customer_id = c.id",
        )
        return
    if any(ex.calls_udf(piece) for piece in residual_conditions(node)):
        yield Rejection(
            "a Python function in the condition of a lookup join cannot run yet",
            "call it in the SELECT list of a stream that the join reads, or that reads the join.",
        )


def lookup_sql(node: n.Join, types: Types, writer: StageSqlWriter) -> LookupSql:
    """Build the SQL around a lookup, with the hidden columns of a writer."""
    input_columns = [quote_identifier(item.id) for item in node.left.fields]
    input_columns += ["_op"] if carries_op(node.left) else []
    passed_names = {sql: f"p{index}" for index, sql in enumerate(input_columns)}
    hidden = {name: name for name in writer.hidden}
    keys = tuple((f"k{index}", _key(pair, types)) for index, pair in enumerate(node.lookup_keys))
    keys = keys or (("k0", "true"),)
    table_positions = {item.id: index for index, item in enumerate(lookup_scan(node).fields)}
    output_columns = [f"{name} AS {sql}" for sql, name in passed_names.items()]
    output_columns += [
        f"{_MATCH}.f{table_positions[item.id]} AS {quote_identifier(item.id)}"
        for item in node.fields
        if item.id in table_positions
    ]
    output_columns += writer.carried
    output_columns.append(
        f"{SELECTED} AND {_MATCH} IS NOT NULL AS {SELECTED}" if node.how == "INNER" else SELECTED
    )
    named = tuple((name, sql) for sql, name in {**hidden, **passed_names}.items())
    return LookupSql(
        named, keys, tuple(output_columns), _matching_rows(node, table_positions, passed_names)
    )


def _matching_rows(
    node: n.Join, table_positions: dict[str, int], passed_names: dict[str, str]
) -> str:
    """Return the SQL of the matching table rows that satisfy the residual conditions."""
    other = ex.conjunction(residual_conditions(node))
    if other is None:
        return MATCHES

    def swap(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        if part.name in table_positions:
            return exp.column(f"f{table_positions[part.name]}", table=_MATCH)
        return exp.column(passed_names[quote_identifier(part.name)])

    condition = to_sql(other.copy().transform(swap))
    return when_selected(f"filter({MATCHES}, {_MATCH} -> {condition})")


def residual_conditions(node: n.Join) -> list[exp.Expr]:
    """Return the conditions of the join except those on the lookup keys."""
    lookup_ids = {id(pair) for pair in node.lookup_keys}
    conditions: list[exp.Expr] = [
        (exp.NullSafeEQ if pair.null_safe else exp.EQ)(
            this=pair.left.copy(), expression=pair.right.copy()
        )
        for pair in node.key_pairs
        if id(pair) not in lookup_ids
    ]
    return [*conditions, *ex.conjuncts(node.residual)]


def _key(pair: n.KeyPair, types: Types) -> str:
    """Return the key of a row in the type of the table's column; NULL if no value can be equal."""
    left, right = to_sql(pair.left), to_sql(pair.right)
    key_type, column_type = types.name(left), types.name(right)
    sql_types = tuple(sql_type.partition("(")[0] for sql_type in (key_type, column_type))
    if sql_types[1] not in _KEYS:
        raise Unrunnable(
            Rejection(
                f"{_plain(left, right)}: a lookup by values of type {column_type} cannot run yet",
                "look up by a whole number, a text, a time or a decimal.",
            )
        )
    exact = all(sql_type in _EXACT for sql_type in sql_types)
    times = all(sql_type in ("TIMESTAMP", "TIMESTAMP_NTZ") for sql_type in sql_types)
    if key_type != column_type and not exact and not times:
        text = f"{_plain(left, right)}: a lookup of {key_type} by {column_type} cannot run yet"
        raise Unrunnable(Rejection(text, f"CAST({left.replace('`', '')} AS {column_type}) = …"))
    if key_type == column_type:
        return when_selected(left)
    common = types.name(_both(pair))
    if common == column_type:
        return when_selected(f"CAST({left} AS {column_type})")
    cast = f"try_cast({left} AS {column_type})"
    same = f"CAST({cast} AS {common}) = CAST({left} AS {common})"
    return f"CASE WHEN {SELECTED} AND {same} THEN {cast} END"


def _plain(left: str, right: str) -> str:
    return f"{left} = {right}".replace("`", "")


def require_known_types(columns: Sequence[tuple[str, str]], table: str) -> None:
    """Reject columns with types that tasks cannot process."""
    for name, sql_type in columns:
        try:
            arrow_type(sql_type)
        except ValueError as error:
            text = f"the column {name} of the lookup table {table}: {error}"
            raise Unrunnable(Rejection(text, f"leave {name} out.")) from None
