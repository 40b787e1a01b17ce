"""Golden plans: tests/plan/plans/*.sql, and the NEXMark queries as they run (optimized)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import nexmark
from tests.conftest import Golden
from tests.support.compiling import TESTS, compile_text, explained
from tidegate.plan import nodes as n

PLANS = TESTS / "plan" / "plans"
SCRIPTS = sorted(PLANS.glob("*.sql"))
NEVER_RUN = (n.Node, n.Unary, n.NoRows)


def rendered(text: str, name: str, optimized: bool = False) -> str:
    compiled = compile_text(text, name)
    assert not compiled.errors, "\n".join(error.render() for error in compiled.errors)
    assert not compiled.warnings
    return explained(compiled, optimized)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_plan_matches_golden(script: Path, golden: Golden) -> None:
    text = rendered(script.read_text("utf-8"), script.name)
    golden(script.with_suffix(".plan"), text)


@pytest.mark.parametrize("name", nexmark.names())
def test_nexmark_plan_matches_golden(name: str, golden: Golden) -> None:
    golden(PLANS / f"nexmark_{name}.plan", rendered(nexmark.query(name), f"{name}.sql", True))


def test_every_golden_has_a_script() -> None:
    scripts = {path.stem for path in SCRIPTS} | {f"nexmark_{name}" for name in nexmark.names()}
    assert {path.stem for path in PLANS.glob("*.plan")} == scripts


def test_goldens_contain_every_node() -> None:
    covered: set[type[n.Node]] = set()
    for script in SCRIPTS:
        for declared in compile_text(script.read_text("utf-8")).declared:
            plan = getattr(declared, "plan", None)
            covered |= {type(node) for node in n.walk(plan)} if plan is not None else set()
    kinds = {
        kind
        for kind in vars(n).values()
        if isinstance(kind, type) and issubclass(kind, n.Node) and kind not in NEVER_RUN
    }
    assert kinds - covered == set()
