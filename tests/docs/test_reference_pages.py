"""The reference pages equal the pages generated from the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Golden
from tests.support.reference import cli_page, functions_page, python_page
from tidegate.catalog.commands import RESTORE_OPTIONS
from tidegate.catalog.connector import LOOKUP_OPTIONS, SINK_OPTIONS, SOURCE_OPTIONS
from tidegate.catalog.declare import STREAM_OPTIONS
from tidegate.catalog.options import OptionSpec
from tidegate.catalog.python_functions import PYTHON_OPTIONS
from tidegate.catalog.settings import SETTINGS
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import TITLES
from tidegate.types import format_duration_us

DOCS = Path(__file__).parents[2] / "docs"


def _default(spec: OptionSpec) -> str:
    if spec.required:
        return "**required**"
    if spec.default is None:
        return ""
    if spec.type.value == "duration":
        return f"`{format_duration_us(spec.default)}`"
    return f"`{str(spec.default).lower() if isinstance(spec.default, bool) else spec.default}`"


def _table(specs: tuple[OptionSpec, ...]) -> list[str]:
    lines = ["| option | type | default | description |", "| --- | --- | --- | --- |"]
    for spec in specs:
        kind = ", ".join(spec.choices) if spec.choices else spec.type.value
        kind += ", off" if spec.may_be_off else ""
        only = f" ({', '.join(spec.only_with[1])} only)" if spec.only_with else ""
        secret = " (secret)" if spec.secret else ""
        lines.append(
            f"| `{spec.name}{'…' if spec.prefix else ''}` | {kind} | {_default(spec)} | {spec.description}{only}{secret} |"
        )
    return [*lines, ""]


def _role(
    role: str, options: tuple[OptionSpec, ...], source_options: tuple[OptionSpec, ...]
) -> list[str]:
    """List the options of a connector in a role; refer to those of the source if they are fewer."""
    if not options:
        return [f"As a {role}: no further options.", ""]
    missing = [f"`{spec.name}`" for spec in source_options if spec not in options]
    if missing and set(options) < set(source_options):
        return [f"As a {role}: the options of the source without {' and '.join(missing)}.", ""]
    return [f"As a {role}:", "", *_table(options)]


def options_page() -> str:
    lines = [
        "# Options",
        "",
        "<!-- Generated from the code by `make goldens`. -->",
        "",
        "Values are strings, numbers or booleans. A list of names is a string with commas: `'a, b'`. An empty cell in the column",
        "*default* means that the option is not set.",
        "",
        "A duration is a string of numbers with units: `'30 s'`, `'10 min'`, `'1 day 12 hours'`. The units are `us`, `ms`, `s` or `sec`,",
        "`m` or `min`, `h` or `hr`, `d` and `w`, or their names (`seconds`). Months and years are not allowed.",
        "",
        "In option values, `${NAME}` is replaced by the environment variable `NAME`, or by the value of `--var NAME=VALUE`. Values of",
        "passwords and other secrets are shown as `***`.",
        "",
    ]
    for title, specs in (
        ("Every source", SOURCE_OPTIONS),
        ("Every lookup table", LOOKUP_OPTIONS),
        ("Every sink", SINK_OPTIONS),
        ("Streams: CREATE STREAM … WITH (…)", STREAM_OPTIONS),
        ("Python functions: CREATE FUNCTION … LANGUAGE PYTHON WITH (…)", PYTHON_OPTIONS),
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
            lines += _role(role, spec.options, connector.source.options if connector.source else ())
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
