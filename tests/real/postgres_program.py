"""Run three streams into PostgreSQL with a lookup, until they are killed or to the end of the input.

python postgres_program.py DATA_DIR IN_DIR OPTIONS [--until-end] [--kill STEP TIMES]

OPTIONS is a WITH clause for a table called TABLE.
"""

from __future__ import annotations

import sys

import tidegate
from tests.spark.kill_program import kill_at

SCRIPT = """
CREATE SOURCE bids (id BIGINT, auction BIGINT, price BIGINT) WITH (connector = 'files', path = '{given}', files_per_epoch = 1);
CREATE LOOKUP TABLE sellers (auction BIGINT, name STRING, PRIMARY KEY (auction)) WITH ({sellers}, cache_rows = 5);

CREATE STREAM named AS
SELECT b.id, b.price, s.name FROM bids AS b LEFT JOIN sellers AS s ON b.auction = s.auction AND s.name <> 'nobody';
CREATE STREAM totals AS
SELECT auction, count(*) AS n, sum(price) AS total FROM bids GROUP BY auction EMIT ON UPDATE;
CREATE STREAM odd AS
SELECT s.name, count(*) AS n FROM bids AS b JOIN sellers AS s ON b.auction = s.auction
GROUP BY s.name HAVING count(*) % 3 > 0 EMIT CHANGES;

CREATE SINK named_out FROM named WITH ({named}, create_table = true);
CREATE SINK totals_out FROM totals WITH ({totals}, create_table = true);
CREATE SINK odd_out FROM odd WITH ({odd}, create_table = true);
"""
TABLES = ("sellers", "named", "totals", "odd")


def script(inputs: str, options: str) -> str:
    return SCRIPT.format(given=inputs, **{name: options.replace("TABLE", name) for name in TABLES})


def main() -> None:
    data, inputs, options = sys.argv[1:4]
    until_end = "--until-end" in sys.argv
    if "--kill" in sys.argv:
        at = sys.argv.index("--kill")
        kill_at(sys.argv[at + 1], int(sys.argv[at + 2]))
    with tidegate.open(data, master="local[2]", config={"key_groups": 4}) as session:
        session.execute(script(inputs, options))
        session.start(until_end=until_end)
        print("running", flush=True)
        session.wait()
        print("done", flush=True)


if __name__ == "__main__":
    main()
