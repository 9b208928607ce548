// What our panels inside nodes share. Each is a DOM widget, so it works in both kinds of nodes.
import { api } from "../../scripts/api.js";

const sheet = document.createElement("link");
sheet.rel = "stylesheet";
sheet.href = new URL("./panel.css", import.meta.url).href;
document.head.append(sheet);

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

/**
 * Adds `root` to the node as a widget that is saved nowhere.
 * show(output): called with what the node's last run told, also when a workflow is opened again.
 * grows: whether it takes more than its height when the node is made larger.
 * look(): called now and then. Values change in many ways (by hand, undo, loading, a subgraph's
 * widgets), and no event covers them all.
 */
export function addPanel(node, name, root, { height, grows = true, show, look }) {
  root.classList.add("bayesdiff-panel");
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
  const panel = { node, show, look };
  panels.add(panel);
  const { onExecuted, onRemoved } = node;
  node.onExecuted = function (output) {
    onExecuted?.apply(this, arguments);
    if (output) show?.(output);
  };
  node.onRemoved = function () {
    onRemoved?.apply(this, arguments);
    panels.delete(panel);
  };
  return widget;
}

/** As the front end names a node's outputs; a node of a subgraph goes by both ids. */
function keyOf({ graph, id }) {
  return !graph || graph.isRootGraph ? `${id}` : `${graph.id}:${id}`;
}

setInterval(() => {
  if (!document.hidden) panels.forEach((panel) => panel.look?.());
}, 250);

/** Another workflow was brought to the front, with what its nodes showed. */
export function restore(outputs) {
  for (const { node, show } of panels) {
    const output = outputs?.[keyOf(node)];
    if (output) show?.(output);
  }
}
