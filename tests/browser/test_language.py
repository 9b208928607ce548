"""Panels and reports in the user's language."""

import re

import pytest

from tests.browser.graphs import add_nodes, until
from tests.browser.test_panels import LOOK, NODES, PLACES, SAMPLING, SEEDS, Panel, reopen
from tools.places import REPOSITORY
from tools.server import ask

CHINESE = re.compile("[\u4e00-\u9fff]")
SCORE = {"trajectory": ["BayesDiff_KSampler", 2], "images": ["VAEDecode", 0]}


@pytest.fixture
def in_chinese(page, server):
    ask(server.address, "/settings", {"Comfy.Locale": "zh"})
    reopen(page)
    yield page
    # The help opens a panel at the side, which would cover the canvas of other tests.
    ask(server.address, "/settings", {"Comfy.Locale": "en", "Comfy.RightSidePanel.IsOpen": False})


def test_panels_and_reports_are_in_chinese(in_chinese, screenshot):
    page = in_chinese
    add_nodes(page, {**NODES, "BayesDiff_KSampler": {**SAMPLING, "seed": 80_000 + next(SEEDS)},
                     "BayesDiff_UncertaintyScore": SCORE}, PLACES)
    page.evaluate(LOOK)
    page.evaluate("() => window.app.queuePrompt(0)")
    panels = [Panel(page, *of) for of in (
        ("KSampler", "schedule"), ("KSampler", "viewer"), ("KSampler", "report"),
        ("UncertaintyHeatmap", "viewer"), ("UncertaintyScoreFilter", "gallery"),
        ("UncertaintyScoreFilter", "report"), ("UncertaintyScore", "report"))]
    for panel in panels:
        panel.wait("root.hasAttribute('data-told')")
    until(page, "document.querySelectorAll('.bayesdiff-card img').length === 4")
    page.wait_for_timeout(500)
    screenshot()
    for panel in panels:
        for words in panel.tell("""[...root.querySelectorAll("textarea")].flatMap((box) =>
                box.value.split("\\n")).concat([...root.querySelectorAll("*")]
                .filter((each) => each.checkVisibility() && !each.children.length
                    && !["LINK", "TEXTAREA"].includes(each.tagName))
                .flatMap((each) => [each.textContent, each.title ?? ""]))"""):
            assert CHINESE.search(words) or not re.search("[a-zA-Z]{2}", words), words
    heat = panels[3]
    page.evaluate(f"() => window.app.canvas.selectItems([{heat.node}])")
    page.get_by_test_id("info-button").click()
    text = (REPOSITORY / "web/docs/BayesDiff_UncertaintyHeatmap/zh.md").read_text("utf-8")
    head = re.search("^## (.*)$", text, re.M)[1]
    page.get_by_role("heading", name=head, exact=True).wait_for()
    until(page, "[...document.images].some((image) => image.src.includes("
                "'BayesDiff_UncertaintyHeatmap.jpg') && image.naturalWidth > 100)")
    screenshot()


def test_other_languages_are_in_english(page, server):
    ask(server.address, "/settings", {"Comfy.Locale": "fr"})
    try:
        reopen(page)
        add_nodes(page, {"BayesDiff_UncertaintyScoreFilter": {}})
        Panel(page, "UncertaintyScoreFilter", "gallery").wait(
            "root.textContent.startsWith('The pictures and their scores')")
    finally:
        ask(server.address, "/settings", {"Comfy.Locale": "en"})
