"""Graphs put on the canvas, described as the API format does: inputs are values or links."""

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
