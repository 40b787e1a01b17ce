"""Facts about expressions: what they call, what they refer to, how long an interval is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

from sqlglot import exp

from tidegate.errors import Location, SqlError
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import Span, parse_duration, unit_micros

# ---- The names by which plans, and Spark, know functions of Python.
#
# A name holds the version and whether the function is deterministic, so that an expression says by
# itself what state may depend on, and another version is another expression.

_NAME = re.compile(r"\b(\w+?)__(PYTHON|UNSTABLE)_([0-9A-F]{12})\b", re.IGNORECASE)

_CALL = re.compile(r"\b(\w+__(?:PYTHON|UNSTABLE)_[0-9A-F]{12})\(", re.IGNORECASE)


def registered_name(name: str, version: str, deterministic: bool) -> str:
    """Upper case, as plans have the names of functions."""
    return f"{name}__{'PYTHON' if deterministic else 'UNSTABLE'}_{version}".upper()


def is_python(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_unstable(name: str) -> bool:
    """Whether a function of Python may give something else when it is called again."""
    match = _NAME.fullmatch(name)
    return match is not None and match.group(2).upper() == "UNSTABLE"


def for_rows_only(name: str) -> str:
    """The same function with one more argument in front: whether a row is there at all."""
    return f"{name}_ROWS"


def calls_for_rows_only(sql: str, live: str) -> str:
    """SQL that tells functions of Python which rows are there: `live` is the column for it."""
    return _CALL.sub(lambda match: f"{for_rows_only(match.group(1))}({live}, ", sql)


def with_plain_names(text: str) -> str:
    """A text with the names that people gave."""
    return _NAME.sub(lambda match: match.group(1).lower(), text)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WINDOW_FUNCTIONS = frozenset({"TUMBLE", "HOP", "SESSION", "CUMULATE"})
# Spark's own window functions bring Spark's watermark along, which Tidegate does not use.
SPARK_WINDOW_FUNCTIONS = frozenset({"WINDOW", "SESSION_WINDOW", "WINDOW_TIME"})
RANK_FUNCTIONS = frozenset({"ROW_NUMBER", "RANK", "DENSE_RANK"})
# Functions of ours that Spark does not have.
OWN_FUNCTIONS = WINDOW_FUNCTIONS | {"PROCTIME"}

# Their value differs when an epoch is replayed.
VOLATILE_FUNCTIONS = _words(
    """RAND RANDOM RANDN RANDSTR UNIFORM UUID NOW CURRENT_TIMESTAMP CURRENT_DATE CURDATE
    LOCALTIMESTAMP CURRENT_TIME MONOTONICALLY_INCREASING_ID SHUFFLE SPARK_PARTITION_ID
    JAVA_METHOD REFLECT TRY_REFLECT INPUT_FILE_NAME INPUT_FILE_BLOCK_START
    INPUT_FILE_BLOCK_LENGTH"""
)

# Written twice, they give two values.
RANDOM_FUNCTIONS = _words("RAND RANDOM RANDN RANDSTR UNIFORM UUID SHUFFLE")

# Their first argument may be a unit; the grammar knows them, and so the list of functions does not.
UNIT_FUNCTIONS = _words("TIMESTAMPADD TIMESTAMPDIFF DATEADD DATE_ADD DATEDIFF DATE_DIFF TIMEDIFF")
UNITS = _words("YEAR QUARTER MONTH WEEK DAY DAYOFYEAR HOUR MINUTE SECOND MILLISECOND MICROSECOND")

# Functions that make several rows out of one.
GENERATOR_FUNCTIONS = _words(
    """EXPLODE EXPLODE_OUTER POSEXPLODE POSEXPLODE_OUTER INLINE INLINE_OUTER STACK JSON_TUPLE
    VARIANT_EXPLODE VARIANT_EXPLODE_OUTER"""
)


@cache
def spark_functions() -> frozenset[str]:
    """The names of Spark's built-in functions, in upper case; a data file, so without Spark."""
    return _listed("spark_functions.txt")


@cache
def aggregate_functions() -> frozenset[str]:
    """Those of them that are aggregates."""
    return _listed("spark_aggregates.txt")


def _listed(file: str) -> frozenset[str]:
    text = resources.files("tidegate.sql").joinpath(file).read_text("utf-8")
    return frozenset(text.upper().split())


def call_name(node: exp.Expr) -> str | None:
    """The upper-case name of a function call, None for anything else."""
    if isinstance(node, exp.Anonymous):
        name = node.this
        return (name if isinstance(name, str) else name.name).upper()
    if isinstance(node, exp.CurrentTimestamp):
        return "CURRENT_TIMESTAMP"
    if isinstance(node, exp.CurrentDate):
        return "CURRENT_DATE"
    return None


def calls(node: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    """Every function call inside an expression, with its name."""
    for part in node.walk():
        name = call_name(part)
        if name is not None:
            yield name, part


def own_parts(node: exp.Expr) -> Iterator[exp.Expr]:
    """The parts of an expression; of a subquery only the whole, what is in it is its own."""
    yield from node.walk(prune=lambda part: isinstance(part, exp.Query))


def has_generator(node: exp.Expr) -> bool:
    """Whether an expression makes several rows out of one."""
    return any(call_name(part) in GENERATOR_FUNCTIONS for part in own_parts(node))


def is_scalar(node: exp.Expr) -> bool:
    """Whether it makes one value out of one row: no aggregate, no OVER, no generator."""
    return not (has_aggregate(node) or has_over(node) or has_generator(node))


def is_volatile_call(name: str, node: exp.Expr) -> bool:
    """Whether a call gives another value when the same rows are processed again."""
    if name == "UNIX_TIMESTAMP":
        return not node.expressions
    return name in VOLATILE_FUNCTIONS or is_unstable(name)


def is_random(node: exp.Expr) -> bool:
    """Whether an expression that is written twice gives two values."""
    return any(name in RANDOM_FUNCTIONS or is_unstable(name) for name, _ in calls(node))


def repeatable(node: exp.Expr) -> bool:
    """Whether an expression that is written twice gives one value; of other functions who knows."""
    return all(
        (name in spark_functions() or name in UNIT_FUNCTIONS) and not is_volatile_call(name, call)
        for name, call in calls(node)
    )


def is_over(node: exp.Expr) -> bool:
    """Whether this is a function with an OVER clause."""
    return isinstance(node, exp.Window)


def has_over(node: exp.Expr) -> bool:
    """Whether a function with an OVER clause stands in this expression outside of subqueries."""
    return any(is_over(part) for part in own_parts(node))


def is_aggregate_call(node: exp.Expr) -> bool:
    """Whether this node is an aggregate as a whole (FILTER and WITHIN GROUP included)."""
    if isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        return is_aggregate_call(node.this)
    return (call_name(node) or "") in aggregate_functions()


def has_aggregate(node: exp.Expr) -> bool:
    """Whether an aggregate stands in this expression outside of OVER and subqueries."""
    if isinstance(node, exp.Window):
        # The function itself is a window function; its arguments may hold real aggregates.
        inner = node.this
        while isinstance(inner, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
            inner = inner.this
        parts = [*inner.expressions, *node.args.get("partition_by", [])]
        order = node.args.get("order")
        parts += order.expressions if order is not None else []
        return any(has_aggregate(part) for part in parts)
    if isinstance(node, exp.Query):
        return False
    if is_aggregate_call(node):
        return True
    return any(has_aggregate(child) for child in node.iter_expressions())


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The parts of a condition that are joined by AND."""
    if node is None:
        return []
    node = node.unnest()
    if isinstance(node, exp.And):
        return conjuncts(node.left) + conjuncts(node.right)
    if isinstance(node, exp.Between) and not node.args.get("symmetric") and repeatable(node.this):
        low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
        high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
        return [low, high]
    return [node]


def conjunction(parts: list[exp.Expr]) -> exp.Expr | None:
    """The AND of conditions, None for none."""
    return exp.and_(*parts, copy=True) if parts else None


def interval_micros(node: exp.Expr) -> int | None:
    """Microseconds of a constant INTERVAL of fixed length; None for anything else."""
    node = node.unnest()
    if isinstance(node, exp.Add | exp.Sub):
        left, right = interval_micros(node.left), interval_micros(node.right)
        if left is None or right is None:
            return None
        return left + right if isinstance(node, exp.Add) else left - right
    if isinstance(node, exp.Neg):
        inner = interval_micros(node.this)
        return None if inner is None else -inner
    if not isinstance(node, exp.Interval) or node.this is None:
        return None
    unit = node.args.get("unit")
    if unit is None and isinstance(node.this, exp.Literal):
        return _duration(node.this.name)
    if unit is None or isinstance(unit, exp.IntervalSpan):
        return None
    micros = unit_micros(unit.name)
    value = node.this
    sign = 1
    if isinstance(value, exp.Neg):
        sign, value = -1, value.this
    if micros is None or not isinstance(value, exp.Literal):
        return None
    try:
        return sign * round(float(value.name) * micros)
    except ValueError:
        return None


def _duration(text: str) -> int | None:
    """INTERVAL '1 hour 30 minutes': the units are in the text."""
    try:
        return parse_duration(text)
    except ValueError:
        return None


def require_interval(node: exp.Expr, text: str, file: str | None, what: str) -> int:
    """Return the microseconds of an INTERVAL; raise an error with the expected form."""
    micros = interval_micros(node)
    if micros is None:
        raise SqlError(
            "TG-105",
            f"{what} must be a constant interval of fixed length, not {to_sql(node)}",
            location=location_of(node, text, file),
            hint="write for example INTERVAL '10' SECOND; months and years have no fixed length.",
        )
    return micros


def location_of(
    node: exp.Expr, text: str, file: str | None, fallback: Span | None = None
) -> Location:
    """Where an expression stands, or the fallback when it was not written by the user."""
    span = own_span(node) or fallback or Span(0, len(text))
    return Location(text, span.start, span.end, file)
