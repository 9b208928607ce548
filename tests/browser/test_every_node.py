"""All nodes of the pack in one graph, run, each looked at.

With BAYESDIFF_PICTURES=1 their pictures go beside the help pages, which show them.
"""

import io
import os

from PIL import Image

from tests.browser.conftest import SCREENSHOTS
from tests.browser.graphs import DEMO_CLASS, DEMO_SIZE, add_nodes
from tools.places import REPOSITORY
from tools.server import ask

DOCS = REPOSITORY / "web" / "docs"
# type -> widgets, and links as [node, output]; in an order in which all but Load can be made
NODES = {
    "BayesDiff_DemoModel": {},
    "BayesDiff_DemoPrompt": {"name": DEMO_CLASS},
    "ConditioningZeroOut": {"conditioning": ["BayesDiff_DemoPrompt", 0]},
    "EmptyLatentImage": {"width": DEMO_SIZE, "height": DEMO_SIZE, "batch_size": 4},
    "BayesDiff_ModelInfo": {"model": ["BayesDiff_DemoModel", 0]},
    "BayesDiff_LLLAFit": {"model": ["BayesDiff_DemoModel", 0], "num_latents": 16, "size": DEMO_SIZE,
                          "structure": "diagonal", "positive": ["BayesDiff_DemoPrompt", 0]},
    "BayesDiff_LLLASave": {"posterior": ["BayesDiff_LLLAFit", 0], "filename_prefix": "pictures"},
    "BayesDiff_LLLALoad": {},
    "BayesDiff_KSampler": {
        "seed": 3, "steps": 20, "cfg": 2.5, "mode": "accurate", "scheduler": "normal",
        "model": ["BayesDiff_DemoModel", 0], "posterior": ["BayesDiff_DemoModel", 2],
        "positive": ["BayesDiff_DemoPrompt", 0], "negative": ["ConditioningZeroOut", 0],
        "latent_image": ["EmptyLatentImage", 0]},
    "VAEDecode": {"samples": ["BayesDiff_KSampler", 0], "vae": ["BayesDiff_DemoModel", 1]},
    "BayesDiff_UncertaintyHeatmap": {"trajectory": ["BayesDiff_KSampler", 2],
                                     "image": ["VAEDecode", 0], "opacity": 0.45},
    "BayesDiff_UncertaintyScore": {"trajectory": ["BayesDiff_KSampler", 2],
                                   "images": ["VAEDecode", 0]},
    "BayesDiff_ScoreAnImage": {"model": ["BayesDiff_DemoModel", 0],
                               "positive": ["BayesDiff_DemoPrompt", 0],
                               "image": ["VAEDecode", 0], "vae": ["BayesDiff_DemoModel", 1]},
    "BayesDiff_UncertaintyScoreFilter": {"scores": ["BayesDiff_UncertaintyScore", 0],
                                         "images": ["VAEDecode", 0]},
    "BayesDiff_UncertaintySelfCheck": {"scores": ["BayesDiff_UncertaintyScore", 0],
                                       "liked": "1,2", "disliked": "3,4"},
    "EmptyLatentImage 2": {"width": DEMO_SIZE, "height": DEMO_SIZE},
    "BayesDiff_BestOfN": {
        "seed": 3, "steps": 10, "cfg": 2.5, "n": 4, "scheduler": "normal",
        "model": ["BayesDiff_DemoModel", 0],
        "positive": ["BayesDiff_DemoPrompt", 0], "negative": ["ConditioningZeroOut", 0],
        "latent_image": ["EmptyLatentImage 2", 0]},
    "BayesDiff_RepairWhereUnsure": {
        "seed": 3, "steps": 8, "cfg": 2.5, "tries": 2, "denoise": 0.7, "scheduler": "normal",
        "model": ["BayesDiff_DemoModel", 0], "mask": ["BayesDiff_UncertaintyHeatmap", 2],
        "positive": ["BayesDiff_DemoPrompt", 0], "negative": ["ConditioningZeroOut", 0],
        "latent_image": ["BayesDiff_KSampler", 0]},
    "BayesDiff_ResampleFromTimestep": {"trajectory": ["BayesDiff_KSampler", 2]},
    "BayesDiff_TrajectoryAtStep": {"trajectory": ["BayesDiff_KSampler", 2]},
    "BayesDiff_TrajectorySave": {"trajectory": ["BayesDiff_KSampler", 2]},
    "BayesDiff_TrajectoryLoad": {},
    "RandomNoise": {"noise_seed": 3},
    "CFGGuider": {"model": ["BayesDiff_DemoModel", 0], "cfg": 2.5,
                  "positive": ["BayesDiff_DemoPrompt", 0],
                  "negative": ["ConditioningZeroOut", 0]},
    "KSamplerSelect": {"sampler_name": "dpmpp_2m"},
    "BasicScheduler": {"model": ["BayesDiff_DemoModel", 0], "steps": 20},
    "BayesDiff_SamplerCustom": {
        "noise": ["RandomNoise", 0], "guider": ["CFGGuider", 0], "sampler": ["KSamplerSelect", 0],
        "sigmas": ["BasicScheduler", 0], "latent_image": ["EmptyLatentImage", 0], "mode": "light",
        "posterior": ["BayesDiff_DemoModel", 2]},
    "PreviewAny": {"source": ["BayesDiff_BestOfN", 4]},
    "PreviewAny 2": {"source": ["BayesDiff_ResampleFromTimestep", 1]},
    "PreviewAny 3": {"source": ["BayesDiff_SamplerCustom", 4]},
    "PreviewAny 4": {"source": ["BayesDiff_TrajectoryAtStep", 2]},
    "PreviewAny 5": {"source": ["BayesDiff_RepairWhereUnsure", 2]},
}
LOADING = {"BayesDiff_LLLALoad": "BayesDiff_LLLASave",
           "BayesDiff_TrajectoryLoad": "BayesDiff_TrajectorySave"}  # what they load
FIX_SEEDS = """() => window.app.graph.nodes.flatMap((n) => n.widgets ?? [])
    .filter((w) => w.name === "control_after_generate").forEach((w) => { w.value = "fixed"; })"""
BOX = """(type) => {
    const node = window.app.graph.nodes.find((n) => n.type === type);
    node.setSize([320, Math.max(node.computeSize()[1], node.imgs ? node.size[1] + 200 : 0)]);
    const { ds } = window.app.canvas;
    ds.scale = 1;
    ds.offset = [100 - node.pos[0], 120 - node.pos[1]];
    window.app.canvas.deselectAll();
    window.app.canvas.setDirty(true, true);
    return [node.size[0], node.size[1]];
}"""
REPORTS = """() => Object.fromEntries(window.app.graph.nodes
    .filter((n) => n.widgets?.some((w) => w.name === "report"))
    .map((n) => [n.type, n.widgets.find((w) => w.name === "report").element.firstChild.value]))"""


def test_every_node_runs_and_shows_what_it_told(page, server):
    ours = {name for name in ask(server.address, "/object_info") if name.startswith("BayesDiff_")}
    assert ours == {name for name in NODES if name.startswith("BayesDiff_")}
    page.set_viewport_size({"width": 900, "height": 1250})
    before = {name: values for name, values in NODES.items() if name not in LOADING}
    add_nodes(page, before)
    page.evaluate(FIX_SEEDS)
    run(page)
    told = page.evaluate(REPORTS)
    page.evaluate("() => window.app.refreshComboInNodes()")
    add_nodes(page, {load: {"file": told[save].removeprefix("saved as ")}
                     for load, save in LOADING.items()})
    run(page)
    page.evaluate("() => window.app.extensionManager.setting.set('Comfy.Minimap.Visible', false)")
    for name in sorted(ours):
        picture(page, name)


def run(page):
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => Object.values(({REPORTS})()).every((text) => text)",
                           timeout=120_000)
    page.get_by_text("0 active").wait_for()


def picture(page, name):
    page.evaluate(BOX, name)
    page.wait_for_timeout(700)  # a picture in the node is there when it has been drawn once
    width, height = page.evaluate(BOX, name)
    page.wait_for_timeout(700)
    clip = {"x": 90, "y": 80, "width": width + 20, "height": height + 50}
    folder = DOCS / "images" if os.environ.get("BAYESDIFF_PICTURES") else SCREENSHOTS
    folder.mkdir(exist_ok=True)
    shot = Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")
    shot.save(folder / f"{name}.jpg", quality=80, optimize=True)


def test_every_help_page_shows_the_picture_of_its_node():
    for page in DOCS.glob("*.md"):
        assert f"(images/{page.stem}.jpg)" in page.read_text(encoding="utf-8"), page.name
        assert (DOCS / "images" / f"{page.stem}.jpg").stat().st_size < 100_000
