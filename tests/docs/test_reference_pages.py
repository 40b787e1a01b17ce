"""The reference pages equal the pages generated from the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.support.reference import cli_page, functions_page, python_page
from tidegate.catalog.connector import LOOKUP_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from tidegate.catalog.declare import RESTORE_OPTIONS, STREAM_OPTIONS
from tidegate.catalog.options import OptionSpec
from tidegate.catalog.python_functions import PYTHON_OPTIONS
from tidegate.catalog.settings import SETTINGS
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import TITLES
from tidegate.types import format_duration

DOCS = Path(__file__).parents[2] / "docs"


def _default(spec: OptionSpec) -> str:
    if spec.required:
        return "**required**"
    if spec.default is None:
        return ""
    if spec.type.value == "duration":
        return f"`{format_duration(spec.default)}`"
    return f"`{str(spec.default).lower() if isinstance(spec.default, bool) else spec.default}`"


def _table(specs: tuple[OptionSpec, ...]) -> list[str]:
    lines = ["| option | type | default | |", "| --- | --- | --- | --- |"]
    for spec in specs:
        kind = ", ".join(spec.choices) if spec.choices else spec.type.value
        kind += ", off" if spec.may_be_off else ""
        only = f" ({' and '.join(spec.only_with[1])} only)" if spec.only_with else ""
        secret = " (secret)" if spec.secret else ""
        lines.append(
            f"| `{spec.name}{'…' if spec.prefix else ''}` | {kind} | {_default(spec)} | {spec.description}{only}{secret} |"
        )
    return [*lines, ""]


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "Values are texts, numbers or true/false; durations are written `'30 s'` or `'10 min'`.",
        "`${NAME}` is replaced by the environment variable of that name. Secrets are shown as `***`.",
        "",
    ]
    for title, specs in (
        ("Every source", SOURCE_OPTIONS),
        ("Every lookup table", LOOKUP_OPTIONS),
        ("Every sink", SINK_OPTIONS),
        ("Streams: CREATE STREAM … WITH (…)", STREAM_OPTIONS),
        ("Functions of Python: CREATE FUNCTION … LANGUAGE PYTHON WITH (…)", PYTHON_OPTIONS),
        ("RESTORE FROM CHECKPOINT … WITH (…)", RESTORE_OPTIONS),
        ("Settings: SET name = value", SETTINGS),
    ):
        lines += [f"## {title}", "", *_table(specs)]
    for connector in CONNECTORS.values():
        lines += [f"## Connector `{connector.name}`: {connector.description}", ""]
        for role, spec in (
            ("source", connector.source),
            ("lookup table", connector.lookup),
            ("sink", connector.sink),
        ):
            if spec is None:
                continue
            lines += [f"As a {role}:", ""]
            lines += _table(spec.options) if spec.options else ["No specific options.", ""]
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("OPTIONS.md", options_page),
        ("CLI.md", cli_page),
        ("FUNCTIONS.md", functions_page),
        ("PYTHON.md", python_page),
    ],
)
def test_reference_page_is_current(name: str, page: Callable[[], str], golden: Golden) -> None:
    golden(DOCS / name, page())


def test_every_error_has_a_title_a_cause_and_a_fix() -> None:
    page = (DOCS / "ERRORS.md").read_text("utf-8")
    parts = re.split(r"(?m)^### (TG-\d+): (.+)$", page)
    assert list(zip(parts[1::3], parts[2::3], strict=True)) == list(TITLES.items())
    for code, section in zip(parts[1::3], parts[3::3], strict=True):
        assert re.fullmatch(r"\n+\S[^*]+?\n\n\*\*Fix:\*\* \S.+?\n*(## .*)?", section, re.S), code
