"""Options of WITH clauses: specifications, values, and the reader that validates them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.errors import CatalogError, Location, did_you_mean, nearest
from tidegate.sql.dialect import string_literal
from tidegate.sql.secrets import has_secret_name
from tidegate.sql.statements import Option
from tidegate.types import Span, format_duration_us, parse_duration

_ENVIRONMENT = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
MASK = "***"


class OptionType(Enum):
    """The type of an option's value."""

    TEXT = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"
    NAMES = "list of names"


@dataclass(frozen=True)
class OptionSpec:
    """The specification of an option of a connector, stream or session."""

    name: str
    type: OptionType
    description: str
    default: Any = None
    required: bool = False
    secret: bool = False
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    # True if 'off' is a valid value; it is read as None.
    may_be_off: bool = False
    # Another option, and its values that make this option valid.
    only_with: tuple[str, tuple[str, ...]] | None = None
    # True if the specification covers all options that start with its name. The value is then a
    # mapping, and `check` validates the rest of a name.
    prefix: bool = False
    # Valid values for hints, as they follow `name = `; by default, examples of the type.
    example: str | None = None
    # Returns a message if a value is invalid.
    check: Callable[[Any], str | None] | None = None

    def read(self, text: str) -> Any:
        """Parse a value; raise ValueError with a message if it is invalid."""
        if self.may_be_off and text.lower() == "off":
            return None
        if self.choices and text.lower() not in self.choices:
            if len(self.choices) == 1:
                raise ValueError(f"it must be {self.choices[0]!r}, not {text!r}")
            raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}")
        value = _READERS[self.type](text)
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"{text} is below {self.minimum}")
        problem = self.check(value) if self.check is not None else None
        if problem is not None:
            raise ValueError(problem)
        return value.lower() if self.choices else value

    def valid_values(self) -> str:
        """Return how to write a valid value, for hints."""
        example = self.example or _EXAMPLES.get(self.type)
        if self.choices:
            *others, last = (repr(choice) for choice in self.choices)
            example = f"{', '.join(others)} or {last}" if others else f"{last}, or remove it"
        elif self.type is OptionType.INTEGER and self.minimum is not None:
            example = f"{self.minimum}, or a larger number"
        if example is None:
            return f"{self.name}: {self.description}"
        off = " or 'off'" if self.may_be_off else ""
        return f"write {self.name} = {example}{off}."

    def format(self, value: Any) -> str:
        """Format a value as it is written in SQL."""
        if value is None:
            return "off" if self.may_be_off else ""
        if self.type is OptionType.DURATION:
            return format_duration_us(value)
        return str(value).lower() if self.type is OptionType.BOOLEAN else str(value)


def _read_integer(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _read_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _read_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _read_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("the list of names is empty")
    return names


_READERS: dict[OptionType, Any] = {
    OptionType.TEXT: str,
    OptionType.INTEGER: _read_integer,
    OptionType.NUMBER: _read_number,
    OptionType.BOOLEAN: _read_boolean,
    OptionType.DURATION: parse_duration,
    OptionType.NAMES: _read_names,
}


_EXAMPLES = {
    OptionType.BOOLEAN: "true or false",
    OptionType.DURATION: "'10 min'",
    OptionType.INTEGER: "10",
    OptionType.NUMBER: "0.5",
    OptionType.NAMES: "'a, b'",
}
# Options of other systems, and those that replace them.
_FOREIGN_OPTIONS = {
    "properties.bootstrap.servers": "brokers",
    "bootstrap.servers": "brokers",
    "kafka_topic": "topic",
    "subscribe": "topic",
    "scan.startup.mode": "start",
    "startingoffsets": "start",
    "value.format": "format",
    "value_format": "format",
    "table-name": "table",
}
_FOREIGN_VALUES = {"earliest-offset": "earliest", "latest-offset": "latest"}


class Options(Mapping[str, Any]):
    """Option values by name, including defaults. The representation never contains a secret."""

    def __init__(self, values: Mapping[str, Any], texts: Mapping[str, str], secret: set[str]):
        self._values = dict(values)
        self._texts = dict(texts)
        self._secret = frozenset(secret)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Options({dict(self.masked_texts())})"

    def secrets(self) -> dict[str, str]:
        """Return the secret values as the user wrote them (for connectors only)."""
        return {name: text for name, text in self._texts.items() if name in self._secret}

    def with_values(self, **values: Any) -> Options:
        """Return a copy with other values; the texts stay the same."""
        return Options({**self._values, **values}, self._texts, set(self._secret))

    def masked_texts(self) -> Iterator[tuple[str, str]]:
        """Yield the names and texts that the user wrote, with secrets masked."""
        for name, text in self._texts.items():
            yield name, MASK if name in self._secret else text


@dataclass(frozen=True)
class OptionReader:
    """Reads a WITH clause and collects all errors."""

    specs: Sequence[OptionSpec]
    owner: str
    text: str
    file: str | None
    resolve_environment: bool = True

    def read(self, options: Sequence[Option], span: Span) -> tuple[Options, list[CatalogError]]:
        by_name = {spec.name: spec for spec in self.specs}
        values = {spec.name: spec.default for spec in self.specs}
        texts: dict[str, str] = {}
        errors: list[CatalogError] = []
        for option in options:
            spec = self._spec(option, by_name)
            if spec is None:
                errors.append(self._unknown(option, by_name))
                continue
            try:
                text = self._expand(option)
                name = option.name.lower() if spec.prefix else spec.name
                texts[name] = text
                if spec.prefix:
                    rest = name.removeprefix(spec.name)
                    spec.read(rest)
                    values[spec.name] = {**(values[spec.name] or {}), rest: text}
                elif _ENVIRONMENT.search(text) is None:
                    values[spec.name] = spec.read(text)
            except CatalogError as error:
                errors.append(error)
            except ValueError as error:
                errors.append(self._invalid(option, spec, error))
        # Do not report a misspelled required option as missing, too.
        suggestions = {nearest(option.name, by_name) for option in options}
        suggestions |= {_FOREIGN_OPTIONS.get(option.name.lower()) for option in options}
        errors += [
            self._missing(spec, span)
            for spec in self.specs
            if spec.required and spec.name not in texts and spec.name not in suggestions
        ]
        if not errors:
            errors += self._without_effect(options, by_name, values)
        secret = {spec.name for spec in self.specs if spec.secret}
        secret |= {name for name in texts if has_secret_name(name)}
        return Options(values, texts, secret), errors

    def _spec(self, option: Option, by_name: Mapping[str, OptionSpec]) -> OptionSpec | None:
        name = option.name.lower()
        prefixes = (
            s for s in self.specs if s.prefix and name.startswith(s.name) and name != s.name
        )
        return by_name.get(name) or next(prefixes, None)

    def _without_effect(
        self,
        options: Sequence[Option],
        by_name: Mapping[str, OptionSpec],
        values: Mapping[str, Any],
    ) -> Iterator[CatalogError]:
        """Yield errors for options without effect, given the value of another option."""
        for option in options:
            spec = self._spec(option, by_name)
            condition = spec.only_with if spec is not None else None
            if condition is None or values[condition[0]] in condition[1]:
                continue
            other, allowed = condition
            yield CatalogError(
                "TG-207",
                f"{option.name} requires {other} = {' or '.join(map(repr, allowed))}, "
                f"but {other} is {values[other]!r}",
                location=self._location(option.span),
                hint=f"remove {option.name}, or set {other} = '{allowed[0]}'.",
            )

    def _expand(self, option: Option) -> str:
        """Replace ${NAME} by the environment variable; `check` accepts unset ones."""
        if not self.resolve_environment:
            return option.value

        def lookup(match: re.Match[str]) -> str:
            value = os.environ.get(match.group(1))
            if value is None:
                raise CatalogError(
                    "TG-209",
                    f"the option {option.name} needs the environment variable {match.group(1)}, "
                    "which is not set",
                    location=self._location(option.value_span),
                    hint=f"set it first: export {match.group(1)}=…, or pass --var "
                    f"{match.group(1)}=… to tidegate run.",
                )
            return value

        return _ENVIRONMENT.sub(lookup, option.value)

    def _location(self, span: Span) -> Location:
        return Location(self.text, span.start, span.end, self.file)

    def _unknown(self, option: Option, by_name: Mapping[str, OptionSpec]) -> CatalogError:
        hint = did_you_mean(option.name, by_name, "options")
        replacement = _FOREIGN_OPTIONS.get(option.name.lower())
        if replacement in by_name:
            value = _FOREIGN_VALUES.get(option.value.lower(), option.value)
            hint = f"write {replacement} = {string_literal(value)}."
        return CatalogError(
            "TG-206",
            f"{self.owner} has no option {option.name}",
            location=self._location(option.span),
            hint=hint,
        )

    def _invalid(self, option: Option, spec: OptionSpec, error: ValueError) -> CatalogError:
        reason = "its value is not valid" if spec.secret else str(error)
        return CatalogError(
            "TG-207",
            f"the option {option.name}: {reason}",
            location=self._location(option.value_span),
            hint=f"remove {option.name}." if spec.prefix else spec.valid_values(),
        )

    def _missing(self, spec: OptionSpec, span: Span) -> CatalogError:
        return CatalogError(
            "TG-208",
            f"{self.owner} needs the option {spec.name}",
            location=self._location(span),
            hint=f"add {spec.name} = '…' to its WITH (…): {spec.description}",
        )
