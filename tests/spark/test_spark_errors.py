"""Errors of Spark become one clear error. These tests need no Spark."""

from __future__ import annotations

import re

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from tidegate.errors import RunError
from tidegate.spark.errors import JobFailed, describe, pipeline_error

IN_A_TASK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted.
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in invoke
    func()
    ^^^^^^
{0}

=== Streaming Query ===
Identifier: [id = 1]
"""


def test_python_error_of_a_task_is_shown_without_traceback() -> None:
    thrown = RuntimeError(IN_A_TASK.format("AttributeError: no 'Grid' there"))
    assert describe(thrown) == "AttributeError: no 'Grid' there"
    error = pipeline_error("t", thrown)
    assert error.code == "TG-503"
    assert error.message == "the stream t stopped: AttributeError: no 'Grid' there"


def test_tidegate_errors_keep_their_code_through_spark() -> None:
    shown = RunError("TG-507", "sum(v) overflows bigint", hint="cast it.").render()
    error = pipeline_error(
        "t", RuntimeError(IN_A_TASK.format(f"tidegate.errors.RunError: {shown}"))
    )
    assert (error.code, error.hint) == ("TG-507", "cast it.")
    assert error.message == "the stream t stopped: sum(v) overflows bigint"


def test_innermost_java_cause_is_shown() -> None:
    text = "[A.B] outer\nCaused by: a.b.FirstException: one\nCaused by: c.d.LastError: two\n\tat e"
    assert describe(RuntimeError(text)) == "two"


class Captured(PySparkException):
    """An error as Spark passes it to Python: a condition, its parameters and the whole text."""

    def __init__(self, condition: str, text: str, **parameters: str) -> None:
        super().__init__(message=text)
        self._errorClass = condition
        self._messageParameters = parameters


ZERO = (
    "Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. If "
    'necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012\n'
    "== SQL (line 1, position 8) ==\nSELECT 1/(id-id)\n       ^^^^^^^^^"
)
PATTERN = "INCONSISTENT_BEHAVIOR_CROSS_VERSION.DATETIME_PATTERN_RECOGNITION"
UPGRADE = (
    "You may get a different result due to the upgrading to Spark >= 3.0:\n"
    "Fail to recognize '%Y' pattern in the DateTimeFormatter.\n"
    '1) You can set "spark.sql.legacy.timeParserPolicy" to "LEGACY" to restore the behavior before '
    "Spark 3.0.\n2) You can form a valid datetime pattern with the guide. SQLSTATE: 42K0B"
)
MALFORMED = (
    'The value \'x1\' of the type "STRING" cannot be cast to "INT" because it is malformed. Correct '
    "the value as per the syntax, or change its target type. Use `try_cast` to tolerate malformed "
    "input and return NULL instead. SQLSTATE: 22018"
)
OVERFLOW = (
    "overflow. Use 'try_multiply' to tolerate overflow and return NULL instead. If necessary set "
    '"spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22003'
)
ZONE = "The timezone: Foo/Bar is invalid. The timezone must be either a region-based zone ID. SQLSTATE: 22009"


@pytest.mark.parametrize(
    ("condition", "text", "parameters", "message", "hint"),
    [
        ("DIVIDE_BY_ZERO", ZERO, {}, "Division by zero", "a / nullif(b, 0)"),
        (PATTERN, UPGRADE, {"pattern": "'%Y'"}, "'%Y' is not a pattern", "'yyyy-MM-dd HH:mm:ss'"),
        (
            "CAST_INVALID_INPUT",
            MALFORMED,
            {"expression": "'x1'"},
            'The value \'x1\' of the type "STRING" cannot be cast to "INT" because it is malformed',
            "try_cast(x AS …)",
        ),
        ("ARITHMETIC_OVERFLOW", OVERFLOW, {}, "overflow", "DECIMAL(38, 0)"),
        (
            "INVALID_TIMEZONE",
            ZONE,
            {"timeZone": "Foo/Bar"},
            "unknown time zone Foo/Bar",
            "'+02:00'",
        ),
    ],
)
def test_failing_expression_gets_a_usable_hint(
    condition: str, text: str, parameters: dict[str, str], message: str, hint: str
) -> None:
    direct = Captured(condition, text, **parameters)
    # The streaming engine passes only the text, inside of other texts.
    wrapped = RuntimeError(
        f"[STREAM_FAILED] Query [id = 1] ended: [FOREACH_BATCH] {direct}\n\n at x"
    )
    for error in (pipeline_error("t", direct), pipeline_error("t", wrapped)):
        assert error.code == "TG-503"
        assert message in error.message
        assert hint in (error.hint or "")
        shown = error.render()
        assert not re.search(r"spark\.sql|SQLSTATE|tolerate|upgrading|STREAM_FAILED", shown), shown
        assert len(shown.splitlines()) == 2


def test_other_spark_errors_keep_their_text() -> None:
    text = "Table is gone. Look for it. SQLSTATE: 42P01"
    error = pipeline_error("t", Captured("TABLE_OR_VIEW_NOT_FOUND", text))
    assert error.message == "the stream t stopped: Table is gone. Look for it"
    assert "no data was lost" in (error.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "Python worker exited unexpectedly (crashed)",
        "EOFException occurred while reading the port number from tidegate.spark.daemon's stdout "
        "and terminated with code: 137",
    ],
)
def test_killed_worker_is_retried(text: str) -> None:
    """Also the process that forks workers, while it starts."""
    assert JobFailed(RuntimeError(f"Job aborted: {text}")).transient
    assert not JobFailed(RuntimeError("Job aborted: Division by zero")).transient


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Error while sending or receiving"),
        ConnectionRefusedError(111, "rejected"),
        Py4JError("An error occurred while calling o39.sc"),
    ],
)
def test_killed_jvm_is_named(error: Exception) -> None:
    failure = pipeline_error("t", JobFailed(error))
    assert failure.code == "TG-503" and "Spark's JVM exited" in failure.message


def test_responding_jvm_is_not_reported_as_killed() -> None:
    text = "An error occurred while calling o39.sc. Trace:\npy4j.Py4JException: no method sc\n"
    assert "JVM exited" not in pipeline_error("t", Py4JError(text)).message
