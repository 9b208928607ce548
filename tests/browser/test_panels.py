"""What our nodes show inside themselves, in both kinds of nodes.

With BAYESDIFF_PICTURES=1 a picture of them goes to docs/images, for README.md.
"""

import contextlib
import io
import itertools
import os
import re
import uuid

import pytest
from PIL import Image
from playwright.sync_api import TimeoutError

from tests.browser.conftest import SCREENSHOTS
from tests.browser.graphs import (
    DEMO_CLASS,
    DEMO_SIZE,
    EMPTY_PLACE,
    add_nodes,
    known,
    loaded,
    node,
    open_help,
    undo,
    until,
    widget,
)
from tools.places import REPOSITORY

SAMPLING = {"steps": 8, "cfg": 2.5, "mode": "accurate", "check": "off",
            "model": ["BayesDiff_DemoModel", 0],
            "posterior": ["BayesDiff_DemoModel", 2], "positive": ["BayesDiff_DemoPrompt", 0],
            "negative": ["BayesDiff_DemoPrompt 2", 0], "latent_image": ["EmptyLatentImage", 0]}
NODES = {
    "BayesDiff_DemoModel": {},
    "BayesDiff_DemoPrompt": {"name": DEMO_CLASS},
    "BayesDiff_DemoPrompt 2": {"name": "nothing"},
    "EmptyLatentImage": {"width": DEMO_SIZE, "height": DEMO_SIZE, "batch_size": 4},
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
OPEN = "(saved) => window.app.loadGraphData(saved)"
LOOK = "() => Object.assign(window.app.canvas.ds, { scale: 0.9, offset: [60, 80] })"
KEEP_OUTPUTS = """async () => {
    const outputs = { ...window.app.nodeOutputs };  // a graph that is loaded empties its own
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
# Where the kinds of nodes differ less: with BAYESDIFF_LOOKS=1 in both, else in the newer one.
A_KIND = KINDS if os.environ.get("BAYESDIFF_LOOKS") else \
    pytest.mark.parametrize("nodes_2", [True], ids=["nodes 2.0"])


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
        until(self._page, f"((root, node) => {expression})({self.element}, {self.node})")

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
        "gallery": ("UncertaintyScoreFilter", "gallery")}.items()}
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def run(page, panels):
    page.get_by_test_id("queue-button").click()
    for name in ("steps", "map"):
        panels[name].wait("root.querySelector('.bayesdiff-count').textContent === '1/4' &&"
                          " /^Result/.test(root.querySelector('.bayesdiff-caption').textContent)")
    panels["gallery"].wait("root.querySelectorAll('img').length === 4")


@KINDS
def test_panels_before_and_after_a_run(page, panels, nodes_2, screenshot):
    check_schedule(panels["schedule"])
    assert panels["map"].tell("root.querySelector('.bayesdiff-hint').checkVisibility()")
    assert panels["map"].tell("[...root.querySelectorAll('.bayesdiff-body button')]"
                              ".every((b) => b.disabled)")
    run(page, panels)
    panels["schedule"].wait("/^it took 1.5 × KSampler: 4 extra calls at/.test(root.textContent)")
    check_viewer(page, panels["map"])
    check_keys(page, panels["steps"])
    check_gallery(page, panels["gallery"])
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
    schedule.set("check", "auto")
    says("takes 1.3 × KSampler: 20 steps, 6 to check the picture", 0)
    schedule.set("check", "off")
    schedule.set("mode", "accurate")
    schedule.set("steps", 8)


CAPTION = "root.querySelector('.bayesdiff-body .bayesdiff-caption').textContent"


def check_viewer(page, viewer):
    """Overlay, scrubber, opacity, next image, value under the pointer."""
    viewer.wait(f"/^Result: what the model doubts .red = doubtful, clear = sure/.test({CAPTION})")
    result = viewer.pixels()
    slide(viewer, "step", 0)
    viewer.wait(f"/^After 0 of 8 steps: /.test({CAPTION})")
    assert viewer.pixels() != result
    slide(viewer, "step", 3)
    viewer.wait(f"/^After 3 of 8 steps: /.test({CAPTION})")
    slide(viewer, "step", 99)
    viewer.wait(f"/^Result/.test({CAPTION})")
    assert viewer.pixels() == result

    slide(viewer, "opacity of the colors", 0)
    viewer.wait("node.widgets.find((w) => w.name === 'opacity').value === 0")
    plain = viewer.pixels()
    assert plain != result
    viewer.set("opacity", 0.8)
    viewer.wait("root.querySelector('[aria-label^=opacity]').value === '0.8'")
    assert viewer.pixels() == result
    check_peek(page, viewer, plain, result)

    viewer.find("[aria-label='next image']").click()
    viewer.wait(f"root.querySelector('.bayesdiff-count').textContent === '2/4'"
                f" && root.querySelector('canvas').toDataURL() !== '{result}'")
    viewer.find("[aria-label='previous image']").click()
    viewer.wait(f"root.querySelector('canvas').toDataURL() === '{result}'")
    viewer.find("canvas").hover()
    near = "|".join(str(DEMO_SIZE // 2 - off) for off in (0, 1))
    viewer.wait(f"/ at ({near}), ({near}): higher than in \\d+ % of the picture$/.test({CAPTION})")
    value = float(re.match(r"[\d.e-]+", viewer.tell(CAPTION))[0])
    assert 0 < value < 1


def check_peek(page, viewer, plain, result):
    """Where the model was sure nothing lies over the picture; while it is held down, nowhere."""
    untouched = viewer.tell("""(async () => {
        const pixels = async (url) => {
            const image = new Image();
            image.src = url;
            await image.decode();
            const canvas = document.createElement("canvas");
            Object.assign(canvas, { width: image.width, height: image.height });
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return context.getImageData(0, 0, image.width, image.height).data;
        };
        const [one, two] = await Promise.all(given.map(pixels));
        let same = 0;
        for (let at = 0; at < one.length; at += 4) {
            same += [0, 1, 2].every((channel) => one[at + channel] === two[at + channel]);
        }
        return (4 * same) / one.length;
    })()""", [plain, result])
    assert 0.1 < untouched < 0.95
    viewer.find("canvas").hover()
    page.mouse.down()
    viewer.wait(f"root.querySelector('canvas').toDataURL() === '{plain}'")
    page.mouse.up()
    viewer.wait(f"root.querySelector('canvas').toDataURL() === '{result}'")


def slide(panel, label, value):
    panel.tell("(root.querySelector(`[aria-label='${given[0]}']`).value = given[1],"
               " root.querySelector(`[aria-label='${given[0]}']`)"
               ".dispatchEvent(new Event('input')))", [label, value])


def check_keys(page, viewer):
    viewer.find("canvas").focus()
    page.keyboard.press("ArrowLeft")
    viewer.wait("root.querySelector('[aria-label=step]').value === '7'")
    page.keyboard.press("ArrowDown")
    viewer.wait("root.querySelector('.bayesdiff-count').textContent === '2/4'")
    page.keyboard.press("Space")
    viewer.wait(f"/^Result/.test({CAPTION})")


@A_KIND
def test_double_click_enlarges_the_picture_with_keys_and_zoom(page, panels, nodes_2, screenshot):
    run(page, panels)
    viewer = panels["map"]
    viewer.find("canvas").dblclick()
    viewer.wait("root.querySelector('dialog').open")
    width = viewer.tell("root.querySelector('canvas').getBoundingClientRect().width")
    assert width > 900
    viewer.wait("document.activeElement === root.querySelector('canvas')")
    page.keyboard.press("ArrowDown")
    viewer.wait("root.querySelector('.bayesdiff-count').textContent === '2/4'")
    page.keyboard.press("ArrowLeft")
    viewer.wait(f"/^After 7 of 8 steps/.test({CAPTION})")
    viewer.find("canvas").hover()
    page.mouse.wheel(0, -300)
    viewer.wait(f"root.querySelector('canvas').getBoundingClientRect().width > {1.2 * width}")
    slider = "const { left, top } = s.getBoundingClientRect(), p = [left + 5, top + 5]"
    assert viewer.tell(f"[...root.querySelectorAll('dialog input')].filter((s) => {{ {slider};"
                       " return s.checkVisibility() && document.elementFromPoint(...p) !== s; })"
                       ".length") == 0  # the picture covers none
    screenshot()
    with page.expect_download() as saved:
        viewer.find("[aria-label=Save]").click()
    assert saved.value.suggested_filename == "bayesdiff_2.png"
    page.keyboard.press("Escape")
    viewer.wait("!root.querySelector('dialog').open && root.querySelector('canvas')"
                ".getBoundingClientRect().width < 400")


def waiting_graph(page, batch=4):
    """A small graph whose filter waits."""
    nodes = {name: NODES[name] for name in ("BayesDiff_DemoModel", "BayesDiff_DemoPrompt",
                                            "BayesDiff_DemoPrompt 2", "EmptyLatentImage")}
    nodes["BayesDiff_KSampler"] = {**SAMPLING, "mode": "free", "seed": next(SEEDS), "steps": 3}
    nodes["VAEDecode"] = NODES["VAEDecode"]
    nodes["BayesDiff_UncertaintyScoreFilter"] = {
        **NODES["BayesDiff_UncertaintyScoreFilter"], "criterion": "keep n", "keep": 1,
        "wait_for_choice": True}
    nodes["PreviewImage"] = {"images": ["BayesDiff_UncertaintyScoreFilter", 0]}
    add_nodes(page, nodes, PLACES)
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 0.8, offset: [-500, 80] })")
    return Panel(page, "UncertaintyScoreFilter", "gallery")


@KINDS
def test_a_run_waits_for_the_choice_and_goes_on_with_it(page, nodes_2, screenshot):
    page.evaluate("(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)",
                  nodes_2)
    gallery = waiting_graph(page)
    page.get_by_test_id("queue-button").click()
    gallery.wait("root.hasAttribute('data-waiting') && root.querySelectorAll('img').length === 4")
    screenshot()
    pressed = gallery.tell("[...root.querySelectorAll('.bayesdiff-card')].map((b) =>"
                           " b.ariaPressed)")
    assert pressed == ["true", "false", "false", "false"]  # what the criterion would keep
    cards = gallery.tell("[...root.querySelectorAll('.bayesdiff-card')].map((b) => b.title)")
    for title in cards[2:]:
        gallery.find(f"[title^='{title[:8]}']").click()
    gallery.find(f"[title^='{cards[0][:8]}']").click()
    gallery.wait("/Keep these 2/.test(root.querySelector('.bayesdiff-waiting').textContent)")
    assert gallery.tell("node.widgets.find((w) => w.name === 'criterion').value") == "keep n"
    gallery.find(".bayesdiff-waiting button").click()
    gallery.wait("!root.hasAttribute('data-waiting')")
    wanted = sorted(int(title[6]) for title in cards[2:])
    until(page, f"{widget('BayesDiff_UncertaintyScoreFilter', 'report')}.element.firstChild.value"
                f".startsWith('kept 2 of 4: {wanted[0]}, {wanted[1]}\\n')")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")


def test_another_tab_can_choose_and_both_are_told(page, server):
    gallery = waiting_graph(page)
    saved = {**page.evaluate("() => window.app.graph.serialize()"), "id": str(uuid.uuid4())}
    page.evaluate(OPEN, saved)  # the same workflow in both
    other = page.context.new_page()
    other.set_default_timeout(120_000)
    other.goto(server.address)
    loaded(other)
    page.bring_to_front()
    page.get_by_test_id("queue-button").click()
    gallery.wait("root.hasAttribute('data-waiting')")
    other.evaluate(OPEN, saved)
    there = Panel(other, "UncertaintyScoreFilter", "gallery")
    there.wait("root.hasAttribute('data-waiting')")  # it came later, and asked
    there.tell("[...root.querySelectorAll('.bayesdiff-waiting button')][1].click()")
    for each in (gallery, there):
        each.wait("!root.hasAttribute('data-waiting')")
    until(page, f"/left to the criterion/.test("
                f"{widget('BayesDiff_UncertaintyScoreFilter', 'report')}.element.firstChild.value)")
    other.close()


SEED_GRAPH = {
    **{name: NODES[name] for name in ("BayesDiff_DemoModel", "BayesDiff_DemoPrompt",
                                      "BayesDiff_DemoPrompt 2")},
    "EmptyLatentImage": {"width": DEMO_SIZE, "height": DEMO_SIZE, "batch_size": 1},
    "BayesDiff_BestOfN": {
        "steps": 8, "cfg": 2.5, "n": 5, "keep": 2, "scheduler": "normal",
        "model": ["BayesDiff_DemoModel", 0], "positive": ["BayesDiff_DemoPrompt", 0],
        "negative": ["BayesDiff_DemoPrompt 2", 0], "latent_image": ["EmptyLatentImage", 0]},
    "PreviewAny": {"source": ["BayesDiff_BestOfN", 4]}}


def test_best_of_n_shows_every_seed_and_grays_the_dropped_ones(page, screenshot):
    add_nodes(page, SEED_GRAPH, {"BayesDiff_BestOfN": [500, 60, 330, 900]})
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 0.8, offset: [60, 80] })")
    page.evaluate(f"(seed) => {{ {widget('BayesDiff_BestOfN', 'seed')}.value = seed; }}",
                  10_000 + next(SEEDS))
    gallery = Panel(page, "BestOfN", "gallery")
    page.get_by_test_id("queue-button").click()
    gallery.wait("root.querySelectorAll('img').length === 5")
    sides = gallery.tell("[...root.querySelectorAll('.bayesdiff-cards')].map((side) =>"
                         " [...side.querySelectorAll('.bayesdiff-card')].map((b) => b.title))")
    assert [len(side) for side in sides] == [2, 3]
    assert all(title.endswith("finished") for title in sides[0])
    assert all(re.search(r"dropped after \d steps$", title) for title in sides[1])
    for side in sides:
        scores = [float(re.search(r"score ([\d.e-]+)", title)[1]) for title in side]
        assert scores == sorted(scores)
    screenshot()


SCALE = "window.app.canvas.ds.scale"
OFFSET = "window.app.canvas.ds.offset[0]"


@KINDS
def test_wheel_middle_drag_shortcuts_and_menu_pass_through_a_panel(page, panels, nodes_2):
    viewer = panels["map"]
    viewer.find(".bayesdiff-hint").hover()
    box = viewer.find(".bayesdiff-hint").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def look_again():
        page.evaluate(LOOK)
        left = "root.querySelector('.bayesdiff-hint').getBoundingClientRect().left"
        viewer.wait(f"Math.abs({left} - {box['x']}) < 1")  # the panel follows the canvas later

    before = page.evaluate(f"() => {SCALE}")
    page.mouse.wheel(0, -100)
    until(page, f"{SCALE} > {before}")
    look_again()
    before = page.evaluate(f"() => {OFFSET}")
    page.mouse.move(*middle)
    page.mouse.down(button="middle")
    page.mouse.move(middle[0] + 60, middle[1] + 10, steps=5)
    page.mouse.up(button="middle")
    until(page, f"{OFFSET} > {before} + 40")
    look_again()
    page.mouse.click(*middle)
    asked = []
    page.on("request", lambda request: request.url.endswith("/prompt") and asked.append(request))
    page.keyboard.press("Control+Enter")
    panels["map"].wait("!root.hasAttribute('data-empty')")
    assert asked
    page.mouse.click(*middle, button="right")
    page.get_by_text(re.compile("^(Clone|Duplicate)$")).first.wait_for()


@A_KIND
def test_buttons_are_large_enough_to_hit(page, panels, nodes_2):
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 1 })")
    run(page, panels)
    for panel in panels.values():
        small = panel.tell("[...root.querySelectorAll('button')].filter((b) =>"
                           " b.offsetParent && (b.offsetWidth < 24 || b.offsetHeight < 24))"
                           ".map((b) => b.outerHTML)")
        assert small == []


def check_gallery(page, gallery):
    """Sorted pictures with their scores; the threshold line and the sides follow the widgets; a
    click picks and sets the criterion."""
    def line():
        return float(gallery.tell("root.querySelector('.bayesdiff-threshold').getAttribute('x1')"))

    def kept(count):
        gallery.wait(f"root.querySelector('.bayesdiff-cards').children.length === {count + 1}")

    def values():
        return gallery.tell("['criterion', 'picked'].map((name) =>"
                            " node.widgets.find((w) => w.name === name).value)")

    def click(place, **options):
        gallery.find(f"[title^='Image {place},']").click(**options)

    scores = gallery.tell("[...root.querySelectorAll('.bayesdiff-score')].map((s) =>"
                          " +s.textContent)")
    assert len(scores) == 4 and scores == sorted(scores)
    before = line()
    gallery.set("z", -5.0)
    kept(1)
    assert line() < before
    gallery.set("criterion", "drop top percent")
    gallery.set("percent", 50.0)
    kept(2)
    titles = gallery.tell("[...root.querySelectorAll('.bayesdiff-card')].map((b) => b.title)")
    places = [int(re.search(r"Image (\d)", title)[1]) for title in titles]
    assert sorted(places) == [1, 2, 3, 4]
    click(places[0], click_count=2)  # enlarges, and leaves no trace
    gallery.wait("root.querySelector('dialog').open")
    gallery.wait("document.activeElement === root.querySelector('.bayesdiff-stage canvas')")
    title = "root.querySelector('.bayesdiff-large .bayesdiff-caption').textContent"
    gallery.wait(f"{title}.startsWith('Image {places[0]},')")
    page.keyboard.press("ArrowRight")
    gallery.wait(f"{title}.startsWith('Image {places[1]},')")
    gallery.find("[aria-label=close]").click()
    gallery.wait("!root.querySelector('dialog').open")
    assert values() == ["drop top percent", ""]
    click(places[3])
    assert values() == ["picked", str(places[3])]
    kept(1)
    gallery.wait(f"root.querySelector('[title^=\"Image {places[3]},\"]').ariaPressed === 'true'")
    click(places[1])
    assert values()[1] == ",".join(map(str, sorted((places[3], places[1]))))
    kept(2)
    click(places[3])
    kept(1)
    gallery.wait("/kept as picked/.test(root.textContent)"
                 " && !root.querySelector('.bayesdiff-threshold')")
    gallery.set("groups", "a,b,c")
    gallery.wait("root.querySelector('[data-error]')?.textContent"
                 ".startsWith('groups holds 3 labels for 4 images')")
    gallery.set("groups", "a,b")
    kept(2)  # the lowest of the group where none is picked
    gallery.set("criterion", "drop top percent")
    gallery.wait("/2 groups, each with its threshold/.test(root.textContent)"
                 " && root.querySelectorAll('.bayesdiff-threshold').length === 2")


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_panels_survive_loading_copies_zoom_and_themes(page, panels):
    run(page, panels)
    picture(page)
    viewer, gallery = panels["map"], panels["gallery"]
    saved = page.evaluate(SAVED_VALUES)
    assert not any("bayesdiff" in str(values) or "data:" in str(values) for values in saved)
    page.evaluate(KEEP_OUTPUTS)
    viewer.wait("!root.hasAttribute('data-empty')")
    gallery.wait("root.querySelectorAll('img').length === 4")
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
        width = "root.querySelector('canvas').getBoundingClientRect().width"
        viewer.wait(f"{width} > {290 * scale} && {width} < {320 * scale}")
        page.screenshot(path=SCREENSHOTS / f"panels_zoom_{scale}.png")
    page.evaluate(LOOK)
    dark = viewer.tell("getComputedStyle(root).color")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.ColorPalette', 'light')")
    viewer.wait(f"getComputedStyle(root).color !== '{dark}'")
    page.screenshot(path=SCREENSHOTS / "panels_light.png")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.ColorPalette', 'dark')")


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
    open_help(page, "BayesDiff_UncertaintyHeatmap")
    page.get_by_role("heading", name="Uncertainty Heatmap").first.wait_for()
    page.wait_for_function("() => [...document.images].some((image) =>"
                           " image.src.includes('/docs/') && image.naturalWidth > 100)")
    screenshot()


CUSTOM = {"BasicScheduler": {"steps": 8, "scheduler": "normal"},
          "BayesDiff_SamplerCustom": {"sigmas": ["BasicScheduler", 0]}}
CUSTOM_PLACES = {"BasicScheduler": [20, 60, 300, 130],
                 "BayesDiff_SamplerCustom": [400, 60, 320, 700]}


@A_KIND
def test_the_strip_follows_another_node_by_hand_and_undo(page, nodes_2):
    """What Sampler Custom's steps are is said by the node that gives the sigmas."""
    page.evaluate("(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)",
                  nodes_2)
    add_nodes(page, CUSTOM, CUSTOM_PLACES)
    page.evaluate(LOOK)
    strip = Panel(page, "SamplerCustom", "schedule")
    strip.wait("/ 8 steps$/.test(root.textContent)")
    known(page)
    type_steps(page, 13, nodes_2)
    page.mouse.click(*EMPTY_PLACE)
    strip.wait("/ 13 steps, 6 to check the picture$/.test(root.textContent)")
    undo(page)
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
    loaded(page)  # the last workflow comes back, which may be the empty one
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
        "bayesdiff.js", "gallery.js", "lightbox.js", "mask.js", "panel.css", "panel.js", "quiet.js",
        "repair.js", "replace.js", "report.js", "schedule.js", "viewer.js", "words.js"}
    assert 0 < sum(ours.values()) < 90_000
    assert all(name.startswith((server.address, "data:", "blob:")) for name, _ in loaded)


@A_KIND
def test_a_waiting_run_is_stopped_from_its_gallery_and_goes_on_when_its_time_is_over(page, nodes_2):
    page.evaluate("(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)",
                  nodes_2)
    gallery = waiting_graph(page)
    page.get_by_test_id("queue-button").click()
    gallery.wait("root.hasAttribute('data-waiting')")
    page.evaluate("() => { window.ended = []; for (const end of ['interrupted', 'success'])"
                  " window.app.api.addEventListener(`execution_${end}`, () =>"
                  " window.ended.push(end)); }")
    gallery.find("[title='Stop the run']").click()
    until(page, "window.ended[0] === 'interrupted'")
    gallery.wait("!root.hasAttribute('data-waiting')")
    gallery.set("wait_seconds", 1)
    gallery.set("no_answer", "keep all")
    page.get_by_test_id("queue-button").click()
    until(page, "window.ended[1] === 'success'")
    until(page, f"{widget('BayesDiff_UncertaintyScoreFilter', 'report')}.element.firstChild.value"
                ".includes('all are kept: nobody chose in time')")
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")
