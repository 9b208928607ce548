"""LLLA Fit on the canvas."""

ADD_NODES = """() => {
    const add = (type, x) => {
        const node = window.LiteGraph.createNode(type);
        node.pos = [x, 150];
        window.app.graph.add(node);
        return node;
    };
    const loader = add("UNETLoader", 60);
    loader.widgets.find((w) => w.name === "unet_name").value = "tiny_wan.safetensors";
    const prompt = add("LotusConditioning", 60);
    prompt.pos = [60, 400];
    const fit = add("BayesDiff_LLLAFit", 420);
    fit.size = [420, 760];
    const set = (name, value) => { fit.widgets.find((w) => w.name === name).value = value; };
    set("number", 8);
    set("size", 64);
    loader.connect(0, fit, fit.findInputSlot("model"));
    prompt.connect(0, fit, fit.findInputSlot("positive"));
}"""
FIT = "window.app.graph.nodes.find((n) => n.type === 'BayesDiff_LLLAFit')"


def test_fit_runs_from_model_and_prompt_alone_and_shows_text_and_plot(page, screenshot):
    page.evaluate(ADD_NODES)
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => {FIT}.widgets.find((w) => w.name === 'report')"
                           ".element.value.includes('latents seen: 8')")
    page.wait_for_function(f"() => {FIT}.imgs?.length === 1 && {FIT}.imgs[0].naturalWidth > 0")
    page.wait_for_timeout(500)
    screenshot()


def test_widgets_keep_their_order_and_the_seed_stays_fixed(page):
    page.evaluate(ADD_NODES)
    values = page.evaluate("() => window.app.graph.serialize().nodes"
                           ".find((n) => n.type === 'BayesDiff_LLLAFit').widgets_values")
    assert values == ["full", 8, "uniform", "fixed", 1, 1, 0.1, 0, "fixed", 64]
