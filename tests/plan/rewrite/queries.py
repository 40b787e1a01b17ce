"""Random scripts of streams over four small tables, and random rows for the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

SOURCES = """
SET validator = 'off';
CREATE SOURCE a (id BIGINT NOT NULL, k BIGINT, x BIGINT, s STRING, tags ARRAY<STRING>,
    ts TIMESTAMP, WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE b (id BIGINT NOT NULL, k BIGINT, y BIGINT, s STRING, w DOUBLE, ts TIMESTAMP,
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE SOURCE u (k BIGINT NOT NULL, v BIGINT, s STRING, ts TIMESTAMP, PRIMARY KEY (k),
    WATERMARK FOR ts AS ts) WITH (connector = 'memory');
CREATE LOOKUP TABLE z (k BIGINT, name STRING, PRIMARY KEY (k)) WITH (connector = 'memory');
"""
TABLES = """
CREATE OR REPLACE TABLE a (id BIGINT, k BIGINT, x BIGINT, s VARCHAR, tags VARCHAR[], ts TIMESTAMP);
CREATE OR REPLACE TABLE b (id BIGINT, k BIGINT, y BIGINT, s VARCHAR, w DOUBLE, ts TIMESTAMP);
CREATE OR REPLACE TABLE u (k BIGINT, v BIGINT, s VARCHAR, ts TIMESTAMP, _n BIGINT);
CREATE OR REPLACE TABLE z (k BIGINT, name VARCHAR);
"""
COLUMNS = {
    "a": (("id", "int"), ("k", "int"), ("x", "int"), ("s", "text"), ("ts", "time")),
    "b": (("id", "int"), ("k", "int"), ("y", "int"), ("s", "text"), ("w", "float"), ("ts", "time")),
    "u": (("k", "int"), ("v", "int"), ("s", "text"), ("ts", "time")),
}
START = datetime(2024, 1, 1)
# Most of them select many rows, because an empty result proves nothing.
OPERATORS = ("=", "<>", "<>", "<>", "<=", "<=", ">=", ">=", "<", ">")
HOWS = ("", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI")
WINDOWS = (
    "TUMBLE({0}ts, INTERVAL '3' MINUTE)",
    "TUMBLE({0}ts, INTERVAL '3' MINUTE, INTERVAL '1' MINUTE)",
    "HOP({0}ts, INTERVAL '2' MINUTE, INTERVAL '5' MINUTE)",
)
SESSION = "SESSION({0}ts, INTERVAL '1' MINUTE)"

Row = tuple[Any, ...]


def rows(random: Random) -> dict[str, list[Row]]:
    """Return a few rows for each table, with NULLs and equal values."""

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.15 else value

    def number() -> Any:
        return maybe(random.randrange(-1, 4))

    def word() -> Any:
        return maybe(random.choice(["p", "q", "pq", ""]))

    def time() -> datetime:
        return START + timedelta(seconds=random.randrange(0, 600, 20))

    def tags() -> Any:
        return maybe([word() for _ in range(random.randrange(3))])

    count = random.randrange(6, 20)
    return {
        "a": [(i, number(), number(), word(), tags(), time()) for i in range(count)],
        "b": [
            (i, number(), number(), word(), maybe(random.choice([0.0, 1.5, -0.0])), time())
            for i in range(random.randrange(6, 20))
        ],
        "u": [
            (random.randrange(-1, 4), number(), word(), time(), i)
            for i in range(random.randrange(6, 20))
        ],
        "z": [(k, random.choice(["p", "q"])) for k in random.sample(range(-1, 4), 3)],
    }


@dataclass(frozen=True)
class Query:
    """A query and its columns by name and type."""

    sql: str
    columns: tuple[tuple[str, str], ...]

    def of(self, *types: str) -> list[str]:
        return [name for name, kind in self.columns if kind in types]


@dataclass
class Script:
    """Writes random streams, which may read previous streams."""

    random: Random
    streams: dict[str, Query] = field(default_factory=dict)
    count: int = 0

    def write(self) -> str:
        """Return a script whose last stream is `s`."""
        parts: list[str] = []
        for number in range(self.random.choice([0, 0, 1])):
            query = self.query(2)
            parts.append(f"CREATE STREAM s{number} AS {query.sql};")
            self.streams[f"s{number}"] = query
        # Most are simple: deep queries return few rows. Joins have the most rules.
        depth = self.random.choice([0, 0, 0, 1, 1, 2, 3])
        shape = self.joined if self.random.random() < 0.4 else self.query
        last = self.filtered(shape(depth))
        return "\n".join([*parts, f"CREATE STREAM s AS {last.sql};"])

    # Tables

    def alias(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def table(self, depth: int) -> tuple[str, Query]:
        """Return a table in FROM with an alias, and its columns with that alias."""
        name = self.alias()
        if self.streams and self.random.random() < 0.4:
            stream = self.random.choice(sorted(self.streams))
            return f"{stream} AS {name}", self.named(name, self.streams[stream].columns)
        if depth > 0 and self.random.random() < 0.5:
            inner = self.query(depth - 1)
            return f"({inner.sql}) AS {name}", self.named(name, inner.columns)
        source = self.random.choice(["a", "a", "b", "b", "u"])
        return f"{source} AS {name}", self.named(name, COLUMNS[source])

    def windowed(self, source: str) -> tuple[str, Query]:
        name = self.alias()
        window_columns = (("window_start", "time"), ("window_end", "time"))
        columns = tuple((c, k) for c, k in COLUMNS[source]) + window_columns
        return f"TUMBLE({source}, ts, INTERVAL '3' MINUTE) AS {name}", self.named(name, columns)

    def named(self, alias: str, columns: tuple[tuple[str, str], ...]) -> Query:
        return Query("", tuple((f"{alias}.{name}", kind) for name, kind in columns))

    # Expressions

    def literal(self, kind: str) -> str:
        if kind == "int":
            return str(self.random.randrange(-1, 4))
        if kind == "float":
            return "1.5"
        if kind == "time":
            time = START + timedelta(minutes=self.random.randrange(10))
            return f"TIMESTAMP '{time:%Y-%m-%d %H:%M:%S}'"
        return self.random.choice(["'p'", "'q'", "'pq'"])

    def scalar(self, columns: Query) -> tuple[str, str]:
        """Return an expression and its type."""
        name, kind = self.random.choice(columns.columns)
        if self.random.random() < 0.6:
            return name, kind
        if kind == "int":
            forms = (
                "({0} + 1)",
                "coalesce({0}, 7)",
                "({0} * {0})",
                "(-{0})",
                "CASE WHEN {0} > 1 THEN 1 END",
            )
            return self.random.choice(forms).format(name), "int"
        if kind == "text":
            forms = ("upper({0})", "coalesce({0}, 'none')", "lower({0})")
            return self.random.choice(forms).format(name), "text"
        return name, kind

    def condition(self, columns: Query, depth: int = 1) -> str:
        roll = self.random.random()
        if depth and roll < 0.2:
            word = self.random.choice(["AND", "OR"])
            one, other = self.condition(columns, 0), self.condition(columns, 0)
            return f"({one} {word} {other})"
        if depth and roll < 0.25:
            return f"NOT ({self.condition(columns, 0)})"
        left, kind = self.scalar(columns)
        if roll < 0.4:
            return f"{left} IS {self.random.choice(['', 'NOT ', 'NOT '])}NULL"
        if roll < 0.5 and kind != "float":
            return f"{left} IN ({', '.join(self.literal(kind) for _ in range(4))})"
        if roll < 0.6 and kind == "int":
            low = self.random.randrange(-1, 2)
            return f"{left} BETWEEN {low} AND {low + 2}"
        others = [name for name in columns.of(kind) if name not in left]
        right = self.literal(kind)
        if others and self.random.random() < 0.2:
            right = self.random.choice(others)
        return f"{left} {self.random.choice(OPERATORS)} {right}"

    def conditions(self, columns: Query, word: str = "WHERE") -> str:
        count = self.random.choice([0, 0, 1, 1, 2])
        parts = [self.condition(columns) for _ in range(count)]
        return f" {word} " + " AND ".join(parts) if parts else ""

    # Queries

    def query(self, depth: int) -> Query:
        shapes = (self.selected, self.grouped, self.grouped, self.joined, self.joined, self.joined)
        shapes += (
            self.distinct,
            self.top,
            self.union,
            self.exploded,
            self.over,
            self.subquery_predicate,
        )  # type: ignore[operator]
        return self.random.choice(shapes)(depth)

    def items(self, columns: Query, at_most: int = 4) -> Query:
        """Return a SELECT list as the text of a query."""
        chosen = [self.scalar(columns) for _ in range(self.random.randrange(1, at_most + 1))]
        # Event times allow windows and joins by time in later streams.
        times = columns.of("time")
        if times and self.random.random() < 0.5:
            chosen.append((self.random.choice(times), "time"))
        names = [f"c{index}" for index, _ in enumerate(chosen)]
        text = ", ".join(f"{sql} AS {name}" for (sql, _), name in zip(chosen, names, strict=True))
        kinds = tuple((name, kind) for (_, kind), name in zip(chosen, names, strict=True))
        return Query(text, kinds)

    def selected(self, depth: int) -> Query:
        table, columns = self.table(depth)
        items = self.items(columns)
        return Query(f"SELECT {items.sql} FROM {table}{self.conditions(columns)}", items.columns)

    def subquery_predicate(self, depth: int) -> Query:
        """IN, EXISTS and NOT EXISTS, which become semi and anti joins."""
        table, columns = self.table(depth)
        numbers = columns.of("int")
        if not numbers:
            return self.selected(depth)
        key = self.random.choice(numbers)
        inner = self.named("q", COLUMNS["b"])
        where = f"q.k = {key}" + self.conditions(inner, "AND")
        tests = [
            f"{key} IN (SELECT q.k FROM b AS q{self.conditions(inner)})",
            f"EXISTS (SELECT 1 FROM b AS q WHERE {where})",
            f"NOT EXISTS (SELECT 1 FROM b AS q WHERE {where})",
        ]
        items = self.items(columns)
        text = f"SELECT {items.sql} FROM {table} WHERE {self.random.choice(tests)}"
        return Query(text + self.conditions(columns, "AND"), items.columns)

    def filtered(self, inner: Query) -> Query:
        """Return a query with a condition on its result."""
        if self.random.random() < 0.2:
            return inner
        name = self.alias()
        columns = self.named(name, inner.columns)
        kept = [c for c in inner.columns if self.random.random() < 0.6] or inner.columns[:1]
        items = ", ".join(column for column, _ in kept)
        text = f"SELECT {items} FROM ({inner.sql}) AS {name}{self.conditions(columns)}"
        return Query(text, tuple(kept))

    def joined(self, depth: int) -> Query:
        roll = self.random.random()
        if roll < 0.2:
            return self.temporal()
        if roll < 0.26:
            return self.lookup(depth)
        if roll < 0.4:
            left, one = self.windowed(self.random.choice(["a", "b"]))
            right, other = self.windowed(self.random.choice(["a", "b"]))
            sides = [q.of("time")[-1].split(".")[0] for q in (one, other)]
            keys = [f"{sides[0]}.window_end = {sides[1]}.window_end"]
        else:
            (left, one), (right, other) = self.table(depth), self.table(depth)
            keys = []
            times = one.of("time"), other.of("time")
            if all(times) and self.random.random() < 0.4:
                low, high = (self.random.choice(side) for side in times)
                keys.append(f"{low} BETWEEN {high} - INTERVAL '2' MINUTE AND {high}")
        # More keys would select few pairs.
        for kind, probability in (("int", 0.7), ("text", 0.2)):
            if one.of(kind) and other.of(kind) and self.random.random() < probability:
                sign = self.random.choice(["=", "=", "=", "<=>"])
                keys.append(
                    f"{self.random.choice(one.of(kind))} {sign} {self.random.choice(other.of(kind))}"
                )
        how = self.random.choice(HOWS)
        both = Query("", one.columns + other.columns)
        side = self.random.choice([one, other] if how else [one, other, both])
        keys += [self.condition(side) for _ in range(self.random.choice([0, 0, 1, 1]))]
        shown = one if how in ("LEFT SEMI", "LEFT ANTI") else both
        items = self.items(shown, 5)
        on = " AND ".join(keys) or "true"
        return Query(
            f"SELECT {items.sql} FROM {left} {how} JOIN {right} ON {on}{self.conditions(shown)}",
            items.columns,
        )

    def temporal(self) -> Query:
        how = self.random.choice(["", "LEFT"])
        one, other = self.named("l", COLUMNS["a"]), self.named("r", COLUMNS["u"])
        if self.random.random() < 0.4:
            # Rows with equal times would make the nearest row ambiguous.
            inner = "(SELECT k, ts, max(y) AS v, max(s) AS s FROM b GROUP BY k, ts) AS r"
            sign = self.random.choice([">=", ">=", "<="])
            clause = f"ASOF {how} JOIN {inner} MATCH_CONDITION (l.ts {sign} r.ts) ON l.k = r.k"
            if self.random.random() < 0.3:
                clause += " AND abs(r.ts - l.ts) <= INTERVAL '2' MINUTE"
            condition_columns = self.random.choice([one, other])
        else:
            table = "u"
            if self.random.random() < 0.4:
                where = self.condition(Query("", tuple(COLUMNS["u"])))
                table = f"(SELECT * FROM u WHERE {where})"
            clause = f"{how} JOIN {table} FOR SYSTEM_TIME AS OF l.ts AS r ON l.k = r.k"
            condition_columns = Query("", one.columns + other.columns)
        if self.random.random() < 0.4:
            clause += f" AND {self.condition(condition_columns)}"
        both = Query("", one.columns + other.columns)
        items = self.items(both, 5)
        text = f"SELECT {items.sql} FROM a AS l {clause}{self.conditions(both)}"
        return Query(text, items.columns)

    def lookup(self, depth: int) -> Query:
        left, one = self.table(depth)
        keys = one.of("int")
        if not keys:
            return self.selected(depth)
        how = self.random.choice(["", "LEFT"])
        both = Query("", (*one.columns, ("z.k", "int"), ("z.name", "text")))
        items = self.items(both, 5)
        on = f"{self.random.choice(keys)} = z.k"
        return Query(
            f"SELECT {items.sql} FROM {left} {how} JOIN z ON {on}{self.conditions(both)}",
            items.columns,
        )

    def grouped(self, depth: int) -> Query:
        window = ""
        if self.random.random() < 0.5:
            source = self.random.choice(["a", "b"])
            table, columns = f"{source} AS g", self.named("g", COLUMNS[source])
            window = self.random.choice([*WINDOWS, SESSION]).format("g.")
        else:
            table, columns = self.table(depth)
        keys = [self.scalar(columns) for _ in range(self.random.randrange(3))]
        names = [(f"k{index}", kind) for index, (_, kind) in enumerate(keys)]
        items = [f"{sql} AS {name}" for (sql, _), (name, _) in zip(keys, names, strict=True)]
        if window:
            items += ["window_start AS ws", "window_end AS we"]
            names += [("ws", "time"), ("we", "time")]
        calls = [("count(*)", "int")]
        calls += [(f"max({name})", "int") for name in columns.of("int")[:2]]
        calls += [(f"min({name})", "text") for name in columns.of("text")[:1]]
        for index, (call, kind) in enumerate(
            self.random.sample(calls, self.random.randrange(1, len(calls) + 1))
        ):
            items.append(f"{call} AS n{index}")
            names.append((f"n{index}", kind))
        by = [sql for sql, _ in keys] + ([window] if window else [])
        text = f"SELECT {', '.join(items)} FROM {table}{self.conditions(columns)}"
        text += f" GROUP BY {', '.join(by)}" if by else ""
        having = Query("", (("count(*)", "int"), *((sql, kind) for sql, kind in keys)))
        text += self.conditions(having, "HAVING") if self.random.random() < 0.4 else ""
        return Query(text, tuple(names))

    def distinct(self, depth: int) -> Query:
        inner = self.selected(depth)
        return Query(inner.sql.replace("SELECT", "SELECT DISTINCT", 1), inner.columns)

    def top(self, depth: int) -> Query:
        table, columns = self.table(depth)
        part = self.random.sample(
            columns.columns, self.random.randrange(min(3, len(columns.columns)))
        )
        by = f"PARTITION BY {', '.join(name for name, _ in part)} " if part else ""
        order = self.random.choice(columns.columns)[0]
        function = self.random.choice(["rank", "dense_rank"])
        items = ", ".join(f"{name} AS c{index}" for index, (name, _) in enumerate(columns.columns))
        named = tuple((f"c{index}", kind) for index, (_, kind) in enumerate(columns.columns))
        ranked = f"SELECT {items}, {function}() OVER ({by}ORDER BY {order}) AS r FROM {table}"
        kept = [c for c in named if self.random.random() < 0.7] or list(named[:1])
        kept += [("r", "int")] if self.random.random() < 0.4 else []
        limit = self.random.randrange(1, 4)
        text = f"SELECT {', '.join(name for name, _ in kept)} FROM ({ranked}) WHERE r <= {limit}"
        return Query(text + self.conditions(Query("", named), "AND"), tuple(kept))

    def over(self, depth: int) -> Query:
        table, columns = self.table(depth)
        numbers = columns.of("int")
        if not numbers:
            return self.selected(depth)
        part = self.random.choice(columns.columns)[0]
        items = self.items(columns)
        call = f"max({self.random.choice(numbers)}) OVER (PARTITION BY {part})"
        return Query(
            f"SELECT {items.sql}, {part} AS p, {call} AS m FROM {table}{self.conditions(columns)}",
            (*items.columns, ("p", dict(columns.columns)[part]), ("m", "int")),
        )

    def union(self, depth: int) -> Query:
        members = [self.selected(depth - 1 if depth else 0) for _ in range(2)]
        kinds = [tuple(kind for _, kind in member.columns) for member in members]
        if kinds[0] != kinds[1]:
            members[1] = Query(members[0].sql, members[0].columns)
        word = self.random.choice(["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT"])
        return Query(f" {word} ".join(member.sql for member in members), members[0].columns)

    def exploded(self, depth: int) -> Query:
        outer = self.random.choice(["", "OUTER "])
        columns = Query("", (*self.named("e", COLUMNS["a"]).columns, ("tag", "text")))
        items = self.items(columns)
        text = f"SELECT {items.sql} FROM a AS e LATERAL VIEW {outer}explode(e.tags) v AS tag"
        return Query(text + self.conditions(columns), items.columns)
