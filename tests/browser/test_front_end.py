"""The pack in the real front end."""

ADD_NODES = """() => {
    const add = (type, x) => {
        const node = window.LiteGraph.createNode(type);
        node.pos = [x, 200];
        window.app.graph.add(node);
        return node;
    };
    const loader = add("UNETLoader", 100);
    loader.widgets.find((w) => w.name === "unet_name").value = "tiny_sd3.safetensors";
    const info = add("BayesDiff_ModelInfo", 480);
    info.size = [420, 260];
    loader.connect(0, info, 0);
}"""


def test_node_library_lists_the_pack_under_bayesdiff(page, screenshot):
    category = page.evaluate("() => window.LiteGraph.registered_node_types.BayesDiff_ModelInfo"
                             ".category")
    assert category == "bayesdiff"
    page.locator(".node-library-tab-button").click()
    page.get_by_text("bayesdiff", exact=True).click()
    page.get_by_text("BayesDiff Model Info").first.wait_for()
    screenshot()


def test_model_info_runs_from_the_canvas_and_shows_its_report(page, screenshot):
    page.evaluate(ADD_NODES)
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function("""() => window.app.graph.nodes
        .find((n) => n.type === "BayesDiff_ModelInfo")
        .widgets.find((w) => w.name === "report").element.value.includes("supported")""")
    screenshot()


def test_report_is_not_saved_in_the_workflow(page):
    page.evaluate(ADD_NODES)
    saved = page.evaluate("() => window.app.graph.serialize().nodes"
                          ".find((n) => n.type === 'BayesDiff_ModelInfo').widgets_values ?? []")
    assert saved == []
