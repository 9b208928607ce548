"""Score, filter and self-check on the canvas."""

import json

from PIL import Image

ADD_NODES = """() => {
    const add = (type, pos, size, values = {}) => {
        const node = window.LiteGraph.createNode(type);
        node.pos = pos;
        window.app.graph.add(node);
        if (size) node.size = size;
        for (const [name, value] of Object.entries(values)) {
            node.widgets.find((w) => w.name === name).value = value;
        }
        return node;
    };
    const link = (from, slot, to, name) => from.connect(slot, to, to.findInputSlot(name));
    const loader = add("UNETLoader", [20, 60], null, { unet_name: "tiny_wan.safetensors" });
    const prompt = add("LotusConditioning", [20, 200]);
    const empty = add("EmptyHunyuanLatentVideo", [20, 280], null,
                      { width: 48, height: 32, length: 1, batch_size: 6 });
    const pictures = add("EmptyImage", [20, 480], null,
                         { width: 8, height: 8, batch_size: 6, color: 255 });
    const sampler = add("BayesDiff_KSampler", [270, 20], [260, 700], { steps: 4 });
    const score = add("BayesDiff_UncertaintyScore", [550, 20], [330, 400],
                      { score: "trajectory variance" });
    const filter = add("BayesDiff_UncertaintyScoreFilter", [900, 20], [440, 840]);
    const check = add("BayesDiff_UncertaintySelfCheck", [550, 480], [330, 320],
                      { liked: "0,1", disliked: "2,3" });
    const save = add("SaveImage", [270, 760], [260, 200], { filename_prefix: "browser_kept" });
    link(loader, 0, sampler, "model");
    link(prompt, 0, sampler, "positive");
    link(prompt, 0, sampler, "negative");
    link(empty, 0, sampler, "latent_image");
    link(sampler, 2, score, "trajectory");
    link(pictures, 0, score, "images");
    link(score, 0, filter, "scores");
    link(score, 2, filter, "images");
    link(sampler, 0, filter, "latents");
    link(score, 0, check, "scores");
    link(filter, 0, save, "images");
}"""


def node(name):
    return f"window.app.graph.nodes.find((n) => n.type === 'BayesDiff_Uncertainty{name}')"


def said(name):
    return f"{node(name)}.widgets.find((w) => w.name === 'report').element.value"


def test_reports_show_and_saved_pictures_carry_the_scores(page, screenshot, server):
    page.evaluate(ADD_NODES)
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
    page.evaluate(ADD_NODES)
    values = page.evaluate(
        "() => Object.fromEntries(window.app.graph.serialize().nodes"
        ".filter((n) => n.type.startsWith('BayesDiff_Uncertainty'))"
        ".map((n) => [n.type.replace('BayesDiff_Uncertainty', ''), n.widgets_values]))")
    assert values == {
        "Score": ["trajectory variance"],
        "ScoreFilter": ["mean + z sigma", 1, 16, 1, 0, False, "", "", "only compare", ""],
        "SelfCheck": ["0,1", "2,3"]}
