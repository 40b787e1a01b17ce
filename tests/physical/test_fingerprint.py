"""What the state of an operator means: a changed meaning changes it, a changed name does not."""

from __future__ import annotations

import pytest

from benchmarks import nexmark
from tests.conftest import Golden
from tests.support.compiling import TESTS, accepted, compile_text
from tidegate.catalog.objects import Stream
from tidegate.physical.fingerprint import canonical
from tidegate.physical.stages import all_stateful, plan_stages
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import optimize

MINUTE = "INTERVAL '1' MINUTE"
COUNT = "SELECT auction, count(*) AS n FROM bids {} GROUP BY auction, TUMBLE(ts, " + MINUTE + ") {}"
NEVER_RUN = (n.Node, n.Unary, n.NoRows)


def meanings(query: str, options: str = "") -> list[str]:
    """The texts of the operators of a query, the outer ones first."""
    stage = plan_stages(accepted(query, options))
    return [canonical(leaf.node) for leaf in all_stateful(stage)]


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
def test_a_change_in_or_below_an_operator_is_a_change(changed: str) -> None:
    assert meanings(changed) != meanings(COUNT.format("WHERE price > 10", ""))


@pytest.mark.parametrize(
    "same",
    [
        COUNT.format("WHERE price > 10", "").replace("AS n", "AS number"),
        COUNT.format("b WHERE b.price > 10", ""),
        COUNT.format("WHERE (price > 10)", ""),
        "SELECT n * 2 AS m FROM (" + COUNT.format("WHERE price > 10", "") + ") WHERE n > 3",
    ],
)
def test_names_and_what_stands_above_do_not_matter(same: str) -> None:
    assert meanings(same) == meanings(COUNT.format("WHERE price > 10", ""))


def test_how_long_state_lives_may_change() -> None:
    query = "SELECT auction, count(*) AS n FROM bids GROUP BY auction EMIT CHANGES"
    day, week = (meanings(query, f"state_ttl = '1 {unit}'") for unit in ("day", "week"))
    assert day == week != meanings(query)


def test_a_changed_inner_operator_changes_those_above_it() -> None:
    query = (
        "SELECT max(r) AS m FROM (SELECT {}(price) AS r FROM bids GROUP BY auction) EMIT CHANGES"
    )
    before, after = meanings(query.format("sum")), meanings(query.format("min"))
    assert len(before) == 2 and all(a != b for a, b in zip(before, after, strict=True))


def test_the_texts_of_nexmark(golden: Golden) -> None:
    """An upgrade that changes one of these makes stored state useless: say so in the changelog."""
    texts = []
    for name in nexmark.names():
        compiled = compile_text(nexmark.query(name), f"{name}.sql")
        for stream in compiled.catalog.of(Stream):
            for leaf in all_stateful(plan_stages(optimize(stream.plan))):
                texts.append(f"-- {name} {stream.name} {leaf.name}\n{canonical(leaf.node)}")
    golden(TESTS / "plan" / "plans" / "nexmark.fingerprints", "\n\n".join(texts) + "\n")


def test_every_node_has_a_text() -> None:
    """Nothing that can stand below an operator may be missing."""
    kinds = {
        kind
        for kind in vars(n).values()
        if isinstance(kind, type) and issubclass(kind, n.Node) and kind not in NEVER_RUN
    }
    for path in sorted(TESTS.glob("plan/plans/*.sql")):
        for declared in compile_text(path.read_text("utf-8")).declared:
            plan = getattr(declared, "plan", None)
            if plan is not None:
                assert canonical(plan)
                kinds -= {type(node) for node in n.walk(plan)}
    assert not kinds
