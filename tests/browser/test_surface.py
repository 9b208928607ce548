"""From a stock graph to ours and back, repair, errors where they are seen, quiet nodes."""

import contextlib
import itertools

import pytest
from playwright.sync_api import TimeoutError

from tests.browser.graphs import add_nodes, node, until, widget
from tests.browser.test_panels import KINDS, LOOK, NODES, PLACES, SAMPLING, Panel, panels, run

__all__ = ["panels"]  # a fixture
SEEDS = itertools.count(50_000)
STOCK = {
    **{name: NODES[name] for name in ("BayesDiff_DemoModel", "BayesDiff_DemoPrompt",
                                      "BayesDiff_DemoPrompt 2", "EmptyLatentImage")},
    "KSampler": {"seed": 7, "steps": 3, "cfg": 2.5, "sampler_name": "dpmpp_2m", "denoise": 0.9,
                 "model": ["BayesDiff_DemoModel", 0], "positive": ["BayesDiff_DemoPrompt", 0],
                 "negative": ["BayesDiff_DemoPrompt 2", 0],
                 "latent_image": ["EmptyLatentImage", 0]},
    "VAEDecode": {"samples": ["KSampler", 0], "vae": ["BayesDiff_DemoModel", 1]},
    "PreviewImage": {"images": ["VAEDecode", 0]}}
STOCK_PLACES = {**PLACES, "KSampler": [500, 60], "VAEDecode": [20, 560], "PreviewImage": [900, 500]}
QUEUED = "async () => (await window.app.graphToPrompt()).output"
TYPES = "() => window.app.graph.nodes.map((n) => n.type).sort()"
MIDDLE_OF = """(type) => {
    const { canvas, ds } = window.app.canvas;
    const { nodes } = window.app.canvas.graph;
    const [x, y] = nodes.find((n) => n.type === type).pos;
    const { left, top } = canvas.getBoundingClientRect();
    return [left + (x + ds.offset[0] + 60) * ds.scale, top + (y + ds.offset[1] - 12) * ds.scale];
}"""


@pytest.fixture
def kind_of_nodes(page, nodes_2):
    setting = "(on) => window.app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)"
    page.evaluate(setting, nodes_2)
    yield
    page.evaluate(setting, False)


def choose(page, kind, words):
    """From the menu of a node's title."""
    item = page.get_by_text(words, exact=True).first
    for _ in range(6):  # a busy machine may not have drawn the node where it is to be
        page.wait_for_timeout(500)
        page.mouse.click(1300, 850)  # closes what is open
        page.wait_for_timeout(500)
        page.mouse.click(*page.evaluate(MIDDLE_OF, kind), button="right")
        with contextlib.suppress(TimeoutError):
            item.wait_for(timeout=6000)
            break
    item.click()


def chosen(page, kind, words):
    """The same item, without the mouse."""
    page.evaluate("""([kind, words]) => {
        const node = window.app.canvas.graph.nodes.find((n) => n.type === kind);
        window.app.collectNodeMenuItems(node).find((item) => item?.content === words).callback();
    }""", [kind, words])


def inputs_of(page, kind):
    return next(each["inputs"] for each in page.evaluate(QUEUED).values()
                if each["class_type"] == kind)


@KINDS
def test_a_stock_sampler_is_replaced_with_values_and_links_and_back(page, nodes_2, kind_of_nodes):
    add_nodes(page, STOCK, STOCK_PLACES)
    page.evaluate(LOOK)
    page.mouse.click(1300, 850)  # the front end now knows the graph as it was made
    before, types = page.evaluate(QUEUED), page.evaluate(TYPES)
    choose(page, "KSampler", "Replace with BayesDiff KSampler")
    until(page, f"{node('BayesDiff_KSampler')} && !{node('KSampler')}")
    theirs, ours = inputs_of_kind(before, "KSampler"), inputs_of(page, "BayesDiff_KSampler")
    assert {name: ours[name] for name in theirs} == theirs
    assert inputs_of(page, "VAEDecode")["samples"][1] == 0
    page.mouse.click(1300, 850)
    page.keyboard.press("Control+z")  # one step
    until(page, f"{node('KSampler')} && !{node('BayesDiff_KSampler')}")
    assert page.evaluate(TYPES) == types
    assert inputs_of(page, "KSampler") == theirs

    chosen(page, "KSampler", "Replace with BayesDiff KSampler")
    until(page, f"{node('BayesDiff_KSampler')} && !{node('KSampler')}")
    chosen(page, "BayesDiff_KSampler", "Replace with KSampler")
    until(page, f"{node('KSampler')} && !{node('BayesDiff_KSampler')}")
    assert inputs_of(page, "KSampler") == theirs
    assert len(page.evaluate(QUEUED)) == len(before)


def inputs_of_kind(prompt, kind):
    return next(each["inputs"] for each in prompt.values() if each["class_type"] == kind)


CUSTOM = {
    **{name: STOCK[name] for name in ("BayesDiff_DemoModel", "BayesDiff_DemoPrompt",
                                      "BayesDiff_DemoPrompt 2", "EmptyLatentImage")},
    "RandomNoise": {"noise_seed": 3},
    "CFGGuider": {"model": ["BayesDiff_DemoModel", 0], "cfg": 2.5,
                  "positive": ["BayesDiff_DemoPrompt", 0],
                  "negative": ["BayesDiff_DemoPrompt 2", 0]},
    "KSamplerSelect": {"sampler_name": "dpmpp_2m"},
    "BasicScheduler": {"model": ["BayesDiff_DemoModel", 0], "steps": 4},
    "SamplerCustomAdvanced": {
        "noise": ["RandomNoise", 0], "guider": ["CFGGuider", 0], "sampler": ["KSamplerSelect", 0],
        "sigmas": ["BasicScheduler", 0], "latent_image": ["EmptyLatentImage", 0]},
    "VAEDecode": {"samples": ["SamplerCustomAdvanced", 1], "vae": ["BayesDiff_DemoModel", 1]},
    "PreviewImage": {"images": ["VAEDecode", 0]}}


def test_the_custom_sampler_is_replaced_and_says_what_differs(page):
    add_nodes(page, CUSTOM)
    page.evaluate(f"""() => {{
        const [x, y] = {node('SamplerCustomAdvanced')}.pos;
        Object.assign(window.app.canvas.ds, {{ scale: 0.9, offset: [300 - x, 200 - y] }});
    }}""")
    theirs = inputs_of(page, "SamplerCustomAdvanced")
    chosen(page, "SamplerCustomAdvanced", "Replace with BayesDiff Sampler Custom")
    until(page, f"{node('BayesDiff_SamplerCustom')} && !{node('SamplerCustomAdvanced')}")
    ours = inputs_of(page, "BayesDiff_SamplerCustom")
    assert {name: ours[name] for name in theirs} == theirs
    assert inputs_of(page, "VAEDecode")["samples"][1] == 0
    page.get_by_text("What was linked to denoised_output").wait_for()


def test_links_at_the_edge_of_a_subgraph_are_kept(page):
    add_nodes(page, STOCK, STOCK_PLACES)
    page.evaluate(f"""() => {{
        window.app.graph.convertToSubgraph(new Set([{node('KSampler')}]));
        const inside = [...window.app.graph.subgraphs.values()][0];
        window.app.canvas.setGraph(inside);
        Object.assign(window.app.canvas.ds, {{ scale: 0.9, offset: [
            400 - inside.nodes[0].pos[0], 200 - inside.nodes[0].pos[1]] }});
    }}""")
    before = inputs_of(page, "KSampler")
    chosen(page, "KSampler", "Replace with BayesDiff KSampler")
    until(page, "window.app.canvas.graph.nodes.map((n) => n.type).join() === 'BayesDiff_KSampler'")
    ours = inputs_of(page, "BayesDiff_KSampler")
    assert {name: ours[name] for name in before} == before
    assert inputs_of(page, "VAEDecode")["samples"][1] == 0


@KINDS
def test_the_repair_button_adds_the_blueprint_wired_and_one_run_shows_before_and_after(
        page, panels, nodes_2, screenshot):
    run(page, panels)
    panels["map"].find(".bayesdiff-repair").click()
    repair = "window.app.graph.nodes.find((n) => n.subgraph)"
    until(page, f"{repair} && {node('ImageCompare')}")
    assert page.evaluate(f"() => {repair}.inputs.filter((i) => !i.widget && i.link == null)") == []
    prompt = page.evaluate(QUEUED)
    again = next(each for each in prompt.values()
                 if each["class_type"] == "BayesDiff_RepairWhereUnsure")
    first = inputs_of(page, "BayesDiff_KSampler")
    assert {name: again["inputs"][name] for name in ("steps", "cfg", "sampler_name", "model",
                                                     "positive", "negative")} == \
        {name: first[name] for name in ("steps", "cfg", "sampler_name", "model", "positive",
                                        "negative")}
    count = page.evaluate("() => window.app.graph.nodes.length")
    panels["steps"].find(".bayesdiff-repair").click()  # the same sampler's: it is there already
    page.wait_for_timeout(500)
    assert page.evaluate("() => window.app.graph.nodes.length") == count
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 0.5, offset: [0, 100] })")
    page.get_by_test_id("queue-button").click()
    compared = f"window.app.nodeOutputs[{node('ImageCompare')}.id]"
    until(page, f"{compared}.a_images.length && {compared}.b_images.length")
    page.wait_for_timeout(1000)
    screenshot()


@KINDS
def test_what_would_fail_is_said_before_the_run_and_an_error_says_its_sentence_first(
        page, nodes_2, kind_of_nodes, screenshot):
    sampler = {**SAMPLING, "seed": next(SEEDS), "mode": "light", "steps": 8, "keep_steps": 3}
    sampler.pop("posterior")
    heat = {**NODES["BayesDiff_UncertaintyHeatmap"], "step": 3}
    add_nodes(page, {**{name: NODES[name] for name in list(NODES)[:4]},
                     "BayesDiff_KSampler": sampler, "VAEDecode": NODES["VAEDecode"],
                     "BayesDiff_UncertaintyHeatmap": heat}, PLACES)
    page.evaluate(LOOK)
    strip, steps, viewer = (Panel(page, *of) for of in (
        ("KSampler", "schedule"), ("KSampler", "viewer"), ("UncertaintyHeatmap", "viewer")))
    strip.wait("root.querySelector('[data-error]')?.textContent"
               ".startsWith('mode light needs a posterior, and none is connected')")
    strip.set("mode", "free")
    strip.wait("/^takes 1 . KSampler/.test(root.textContent)")
    page.mouse.click(1300, 850)  # what another node's widget is, is told with the next click
    viewer.wait("root.textContent.startsWith("
                "'Step 3 will not be there: the sampler keeps 0, 4, 8.')")
    page.get_by_test_id("queue-button").click()
    words = "Step 3 is not in this trajectory, which keeps [0, 4, 8]"
    page.get_by_text(words).first.wait_for()  # the toast
    viewer.wait("root.querySelector(':scope > .bayesdiff-error').textContent"
                f".startsWith('{words}')")
    screenshot()
    viewer.set("step", 4)
    viewer.wait("root.querySelector('.bayesdiff-body .bayesdiff-error').textContent === ''")
    page.evaluate("() => window.app.queuePrompt(0)")
    viewer.wait("!root.hasAttribute('data-empty') && root.querySelector("
                "':scope > .bayesdiff-error').textContent === ''")
    assert steps.tell("root.querySelector(':scope > .bayesdiff-error').textContent") == ""


VISIBLE = """(type) => window.app.graph.nodes.find((n) => n.type === type).widgets
    .filter((w) => !w.element && !w.hidden).map((w) => w.name)"""
FIRST = ["seed", "control_after_generate", "steps", "cfg", "sampler_name", "scheduler", "denoise",
         "mode", "check"]


def test_widgets_that_do_nothing_are_hidden_and_keep_their_places(page):
    add_nodes(page, {"KSampler": {}, "BayesDiff_KSampler": {},
                     "BayesDiff_UncertaintyScoreFilter": {}})
    panel = Panel(page, "KSampler", "viewer")
    assert page.evaluate(VISIBLE, "BayesDiff_KSampler") == FIRST
    saved = page.evaluate("() => window.app.graph.serialize().nodes.map((n) =>"
                          " n.widgets_values.length)")
    heights = page.evaluate("() => window.app.graph.nodes.map((n) => n.computeSize()[1])")
    assert heights[1] < heights[0] + 330 + 66 + 90 + 100  # picture, strip, report and their gaps
    page.evaluate(f"() => {{ {panel.node}.properties.bayesdiff_advanced = true; }}")
    panel.set("mode", "free")
    until(page, f"({VISIBLE})('BayesDiff_KSampler').includes('keep_steps')")
    assert page.evaluate(VISIBLE, "BayesDiff_KSampler") == [*FIRST[:-1], "keep_steps",
                                                               "check"]
    panel.set("mode", "paper")
    until(page, f"({VISIBLE})('BayesDiff_KSampler').includes('mc_samples')")
    gallery = Panel(page, "UncertaintyScoreFilter", "gallery")
    assert page.evaluate(VISIBLE, "BayesDiff_UncertaintyScoreFilter") == [
        "criterion", "z", "wait_for_choice"]
    gallery.set("criterion", "keep n")
    until(page, f"({VISIBLE})('BayesDiff_UncertaintyScoreFilter').join()"
                " === 'criterion,keep,wait_for_choice'")
    assert page.evaluate("() => window.app.graph.serialize().nodes.map((n) =>"
                         " n.widgets_values.length)") == saved


@pytest.mark.parametrize("nodes_2", [True], ids=["nodes 2.0"])
def test_widgets_that_do_nothing_are_hidden_in_nodes_2_too(page, nodes_2, kind_of_nodes):
    add_nodes(page, {"BayesDiff_UncertaintyScoreFilter": {}},
              {"BayesDiff_UncertaintyScoreFilter": [200, 60]})
    page.evaluate(LOOK)
    gallery = Panel(page, "UncertaintyScoreFilter", "gallery")
    page.get_by_label("z", exact=True).first.wait_for()
    assert page.get_by_label("percent", exact=True).count() == 0
    gallery.set("criterion", "drop top percent")
    page.get_by_label("percent", exact=True).first.wait_for()
    page.get_by_label("z", exact=True).first.wait_for(state="detached")


def test_advanced_inputs_unfold_from_the_menu_of_a_classic_node(page):
    add_nodes(page, {"BayesDiff_UncertaintyHeatmap": {}},
              {"BayesDiff_UncertaintyHeatmap": [300, 60]})
    page.evaluate(LOOK)
    kind = "BayesDiff_UncertaintyHeatmap"
    assert page.evaluate(VISIBLE, kind) == ["color_map", "opacity", "mask_threshold"]
    chosen(page, kind, "Show advanced inputs")
    until(page, f"({VISIBLE})('{kind}').includes('clip_percentile')")
    chosen(page, kind, "Hide advanced inputs")
    until(page, f"({VISIBLE})('{kind}').length === 3")


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_results_of_an_earlier_run_are_dimmed_during_the_next(page, panels):
    run(page, panels)
    seen = """(root) => { window.dimmed = 0; new MutationObserver(() => {
        window.dimmed += root.hasAttribute("data-stale");
    }).observe(root, { attributes: true }); }"""
    panels["map"].tell(f"({seen})(root)")
    panels["map"].set("opacity", 0.5)
    page.evaluate(f"(seed) => {{ {widget('BayesDiff_KSampler', 'seed')}.value = seed; }}",
                  next(SEEDS))
    page.get_by_test_id("queue-button").click()
    until(page, "window.dimmed > 0")
    panels["map"].wait("!root.hasAttribute('data-stale')")
