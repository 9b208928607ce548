"""What our nodes show inside themselves, in both kinds of nodes.

With BAYESDIFF_PICTURES=1 a picture of them goes to docs/images, for README.md.
"""

import contextlib
import io
import itertools
import os
import re

import pytest
from PIL import Image
from playwright.sync_api import TimeoutError

from tests.browser.conftest import SCREENSHOTS
from tests.browser.graphs import add_nodes, node, widget
from tools.places import REPOSITORY

SAMPLING = {"steps": 8, "cfg": 2.5, "mode": "accurate", "model": ["BayesDiff_DemoModel", 0],
            "posterior": ["BayesDiff_DemoModel", 2], "positive": ["BayesDiff_DemoPrompt", 0],
            "negative": ["BayesDiff_DemoPrompt 2", 0], "latent_image": ["EmptyLatentImage", 0]}
NODES = {
    "BayesDiff_DemoModel": {},
    "BayesDiff_DemoPrompt": {"name": "heart"},
    "BayesDiff_DemoPrompt 2": {"name": "nothing"},
    "EmptyLatentImage": {"width": 32, "height": 32, "batch_size": 4},
    "BayesDiff_KSampler": SAMPLING,
    "VAEDecode": {"samples": ["BayesDiff_KSampler", 0], "vae": ["BayesDiff_DemoModel", 1]},
    "BayesDiff_UncertaintyHeatmap": {"trajectory": ["BayesDiff_KSampler", 2],
                                     "image": ["VAEDecode", 0]},
    "BayesDiff_UncertaintyScoreFilter": {"scores": ["BayesDiff_KSampler", 3],
                                         "images": ["VAEDecode", 0]},
}
PLACES = {
    "BayesDiff_DemoModel": [20, 60], "BayesDiff_DemoPrompt": [20, 190],
    "BayesDiff_DemoPrompt 2": [20, 300], "EmptyLatentImage": [20, 410], "VAEDecode": [20, 560],
    "BayesDiff_KSampler": [330, 60, 320, 860], "BayesDiff_UncertaintyHeatmap": [680, 60, 320, 800],
    "BayesDiff_UncertaintyScoreFilter": [1030, 60, 330, 880]}
LOOK = "() => Object.assign(window.app.canvas.ds, { scale: 0.9, offset: [60, 80] })"
KEEP_OUTPUTS = """async () => {
    const outputs = window.app.nodeOutputs;
    await window.app.loadGraphData(window.app.graph.serialize());
    window.app.nodeOutputs = outputs;  // as the front end does when a tab comes back
}"""
STEPS_WIDGET = """() => {
    const { canvas, ds } = window.app.canvas;
    window.app.canvas.draw(true, true);  // a widget knows its place when it was drawn
    const node = window.app.graph.nodes.find((n) => n.type === "BasicScheduler");
    const { left, top } = canvas.getBoundingClientRect();
    const down = node.widgets.find((w) => w.name === "steps").last_y + 10;
    return [left + (node.pos[0] + ds.offset[0] + node.size[0] / 2) * ds.scale,
            top + (node.pos[1] + ds.offset[1] + down) * ds.scale];
}"""
SAVED_VALUES = "() => window.app.graph.serialize().nodes.map((n) => n.widgets_values ?? [])"
SEEDS = itertools.count()  # what is cached is not told again
KINDS = pytest.mark.parametrize("nodes_2", [False, True], ids=["canvas", "nodes 2.0"])


class Panel:
    """One of our panels, in the node of a type."""

    def __init__(self, page, kind, name):
        self._page = page
        self.node = node(f"BayesDiff_{kind}")
        self.element = f"{widget(f'BayesDiff_{kind}', name)}.element"

    def tell(self, expression, *given):
        """The value of an expression about the panel's `root` and its `node`."""
        return self._page.evaluate(f"(given) => {{ const root = {self.element}, node = {self.node};"
                                   f" return {expression}; }}", *given)

    def wait(self, expression):
        self._page.wait_for_function(
            f"() => {{ const root = {self.element}, node = {self.node}; return {expression}; }}")

    def find(self, selector):
        handle = self._page.evaluate_handle(f"() => {self.element}")
        return handle.as_element().query_selector(selector)

    def set(self, widget, value):
        """As both kinds of nodes do at a change by hand."""
        self.tell("(({ widgets }) => { const w = widgets.find((w) => w.name === given[0]);"
                  " w.value = given[1]; w.callback?.(w.value); })(node)", [widget, value])

    def caption(self):
        return self.tell("root.querySelector('.bayesdiff-caption').textContent")

    def pixels(self):
        return self.tell("root.querySelector('canvas').toDataURL()")


@pytest.fixture
def panels(page, nodes_2):
    page.evaluate("(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)",
                  nodes_2)
    seeded = {"BayesDiff_KSampler": {**SAMPLING, "seed": next(SEEDS)}}
    add_nodes(page, {**NODES, **seeded}, PLACES)
    page.evaluate(LOOK)
    yield {kind: Panel(page, *of) for kind, of in {
        "schedule": ("KSampler", "schedule"), "steps": ("KSampler", "viewer"),
        "map": ("UncertaintyHeatmap", "viewer"),
        "histogram": ("UncertaintyScoreFilter", "histogram")}.items()}
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def run(page, panels):
    page.get_by_test_id("queue-button").click()
    for name in ("steps", "map"):
        panels[name].wait("root.querySelector('.bayesdiff-count').textContent === '1/4' &&"
                          " /^result/.test(root.querySelector('.bayesdiff-caption').textContent)")
    panels["histogram"].wait("root.querySelectorAll('img').length === 4")


@KINDS
def test_panels_before_and_after_a_run(page, panels, nodes_2, screenshot):
    check_schedule(panels["schedule"])
    assert panels["map"].tell("root.querySelector('.bayesdiff-hint').checkVisibility()")
    assert panels["map"].tell("[...root.querySelectorAll('button')].every((b) => b.disabled)")
    run(page, panels)
    panels["schedule"].wait("/^it took 1.5 × KSampler: 4 extra calls at/.test(root.textContent)")
    check_viewer(page, panels["map"])
    check_keys(page, panels["steps"])
    check_histogram(panels["histogram"])
    page.mouse.move(5, 500)
    page.wait_for_timeout(500)
    screenshot()


def check_schedule(schedule):
    def says(words, marked):
        schedule.wait(f"root.textContent.startsWith('{words}') &&"
                      f" root.querySelectorAll('.bayesdiff-on').length === {marked}")

    says("takes 1.5 × KSampler: 4 extra calls at 4 of 8 steps", 4)
    assert schedule.tell("root.querySelectorAll('line').length") == 8
    schedule.set("steps", 20)
    says("takes 1.5 × KSampler: 10 extra calls at 5 of 20 steps", 5)
    schedule.set("sampler_name", "heun")  # two calls a step, but for the last
    says("takes 1.26 × KSampler", 5)
    schedule.set("mode", "paper")
    says("the paper has no rule for the sampler heun", 0)
    schedule.set("sampler_name", "euler")
    says("takes 2.5 × KSampler: 30 extra calls at 4 of 20 steps", 4)
    schedule.set("skip_interval", 1)
    says("takes 5.5 × KSampler", 10)
    schedule.set("mode", "free")
    says("takes 1 × KSampler: 20 steps", 0)
    schedule.set("mode", "accurate")
    schedule.set("steps", 8)


def check_viewer(page, viewer):
    """Overlay, scrubber, opacity, next image, value under the pointer."""
    assert viewer.caption().startswith("result: standard deviation of a latent value")
    result = viewer.pixels()
    slide(viewer, "step", 0)
    viewer.wait("/^on entering step 0, sigma 14.6/.test("
                "root.querySelector('.bayesdiff-caption').textContent)")
    assert viewer.pixels() != result
    slide(viewer, "step", 3)
    viewer.wait("/^on entering step 3/.test(root.querySelector('.bayesdiff-caption').textContent)")
    slide(viewer, "step", 99)
    viewer.wait("/^result/.test(root.querySelector('.bayesdiff-caption').textContent)")
    assert viewer.pixels() == result

    slide(viewer, "opacity of the colors", 0)
    viewer.wait("node.widgets.find((w) => w.name === 'opacity').value === 0")
    page.wait_for_timeout(200)
    plain = viewer.pixels()
    assert plain != result
    viewer.set("opacity", 0.6)
    viewer.wait("root.querySelector('[aria-label^=opacity]').value === '0.6'")
    page.wait_for_timeout(200)
    assert viewer.pixels() == result

    viewer.find("[aria-label='next image']").click()
    viewer.wait("root.querySelector('.bayesdiff-count').textContent === '2/4'")
    page.wait_for_timeout(200)
    assert viewer.pixels() != result
    viewer.find("[aria-label='previous image']").click()
    viewer.find("canvas").hover()
    viewer.wait("/ at 1[56], 1[56]$/.test(root.querySelector('.bayesdiff-caption').textContent)")
    value = float(re.match(r"[\d.e-]+", viewer.caption())[0])
    assert 0 < value < 1


def slide(panel, label, value):
    panel.tell("(root.querySelector(`[aria-label='${given[0]}']`).value = given[1],"
               " root.querySelector(`[aria-label='${given[0]}']`)"
               ".dispatchEvent(new Event('input')))", [label, value])


def check_keys(page, viewer):
    nodes = page.evaluate("() => window.app.graph.nodes.length")
    viewer.find("canvas").focus()
    page.keyboard.press("ArrowLeft")
    viewer.wait("root.querySelector('[aria-label=step]').value === '7'")
    page.keyboard.press("ArrowDown")
    viewer.wait("root.querySelector('.bayesdiff-count').textContent === '2/4'")
    page.keyboard.press("Delete")  # is for the panel, not for the node
    assert page.evaluate("() => window.app.graph.nodes.length") == nodes
    page.keyboard.press("Space")
    viewer.wait("/^result/.test(root.querySelector('.bayesdiff-caption').textContent)")


def check_histogram(histogram):
    """The threshold line and the sides follow the widgets; a click fills the list."""
    def line():
        return float(histogram.tell("root.querySelector('.bayesdiff-threshold')"
                                    ".getAttribute('x1')"))

    def kept(count):
        histogram.wait(f"root.querySelectorAll('.bayesdiff-thumbs.bayesdiff-kept button').length"
                       f" === {count}")

    before = line()
    histogram.set("z", -5.0)
    kept(1)
    assert line() < before
    histogram.set("criterion", "drop top percent")
    histogram.set("percent", 50.0)
    kept(2)
    histogram.set("criterion", "picked")
    thumbs = histogram.tell("[...root.querySelectorAll('button')].map((b) => b.title)")
    places = [int(re.search(r"image (\d)", title)[1]) for title in thumbs]
    for place in (places[3], places[1]):
        histogram.find(f"[title^='image {place},']").click()
    wanted = ",".join(map(str, sorted((places[3], places[1]))))
    assert histogram.tell("node.widgets.find((w) => w.name === 'picked').value") == wanted
    kept(2)
    histogram.find(f"[title^='image {places[3]},']").click()
    kept(1)
    histogram.set("groups", "a,b,c")
    histogram.wait("root.querySelector('[data-error]')?.textContent"
                   ".startsWith('groups holds 3 labels for 4 images')")
    histogram.set("groups", "a,b")
    histogram.wait("/2 groups, each with its threshold/.test(root.textContent)")
    kept(2)  # the lowest of the group where none is picked


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_panels_survive_loading_copies_zoom_and_themes(page, panels):
    run(page, panels)
    picture(page)
    viewer, histogram = panels["map"], panels["histogram"]
    saved = page.evaluate(SAVED_VALUES)
    assert not any("bayesdiff" in str(values) or "data:" in str(values) for values in saved)
    page.evaluate(KEEP_OUTPUTS)
    viewer.wait("!root.hasAttribute('data-empty')")
    histogram.wait("root.querySelectorAll('img').length === 4")
    assert page.evaluate(SAVED_VALUES) == saved

    page.evaluate(f"""() => {{
        window.app.canvas.selectItems([{viewer.node}]);
        window.app.canvas.copyToClipboard();
        window.app.canvas.pasteFromClipboard();
    }}""")
    hints = page.evaluate("() => window.app.graph.nodes.filter((n) =>"
                          " n.type === 'BayesDiff_UncertaintyHeatmap').map((n) => n.widgets.find("
                          "(w) => w.name === 'viewer').element.hasAttribute('data-empty'))")
    assert hints == [False, True]  # the copy has not run yet
    page.evaluate("() => window.app.graph.remove(window.app.graph.nodes.at(-1))")

    SCREENSHOTS.mkdir(exist_ok=True)
    for scale in (0.5, 2):
        page.evaluate(f"""(scale) => {{
            const [x, y] = {viewer.node}.pos;
            Object.assign(window.app.canvas.ds,
                          {{ scale, offset: [60 - x, (scale > 1 ? -380 : 60) - y] }});
            window.app.canvas.setDirty(true, true);
        }}""", scale)
        page.wait_for_timeout(700)
        canvas = viewer.tell("root.querySelector('canvas').getBoundingClientRect().width")
        assert 290 * scale < canvas < 320 * scale
        page.screenshot(path=SCREENSHOTS / f"panels_zoom_{scale}.png")
    page.evaluate(LOOK)
    dark = viewer.tell("getComputedStyle(root).color")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.ColorPalette', 'light')")
    page.wait_for_timeout(700)
    page.screenshot(path=SCREENSHOTS / "panels_light.png")
    light = viewer.tell("getComputedStyle(root).color")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.ColorPalette', 'dark')")
    assert light != dark


def picture(page):
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.Minimap.Visible', false)")
    page.wait_for_timeout(1000)
    folder = REPOSITORY / "docs" / "images" if os.environ.get("BAYESDIFF_PICTURES") else SCREENSHOTS
    folder.mkdir(exist_ok=True)
    shot = Image.open(io.BytesIO(page.screenshot(clip={"x": 330, "y": 90, "width": 965,
                                                       "height": 830})))
    shot.convert("RGB").save(folder / "panels.jpg", quality=80, optimize=True)


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_panels_inside_a_subgraph_show_what_their_nodes_told(page, panels):
    page.evaluate(f"""() => {{
        const chosen = new Set([{panels["steps"].node}, {panels["map"].node}]);
        window.app.graph.convertToSubgraph(chosen);
    }}""")
    page.get_by_test_id("queue-button").click()
    inside = ("() => [...window.app.graph.subgraphs.values()][0].nodes.map((n) => n.widgets.find("
              "(w) => w.name === 'viewer').element.querySelector('.bayesdiff-count').textContent)")
    page.wait_for_function(f"() => ({inside})().every((count) => count === '1/4')")
    page.evaluate("() => window.app.canvas.setGraph([...window.app.graph.subgraphs.values()][0])")
    page.wait_for_timeout(1500)
    page.screenshot(path=SCREENSHOTS / "panels_subgraph.png")


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_help_panel_opens_with_its_picture(page, panels, screenshot):
    page.wait_for_timeout(500)
    page.mouse.click(*page.evaluate(f"""() => {{
        const {{ canvas, ds }} = window.app.canvas, [x, y] = {panels["map"].node}.pos;
        const {{ left, top }} = canvas.getBoundingClientRect();
        return [left + (x + ds.offset[0] + 100) * ds.scale,
                top + (y + ds.offset[1] - 15) * ds.scale];
    }}"""))
    page.get_by_test_id("info-button").click()
    page.get_by_role("heading", name="Uncertainty Heatmap").first.wait_for()
    page.wait_for_function("() => [...document.images].some((image) =>"
                           " image.src.includes('/docs/') && image.naturalWidth > 100)")
    screenshot()


CUSTOM = {"BasicScheduler": {"steps": 8, "scheduler": "normal"},
          "BayesDiff_SamplerCustom": {"sigmas": ["BasicScheduler", 0]}}
CUSTOM_PLACES = {"BasicScheduler": [20, 60, 300, 130],
                 "BayesDiff_SamplerCustom": [400, 60, 320, 700]}


@KINDS
def test_the_strip_follows_another_node_by_hand_and_undo(page, nodes_2):
    """What Sampler Custom's steps are is said by the node that gives the sigmas."""
    page.evaluate("(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)",
                  nodes_2)
    add_nodes(page, CUSTOM, CUSTOM_PLACES)
    page.evaluate(LOOK)
    page.mouse.click(1300, 850)  # the front end now knows the graph as it was made
    strip = Panel(page, "SamplerCustom", "schedule")
    strip.wait("/ 8 steps$/.test(root.textContent)")
    type_steps(page, 13, nodes_2)
    page.mouse.click(1300, 850)
    strip.wait("/ 13 steps$/.test(root.textContent)")
    page.keyboard.press("Control+z")
    strip.wait("/ 8 steps$/.test(root.textContent)")
    page.evaluate(f"() => {strip.node}.disconnectInput({strip.node}.findInputSlot('sigmas'))")
    strip.wait("/known when it has run$/.test(root.textContent)")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def type_steps(page, steps, nodes_2):
    if nodes_2:
        field = page.get_by_label("steps").locator("input").first
        field.fill(str(steps))
        field.press("Enter")
        return
    value = page.locator(".graphdialog input")
    for _ in range(5):  # on a busy machine the canvas may take two clicks for two single ones
        page.mouse.dblclick(*page.evaluate(STEPS_WIDGET))
        with contextlib.suppress(TimeoutError):
            value.wait_for(timeout=5000)
            break
    value.fill(str(steps))
    value.press("Enter")


def test_no_timer_of_ours_runs_and_nothing_is_asked_while_nothing_changes(page, server):
    page.add_init_script("""window.timers = [];
        for (const name of ["setInterval", "requestAnimationFrame"]) {
            const own = window[name];
            window[name] = (...given) => {
                if (new Error().stack.includes("BayesDiff")) window.timers.push(name);
                return own.apply(window, given);
            };
        }""")
    reopen(page)
    asked = []
    page.on("request", lambda request: "bayesdiff/" in request.url and asked.append(request.url))
    add_nodes(page, NODES, PLACES)
    Panel(page, "KSampler", "schedule").wait("/ 8 steps$/.test(root.textContent)")
    assert len(asked) == 1
    page.wait_for_timeout(1500)
    page.mouse.click(5, 500)
    assert len(asked) == 1 and page.evaluate("() => window.timers") == []


def reopen(page):
    page.reload()
    # The last workflow comes back, which may be the empty one.
    page.wait_for_function("() => window.LiteGraph?.registered_node_types?.BayesDiff_KSampler &&"
                           " window.app?.extensionManager?.workflow?.activeWorkflow")
    page.wait_for_timeout(500)
    page.evaluate("() => window.app.graph.clear()")


def test_our_files_are_small_and_none_is_asked_from_elsewhere(page, server):
    # The front end alone fills what a page remembers of its requests otherwise.
    page.add_init_script("performance.setResourceTimingBufferSize(5000)")
    reopen(page)
    add_nodes(page, {"BayesDiff_ModelInfo": {}})  # the style comes with the first panel
    page.wait_for_function("() => performance.getEntriesByType('resource').some((entry) =>"
                           " entry.name.endsWith('/panel.css'))")
    loaded = page.evaluate("() => performance.getEntriesByType('resource').map((entry) =>"
                           " [entry.name, entry.decodedBodySize])")
    ours = {name: size for name, size in loaded if "/extensions/ComfyUI-BayesDiff/" in name}
    assert {name.rsplit("/", 1)[-1] for name in ours} == {
        "bayesdiff.js", "histogram.js", "panel.css", "panel.js", "report.js", "schedule.js",
        "viewer.js"}
    assert 0 < sum(ours.values()) < 60_000
    assert all(name.startswith((server.address, "data:", "blob:")) for name, _ in loaded)
