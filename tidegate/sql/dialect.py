"""The SQL dialect: Spark SQL as sqlglot parses it, with ASOF joins and MATCH_RECOGNIZE.

sqlglot's table of functions is emptied, so that every call keeps its name and is printed as the
user wrote it. Spark, not sqlglot, decides what a function means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.sql.match_recognize import parse_match_recognize
from tidegate.types import Span

# ---- The types of Spark SQL, and alternatives for types of other systems

TYPES_HINT = (
    "types are Spark's: BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(18, 2), STRING, DATE, TIMESTAMP, "
    "ARRAY<…>, MAP<…, …>, STRUCT<…>."
)

# The types of Spark, by the names that sqlglot uses.
_NAMES = """TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL BOOLEAN CHAR VARCHAR NVARCHAR TEXT
BINARY VARBINARY DATE TIMESTAMP TIMESTAMPTZ TIMESTAMPLTZ TIMESTAMPNTZ DATETIME TIME VARIANT ARRAY
MAP STRUCT"""
SPARK_TYPES = frozenset(_NAMES.split())
_TEXT = "STRING"
_JSON = "STRING, and read fields with get_json_object(column, '$.name')"
# INT8 is listed because it means eight bytes in some systems and eight bits in others.
_ALTERNATIVES = {
    "JSON": _JSON,
    "JSONB": _JSON,
    "OBJECT": "MAP<STRING, STRING>, or STRUCT<…> with its fields",
    "SUPER": _JSON,
    "UUID": _TEXT,
    "XML": _TEXT,
    "ENUM": _TEXT,
    "INET": _TEXT,
    "HSTORE": "MAP<STRING, STRING>",
    "INT8": "BIGINT for 8 bytes, or TINYINT for 8 bits",
    "INT128": "DECIMAL(38, 0)",
    "HUGEINT": "DECIMAL(38, 0)",
    "UINT": "BIGINT",
    "UINTEGER": "BIGINT",
    "UNSIGNED": "BIGINT",
    "USMALLINT": "INT",
    "UTINYINT": "SMALLINT",
    "UBIGINT": "DECIMAL(20, 0)",
    "MEDIUMINT": "INT",
    "SERIAL": "INT",
    "BIGSERIAL": "BIGINT",
    "YEAR": "INT",
    "BIT": "BOOLEAN",
    "MONEY": "DECIMAL(18, 2)",
    "BIGNUMERIC": "DECIMAL(38, 18)",
    "BIGDECIMAL": "DECIMAL(38, 18)",
    "FLOAT32": "FLOAT",
    "FLOAT64": "DOUBLE",
    "BYTES": "BINARY",
    "ROW": "STRUCT<a: INT, …>",
    "LIST": "ARRAY<…>",
    "MULTISET": "ARRAY<…>",
    "VECTOR": "ARRAY<FLOAT>",
    "TIMETZ": "TIME",
}
# These words are plain names, so that a column can be called json or list.
FOREIGN_TYPES = frozenset(_ALTERNATIVES)
# An interval without fields contains months and microseconds, which have no common order.
_ALTERNATIVES["INTERVAL"] = "INTERVAL DAY TO SECOND"


def type_hint(words: Iterable[str]) -> str | None:
    """Suggest a type for the first word that is a type of another system."""
    hints = (_ALTERNATIVES.get(word.upper()) for word in words)
    hint = next((text for text in hints if text is not None), None)
    return f"write {hint}." if hint is not None else None


def is_spark_type(tree: exp.Expr | None) -> bool:
    """Return whether Spark supports a type and all types inside it."""
    if not isinstance(tree, exp.DataType):
        return False
    kinds = [part.this for part in tree.find_all(exp.DataType)]
    # INTERVAL DAY TO SECOND is an expression, not a type with a name.
    return all(isinstance(kind, exp.Expr) or kind.name in SPARK_TYPES for kind in kinds)


Node = TypeVar("Node")

# Errors contain everything that sqlglot would log as warnings.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

# Calls with special syntax, such as CAST(x AS INT); all others are plain calls.
_SPECIAL_SYNTAX = frozenset(
    {"CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTRING", "SUBSTR", "POSITION", "OVERLAY"}
)
# Keywords of sqlglot that are plain names here: PRIMARY KEY is parsed word by word, SESSION is a
# window function, Spark's window(…) is rejected with a hint, and types of other systems are names.
_PLAIN_NAMES = frozenset({"PRIMARY KEY", "SESSION", "WINDOW"}) | FOREIGN_TYPES

UNEXPECTED_COMMA = "unexpected comma"
# Tokens that end a list.
_LIST_ENDS = (
    frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.FROM, TokenType.SENTINEL})
    | frozenset(SparkParser.QUERY_MODIFIER_PARSERS)
    | frozenset(SparkParser.SET_OPERATIONS)
)


class TidegateParser(SparkParser):
    """Spark's parser, which also stores the spans of clauses."""

    FUNCTIONS: ClassVar[dict[str, Callable[..., Any]]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Callable[..., Any]]] = {
        name: parse
        for name, parse in SparkParser.FUNCTION_PARSERS.items()
        if name in _SPECIAL_SYNTAX
    }
    # array(a, b)[0] and list[0] are elements; in other dialects they construct an array.
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    # MATCH_RECOGNIZE belongs to a table, not to a query.
    QUERY_MODIFIER_PARSERS: ClassVar[dict[TokenType, Callable[..., Any]]] = {
        token: parse
        for token, parse in SparkParser.QUERY_MODIFIER_PARSERS.items()
        if token is not TokenType.MATCH_RECOGNIZE
    }

    def parse(self, raw_tokens: list[Token], sql: str) -> list[exp.Expr | None]:
        return super().parse(_with_window_clauses(raw_tokens), sql)

    def _with_span(self, parse: Callable[[], Node]) -> Node:
        """Run a parse method and store the span of its tokens in the node that it returns."""
        first = self._curr
        index = self._index
        node = parse()
        if isinstance(node, exp.Expr) and self._index > index and "span" not in node.meta:
            node.meta["span"] = (first.start, self._prev.end + 1)
        return node

    def _parse_csv(
        self, parse_method: Callable[[], Node | None], sep: TokenType = TokenType.COMMA
    ) -> list[Node]:
        """Parse a list and reject missing items; sqlglot ignores an extra comma."""
        items: list[Node] = []
        while True:
            item = parse_method()
            if item is not None:
                items.append(item)
            elif sep is TokenType.COMMA and self._is_missing_item(bool(items)):
                self.raise_error(
                    UNEXPECTED_COMMA, self._curr if self._curr.token_type is sep else self._prev
                )
            if not self._match(sep):
                return items
            if isinstance(item, exp.Expr):
                self._add_comments(item)

    def _is_missing_item(self, has_items: bool) -> bool:
        """Return whether an item is missing next to a comma.

        Other tokens are not an error here, because callers may retreat and parse something else.
        """
        if self._curr.token_type is TokenType.COMMA:
            return True
        after_comma = has_items and self._prev.token_type is TokenType.COMMA
        return after_comma and self._curr.token_type in _LIST_ENDS

    def _parse_order(self, this: Any = None, skip_order_token: bool = False) -> Any:
        return self._with_span(
            lambda: super(TidegateParser, self)._parse_order(this, skip_order_token)
        )

    def _parse_limit(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(lambda: super(TidegateParser, self)._parse_limit(*args, **kwargs))

    def _parse_group(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(lambda: super(TidegateParser, self)._parse_group(*args, **kwargs))

    def _parse_join(self, *args: Any, **kwargs: Any) -> Any:
        first = self._index
        join = self._with_span(lambda: super(TidegateParser, self)._parse_join(*args, **kwargs))
        if not isinstance(join, exp.Join):
            if self._index > first and self._is_missing_item(has_items=True):
                self.raise_error(UNEXPECTED_COMMA, self._prev)
            return join
        if first in self._nearest_joins:
            join.set("hint", "NEAREST")
        match = join.args.get("match_condition")
        if match is not None and "tolerance" in match.meta:
            join.meta["tolerance"] = match.meta.pop("tolerance")
        return join

    @property
    def _nearest_joins(self) -> set[int]:
        """The token indexes at which joins with NEAREST start."""
        joins: set[int] = self.__dict__.setdefault("_nearest_join_starts", set())
        return joins

    def _parse_join_parts(self) -> Any:
        """Parse `ASOF [NEAREST] [LEFT] JOIN`, or `LEFT ASOF JOIN` as in Spark."""
        first = self._index
        side = self._prev if self._match_set(self.JOIN_SIDES) else None
        kind = self._prev if self._match_set(self.JOIN_KINDS) else None
        if not self._match(TokenType.ASOF):
            self._retreat(first)
            return super()._parse_join_parts()
        method = self._prev
        nearest = self._match_text_seq("NEAREST")
        side = self._prev if self._match_set(self.JOIN_SIDES) else side
        kind = self._prev if self._match_set(self.JOIN_KINDS) else kind
        if nearest or self._match_text_seq("NEAREST"):
            self._nearest_joins.add(first)
        return method, side, kind

    def _parse_wrapped(self, parse_method: Any, optional: bool = False) -> Any:
        """Parse MATCH_CONDITION (…) and TOLERANCE, which limit the distance between rows."""
        if self._prev is None or self._prev.token_type is not TokenType.MATCH_CONDITION:
            return super()._parse_wrapped(parse_method, optional)
        match = super()._parse_wrapped(self._parse_disjunction, optional)
        if match is not None and self._match_text_seq("TOLERANCE"):
            match.meta["tolerance"] = self._parse_unary()
        return match

    def _parse_table(self, *args: Any, joins: bool = False, **kwargs: Any) -> Any:
        """Parse a table, then MATCH_RECOGNIZE, then joins."""
        table = self._with_span(lambda: super(TidegateParser, self)._parse_table(*args, **kwargs))
        first = self._curr
        if table is not None and self._match(TokenType.MATCH_RECOGNIZE):
            match = parse_match_recognize(self)
            match.meta["span"] = (first.start, self._prev.end + 1)
            table.set("match", match)
        if joins and table is not None:
            for join in self._parse_joins():
                table.append("joins", join)
        return table

    def _parse_interval(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(lambda: super(TidegateParser, self)._parse_interval(*args, **kwargs))

    def _parse_placeholder(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(
            lambda: super(TidegateParser, self)._parse_placeholder(*args, **kwargs)
        )

    def _parse_select(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(lambda: super(TidegateParser, self)._parse_select(*args, **kwargs))

    def _parse_expression(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(
            lambda: super(TidegateParser, self)._parse_expression(*args, **kwargs)
        )

    def _parse_primary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(lambda: super(TidegateParser, self)._parse_primary(*args, **kwargs))

    def _parse_function(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_span(lambda: super(TidegateParser, self)._parse_function(*args, **kwargs))

    def _parse_subquery(
        self, this: Any, parse_alias: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        """Parse a subquery; FOR SYSTEM_TIME AS OF can follow it, as it can follow a table."""
        version = self._parse_version() if parse_alias else None
        subquery = super()._parse_subquery(this, parse_alias, *args, **kwargs)
        if version is not None and subquery is not None:
            subquery.set("version", version)
        return subquery


def _with_window_clauses(tokens: list[Token]) -> list[Token]:
    """Make WINDOW a keyword in `WINDOW name AS (…)`; elsewhere it is a name."""
    result = list(tokens)
    for index, token in enumerate(tokens[:-3]):
        _, name, second, third = tokens[index : index + 4]
        is_window = token.token_type is TokenType.VAR and token.text.upper() == "WINDOW"
        is_clause = (second.token_type, third.token_type) == (TokenType.ALIAS, TokenType.L_PAREN)
        if is_window and is_clause and name.token_type in TidegateParser.ID_VAR_TOKENS:
            line, col = token.line, token.col
            result[index] = Token(TokenType.WINDOW, token.text, line, col, token.start, token.end)
    return result


class TidegateDialect(Spark):
    """Spark SQL with ASOF joins."""

    class Tokenizer(Spark.Tokenizer):
        # sqlglot returns the rest of a "command" as one string; Tidegate parses all statements.
        COMMANDS: ClassVar[set[TokenType]] = set()
        # Since Spark 4, a doubled quote is an escaped quote, like one after a backslash.
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']
        KEYWORDS: ClassVar[dict[str, TokenType]] = {
            **{
                word: token
                for word, token in Spark.Tokenizer.KEYWORDS.items()
                if token not in Spark.Tokenizer.COMMANDS and word not in _PLAIN_NAMES
            },
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,
            "MATCH_RECOGNIZE": TokenType.MATCH_RECOGNIZE,
        }

    Parser = TidegateParser

    class Generator(SparkGenerator):
        # Spark 4 has a type TIME; sqlglot would print TIMESTAMP.
        TYPE_MAPPING: ClassVar[dict[Any, str]] = {
            **SparkGenerator.TYPE_MAPPING,
            exp.DType.TIME: "TIME",
        }


DIALECT = TidegateDialect()


def to_sql(node: exp.Expr) -> str:
    """Return the Spark SQL of an expression or a query."""
    return node.sql(dialect=DIALECT, comments=False)


def string_literal(value: str) -> str:
    """Return a string literal of Spark SQL; the value can contain any character."""
    return to_sql(exp.Literal.string(value))


def own_span(node: exp.Expr) -> Span | None:
    """Return the span of a node or of its parts; None if the node was not parsed."""
    span = node.meta.get("span")
    if span is not None:
        return Span(span[0], span[1])
    starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
    ends = [part.meta["end"] + 1 for part in node.walk() if "end" in part.meta]
    spans = [part.meta["span"] for part in node.walk() if "span" in part.meta]
    starts += [start for start, _ in spans]
    ends += [end for _, end in spans]
    return Span(min(starts), max(ends)) if starts else None
