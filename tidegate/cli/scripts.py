"""Reads, checks and explains files without Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Function, LookupTable, SideStream, Sink, Source, Stream
from tidegate.cli import report
from tidegate.cli.report import InputProblem
from tidegate.cli.text import plural
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import CatalogError, ScriptError, did_you_mean
from tidegate.plan.nodes import Emit
from tidegate.plan.rewrite.optimizer import plan_to_run

# ---- `--var name=value` and `--conf spark.…=…`.

_NAME = re.compile(r"[A-Za-z_]\w*")
_PLACE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def pairs(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """`name=value` texts as a dict."""
    result: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputProblem(f"{option} {text} has no name and value", f"{option} {example}")
        result[name.strip()] = value
    return result


def variables(texts: Sequence[str]) -> dict[str, str]:
    """What is put in place of ${name}."""
    values = pairs("--var", texts, "name=value")
    for name in values:
        if not _NAME.fullmatch(name):
            raise InputProblem(
                f"--var {name}: a name is made of letters, digits and _", "--var day=2026-01-31"
            )
    return values


def filled(text: str, values: Mapping[str, str], file: str) -> str:
    """The text of a file with values for its variables; other names are left to the environment."""
    used = set(_PLACE.findall(text))
    for name in values:
        if name not in used:
            hint = did_you_mean(name, used, f"variables of {file}")
            raise InputProblem(f"--var {name}: {file} does not use ${{{name}}}", hint)
    return _PLACE.sub(lambda match: values.get(match[1], match[0]), text)


def spark_conf(texts: Sequence[str]) -> dict[str, str]:
    """Settings of Spark."""
    settings = pairs("--conf", texts, "spark.driver.memory=4g")
    for name in settings:
        if not name.startswith("spark."):
            raise InputProblem(
                f"--conf {name}: settings of Spark begin with spark.",
                "--conf spark.driver.memory=4g; settings of Tidegate are SET in the SQL.",
            )
    return settings


STDIN = "-"


@dataclass(frozen=True)
class ScriptFile:
    """The text of a file and the name it goes by in errors; `path` is None for stdin."""

    name: str
    text: str
    path: Path | None

    @property
    def stem(self) -> str:
        return self.path.stem if self.path is not None else self.name


def read(file: str, values: Mapping[str, str] | None = None) -> ScriptFile:
    """Read a file, or stdin if it is called `-`, with values in place of its variables."""
    if file == STDIN:
        return ScriptFile("stdin", filled(sys.stdin.read(), values or {}, "stdin"), None)
    path = Path(file)
    try:
        # utf-8-sig: editors on Windows write a byte order mark, which is not part of the SQL.
        return ScriptFile(file, filled(path.read_text("utf-8-sig"), values or {}, file), path)
    except UnicodeDecodeError as error:
        raise report.InputProblem(
            f"cannot read {file}: it is not UTF-8 text (byte {error.start})",
            "save the file with the encoding UTF-8.",
        ) from None
    except OSError as error:
        raise report.InputProblem(f"cannot read {file}: {error.strerror or error}") from None


def compile_script(script: ScriptFile, resolve_environment: bool = False) -> Compiled:
    compiler = Compiler(CONNECTORS, resolve_environment=resolve_environment)
    return compiler.compile(script.text, script.name)


def require_valid(script: ScriptFile, resolve_environment: bool = False) -> Compiled:
    """Compile a script that must be free of errors."""
    compiled = compile_script(script, resolve_environment)
    if compiled.errors:
        raise ScriptError(compiled.errors)
    return compiled


def check(files: Sequence[str], values: Mapping[str, str]) -> int:
    """Report everything found in every file; 2 if any has an error."""
    valid, shown = True, 0
    for file in files:
        try:
            script = read(file, values)
        except report.InputProblem as problem:
            report.show([problem], after_others=shown > 0)
            valid, shown = False, shown + 1
            continue
        compiled = compile_script(script)
        errors = (*compiled.errors, *compiled.unrunnable)
        report.show(errors, after_others=shown > 0)
        shown += len(errors)
        report.show(compiled.warnings, "warning", after_others=shown > 0)
        shown += len(compiled.warnings)
        colour = "red" if errors else "yellow" if compiled.warnings else "green"
        typer.secho(f"{script.name}: {_summary(compiled)}", fg=colour)
        valid = valid and not errors
    return 0 if valid else 2


def _summary(compiled: Compiled) -> str:
    parts = []
    errors = (*compiled.errors, *compiled.unrunnable)
    if errors:
        parts.append(plural(len(errors), "error"))
    else:
        parts += ["ok", *_contents(compiled.catalog)]
    if compiled.warnings:
        parts.append(plural(len(compiled.warnings), "warning"))
    return ", ".join(parts)


def _contents(catalog: Catalog) -> list[str]:
    kinds = (
        (Source, "source"),
        (LookupTable, "lookup table"),
        (Function, "function"),
        (Stream, "stream"),
        (Sink, "sink"),
    )
    counted = [(sum(1 for _ in catalog.of(kind)), noun) for kind, noun in kinds]
    return [plural(number, noun) for number, noun in counted if number] or ["nothing declared"]


def explain(
    file: str, stream: str | None, logical: bool = False, values: Mapping[str, str] | None = None
) -> int:
    """Print the plan of one stream, or of every stream and EXPLAIN of a script."""
    script = read(file, values)
    compiled = require_valid(script)
    report.show(compiled.warnings, "warning")
    trees = list(_trees(compiled, script, stream, logical))
    if not trees:
        print(f"{script.name} declares no stream", file=sys.stderr)
    print("\n\n".join(trees), end="\n" if trees else "")
    return 0


def _trees(
    compiled: Compiled, script: ScriptFile, stream_name: str | None, logical: bool
) -> Iterable[str]:
    from tidegate.physical.explain import explain as draw

    def shown(plan: Emit, logical: bool) -> Emit:
        return plan if logical else plan_to_run(plan, compiled.settings)

    if stream_name is not None:
        stream = _find(compiled.catalog, script, stream_name)
        yield draw(shown(stream.plan, logical), stream.name)
        return
    for stream in compiled.catalog.of(Stream):
        yield draw(shown(stream.plan, logical), stream.name)
    for statement, plan in compiled.explained:
        if statement.query is not None:
            yield draw(shown(plan, logical or statement.logical))


def _find(catalog: Catalog, script: ScriptFile, name: str) -> Stream:
    declared = catalog.get(name)
    if isinstance(declared, Stream):
        return declared
    if isinstance(declared, SideStream):
        raise CatalogError(
            "TG-201",
            f"{declared.name} contains {declared.holds.value} of {declared.parent} and has no plan",
            hint=f"look at the plan of a stream that reads {declared.name} or {declared.parent}.",
        )
    names = [stream.name for stream in catalog.of(Stream)]
    kind = f"{name} is a {declared.kind.value.lower()}" if declared else f"unknown stream {name}"
    raise CatalogError(
        "TG-201",
        f"{kind} in {script.name}",
        hint=did_you_mean(name, names, "streams"),
    )
