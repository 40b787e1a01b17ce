"""The console in a real browser: Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.console import StubProvider, add_epoch, provider_with_streams
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
def provider() -> StubProvider:
    return provider_with_streams()


@pytest.fixture
def server(provider: StubProvider) -> Iterator[Any]:
    from tidegate.console.app import ConsoleServer

    served = ConsoleServer(provider, Address("127.0.0.1", 0))
    yield served
    served.close()


@pytest.fixture
def page(browser: Any, server: Any) -> Iterator[Any]:
    """Open the printed URL. Script errors and messages on the browser console fail the test."""
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on(
        "console",
        lambda message: problems.append(message.text) if message.type == "error" else None,
    )
    opened.goto(server.url)
    opened.wait_for_selector(".node")
    yield opened
    opened.close()
    # The browser logs requests that are rejected with 409.
    assert [text for text in problems if "409 (Conflict)" not in text] == []


def test_graph_timeline_and_charts_are_updated(page: Any, provider: StubProvider) -> None:
    assert page.locator(".node").count() == len(provider.graph().nodes)
    assert page.locator(".edge").count() == len(provider.graph().edges)
    assert page.locator("#state").inner_text() == "running"
    labels = page.locator(".edge-label").all_text_contents()
    assert any("/s" in text for text in labels), "rates"
    assert any("12:00:" in text for text in labels), "watermarks"
    for _ in range(9):
        add_epoch(provider)
    page.locator("#timeline g").nth(9).wait_for(state="attached")
    assert "epochs 0 to 9" in page.locator("#timeline p").inner_text()
    assert page.locator(".chart").count() == 6


def test_token_is_removed_from_the_url(page: Any, server: Any) -> None:
    assert server.token not in page.url
    assert page.evaluate("sessionStorage.getItem('tidegate-token')") == server.token


def test_details_of_a_stream(page: Any, provider: StubProvider) -> None:
    page.click('[data-id="stream:per_minute"]')
    body = page.locator("#detail-body")
    page.wait_for_selector("#detail-body pre")
    assert body.inner_text().startswith("stream per_minute")
    page.get_by_role("tab", name="SQL").click()
    body.locator("pre", has_text="CREATE STREAM per_minute").wait_for()
    page.get_by_role("tab", name="Rows").click()
    page.wait_for_selector("#detail-body td.null")
    assert ("peek", "per_minute", 50) in provider.calls
    page.get_by_role("tab", name="Counters").click()
    body.locator("td", has_text="window_aggregate").wait_for()


def test_create_and_restore_a_checkpoint(page: Any, provider: StubProvider) -> None:
    page.click("#create-checkpoint")
    page.wait_for_selector("text=created checkpoint 'checkpoint-1'")
    page.locator("#checkpoints button").nth(1).click()
    assert "checkpoint before-change" in page.locator("#question").inner_text()
    page.click("text=Cancel")
    assert not any(call[0] == "restore" for call in provider.calls)
    page.locator("#checkpoints button").nth(1).click()
    page.click("dialog .main")
    page.wait_for_selector("text=restored checkpoint 'before-change'")
    assert ("restore", RestoreRequest("before-change", pipeline="main")) in provider.calls


def test_restore_that_duplicates_rows_asks_for_confirmation(
    page: Any, provider: StubProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restore(request: RestoreRequest) -> list[str]:
        provider.calls.append(("restore", request))
        if not request.keep_sink_rows:
            raise RunError("TG-610", "sinks have rows from after it")
        return []

    monkeypatch.setattr(provider, "restore", restore)
    page.locator("#checkpoints button").first.click()
    page.click("dialog .main")
    page.wait_for_selector("text=sinks have rows from after it")
    page.check("#keep-sinks")
    page.click("dialog .main")
    page.wait_for_selector("text=restored epoch 5")
    assert [call[1].keep_sink_rows for call in provider.calls if call[0] == "restore"] == [
        False,
        True,
    ]


def test_errors_are_shown_as_text(page: Any, provider: StubProvider) -> None:
    provider.current_statuses = (
        StreamStatus("spread", State.FAILED, 1, error="<img src=x onerror=alert(1)>"),
    )
    page.wait_for_selector("#events .error")
    assert "<img src=x" in page.locator("#events .error").inner_text()
    assert page.locator("#events img").count() == 0
    assert page.locator("#state").inner_text() == "failed"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_a_phone(browser: Any, server: Any, scheme: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto(server.url)
    page.wait_for_selector(".node")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 247, 248)"
    assert light is (scheme == "light")
    page.close()


def test_actions_are_disabled_without_a_token(browser: Any, server: Any) -> None:
    page = browser.new_context().new_page()
    page.goto(f"http://{server.address}/")
    page.wait_for_selector("#checkpoints button")
    assert page.locator("#create-checkpoint").is_disabled()
    assert page.locator("#checkpoints button").first.is_disabled()
    page.close()
