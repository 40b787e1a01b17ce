"""Computed columns of sources, with the rows on which one of them fails found out.

In ANSI mode a cast or a division that fails ends the job, and the row would be there again after
every restart. So each column is tried first. `explode` keeps these calls where they are written;
elsewhere Spark takes out what several of them share, and evaluates it unguarded.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from sqlglot import exp

from tidegate.catalog.objects import Column, Source
from tidegate.physical.stage_sql import is_failure
from tidegate.sql.dialect import text_literal, to_sql
from tidegate.sql.expressions import calls, is_volatile_call
from tidegate.sql.quoting import quoted

# The name of the first computed column that failed on a row; NULL if none did.
FAILED = "_tg_failed"
_TRIED, _VALUES = "_tg_tried", "_tg_values"


def with_computed(source: Source, raw: DataFrame) -> DataFrame:
    """The frame with the computed columns, and FAILED if one of them can fail."""
    computed = [column for column in source.columns if column.computed is not None]
    guarded = [column for column in computed if _may_fail(column)]
    plain = [f"{_sql(c)} AS {quoted(c.name)}" for c in computed if c not in guarded]
    if not guarded:
        return raw.selectExpr("*", *plain) if plain else raw
    tried = [f"{text_literal(c.name)}, {_failed(c)}" for c in guarded]
    frame = raw.selectExpr("*", f"explode(array(named_struct({', '.join(tried)}))) AS {_TRIED}")
    values = [
        f"{text_literal(c.name)}, CASE WHEN NOT {_TRIED}.{quoted(c.name)} THEN {_sql(c)} END"
        for c in guarded
    ]
    frame = frame.selectExpr("*", f"explode(array(named_struct({', '.join(values)}))) AS {_VALUES}")
    failed = " ".join(
        f"WHEN {_TRIED}.{quoted(c.name)} THEN {text_literal(c.name)}" for c in guarded
    )
    return frame.selectExpr(
        f"* EXCEPT ({_TRIED}, {_VALUES})",
        *plain,
        *(f"{_VALUES}.{quoted(c.name)} AS {quoted(c.name)}" for c in guarded),
        f"CASE {failed} END AS {FAILED}",
    )


def _sql(column: Column) -> str:
    assert column.computed is not None, f"{column.name} is computed"
    return to_sql(column.computed)


def _failed(column: Column) -> str:
    """A condition, never NULL: whether the column cannot be computed."""
    kind = column.type or ""
    return is_failure(_sql(column), hashable="MAP<" not in kind and "VARIANT" not in kind)


def _may_fail(column: Column) -> bool:
    """Whether a value may not come about; those of the clock or of chance always do."""
    tree = column.computed
    if isinstance(tree, exp.Column | exp.Literal):
        return False
    return tree is not None and not any(
        is_volatile_call(name, call) or name == "PROCTIME" for name, call in calls(tree)
    )
