"""The pack in the real front end."""

from tests.browser.graphs import add_nodes, widget

NODES = {"UNETLoader": {"unet_name": "tiny_sd3.safetensors"},
         "BayesDiff_ModelInfo": {"model": ["UNETLoader", 0]}}
PLACES = {"UNETLoader": [100, 200], "BayesDiff_ModelInfo": [480, 200, 420, 260]}


def test_node_library_lists_the_pack_under_bayesdiff(page, screenshot):
    category = page.evaluate("() => window.LiteGraph.registered_node_types.BayesDiff_ModelInfo"
                             ".category")
    assert category == "bayesdiff"
    page.evaluate("() => window.app.extensionManager.command.execute("
                  "'Workspace.ToggleSidebarTab.node-library')")
    page.get_by_text("bayesdiff", exact=True).click()
    page.get_by_text("BayesDiff Model Info").first.wait_for()
    screenshot()


def test_model_info_runs_from_the_canvas_and_shows_its_report(page, screenshot):
    add_nodes(page, NODES, PLACES)
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => {widget('BayesDiff_ModelInfo', 'report')}"
                           ".element.firstChild.value.includes('supported')")
    screenshot()


def test_report_is_not_saved_in_the_workflow(page):
    add_nodes(page, NODES, PLACES)
    saved = page.evaluate("() => window.app.graph.serialize().nodes"
                          ".find((n) => n.type === 'BayesDiff_ModelInfo').widgets_values ?? []")
    assert saved == []
