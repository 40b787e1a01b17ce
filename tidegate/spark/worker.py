"""Python workers of Spark, where small tasks must be quick."""

from __future__ import annotations

import gc

# What the first tasks load is not all the same: packing, processing, unpacking.
_TASKS = 4
_seen = 0


def keep_what_is_loaded() -> None:
    """Exclude what a worker has loaded from garbage collection.

    Spark has a worker search after every task, and the next task waits for it. Modules are most of
    what there is to search, and stay for good: without them it takes a fraction of the time.
    """
    global _seen
    if _seen < _TASKS:
        _seen += 1
        gc.freeze()


def task_number() -> int:
    """The number of this task in its stage."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return int(context.partitionId()) if context is not None else 0
