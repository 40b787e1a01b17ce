"""MATCH_RECOGNIZE twice: as SQL that goes the whole way to the operator, and as a plain matcher.

The matcher knows nothing of epochs: it sorts all rows and tries all ways in the order in which SQL
prefers them. Patterns are nested tuples, conditions are pairs of SQL and a Python function.
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
from tidegate.physical.operator_kind import Request
from tidegate.physical.stage_sql import PortPlan
from tidegate.physical.typed import Types, arrow_type
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize
from tidegate.sql.quoting import quoted

SECOND = 1_000_000
Pattern = Any  # ("var", name), ("seq", …), ("or", …), ("rep", pattern, least, most, reluctant)


# The SQL


def pattern_sql(pattern: Pattern) -> str:
    kind, *rest = pattern
    if kind == "var":
        return str(rest[0])
    if kind == "seq":
        return "(" + " ".join(map(pattern_sql, rest)) + ")"
    if kind == "or":
        return "(" + " | ".join(map(pattern_sql, rest)) + ")"
    part, least, most, reluctant = rest
    short = {(0, 1): "?", (0, None): "*", (1, None): "+"}.get((least, most))
    short = short or "{" + f"{least},{'' if most is None else most}" + "}"
    return f"({pattern_sql(part)}){short}{'?' if reluctant else ''}"


def lengths(pattern: Pattern) -> set[int]:
    """How many rows a match can have; more than a few are as good as one more."""
    kind, *rest = pattern
    if kind == "var":
        return {1}
    if kind == "or":
        return set().union(*map(lengths, rest))
    if kind == "seq":
        parts = [lengths(part) for part in rest]
        return {sum(chosen) for chosen in itertools.product(*parts)}
    part, least, most, _ = rest
    times = range(least, (least + 1 if most is None else most) + 1)
    return {n * size for n in times for size in lengths(part)}


class Rows:
    """What a condition or a measure sees: the rows of a partition, and which are taken for what."""

    def __init__(self, rows: Sequence[Row], taken: Sequence[tuple[int, str]]) -> None:
        self.rows, self.taken = rows, taken

    def places(self, names: str | None) -> list[int]:
        return [at for at, name in self.taken if names is None or name in names.split()]

    def price(self, at: int | None) -> Any:
        return None if at is None or at < 0 else self.rows[at].values[0]

    def last(self, names: str | None = None, offset: int = 0, back: int = 0) -> Any:
        found = self.places(names)
        return self.price(found[-1 - offset] - back) if offset < len(found) else None

    def first(self, names: str | None = None, offset: int = 0, back: int = 0) -> Any:
        found = self.places(names)
        return self.price(found[offset] - back) if offset < len(found) else None

    def prices(self, names: str | None = None) -> list[Any]:
        found = [self.price(at) for at in self.places(names)]
        return [price for price in found if price is not None]


Said = tuple[str, Callable[[Rows, str, str], Any]]


@dataclass(frozen=True)
class MatchQuery:
    """`conditions` and `measures` are (template, function): {v} is a variable, {w} another one."""

    pattern: Pattern
    conditions: tuple[tuple[str, str, Said], ...]
    measures: tuple[tuple[str, str, Said], ...]
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
    def is_on_time(self) -> bool:
        """Whether it is known how far behind the watermark matches come out."""
        sizes = lengths(self.pattern)
        return self.within is not None or len(sizes) == 1

    def built(self) -> tuple[Operator, PortPlan]:
        """The operator and its port, by all the layers there are but Spark."""
        plan = optimize(accepted(self.sql, "state_ttl = '1 day', validator = 'off'"))
        node = next(node for node in n.walk(plan) if isinstance(node, n.Match))
        assert not list(KIND.rejections(node))
        made = KIND.build(node, Request(_types(node), NO_LIMITS, self.keeps_late))
        return made.operator, made.ports[0]

    def harness(self) -> Harness:
        operator, port = self.built()
        operator = replace(operator, ttl_us=self.ttl_us)  # type: ignore[type-var]
        return Harness(lambda: operator, lambda rows: _stage(rows, port))

    # Batch

    def in_batch(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for key in {row.keys for row in rows}:
            own = sorted((r for r in rows if r.keys == key), key=lambda r: (r.ts, r.id))
            found += [(*key, *self._measured(own, taken)) for taken in self._matches(own)]
        return found

    def _measured(self, rows: Sequence[Row], taken: list[tuple[int, str]]) -> list[Any]:
        seen = Rows(rows, taken)
        said = [function(seen, v, w) for v, w, (_, function) in self.measures]
        return [rows[taken[-1][0]].ts, *said]

    def _matches(self, rows: Sequence[Row]) -> Iterator[list[tuple[int, str]]]:
        at = 0
        while at < len(rows):
            taken = next(self._ways(self.pattern, rows, at, []), None)
            if taken is None:
                at += 1
                continue
            yield taken
            at = self._next(taken)

    def _next(self, taken: list[tuple[int, str]]) -> int:
        if self.skip == "PAST LAST ROW":
            return taken[-1][0] + 1
        if self.skip == "TO NEXT ROW":
            return taken[0][0] + 1
        _, way, name = self.skip.split()
        places = [at for at, own in taken if own == name]
        return places[0] if way == "FIRST" else places[-1]

    def _ways(
        self, pattern: Pattern, rows: Sequence[Row], first: int, taken: list[tuple[int, str]]
    ) -> Iterator[list[tuple[int, str]]]:
        """All ways to go on, those that are preferred first."""
        kind, *rest = pattern
        if kind == "var":
            more = self._taken(rest[0], rows, first, taken)
            if more is not None:
                yield more
        elif kind == "or":
            for part in rest:
                yield from self._ways(part, rows, first, taken)
        elif kind == "seq":
            head, *tail = rest
            for more in self._ways(head, rows, first, taken):
                if tail:
                    yield from self._ways(("seq", *tail), rows, first, more)
                else:
                    yield more
        else:
            yield from self._repeated(rest, rows, first, taken)

    def _repeated(
        self, rest: list[Any], rows: Sequence[Row], first: int, taken: list[tuple[int, str]]
    ) -> Iterator[list[tuple[int, str]]]:
        part, least, most, reluctant = rest
        if reluctant and least == 0:
            yield taken
        if most is None or most > 0:
            less = ("rep", part, max(0, least - 1), None if most is None else most - 1, reluctant)
            for more in self._ways(part, rows, first, taken):
                yield from self._ways(less, rows, first, more)
        if not reluctant and least == 0:
            yield taken

    def _taken(
        self, name: str, rows: Sequence[Row], first: int, taken: list[tuple[int, str]]
    ) -> list[tuple[int, str]] | None:
        at = first + len(taken)
        if at >= len(rows):
            return None
        if self.within is not None and rows[at].ts - rows[first].ts >= self.within * SECOND:
            return None
        more = [*taken, (at, name)]
        for v, w, (_, function) in self.conditions:
            if v == name and function(Rows(rows, more), v, w) is not True:
                return None
        return more


# What Spark would do


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


def _duck(sql: str) -> str:
    return sql.replace("`", '"').replace("1L", "1").replace("COLLECT_LIST", "list")


def _types(node: n.Match) -> Types:
    """The types of operands and fields, as DuckDB finds them."""
    listed = _EMPTY.empty_table()  # noqa: F841
    known = {quoted(item.id): item.type or "?" for item in node.input.fields}
    texts = [text for operands in KIND.operands(node) for text in operands.sql]
    for item, part in zip(node.fields[1:], node.measures, strict=True):
        tree = part.value if isinstance(part, n.Navigation) else part.call
        texts.append(f"{tree.sql('spark')} /* {item.id} */")
    for text in texts:
        found = _connection.sql(f"SELECT {_duck(text)} FROM listed").types[0]
        known[text] = _NAMES.get(str(found), str(found)).replace("BIGINT[]", "ARRAY<BIGINT>")
    for item, text in zip(node.fields[1:], texts[len(texts) - len(node.measures) :], strict=True):
        known[quoted(item.id)] = known[text]
    return Types(known)


def _stage(rows: Sequence[Row], port: PortPlan) -> pa.Table:
    """The stage below the operator."""
    listed = pa.table(  # noqa: F841
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
    wanted = [f"{_duck(computed[given])} AS {name}" for name, given in port.columns]
    found = _connection.sql(f"SELECT {', '.join(wanted)} FROM listed").arrow()
    if isinstance(found, pa.RecordBatchReader):
        found = found.read_all()
    found = found.cast(pa.schema([_utc(item) for item in found.schema]))
    keys = [canonicalize(found.column(name)) for name in found.column_names if name == "k0"]
    return found.append_column(HASH, pa.array(hash_rows(keys, found.num_rows)))


def _utc(item: pa.Field) -> pa.Field:
    kind = {pa.int32(): pa.int64() if item.name == TIME else pa.int32()}.get(item.type, item.type)
    return pa.field(item.name, arrow_type("TIMESTAMP") if pa.types.is_timestamp(kind) else kind)
