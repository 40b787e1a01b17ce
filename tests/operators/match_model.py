"""MATCH_RECOGNIZE twice: as SQL that is compiled to the operator, and as a plain matcher.

The matcher works in batch: it sorts all rows and tries all alternatives in the order of preference.
Patterns are nested tuples; a condition is a pair of SQL and a Python function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa

from tests.operators.harness import Harness, Row
from tests.support.compiling import accepted
from tidegate.columns import ARRIVAL_FILE, ARRIVAL_ROW, HASH
from tidegate.operators.kernels.keys import canonicalize, hash_rows
from tidegate.operators.match.matcher import TIME
from tidegate.operators.operator import NO_LIMITS, Operator
from tidegate.physical.match import KIND
from tidegate.physical.operator_kind import BuildContext
from tidegate.physical.stage_sql import PortSchema
from tidegate.physical.typed import Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.sql.quoting import quote_identifier

SECOND = 1_000_000
# ("var", name), ("seq", …), ("or", …), ("rep", pattern, minimum, maximum, reluctant)
Pattern = Any


# ---- The SQL


def pattern_sql(pattern: Pattern) -> str:
    kind, *rest = pattern
    if kind == "var":
        return str(rest[0])
    if kind == "seq":
        return "(" + " ".join(map(pattern_sql, rest)) + ")"
    if kind == "or":
        return "(" + " | ".join(map(pattern_sql, rest)) + ")"
    part, minimum, maximum, reluctant = rest
    short = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((minimum, maximum))
    short = short or "{" + f"{minimum},{'' if maximum is None else maximum}" + "}"
    return f"({pattern_sql(part)}){short}{'?' if reluctant else ''}"


def lengths(pattern: Pattern) -> set[int]:
    """Return possible lengths of a match; an unbounded repetition counts for two lengths."""
    kind, *rest = pattern
    if kind == "var":
        return {1}
    if kind == "or":
        return set().union(*map(lengths, rest))
    if kind == "seq":
        parts = [lengths(part) for part in rest]
        return {sum(sizes) for sizes in itertools.product(*parts)}
    part, minimum, maximum, _ = rest
    times = range(minimum, (minimum + 1 if maximum is None else maximum) + 1)
    return {n * size for n in times for size in lengths(part)}


class Rows:
    """What a condition or measure reads: the rows of a partition and their variables."""

    def __init__(self, rows: Sequence[Row], assigned: Sequence[tuple[int, str]]) -> None:
        self.rows, self.assigned = rows, assigned

    def positions(self, names: str | None) -> list[int]:
        return [at for at, name in self.assigned if names is None or name in names.split()]

    def price(self, at: int | None) -> Any:
        return None if at is None or at < 0 else self.rows[at].values[0]

    def last(self, names: str | None = None, offset: int = 0, back: int = 0) -> Any:
        rows = self.positions(names)
        return self.price(rows[-1 - offset] - back) if offset < len(rows) else None

    def first(self, names: str | None = None, offset: int = 0, back: int = 0) -> Any:
        rows = self.positions(names)
        return self.price(rows[offset] - back) if offset < len(rows) else None

    def prices(self, names: str | None = None) -> list[Any]:
        prices = [self.price(at) for at in self.positions(names)]
        return [price for price in prices if price is not None]


# A template of SQL and a function; {v} is a variable, {w} another one.
Expression = tuple[str, Callable[[Rows, str, str], Any]]


@dataclass(frozen=True)
class MatchQuery:
    """`conditions` and `measures` have two variables and an expression over them."""

    pattern: Pattern
    conditions: tuple[tuple[str, str, Expression], ...]
    measures: tuple[tuple[str, str, Expression], ...]
    skip: str = "PAST LAST ROW"
    within: int | None = None
    ttl_us: int | None = None
    keeps_late: bool = False

    @property
    def sql(self) -> str:
        defined = ", ".join(f"{v} AS {s[0].format(v=v, w=w)}" for v, w, s in self.conditions)
        measured = "".join(
            f", {s[0].format(v=v, w=w)} AS m{i}" for i, (v, w, s) in enumerate(self.measures)
        )
        within = f"WITHIN INTERVAL '{self.within}' SECOND" if self.within is not None else ""
        return (
            "SELECT * FROM bids MATCH_RECOGNIZE (PARTITION BY bidder ORDER BY ts "
            f"MEASURES MATCH_ROWTIME() AS at{measured} "
            f"AFTER MATCH SKIP {self.skip} PATTERN ({pattern_sql(self.pattern)}) {within} "
            f"{'DEFINE ' + defined if defined else ''}) AS m"
        )

    @property
    def has_bounded_delay(self) -> bool:
        """Whether the delay of matches behind the watermark is bounded."""
        return self.within is not None or len(lengths(self.pattern)) == 1

    def build(self) -> tuple[Operator, PortSchema]:
        """Compile the SQL to the operator and its port, without Spark."""
        plan = optimize(accepted(self.sql, "state_ttl = '1 day', validator = 'off'"))
        node = next(node for node in n.walk(plan) if isinstance(node, n.Match))
        assert not list(KIND.rejections(node))
        built = KIND.build(node, BuildContext(_types(node), NO_LIMITS, self.keeps_late))
        return built.operator, built.ports[0]

    def harness(self) -> Harness:
        operator, port = self.build()
        operator = replace(operator, ttl_us=self.ttl_us)  # type: ignore[type-var]
        return Harness(lambda: operator, lambda rows: _stage(rows, port))

    # The plain matcher

    def in_batch(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Return the matches of all rows."""
        results: list[tuple[Any, ...]] = []
        for key in {row.keys for row in rows}:
            partition = sorted((r for r in rows if r.keys == key), key=lambda r: (r.ts, r.id))
            results += [
                (*key, *self._measures(partition, assigned))
                for assigned in self._matches(partition)
            ]
        return results

    def _measures(self, rows: Sequence[Row], assigned: list[tuple[int, str]]) -> list[Any]:
        inputs = Rows(rows, assigned)
        values = [function(inputs, v, w) for v, w, (_, function) in self.measures]
        return [rows[assigned[-1][0]].ts, *values]

    def _matches(self, rows: Sequence[Row]) -> Iterator[list[tuple[int, str]]]:
        start = 0
        while start < len(rows):
            assigned = next(self._alternatives(self.pattern, rows, start, []), None)
            if assigned is None:
                start += 1
                continue
            yield assigned
            start = self._next_start(assigned)

    def _next_start(self, assigned: list[tuple[int, str]]) -> int:
        if self.skip == "PAST LAST ROW":
            return assigned[-1][0] + 1
        if self.skip == "TO NEXT ROW":
            return assigned[0][0] + 1
        _, end, name = self.skip.split()
        rows = [at for at, variable in assigned if variable == name]
        return rows[0] if end == "FIRST" else rows[-1]

    def _alternatives(
        self, pattern: Pattern, rows: Sequence[Row], first: int, assigned: list[tuple[int, str]]
    ) -> Iterator[list[tuple[int, str]]]:
        """Yield all ways to match a pattern after the assigned rows, in the order of preference."""
        kind, *rest = pattern
        if kind == "var":
            extended = self._assign(rest[0], rows, first, assigned)
            if extended is not None:
                yield extended
        elif kind == "or":
            for part in rest:
                yield from self._alternatives(part, rows, first, assigned)
        elif kind == "seq":
            head, *tail = rest
            for extended in self._alternatives(head, rows, first, assigned):
                if tail:
                    yield from self._alternatives(("seq", *tail), rows, first, extended)
                else:
                    yield extended
        else:
            yield from self._repetitions(rest, rows, first, assigned)

    def _repetitions(
        self, rest: list[Any], rows: Sequence[Row], first: int, assigned: list[tuple[int, str]]
    ) -> Iterator[list[tuple[int, str]]]:
        part, minimum, maximum, reluctant = rest
        if reluctant and minimum == 0:
            yield assigned
        if maximum is None or maximum > 0:
            fewer = (
                "rep",
                part,
                max(0, minimum - 1),
                None if maximum is None else maximum - 1,
                reluctant,
            )
            for extended in self._alternatives(part, rows, first, assigned):
                yield from self._alternatives(fewer, rows, first, extended)
        if not reluctant and minimum == 0:
            yield assigned

    def _assign(
        self, name: str, rows: Sequence[Row], first: int, assigned: list[tuple[int, str]]
    ) -> list[tuple[int, str]] | None:
        at = first + len(assigned)
        if at >= len(rows):
            return None
        if self.within is not None and rows[at].ts - rows[first].ts >= self.within * SECOND:
            return None
        extended = [*assigned, (at, name)]
        for v, w, (_, function) in self.conditions:
            if v == name and function(Rows(rows, extended), v, w) is not True:
                return None
        return extended


# ---- The stage before the operator, which Spark would run

_connection = duckdb.connect(config={"threads": 1})
_connection.execute("SET TimeZone = 'UTC'")
_connection.execute("CREATE MACRO unix_micros(x) AS epoch_us(x)")
_NAMES = {"INTEGER": "INT", "HUGEINT": "BIGINT", "VARCHAR": "STRING", "INT128": "BIGINT"}
_EMPTY = pa.schema(
    [
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("ts", pa.timestamp("us")),
        (ARRIVAL_FILE, pa.string()),
        (ARRIVAL_ROW, pa.int64()),
    ]
)


def _duck_sql(sql: str) -> str:
    return sql.replace("`", '"').replace("1L", "1").replace("COLLECT_LIST", "list")


def _types(node: n.Match) -> Types:
    """Return the types of operands and fields, inferred by DuckDB."""
    input_table = _EMPTY.empty_table()  # noqa: F841
    types = {quote_identifier(item.id): item.type or "?" for item in node.input.fields}
    texts = [text for operands in KIND.operands(node) for text in operands.sql]
    for item, part in zip(node.fields[1:], node.measures, strict=True):
        tree = part.value if isinstance(part, n.Navigation) else part.call
        texts.append(f"{tree.sql('spark')} /* {item.id} */")
    for text in texts:
        kind = str(_connection.sql(f"SELECT {_duck_sql(text)} FROM input_table").types[0])
        types[text] = _NAMES.get(kind, kind).replace("BIGINT[]", "ARRAY<BIGINT>")
    for item, text in zip(node.fields[1:], texts[len(texts) - len(node.measures) :], strict=True):
        types[quote_identifier(item.id)] = types[text]
    return Types(types)


def _stage(rows: Sequence[Row], port: PortSchema) -> pa.Table:
    """Compute the columns that the operator reads."""
    input_table = pa.table(  # noqa: F841
        [
            pa.array([row.keys[0] for row in rows], pa.int64()),
            pa.array([row.values[0] for row in rows], pa.int64()),
            pa.array([row.ts for row in rows], pa.int64()).cast(pa.timestamp("us")),
            pa.array(["" for _ in rows]),
            pa.array([row.id for row in rows], pa.int64()),
        ],
        schema=_EMPTY,
    )
    computed = dict(port.stage)
    columns = [f"{_duck_sql(computed[source])} AS {name}" for name, source in port.columns]
    result = _connection.sql(f"SELECT {', '.join(columns)} FROM input_table").arrow()
    if isinstance(result, pa.RecordBatchReader):
        result = result.read_all()
    result = result.cast(pa.schema([_utc(item) for item in result.schema]))
    keys = [canonicalize(result.column(name)) for name in result.column_names if name == "k0"]
    return result.append_column(HASH, pa.array(hash_rows(keys, result.num_rows)))


def _utc(item: pa.Field) -> pa.Field:
    kind = {pa.int32(): pa.int64() if item.name == TIME else pa.int32()}.get(item.type, item.type)
    return pa.field(item.name, arrow_type("TIMESTAMP") if pa.types.is_timestamp(kind) else kind)
