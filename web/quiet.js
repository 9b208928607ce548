// Widgets that do nothing as others are set are not shown. They keep their values and their places
// in saved workflows. Those that a first graph does not need are folded away in both kinds of nodes.
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

const LEAST_WIDTH = 300; // that pictures and captions want
const SHOWN = "bayesdiff_advanced"; // a property of a node: its advanced inputs are unfolded

const inClassic = () => !window.LiteGraph?.vueNodesMode;

/** Hides; to be called again when a widget changes. */
export function keepQuiet(node) {
  const used = USED[node.comfyClass] ?? {};
  const hide = () => {
    const values = Object.fromEntries((node.widgets ?? []).map(({ name, value }) => [name, value]));
    for (const widget of node.widgets ?? []) {
      const linked = node.inputs?.some(({ link, widget: of }) => of?.name === widget.name && link != null);
      const idle = !linked && used[widget.name]?.(values) === false;
      const folded = !linked && inClassic() && widget.options?.advanced && !node.properties[SHOWN];
      widget.hidden = Boolean(idle || folded);
      // Nodes 2.0 folds by itself, and looks at what its store holds.
      const options = widget._state?.options ?? widget.options;
      if (options && used[widget.name] && Boolean(options.hidden) !== idle) options.hidden = idle;
    }
    node.graph?.setDirtyCanvas?.(true, true);
  };
  hide();
  const [width, height] = node.computeSize(); // a saved size comes after that
  node.setSize([Math.max(width, LEAST_WIDTH), height]);
  return hide;
}

/** The canvas has no button for it, as Nodes 2.0 has. */
export function foldItems(node) {
  const folds = inClassic() && node?.comfyClass?.startsWith("BayesDiff_")
    && node.widgets?.some(({ options }) => options?.advanced);
  if (!folds) return [];
  const shown = Boolean(node.properties[SHOWN]);
  return [{ content: say(shown ? "fold" : "unfold"), callback: () => asOneStep(node.graph, () => {
    node.properties[SHOWN] = !shown;
    keepQuiet(node);
  }) }];
}
