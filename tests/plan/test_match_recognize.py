"""MATCH_RECOGNIZE: patterns, their properties, binding and rejections."""

from __future__ import annotations

import itertools
import re

import pytest
from sqlglot import exp

from tests.physical.test_canonical_form import canonical_forms
from tests.physical.test_runnable import check_runnable, marked_text, stream_of
from tests.support.compiling import TESTS, accepted, compile_text, rejected
from tidegate.catalog.objects import Stream
from tidegate.errors import RunError
from tidegate.physical.match_conditions import known_type, scalar_of
from tidegate.physical.operator_kind import Unrunnable
from tidegate.physical.rejections import find_rejections
from tidegate.plan import nodes as n
from tidegate.plan.bind.scope import BindingContext, copy_with_new_ids, referenced_ids
from tidegate.sql import match_recognize as pt
from tidegate.sql.dialect import DIALECT
from tidegate.types import Span

QUERY = (
    "SELECT * FROM bids MATCH_RECOGNIZE (PARTITION BY auction ORDER BY ts "
    "MEASURES LAST(B.price) AS p, MATCH_ROWTIME() AS at AFTER MATCH SKIP TO NEXT ROW "
    "PATTERN (A B+) WITHIN INTERVAL '1' HOUR DEFINE B AS B.price > PREV(B.price, 2)) AS m"
)


def parsed(pattern: str) -> pt.Pattern:
    tree = DIALECT.parse(f"SELECT 1 FROM t MATCH_RECOGNIZE (ORDER BY ts PATTERN ({pattern}))")[0]
    assert isinstance(tree, exp.Select)
    result: pt.Pattern = tree.args["from_"].this.args["match"].args["pattern"]
    return result


def matches(query: str, options: str = "") -> n.Match:
    return next(node for node in n.walk(accepted(query, options)) if isinstance(node, n.Match))


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "A B+ C? D*",
        "A+? B*? C??",
        "A{2} B{2,} C{2,3}?",
        "(A B)+ C",
        "A | B C | D",
        "(A | B) C",
    ],
)
def test_prints_a_resultas_written(text: str) -> None:
    assert pt.to_text(parsed(text)) == text


def sequences(pattern: pt.Pattern, most: int = 3) -> set[str]:
    """Return the sequences of variables that a pattern matches, with at most `most` repetitions."""
    if isinstance(pattern, pt.Variable):
        return {pattern.name}
    if isinstance(pattern, pt.Alternation):
        return set().union(*(sequences(part) for part in pattern.parts))
    if isinstance(pattern, pt.Concatenation):
        parts = [sequences(part) for part in pattern.parts]
        return {"".join(combination) for combination in itertools.product(*parts)}
    assert isinstance(pattern, pt.Repetition)
    limit = most if pattern.maximum is None else pattern.maximum
    result: set[str] = set()
    for times in range(pattern.minimum, limit + 1):
        result |= {"".join(c) for c in itertools.product(sequences(pattern.part), repeat=times)}
    return result


@pytest.mark.parametrize(
    "text",
    [
        "A B C",
        "A? B",
        "A B? A",
        "(A | B C) A{2,3}",
        "A* B A+",
        "(B | A) (A B)*",
        "A{2}",
        "(A B?){2} C",
    ],
)
def test_pattern_properties_agree_with_all_matching_sequences(text: str) -> None:
    pattern, matching = parsed(text), sequences(parsed(text))
    assert pt.min_length(pattern) == min(map(len, matching))
    assert pt.max_length(pattern) in (None, max(map(len, matching)))
    for names in ("A", "B", "AB"):
        variables = frozenset(names)
        positions = [[i for i, v in enumerate(sequence) if v in variables] for sequence in matching]
        assert pt.always_occurs(pattern, variables) == all(positions)
        firsts = [indexes[0] for indexes in positions if indexes]
        assert pt.first_position(pattern, variables) == min(firsts, default=None)
        if all(positions):
            assert pt.last_position(pattern, variables) <= min(indexes[-1] for indexes in positions)


def test_match_node_properties() -> None:
    node = matches(QUERY)
    # B is never the first row, so one row before the match is seen by PREV(B.price, 2).
    assert (node.rows_back, node.max_rows, node.within_us) == (1, None, 3_600_000_000)
    assert node.drops_late_rows and node.needs_watermark
    assert [item.role for item in node.fields] == [n.Role.PLAIN, n.Role.PLAIN, n.Role.TIME]


def test_matches_have_an_event_time_if_their_delay_is_bounded() -> None:
    windows = "SELECT count(*) AS n FROM ({}) GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)"
    accepted(windows.format(QUERY))
    fixed = QUERY.replace("WITHIN INTERVAL '1' HOUR", "").replace("B+", "B")
    accepted(windows.format(fixed))
    for late in (fixed.replace("(A B)", "(A B{1,2})"), QUERY.replace("MATCH_ROWTIME()", "B.ts")):
        assert [error.code for error in rejected(windows.format(late))] == ["TG-406"]


def test_copy_has_new_column_ids() -> None:
    """Outer joins with residual conditions read a side twice."""
    node = matches(QUERY)
    context = BindingContext(compile_text("").catalog, "", None, Span(0, 0))
    context.ids = {item.id.lower(): 1 for part in n.walk(node) for item in part.fields}
    copied, names = copy_with_new_ids(context, node)
    assert isinstance(copied, n.Match)
    used = {name for tree in copied.state_expressions or () for name in referenced_ids(tree)}
    assert (
        used | {copied.time_id} <= {item.id for item in copied.input.fields} <= set(names.values())
    )
    assert [item.tree for item in copied.conditions] == [item.tree for item in node.conditions]


@pytest.mark.parametrize(
    "changed",
    [
        QUERY.replace("A B+", "A B+?"),
        QUERY.replace("'1' HOUR", "'2' HOUR"),
        QUERY.replace("TO NEXT ROW", "PAST LAST ROW"),
        QUERY.replace("PREV(B.price, 2)", "PREV(B.price)"),
        QUERY.replace("B.price >", "B.price >="),
        QUERY.replace("LAST(B.price)", "FIRST(B.price)"),
        QUERY.replace("LAST(B.price)", "LAST(A.price)"),
        QUERY.replace("LAST(B.price)", "max(B.price)"),
        QUERY.replace("ORDER BY ts", "ORDER BY ts, price"),
        QUERY.replace("BY auction", "BY bidder"),
    ],
)
def test_canonical_form_depends_on_patterns_and_conditions(changed: str) -> None:
    assert changed != QUERY
    assert canonical_forms(changed) != canonical_forms(QUERY)


def test_canonical_form_does_not_depend_on_names_and_expressions_over_measures() -> None:
    other = QUERY.replace("AS p,", "+ 1 AS q,").replace("AS m", "AS other")
    assert canonical_forms(other) == canonical_forms(QUERY)


@pytest.mark.parametrize(
    ("condition", "highlighted"),
    [
        ("concat(A.channel, B.channel) = 'x'", "concat(A.channel, B.channel)"),
        ("A.price % B.price = 1", "A.price % B.price"),
        ("count(DISTINCT A.price) > B.price", "count(DISTINCT A.price)"),
        ("stddev(A.price) > B.price", "stddev(A.price)"),
        ("CASE WHEN A.price > 1 THEN B.price > 2 ELSE A.price > B.price END", "CASE WHEN"),
        ("A.price + B.price", "A.price + B.price"),
        ("A.channel > B.ts", "A.channel > B.ts"),
    ],
)
def test_rejects_conditions_that_only_spark_could_evaluate(
    condition: str, highlighted: str
) -> None:
    query = QUERY.replace("B.price > PREV(B.price, 2)", condition)
    with pytest.raises(RunError) as caught:
        check_runnable(stream_of(query))
    assert caught.value.code == "TG-501" and caught.value.hint
    assert marked_text(caught.value).startswith(highlighted)


@pytest.mark.parametrize(
    ("kinds", "text"),
    [
        (("FLOAT", "INT"), "p0 > p1"),
        (("FLOAT", "FLOAT"), "p0 + p1 > p0"),
        (("DECIMAL(38,2)", "DECIMAL(10,9)"), "p0 = p1"),
        (("DECIMAL(20,2)", "DECIMAL(20,2)"), "p0 * p1 > p0"),
        (("DECIMAL(10,2)", "DECIMAL(10,2)"), "p0 / p1 > 1"),
        (("DATE", "TIMESTAMP"), "p0 < p1"),
        (("STRING", "INT"), "p0 = p1"),
        (("DATE", "DATE"), "p0 - p1 > p0 - p1"),
        (("BIGINT", "BIGINT"), "p0"),
    ],
)
def test_rejects_types_with_results_that_differ_from_spark(
    kinds: tuple[str, ...], text: str
) -> None:
    tree = DIALECT.parse(f"SELECT {text}")[0]
    assert isinstance(tree, exp.Select)
    with pytest.raises(Unrunnable):
        scalar_of("A", tree.expressions[0], [known_type(kind) for kind in kinds])


def test_examples_of_the_language_page_are_accepted() -> None:
    page = (TESTS.parent / "docs" / "LANGUAGE.md").read_text("utf-8")
    section = page.split("## Patterns: MATCH_RECOGNIZE")[1].split("\n## ")[0]
    block = re.search(r"```sql\n(.*?)```", section, re.DOTALL)
    assert block is not None
    compiled = compile_text(block.group(1))
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    streams = list(compiled.catalog.of_type(Stream))
    assert len(streams) == 2
    assert [
        error.render() for stream in streams for error in find_rejections(stream, stream.plan)
    ] == []
