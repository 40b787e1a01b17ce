"""Translates Spark's exceptions into errors with a code, one sentence and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyspark.errors import PySparkException

from tidegate.errors import RunError, SystemUnavailable, TidegateError

# ---- Messages and hints for expressions that fail on a row.
#
# Spark's advice mentions settings that Tidegate fixes, so it is removed and replaced by SQL that
# works. Conditions and parameters come from the exception; the text is parsed only if the exception
# has no parameters.

# The hint of an error without a more specific explanation.
UNEXPLAINED_HINT = "no data was lost; fix the cause and restart, the epoch will be retried."
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\]\s*")
_SENTENCES = re.compile(r"(?<=\.) +(?=[A-Z])")
# Patterns of advice in Spark's messages, which is removed.
_ADVICE = re.compile(r"Use .* to tolerate |Correct the value as per |SQLSTATE: |.*\bspark\.\w+\.")
_PATTERN = "INCONSISTENT_BEHAVIOR_CROSS_VERSION.DATETIME_PATTERN_RECOGNITION"
_PARSER = "INCONSISTENT_BEHAVIOR_CROSS_VERSION.PARSE_DATETIME_BY_NEW_PARSER"
_LETTERS = "the letters of a pattern are Spark's: 'yyyy-MM-dd HH:mm:ss'"

_HINTS = {
    "DIVIDE_BY_ZERO": "try_divide(a, b) gives NULL instead, and so does a / nullif(b, 0)",
    "INTERVAL_DIVIDED_BY_ZERO": "try_divide(a, b) gives NULL instead, and so does a / nullif(b, 0)",
    "REMAINDER_BY_ZERO": "try_mod(a, b) gives NULL instead, and so does a % nullif(b, 0)",
    "CAST_INVALID_INPUT": "try_cast(x AS …) gives NULL instead, and so does try_to_timestamp(x)",
    "CAST_OVERFLOW": "cast to a wider type, or try_cast(x AS …), which gives NULL instead",
    "ARITHMETIC_OVERFLOW": "cast to a wider type first, for example CAST(x AS DECIMAL(38, 0)); "
    "try_add, try_subtract and try_multiply give NULL instead",
    "CANNOT_PARSE_TIMESTAMP": "try_to_timestamp(x, pattern) gives NULL instead",
    "INVALID_ARRAY_INDEX": "get(list, index) gives NULL instead",
    "INVALID_ARRAY_INDEX_IN_ELEMENT_AT": "try_element_at(list, index) gives NULL instead",
    "INVALID_TIMEZONE": "a time zone is 'Europe/Berlin', 'UTC' or '+02:00'",
    "INVALID_DATETIME_PATTERN": _LETTERS,
    _PATTERN: _LETTERS,
    _PARSER: "try_to_timestamp(x, pattern) gives NULL instead",
}


def condition(error: BaseException) -> str | None:
    """Return Spark's innermost error condition, such as DIVIDE_BY_ZERO."""
    if isinstance(error, PySparkException):
        condition_name = error.getCondition()
        if condition_name in _HINTS:
            return str(condition_name)
    named = [str(name) for name in reversed(_CONDITION.findall(str(error)))]
    # An error that wraps another one has a less specific condition.
    return next((name for name in named if _hint(name)), named[0] if named else None)


def _hint(name: str) -> str | None:
    return _HINTS.get(name) or _HINTS.get(name.partition(".")[0])


def advice(error: BaseException) -> str | None:
    """Return what to write instead of the expression that failed; None for other errors."""
    return _hint(condition(error) or "")


def reason(error: BaseException, sentence: str) -> str:
    """Return the cause without Spark's advice; `sentence` is the text of the error."""
    name = condition(error)
    if name == _PATTERN:
        return f"{_parameter(error, 'pattern')} is not a pattern for dates and times"
    if name == _PARSER:
        return f"{_parameter(error, 'datetime')} does not fit the pattern"
    if name == "INVALID_TIMEZONE":
        return f"unknown time zone {_parameter(error, 'timeZone')}"
    first, *others = _SENTENCES.split(sentence)
    return " ".join([first, *(part for part in others if not _ADVICE.match(part))]).rstrip(" .")


_IN_TEXT = {
    "pattern": re.compile(r"Fail to recognize ('.*?') pattern"),
    "datetime": re.compile(r"Fail to parse ('.*?') in the new parser"),
    "timeZone": re.compile(r"The timezone: (\S+) is invalid"),
}


def _parameter(error: BaseException, name: str) -> str:
    parameters = error.getMessageParameters() if isinstance(error, PySparkException) else None
    if parameters and name in parameters:
        return str(parameters[name])
    match = _IN_TEXT[name].search(str(error))
    return match.group(1) if match else "this"


_ERROR_CLASS = re.compile(r"^\[([A-Z0-9_.]+)\]\s*")
# The exception of Python code in a task: the line below its traceback.
_WORKER = re.compile(
    r"thrown from the Python worker.*?^Traceback [^\n]*\n(?:[ \t][^\n]*\n)+(\S[^\n]*)",
    re.DOTALL | re.MULTILINE,
)
_FILE = re.compile(r"(?:file|hdfs|s3a?|abfss?|gs):/{1,3}[^\s,;\]'\"]+")


def describe(error: BaseException) -> str:
    """Return Spark's error message without class names, plans and stack traces."""
    text = _message(error)
    for line in text.splitlines():
        cleaned = line.strip()
        if cleaned:
            return reason(error, _ERROR_CLASS.sub("", cleaned).rstrip())
    return type(error).__name__


def _message(error: BaseException) -> str:
    """Return the innermost message that describes the cause."""
    text = str(error)
    thrown = _WORKER.search(text)
    if thrown is not None:
        return thrown.group(1)
    if advice(error) is not None:
        # The innermost known condition; the text after it describes the cause.
        return text[text.rindex(f"[{condition(error)}]") :]
    causes = re.findall(r"Caused by: [\w.$]+(?:Exception|Error): (.+)", text)
    if causes:
        return str(causes[-1])
    match = re.search(r"\[[A-Z0-9_.]+\] .+", text)
    return match.group(0) if match else text


# Transient failures: a worker that did not start in time, a lost executor.
_TRANSIENT = re.compile(
    r"Python worker failed to connect back|Python worker exited unexpectedly|ExecutorLostFailure|"
    r"reading the port number from|"
    r"Could not allocate .*port|Connection reset by peer|FetchFailed"
)


def is_transient(error: BaseException) -> bool:
    """Return True if the same job may succeed when it runs again."""
    return _TRANSIENT.search(str(error)) is not None


class JobFailed(Exception):
    """A job that failed in Spark.

    `transient`: it may succeed when it runs again; `store_unavailable`: retry until the store is
    available.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error
        self.transient = is_transient(error)
        # A task met a record or value that only Spark SQL can check.
        self.by_records = "RecordFailed" in str(error)
        self.by_vectors = self.by_records or "VectorFailed" in str(error)
        # A task could not reach a store, which may become available again.
        self.store_unavailable = "error[TG-613]" in str(error)

    @property
    def unavailable_system(self) -> SystemUnavailable | None:
        """The unavailable system, if a task failed because of it."""
        error = pipeline_error("", self.error)
        if error.code != "TG-509":
            return None
        return SystemUnavailable(error.message.partition(" stopped: ")[2], error.hint)


def pipeline_error(stream: str, error: BaseException) -> TidegateError:
    """Return the error of a pipeline that stopped."""
    if isinstance(error, TidegateError):
        return error
    if isinstance(error, JobFailed):
        return pipeline_error(stream, error.error)
    if _is_jvm_gone(error):
        hint = "no data was lost; restart. If this happens often, raise spark.driver.memory."
        cause = "Spark's JVM exited: it was killed, or ran out of memory"
        return RunError("TG-503", f"the stream {stream} stopped: {cause}", hint=hint)
    text = str(error)
    match = re.search(r"error\[(TG-\d+)\]: (.+)(?:\nHint: (.+))?", text)
    if match is not None:
        code, message, hint = match.groups()
        return RunError(code, f"the stream {stream} stopped: {message}", hint=hint)
    for code, explain in _EXPLAINERS:
        explained = explain(text)
        if explained is not None:
            reason, hint = explained
            return RunError(code, f"the stream {stream} stopped: {reason}", hint=hint)
    hint = UNEXPLAINED_HINT
    better = advice(error)
    if better is not None:
        hint = (
            f"{better}; with on_error = 'dead_letter' the stream skips such rows. "
            "No data was lost; change the query and restart."
        )
    return RunError("TG-503", f"the stream {stream} stopped: {describe(error)}", hint=hint)


def _is_jvm_gone(error: BaseException) -> bool:
    """Return True if the JVM does not respond anymore.

    A Java exception has a message; a Py4J error without one means that the connection is lost.
    """
    from py4j.protocol import Py4JError, Py4JNetworkError

    if type(error) is Py4JError:
        return "Trace:" not in str(error)
    return isinstance(error, Py4JNetworkError | ConnectionError)


def _file_in(text: str) -> str:
    file = _FILE.search(text)
    return file.group(0).rstrip(".") if file else "a file"


def _no_file_system(text: str) -> tuple[str, str] | None:
    """Explain that Spark has no file system for the store of a file."""
    if re.search(r'No FileSystem for scheme "|FileSystem not found', text) is None:
        return None
    reason = (
        "Spark has no file system for the store of its Parquet files. Spark reads files with other "
        "types than the declared ones, and files in partition folders such as day=1"
    )
    hint = (
        "declare the types of the files, and read a single folder; or use a SparkSession with the "
        "file system of the store. For S3, set spark.jars.packages = "
        "org.apache.hadoop:hadoop-aws:VERSION, with the version of Hadoop that Spark uses."
    )
    return reason, hint


def _wrong_type(text: str) -> tuple[str, str] | None:
    """Explain that a column of a Parquet file has another type than declared."""
    match = re.search(
        r"reading Parquet column \[?([^\].]+)\]?\..*?"
        r"Expected Spark type (\w+), actual Parquet type (\w+)",
        text,
        re.DOTALL,
    )
    if match is None:
        return None
    column, declared, actual = match.groups()
    reason = f"the column {column} is declared as {declared}, but is {actual} in {_file_in(text)}"
    hint = "declare the type of the file (INT64 is BIGINT, INT32 is INT, BINARY is STRING) and "
    return reason, hint + "restart. No data was lost."


def _wrong_header(text: str) -> tuple[str, str] | None:
    """Explain that the header of a CSV file has other columns, or another order."""
    if "CSV header does not conform to the schema" not in text:
        return None
    file = re.search(r"CSV file: (\S+)", text)
    names = re.search(r"Header: (.+)\n\s*Schema: (.+)", text)
    shown = f" (header: {names.group(1)}; declared: {names.group(2)})" if names else ""
    name = file.group(1) if file else "a CSV file"
    reason = f"the header of {name} does not match the columns of its source{shown}"
    return reason, "declare the columns in the order of the header, or set header = false."


def _unreadable(text: str) -> tuple[str, str] | None:
    """Explain that a file does not have the declared format."""
    named = re.search(r"\[(FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)[^\]]*\]", text)
    if named is None and "is not a Parquet file" not in text:
        return None
    cause = describe(RuntimeError(text))
    hint = "replace the file with a readable one of the same name and restart. No data was lost; "
    return f"{_file_in(text)} cannot be read ({cause})", hint + "the epoch will be retried."


_EXPLAINERS: tuple[tuple[str, Callable[[str], tuple[str, str] | None]], ...] = (
    ("TG-523", _wrong_type),
    ("TG-523", _wrong_header),
    ("TG-530", _no_file_system),
    ("TG-529", _unreadable),
)
