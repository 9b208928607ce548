// What our panels inside nodes share. Each is a DOM widget, so it works in both kinds of nodes.
import { api } from "../../scripts/api.js";

const STYLE = new URL("./panel.css", import.meta.url).href;
const MARGIN = 20; // that the canvas leaves around an element, above and below together
const panels = new Set();

/** An element of HTML, or of SVG where a namespace is given as `xmlns`. */
export function element(tag, properties = {}, ...children) {
  const { xmlns, ...attributes } = properties;
  const made = xmlns ? document.createElementNS(xmlns, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export const svg = (tag, properties = {}, ...children) =>
  element(tag, { ...properties, xmlns: "http://www.w3.org/2000/svg" }, ...children);

export const widgetOf = (node, name) => node.widgets?.find((widget) => widget.name === name);

export const valuesOf = (node, names) =>
  Object.fromEntries(names.map((name) => [name, widgetOf(node, name)?.value]));

export function fileURL(file) {
  return api.apiURL(`/view?${new URLSearchParams(file)}`);
}

/** Calls `then` after a method of an object, with what that was given; there may be none yet. */
function after(object, method, then) {
  const own = object[method];
  object[method] = function (...given) {
    const answer = own?.apply(this, given);
    then(...given);
    return answer;
  };
}

/** One call for all that happens in a moment, when it is over. */
function once(act) {
  let due = false;
  return () => {
    if (!due) queueMicrotask(() => { due = false; act(); });
    due = true;
  };
}

/**
 * Adds `root` to the node as a widget that is saved nowhere.
 * show(output): called with what the node's last run told, also when a workflow is opened again.
 * grows: whether it takes more than its height when the node is made larger.
 * look(): called when the node's widgets or links, or anything in the graph, may have changed.
 */
export function addPanel(node, name, root, { height, grows = true, show, look }) {
  root.classList.add("bayesdiff-panel");
  // In each panel, not once in the page: that belongs to all packs. It is loaded once.
  root.append(element("link", { rel: "stylesheet", href: STYLE }));
  root.style.minHeight = `${height - MARGIN}px`; // Nodes 2.0 asks the element, not the widget
  if (!grows) root.style.maxHeight = root.style.minHeight;
  // What is done here must not drag or delete the node.
  for (const event of ["pointerdown", "keydown", "dblclick"]) {
    root.addEventListener(event, (happened) => happened.stopPropagation());
  }
  const widget = node.addDOMWidget(name, `bayesdiff_${name}`, root, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => height,
    ...(grows ? {} : { getMaxHeight: () => height }),
  });
  widget.serialize = false; // neither a prompt nor a saved workflow holds it
  const panel = { node, show, look: look && once(look) };
  panels.add(panel);
  after(node, "onExecuted", (output) => output && show?.(output));
  after(node, "onRemoved", () => panels.delete(panel));
  if (look) {
    // Both kinds of nodes call a widget's callback at each change by hand.
    node.widgets.forEach((each) => after(each, "callback", panel.look));
    after(node, "onConnectionsChange", panel.look);
    panel.look(); // when who made the node has set its values
  }
  return widget;
}

/** As the front end names a node's outputs; a node of a subgraph goes by both ids. */
function keyOf({ graph, id }) {
  return !graph || graph.isRootGraph ? `${id}` : `${graph.id}:${id}`;
}

/** Widgets of other nodes, undo, loading: the front end tells when the graph is another than before.
 * Only what a script sets without a word is seen late, at the user's next click. */
export function lookAround() {
  panels.forEach((panel) => panel.look?.());
}
api.addEventListener("graphChanged", lookAround);

/** Another workflow was brought to the front, with what its nodes showed. */
export function restore(outputs) {
  for (const { node, show } of panels) {
    const output = outputs?.[keyOf(node)];
    if (output) show?.(output);
  }
}
