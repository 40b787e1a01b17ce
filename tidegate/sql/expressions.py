"""Properties of expressions: calls, determinism, aggregates, conditions and intervals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources

from sqlglot import exp

from tidegate.errors import Location, SqlError
from tidegate.sql.dialect import own_span, to_sql
from tidegate.types import Span, parse_duration, unit_micros

# ---- The names of Python functions in plans and in Spark
#
# A name contains the version of the function and whether it is deterministic. A new version is
# therefore a different expression, and state can be checked without the catalog.

_NAME = re.compile(r"\b(\w+?)__(PYTHON|UNSTABLE)_([0-9A-F]{12})\b", re.IGNORECASE)

_CALL = re.compile(r"\b(\w+__(?:PYTHON|UNSTABLE)_[0-9A-F]{12})\(", re.IGNORECASE)


def registered_name(name: str, version: str, deterministic: bool) -> str:
    """Return the name of a Python function in plans and in Spark, in upper case."""
    return f"{name}__{'PYTHON' if deterministic else 'UNSTABLE'}_{version}".upper()


def is_python(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_nondeterministic(name: str) -> bool:
    """Return whether a name is that of a Python function that is not deterministic."""
    match = _NAME.fullmatch(name)
    return match is not None and match.group(2).upper() == "UNSTABLE"


def name_for_selected_rows(name: str) -> str:
    """Return the name of the variant of a Python function that takes a selection first."""
    return f"{name}_ROWS"


def calls_for_selected_rows(sql: str, selection: str) -> str:
    """Pass the column `selection` to Python functions, so that they skip other rows."""
    return _CALL.sub(lambda match: f"{name_for_selected_rows(match.group(1))}({selection}, ", sql)


def with_declared_names(text: str) -> str:
    """Replace the names of Python functions by the names that users declared."""
    return _NAME.sub(lambda match: match.group(1).lower(), text)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


WINDOW_FUNCTIONS = frozenset({"TUMBLE", "HOP", "SESSION", "CUMULATE"})
# Window functions of Spark use Spark's watermark, which Tidegate does not.
SPARK_WINDOW_FUNCTIONS = frozenset({"WINDOW", "SESSION_WINDOW", "WINDOW_TIME"})
# Functions that Spark does not have.
TIDEGATE_FUNCTIONS = WINDOW_FUNCTIONS | {"PROCTIME"}

# Functions whose value differs when an epoch is replayed.
VOLATILE_FUNCTIONS = _words(
    """RAND RANDOM RANDN RANDSTR UNIFORM UUID NOW CURRENT_TIMESTAMP CURRENT_DATE CURDATE
    LOCALTIMESTAMP CURRENT_TIME MONOTONICALLY_INCREASING_ID SHUFFLE SPARK_PARTITION_ID
    JAVA_METHOD REFLECT TRY_REFLECT INPUT_FILE_NAME INPUT_FILE_BLOCK_START
    INPUT_FILE_BLOCK_LENGTH"""
)

# Functions with a different value for each call in a row.
RANDOM_FUNCTIONS = _words("RAND RANDOM RANDN RANDSTR UNIFORM UUID SHUFFLE")

# Functions whose first argument can be a unit. They are part of Spark's grammar, and therefore not
# in its list of functions.
UNIT_FUNCTIONS = _words("TIMESTAMPADD TIMESTAMPDIFF DATEADD DATE_ADD DATEDIFF DATE_DIFF TIMEDIFF")
UNITS = _words("YEAR QUARTER MONTH WEEK DAY DAYOFYEAR HOUR MINUTE SECOND MILLISECOND MICROSECOND")

# Functions that return several rows for one.
GENERATOR_FUNCTIONS = _words(
    """EXPLODE EXPLODE_OUTER POSEXPLODE POSEXPLODE_OUTER INLINE INLINE_OUTER STACK JSON_TUPLE
    VARIANT_EXPLODE VARIANT_EXPLODE_OUTER"""
)


@cache
def spark_functions() -> frozenset[str]:
    """Return the names of Spark's built-in functions, in upper case, without starting Spark."""
    return _read_names("spark_functions.txt")


@cache
def aggregate_functions() -> frozenset[str]:
    """Return the names of Spark's built-in aggregates."""
    return _read_names("spark_aggregates.txt")


def _read_names(file: str) -> frozenset[str]:
    text = resources.files("tidegate.sql").joinpath(file).read_text("utf-8")
    return frozenset(text.upper().split())


def call_name(node: exp.Expr) -> str | None:
    """Return the upper-case name of a function call; None for other expressions."""
    if isinstance(node, exp.Anonymous):
        name = node.this
        return (name if isinstance(name, str) else name.name).upper()
    if isinstance(node, exp.CurrentTimestamp):
        return "CURRENT_TIMESTAMP"
    if isinstance(node, exp.CurrentDate):
        return "CURRENT_DATE"
    return None


def calls(node: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    """Yield the name and the call of every function call in an expression."""
    for part in node.walk():
        name = call_name(part)
        if name is not None:
            yield name, part


def walk_outside_subqueries(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the parts of an expression, without the parts of subqueries."""
    yield from node.walk(prune=lambda part: isinstance(part, exp.Query))


def has_generator(node: exp.Expr) -> bool:
    """Return whether an expression returns several rows for one."""
    return any(call_name(part) in GENERATOR_FUNCTIONS for part in walk_outside_subqueries(node))


def is_scalar(node: exp.Expr) -> bool:
    """Return whether an expression has no aggregate, window function or generator."""
    return not (has_aggregate(node) or has_window_function(node) or has_generator(node))


def is_volatile_call(name: str, node: exp.Expr) -> bool:
    """Return whether a call can have another value when an epoch is replayed."""
    if name == "UNIX_TIMESTAMP":
        return not node.expressions
    return name in VOLATILE_FUNCTIONS or is_nondeterministic(name)


def is_random(node: exp.Expr) -> bool:
    """Return whether two occurrences of an expression can have different values."""
    return any(name in RANDOM_FUNCTIONS or is_nondeterministic(name) for name, _ in calls(node))


def is_repeatable(node: exp.Expr) -> bool:
    """Return whether an expression is known to be deterministic.

    Functions that are not built into Spark are assumed not to be.
    """
    return all(
        (name in spark_functions() or name in UNIT_FUNCTIONS) and not is_volatile_call(name, call)
        for name, call in calls(node)
    )


def has_window_function(node: exp.Expr) -> bool:
    """Return whether an expression has an OVER clause outside of subqueries."""
    return any(isinstance(part, exp.Window) for part in walk_outside_subqueries(node))


def is_aggregate_call(node: exp.Expr) -> bool:
    """Return whether a node is an aggregate, with or without FILTER and WITHIN GROUP."""
    if isinstance(node, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
        return is_aggregate_call(node.this)
    return (call_name(node) or "") in aggregate_functions()


def has_aggregate(node: exp.Expr) -> bool:
    """Return whether an expression has an aggregate outside of OVER and subqueries."""
    if isinstance(node, exp.Window):
        # The function itself is a window function; its arguments may contain aggregates.
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
    """Return the parts of a condition that are joined by AND."""
    if node is None:
        return []
    node = node.unnest()
    if isinstance(node, exp.And):
        return conjuncts(node.left) + conjuncts(node.right)
    if (
        isinstance(node, exp.Between)
        and not node.args.get("symmetric")
        and is_repeatable(node.this)
    ):
        low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
        high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
        return [low, high]
    return [node]


def conjunction(parts: list[exp.Expr]) -> exp.Expr | None:
    """Join conditions by AND; return None if there are none."""
    return exp.and_(*parts, copy=True) if parts else None


def interval_micros(node: exp.Expr) -> int | None:
    """Return the microseconds of a constant INTERVAL of fixed length; None for others."""
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
        # INTERVAL '1 hour 30 minutes' contains its units.
        try:
            return parse_duration(node.this.name)
        except ValueError:
            return None
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


_MONTHS = re.compile(r"month|quarter|year", re.IGNORECASE)


def _counts_months(node: exp.Expr) -> bool:
    """Return whether an interval contains months or years, whose lengths differ."""
    return _MONTHS.search(to_sql(node)) is not None


def _interval_hint(node: exp.Expr) -> str:
    if _counts_months(node):
        return "use days: INTERVAL '30' DAY; months and years differ in length."
    return "write for example INTERVAL '10' SECOND."


def require_interval(node: exp.Expr, text: str, file: str | None, subject: str) -> int:
    """Return the microseconds of an INTERVAL; raise an error about `subject` for others."""
    micros = interval_micros(node)
    if micros is None:
        span = own_span(node) or Span(0, len(text))
        written = text[span.start : span.end] if own_span(node) is not None else to_sql(node)
        problem = "not one"
        if isinstance(node.unnest(), exp.Interval):
            problem = "not of fixed length" if _counts_months(node) else "not a valid one"
        raise SqlError(
            "TG-105",
            f"{subject} must be a constant interval, but {written} is {problem}",
            location=Location(text, span.start, span.end, file),
            hint=_interval_hint(node),
        )
    return micros


def calls_udf(tree: exp.Expr) -> bool:
    """Return whether an expression calls a user function."""
    known = spark_functions()
    return any(name not in known for name, _ in calls(tree))
