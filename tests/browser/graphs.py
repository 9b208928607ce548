"""Graphs put on the canvas, described as the API format does: inputs are values or links."""

import contextlib

from playwright.sync_api import TimeoutError

DEMO_SIZE = 64  # pixels that the demo model draws
DEMO_CLASS = "hand"  # one of those that it knows

ADD_NODES = """([wanted, places]) => {
    const made = {};
    for (const [name, inputs] of Object.entries(wanted)) {
        const node = made[name] = window.LiteGraph.createNode(name.split(" ")[0]);
        const [x, y, width, height] = places[name] ?? [400 * window.app.graph.nodes.length, 0];
        node.pos = [x, y];
        window.app.graph.add(node);
        if (width) node.setSize([width, height]);
        for (const [input, value] of Object.entries(inputs)) {
            if (Array.isArray(value)) made[value[0]].connect(value[1], node, input);
            else node.widgets.find((w) => w.name === input).value = value;
        }
    }
}"""


def add_nodes(page, wanted, places=None):
    """wanted: {name: {input: value, or [name of an earlier node, output]}}. A name is the node's
    type, and a word more where there are several. places: {name: [x, y] or [x, y, width, height]}.
    """
    page.evaluate(ADD_NODES, [wanted, places or {}])


def node(kind):
    """The JavaScript for the node of a type."""
    return f"window.app.graph.nodes.find((n) => n.type === '{kind}')"


def widget(kind, name):
    return f"{node(kind)}.widgets.find((w) => w.name === '{name}')"


def until(page, expression, **options):
    """Waits until an expression is true. While the front end makes the graph anew (undo, loading)
    a node or panel may not be there for a moment: that is not an error, only not yet true."""
    page.wait_for_function(f"() => {{ try {{ return {expression}; }} catch {{ return false; }} }}",
                           **options)


def loaded(page):
    """Waits until the front end has opened the workflow that it begins with, to the end: until then
    it does not look what changes for undo, and what is added may be taken away again."""
    until(page, "window.LiteGraph.registered_node_types.BayesDiff_KSampler"
                " && window.app.extensionManager.workflow.activeWorkflow.changeTracker"
                " && !window.comfyAPI?.changeTracker?.ChangeTracker?.isLoadingGraph")


EMPTY_PLACE = 1300, 850  # of the canvas, in most tests
KNOWN = """(({ activeState }, { nodes }) => {
    const of = (nodes) => JSON.stringify(nodes.map(({ id, size, widgets_values }) =>
        [id, [...size], widgets_values]).sort());
    return of(activeState.nodes) === of(nodes);
})(window.app.extensionManager.workflow.activeWorkflow.changeTracker, window.app.graph.serialize())
"""


def known(page):
    """Has the front end take the graph as it is for a state to go back to: it looks at a click."""
    for _ in range(5):
        page.mouse.click(*EMPTY_PLACE)
        with contextlib.suppress(TimeoutError):
            return until(page, KNOWN, timeout=10_000)
    raise AssertionError("the front end did not take notice of the graph")


def undo(page):
    """The last change that it knows. The canvas has the focus then, not the field of a widget."""
    known(page)
    until(page, "!document.activeElement.matches('input, textarea')")
    page.keyboard.press("Control+z")


TITLE_OF = """(type) => {
    const { canvas, ds, graph } = window.app.canvas;
    const [x, y] = graph.nodes.find((n) => n.type === type).pos;
    const { left, top } = canvas.getBoundingClientRect();
    return [left + (x + ds.offset[0] + 60) * ds.scale, top + (y + ds.offset[1] - 12) * ds.scale];
}"""


def open_help(page, kind):
    """As a user does: selects the node, whose tools come with that, and asks for its page."""
    info = page.get_by_test_id("info-button")
    for _ in range(5):  # a busy machine may not have drawn the node yet
        page.wait_for_timeout(500)
        page.mouse.click(*page.evaluate(TITLE_OF, kind))
        with contextlib.suppress(TimeoutError):
            info.wait_for(timeout=6000)
            break
    info.click()
