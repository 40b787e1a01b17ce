"""Runs a pipeline to its end, or kills itself at a given point of a given epoch.

python crash_program.py DATA_DIR OUT_DIR [POINT EPOCH]
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import tidegate
from tidegate.connectors import files
from tidegate.connectors.filesystem import LocalDirectory

SCRIPT = """
CREATE SOURCE bid (WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND)
WITH (connector = 'generator', rows = 10000);
CREATE STREAM bids AS SELECT auction, bidder, price, auction % 3 AS part FROM bid;
CREATE SINK out FROM bids WITH (connector = 'files', path = '{out}', partition_by = 'part');
"""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, fatal_epoch: int) -> None:
    """Put a kill before or after one step of the files sink."""
    stage, commit = files.FilesWriter.stage, files.FilesWriter.commit
    rename = LocalDirectory.rename
    renamed: list[int] = []
    armed = {"rename": False}

    def fatal_stage(self: Any, epoch: int, frame: Any) -> None:
        if point == "before_stage" and epoch == fatal_epoch:
            die()
        stage(self, epoch, frame)
        if point == "after_stage" and epoch == fatal_epoch:
            die()

    def fatal_commit(self: Any, epoch: int) -> None:
        armed["rename"] = point == "while_renaming" and epoch == fatal_epoch
        commit(self, epoch)
        if point == "after_commit" and epoch == fatal_epoch:
            die()

    def fatal_rename(self: Any, source: str, goal: str) -> None:
        rename(self, source, goal)
        if armed["rename"] and goal.endswith(".parquet"):
            renamed.append(1)
            if len(renamed) == 2:
                die()

    files.FilesWriter.stage = fatal_stage
    files.FilesWriter.commit = fatal_commit
    LocalDirectory.rename = fatal_rename


def main() -> None:
    data, out = sys.argv[1:3]
    if len(sys.argv) > 3:
        arm(sys.argv[3], int(sys.argv[4]))
    with tidegate.open(data, master="local[2]", config={"rows_per_epoch": 2_000}) as session:
        session.execute(SCRIPT.format(out=out))
        session.subscribe("bids")
        session.start(until_end=True)
        session.wait()
    print("done")


if __name__ == "__main__":
    main()
