"""A program as people write it; mypy looks at it from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import tidegate
from tidegate import (
    Batch,
    QueryResult,
    RunError,
    ScriptError,
    Session,
    State,
    StreamStatus,
    Subscription,
)


async def readings() -> AsyncIterator[dict[str, int]]:
    yield {"a": 1}


def declare(db: Session) -> None:
    try:
        for result in db.execute("CREATE SOURCE s (a BIGINT) WITH (connector = 'memory');"):
            print(result.text, result.columns, result.rows)
    except ScriptError as error:
        print(error.code, error.hint, [each.message for each in error.errors])


def main() -> None:
    with tidegate.open("data", config={"key_groups": 4}, conf={"spark.ui.enabled": "true"}) as db:
        db.function("same", lambda x: x, returns="BIGINT", arguments=["BIGINT"], version="1")
        declare(db)
        count: int = db.insert("s", [{"a": 1}, (2,)])
        count += asyncio.run(db.insert("s", readings()))
        subscription: Subscription = db.subscribe("t", timeout=5.0)
        db.start(until_end=True)
        done: bool = db.wait(timeout=10)
        batch: Batch
        for batch in subscription:
            print(batch.epoch, len(batch), batch.to_pylist())
        found: QueryResult = db.query("SELECT * FROM v")
        rows: list[dict[str, object]] = [dict(row) for row in found]
        status: tuple[StreamStatus, ...] = db.status()
        failed = [each.error for each in status if each.state is State.FAILED]
        print(count, done, rows, failed, db.peek("t", rows=3).columns)


if __name__ == "__main__":
    try:
        main()
    except RunError as error:
        print(error.render())
