"""Commands that write files: `tidegate init` a project, `tidegate package` an archive."""

from __future__ import annotations

import zipfile
from pathlib import Path

import tidegate
from tidegate.cli.errors import UsageError
from tidegate.errors import RunError

# ---- tidegate init

_STREAMS = """\
-- Orders are JSON files in the folder orders. Relative paths start at the folder of this file.
CREATE SOURCE orders (
    id BIGINT NOT NULL,
    customer STRING,
    amount DOUBLE,
    ts TIMESTAMP,
    WATERMARK FOR ts AS ts - INTERVAL '10' SECOND
) WITH (connector = 'files', path = 'orders', format = 'json', dead_letters = 'bad_orders');

-- One row per minute, as soon as the minute is over.
CREATE STREAM revenue AS
SELECT window_start, count(*) AS orders, sum(amount) AS amount
FROM orders
GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)
EMIT ON WINDOW CLOSE;

CREATE SINK revenue_files FROM revenue
WITH (connector = 'files', path = 'out/revenue', format = 'json');

-- The current totals of each customer. Query them at any time:
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
tidegate check streams.sql                # find errors without running anything
tidegate run streams.sql --available-now  # process the available rows, and exit
tidegate query .tidegate/streams "SELECT * FROM customers ORDER BY spent DESC"
tidegate test tests                       # compare the output for test rows with expected rows
tidegate sql streams.sql                  # open an interactive shell
```

Put another file into `orders` and run the streams again: they resume where they stopped, and open
windows are kept. `tidegate run streams.sql` runs until Ctrl-C and reads new files as they arrive.

`--until-end` instead of `--available-now` also closes the open windows, permanently: later orders
for these windows are late.
"""

FILES = {
    "streams.sql": _STREAMS,
    "orders/2026-01-01.json": _ORDERS,
    "tests/revenue.yaml": _TEST,
    "README.md": _README,
    ".gitignore": ".tidegate/\nout/\n",
}


def init(folder: Path) -> int:
    """Write the project, without replacing existing files."""
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        raise UsageError(
            f"{folder / existing[0]} already exists; nothing was written",
            "choose a directory that is empty or does not exist yet.",
        )
    try:
        for name, text in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror or error}") from None
    print("\n".join(f"wrote {folder / name}" for name in FILES))
    commands = (f"cd {folder}", "tidegate run streams.sql --available-now", "tidegate test tests")
    print("\nNext:", *commands, sep="\n  ")
    return 0


# ---- tidegate package

# A constant time makes archives reproducible.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def package(target: Path) -> int:
    """Write the tidegate package as an archive that Spark distributes to its executors."""
    if target.suffix != ".zip":
        hint = f"tidegate package {target.with_suffix('.zip')}"
        raise RunError(
            "TG-506", f"the name of the archive must end in .zip, not {target}", hint=hint
        )
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, name in _package_files():
                archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), path.read_bytes())
    except OSError as error:
        raise RunError("TG-506", f"{target} cannot be written: {error.strerror}") from None
    print(f"wrote tidegate {tidegate.__version__} to {target}")
    print(f"Pass it to Spark: --conf spark.submit.pyFiles={target.resolve()}")
    return 0


def _package_files() -> list[tuple[Path, str]]:
    root = Path(tidegate.__file__).parent
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return [
        (path, path.relative_to(root.parent).as_posix())
        for path in paths
        if "__pycache__" not in path.parts
    ]
