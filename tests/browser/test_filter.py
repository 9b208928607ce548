"""Score, filter and self-check on the canvas."""

import json

from PIL import Image

from tests.browser.graphs import add_nodes, widget

NODES = {
    "UNETLoader": {"unet_name": "tiny_wan.safetensors"},
    "LotusConditioning": {},
    "EmptyHunyuanLatentVideo": {"width": 48, "height": 32, "length": 1, "batch_size": 6},
    "EmptyImage": {"width": 8, "height": 8, "batch_size": 6, "color": 255},
    "BayesDiff_KSampler": {
        "steps": 4, "model": ["UNETLoader", 0], "positive": ["LotusConditioning", 0],
        "negative": ["LotusConditioning", 0], "latent_image": ["EmptyHunyuanLatentVideo", 0]},
    "BayesDiff_UncertaintyScore": {"score": "trajectory variance", "images": ["EmptyImage", 0],
                                   "trajectory": ["BayesDiff_KSampler", 2]},
    "BayesDiff_UncertaintyScoreFilter": {"scores": ["BayesDiff_UncertaintyScore", 0],
                                         "images": ["BayesDiff_UncertaintyScore", 2],
                                         "latents": ["BayesDiff_KSampler", 0]},
    "BayesDiff_UncertaintySelfCheck": {"scores": ["BayesDiff_UncertaintyScore", 0],
                                       "liked": "1,2", "disliked": "3,4"},
    "SaveImage": {"filename_prefix": "browser_kept",
                  "images": ["BayesDiff_UncertaintyScoreFilter", 0]},
}
PLACES = {"UNETLoader": [20, 60], "LotusConditioning": [20, 200],
          "EmptyHunyuanLatentVideo": [20, 280], "EmptyImage": [20, 480],
          "BayesDiff_KSampler": [270, 20, 260, 700],
          "BayesDiff_UncertaintyScore": [550, 20, 330, 400],
          "BayesDiff_UncertaintyScoreFilter": [900, 20, 440, 840],
          "BayesDiff_UncertaintySelfCheck": [550, 480, 330, 320],
          "SaveImage": [270, 960, 260, 200]}


def said(name):
    return f"{widget(f'BayesDiff_Uncertainty{name}', 'report')}.element.firstChild.value"


def test_reports_show_and_saved_pictures_carry_the_scores(page, screenshot, server):
    add_nodes(page, NODES, PLACES)
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => {said('Score')}.includes('6 images, score: trajectory')")
    page.wait_for_function(f"() => {said('ScoreFilter')}.startsWith('kept ')")
    page.wait_for_function(f"() => {said('SelfCheck')}.includes('AUROC')")
    page.wait_for_function("() => window.app.graph.nodes.find((n) => n.type === 'SaveImage').imgs")
    page.wait_for_timeout(500)
    screenshot()
    assert "will not carry" not in page.evaluate(f"() => {said('Score')}")
    files = sorted((server.base / "output").glob("browser_kept*.png"))
    text = Image.open(files[0]).text
    score, parted = json.loads(text["bayesdiff"]).values()
    assert len(score["scores"]) == 6 and len(parted["kept"]) == len(files)
    assert "nodes" in json.loads(text["workflow"])


def test_widgets_keep_their_order(page):
    add_nodes(page, NODES, PLACES)
    values = page.evaluate(
        "() => Object.fromEntries(window.app.graph.serialize().nodes"
        ".filter((n) => n.type.startsWith('BayesDiff_Uncertainty'))"
        ".map((n) => [n.type.replace('BayesDiff_Uncertainty', ''), n.widgets_values]))")
    assert values == {
        "Score": ["trajectory variance"],
        "ScoreFilter": ["mean + z sigma", 1, 16, 1, 0, False, "", "", "only compare", "",
                        "doubt", False, 600, "keep by criterion", "stop what follows", 0],
        "SelfCheck": ["1,2", "3,4", "", "only check"]}
