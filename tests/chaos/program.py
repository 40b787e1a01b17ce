"""Run the pipeline of the campaign until it is killed, or to the end of its input.

python -m tests.chaos.program DATA_DIR OUT_DIR BROKERS TOPIC POSTGRES [--until-end]

POSTGRES is a WITH clause for a table called TABLE; TOPIC is the prefix of the topics.
"""

from __future__ import annotations

import sys

import tidegate

SOURCE = """
CREATE SOURCE {name} (
    id BIGINT, auction BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '40' SECOND
) WITH (connector = 'kafka', topic = '{topic}-{name}', brokers = '{brokers}', rows_per_epoch = 60);
"""
STREAMS = """
CREATE LOOKUP TABLE sellers (auction BIGINT, name STRING, PRIMARY KEY (auction)) WITH ({sellers}, cache_rows = 5);

CREATE STREAM sales AS
SELECT auction, window_start, window_end, count(*) AS n, sum(price) AS total, max(price) AS top
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '15' SECOND);

CREATE STREAM pairs AS
SELECT b.id AS bid, a.id AS ask, a.price - b.price AS spread
FROM bids AS b JOIN asks AS a ON a.auction = b.auction
AND a.ts BETWEEN b.ts - INTERVAL '2' SECOND AND b.ts + INTERVAL '2' SECOND;

CREATE STREAM best AS
SELECT window_end, id, price FROM TUMBLE(bids, ts, INTERVAL '15' SECOND)
QUALIFY row_number() OVER (PARTITION BY window_start, window_end ORDER BY price DESC, id) <= 3
EMIT ON WINDOW CLOSE;

CREATE STREAM named AS
SELECT b.id, b.price, s.name, rand() AS dice FROM bids AS b LEFT JOIN sellers AS s ON b.auction = s.auction;

CREATE STREAM totals AS
SELECT auction, count(*) AS n, sum(price) AS total FROM bids GROUP BY auction EMIT ON UPDATE;
"""
# The streams of each kind of sink. Rows with a random number are in every kind, and must agree.
SINKS = {
    "kafka": ("sales", "named", "totals"),
    "postgres": ("pairs", "named", "totals"),
    "delta": ("best", "named", "totals"),
    "files": ("sales", "pairs", "best", "named"),
}


def script(out: str, brokers: str, topic: str, postgres: str) -> str:
    parts = [SOURCE.format(name=name, topic=topic, brokers=brokers) for name in ("bids", "asks")]
    parts.append(STREAMS.format(sellers=postgres.replace("TABLE", "sellers")))
    for kind, streams in SINKS.items():
        for stream in streams:
            where = {
                "kafka": f"connector = 'kafka', topic = '{topic}-{stream}', brokers = '{brokers}', transaction_timeout = '10 s'",
                "postgres": f"{postgres.replace('TABLE', stream)}, create_table = true",
                "delta": f"connector = 'delta', path = '{out}/delta/{stream}', create_table = true",
                "files": f"connector = 'files', path = '{out}/files/{stream}'",
            }[kind]
            parts.append(f"CREATE SINK {stream}_{kind} FROM {stream} WITH ({where});")
    return "\n".join(parts)


def main() -> None:
    data, out, brokers, topic, postgres = sys.argv[1:6]
    until_end = "--until-end" in sys.argv
    with tidegate.open(data, master="local[2]", config={"key_groups": 2}) as session:
        session.execute(script(out, brokers, topic, postgres))
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
        print(f"stopped: {error}", flush=True)
        sys.exit(1)
