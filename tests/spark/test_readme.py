"""The blocks of README work when they are pasted in order into an empty directory."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.doc_blocks import blocks_of
from tests.support.install import copy_checkout

pytestmark = pytest.mark.spark

STEPS = [b for b in blocks_of("README.md") if b.language in ("bash", "python") and not b.not_run]
# Printed after each block, with its exit code.
_MARK = "----- end of block "
# A user of Tidegate; mypy must know the types.
_PROGRAM = """\
import tidegate
with tidegate.open("data") as db:
    reveal_type(db)
    reveal_type(db.insert("trades", []))
"""


@dataclass(frozen=True)
class Pasted:
    """The output of the blocks of README, and the directory and environment that they created."""

    outputs: list[str]
    codes: list[int]
    project: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Pasted:
    """Paste all blocks into one shell, next to a copy of the checkout."""
    home = tmp_path_factory.mktemp("readme")
    copy_checkout(home / "tidegate")
    environment = offline_environment(tmp_path_factory.mktemp("bin"))
    shell = subprocess.run(
        ["bash"],
        input=script(tmp_path_factory.mktemp("snippets")),
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    parts = shell.stdout.split(_MARK)
    assert len(parts) == len(STEPS) + 1, shell.stdout
    ends = [part.split("\n", 1) for part in parts[1:]]
    outputs = [parts[0], *(rest for _, rest in ends)][:-1]
    codes = [int(code) for code, _ in ends]
    return Pasted(outputs, codes, home / "first_stream", environment)


def offline_environment(tools: Path) -> dict[str, str]:
    """Return an environment in which pip finds this environment's packages, except Tidegate.

    A directory on PYTHONPATH has no .pth files read, so the editable install of the tests is hidden.
    """
    python = tools / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "COLUMNS")}
    environment["PATH"] = f"{tools}:/usr/bin:/bin:{os.environ['PATH']}"
    environment["PYTHONPATH"] = sysconfig.get_path("purelib")
    return environment


def script(snippets: Path) -> str:
    """Return README's blocks as one shell script. pip may not download anything."""
    lines = ['pip() { command pip "$@" --no-index --no-build-isolation; }']
    for number, block in enumerate(STEPS):
        if block.language == "python":
            file = snippets / f"snippet_{number}.py"
            file.write_text(block.text)
            lines.append(f"python - < {shlex.quote(str(file))}")
        else:
            lines.append(block.text)
        lines.append(f'echo "{_MARK}$?"')
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("number", range(len(STEPS)), ids=[block.where for block in STEPS])
def test_block_prints_what_readme_shows(pasted: Pasted, number: int) -> None:
    block, output = STEPS[number], pasted.outputs[number]
    assert pasted.codes[number] == (2 if "error[" in block.answer else 0), output
    if block.answer:
        assert output == block.answer


def test_every_block_of_readme_is_pasted_or_compared() -> None:
    blocks = blocks_of("README.md")
    shown = [block for block in blocks if block.language == "text"]
    assert shown and len(shown) == len([block for block in STEPS if block.answer])
    assert [b for b in blocks if b not in STEPS and b not in shown and not b.not_run] == []


def test_mypy_finds_tidegate_after_the_install_of_readme(pasted: Pasted) -> None:
    program = pasted.project / "program.py"
    program.write_text(_PROGRAM)
    python = pasted.project / ".venv" / "bin" / "python"

    def run(*arguments: str) -> str:
        process = subprocess.run(
            [python, *arguments],
            cwd=pasted.project,
            env=pasted.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    installed = run("-c", "import tidegate; print(tidegate.__file__)")
    assert installed.startswith(str(pasted.project / ".venv"))
    output = run("-m", "mypy", "--strict", program.name)
    assert '"tidegate.session.session.Session"' in output
    assert 'Revealed type is "int"' in output
