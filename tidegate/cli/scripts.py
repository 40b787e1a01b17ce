"""SQL files: reading them, and `tidegate check` and `tidegate explain`, without Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from tidegate.catalog.catalog import Catalog
from tidegate.catalog.objects import Function, LookupTable, SideStream, Sink, Source, Stream
from tidegate.cli.errors import UsageError, print_diagnostics
from tidegate.compile.compiler import Compiled, Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import CatalogError, ScriptError, did_you_mean, pluralize
from tidegate.plan.nodes import Emit
from tidegate.plan.rewrite.optimizer import optimized_plan

# ---- The options --var NAME=VALUE and --conf KEY=VALUE

_VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")


def parse_variables(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the values of --var."""
    values = _parse_pairs("--var", pairs, "name=value")
    for name in values:
        if not _VARIABLE_NAME.fullmatch(name):
            raise UsageError(
                f"--var {name}: a name consists of letters, digits and _", "--var day=2026-01-31"
            )
    return values


def parse_spark_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Parse the values of --conf."""
    settings = _parse_pairs("--conf", pairs, "spark.driver.memory=4g")
    for name in settings:
        if not name.startswith("spark."):
            raise UsageError(
                f"--conf {name}: names of Spark settings start with spark.",
                "--conf spark.driver.memory=4g; for settings of Tidegate, use SET in the SQL.",
            )
    return settings


def _parse_pairs(option: str, pairs: Sequence[str], example: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"{option} {pair}: expected a name and a value", f"{option} {example}")
        values[name.strip()] = value
    return values


# ---- Reading files

STDIN = "-"


@dataclass(frozen=True)
class ScriptFile:
    """The text of a file, and its name in error messages; `path` is None for stdin."""

    name: str
    text: str
    path: Path | None

    @property
    def stem(self) -> str:
        return self.path.stem if self.path is not None else self.name


def read(file: str, values: Mapping[str, str] | None = None) -> ScriptFile:
    """Read a file, or stdin if its name is `-`, and replace its variables by their values."""
    if file == STDIN:
        text = _replace_variables(sys.stdin.read(), values or {}, "stdin")
        return ScriptFile("stdin", text, None)
    path = Path(file)
    try:
        # utf-8-sig: editors on Windows write a byte order mark, which is not part of the SQL.
        text = _replace_variables(path.read_text("utf-8-sig"), values or {}, file)
        return ScriptFile(file, text, path)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"cannot read {file}: it is not UTF-8 text (byte {error.start})",
            "save the file as UTF-8.",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from None


def _replace_variables(text: str, values: Mapping[str, str], file: str) -> str:
    """Replace variables by their values. Other variables refer to the environment."""
    used = set(_VARIABLE.findall(text))
    for name in values:
        if name not in used:
            hint = did_you_mean(name, used, f"variables of {file}")
            raise UsageError(f"--var {name}: {file} does not use ${{{name}}}", hint)
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), text)


def _compile(script: ScriptFile, resolve_environment: bool = False) -> Compiled:
    compiler = Compiler(CONNECTORS, resolve_environment=resolve_environment)
    return compiler.compile(script.text, script.name)


def require_valid(script: ScriptFile, resolve_environment: bool = False) -> Compiled:
    """Compile a script; raise its errors."""
    compiled = _compile(script, resolve_environment)
    if compiled.errors:
        raise ScriptError(compiled.errors)
    return compiled


# ---- tidegate check


def check(files: Sequence[str], values: Mapping[str, str]) -> int:
    """Print the errors and warnings of all files; return 2 if there are errors."""
    valid, printed = True, 0
    for file in files:
        try:
            script = read(file, values)
        except UsageError as error:
            print_diagnostics([error], leading_blank_line=printed > 0)
            valid, printed = False, printed + 1
            continue
        compiled = _compile(script)
        errors = (*compiled.errors, *compiled.rejections)
        print_diagnostics(errors, leading_blank_line=printed > 0)
        printed += len(errors)
        print_diagnostics(compiled.warnings, "warning", leading_blank_line=printed > 0)
        printed += len(compiled.warnings)
        color = "red" if errors else "yellow" if compiled.warnings else "green"
        typer.secho(f"{script.name}: {_summary(compiled)}", fg=color)
        valid = valid and not errors
    return 0 if valid else 2


def _summary(compiled: Compiled) -> str:
    errors = (*compiled.errors, *compiled.rejections)
    if errors:
        parts = [pluralize(len(errors), "error")]
    else:
        parts = ["ok", *_object_counts(compiled.catalog)]
    if compiled.warnings:
        parts.append(pluralize(len(compiled.warnings), "warning"))
    return ", ".join(parts)


def _object_counts(catalog: Catalog) -> list[str]:
    kinds = (
        (Source, "source"),
        (LookupTable, "lookup table"),
        (Function, "function"),
        (Stream, "stream"),
        (Sink, "sink"),
    )
    counts = [(sum(1 for _ in catalog.of_type(kind)), noun) for kind, noun in kinds]
    return [pluralize(count, noun) for count, noun in counts if count] or ["nothing declared"]


# ---- tidegate explain


def explain(
    file: str, stream: str | None, logical: bool = False, values: Mapping[str, str] | None = None
) -> int:
    """Print the plan of one stream, or of all streams and EXPLAIN statements of a script."""
    script = read(file, values)
    compiled = require_valid(script)
    print_diagnostics(compiled.warnings, "warning")
    plans = list(_rendered_plans(compiled, script, stream, logical))
    if not plans:
        print(f"{script.name} declares no streams", file=sys.stderr)
    print("\n\n".join(plans), end="\n" if plans else "")
    return 0


def _rendered_plans(
    compiled: Compiled, script: ScriptFile, stream_name: str | None, logical: bool
) -> Iterable[str]:
    from tidegate.physical.explain import explain as render

    def optimized(plan: Emit, logical: bool) -> Emit:
        return plan if logical else optimized_plan(plan, compiled.settings)

    if stream_name is not None:
        stream = _require_stream(compiled.catalog, script, stream_name)
        yield render(optimized(stream.plan, logical), stream.name)
        return
    for stream in compiled.catalog.of_type(Stream):
        yield render(optimized(stream.plan, logical), stream.name)
    for statement, plan in compiled.explained:
        if statement.query is not None:
            yield render(optimized(plan, logical or statement.logical))


def _require_stream(catalog: Catalog, script: ScriptFile, name: str) -> Stream:
    declared = catalog.get(name)
    if isinstance(declared, Stream):
        return declared
    if isinstance(declared, SideStream):
        raise CatalogError(
            "TG-201",
            f"{declared.name} contains {declared.side_kind.value} of {declared.parent} and has no "
            "plan",
            hint=f"explain a stream that reads {declared.name} or {declared.parent}.",
        )
    names = [stream.name for stream in catalog.of_type(Stream)]
    problem = f"{name} is a {declared.kind.value.lower()}" if declared else f"unknown stream {name}"
    raise CatalogError(
        "TG-201",
        f"{problem} in {script.name}",
        hint=did_you_mean(name, names, "streams"),
    )
