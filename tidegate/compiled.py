"""What the compiler makes of a script."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Declared, Stream
from tidegate.catalog.settings import Settings
from tidegate.errors import RunError, TidegateError
from tidegate.physical.refusals import unrunnable
from tidegate.plan import nodes as n
from tidegate.plan.rewrite.optimizer import plan_to_run
from tidegate.sql import statements as st


@dataclass(frozen=True)
class Compiled:
    """What a script comes to: the catalog after it, what to do, and everything found."""

    script: st.Script
    catalog: Catalog
    settings: Settings
    statements: tuple[st.Statement, ...]
    declared: tuple[Declared, ...]
    explained: tuple[tuple[st.Explain, n.Emit], ...]
    errors: tuple[TidegateError, ...]
    # What is declared right with a connector that is not built.
    not_built: tuple[TidegateError, ...]
    warnings: tuple[TidegateError, ...]
    # Whether something that was declared before is another thing now.
    replaced: bool = False

    @cached_property
    def unrunnable(self) -> tuple[TidegateError, ...]:
        """What is right and cannot run: it can be explained, and nothing else."""
        streams = [item for item in self.declared if isinstance(item, Stream)]
        found = (error for item in streams for error in self._unrunnable(item))
        return (*self.not_built, *found)

    def _unrunnable(self, stream: Stream) -> list[RunError]:
        return unrunnable(stream, plan_to_run(stream.plan, self.settings))
