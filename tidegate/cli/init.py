"""`tidegate init`: a small project that runs, with a test."""

from __future__ import annotations

import zipfile
from pathlib import Path

import tidegate
from tidegate.cli import report
from tidegate.errors import RunError

_STREAMS = """\
-- Orders come as JSON files in the folder orders; relative paths begin beside this file.
CREATE SOURCE orders (
    id BIGINT NOT NULL,
    customer STRING,
    amount DOUBLE,
    ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '10' SECOND
) WITH (connector = 'files', path = 'orders', format = 'json', dead_letters = 'bad_orders');

-- Each minute once, when it is over.
CREATE STREAM revenue AS
SELECT window_start, count(*) AS orders, sum(amount) AS amount
FROM orders
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE;

CREATE SINK revenue_files FROM revenue
WITH (connector = 'files', path = 'out/revenue', format = 'json');

-- The newest state of each customer, to be asked at any time:
-- tidegate query .tidegate/streams "SELECT * FROM customers ORDER BY spent DESC LIMIT 3"
CREATE MATERIALIZED VIEW customers AS
SELECT customer, count(*) AS orders, sum(amount) AS spent
FROM orders
GROUP BY customer
EMIT ON UPDATE;
"""

_ORDERS = """\
{"id": 1, "customer": "ada", "amount": 20.0, "ts": "2026-01-01T10:00:05Z"}
{"id": 2, "customer": "bob", "amount": 12.5, "ts": "2026-01-01T10:00:40Z"}
{"id": 3, "customer": "ada", "amount": 7.5, "ts": "2026-01-01T10:01:10Z"}
{"id": 4, "customer": "cem", "amount": 99.0, "ts": "2026-01-01T10:02:30Z"}
"""

_TEST = """\
# tidegate test tests
name: revenue_per_minute
script_file: ../streams.sql
stream: revenue
steps:
  - add:
      orders:
        - {id: 1, customer: ada, amount: 20.0, ts: "2026-01-01T10:00:05"}
        - {id: 2, customer: bob, amount: 12.5, ts: "2026-01-01T10:00:40"}
        - {id: 3, customer: ada, amount: 7.5, ts: "2026-01-01T10:01:30"}
  - expect_new: [{window_start: "2026-01-01T10:00:00", orders: 2, amount: 32.5}]
  - restart: true
  - end_of_input: true
  - expect_new: [{window_start: "2026-01-01T10:01:00", orders: 1, amount: 7.5}]
"""

_README = """\
# A Tidegate project

```
tidegate check streams.sql                # every error, without running anything
tidegate run streams.sql --until-end      # process all rows, close all windows, and end
tidegate query .tidegate/streams "SELECT * FROM customers ORDER BY spent DESC"
tidegate test tests                       # rows in, expected rows out
tidegate sql streams.sql                  # talk to it
```

`tidegate run streams.sql` runs until Ctrl-C: put another file into `orders` and watch.
"""

FILES = {
    "streams.sql": _STREAMS,
    "orders/2026-01-01.json": _ORDERS,
    "tests/revenue.yaml": _TEST,
    "README.md": _README,
    ".gitignore": ".tidegate/\nout/\n",
}


def init(folder: Path) -> int:
    """Write the project; nothing that is there is written over."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise report.InputProblem(
            f"{folder / there[0]} is there already, and nothing was written",
            "name a directory that is empty or does not exist yet.",
        )
    try:
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise report.InputProblem(f"cannot write {folder}: {error.strerror or error}") from None
    print("\n".join(f"wrote {folder / name}" for name in FILES))
    print(f"\nNext:\n  cd {folder}\n  tidegate run streams.sql --until-end\n  tidegate test tests")
    return 0


# ---- `tidegate package`: the package as an archive that Spark hands to the machines of a cluster.

# Every archive of the same files has the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


def package(target: Path) -> int:
    """Write the archive and print how to use it."""
    if target.suffix != ".zip":
        hint = f"tidegate package {target.with_suffix('.zip')}"
        raise RunError("TG-506", f"Spark takes archives that end in .zip, not {target}", hint=hint)
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, name in _files():
                archive.writestr(zipfile.ZipInfo(name, _TIME), path.read_bytes())
    except OSError as error:
        raise RunError("TG-506", f"{target} cannot be written: {error.strerror}") from None
    print(f"tidegate {tidegate.__version__} is in {target}")
    print(f"Give it to Spark: spark.submit.pyFiles {target.resolve()}")
    return 0


def _files() -> list[tuple[Path, str]]:
    root = Path(tidegate.__file__).parent
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return [
        (path, path.relative_to(root.parent).as_posix())
        for path in paths
        if "__pycache__" not in path.parts
    ]
