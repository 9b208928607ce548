"""Galleries: pictures and maps that grow with the node, and a run that is stopped elsewhere."""

import io
import uuid

from PIL import Image, ImageChops

from tests.browser.graphs import add_nodes, loaded, node, until
from tests.browser.test_panels import (
    NODES,
    OPEN,
    PLACES,
    SAMPLING,
    SEED_GRAPH,
    SEEDS,
    Panel,
    waiting_graph,
)

CARD = "root.querySelector('.bayesdiff-card').getBoundingClientRect().width"
MAPS = "root.querySelectorAll('.bayesdiff-card .bayesdiff-map').length"


def small(page):
    """A batch of a few steps, its map, and the filter; the overlay is shown as a picture."""
    add_nodes(page, {**NODES, "BayesDiff_KSampler": {**SAMPLING, "mode": "free", "steps": 4,
                                                     "seed": 95_000 + next(SEEDS)},
                     "PreviewImage": {"images": ["BayesDiff_UncertaintyHeatmap", 0]}}, PLACES)
    page.evaluate("() => Object.assign(window.app.canvas.ds, { scale: 0.7, offset: [60, 80] })")


def test_pictures_have_their_maps_grow_with_the_node_and_are_bare_while_held(page):
    small(page)
    gallery = Panel(page, "UncertaintyScoreFilter", "gallery")
    page.get_by_test_id("queue-button").click()
    gallery.wait(f"{MAPS} === 4")
    before = gallery.tell(CARD)
    page.evaluate(f"() => {{ {gallery.node}.setSize([800, 900]);"
                  " window.app.canvas.setDirty(true, true); }")  # as pulling its corner does
    gallery.wait(f"{CARD} > 1.2 * {before}")
    card = gallery.find(".bayesdiff-card")
    card.hover()
    page.mouse.down()
    seen = "getComputedStyle(root.querySelector('.bayesdiff-card:hover .bayesdiff-map')).visibility"
    gallery.wait(f"{seen} === 'hidden'")
    page.mouse.up()
    gallery.wait(f"{seen} === 'visible'")


def test_the_overlay_output_looks_as_the_viewer_does(page):
    small(page)
    page.evaluate(f"""() => {{
        const bar = {node('BayesDiff_UncertaintyHeatmap')}.widgets.find((w) =>
            w.name === "color_bar");
        bar.value = false;
    }}""")
    viewer = Panel(page, "UncertaintyHeatmap", "viewer")
    page.get_by_test_id("queue-button").click()
    preview = f"window.app.nodeOutputs[{node('PreviewImage')}.id]?.images"
    until(page, f"{preview}.length === 4")
    viewer.wait("!root.hasAttribute('data-empty')"
                " && /^Result/.test(root.querySelector('.bayesdiff-caption').textContent)")
    told = page.evaluate(f"""async () => {{
        const file = new URLSearchParams({preview}[0]);
        const bytes = await (await fetch(`/api/view?${{file}}`)).arrayBuffer();
        return [...new Uint8Array(bytes)];
    }}""")
    drawn = page.evaluate(f"""async () => {{
        const canvas = {viewer.element}.querySelector("canvas");
        const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
        return [...new Uint8Array(await blob.arrayBuffer())];
    }}""")
    one, other = (Image.open(io.BytesIO(bytes(each))).convert("RGB") for each in (told, drawn))
    assert one.size == other.size
    assert max(high for _, high in ImageChops.difference(one, other).getextrema()) <= 12


def test_every_finished_seed_has_its_map(page):
    add_nodes(page, {**SEED_GRAPH, "BayesDiff_BestOfN": {
        **SEED_GRAPH["BayesDiff_BestOfN"], "n": 3, "keep": 1, "seed": 40_000 + next(SEEDS)}})
    gallery = Panel(page, "BestOfN", "gallery")
    page.get_by_test_id("queue-button").click()
    gallery.wait(f"root.querySelectorAll('.bayesdiff-card').length === 3 && {MAPS} === 1")


def test_a_picture_is_copied_from_the_large_view(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    small(page)
    viewer = Panel(page, "UncertaintyHeatmap", "viewer")
    page.get_by_test_id("queue-button").click()
    viewer.wait("/^Result/.test(root.querySelector('.bayesdiff-caption').textContent)")
    viewer.find("[aria-label=enlarge]").click()
    viewer.wait("root.querySelector('dialog').open")
    viewer.find("[aria-label=Copy]").click()
    viewer.wait("/Copied|does not copy/.test(root.querySelector('dialog').textContent)")
    viewer.find("[aria-label=close]").click()
    viewer.wait("!root.querySelector('dialog').open")


def test_a_waiting_run_is_stopped_from_another_tab(page, server):
    gallery = waiting_graph(page)
    saved = {**page.evaluate("() => window.app.graph.serialize()"), "id": str(uuid.uuid4())}
    page.evaluate(OPEN, saved)
    page.get_by_test_id("queue-button").click()
    gallery.wait("root.hasAttribute('data-waiting')")
    page.evaluate("() => window.app.api.addEventListener('execution_interrupted', () =>"
                  " { window.stopped = true; })")
    other = page.context.new_page()
    other.set_default_timeout(120_000)
    other.goto(server.address)
    loaded(other)
    other.evaluate(OPEN, saved)
    there = Panel(other, "UncertaintyScoreFilter", "gallery")
    there.wait("root.hasAttribute('data-waiting')")
    there.tell("root.querySelector(\"[title='Stop the run']\").click()")
    for each in (gallery, there):
        each.wait("!root.hasAttribute('data-waiting')")
    until(page, "window.stopped")
