"""Options and fixtures of all tests. `pytest --regenerate` writes the golden files; review the diff."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

Golden = Callable[[Path, str], None]

# The time of an example depends more on the machine than on the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate", action="store_true", help="write the golden files instead of comparing"
    )


@pytest.fixture(autouse=True)
def pipelines_end_with_their_test() -> Iterator[None]:
    """Stop pipelines that a test has left running."""
    yield
    pipelines = sys.modules.get("tests.support.pipelines")
    if pipelines is not None:
        pipelines.stop_pipelines()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return a function that compares a text with a file, or writes it with --regenerate."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--regenerate"):
            path.write_text(text, "utf-8")
        assert path.exists(), f"{path.name} is missing: pytest --regenerate writes it"
        assert text == path.read_text("utf-8")

    return check
