"""Sampler and heat map on the canvas."""

import pytest

from tests.browser.graphs import add_nodes, node, until, widget

NODES = {
    "UNETLoader": {"unet_name": "tiny_wan.safetensors"},
    "LotusConditioning": {},
    "EmptyHunyuanLatentVideo": {"width": 128, "height": 128, "length": 1, "batch_size": 2},
    "BayesDiff_KSampler": {
        "steps": 5, "model": ["UNETLoader", 0], "positive": ["LotusConditioning", 0],
        "negative": ["LotusConditioning", 0], "latent_image": ["EmptyHunyuanLatentVideo", 0]},
    "BayesDiff_UncertaintyHeatmap": {"trajectory": ["BayesDiff_KSampler", 2]},
}
PLACES = {"UNETLoader": [20, 80], "LotusConditioning": [20, 220],
          "EmptyHunyuanLatentVideo": [20, 320], "BayesDiff_LLLAFit": [20, 520],
          "BayesDiff_KSampler": [370, 80], "BayesDiff_UncertaintyHeatmap": [800, 80, 420, 760]}


FIT = {"num_latents": 8, "size": 64, "model": ["UNETLoader", 0], "positive": ["LotusConditioning",
                                                                              0]}


def with_posterior(nodes):
    loader, prompt, *rest = nodes.items()
    sampler = {**nodes["BayesDiff_KSampler"], "posterior": ["BayesDiff_LLLAFit", 0],
               "mode": "accurate"}
    return dict([loader, prompt, ("BayesDiff_LLLAFit", FIT), *rest]) | {
        "BayesDiff_KSampler": sampler}


@pytest.mark.parametrize("posterior", [False, True])
def test_sampler_says_its_cost_and_the_heat_map_shows_in_the_node(page, screenshot, posterior):
    add_nodes(page, with_posterior(NODES) if posterior else NODES, PLACES)
    page.evaluate("() => window.app.queuePrompt(0)")
    page.wait_for_function(f"() => {widget('BayesDiff_UncertaintyHeatmap', 'viewer')}.element"
                           ".querySelector('.bayesdiff-count').textContent === '1/2'")
    said = page.evaluate(f"() => {widget('BayesDiff_KSampler', 'report')}.element.firstChild.value")
    assert said.startswith("mode accurate: 5 network calls, 2 extra ones" if posterior
                           else "mode free (no posterior is connected): 5 network calls, 0")
    page.wait_for_timeout(500)
    screenshot()


def test_the_panel_fills_where_the_run_comes_from_the_cache(page):
    """As after the page was loaded anew: the host runs nothing, and tells again what it told."""
    told = f"{widget('BayesDiff_KSampler', 'report')}.element.firstChild.value"
    fixed = {"control_after_generate": "fixed", "seed": 12, **NODES["BayesDiff_KSampler"]}
    page.evaluate("""() => window.app.api.addEventListener("execution_cached",
        ({ detail }) => { window.cached = detail.nodes; })""")
    for again in (False, True):
        page.evaluate("() => { window.app.graph.clear(); window.app.nodeOutputs = {};"
                      " window.cached = null; }")
        add_nodes(page, NODES | {"BayesDiff_KSampler": fixed}, PLACES)
        assert not page.evaluate(f"() => {told}")
        page.evaluate("() => window.app.queuePrompt(0)")
        until(page, f"{told}.startsWith('mode free (no posterior is connected)')")
        sampler = page.evaluate(f"() => String({node('BayesDiff_KSampler')}.id)")
        until(page, "window.cached")
        assert not again or sampler in page.evaluate("() => window.cached")
        until(page, f"{widget('BayesDiff_KSampler', 'viewer')}.element"
                    ".querySelector('.bayesdiff-count').textContent === '1/2'")


def test_what_ran_in_another_workflow_is_no_error(page):
    """The front end hears of it, too. That nothing was raised, the fixture sees."""
    page.evaluate("() => window.app.api.dispatchCustomEvent('executed',"
                  " { node: '999', display_node: '999', output: {}, prompt_id: 'another' })")


def test_ksamplers_widgets_come_first_and_in_its_order(page):
    add_nodes(page, NODES, PLACES)
    names = page.evaluate(f"() => {node('BayesDiff_KSampler')}.widgets.map((w) => w.name)")
    assert names[:7] == ["seed", "control_after_generate", "steps", "cfg", "sampler_name",
                         "scheduler", "denoise"]
    assert names[7:17] == ["mode", "skip_schedule", "skip_interval", "uncertain_steps",
                           "probe_levels", "deviations", "mc_samples", "paper_rule", "noise_model",
                           "uncertainty_seed"]
