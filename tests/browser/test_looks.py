"""How panels look: nothing is cut off, too small, too pale, or jumps between the kinds of nodes.

In one kind of nodes and one theme; with BAYESDIFF_LOOKS=1 in all of them. The pictures to look at
are in screenshots/.
"""

import os

import pytest

from tests.browser.graphs import add_nodes, node, until
from tests.browser.test_panels import NODES, SAMPLING, SEED_GRAPH, SEEDS, Panel

EVERY = bool(os.environ.get("BAYESDIFF_LOOKS"))
LOOKS = [(nodes_2, theme) for nodes_2 in (False, True) for theme in ("dark", "light")]
GRAPH = {
    **NODES, "EmptyLatentImage 2": SEED_GRAPH["EmptyLatentImage"],
    "BayesDiff_BestOfN": {**SEED_GRAPH["BayesDiff_BestOfN"],
                          "latent_image": ["EmptyLatentImage 2", 0]},
    "PreviewAny": SEED_GRAPH["PreviewAny"],
    "BayesDiff_UncertaintyScore": {"trajectory": ["BayesDiff_KSampler", 2],
                                   "images": ["VAEDecode", 0]}}
PLACES = {"BayesDiff_KSampler": [0, 0], "BayesDiff_UncertaintyHeatmap": [330, 0],
          "BayesDiff_UncertaintyScoreFilter": [660, 0], "BayesDiff_BestOfN": [990, 0],
          "BayesDiff_UncertaintyScore": [660, 680]}  # each as small as it can be
OURS = list(PLACES)
SIZES = """(types) => types.map((type) => {
    const { size } = window.app.graph.nodes.find((n) => n.type === type);
    return [Math.round(size[0]), Math.round(size[1])];
})"""
# Of what can be seen in our panels: words that are cut off or hard to read, small buttons, and
# elements that lie over their neighbors.
FAULTS = """() => {
    const faults = [], shown = (each) => each.checkVisibility() && each.offsetWidth;
    const light = (color) => {
        const [r, g, b] = color.match(/[\\d.]+/g).map((part) => {
            const level = part / 255;
            return level <= 0.04045 ? level / 12.92 : ((level + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (each) => {
        for (let at = each; at; at = at.parentElement) {
            const { backgroundColor } = getComputedStyle(at);
            if (!/, 0\\)|transparent/.test(backgroundColor)) return backgroundColor;
        }
        return "rgb(0, 0, 0)";
    };
    for (const root of document.querySelectorAll(".bayesdiff-panel")) {
        if (!shown(root)) continue;
        const all = [...root.querySelectorAll("*")].filter(shown);
        const say = (what, each) => faults.push(`${what}: ${each.outerHTML.slice(0, 160)}`);
        for (const each of all) {
            const words = [...each.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
            if (words && each.clientWidth && each.scrollWidth > each.clientWidth + 1) {
                say("cut", each);
            }
            if (words && each.clientHeight && each.scrollHeight > each.clientHeight + 2) {
                say("low", each);
            }
            if (each.tagName === "BUTTON" && (each.offsetWidth < 24 || each.offsetHeight < 24)) {
                say("small", each);
            }
            if (words && !each.disabled && each.tagName !== "TEXTAREA") {
                const pair = [getComputedStyle(each).color, ground(each)].map(light);
                const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
                if (contrast < 4.5) say(`pale ${contrast.toFixed(1)}`, each);
            }
        }
        const parts = [...root.querySelectorAll(".bayesdiff-body > *, .bayesdiff-row > *")]
            .filter(shown);
        for (const one of parts) {
            const next = one.nextElementSibling;
            if (!next || !shown(next)) continue;
            const [a, b] = [one, next].map((each) => each.getBoundingClientRect());
            const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (across > 1 && down > 1) say("over its neighbor", one);
        }
        const box = root.getBoundingClientRect();
        for (const each of root.querySelectorAll(".bayesdiff-body > *")) {
            const { bottom } = each.getBoundingClientRect();
            if (shown(each) && bottom > box.bottom + 1) say("out", each);
        }
    }
    return faults;
}"""


def switch(page, nodes_2, theme):
    page.evaluate("""async ([on, theme]) => {
        const { setting } = window.app.extensionManager;
        await setting.set("Comfy.VueNodes.Enabled", on);
        await setting.set("Comfy.ColorPalette", theme);
    }""", [nodes_2, theme])
    page.wait_for_timeout(700)


def told(page, asked, wanted, *given):
    """A busy machine lays nodes out some time after it was told to."""
    for _ in range(20):
        answer = page.evaluate(asked, *given)
        if answer == wanted:
            return
        page.wait_for_timeout(500)
    assert answer == wanted, page.evaluate("() => [window.LiteGraph.vueNodesMode,"
                                           " document.body.className]")


def test_panels_are_readable_and_keep_their_size_in_both_kinds_of_nodes(page, screenshot):
    page.set_viewport_size({"width": 1500, "height": 1120})
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.Minimap.Visible', false)")
    seeded = {**GRAPH, "BayesDiff_KSampler": {**SAMPLING, "check": "auto", "steps": 12,
                                              "seed": 90_000 + next(SEEDS)}}
    add_nodes(page, seeded, {**{name: [-400, 150 * place] for place, name in enumerate(GRAPH)},
                             **PLACES})
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 1, offset: [80, 110] })")
    Panel(page, "KSampler", "schedule").wait("/ 12 steps/.test(root.textContent)")
    sizes = page.evaluate(SIZES, OURS)
    told(page, FAULTS, [])
    page.get_by_test_id("queue-button").click()
    for kind in ("UncertaintyScoreFilter", "BestOfN"):
        Panel(page, kind, "gallery").wait("root.querySelectorAll('.bayesdiff-card img').length")
    Panel(page, "UncertaintyScore", "report").wait("root.hasAttribute('data-told')")
    Panel(page, "UncertaintyHeatmap", "viewer").wait("!root.hasAttribute('data-empty')")
    try:
        for nodes_2, theme in LOOKS if EVERY else [(False, "dark"), (True, "light")]:
            switch(page, nodes_2, theme)
            told(page, SIZES, sizes, OURS)
            told(page, FAULTS, [])
            if EVERY:
                page.screenshot(path=f"tests/browser/screenshots/looks_{nodes_2}_{theme}.png")
    finally:
        switch(page, False, "dark")
    screenshot()


def test_a_first_sampler_is_no_taller_than_the_stock_one_with_its_picture(page):
    """What it has beside that: two widgets (mode, check) and two rows of sockets."""
    add_nodes(page, {"KSampler": {}, "BayesDiff_KSampler": {}})
    picture = 330 + 4
    stock, ours = page.evaluate("() => window.app.graph.nodes.map((n) => n.computeSize()[1])")
    assert ours <= stock + picture + 2 * 24 + 2 * 20
    assert page.evaluate(f"() => {node('BayesDiff_KSampler')}.size[1]") == ours


@pytest.mark.parametrize("nodes_2", [False, True], ids=["canvas", "nodes 2.0"])
def test_a_saved_size_stays_when_a_graph_is_opened(page, nodes_2):
    try:
        switch(page, nodes_2, "dark")
        add_nodes(page, {"BayesDiff_KSampler": {}, "BayesDiff_UncertaintyHeatmap": {}},
                  {"BayesDiff_KSampler": [0, 0, 320, 720],
                   "BayesDiff_UncertaintyHeatmap": [400, 0, 320, 600]})
        page.evaluate("() => window.app.loadGraphData(window.app.graph.serialize())")
        until(page, node("BayesDiff_UncertaintyHeatmap"))
        page.wait_for_timeout(700)
        told(page, SIZES, [[320, 720], [320, 600]],
             ["BayesDiff_KSampler", "BayesDiff_UncertaintyHeatmap"])
    finally:
        switch(page, False, "dark")
