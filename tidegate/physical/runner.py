"""What steps an operator in its key groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.physical.plan import FIRST_OPERATOR, OperatorPlan

if TYPE_CHECKING:
    from tidegate.operators.runner import Runner


def runner_of(plan: OperatorPlan) -> Runner:
    """The runner of an operator, which knows the origins of its time by their place."""
    from tidegate.operators.runner import Runner

    origins = tuple(
        tuple(
            replace(origin, id=place_of(number, place)) for place, origin in enumerate(fed.origins)
        )
        for number, fed in enumerate(plan.ports)
    )
    return Runner(
        plan.number, plan.operator, origins, plan.by_clock, plan.held_back_us, plan.meaning
    )


def place_of(port: int, place: int) -> int:
    """An origin as its operator knows it: the same however the rest of a query changes."""
    return port * FIRST_OPERATOR + place
