"""Options: types, defaults, required options, secrets, ${NAME} and suggestions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.compiling import compile_text
from tidegate.catalog.connector import (
    LOOKUP_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    ConnectorSpec,
    SourceSpec,
)
from tidegate.catalog.declare import STREAM_OPTIONS
from tidegate.catalog.objects import Source
from tidegate.catalog.options import OptionReader, Options, OptionSpec, OptionType
from tidegate.catalog.settings import SETTINGS, Settings
from tidegate.compile.compiler import Compiler
from tidegate.connectors.registry import CONNECTORS
from tidegate.errors import SECRET, CatalogError
from tidegate.sql.parser import parse_script
from tidegate.sql.secrets import mask_secrets
from tidegate.sql.statements import CreateSource
from tidegate.types import Span, format_duration_us, parse_duration

SPECS = (
    OptionSpec("path", OptionType.TEXT, "the directory", required=True),
    OptionSpec("rows", OptionType.INTEGER, "how many", default=7, minimum=1),
    OptionSpec("share", OptionType.NUMBER, "how much"),
    OptionSpec("strict", OptionType.BOOLEAN, "whether", default=False),
    OptionSpec("wait", OptionType.DURATION, "how long"),
    OptionSpec("keys", OptionType.NAMES, "which columns"),
    OptionSpec("format", OptionType.TEXT, "the format", default="json", choices=("json", "csv")),
    OptionSpec("password", OptionType.TEXT, "to log in", secret=True),
    OptionSpec("secret_pin", OptionType.INTEGER, "to log in", secret=True),
)


def read_options(options: str, resolve: bool = True) -> tuple[Options, list[CatalogError]]:
    script = parse_script(f"CREATE SOURCE s WITH ({options})")
    assert not script.errors
    statement = script.statements[0]
    assert isinstance(statement, CreateSource)
    reader = OptionReader(SPECS, "the connector test", script.text, None, resolve)
    return reader.read(statement.options, Span(14, 15))


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("rows = 12", 12),
        ("rows = '1_000'", 1000),
        ("share = 0.5", 0.5),
        ("share = -2", -2.0),
        ("strict = TRUE", True),
        ("strict = 'false'", False),
        ("wait = '1 min 30 s'", 90_000_000),
        ("keys = 'a, b ,c'", ("a", "b", "c")),
        ("format = CSV", "csv"),
        ("FORMAT = 'Json'", "json"),
        ("path = 'it''s here'", "it's here"),
        ("path = ','", ","),
        ("path = '-'", "-"),
    ],
)
def test_parses_value_by_type(option: str, expected: Any) -> None:
    name = option.partition(" ")[0].lower()
    options, errors = read_options(option if name == "path" else f"path = 'x', {option}")
    assert not errors
    assert options[name] == expected


def test_uses_defaults() -> None:
    options, errors = read_options("path = 'x'")
    assert not errors
    assert (options["rows"], options["strict"], options["format"]) == (7, False, "json")
    assert options["wait"] is None
    assert dict(options.masked_texts()) == {"path": "x"}
    assert set(options) == {spec.name for spec in SPECS}
    assert len(options) == len(SPECS)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("rows = many", "'many' is not a whole number"),
        ("rows = 0", "0 is below 1"),
        ("share = half", "'half' is not a number"),
        ("strict = 1", "'1' is neither true nor false"),
        ("wait = '5 parsecs'", "'5 parsecs' is not a duration"),
        ("wait = ''", "an empty text is not a duration"),
        ("keys = ','", "the list of names is empty"),
        ("format = 'xml'", "'xml' is not one of json, csv"),
    ],
)
def test_invalid_value_is_rejected(option: str, message: str) -> None:
    _, (error,) = read_options(f"path = 'x', {option}")
    assert error.code == "TG-207"
    assert message in error.message
    assert error.hint is not None
    assert error.location is not None


def test_reports_all_unknown_options_with_suggestions() -> None:
    _, errors = read_options("pth = 'x', formt = 'json', rows = none")
    assert [error.code for error in errors] == ["TG-206", "TG-206", "TG-207"]
    assert errors[0].hint == "did you mean path?"
    assert errors[1].hint == "did you mean format?"


def test_missing_required_option_is_rejected() -> None:
    _, (error,) = read_options("rows = 1")
    assert error.code == "TG-208"
    assert error.hint == "add path = '…' to its WITH (…): the directory"


def test_expands_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_FOLDER", "in")
    options, errors = read_options("path = '/data/${TEST_FOLDER}/x', password = '${TEST_FOLDER}'")
    assert not errors
    assert options["path"] == "/data/in/x"
    assert "in" not in dict(options.masked_texts())["password"]


def test_unset_environment_variable_is_rejected() -> None:
    _, (error,) = read_options("path = '${TEST_NOT_SET}'")
    assert error.code == "TG-209"
    assert (error.hint or "").startswith("set it first: export TEST_NOT_SET=…, or pass --var")


def test_check_works_without_environment_variables() -> None:
    options, errors = read_options("path = '${TEST_NOT_SET}', rows = '${TEST_ROWS}'", resolve=False)
    assert not errors
    assert options["rows"] == 7
    text = "CREATE SOURCE s (k INT) WITH (connector = 'files', path = '${TEST_NOT_SET}');"
    assert compile_text(text).errors
    assert not Compiler(CONNECTORS, resolve_environment=False).compile(text).errors


def test_secrets_are_masked_in_errors() -> None:
    options, errors = read_options("path = 'x', password = 'hunter2', secret_pin = 'hunter2'")
    assert options["password"] == "hunter2"
    assert dict(options.masked_texts())["password"] == "***"
    assert "hunter2" not in repr(options)
    (error,) = errors
    assert "hunter2" not in error.render()


def test_secrets_are_masked_in_statements_and_representations() -> None:
    text = (
        "CREATE SOURCE s (k BIGINT) WITH (connector = 'kafka', brokers = 'b', topic = 't', "
        "security_protocol = 'sasl_ssl', sasl_password = 'hunter2', kafka.ssl.key.pem = 'hunter2');"
    )
    compiled = compile_text(text)
    source = compiled.catalog.get("s")
    assert isinstance(source, Source)
    assert source.options["sasl_password"] == "hunter2"
    assert source.options.secrets()["sasl_password"] == "hunter2"
    assert "sasl_password = '***'" in source.create_sql()
    for text in (source.create_sql(), repr(source), repr(compiled.script), source.script.text):
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password = 'hunter2'", "password = '*******'"),
        ("PassWord='it''s'", "PassWord='*****'"),
        ('db.secret = "abc"', 'db.secret = "***"'),
        ("`api_key` = 'abc'", "`api_key` = '***'"),
        ("apikey = abc, x = 1", "apikey = ***, x = 1"),
        ("pasword = 'abc', paswrd = 'abc'", "pasword = '***', paswrd = '***'"),
        ('"sasl_password"=\'abc', '"sasl_password"=\'***'),
        ("private_key = 'a\nb'", "private_key = '*\n*'"),
        ("kafka.sasl.jaas.config = 'abc'", "kafka.sasl.jaas.config = '***'"),
        ("auth_token = 'abc', credentials = 'abc'", "auth_token = '***', credentials = '***'"),
        ("password = '${DB_PASSWORD}'", "password = '${DB_PASSWORD}'"),
        ("password = 'x${DB_PASSWORD}'", "password = '***************'"),
        ("url = 'postgres://bob:abc@db/x'", "url = 'postgres://bob:***@db/x'"),
        ("url = 'postgres://bob@db/x'", "url = 'postgres://bob@db/x'"),
        ("password = 'never closed", "password = '************"),
        ("password = ''", "password = ''"),
        ("path = 'x'", "path = 'x'"),
    ],
)
def test_masking_keeps_the_length(text: str, masked: str) -> None:
    assert mask_secrets(text).replace(SECRET, "*") == masked
    assert len(masked) == len(text)


def test_query_text_is_not_masked() -> None:
    text = "CREATE STREAM s AS SELECT 1 AS token WHERE 'a' = token AND token = 'abc'"
    script = parse_script(text)
    assert script.statements[0].text == text
    assert "abc" not in script.text


ALL_SPECS = [
    *SOURCE_OPTIONS,
    *SINK_OPTIONS,
    *LOOKUP_OPTIONS,
    *STREAM_OPTIONS,
    *SETTINGS,
    *(
        option
        for connector in CONNECTORS.values()
        for role in (connector.source, connector.sink, connector.lookup)
        if role is not None
        for option in role.options
    ),
]


@pytest.mark.parametrize("spec", ALL_SPECS, ids=lambda spec: spec.name)
def test_option_has_description_and_valid_default(spec: OptionSpec) -> None:
    assert spec.name == spec.name.lower()
    assert spec.description
    assert not (spec.required and spec.default is not None)
    if spec.choices and spec.default is not None:
        assert spec.default in spec.choices
    if spec.minimum is not None and spec.default is not None:
        assert spec.default >= spec.minimum
    has_secret_name = mask_secrets(f"{spec.name} = 'x'") != f"{spec.name} = 'x'"
    assert spec.secret == has_secret_name, "errors mask options by their name"


def test_settings() -> None:
    settings = Settings.from_config({"validator": "WARN", "trigger_interval": "5 s"})
    assert (settings["validator"], settings["trigger_interval"]) == ("warn", 5_000_000)
    with pytest.raises(CatalogError, match="TG-212"):
        settings.set("nope", "1")
    with pytest.raises(CatalogError, match="TG-207"):
        settings.set("rows_per_epoch", "0")
    other = settings.copy()
    other.set("validator", "off")
    assert settings["validator"] == "warn"


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("30 s", 30_000_000),
        ("1 day", 86_400_000_000),
        ("1.5 hours", 5_400_000_000),
        ("1 day 2 hours", 93_600_000_000),
        ("250ms", 250_000),
        ("0 s", 0),
    ],
)
def test_durations(text: str, micros: int) -> None:
    assert parse_duration(text) == micros
    assert parse_duration(format_duration_us(micros)) == micros


@pytest.mark.parametrize("text", ["", "s", "5", "5 fortnights", "-5 s", "5 s and more"])
def test_invalid_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_declared_secret_is_masked_regardless_of_its_name() -> None:
    pin = OptionSpec("door_code", OptionType.TEXT, "code of the door", secret=True)
    vault = ConnectorSpec("vault", "a vault", source=SourceSpec((pin,)))
    text = (
        "CREATE SOURCE s (k BIGINT) WITH (connector = 'vault', 'door_code' = 'hunter2', x = 1);"
        "CREATE SOURCE t (k BIGINT) WITH (connector = 'vault', door_cde = 'hunter2');"
        "CREATE SOURCE u (k BIGINT) WITH (connector = 'vault', door_code = 'hunter2'"
    )
    compiled = Compiler({"vault": vault}).compile(text)
    assert [error.code for error in compiled.errors] == ["TG-206", "TG-206", "TG-101"]
    assert all("hunter2" not in error.render() for error in compiled.errors)
    assert "hunter2" not in repr(compiled.script)


def test_prefix_options_are_passed_to_the_client() -> None:
    text = (
        "CREATE SOURCE s (k BIGINT) WITH (connector = 'kafka', brokers = 'b', topic = 't', "
        "kafka.Socket.Timeout.ms = 5, 'kafka.ssl.key.password' = 'hunter2');"
    )
    source = compile_text(text).catalog.get("s")
    assert isinstance(source, Source)
    client_options = source.options["kafka."]
    assert client_options == {"socket.timeout.ms": "5", "ssl.key.password": "hunter2"}
    assert ("kafka.ssl.key.password", "***") in source.options.masked_texts()
    assert source.options.secrets() == {"kafka.ssl.key.password": "hunter2"}
    assert "hunter2" not in repr(source) + source.create_sql()
