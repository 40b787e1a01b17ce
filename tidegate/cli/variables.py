"""`--var name=value` and `--conf spark.…=…`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tidegate.cli.report import InputProblem
from tidegate.errors import did_you_mean

_NAME = re.compile(r"[A-Za-z_]\w*")
_PLACE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def pairs(option: str, given: Sequence[str], example: str) -> dict[str, str]:
    """`name=value` texts as a dict."""
    found: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputProblem(f"{option} {text} has no name and value", f"{option} {example}")
        found[name.strip()] = value
    return found


def variables(given: Sequence[str]) -> dict[str, str]:
    """What is put in place of ${name}."""
    found = pairs("--var", given, "name=value")
    for name in found:
        if not _NAME.fullmatch(name):
            raise InputProblem(
                f"--var {name}: a name is made of letters, digits and _", "--var day=2026-01-31"
            )
    return found


def filled(text: str, values: Mapping[str, str], file: str) -> str:
    """The text of a file with values for its variables; other names are left to the environment."""
    used = set(_PLACE.findall(text))
    for name in values:
        if name not in used:
            hint = did_you_mean(name, used, f"variables of {file}")
            raise InputProblem(f"--var {name}: {file} does not use ${{{name}}}", hint)
    return _PLACE.sub(lambda found: values.get(found[1], found[0]), text)


def spark_conf(given: Sequence[str]) -> dict[str, str]:
    """Settings of Spark."""
    found = pairs("--conf", given, "spark.driver.memory=4g")
    for name in found:
        if not name.startswith("spark."):
            raise InputProblem(
                f"--conf {name}: settings of Spark begin with spark.",
                "--conf spark.driver.memory=4g; settings of Tidegate are SET in the SQL.",
            )
    return found
