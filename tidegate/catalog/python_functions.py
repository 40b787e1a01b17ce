"""Python functions for SQL: load them, and compute their version.

State depends on functions, so a changed function must be detected. Its version is a hash of its
source text, of the functions of its module that it calls, and of the constants that it reads. Other
changes are not detected; users then set `version`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tidegate.catalog.options import OptionSpec, OptionType
from tidegate.errors import CatalogError

PYTHON_OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec(
        "scalar",
        OptionType.BOOLEAN,
        "true if the function is called with the values of one row, instead of Arrow arrays",
        default=False,
    ),
    OptionSpec(
        "deterministic",
        OptionType.BOOLEAN,
        "false if the function can return different values for the same arguments",
        default=True,
    ),
    OptionSpec(
        "version",
        OptionType.TEXT,
        "version of the function; a new version is a changed query; default: a hash of the "
        "source text",
    ),
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def version_of(function: Callable[..., Any], version: str | None) -> str:
    """Return a hash of the version, or of the source text of a function."""
    text = f"given {version}" if version is not None else "\n".join(_source_texts(function, set()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _source_texts(function: Any, seen: set[int]) -> Iterator[str]:
    seen.add(id(function))
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.ismethod(function):
        raise _unknown_version(f"{name} is a method, whose behavior depends on its object")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise _unknown_version(f"the source text of {name} is not available") from None
    yield repr([item for item in function.__defaults__ or () if _is_plain(item)])
    yield textwrap.dedent(source).replace("\r\n", "\n").strip()
    for name, value in _variables_of(function):
        if isinstance(value, FunctionType):
            if id(value) not in seen and value.__module__ == function.__module__:
                yield from _source_texts(value, seen)
        elif _is_plain(value):
            yield f"{name} = {value!r}"


def _unknown_version(reason: str) -> CatalogError:
    return CatalogError(
        "TG-210",
        f"{reason}, so changes cannot be detected",
        hint="set a version: version='1', and change it when the function changes.",
    )


def _variables_of(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the global and enclosing variables that a function reads, with their values."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name in sorted(set(_names(code))):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield name, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in a function and in its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return isinstance(value, _PLAIN)


def load(target: str, folder: str) -> Callable[..., Any]:
    """Load `module:function`. The module is next to the SQL file, or installed."""
    module_name, _, name = target.partition(":")
    module = _module(module_name, Path(folder or "."))
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        existing = [key for key, item in vars(module).items() if inspect.isfunction(item)]
        functions = f"; it has {', '.join(existing)}" if existing else ""
        raise CatalogError(
            "TG-210",
            f"the module {module_name} has no function {name}{functions}",
            hint=f"define it in {module_name}: def {name}(…).",
        )
    return function  # type: ignore[no-any-return]


def _module(name: str, folder: Path) -> ModuleType:
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    try:
        if not file.is_file():
            return importlib.import_module(name)
        return _load_file(name, file.resolve())
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]
        reason = "it does not exist" if missing else f"{type(error).__name__}: {error}"
        raise CatalogError(
            "TG-210",
            f"the module {name} cannot be loaded: {reason}",
            hint=f"put {name.split('.')[-1]}.py next to the SQL file, or install it.",
        ) from None


def _load_file(name: str, file: Path) -> ModuleType:
    """Load a module from a file, under a unique name."""
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    unique_name = f"_tidegate_{digest}_{name.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(unique_name, file)
    assert spec is not None and spec.loader is not None, "Python files can be loaded"
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique_name] = module
    linecache.checkcache(str(file))
    spec.loader.exec_module(module)
    return module


def parameter_names(function: Callable[..., Any]) -> list[str] | None:
    """Return the names of the parameters; None if unknown or variable."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]


def parameter_problem(
    name: str, function: Callable[..., Any], count: int
) -> tuple[str, str] | None:
    """Compare the number of declared parameters with the function; return a message and a hint."""
    if count == 0:
        message = f"function {name} has no parameters, but Spark calls functions with columns"
        return message, "add a parameter, such as the id of the row."
    names = parameter_names(function)
    if names is not None and len(names) != count:
        parameters = ", ".join(names) or "none"
        message = f"{name} is declared with {count} parameters, but the function has: {parameters}"
        return message, "declare the same number of parameters."
    return None
