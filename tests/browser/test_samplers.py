"""Sampler and heat map on the canvas."""

import pytest

ADD_NODES = """(posterior) => {
    const add = (type, x, y) => {
        const node = window.LiteGraph.createNode(type);
        node.pos = [x, y];
        window.app.graph.add(node);
        return node;
    };
    const link = (from, slot, to, name) => from.connect(slot, to, to.findInputSlot(name));
    const set = (node, name, value) => { node.widgets.find((w) => w.name === name).value = value; };
    const loader = add("UNETLoader", 20, 80);
    set(loader, "unet_name", "tiny_wan.safetensors");
    const prompt = add("LotusConditioning", 20, 220);
    const empty = add("EmptyHunyuanLatentVideo", 20, 320);
    set(empty, "width", 128);
    set(empty, "height", 128);
    set(empty, "length", 1);
    set(empty, "batch_size", 2);
    const sampler = add("BayesDiff_KSampler", 370, 80);
    set(sampler, "steps", 5);
    link(loader, 0, sampler, "model");
    link(prompt, 0, sampler, "positive");
    link(prompt, 0, sampler, "negative");
    link(empty, 0, sampler, "latent_image");
    if (posterior) {
        const fit = add("BayesDiff_LLLAFit", 20, 520);
        set(fit, "number", 8);
        set(fit, "size", 64);
        link(loader, 0, fit, "model");
        link(prompt, 0, fit, "positive");
        link(fit, 0, sampler, "posterior");
        set(sampler, "mode", "accurate");
    }
    const heatmap = add("BayesDiff_UncertaintyHeatmap", 800, 80);
    heatmap.size = [420, 760];
    link(sampler, 2, heatmap, "trajectory");
}"""
NODE = "window.app.graph.nodes.find((n) => n.type === '{}')"


@pytest.mark.parametrize("posterior", [False, True])
def test_sampler_says_its_cost_and_the_heat_map_shows_in_the_node(page, screenshot, posterior):
    page.evaluate(ADD_NODES, posterior)
    page.evaluate("() => window.app.queuePrompt(0)")
    heatmap, sampler = (NODE.format(f"BayesDiff_{name}")
                        for name in ("UncertaintyHeatmap", "KSampler"))
    page.wait_for_function(f"() => {heatmap}.widgets.find((w) => w.name === 'viewer').element"
                           ".querySelector('.bayesdiff-count').textContent === '1/2'")
    said = page.evaluate(f"() => {sampler}.widgets.find((w) => w.name === 'report').element.value")
    assert said.startswith("mode accurate: 5 calls and 2 extra ones" if posterior
                           else "mode free: 5 calls and 0 extra ones")
    page.wait_for_timeout(500)
    screenshot()


def test_ksamplers_widgets_come_first_and_in_its_order(page):
    page.evaluate(ADD_NODES, False)
    names = page.evaluate(f"() => {NODE.format('BayesDiff_KSampler')}.widgets.map((w) => w.name)")
    assert names[:7] == ["seed", "control_after_generate", "steps", "cfg", "sampler_name",
                         "scheduler", "denoise"]
    assert names[7:14] == ["mode", "nodes", "skip_interval", "deviations", "meaning",
                           "uncertainty_seed", "keep_steps"]
