"""The example workflows and the blueprint in the real front end.

With BAYESDIFF_PICTURES=1 the picture of the one without a result goes beside the workflows, where
the front end shows it. Those of the others are results (tools/make_thumbnails.py).
"""

import io
import itertools
import os

import pytest
from PIL import Image

from tests.browser.conftest import SCREENSHOTS
from tests.browser.graphs import DEMO_CLASS, DEMO_SIZE, add_nodes
from tools import workflow
from tools.make_workflows import BLUEPRINTS, EXAMPLES, GRAPHS, REPAIR
from tools.server import ask

FILES = sorted(EXAMPLES.glob("*.json"))
DEMO = [path for path in FILES if "BayesDiff_DemoModel" in path.read_text(encoding="utf-8")]
TITLE = 30  # height of a node's title, above its position
OPEN = "(saved) => window.app.loadGraphData(saved)"
QUEUED = "async () => (await window.app.graphToPrompt()).output"
PLACES = ("() => window.app.graph.nodes.map((n) => ({ title: n.title, pos: [...n.pos],"
          " size: [...n.size], least: [...n.computeSize()] }))")
TOGGLE_FOCUS = "() => window.app.extensionManager.command.execute('Workspace.ToggleFocusMode')"
# The node that a template's screenshot shows.
RESULTS = {"1 See what went wrong": "Uncertainty Heatmap",
           "2 Keep the good ones": "Uncertainty Score Filter",
           "3 Mend the red parts": "Uncertainty Heatmap",
           "4 Variations from a step": "Save variations",
           "5 Check any picture": "Uncertainty Heatmap",
           "7 Flux": "BayesDiff Sampler Custom"}
WITHOUT_RESULT = ("7 Flux",)  # none can be made here
CANVAS_ONLY = """async () => {
    const { command, setting } = window.app.extensionManager;
    await command.execute("Workspace.ToggleFocusMode");
    for (const name of ["Comfy.Minimap.Visible", "Comfy.Graph.CanvasInfo",
                        "Comfy.Graph.CanvasMenu"]) {
        await setting.set(name, false);
    }
}"""
# The node that shows the result, by its title, or the whole graph on the canvas; that a model is
# still to be downloaded is no part of a picture.
FIT = """(title) => {
    const shown = window.app.graph.nodes.find((node) => node.title === title);
    const [x, y, width, height] = shown ? [...shown.pos, ...shown.size]
        : window.app.graph.groups.map((group) => group._bounding).reduce(
        (a, b) => [Math.min(a[0], b[0]), Math.min(a[1], b[1]),
                   Math.max(a[0] + a[2], b[0] + b[2]) - Math.min(a[0], b[0]),
                   Math.max(a[1] + a[3], b[1] + b[3]) - Math.min(a[1], b[1])].map(Number));
    const canvas = window.app.canvas, element = canvas.canvas.getBoundingClientRect();
    const scale = Math.min(element.width / (width + 80), element.height / (height + 80));
    canvas.ds.scale = scale;
    canvas.ds.offset = [element.width / scale / 2 - x - width / 2,
                        element.height / scale / 2 - y - height / 2];
    window.app.graph.nodes.forEach((node) => { node.has_errors = false; });
    canvas.setDirty(true, true);
}"""


# A first pass by the demo model, linked to the blueprint's node by the names of its sockets.
FIRST_PASS = {
    "BayesDiff_DemoModel": {},
    "BayesDiff_DemoPrompt": {"name": DEMO_CLASS},
    "BayesDiff_DemoPrompt 2": {"name": "nothing"},
    "EmptyLatentImage": {"width": DEMO_SIZE, "height": DEMO_SIZE, "batch_size": 2},
    "BayesDiff_KSampler": {
        "steps": 4, "cfg": 2.5, "model": ["BayesDiff_DemoModel", 0],
        "positive": ["BayesDiff_DemoPrompt", 0], "negative": ["BayesDiff_DemoPrompt 2", 0],
        "latent_image": ["EmptyLatentImage", 0]},
    "SaveImage": {"filename_prefix": "blueprint"},
}
PASS_PLACES = {"BayesDiff_DemoModel": [40, 100], "BayesDiff_DemoPrompt": [40, 230],
               "BayesDiff_DemoPrompt 2": [40, 340], "EmptyLatentImage": [40, 450],
               "BayesDiff_KSampler": [400, 100], "SaveImage": [1200, 100]}
LINK_BLUEPRINT = """() => {
    const [repair, model, prompt, nothing, , sampler, save] = window.app.graph.nodes;
    repair.pos = [800, 100];
    const link = (from, slot, name) => from.connect(slot, repair, repair.findInputSlot(name));
    link(model, 0, "model");
    link(prompt, 0, "positive");
    link(nothing, 0, "negative");
    link(model, 1, "vae");
    link(sampler, 0, "latent");
    link(sampler, 2, "trajectory");
    repair.connect(0, save, "images");
    Object.assign(window.app.canvas.ds, { scale: 0.9, offset: [0, 0] });
}"""


def ids(path):
    return path.stem


def test_every_example_that_the_tool_makes_is_there():
    assert [path.stem for path in FILES] == list(GRAPHS) and len(DEMO) == 5


@pytest.mark.parametrize("path", [path for path in FILES if path not in DEMO], ids=ids)
def test_loaders_name_their_models_folder_and_page(path):
    loaders = [node for node in workflow.read(path)["nodes"] if "Loader" in node["type"]]
    assert loaders
    for node in loaders:
        models = node["properties"]["models"]
        assert models and {model["name"] for model in models} <= set(node["widgets_values"])
        for model in models:
            assert model["directory"] and model["url"].endswith(model["name"])


def test_every_example_opens_whole_and_tidy_and_the_demo_ones_run(page, server):
    """One page for all, as opening it takes longest. Our converter is held to the front end's."""
    object_info = ask(server.address, "/object_info")
    page.set_viewport_size({"width": 2400, "height": 1350})  # small nodes are drawn without words
    page.evaluate(CANVAS_ONLY)
    for path in FILES:
        saved = workflow.read(path)
        page.evaluate(OPEN, saved)
        page.wait_for_function(f"() => window.app.graph.nodes.length === {len(saved['nodes'])}")
        missing = page.evaluate("() => window.app.graph.nodes.map((n) => n.type)"
                                ".filter((type) => !window.LiteGraph.registered_node_types[type])")
        assert missing == []
        check_places(page.evaluate(PLACES))
        check_prompt(page.evaluate(QUEUED), workflow.api_prompt(saved, object_info))
        page.keyboard.press("Escape")  # a dialog may offer the models
        page.evaluate(FIT)
        if path in DEMO:
            run(page, server)
        picture(page, path.stem)


def check_prompt(theirs, ours):
    assert theirs.keys() == ours.keys()
    for key, node in ours.items():
        assert theirs[key]["class_type"] == node["class_type"]
        inputs = theirs[key]["inputs"]
        if not node["class_type"].startswith("BayesDiff_"):  # newer front ends send more of some
            inputs = {name: inputs[name] for name in node["inputs"]}
        assert inputs == node["inputs"], node["class_type"]


def check_places(boxes):
    for box in boxes:
        assert box["size"][1] >= box["least"][1], box
    for one, other in itertools.combinations(boxes, 2):
        apart = any(a["pos"][axis] + a["size"][axis] <= b["pos"][axis] - axis * TITLE
                    for a, b in ((one, other), (other, one)) for axis in (0, 1))
        assert apart, (one, other)


def run(page, server):
    """By the button, which a view of the canvas alone does not have; until the server is done."""
    before = ask(server.address, "/history").keys()
    button = page.get_by_test_id("queue-button")
    alone = not button.is_visible()
    if alone:
        page.evaluate(TOGGLE_FOCUS)
    button.click()
    if alone:
        page.evaluate(TOGGLE_FOCUS)
    for _ in range(360):
        history = ask(server.address, "/history")
        if history.keys() - before:
            break
        page.wait_for_timeout(500)
    assert [history[new]["status"]["status_str"] for new in history.keys() - before] == ["success"]
    page.wait_for_function("() => window.app.graph.nodes.filter((n) => n.type === 'SaveImage')"
                           ".every((n) => n.imgs?.length)", timeout=30_000)


def picture(page, name):
    """The canvas as a JPG: in the screenshots, or beside the workflows if asked for."""
    page.evaluate(FIT, RESULTS.get(name))
    page.wait_for_timeout(1500)
    asked = os.environ.get("BAYESDIFF_PICTURES") and name in WITHOUT_RESULT
    folder = EXAMPLES if asked else SCREENSHOTS
    folder.mkdir(exist_ok=True)
    shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    shot.crop((525, 0, 1875, 1350)).resize((720, 720)) \
        .save(folder / f"{name}.jpg", quality=70, optimize=True)


@pytest.mark.parametrize("path", FILES, ids=ids)
def test_picture_beside_the_workflow_is_small(path):
    assert path.with_suffix(".jpg").stat().st_size < 150_000


def test_blueprint_is_offered_and_repairs_a_picture_of_the_demo_model(page, server):
    entries = ask(server.address, "/global_subgraphs").values()
    assert [entry["name"] for entry in entries if "BayesDiff" in entry["info"]["node_pack"]] \
        == [REPAIR]
    page.set_viewport_size({"width": 1600, "height": 900})
    page.evaluate(OPEN, workflow.read(BLUEPRINTS / f"{REPAIR}.json"))
    add_nodes(page, FIRST_PASS, PASS_PLACES)
    page.evaluate(LINK_BLUEPRINT)
    kinds = sorted(node["class_type"] for node in page.evaluate(QUEUED).values())
    assert [kind for kind in kinds if "DemoPrompt" not in kind] == [
        "BayesDiff_DemoModel", "BayesDiff_KSampler", "BayesDiff_RepairWhereUnsure",
        "BayesDiff_UncertaintyHeatmap", "EmptyLatentImage", "SaveImage", "VAEDecode"]
    run(page, server)
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "blueprint.png")
