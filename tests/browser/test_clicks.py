"""How many clicks it takes. Counted by the page: each press of a mouse button."""

import contextlib

from playwright.sync_api import TimeoutError

from tests.browser.graphs import TITLE_OF, add_nodes, node, until, widget
from tests.browser.test_panels import KINDS, LOOK, Panel
from tests.browser.test_surface import SEEDS, STOCK, STOCK_PLACES, kind_of_nodes
from tools import workflow
from tools.make_workflows import EXAMPLES

__all__ = ["kind_of_nodes"]  # a fixture
COUNT = """() => {
    window.clicks = 0;
    window.addEventListener("pointerdown", (press) => { window.clicks += press.isTrusted; }, true);
}"""
REPAIRED = "root.querySelector(\"[aria-label^='between the repaired']\").checkVisibility()"
CENTER = """(node) => {
    const { canvas, ds } = window.app.canvas, { width, height } = canvas.getBoundingClientRect();
    ds.scale = 0.9;
    ds.offset = [width / 0.9 / 2 - node.pos[0] - node.size[0] / 2,
                 height / 0.9 / 2 - node.pos[1] - node.size[1] / 2];
    window.app.canvas.setDirty(true, true);
}"""


@KINDS
def test_from_a_stock_sampler_to_a_map_in_three_clicks(page, nodes_2, kind_of_nodes, screenshot):
    add_nodes(page, {**STOCK, "KSampler": {**STOCK["KSampler"], "seed": next(SEEDS)}},
              STOCK_PLACES)
    page.evaluate(LOOK)
    page.evaluate(COUNT)
    item = page.get_by_text("Replace with BayesDiff KSampler", exact=True).first
    for _ in range(5):  # a busy machine may not have drawn the node yet
        page.wait_for_timeout(1500)
        page.evaluate("() => { window.clicks = 0; }")
        page.mouse.click(*page.evaluate(TITLE_OF, "KSampler"), button="right")
        with contextlib.suppress(TimeoutError):
            item.wait_for(timeout=6000)
            break
    item.click()
    until(page, node("BayesDiff_KSampler"))
    page.get_by_test_id("queue-button").click()
    viewer = Panel(page, "KSampler", "viewer")
    viewer.wait("/^Result/.test(root.querySelector('.bayesdiff-body .bayesdiff-caption')"
                ".textContent)")
    assert page.evaluate("() => window.clicks") <= 3
    screenshot()


@KINDS
def test_from_the_first_template_to_a_repaired_picture_in_four_clicks(page, nodes_2, kind_of_nodes,
                                                                      screenshot):
    first = min(EXAMPLES.glob("*.json"))
    page.evaluate("(saved) => window.app.loadGraphData(saved)", workflow.read(first))
    until(page, node("BayesDiff_KSampler"))
    page.evaluate(f"(seed) => {{ {widget('BayesDiff_KSampler', 'seed')}.value = seed; }}",
                  next(SEEDS))  # what is cached is not told again
    page.evaluate(COUNT)
    page.get_by_test_id("queue-button").click()
    viewer = Panel(page, "KSampler", "viewer")
    viewer.wait("/^Result/.test(root.querySelector('.bayesdiff-body .bayesdiff-caption')"
                ".textContent)")
    page.evaluate(f"() => ({CENTER})({node('BayesDiff_KSampler')})")
    page.wait_for_timeout(1000)
    viewer.find(".bayesdiff-repair button").click()
    until(page, "window.app.graph.nodes.find((n) => n.subgraph)")
    page.get_by_test_id("queue-button").click()
    until(page, f"((root) => {REPAIRED})({viewer.element})", timeout=180_000)
    assert page.evaluate("() => window.clicks") <= 4
    page.wait_for_timeout(700)
    screenshot()
