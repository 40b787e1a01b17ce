"""Canonical forms of operators change with the meaning of their state, not with names."""

from __future__ import annotations

import pytest

from benchmarks import nexmark
from tests.conftest import Golden
from tests.support.compiling import TESTS, accepted, compile_text
from tidegate.catalog.objects import Stream
from tidegate.physical.canonical_form import canonical_form
from tidegate.physical.stages import all_stateful, plan_stages
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize

MINUTE = "INTERVAL '1' MINUTE"
COUNT = "SELECT auction, count(*) AS n FROM bids {} GROUP BY auction, TUMBLE(ts, " + MINUTE + ") {}"
NEVER_RUN = (n.Node, n.Unary, n.NoRows)


def canonical_forms(query: str, options: str = "") -> list[str]:
    """Return the canonical forms of the operators of a query, the outer ones first."""
    stage = plan_stages(accepted(query, options))
    return [canonical_form(leaf.node) for leaf in all_stateful(stage)]


@pytest.mark.parametrize(
    "changed",
    [
        COUNT.format("WHERE price > 11", ""),
        COUNT.format("WHERE price >= 10", ""),
        COUNT.format("", ""),
        COUNT.format("WHERE price > 10", "").replace("count(*)", "count(bidder)"),
        COUNT.format("WHERE price > 10", "").replace("auction,", "bidder,"),
        COUNT.format("WHERE price > 10", "").replace("'1'", "'2'"),
        COUNT.format("WHERE price > 10", "").replace("bids", "asks"),
        COUNT.format("WHERE price > 10", "EMIT CHANGES"),
        COUNT.format("WHERE price > 10", "EMIT ON WINDOW CLOSE ALLOW LATENESS INTERVAL '1' MINUTE"),
        COUNT.format("WHERE price > 10", "").replace(
            "FROM bids", "FROM (SELECT * FROM bids WHERE auction > 1)"
        ),
    ],
)
def test_changes_in_or_below_an_operator_change_its_canonical_form(changed: str) -> None:
    assert canonical_forms(changed) != canonical_forms(COUNT.format("WHERE price > 10", ""))


@pytest.mark.parametrize(
    "same",
    [
        COUNT.format("WHERE price > 10", "").replace("AS n", "AS number"),
        COUNT.format("b WHERE b.price > 10", ""),
        COUNT.format("WHERE (price > 10)", ""),
        "SELECT n * 2 AS m FROM (" + COUNT.format("WHERE price > 10", "") + ") WHERE n > 3",
    ],
)
def test_ignores_names_and_everything_above_the_operator(same: str) -> None:
    assert canonical_forms(same) == canonical_forms(COUNT.format("WHERE price > 10", ""))


def test_ignores_the_ttl() -> None:
    query = "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES"
    day, week = (canonical_forms(query, f"state_ttl = '1 {unit}'") for unit in ("day", "week"))
    assert day == week != canonical_forms(query)


def test_changed_operator_changes_the_operators_above_it() -> None:
    query = (
        "SELECT max(r) AS m FROM (SELECT {}(price) AS r FROM bids GROUP BY auction) EMIT CHANGES"
    )
    before, after = canonical_forms(query.format("sum")), canonical_forms(query.format("min"))
    assert len(before) == 2 and all(a != b for a, b in zip(before, after, strict=True))


def test_canonical_forms_of_nexmark(golden: Golden) -> None:
    """A changed text invalidates stored state: record it in the changelog."""
    texts = []
    for name in nexmark.names():
        compiled = compile_text(nexmark.query(name), f"{name}.sql")
        for stream in compiled.catalog.of_type(Stream):
            for leaf in all_stateful(plan_stages(optimize(stream.plan))):
                texts.append(f"-- {name} {stream.name} {leaf.name}\n{canonical_form(leaf.node)}")
    golden(TESTS / "plan" / "plans" / "nexmark.fingerprints", "\n\n".join(texts) + "\n")


def test_every_node_has_a_canonical_form() -> None:
    """Every node that can be below an operator has a canonical form."""
    kinds = {
        kind
        for kind in vars(n).values()
        if isinstance(kind, type) and issubclass(kind, n.Node) and kind not in NEVER_RUN
    }
    for path in sorted(TESTS.glob("plan/plans/*.sql")):
        for declared in compile_text(path.read_text("utf-8")).declared:
            plan = getattr(declared, "plan", None)
            if plan is not None:
                assert canonical_form(plan)
                kinds -= {type(node) for node in n.walk(plan)}
    assert not kinds
