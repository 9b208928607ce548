"""The real front end in Chromium."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import TimeoutError as NothingCame
from playwright.sync_api import sync_playwright

SCREENSHOTS = Path(__file__).parent / "screenshots"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--no-first-run"]


@pytest.fixture(scope="session")
def chromium():
    path = os.environ.get("BAYESDIFF_CHROMIUM")
    if not path:
        pytest.exit("no Chromium is named: run these tests with python run.py test browser",
                    returncode=2)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, server):
    """The front end, ready, with an empty graph. A test fails if our files raised an error."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors = []
    page.on("pageerror", lambda error: errors.append(f"{error} {error.stack}"))
    page.on("console", lambda message: message.type == "error"
            and errors.append(f"{message.text} {message.location.get('url')}"))
    page.goto(server.address)
    page.wait_for_function("() => window.app?.graph && window.LiteGraph?.registered_node_types"
                           "?.BayesDiff_ModelInfo")
    close_template_browser(page)
    page.evaluate("() => window.app.graph.clear()")
    yield page
    context.close()
    assert [error for error in errors if "bayesdiff" in error.lower()] == []


def close_template_browser(page) -> None:
    """A first visit opens it; a later one does not."""
    dialog = page.locator("[role=dialog]").first
    try:
        dialog.wait_for(state="visible", timeout=8_000)
    except NothingCame:
        return
    page.keyboard.press("Escape")
    dialog.wait_for(state="hidden")


@pytest.fixture
def screenshot(page, request):
    SCREENSHOTS.mkdir(exist_ok=True)
    return lambda: page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png")
