"""examples/shop: eight streams on the command line and in the browser."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

import tidegate

# It starts its own Spark and runs with the tests of the console.
pytestmark = pytest.mark.browser

ROOT = Path(tidegate.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Test machines are small and busy.
PATIENCE_SECONDS = 400
CLICKS = "read_json('in/clicks/*.json', format = 'newline_delimited', ignore_errors = true)"
# Malformed lines are NULL there.
TRUTH = f"""
CREATE VIEW clicks AS SELECT DISTINCT id, user_id, page, device.os AS os, ts::TIMESTAMP AS ts
FROM {CLICKS} WHERE id IS NOT NULL AND ts IS NOT NULL;
CREATE VIEW orders AS SELECT id, user_id, amount::DECIMAL(10, 2) AS amount, ts::TIMESTAMP AS ts
FROM read_csv('in/orders/*.csv');
"""
# The expected rows of each sink, as batch queries.
EXPECTED = {
    "clicks": "SELECT id, user_id, page, os, ts FROM clicks",
    "views": "SELECT date_trunc('minute', ts) AS window_start, page, count(*) AS views, "
    "count(DISTINCT user_id) AS visitors FROM clicks GROUP BY ALL",
    "top_pages": "FROM (SELECT time_bucket(INTERVAL '5 minutes', ts) AS window_start, page, "
    "count(*) AS views FROM clicks GROUP BY ALL) QUALIFY row_number() OVER "
    "(PARTITION BY window_start ORDER BY views DESC, page) <= 3",
    "visits": "SELECT user_id, min(ts) AS window_start, count(*) AS clicks FROM (SELECT *, "
    "sum(begins) OVER (PARTITION BY user_id ORDER BY ts ROWS UNBOUNDED PRECEDING) AS visit FROM "
    "(SELECT *, CASE WHEN ts <= lag(ts) OVER (PARTITION BY user_id ORDER BY ts) + "
    "INTERVAL '5 minutes' THEN 0 ELSE 1 END AS begins FROM clicks)) GROUP BY user_id, visit",
    "funnel": "SELECT o.id AS order_id, c.id AS click_id FROM clicks AS c JOIN orders AS o ON "
    "c.user_id = o.user_id AND o.ts BETWEEN c.ts AND c.ts + INTERVAL '15 minutes' "
    "WHERE c.page = '/checkout'",
    "named_orders": "SELECT o.id, c.name FROM orders AS o "
    "LEFT JOIN read_csv('in/customers/*.csv') AS c ON o.user_id = c.id",
    "jumps": "SELECT id, amount, before FROM (SELECT *, lag(amount) OVER "
    "(PARTITION BY user_id ORDER BY ts) AS before FROM orders) WHERE amount > 3 * before",
}


def run(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tidegate", "run", "shop.sql", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture
def page() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium was found: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1600, "height": 1200})
        browser.close()


def test_shop_is_shown_while_running_and_its_sinks_equal_batch(
    page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shop.sql", "rows.py"):
        shutil.copy(ROOT / "examples" / "shop" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    small = ["--minutes", "12", "--clicks", "40"]
    subprocess.run([sys.executable, "rows.py", *small], check=True, capture_output=True)
    with run("--console", "--listen", "0") as live:
        assert live.stdout is not None
        url = next(urls[0] for line in live.stdout if (urls := re.findall(r"http://\S+", line)))
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.goto(url)
        # Two sources, a lookup table, eight streams and nine sinks, dead letters and late rows.
        for name in ("raw_clicks", "customers", "late_clicks", "bad_clicks", "top_pages", "by_os"):
            page.locator(".node", has_text=name).first.wait_for()
        page.locator("#timeline g").first.wait_for(state="attached")
        page.locator(".edge-label", has_text=re.compile("2026|10:")).first.wait_for()
        assert page.locator("#state").inner_text() == "running"
        page.close()
        live.send_signal(signal.SIGINT)
        assert live.wait(PATIENCE_SECONDS) == 0
    with run("--until-end") as ended:
        stdout, stderr = ended.communicate(timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, stdout + stderr
    _compare_sinks()


def _compare_sinks() -> None:
    batch = duckdb.connect()
    batch.execute(TRUTH)
    for sink, truth in EXPECTED.items():
        kind = "parquet" if list(Path(f"out/{sink}").glob("*.parquet")) else "json"
        columns = ", ".join(item[0] for item in batch.execute(truth).description or ())
        written = f"SELECT {columns} FROM read_{kind}('out/{sink}/*.{kind}')"
        for left_query, right_query in ((truth, written), (written, truth)):
            difference = batch.execute(
                f"({left_query}) EXCEPT ALL ({right_query}) LIMIT 3"
            ).fetchall()
            assert not difference, f"{sink}: {difference}"
    bad = batch.execute("SELECT count(*) FROM read_json('out/bad_clicks/*.json')").fetchone()
    assert bad is not None and bad[0] > 0
    expected = batch.execute("SELECT os, count(*) FROM clicks GROUP BY os").fetchall()
    command = [sys.executable, "-m", "tidegate", "query", ".tidegate/shop"]
    command += ["SELECT os, clicks FROM by_os", "--format", "csv"]
    shown = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    rows = [line.split(",") for line in shown.stdout.split()[1:]]
    assert sorted((os_, int(count)) for os_, count in rows) == sorted(expected)
