"""Makes the pictures of the console in docs/images: `make screenshots`. Needs a Chromium."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.consoles import Shop
from tidegate.console.app import ConsoleServer
from tidegate.observe.server import Address

IMAGES = Path(__file__).parent / "images"


def main() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print("no Chromium was found: apt install chromium", file=sys.stderr)
        return 1
    shop = Shop()
    server = ConsoleServer(shop, Address("127.0.0.1", 0))
    for _ in range(120):
        shop.go_on()
        server.watch.tick()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        picture(browser, server.url, "light", 1280, 1400)
        picture(browser, server.url, "dark", 390, 1400)
        browser.close()
    server.close()
    return 0


def picture(browser: Browser, url: str, scheme: str, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.goto(url)
    page.wait_for_selector(".node")
    page.click('[data-id="stream:spread"]')
    page.wait_for_selector("#detail-body pre")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(500)
    page.screenshot(path=IMAGES / f"console-{scheme}.png")
    page.close()


if __name__ == "__main__":
    sys.exit(main())
