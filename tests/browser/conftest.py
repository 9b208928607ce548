"""The real front end in Chromium."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.graphs import loaded
from tools.server import ask

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
    page.set_default_timeout(60_000)  # the machine may be busy
    errors = []
    page.on("pageerror", lambda error: errors.append(f"{error} {error.stack}"))
    # What a listener of ours throws, and what it uses that is going away, the front end warns of.
    page.on("console", lambda message: message.type in ("error", "warning")
            and errors.append(f"{message.text} {message.location.get('url')}"))
    # A first visit opens the template browser.
    ask(server.address, "/settings", {"Comfy.TutorialCompleted": True})
    page.goto(server.address)
    page.wait_for_function("() => window.app?.graph && window.LiteGraph?.registered_node_types"
                           "?.BayesDiff_ModelInfo")
    page.wait_for_function("() => window.app.graph.nodes.length > 0")  # the default workflow
    loaded(page)
    page.evaluate("() => window.app.graph.clear()")
    yield page
    context.close()
    # For a help page the front end first asks for one in the user's language.
    ours = [error for error in errors if "bayesdiff" in error.lower() and "/docs/" not in error]
    assert ours == []


@pytest.fixture
def screenshot(page, request):
    SCREENSHOTS.mkdir(exist_ok=True)
    return lambda: page.screenshot(path=SCREENSHOTS / f"{request.node.name}.png")
