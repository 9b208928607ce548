"""From a stock graph to ours and back, repair, errors where they are seen, quiet nodes."""

import contextlib
import io
import itertools

import pytest
from PIL import Image
from playwright.sync_api import TimeoutError

from tests.browser.graphs import (
    EMPTY_PLACE,
    TITLE_OF,
    add_nodes,
    known,
    node,
    open_help,
    undo,
    until,
    widget,
)
from tests.browser.test_panels import (
    A_KIND,
    KINDS,
    LOOK,
    NODES,
    PLACES,
    SAMPLING,
    Panel,
    panels,
    run,
)
from tools.server import ask

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
        page.mouse.click(*EMPTY_PLACE)  # closes what is open
        page.wait_for_timeout(500)
        page.mouse.click(*page.evaluate(TITLE_OF, kind), button="right")
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
    known(page)
    before, types = page.evaluate(QUEUED), page.evaluate(TYPES)
    choose(page, "KSampler", "Replace with BayesDiff KSampler")
    until(page, f"{node('BayesDiff_KSampler')} && !{node('KSampler')}")
    theirs, ours = inputs_of_kind(before, "KSampler"), inputs_of(page, "BayesDiff_KSampler")
    assert {name: ours[name] for name in theirs} == theirs
    assert inputs_of(page, "VAEDecode")["samples"][1] == 0
    undo(page)  # one step
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
    page.get_by_text("What was linked to denoised_output").last.wait_for()


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
    panels["map"].set("mask_threshold", 90)
    panels["map"].set("grow", 3)
    panels["map"].find(".bayesdiff-repair button").click()
    repair = "window.app.graph.nodes.find((n) => n.subgraph)"
    shown = node("ImageCompare" if nodes_2 else "PreviewImage")  # the stock slider: 2.0 only
    until(page, f"{repair} && {shown}")
    assert page.evaluate(f"() => {repair}.inputs.filter((input, slot) => !input.widget &&"
                         f" !{repair}.isInputConnected(slot))") == []
    prompt = page.evaluate(QUEUED)
    again = next(each for each in prompt.values()
                 if each["class_type"] == "BayesDiff_RepairWhereUnsure")
    first = inputs_of(page, "BayesDiff_KSampler")
    assert {name: again["inputs"][name] for name in ("steps", "cfg", "sampler_name", "model",
                                                     "positive", "negative")} == \
        {name: first[name] for name in ("steps", "cfg", "sampler_name", "model", "positive",
                                        "negative")}
    maps = [each["inputs"] for each in prompt.values()
            if each["class_type"] == "BayesDiff_UncertaintyHeatmap"]
    assert [(each["mask_threshold"], each["grow"]) for each in maps] == [(90, 3)] * 2
    count = page.evaluate("() => window.app.graph.nodes.length")
    panels["steps"].find(".bayesdiff-repair button").click()  # of the same sampler: it is there
    page.wait_for_timeout(500)
    assert page.evaluate("() => window.app.graph.nodes.length") == count
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 0.5, offset: [0, 100] })")
    page.evaluate(f"() => {{ {repair}.widgets.find((w) => w.name === 'tries').value = 1; }}")
    page.get_by_test_id("queue-button").click()
    compared = f"window.app.nodeOutputs[{shown}.id]"
    until(page, f"{compared}.a_images.length && {compared}.b_images.length" if nodes_2
          else f"{compared}.images.length", timeout=180_000)
    check_slider(panels["map"])
    page.get_by_text("0 active").wait_for()  # by then the sampler, from the cache, was told again
    for name in ("steps", "map"):
        panels[name].find("[aria-label='next image']").click()
        panels[name].wait("root.querySelector('.bayesdiff-count').textContent === '2/4'"
                          f" && {SPLIT}.checkVisibility()")
    page.wait_for_timeout(1000)
    screenshot()


SPLIT = "root.querySelector(\"[aria-label^='between the repaired']\")"


def check_slider(viewer):
    """From the picture before, with its map, to the repaired one, which is another."""
    viewer.wait(f"{SPLIT}.checkVisibility()")

    def at(split):
        viewer.tell(f"({SPLIT}.value = given, {SPLIT}.dispatchEvent(new Event('input')))", split)
        return viewer.pixels()

    before, half, repaired = at(0), at(0.5), at(1)
    assert len({before, half, repaired}) == 3
    at(0.5)


INSIDE = "window.app.graph.nodes.find((n) => n.subgraph).subgraph.nodes"
PAINTED = (f"{INSIDE}.find((n) => n.type === 'BayesDiff_UncertaintyHeatmap')"
           ".widgets.find((w) => w.name === 'painted_mask')")


TRACKER = "window.app.extensionManager.workflow.activeWorkflow.changeTracker"
STATES = f"() => {TRACKER}.undoQueue.map((state) => JSON.stringify(state))"
UNDONE = f"""() => {TRACKER}.undoQueue.map(({{ nodes, definitions }}) =>
    [...nodes, ...definitions?.subgraphs?.flatMap((each) => each.nodes) ?? []]
        .filter(({{ type }}) => type === "BayesDiff_UncertaintyHeatmap")
        .map(({{ widgets_values }}) => widgets_values.at(-1)))"""


def told_mask(page, heat):
    """What a heat map told of its first picture's mask: whether it was painted, and its share."""
    file, painted = page.evaluate(
        "(id) => { const { mask } = window.app.nodeOutputs[id].bayesdiff[0].images[0];"
        " return [mask.file, mask.painted]; }", heat)
    query = "&".join(f"{key}={value}" for key, value in file.items())
    body = page.evaluate("async (query) => [...new Uint8Array(await (await fetch('/api/view?'"
                         " + query)).arrayBuffer())]", query)
    alpha = Image.open(io.BytesIO(bytes(body))).getchannel("A")
    return painted, sum(alpha.histogram()[:128]) / (alpha.width * alpha.height)


@KINDS
def test_the_mask_opens_in_the_mask_editor_and_comes_back(page, panels, nodes_2, screenshot):
    page.evaluate(f"() => {{ {widget('BayesDiff_KSampler', 'control_after_generate')}.value"
                  " = 'fixed'; }")
    run(page, panels)
    heat = page.evaluate(f"() => {node('BayesDiff_UncertaintyHeatmap')}.id")
    painted, share = told_mask(page, heat)
    assert not painted and 0 < share < 0.1
    panels["map"].find(".bayesdiff-repair button").click()
    until(page, f"{PAINTED}.value === ''")
    count = page.evaluate("() => window.app.graph.nodes.length")

    panels["map"].find("[title^='Opens the mask']").click()
    page.get_by_role("button", name="Invert").click()
    page.wait_for_timeout(1500)
    screenshot()
    page.get_by_role("button", name="Save").last.click()
    mine = widget("BayesDiff_UncertaintyHeatmap", "painted_mask")
    until(page, f"{PAINTED}.value.endsWith('[input]') && {mine}.value === {PAINTED}.value")
    until(page, f"window.app.graph.nodes.length === {count}")  # no helper is left
    assert page.evaluate(UNDONE)[-1] == ["", ""]  # one step to undo: the clicks there are none
    assert not any("LoadImage" in state for state in page.evaluate(STATES))
    page.get_by_test_id("queue-button").click()
    until(page, f"window.app.nodeOutputs[{heat}].bayesdiff[0].images[0].mask.painted")
    painted, inverted = told_mask(page, heat)
    assert painted and abs(inverted - (1 - share)) < 0.02

    panels["map"].find("[title^='Opens the mask']").click()  # and nothing is saved
    page.get_by_role("button", name="Invert").wait_for()  # else it is the queue's Cancel
    page.get_by_role("button", name="Cancel").last.click()
    until(page, f"window.app.graph.nodes.length === {count}")
    panels["map"].find("[title^='Back to the mask']").click()
    until(page, f"{mine}.value === '' && {PAINTED}.value === ''")


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_a_painted_mask_is_for_its_picture_only(page, panels):
    run(page, panels)
    heat = page.evaluate(f"() => {node('BayesDiff_UncertaintyHeatmap')}.id")
    key = page.evaluate(f"() => window.app.nodeOutputs[{heat}].bayesdiff[0].images[0].mask.key")
    panels["map"].set("painted_mask", f"{key}=nowhere.png")
    page.evaluate(f"(seed) => {{ {widget('BayesDiff_KSampler', 'seed')}.value = seed; }}",
                  next(SEEDS))
    page.get_by_test_id("queue-button").click()
    until(page, f"window.app.nodeOutputs[{heat}].bayesdiff[0].images[0].mask.key !== '{key}'")
    assert told_mask(page, heat)[0] is False


@A_KIND
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
    page.mouse.click(*EMPTY_PLACE)  # what another node's widget is, is told with the next click
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


OUTPUTS = ("(type) => window.app.graph.nodes.find((n) => n.type === type).outputs"
           ".map((o) => o.name)")
FILTER = "BayesDiff_UncertaintyScoreFilter"


@A_KIND
def test_the_filter_shows_the_outputs_that_have_something_to_give_and_old_graphs_keep_theirs(
        page, nodes_2, kind_of_nodes, screenshot):
    add_nodes(page, {"EmptyLatentImage": {}, FILTER: {}, "PreviewAny": {}},
              {"EmptyLatentImage": [20, 60], FILTER: [400, 60], "PreviewAny": [900, 60]})
    page.evaluate(LOOK)
    kind = f"({OUTPUTS})('{FILTER}')"
    until(page, f"{kind}.join() === 'kept_images,rejected_images'")
    page.evaluate(f"() => {node('EmptyLatentImage')}.connect(0, {node(FILTER)}, 'latents')")
    until(page, f"{kind}.join() === 'kept_images,rejected_images,kept_latents,rejected_latents'")
    chosen(page, FILTER, "Show all outputs")
    until(page, f"{kind}.length === 11")
    if nodes_2:
        page.get_by_text("sorted_scores").wait_for()
    page.evaluate(f"() => {node(FILTER)}.connect(7, {node('PreviewAny')}, 0)")
    old = page.evaluate("() => window.app.graph.serialize()")  # as before outputs were hidden
    chosen(page, FILTER, "Hide outputs that are not used")
    until(page, f"{kind}.at(-1) === 'rejected_indices'")  # it is linked
    if nodes_2:
        page.get_by_text("sorted_scores").wait_for(state="detached")
    linked = inputs_of(page, "PreviewAny")["source"]
    assert linked[1] == 7
    screenshot()
    page.evaluate(f"() => {node(FILTER)}.disconnectOutput(7)")
    until(page, f"{kind}.at(-1) === 'rejected_latents'")
    for each in old["nodes"]:
        each["properties"].pop("bayesdiff_outputs", None)
    page.evaluate("(saved) => window.app.loadGraphData(saved)", old)
    until(page, f"{kind}.length === 8 && {kind}.at(-1) === 'rejected_indices'")
    assert inputs_of(page, "PreviewAny")["source"] == linked


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


@pytest.mark.parametrize("word, found", [
    ("hands", "Repair Where Unsure"), ("artifacts", "Uncertainty Heatmap"),
    ("unsure", "BayesDiff KSampler"), ("overlay", "Uncertainty Heatmap"),
    ("detailer", "Repair Where Unsure"), ("inpaint", "Repair Where Unsure"),
    ("sort", "Uncertainty Score Filter")])
def test_a_node_is_found_by_the_word_for_what_it_is_good_for(server, word, found):
    """By the words that the server gives the front end, whose search goes by them."""
    nodes = ask(server.address, "/object_info").values()
    ours = {info["display_name"]: info for info in nodes if info["name"].startswith("BayesDiff_")}
    info = ours[found]
    said = [info["display_name"], *info["search_aliases"]]
    assert any(word in each.lower() for each in said), said


def test_the_search_of_the_front_end_finds_our_nodes(page, screenshot):
    for word, found in (("detailer", "Repair Where Unsure"), ("overlay", "Uncertainty Heatmap"),
                        ("sort images", "Uncertainty Score Filter")):
        page.evaluate("() => window.app.extensionManager.command.execute("
                      "'Workspace.SearchBox.Toggle')")
        until(page, "document.activeElement.matches('input')")
        page.keyboard.type(word)
        page.get_by_text(found).first.wait_for()
        screenshot()
        page.keyboard.press("Escape")
        until(page, "!document.activeElement.matches('input')")


@pytest.mark.parametrize("nodes_2", [False], ids=["canvas"])
def test_tables_of_help_pages_fit_the_panel(page, nodes_2, kind_of_nodes, screenshot):
    kinds = ["KSampler", "UncertaintyHeatmap", "UncertaintyScore", "UncertaintyScoreFilter",
             "BestOfN", "RepairWhereUnsure", "UncertaintySelfCheck", "ModelInfo", "LLLAFit"]
    for kind in kinds:
        page.evaluate("() => window.app.graph.clear()")
        add_nodes(page, {f"BayesDiff_{kind}": {}}, {f"BayesDiff_{kind}": [500, 60]})
        page.evaluate(LOOK)
        open_help(page, f"BayesDiff_{kind}")
        until(page, "[...document.images].some((image) => image.src.includes("
                    f"'BayesDiff_{kind}.jpg') && image.naturalWidth > 100)")
        wide = page.evaluate("""() => [...document.querySelectorAll("table")]
            .filter((table) => table.scrollWidth > table.parentElement.clientWidth + 1)
            .map((table) => [table.scrollWidth, table.parentElement.clientWidth,
                             table.textContent.slice(0, 60)])""")
        assert wide == [], kind
        screenshot()
