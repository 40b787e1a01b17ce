"""A windowed pipeline that runs until it is killed, or to its end.

python kill_program.py DATA_DIR IN_DIR OUT_DIR [--until-end]
"""

from __future__ import annotations

import sys

import tidegate

SCRIPT = """
CREATE SOURCE bids (
    auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '40' SECOND
) WITH (connector = 'files', path = '{input}', files_per_epoch = 1);
CREATE STREAM sales AS
SELECT auction, window_start, window_end, count(*) AS n, sum(price) AS total, max(price) AS top,
       count(DISTINCT price % 7) AS kinds
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '15' SECOND);
CREATE SINK written FROM sales WITH (connector = 'files', path = '{output}');
"""


def main() -> None:
    data, given, written = sys.argv[1:4]
    until_end = "--until-end" in sys.argv
    with tidegate.open(data, master="local[2]") as session:
        session.execute(SCRIPT.format(input=given, output=written))
        subscription = session.subscribe("sales")
        session.start(until_end=until_end)
        print("running", flush=True)
        if until_end:
            session.wait()
            (status,) = session.status()
            print(f"done, {status.late_rows} late rows", flush=True)
            return
        for _ in subscription:
            pass


if __name__ == "__main__":
    main()
