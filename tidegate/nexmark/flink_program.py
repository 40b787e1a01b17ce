"""What runs in Flink's own environment: statements come in as JSON lines, times go back.

It is a program, not a module of ours: nothing of Tidegate is there. A line on stdin is a list of
statements, the last of which is waited for; the answer is a line on stdout with how long that one
took, or what was wrong. Settings are arguments, `name=value`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MARK = "@answer "


def environment(settings: list[str]) -> Any:
    from pyflink.table import EnvironmentSettings, TableEnvironment

    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for setting in settings:
        name, _, value = setting.partition("=")
        tables.get_config().set(name, value)
    return tables


def execute(tables: Any, statements: list[str]) -> dict[str, Any]:
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
        print(MARK + json.dumps(answer), flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        answer = execute(tables, json.loads(line))


if __name__ == "__main__":
    main()
