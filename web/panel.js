// What our panels inside nodes share. Each is a DOM widget, so it works in both kinds of nodes.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { translated } from "./words.js";

const STYLE = new URL("./panel.css", import.meta.url).href;
const MARGIN = 20; // that the canvas leaves around an element, above and below together
const SPARE = 50; // what Nodes 2.0 adds below: a panel that grows gives it, so that no node does
const KEYS = new Set([" ", "Enter", "Escape", "Tab", "ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"]);
const MIDDLE = 1, RIGHT = 2;
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

export const button = (label, face, onclick) =>
  element("button", { type: "button", "aria-label": label, title: label, onclick }, face);

export const widgetOf = (node, name) => node.widgets?.find((widget) => widget.name === name);

export const valuesOf = (node, names) =>
  Object.fromEntries(names.map((name) => [name, widgetOf(node, name)?.value]));

/** As a change by hand. */
export function setWidget(node, name, value) {
  const widget = widgetOf(node, name);
  widget.value = value;
  widget.callback?.(value);
}

/** The link into an input, and those out of an output. Slots themselves are not asked: newer front
 * ends keep links elsewhere. */
export function linkInto(node, input) {
  const slot = node.inputs?.findIndex(({ name }) => name === input) ?? -1;
  // A subgraph's node answers with what is linked inside of it.
  return slot < 0 || !node.graph || node.subgraph ? null : node.getInputLink(slot);
}

export const linksFrom = ({ graph, id }, slot) => [...graph.links.values()].filter((link) =>
  link.origin_id === id && link.origin_slot === slot);

/** The node at the other end of an input's link. */
export function origin(node, input) {
  const link = linkInto(node, input);
  return link ? node.graph.getNodeById(link.origin_id) : null;
}

export function fileURL(file) {
  return api.apiURL(`/view?${new URLSearchParams(file)}`);
}

export const short = (number, digits = 3) =>
  (number == null ? "?" : Number(number.toPrecision(digits)).toString());

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
 * advanced: whether it is folded away with the node's advanced inputs.
 * restored(outputs): called with what all nodes' runs told, when a workflow is opened again.
 * look(): called when the node's widgets or links, or anything in the graph, may have changed.
 */
export function addPanel(node, name, root, {
  height, grows = true, advanced = false, show, look, restored,
}) {
  root.classList.add("bayesdiff-panel");
  const error = element("div", { class: "bayesdiff-error", role: "alert" });
  // The style in each panel, not once in the page: that belongs to all packs. It is loaded once.
  root.append(error, element("link", { rel: "stylesheet", href: STYLE }));
  // Nodes 2.0 asks the element, not the widget.
  root.style.minHeight = `${height - MARGIN - (grows ? SPARE : 0)}px`;
  if (!grows) root.style.maxHeight = root.style.minHeight;
  shareWithCanvas(root);
  const widget = node.addDOMWidget(name, `bayesdiff_${name}`, root, {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => height,
    ...(advanced ? { advanced } : {}),
  });
  // In Nodes 2.0 all that could grow share what room there is.
  if (!grows) Object.assign(widget, { computeLayoutSize: undefined, computeSize: () => [0, height] });
  widget.serialize = false; // neither a prompt nor a saved workflow holds it
  const panel = { node, root, error, grows, restored, show: show && ((output) => {
    root.toggleAttribute("data-stale", false);
    root.toggleAttribute("data-told", true);
    show(output);
  }) };
  panels.add(panel);
  if (look) watch(node, look);
  after(node, "onExecuted", (output) => output && panel.show?.(output));
  after(node, "onRemoved", () => panels.delete(panel));
  return widget;
}

const watchers = new Set();

/** Calls look() when the node's widgets or links, or anything in the graph, may have changed. */
export function watch(node, look) {
  const soon = once(look);
  watchers.add(soon);
  after(node, "onRemoved", () => watchers.delete(soon));
  // Both kinds of nodes call a widget's callback at each change by hand.
  node.widgets?.forEach((each) => after(each, "callback", soon));
  after(node, "onConnectionsChange", soon);
  soon(); // when who made the node has set its values
}

/** The left button and the keys that panels know are theirs: they must not drag the node. All else
 * belongs to the canvas: wheel, middle button, menu, shortcuts. */
function shareWithCanvas(root) {
  const inDialog = (event) => event.target.closest("dialog");
  const classic = () => !window.LiteGraph?.vueNodesMode;
  root.addEventListener("wheel", (event) => {
    event.stopPropagation();
    if (inDialog(event) || scrolls(event)) return;
    event.preventDefault();
    app.canvas.processMouseWheel(event);
  });
  const pointer = (name, method, isTheirs) => root.addEventListener(name, (event) => {
    if (inDialog(event)) return event.stopPropagation();
    if (isTheirs(event)) {
      event.preventDefault(); // a middle click would paste
      event.stopPropagation();
      app.canvas[method](event);
    } else if (name === "pointerdown" && event.button !== RIGHT) event.stopPropagation();
  });
  const theirs = ({ button, target }) => app.canvas.read_only || button === MIDDLE
    || (button === RIGHT && classic() && target.tagName !== "TEXTAREA");
  pointer("pointerdown", "processMouseDown", theirs);
  pointer("pointermove", "processMouseMove", ({ buttons }) => buttons & 4
    || (app.canvas.read_only && buttons));
  pointer("pointerup", "processMouseUp", theirs);
  root.addEventListener("mousedown", (event) => event.button === MIDDLE && event.preventDefault());
  root.addEventListener("auxclick", (event) => event.button === MIDDLE && event.preventDefault());
  root.addEventListener("contextmenu", (event) => {
    if (inDialog(event)) event.stopPropagation();
    else if (classic() && event.target.tagName !== "TEXTAREA") event.preventDefault();
  });
  root.addEventListener("keydown", (event) => {
    const { key, ctrlKey, metaKey, altKey } = event;
    if (KEYS.has(key) && !ctrlKey && !metaKey && !altKey) event.stopPropagation();
  });
  root.addEventListener("dblclick", (event) => event.stopPropagation());
}

/** Whether a list takes the wheel: as in the front end, one that was clicked into and has more. */
function scrolls(event) {
  const list = event.target.closest("[data-capture-wheel]");
  return !event.ctrlKey && list?.contains(document.activeElement)
    && list.scrollHeight > list.clientHeight;
}

/** As the front end names a node's outputs; a node of a subgraph goes by both ids. */
export function keyOf({ graph, id }) {
  return !graph || graph.isRootGraph ? `${id}` : `${graph.id}:${id}`;
}

/** The node that the server names so: of a subgraph, by way of its nodes. */
export function nodeAt(executionId) {
  const [last, ...path] = `${executionId}`.split(":").reverse();
  const graph = path.reduceRight((inside, id) => inside?.getNodeById(id)?.subgraph,
    app.rootGraph ?? app.graph);
  return graph?.getNodeById(last);
}

/** The node that a message of the server is about, if its workflow is the one on the canvas. */
export const nodeOf = ({ node, workflow }) =>
  (workflow && workflow !== (app.rootGraph ?? app.graph).id ? null : nodeAt(node));

/** Widgets of other nodes, undo, loading: the front end tells when the graph is another than before.
 * Only what a script sets without a word is seen late, at the user's next click. */
export function lookAround() {
  watchers.forEach((look) => look());
}
api.addEventListener("graphChanged", lookAround);

/** Another workflow was brought to the front, with what its nodes showed. */
export function restore(outputs) {
  for (const { node, show } of panels) {
    const output = outputs?.[keyOf(node)];
    if (output) show?.(output);
  }
  panels.forEach(({ restored }) => restored?.(outputs ?? {}));
}

// While a graph runs, what is of an earlier run is dimmed.
const each = (act) => panels.forEach(act);
api.addEventListener("execution_start", () => each(({ root, error }) => {
  root.toggleAttribute("data-stale", root.hasAttribute("data-told"));
  error.textContent = "";
}));
api.addEventListener("execution_cached", ({ detail }) => {
  const same = new Set((detail?.nodes ?? []).map(nodeAt));
  each(({ node, root }) => same.has(node) && root.toggleAttribute("data-stale", false));
});
for (const end of ["execution_success", "execution_error", "execution_interrupted"]) {
  api.addEventListener(end, () => each(({ root }) => root.toggleAttribute("data-stale", false)));
}

// What a node of ours refuses is said in it, and at once: the front end's own words come first there.
api.addEventListener("execution_error", ({ detail }) => {
  const node = detail?.node_type?.startsWith("BayesDiff_") && nodeAt(detail.node_id);
  if (!node) return;
  const words = sentence(translated(detail.exception_message.trim()));
  const inIt = [...panels].filter((panel) => panel.node === node);
  const said = inIt.some(({ root }) => // before the run
    sentence(root.querySelector("[data-error]")?.textContent ?? "") === words);
  const roomy = inIt.find(({ grows }) => grows);
  if (roomy && !said) roomy.error.textContent = words;
  app.extensionManager?.toast?.add({ severity: "error", summary: node.title, detail: words,
    life: 15000 });
});

export const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);
