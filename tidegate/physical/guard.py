"""Rows on which an expression fails: they are turned off, with a dead letter on their side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.columns import ARRIVAL, LETTER, LETTER_COLUMNS, LIVE, OP, SIDE
from tidegate.physical.stage_sql import is_failure
from tidegate.physical.typed import Types
from tidegate.plan import nodes as n
from tidegate.sql.dialect import text_literal
from tidegate.sql.quoting import quoted

_FAILED = "_tg_failed"
_LITERAL = re.compile(r"-?\d+L?|'[^'\\]*'|true|false|null", re.IGNORECASE)


@dataclass(frozen=True)
class Guard:
    """What a stream with on_error = 'dead_letter' puts below all that it computes."""

    stream: str
    types: Types

    def below(
        self,
        rows: str,
        node: n.Node,
        expressions: Sequence[str],
        kinds: Mapping[str, str | None] | None = None,
    ) -> str:
        """SQL for FROM: the rows of a node, without those on which an expression fails.

        `kinds` are types of expressions that no operator asks for.
        `explode` keeps the tests where they are written; elsewhere Spark takes out what they share
        with the expressions themselves, and evaluates it unguarded.
        """
        plain = {quoted(item.id) for item in node.fields} | {OP, *ARRIVAL}
        risky = [
            sql
            for sql in dict.fromkeys(expressions)
            if sql not in plain and not _LITERAL.fullmatch(sql)
        ]
        if not risky:
            return rows
        tests = " ".join(
            f"WHEN {is_failure(sql, self._hashable(sql, kinds or {}))} "
            f"THEN {text_literal(_in_words(sql, node))}"
            for sql in risky
        )
        tried = f"explode(array(CASE WHEN {LIVE} THEN CASE {tests} END END)) AS {_FAILED}"
        side = f"CASE WHEN {_FAILED} IS NULL THEN {SIDE} ELSE {self._letter(node)} END"
        return (
            f"(SELECT * EXCEPT ({LIVE}, {SIDE}, {_FAILED}), "
            f"{LIVE} AND {_FAILED} IS NULL AS {LIVE}, {side} AS {SIDE} "
            f"FROM (SELECT *, {tried} FROM {rows}))"
        )

    def _hashable(self, sql: str, kinds: Mapping[str, str | None]) -> bool:
        kind = kinds.get(sql) or self.types.by_sql.get(sql, "")
        return "MAP<" not in kind and "VARIANT" not in kind

    def _letter(self, node: n.Node) -> str:
        columns = ", ".join(f"{quoted(item.id)} AS {quoted(item.name)}" for item in node.fields)
        row = f"to_json(struct({columns}), map('ignoreNullFields', 'false'))"
        told = zip((text_literal(self.stream), _FAILED, row), LETTER_COLUMNS, strict=True)
        letter = ", ".join(f"{sql} AS {name}" for sql, name in told)
        return f"CAST(concat('{LETTER}', to_json(struct({letter}))) AS BINARY)"


def _in_words(sql: str, node: n.Node) -> str:
    """An expression with the names of columns instead of their ids."""
    for item in node.fields:
        sql = sql.replace(quoted(item.id), item.name)
    return sql
