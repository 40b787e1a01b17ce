"""Functions of Python: where they come from, and by what another version of one is told.

What state depends on must not change unnoticed, so a function is known by its text: its own, that
of the functions of its module that it calls, and the plain values that it reads. Whatever else it
does is not seen; `version` says it then.
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
        "true if the function takes the values of one row, not Arrow arrays of many",
        default=False,
    ),
    OptionSpec(
        "deterministic",
        OptionType.BOOLEAN,
        "false if the function may give another value for the same arguments",
        default=True,
    ),
    OptionSpec(
        "version",
        OptionType.TEXT,
        "what tells this function from the one before; by default its source text",
    ),
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def version_of(function: Callable[..., Any], given: str | None) -> str:
    """A short name for what a function does."""
    text = f"given {given}" if given is not None else "\n".join(_texts(function, set()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _texts(function: Any, seen: set[int]) -> Iterator[str]:
    seen.add(id(function))
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.ismethod(function):
        raise _unknown(f"{name} is a method, and may do what its object says")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise _unknown(f"the source text of {name} cannot be read") from None
    yield repr([item for item in function.__defaults__ or () if _is_plain(item)])
    yield textwrap.dedent(source).replace("\r\n", "\n").strip()
    for name, value in _read_by(function):
        if isinstance(value, FunctionType):
            if id(value) not in seen and value.__module__ == function.__module__:
                yield from _texts(value, seen)
        elif _is_plain(value):
            yield f"{name} = {value!r}"


def _unknown(reason: str) -> CatalogError:
    return CatalogError(
        "TG-210",
        f"{reason}, so nobody could tell when it changes",
        hint="say what it is: version='1', and another one when it does something else.",
    )


def _read_by(function: Any) -> Iterator[tuple[str, Any]]:
    """The globals and the variables around a function that it reads, by name."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name in sorted(set(_names(code))):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        yield name, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    """Names in a function and in those inside of it."""
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
    """The function of `module:function`; the module lies beside the SQL file, or is installed."""
    module_name, _, name = target.partition(":")
    module = _module(module_name, Path(folder or "."))
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        known = [key for key, item in vars(module).items() if inspect.isfunction(item)]
        shown = f"; it has {', '.join(known)}" if known else ""
        raise CatalogError(
            "TG-210",
            f"the module {module_name} has no function {name}{shown}",
            hint=f"define it in {module_name}: def {name}(…).",
        )
    return found  # type: ignore[no-any-return]


def _module(name: str, folder: Path) -> ModuleType:
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    try:
        if not file.is_file():
            return importlib.import_module(name)
        return _loaded(name, file.resolve())
    except Exception as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == name.split(".")[0]
        reason = "there is none" if missing else f"{type(error).__name__}: {error}"
        raise CatalogError(
            "TG-210",
            f"the module {name} cannot be loaded: {reason}",
            hint=f"put {name.split('.')[-1]}.py beside the SQL file, or install it.",
        ) from None


def _loaded(name: str, file: Path) -> ModuleType:
    """The module of a file, under a name that no other module has."""
    location = hashlib.sha256(str(file).encode()).hexdigest()[:8]
    own_name = f"_tidegate_{location}_{name.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(own_name, file)
    assert spec is not None and spec.loader is not None, "a file of Python can be loaded"
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module
    linecache.checkcache(str(file))
    spec.loader.exec_module(module)
    return module


def parameter_names(function: Callable[..., Any]) -> list[str] | None:
    """The names of what a function takes; None where it takes any number, or does not say."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for p in found):
        return None
    return [p.name for p in found if p.kind is not p.VAR_KEYWORD]


def misfit(name: str, function: Callable[..., Any], taken: int) -> tuple[str, str] | None:
    """What is wrong with the number of parameters that are declared, and what to do."""
    if taken == 0:
        message = f"the function {name} takes nothing, and Spark calls functions for values"
        return message, "give it a parameter, such as a number of the row."
    names = parameter_names(function)
    if names is not None and len(names) != taken:
        shown = ", ".join(names) or "nothing"
        return f"{name} is declared with {taken} parameters, and takes {shown}", (
            "declare as many as it takes."
        )
    return None
