"""The end of a query comes at any moment; whoever looks at it must not miss its error."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import PySparkException

from tests.compiling import accepted
from tidegate.catalog.settings import Settings
from tidegate.errors import RunError
from tidegate.observe.status import State
from tidegate.physical.typed import TypedPlan, Types
from tidegate.spark.pipeline import SparkPipeline


class EndingQuery:
    """Fails while somebody looks: active for so many looks, and then no more."""

    recentProgress: tuple[Any, ...] = ()  # noqa: N815

    def __init__(self, looks: int) -> None:
        self.looks = looks

    @property
    def isActive(self) -> bool:  # noqa: N802
        self.looks -= 1
        return self.looks >= 0

    def exception(self) -> Exception | None:
        return ValueError("boom") if self.looks < 0 else None

    def processAllAvailable(self) -> None:  # noqa: N802
        raise PySparkException("boom")

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802
        self.looks = -1
        raise PySparkException("boom")


def pipeline(looks: int) -> SparkPipeline:
    directory = SimpleNamespace(pipeline=lambda name: Path(name))
    context = cast(Any, SimpleNamespace(settings=Settings(), directory=directory))
    made = SparkPipeline(context, "s", TypedPlan(accepted("SELECT k FROM plain"), Types({})))
    made.query = cast(Any, EndingQuery(looks))
    made.counters.state = State.RUNNING
    return made


@pytest.mark.parametrize("looks", range(4))
def test_a_query_that_ends_between_two_looks_has_failed(looks: int) -> None:
    made = pipeline(looks)
    with pytest.raises(RunError, match="boom"):
        while made.is_alive():
            pass
    assert made.counters.state is State.FAILED


def test_an_error_told_before_the_query_has_ended() -> None:
    with pytest.raises(RunError, match="boom"):
        pipeline(looks=5).wait(None)
