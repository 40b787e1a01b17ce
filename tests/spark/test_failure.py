"""What Spark throws, as one clear error; no Spark needed."""

from __future__ import annotations

from tidegate.errors import RunError
from tidegate.spark.failure import describe, pipeline_error

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


def test_what_python_threw_in_a_task_is_named_without_its_traceback() -> None:
    thrown = RuntimeError(IN_A_TASK.format("AttributeError: no 'Grid' there"))
    assert describe(thrown) == "AttributeError: no 'Grid' there"
    error = pipeline_error("t", thrown)
    assert error.code == "TG-503"
    assert error.message == "the stream t stopped: AttributeError: no 'Grid' there"


def test_errors_of_our_own_keep_their_code_on_the_way_through_spark() -> None:
    shown = RunError("TG-507", "sum(v) overflows bigint", hint="cast it.").render()
    error = pipeline_error(
        "t", RuntimeError(IN_A_TASK.format(f"tidegate.errors.RunError: {shown}"))
    )
    assert (error.code, error.hint) == ("TG-507", "cast it.")
    assert error.message == "the stream t stopped: sum(v) overflows bigint"


def test_the_innermost_cause_of_java_is_named() -> None:
    text = "[A.B] outer\nCaused by: a.b.FirstException: one\nCaused by: c.d.LastError: two\n\tat e"
    assert describe(RuntimeError(text)) == "two"
