"""Lookup joins: rows are enriched between two stages, in the task that goes on with them.

The stage below computes the keys, in the type of the column they are compared with. A task adds all
matching rows of the table as an array. The stage above unnests the array and filters it by the rest
of the join condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidegate.columns import SELECTED
from tidegate.physical.operator_kind import Rejection, Unrunnable, calls_user_function
from tidegate.physical.stage_sql import MaskedWriter, carries_op, when_selected
from tidegate.physical.typed import Operands, Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.sql import expressions as ex
from tidegate.sql.dialect import to_sql
from tidegate.sql.quoting import quote_identifier

# The matching rows, and one of them.
FOUND, _ONE = "_tg_found", "_tg_one"
_EXACT = ("TINYINT", "SMALLINT", "INT", "BIGINT", "DECIMAL")
_KEYS = (*_EXACT, "BOOLEAN", "STRING", "VARCHAR", "CHAR", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ")


@dataclass(frozen=True)
class LookupColumns:
    """The columns that a lookup reads, with their types, and the key columns."""

    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]


@dataclass(frozen=True)
class EnrichSql:
    """The stages around a lookup; `below` and `above` name a view that is created later."""

    # Columns that are passed on, as (name in the task, SQL).
    passed_columns: tuple[tuple[str, str], ...]
    keys: tuple[tuple[str, str], ...]
    above: tuple[str, ...]
    matches: str

    def below_sql(self, below: str) -> str:
        columns = [f"{sql} AS {name}" for name, sql in (*self.passed_columns, *self.keys)]
        return f"SELECT {', '.join(columns)} FROM {below}"

    def above_sql(self, view: str) -> str:
        return (
            f"SELECT {', '.join(self.above)} FROM {quote_identifier(view)} "
            f"LATERAL VIEW OUTER explode({self.matches}) generated AS {_ONE}"
        )


def table_of(node: n.Join) -> n.LookupScan:
    assert isinstance(node.right, n.LookupScan), "a lookup join asks a lookup table"
    return node.right


def lookup_columns(node: n.Join, types: Types) -> LookupColumns:
    table = table_of(node)
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
    if any(calls_user_function(piece) for piece in rest(node)):
        yield Rejection(
            "functions of your own in the condition of a lookup join, beside its keys, cannot run "
            "yet",
            "call them in the SELECT list of a stream below or above the join.",
        )


def enrich_sql(node: n.Join, types: Types, writer: MaskedWriter) -> EnrichSql:
    """Build the SQL around a lookup, with the hidden columns of a writer."""
    input_columns = [quote_identifier(item.id) for item in node.left.fields]
    input_columns += ["_op"] if carries_op(node.left) else []
    passed_names = {sql: f"p{index}" for index, sql in enumerate(input_columns)}
    hidden = {name: name for name in writer.hidden}
    keys = tuple((f"k{index}", _key(pair, types)) for index, pair in enumerate(node.lookup_keys))
    keys = keys or (("k0", "true"),)
    table_positions = {item.id: index for index, item in enumerate(table_of(node).fields)}
    above = [f"{name} AS {sql}" for sql, name in passed_names.items()]
    above += [
        f"{_ONE}.f{table_positions[item.id]} AS {quote_identifier(item.id)}"
        for item in node.fields
        if item.id in table_positions
    ]
    above += writer.carried
    above.append(
        f"{SELECTED} AND {_ONE} IS NOT NULL AS {SELECTED}" if node.how == "INNER" else SELECTED
    )
    named = tuple((name, sql) for sql, name in {**hidden, **passed_names}.items())
    return EnrichSql(named, keys, tuple(above), _found(node, table_positions, passed_names))


def _found(node: n.Join, table_positions: dict[str, int], passed_names: dict[str, str]) -> str:
    """Filter the matching table rows by the rest of the join condition."""
    other = ex.conjunction(rest(node))
    if other is None:
        return FOUND

    def swap(part: exp.Expr) -> exp.Expr:
        if not isinstance(part, exp.Column):
            return part
        if part.name in table_positions:
            return exp.column(f"f{table_positions[part.name]}", table=_ONE)
        return exp.column(passed_names[quote_identifier(part.name)])

    condition = to_sql(other.copy().transform(swap))
    return when_selected(f"filter({FOUND}, {_ONE} -> {condition})")


def rest(node: n.Join) -> list[exp.Expr]:
    """Return the join condition without the keys of the lookup."""
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
    kinds = tuple(kind.partition("(")[0] for kind in (key_type, column_type))
    if kinds[1] not in _KEYS:
        raise Unrunnable(
            Rejection(
                f"{_plain(left, right)}: a lookup by values of type {column_type} cannot run yet",
                "look up by a whole number, a text, a time or a decimal.",
            )
        )
    exact = all(kind in _EXACT for kind in kinds)
    times = all(kind in ("TIMESTAMP", "TIMESTAMP_NTZ") for kind in kinds)
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
    """Reject what cannot be handed to a task."""
    for name, kind in columns:
        try:
            arrow_type(kind)
        except ValueError as error:
            text = f"the column {name} of the lookup table {table}: {error}"
            raise Unrunnable(Rejection(text, f"leave {name} out.")) from None
