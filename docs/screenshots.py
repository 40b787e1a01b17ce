"""Take the pictures of the console in docs/images: `make screenshots`.

Runs examples/shop/live.sql for a quarter of an hour and photographs its console, so every number in
the pictures was measured. Needs Java and Chromium.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
SHOP = DOCS.parent / "examples" / "shop"
CLICKS_PER_SECOND = 500
# The charts cover ten minutes. The first epochs, in which Spark warms up, must have left them.
HISTORY_SECONDS = 660
TIMEOUT_SECONDS = 1800


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("Chromium was not found: apt install chromium", file=sys.stderr)
        return 1
    with (
        TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        live_shop(Path(folder)) as url,
    ):
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        print("waiting for ten minutes of history", flush=True)
        wait_for_history(url, HISTORY_SECONDS / 2)
        create_checkpoint(browser, url)
        wait_for_history(url, HISTORY_SECONDS)
        take_pictures(browser, url)
        browser.close()
    return 0


@contextmanager
def live_shop(folder: Path) -> Iterator[str]:
    """Run the shop with its console, and yield the URL of the console."""
    for name in ("rows.py", "live.sql"):
        shutil.copy(SHOP / name, folder)
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parent), "PYTHONUNBUFFERED": "1"}
    rows = [sys.executable, "rows.py", "--live", str(CLICKS_PER_SECOND)]
    run = [sys.executable, "-m", "tidegate", "run", "live.sql", "--console", "--listen", "0"]
    log = folder / "run.log"
    with (
        log.open("w") as output,
        subprocess.Popen(rows, cwd=folder, env=environment) as shop,
        subprocess.Popen(run, cwd=folder, env=environment, stdout=output) as pipeline,
    ):
        try:
            yield printed_url(log, pipeline)
        finally:
            shop.terminate()
            pipeline.send_signal(signal.SIGINT)


def printed_url(log: Path, pipeline: subprocess.Popen[bytes]) -> str:
    while pipeline.poll() is None:
        url = re.search(r"http://\S+", log.read_text())
        if url is not None:
            return url[0]
        time.sleep(1)
    raise RuntimeError("the pipeline did not start")


def wait_for_history(url: str, seconds: float) -> None:
    """Wait until the first epoch that the console knows was committed `seconds` ago."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        state = console_state(url)
        failures = [s["error"] for s in state["streams"] if s["state"] == "failed"]
        if failures:
            raise RuntimeError(failures[0])
        if state["epochs"]:
            first = state["epochs"][0]
            if time.time() - first["started_at"] - first["seconds"] > seconds:
                return
        time.sleep(5)
    raise TimeoutError("the pipeline did not run long enough")


def console_state(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url.partition("#")[0] + "api/state", timeout=60) as response:
        state: dict[str, Any] = json.load(response)
        return state


def create_checkpoint(browser: Browser, url: str) -> None:
    page = open_page(browser, url, "light", 1280)
    page.click("#create-checkpoint")
    page.wait_for_selector("text=created checkpoint")
    page.close()


def take_pictures(browser: Browser, url: str) -> None:
    # The README shows its picture at two thirds of the width: twice the pixels keep it sharp.
    page = open_page(browser, url, "light", 1280, pixel_ratio=2)
    take_picture(page, "console", down_to="#timeline")
    page.close()
    page = open_page(browser, url, "light", 1280)
    take_picture(page, "console-light", down_to="main")
    page.close()
    page = open_page(browser, url, "light", 860)
    page.click('[data-id="stream:page_views"]')
    page.wait_for_selector("#detail-body pre")
    page.locator("#detail").screenshot(path=IMAGES / "console-stream.png")
    page.close()
    page = open_page(browser, url, "dark", 390)
    take_picture(page, "console-dark", down_to=".chart >> nth=1")
    page.close()


def open_page(browser: Browser, url: str, scheme: str, width: int, pixel_ratio: int = 1) -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": 900},
        device_scale_factor=pixel_ratio,
        color_scheme="dark" if scheme == "dark" else "light",
        timezone_id="UTC",
    )
    page.goto(url)
    page.wait_for_selector(".edge.moving", state="attached")
    page.wait_for_selector("#checkpoints td")
    return page


def take_picture(page: Page, name: str, down_to: str) -> None:
    """Save the page from its top to the end of the card that contains an element."""
    bottom = page.locator(down_to).first.evaluate(
        "e => (e.closest('.card') ?? e).getBoundingClientRect().bottom + scrollY"
    )
    viewport = page.viewport_size
    assert viewport is not None
    clip = {"x": 0, "y": 0, "width": viewport["width"], "height": bottom + 8}
    page.screenshot(path=IMAGES / f"{name}.png", full_page=True, clip=clip)


if __name__ == "__main__":
    sys.exit(main())
