// Widgets that do nothing as others are set are not shown. They keep their values and their places
// in saved workflows. Those that a first graph does not need are folded away in both kinds of nodes,
// and so are outputs that have nothing to give.
import { linkInto } from "./panel.js";
import { asOneStep } from "./replace.js";
import { say } from "./words.js";

const MODES = {
  skip_schedule: ({ mode }) => mode !== "free",
  skip_interval: ({ mode, skip_schedule: by }) =>
    mode !== "free" && (by === "interval" || (mode === "paper" && by === "chosen")),
  uncertain_steps: ({ mode, skip_schedule: by }) => mode !== "free" && by === "steps",
  probe_levels: ({ mode, skip_schedule: by }) => !["free", "paper"].includes(mode) && by === "chosen",
  deviations: ({ mode }) => !["free", "paper"].includes(mode),
  mc_samples: ({ mode }) => mode === "paper",
  paper_rule: ({ mode }) => mode === "paper",
  noise_model: ({ mode }) => !["free", "paper"].includes(mode),
  uncertainty_seed: ({ mode }) => mode !== "free",
};
const USED = {
  BayesDiff_KSampler: MODES,
  BayesDiff_SamplerCustom: MODES,
  BayesDiff_UncertaintyHeatmap: {
    draws: ({ method }) => method === "pixel",
    remove_low_pass: ({ method }) => method === "pixel",
    seed: ({ method }) => method === "pixel",
    painted_mask: ({ painted_mask: painted }) => painted !== "",
  },
  BayesDiff_UncertaintyScoreFilter: {
    z: ({ criterion }) => criterion === "mean + z sigma",
    percent: ({ criterion }) => ["drop top percent", "reference"].includes(criterion),
    keep: ({ criterion }) => criterion === "keep n",
    threshold: ({ criterion }) => criterion === "threshold",
    picked: ({ criterion }) => criterion === "picked",
    wait_seconds: ({ wait_for_choice: waits }) => waits,
    no_answer: ({ wait_for_choice: waits }) => waits,
  },
};

// How many outputs are shown, the first ones, so that each keeps its place: a link names it by that.
const OUTPUTS = {
  BayesDiff_UncertaintyScoreFilter: (node) =>
    (linkInto(node, "masks") ? 6 : linkInto(node, "latents") ? 4 : 2),
};
const ALL_OUTPUTS = "bayesdiff_outputs"; // a property of a node: all of them are shown

const LEAST_WIDTH = 300; // that pictures and captions want
const SHOWN = "bayesdiff_advanced"; // a property of a node: its advanced inputs are unfolded

const inClassic = () => !window.LiteGraph?.vueNodesMode;

const hiding = new WeakMap(); // by node

/** A panel of a node that has nothing to tell is not shown. */
export function setIdle(node, widget, idle) {
  if (widget.idle === idle) return;
  widget.idle = idle;
  hiding.get(node)?.();
}

/** Hides; to be called again when a widget changes. */
export function keepQuiet(node) {
  const used = USED[node.comfyClass] ?? {};
  const hide = () => {
    const values = Object.fromEntries((node.widgets ?? []).map(({ name, value }) => [name, value]));
    if (values.mode === "auto" && !linkInto(node, "posterior")) values.mode = "free"; // is taken then
    for (const widget of node.widgets ?? []) {
      const linked = linkInto(node, widget.name);
      const idle = !linked && (used[widget.name]?.(values) === false || widget.idle === true);
      const folded = !linked && widget.options?.advanced && !node.properties[SHOWN];
      widget.hidden = Boolean(idle || folded);
      // Nodes 2.0 folds by itself, and looks at what its store holds; that a widget is hidden counts
      // there for the least height of a node only.
      const options = widget._state?.options ?? widget.options;
      const ours = used[widget.name] || "idle" in widget;
      if (options && ours && Boolean(options.hidden) !== idle) options.hidden = idle;
    }
    hideOutputs(node, defined);
    node.graph?.setDirtyCanvas?.(true, true);
  };
  const defined = node.outputs?.map(({ name, type, shape, localized_name, tooltip }) =>
    ({ name, type, shape, localized_name, tooltip }));
  hide();
  hiding.set(node, hide);
  fit(node); // a saved size comes after that
  return hide;
}

function fit(node) {
  const [width, height] = node.computeSize();
  node.setSize([Math.max(width, LEAST_WIDTH), height]);
}

/** What is linked stays, so that every saved graph does. */
function hideOutputs(node, defined) {
  const count = OUTPUTS[node.comfyClass];
  if (!count) return;
  if (!node.graph) return node.outputs.splice(count(node)); // just made: nothing is linked yet
  const wanted = node.properties[ALL_OUTPUTS] ? defined.length : count(node);
  while (node.outputs.length > wanted && !node.isOutputConnected(node.outputs.length - 1)) {
    node.removeOutput(node.outputs.length - 1);
  }
  for (const { name, type, ...more } of defined.slice(node.outputs.length, wanted)) {
    node.addOutput(name, type, more);
  }
}

/** In the menu of a node. Nodes 2.0 has a button of its own for inputs. */
export function foldItems(node) {
  if (!node?.comfyClass?.startsWith("BayesDiff_")) return [];
  const item = (property, show, hide) => {
    const shown = Boolean(node.properties[property]);
    return { content: say(shown ? hide : show), callback: () => asOneStep(node.graph, () => {
      node.properties[property] = !shown;
      hiding.get(node)?.();
      fit(node);
    }) };
  };
  const advanced = inClassic() && node.widgets?.some(({ options }) => options?.advanced);
  return [...(advanced ? [item(SHOWN, "unfold", "fold")] : []),
    ...(OUTPUTS[node.comfyClass] ? [item(ALL_OUTPUTS, "allOutputs", "fewOutputs")] : [])];
}
