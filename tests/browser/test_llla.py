"""LLLA Fit on the canvas."""

from tests.browser.graphs import add_nodes, node, widget

NODES = {"UNETLoader": {"unet_name": "tiny_wan.safetensors"}, "LotusConditioning": {},
         "BayesDiff_LLLAFit": {"num_latents": 8, "size": 64, "model": ["UNETLoader", 0],
                               "positive": ["LotusConditioning", 0]}}
PLACES = {"UNETLoader": [60, 150], "LotusConditioning": [60, 400],
          "BayesDiff_LLLAFit": [420, 150, 420, 760]}
FIT = node("BayesDiff_LLLAFit")


def test_fit_runs_from_model_and_prompt_alone_and_shows_text_and_plot(page, screenshot):
    add_nodes(page, NODES, PLACES)
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => {widget('BayesDiff_LLLAFit', 'report')}"
                           ".element.firstChild.value.includes('latents seen: 8')")
    page.wait_for_function(f"() => {FIT}.imgs?.length === 1 && {FIT}.imgs[0].naturalWidth > 0")
    page.wait_for_timeout(500)
    screenshot()


def test_widgets_keep_their_order_and_the_seed_stays_fixed(page):
    add_nodes(page, NODES, PLACES)
    values = page.evaluate("() => window.app.graph.serialize().nodes"
                           ".find((n) => n.type === 'BayesDiff_LLLAFit').widgets_values")
    assert values == ["full", 8, 64, "uniform", "fixed", 1, 1, 0.1, 0, "fixed", 1, 0]
