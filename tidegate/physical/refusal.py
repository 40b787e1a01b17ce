"""Why a node cannot run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.types import Span

if TYPE_CHECKING:
    from tidegate.plan.nodes import Node


@dataclass(frozen=True)
class Refusal:
    """The reason and what to do instead; `span` if it is not the place of the whole node."""

    message: str
    hint: str | None = None
    span: Span | None = None


class Unrunnable(Exception):
    """A node cannot run for a reason that shows only when it is planned in detail."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        # The node, once it is known which one was planned.
        self.node: Node | None = None
