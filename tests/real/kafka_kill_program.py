"""A pipeline from Kafka through a window to Kafka. It runs until it is killed, or to its end.

python kafka_kill_program.py DATA_DIR BROKERS TOPIC [--until-end] [--kill RECORDS]
"""

from __future__ import annotations

import os
import signal
import sys

import tidegate
from tidegate.connectors.kafka import transactions as kafka_transactions

SCRIPT = """
CREATE SOURCE bids (
    id BIGINT, auction BIGINT, price BIGINT, ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '20' SECOND
) WITH (connector = 'kafka', topic = '{topic}', brokers = '{brokers}', rows_per_epoch = 60);
CREATE STREAM sales AS
SELECT auction, window_start, count(*) AS n, sum(price) AS total
FROM bids GROUP BY auction, TUMBLE(ts, INTERVAL '15' SECOND);
CREATE STREAM cheap AS SELECT id, price, rand() AS dice FROM bids WHERE price < 500;
CREATE SINK sales_out FROM sales WITH (connector = 'kafka', topic = '{topic}-sales', brokers = '{brokers}');
CREATE SINK cheap_out FROM cheap WITH (connector = 'kafka', topic = '{topic}-cheap', brokers = '{brokers}', key = 'id');
CREATE SINK cheap_again FROM cheap WITH (connector = 'kafka', topic = '{topic}-again', brokers = '{brokers}');
"""


def kill_in_transaction(records: int) -> None:
    """Kill this process in an open transaction, after this number of records was sent."""
    remaining = [records]
    write = kafka_transactions.Transactions._produce

    def produce(self: kafka_transactions.Transactions, *arguments: object) -> None:
        write(self, *arguments)  # type: ignore[arg-type]
        remaining[0] -= 1
        if remaining[0] == 0:
            self.producer.flush(30)
            os.kill(os.getpid(), signal.SIGKILL)

    kafka_transactions.Transactions._produce = produce  # type: ignore[method-assign]


def main() -> None:
    data, brokers, topic = sys.argv[1:4]
    until_end = "--until-end" in sys.argv
    if "--kill" in sys.argv:
        kill_in_transaction(int(sys.argv[sys.argv.index("--kill") + 1]))
    with tidegate.open(data, master="local[2]", config={"key_groups": 4}) as session:
        session.execute(SCRIPT.format(brokers=brokers, topic=topic))
        session.start(until_end=until_end)
        session.wait()
        late = sum(status.late_rows for status in session.status())
        print(f"done, {late} late rows", flush=True)


if __name__ == "__main__":
    main()
