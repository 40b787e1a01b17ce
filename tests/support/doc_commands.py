"""The shell commands of the documentation must exist and have the options that they use."""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache

from typer import Typer
from typer.main import get_command

from benchmarks.nexmark import __main__ as nexmark
from tests.support.doc_blocks import ROOT, Block
from tidegate.cli import main as tidegate

# Programs without side effects that every system has.
HARMLESS = {"cat", "cd", "cp", "echo", "ls", "mkdir", "sort"}
_HEREDOC = re.compile(r"(?ms)^([^\n]*<<'(\w+)')\n.*?^\2$")


def commands(block: Block) -> list[str]:
    """Return the commands of a block, without comments and here-documents."""
    joined = _HEREDOC.sub(r"\1", block.text).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def words_of(command: str) -> list[str]:
    """Return the words of a command, without variables in front of it."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    return words


def require_known(command: str) -> None:
    """Reject unknown programs, targets and options."""
    program, *rest = words_of(command)
    if program == "tidegate":
        require_parsed(rest)
    elif words_of(command)[:3] == ["python", "-m", "benchmarks.nexmark"]:
        require_parsed(rest[2:], nexmark.app)
    elif program == "make":
        assert set(rest) <= _make_targets(), f"no such target: {command}"
    elif program == "pip":
        extras = {name for each in rest for name in re.findall(r"tidegate\[([\w,]+)\]", each)}
        assert rest[0] == "install"
        assert {name for each in extras for name in each.split(",")} <= _extras(), command
    elif program in ("python", "python3"):
        assert rest[0] == "-m" or (ROOT / rest[0]).is_file(), f"no such program: {command}"
    else:
        assert program in HARMLESS | {".", "curl", "jupyter"}, f"unknown program: {program}"


def require_parsed(words: list[str], app: Typer = tidegate.app) -> None:
    """Parse words as a command line does, down to the last command."""
    command, context = get_command(app), None
    program = name = command.name or ""
    rest = words
    try:
        while True:
            context = command.make_context(name, list(rest), parent=context)
            resolve = getattr(command, "resolve_command", None)
            if resolve is None:
                return
            name, command, rest = resolve(context, [*context._protected_args, *context.args])
    except Exception as error:
        if type(error).__name__ == "Exit":  # --version and --help
            return
        raise AssertionError(f"{program} {' '.join(words)}: {error}") from error


@cache
def _make_targets() -> set[str]:
    return set(re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text("utf-8")))


@cache
def _extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return set(project["project"]["optional-dependencies"])
