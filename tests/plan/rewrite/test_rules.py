"""Golden plans of each rule: tests/plan/rewrite/<rule>.sql, and the plans before and after in .plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import nexmark
from tests.conftest import Golden
from tests.support.compiling import TESTS, compile_text
from tidegate.catalog.objects import Stream
from tidegate.physical.explain import explain
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import RULES, apply, optimize, prune
from tidegate.plan.side_streams import late_stream

FOLDER = TESTS / "plan" / "rewrite"
SCRIPTS = sorted(FOLDER.glob("*.sql"))
RULES_BY_NAME = {rule.__name__: rule for rule in RULES}


def streams(text: str) -> list[Stream]:
    compiled = compile_text(text)
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    return [item for item in compiled.declared if isinstance(item, Stream)]


def tree(plan: n.Emit) -> str:
    """Return the plan without the properties of the stream."""
    return explain(plan).split("\n\n", 1)[1]


def after_rule(rule: str, plan: n.Emit) -> n.Emit:
    return prune(plan) if rule == "prune_columns" else apply(plan, (RULES_BY_NAME[rule],))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_rule_matches_golden(script: Path, golden: Golden) -> None:
    parts = []
    for stream in streams(script.read_text("utf-8")):
        before, after = stream.plan, after_rule(script.stem, stream.plan)
        parts.append(f"stream {stream.name}\n\n{tree(before)}\n")
        parts.append(f"after {script.stem}\n\n{_tree_unless_same(after, before)}\n")
        parts.append(f"optimized\n\n{_tree_unless_same(optimize(before), after)}\n\n")
    golden(script.with_suffix(".plan"), "\n".join(parts).rstrip() + "\n")


def _tree_unless_same(plan: n.Emit, other: n.Emit) -> str:
    return "(the same)" if tree(plan) == tree(other) else tree(plan)


def test_every_rule_has_a_golden() -> None:
    assert {path.stem for path in SCRIPTS} == {*RULES_BY_NAME, "prune_columns"}
    assert {path.stem for path in FOLDER.glob("*.plan")} == {*RULES_BY_NAME, "prune_columns"}


def _all_scripts() -> list[tuple[str, str]]:
    files = sorted([*(TESTS / "plan" / "plans").glob("*.sql"), *SCRIPTS])
    texts = [(path.stem, path.read_text("utf-8")) for path in files]
    return texts + [(name, nexmark.query(name)) for name in nexmark.names()]


@pytest.mark.parametrize(("name", "text"), _all_scripts(), ids=lambda value: str(value)[:30])
def test_optimizer_keeps_the_properties_of_a_stream(name: str, text: str) -> None:
    for stream in streams(text):
        before, after = stream.plan, optimize(stream.plan)
        assert after.fields == before.fields
        assert (after.bounded, after.has_watermark) == (before.bounded, before.has_watermark)
        assert (after.changelog, after.key) == (before.changelog, before.key)
        assert optimize(after) is after


def test_optimizer_keeps_the_columns_of_late_rows() -> None:
    late = [stream for _, text in _all_scripts() for stream in streams(text)]
    late = [stream for stream in late if stream.query.emit and stream.query.emit.late_to]
    assert len(late) > 2
    for stream in late:
        before, after = late_stream(stream.plan), late_stream(optimize(stream.plan))
        assert after.columns == before.columns
        indexes = [[late.sources(item.rows) for item in late.inputs] for late in (before, after)]
        assert indexes[0] == indexes[1]


def test_optimizer_returns_a_plan_that_is_too_deep() -> None:
    plan = streams(
        "CREATE SOURCE t (a INT) WITH (connector = 'memory'); CREATE STREAM s AS SELECT a FROM t;"
    )[0].plan
    deep = plan.input
    for _ in range(5_000):
        deep = n.Sort(deep.fields, input=deep, order=())
    deepest = n.Emit(plan.fields, input=deep, clause=None)
    assert optimize(deepest) is deepest
