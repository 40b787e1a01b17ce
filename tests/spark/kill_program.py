"""Run six streams over two sources until they are killed, or to the end of the input.

python kill_program.py DATA_DIR IN_DIR OUT_DIR [--until-end] [--kill STEP TIMES] [--master URL]
"""

from __future__ import annotations

import os
import signal
import sys

import tidegate
from tidegate.runtime import pipeline
from tidegate.runtime.pipeline import EpochStep

SCRIPT = """
CREATE SOURCE bids (
    id BIGINT, auction BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '40' SECOND
) WITH (connector = 'files', path = '{given}/bids', files_per_epoch = 1);
CREATE SOURCE asks (
    id BIGINT, auction BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '40' SECOND
) WITH (connector = 'files', path = '{given}/asks', format = 'json', files_per_epoch = 1);

CREATE STREAM sales AS
SELECT auction, window_start, window_end, count(*) AS n, sum(price) AS total, max(price) AS top,
       count(DISTINCT price % 7) AS kinds
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '15' SECOND);

CREATE STREAM busy AS SELECT * FROM sales WHERE n > 12;

CREATE STREAM visits AS
SELECT auction, window_start, count(*) AS n FROM bids GROUP BY auction, SESSION(ts, INTERVAL '5' SECOND);

CREATE STREAM pairs AS
SELECT b.id AS bid, a.id AS ask, a.price - b.price AS spread
FROM bids AS b JOIN asks AS a ON a.auction = b.auction
AND a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts + INTERVAL '2' SECOND;

CREATE STREAM best AS
SELECT window_end, id, price FROM TUMBLE(bids, ts, INTERVAL '15' SECOND)
QUALIFY row_number() OVER (PARTITION BY window_start, window_end ORDER BY price DESC, id) <= 3
EMIT ON WINDOW CLOSE;

CREATE STREAM cheap AS SELECT id, price, rand() AS dice FROM bids WHERE price < 500;

CREATE SINK sales_out FROM sales WITH (connector = 'files', path = '{out}/sales');
CREATE SINK busy_out FROM busy WITH (connector = 'files', path = '{out}/busy');
CREATE SINK visits_out FROM visits WITH (connector = 'files', path = '{out}/visits');
CREATE SINK pairs_out FROM pairs WITH (connector = 'files', path = '{out}/pairs');
CREATE SINK best_out FROM best WITH (connector = 'files', path = '{out}/best');
CREATE SINK cheap_out FROM cheap WITH (connector = 'files', path = '{out}/cheap');
CREATE SINK cheap_again FROM cheap WITH (connector = 'files', path = '{out}/cheap_again');
"""
STREAMS = ("sales", "busy", "visits", "pairs", "best", "cheap")


def kill_at(step: str, times: int) -> None:
    """Kill this process when a step is reached for the given time."""
    remaining = [times]

    def reached(here: EpochStep) -> None:
        if here.value == step:
            remaining[0] -= 1
            if remaining[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    pipeline.on_step = reached


def main() -> None:
    data, inputs, out = sys.argv[1:4]
    until_end = "--until-end" in sys.argv
    if "--kill" in sys.argv:
        at = sys.argv.index("--kill")
        kill_at(sys.argv[at + 1], int(sys.argv[at + 2]))
    master = "local[2]"
    if "--master" in sys.argv:
        master = sys.argv[sys.argv.index("--master") + 1]
    config = {"key_groups": 4, "shared_disk": True}
    with tidegate.open(data, master=master, config=config) as session:
        session.execute(SCRIPT.format(given=inputs, out=out))
        for stream in STREAMS:
            session.subscribe(stream)
        session.start(until_end=until_end)
        print("running", flush=True)
        if until_end:
            session.wait()
            late = sum(status.late_rows for status in session.status())
            print(f"done, {late} late rows", flush=True)
            return
        while True:
            session.wait(1)
            for error in {status.error for status in session.status() if status.error}:
                print(f"waiting: {error}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except tidegate.TidegateError as error:
        print(error, flush=True)
