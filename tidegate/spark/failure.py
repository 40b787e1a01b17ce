"""What Spark throws, as one clear error."""

from __future__ import annotations

import re

from pyspark.errors import PySparkException

from tidegate.errors import RunError, TidegateError

_ERROR_CLASS = re.compile(r"^\[([A-Z0-9_.]+)\]\s*")
_FILE = re.compile(r"(?:file|hdfs|s3a?|abfss?|gs):/{1,3}[^\s,;\]'\"]+")


def describe(error: BaseException) -> str:
    """The sentence of Spark's that says what happened, without classes, plans and stack traces."""
    text = _message(error)
    for line in text.splitlines():
        cleaned = line.strip()
        if cleaned:
            return _ERROR_CLASS.sub("", cleaned).rstrip()
    return type(error).__name__


def _message(error: BaseException) -> str:
    """The innermost message that speaks of the cause."""
    text = str(error)
    causes = re.findall(r"Caused by: [\w.$]+(?:Exception|Error): (.+)", text)
    if causes:
        return str(causes[-1])
    match = re.search(r"\[[A-Z0-9_.]+\] .+", text)
    return match.group(0) if match else text


def condition(error: BaseException) -> str | None:
    """Spark's error condition, such as FAILED_READ_FILE.NO_HINT."""
    if isinstance(error, PySparkException):
        found = error.getCondition()
        if found:
            return str(found)
    match = re.search(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)?)\]", str(error))
    return match.group(1) if match else None


def pipeline_error(stream: str, error: BaseException) -> TidegateError:
    """The error of a pipeline that stopped."""
    if isinstance(error, TidegateError):
        return error
    text = str(error)
    own = re.search(r"(error\[(TG-\d+)\]: (.+))", text)
    if own is not None:
        return RunError(own.group(2), f"the stream {stream} stopped: {own.group(3)}")
    named = re.search(r"\[(FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)[^\]]*\]", text)
    if named is not None or "is not a Parquet file" in text:
        file = _FILE.search(text)
        return RunError(
            "TG-504",
            f"the stream {stream} stopped at a file it cannot read: "
            f"{file.group(0).rstrip('.') if file else 'unknown'} ({describe(error)})",
            hint="put a readable file of the same name in its place and start again: nothing is "
            "lost, the epoch is read once more.",
        )
    return RunError(
        "TG-503",
        f"the stream {stream} stopped: {describe(error)}",
        hint="nothing is lost: after the cause is mended, start again and the epoch is repeated.",
    )
