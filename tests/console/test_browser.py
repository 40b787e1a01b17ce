"""The console in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.consoles import Shop
from tidegate.checkpoint.checkpoints import RestoreRequest
from tidegate.errors import RunError
from tidegate.observe.server import Address
from tidegate.observe.status import State, StreamStatus

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium was found: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def server(shop: Shop) -> Iterator[Any]:
    from tidegate.console.app import ConsoleServer

    served = ConsoleServer(shop, Address("127.0.0.1", 0))
    yield served
    served.close()


@pytest.fixture
def page(browser: Any, server: Any) -> Iterator[Any]:
    """The page, opened by the URL that is printed; anything wrong in it fails the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    opened.goto(server.url)
    opened.wait_for_selector(".node")
    yield opened
    opened.close()
    # A request that is rejected is said by the browser itself.
    assert [text for text in problems if "409 (Conflict)" not in text] == []


def test_the_graph_lives(page: Any, shop: Shop) -> None:
    assert page.locator(".node").count() == len(shop.graph().nodes)
    assert page.locator(".edge").count() == len(shop.graph().edges)
    assert page.locator("#state").inner_text() == "running"
    labels = page.locator(".edge-label").all_text_contents()
    assert any("/s" in text for text in labels), "rates"
    assert any("12:00:" in text for text in labels), "watermarks"
    for _ in range(9):
        shop.go_on()
    page.locator("#timeline g").nth(9).wait_for(state="attached")
    assert "epochs 0 to 9" in page.locator("#timeline p").inner_text()
    assert page.locator(".chart").count() == 6


def test_the_token_does_not_stay_in_the_url(page: Any, server: Any) -> None:
    assert server.token not in page.url
    assert page.evaluate("sessionStorage.getItem('tidegate-token')") == server.token


def test_a_stream_is_looked_at(page: Any, shop: Shop) -> None:
    page.click('[data-id="stream:per_minute"]')
    body = page.locator("#detail-body")
    page.wait_for_selector("#detail-body pre")
    assert body.inner_text().startswith("stream per_minute")
    page.get_by_role("tab", name="SQL").click()
    body.locator("pre", has_text="CREATE STREAM per_minute").wait_for()
    page.get_by_role("tab", name="Rows").click()
    page.wait_for_selector("#detail-body td.null")
    assert ("peek", "per_minute", 50) in shop.said
    page.get_by_role("tab", name="Numbers").click()
    body.locator("td", has_text="window_aggregate").wait_for()


def test_a_checkpoint_is_made_and_restored(page: Any, shop: Shop) -> None:
    page.click("#keep")
    page.wait_for_selector("text=checkpoint 'checkpoint-1' was made")
    page.locator("#checkpoints button").nth(1).click()
    assert "checkpoint before-change" in page.locator("#question").inner_text()
    page.click("text=Cancel")
    assert not any(said[0] == "restore" for said in shop.said)
    page.locator("#checkpoints button").nth(1).click()
    page.click("dialog .main")
    page.wait_for_selector("text=went back to 'before-change'")
    assert ("restore", RestoreRequest("before-change", pipeline="main")) in shop.said


def test_a_restore_that_leaves_rows_asks_first(
    page: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore(wanted: RestoreRequest) -> list[str]:
        shop.said.append(("restore", wanted))
        if not wanted.keep:
            raise RunError("TG-610", "sinks have rows from after it")
        return []

    monkeypatch.setattr(shop, "restore", restore)
    page.locator("#checkpoints button").first.click()
    page.click("dialog .main")
    page.wait_for_selector("text=sinks have rows from after it")
    page.check("#keep-sinks")
    page.click("dialog .main")
    page.wait_for_selector("text=went back to")
    assert [said[1].keep for said in shop.said if said[0] == "restore"] == [False, True]


def test_what_is_wrong_is_seen_and_is_text(page: Any, shop: Shop) -> None:
    shop.now = (StreamStatus("spread", State.FAILED, 1, error="<img src=x onerror=alert(1)>"),)
    page.wait_for_selector("#events .error")
    assert "<img src=x" in page.locator("#events .error").inner_text()
    assert page.locator("#events img").count() == 0
    assert page.locator("#state").inner_text() == "failed"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_on_a_phone(browser: Any, server: Any, scheme: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto(server.url)
    page.wait_for_selector(".node")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 247, 248)"
    assert light is (scheme == "light")
    page.close()


def test_without_a_token_one_can_only_look(browser: Any, server: Any) -> None:
    page = browser.new_context().new_page()
    page.goto(f"http://{server.address}/")
    page.wait_for_selector("#checkpoints button")
    assert page.locator("#keep").is_disabled()
    assert page.locator("#checkpoints button").first.is_disabled()
    page.close()
