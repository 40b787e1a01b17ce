"""Reference pages generated from the code: command line, functions, Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from enum import Enum, EnumType
from typing import Any, get_args, get_type_hints

import tidegate
from tidegate.cli.main import app
from tidegate.operators.aggregate.functions.registry import AGGREGATES
from tidegate.sql import expressions as ex
from tidegate.sql.suggestions import FUNCTIONS as OF_OTHERS
from tidegate.types import RANK_FUNCTIONS, WHOLE_PARTITION_FUNCTIONS

_GENERATED = "<!-- Generated from the code by `make goldens`. -->"


def cli_page() -> str:
    """List every command with its arguments and options."""
    lines = ["# The command line", "", _GENERATED, ""]
    lines += [
        "```bash",
        "tidegate check shop.sql                                        # find errors without running anything",
        "tidegate run shop.sql --available-now                          # process the available rows, and exit",
        "tidegate run shop.sql --var day=2026-01-31 --conf spark.driver.memory=4g",
        'tidegate query .tidegate/shop "SELECT * FROM totals" --format csv',
        "```",
        "",
        "`tidegate COMMAND --help` shows the same text as this page.",
        "",
        "| for every command | |",
        "| --- | --- |",
        "| `--help, -h` | Show the arguments and options. |",
        "| `--debug` | Show the stack trace of an error. |",
        "",
        "`tidegate --version` shows the version. `tidegate --install-completion` installs completion for your shell.",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        "| 0 | success |",
        "| 1 | failed test cases, or an internal error |",
        "| 2 | an error that you can fix |",
        "| 130 | interrupted with Ctrl-C; `tidegate run` exits with 0 after the first Ctrl-C |",
        "",
    ]
    for words, call in _commands("tidegate", app):
        hints = get_type_hints(call, include_extras=True)
        signature = inspect.signature(call).parameters
        parameters = [_Parameter(name, hints[name], signature[name].default) for name in signature]
        parameters = [each for each in parameters if each.name != "debug"]
        arguments = [each.label for each in parameters if not each.options]
        usage = " ".join([words, "[OPTIONS]", *arguments])
        lines += [f"## {words}", "", *inspect.cleandoc(call.__doc__ or "").splitlines(), ""]
        lines += ["```text", usage, "```", "", *_table(parameters)]
    return "\n".join(lines).rstrip() + "\n"


def _commands(words: str, group: Any) -> list[tuple[str, Any]]:
    commands = [
        (f"{words} {each.name or each.callback.__name__}", each.callback)
        for each in group.registered_commands
    ]
    for inner in group.registered_groups:
        commands += _commands(f"{words} {inner.name}", inner.typer_instance)
    return commands


class _Parameter:
    """An argument or option of a command."""

    def __init__(self, name: str, hint: Any, default: Any) -> None:
        self.name = name
        self.kind, info = get_args(hint)
        # In Annotated the first name of an option is in the place of a default.
        names = (info.default, *(info.param_decls or ()))
        self.options = tuple(n for n in names if isinstance(n, str) and n.startswith("-"))
        self.help, self.metavar = info.help, info.metavar
        self.default = getattr(default, "value", default)

    @property
    def is_optional(self) -> bool:
        return self.default is not inspect.Parameter.empty

    @property
    def label(self) -> str:
        """The argument or option as it is written on the command line."""
        if not self.options:
            shown = self.metavar or self.name.upper()
            return f"[{shown}]" if self.is_optional and shown[0] != "[" else shown
        kinds = [kind for kind in (get_args(self.kind) or (self.kind,)) if kind is not type(None)]
        if kinds == [bool]:
            return ", ".join(self.options)
        choices = [each.value for each in kinds[0]] if isinstance(kinds[0], EnumType) else []
        kind = self.metavar or " | ".join(choices) or kinds[0].__name__.upper()
        return f"{', '.join(self.options)} {kind}"

    @property
    def canonical_form(self) -> str:
        default = self.default
        says = f" [{default}]" if isinstance(default, str | int) and default is not False else ""
        return f"{self.help}{says}".replace("${NAME}", "`${NAME}`").replace("<", "&lt;")


def _table(parameters: list[_Parameter]) -> list[str]:
    rows = ["| argument or option | |", "| --- | --- |"]
    # Bars between choices do not separate columns.
    rows += [
        "| `{}` | {} |".format(each.label.replace("|", "\\|"), each.canonical_form)
        for each in parameters
    ]
    return [*rows, ""]


def functions_page() -> str:
    """List all functions by their use in a stream."""
    aggregates = sorted({name for aggregate in AGGREGATES for name in aggregate.names})
    spark = ex.spark_functions() | ex.UNIT_FUNCTIONS
    scalar = spark - ex.aggregate_functions() - ex.GENERATOR_FUNCTIONS - ex.SPARK_WINDOW_FUNCTIONS
    scalar -= {name.upper() for name in aggregates} | _over()
    lines = [
        "# Functions",
        "",
        _GENERATED,
        "",
        "The functions and their types are",
        "[Spark SQL's](https://spark.apache.org/docs/latest/api/sql/index.html): ANSI mode, time zone UTC. Your own functions:",
        "[CREATE FUNCTION](LANGUAGE.md#user-defined-functions).",
        "",
        "## Windows and time",
        "",
        "| function | result |",
        "| --- | --- |",
        "| `TUMBLE(ts, size [, offset])` | [windows of equal size without gaps](concepts/tumbling_windows.md) |",
        "| `HOP(ts, slide, size [, offset])` | [overlapping windows](concepts/sliding_windows.md) |",
        "| `CUMULATE(ts, step, size [, offset])` | windows that grow by `step` up to `size` |",
        "| `SESSION(ts, gap)` | [windows that end after a gap without rows](concepts/session_windows.md) |",
        "| `PROCTIME()` | the processing time of the epoch, for windows and joins of [processing time](concepts/time.md); in ORDER BY of OVER the order in which rows arrive |",
        "",
        "Spark's own `window` and `session_window` are rejected, with the call to write instead.",
        "",
        "## Aggregates",
        "",
        "In GROUP BY, and with OVER; DISTINCT and `FILTER (WHERE …)` where Spark allows them.",
        "[The state of each](LANGUAGE.md#aggregates).",
        "",
        _names(aggregates),
        "",
        "Other aggregates of Spark are rejected (TG-501).",
        "",
        "## Only with OVER",
        "",
        _names(_over() - {name.upper() for name in aggregates}),
        "",
        "## Several rows from one row",
        "",
        "With LATERAL VIEW: " + _names(ex.GENERATOR_FUNCTIONS),
        "",
        "## Non-deterministic functions",
        "",
        "They are evaluated once per epoch or per row, and a committed epoch is never computed again. They are rejected where",
        "their value would be part of state or of a key (TG-414).",
        "",
        _names(ex.VOLATILE_FUNCTIONS),
        "",
        "## Scalar functions",
        "",
        "Spark evaluates these functions.",
        "",
        _names(scalar - ex.VOLATILE_FUNCTIONS),
        "",
        "## Names in other systems",
        "",
        "| other systems | Tidegate |",
        "| --- | --- |",
        *(f"| `{name.lower()}` | {_code(here)} |" for name, here in OF_OTHERS.items()),
        "",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _over() -> set[str]:
    return {
        "LAG",
        "LEAD",
        "FIRST_VALUE",
        "LAST_VALUE",
        "NTH_VALUE",
        *RANK_FUNCTIONS,
        *WHOLE_PARTITION_FUNCTIONS,
    }


def _names(names: Any) -> str:
    """Format the names of functions, without operators."""
    words = sorted({name.lower() for name in names if re.fullmatch(r"\w+", name)})
    return ", ".join(f"`{name}`" for name in words)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


EXAMPLE = '''\
```python
import tidegate

with tidegate.open("data") as db:
    db.execute("""
        CREATE SOURCE sales (item STRING, amount BIGINT) WITH (connector = 'memory');
        CREATE MATERIALIZED VIEW totals AS
        SELECT item, sum(amount) AS total FROM sales GROUP BY item EMIT ON UPDATE;
    """)
    db.insert("sales", [{"item": "tea", "amount": 3}, ("tea", 4), ("jam", 5)])
    db.start(until_end=True)
    db.wait()
    answer = db.query("SELECT item, total FROM totals ORDER BY item")
    print(answer.to_pylist())  # [{'item': 'jam', 'total': 5}, {'item': 'tea', 'total': 7}]
```'''


# More fields are listed one below the other.
_FIELDS_IN_A_LINE = 8
# The methods of a session by what they are for.
_SESSION_METHODS = {
    "Lifecycle": "execute function start wait stop close spark",
    "Rows in": "insert",
    "Rows out": "subscribe query peek add_console_sinks",
    "Checkpoints": "checkpoint checkpoints restore drop_checkpoint",
    "Inspection": "status timelines explain load_declarations",
}


def python_page() -> str:
    """List all exported names with their signatures and docstrings."""
    lines = ["# Python", "", _GENERATED, "", *EXAMPLE.splitlines(), ""]
    lines += [
        "Run it again on the same data directory, and the totals double: `db.insert` always inserts its rows, and the view keeps",
        "those of the first run.",
        "",
        "Notebooks show results as tables ([an example](../examples/notebook.ipynb)). `tidegate` exports",
        "the names below, with type annotations.",
        "",
    ]
    names = sorted(tidegate.__all__, key=lambda name: (name not in ("open", "Session"), name))
    for name in ["open", *(name for name in names if name not in ("open", "__version__"))]:
        thing = getattr(tidegate, name)
        lines += [f"## tidegate.{name}", "", *_signed(f"tidegate.{name}", thing), ""]
        if inspect.isclass(thing):
            lines += _members(thing)
    return "\n".join(lines).rstrip() + "\n"


def _signed(words: str, thing: Any) -> list[str]:
    called = not inspect.isclass(thing) or thing in (tidegate.Session, tidegate.TidegateError)
    signature = _in_lines(_signature(thing)) if called and callable(thing) else ""
    return [
        *(["```text", f"{words}{signature}", "```", ""] if signature else []),
        *_docstring(thing),
    ]


def _in_lines(signature: str) -> str:
    """Put each parameter of a signature on its own line."""
    parameters, _, result = signature.removeprefix("(").rpartition(") -> ")
    # Commas inside of brackets separate types, not parameters.
    parts = re.split(r", (?=\*|\w+: )", parameters)
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f") -> {result}"


def _signature(thing: Any) -> str:
    shown = (
        str(inspect.signature(thing)).replace("'", "").replace("self, ", "").replace("(self)", "()")
    )
    return re.sub(r"\b(?:collections\.abc|typing|tidegate(?:\.\w+)+|os)\.(?=[A-Z])", "", shown)


def _docstring(thing: Any) -> list[str]:
    text = inspect.cleandoc(thing.__doc__ or "")
    return [] if re.match(r"\w+\(\w+: ", text) else text.splitlines()


def _members(kind: type) -> list[str]:
    lines = []
    if issubclass(kind, Enum):
        return [f"Values: {', '.join(f'`{each.name}`' for each in kind)}.", ""]
    if issubclass(kind, tidegate.TidegateError) and kind is not tidegate.TidegateError:
        return ["A subclass of `TidegateError`.", ""]
    fields = list(getattr(kind, "__dataclass_fields__", {}).values())
    if fields:
        listed = [f"{field.name}: {_type(field.type)}" for field in fields]
        if len(fields) > _FIELDS_IN_A_LINE:
            lines += ["Fields:", "", "```text", *listed, "```", ""]
        else:
            lines += [f"Fields: {', '.join(f'`{field}`' for field in listed)}.", ""]
    if kind is tidegate.Session:
        return [*lines, *_session_methods()]
    return lines + _methods(kind, vars(kind), fields)


def _session_methods() -> list[str]:
    """List the methods of a session under headings."""
    lines: list[str] = []
    public = {name for name in vars(tidegate.Session) if not name.startswith("_")}
    for heading, names in _SESSION_METHODS.items():
        lines += [f"### {heading}", "", *_methods(tidegate.Session, names.split(), [])]
        public -= set(names.split())
    assert not public, f"methods without a heading: {public}"
    return lines


def _methods(kind: type, names: Iterable[str], fields: list[Any]) -> list[str]:
    """List methods and properties of a class."""
    lines = []
    for name in names:
        member = vars(kind)[name]
        if name.startswith("_") or name in {field.name for field in fields}:
            continue
        if isinstance(member, property):
            lines += [f"* `{name}`: {' '.join(_docstring(member))}".rstrip(": ")]
        elif inspect.isfunction(member):
            text = " ".join(" ".join(_docstring(member)).split())
            lines += [f"* `{name}{_signature(member)}`{': ' if text else ''}{text}"]
    return [*lines, ""] if lines and lines[-1] else lines


def _type(kind: Any) -> str:
    return str(getattr(kind, "__name__", kind))
