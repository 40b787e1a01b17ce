"""A program that runs SQL statements in PyFlink's own Python environment.

Tidegate is not installed in that environment, so this file imports only PyFlink and the standard
library. Each line on stdin is a JSON list of statements. The program runs them, waits for the last
one, and prints one line that starts with `MARK`: the seconds that the last statement took, or the
error. The arguments are Flink settings, `name=value`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

EVENT_TIME = "@answer "


def environment(settings: list[str]) -> Any:
    """Create a streaming table environment with these settings."""
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for setting in settings:
        name, _, value = setting.partition("=")
        tables.get_config().set(name, value)
    return tables


def execute(tables: Any, statements: list[str]) -> dict[str, Any]:
    """Run statements; return the seconds of the last one, or the error."""
    try:
        *before, last = statements
        for statement in before:
            tables.execute_sql(statement)
        started = time.perf_counter()
        tables.execute_sql(last).wait()
        return {"seconds": time.perf_counter() - started}
    except Exception as error:
        return {"error": str(error)[:20_000]}


def main() -> None:
    tables = environment(sys.argv[1:])
    answer: dict[str, Any] = {"ready": True}
    while True:
        print(EVENT_TIME + json.dumps(answer), flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        answer = execute(tables, json.loads(line))


if __name__ == "__main__":
    main()
