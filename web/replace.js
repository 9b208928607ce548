// Stock sampler to ours and back, with its values and links, as one step to undo.
import { app } from "../../scripts/app.js";
import { linksFrom, setWidget, widgetOf } from "./panel.js";
import { say } from "./words.js";

// type -> what takes its place, and which of its outputs there gives what each of ours did
const OTHERS = {
  KSampler: { type: "BayesDiff_KSampler", outputs: { 0: 0 } },
  SamplerCustomAdvanced: { type: "BayesDiff_SamplerCustom", outputs: { 0: 0, 1: 0 } },
  BayesDiff_KSampler: { type: "KSampler", outputs: { 0: 0, 5: 0 } },
  BayesDiff_SamplerCustom: { type: "SamplerCustomAdvanced", outputs: { 0: 0, 5: 0 } },
};

export function replaceItems(node) {
  const other = OTHERS[node?.comfyClass];
  const name = other && window.LiteGraph.registered_node_types[other.type]?.title;
  return name ? [{ content: say("replace", { name }), callback: () => replaced(node, other) }] : [];
}

/** What changes a graph within is one step for undo. */
export function asOneStep(graph, act) {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  tracker?.beforeChange?.();
  graph.beforeChange();
  try {
    return act();
  } finally {
    graph.afterChange();
    tracker?.afterChange?.();
    app.canvas.setDirty(true, true);
  }
}

export function replaced(node, { type, outputs }) {
  const { graph } = node;
  return asOneStep(graph, () => {
    const made = window.LiteGraph.createNode(type);
    made.pos = [...node.pos];
    graph.add(made);
    if (node.title !== node.constructor.title) made.title = node.title;
    for (const name of ["mode", "color", "bgcolor"]) made[name] = node[name];
    node.widgets?.forEach(({ name, value }) => {
      if (widgetOf(made, name) && !widgetOf(made, name).element) setWidget(made, name, value);
    });
    const lost = [...moveInputs(graph, node, made), ...moveOutputs(graph, node, made, outputs)];
    made.setSize([Math.max(node.size[0], made.computeSize()[0]), made.computeSize()[1]]);
    graph.remove(node);
    app.canvas.selectItems?.([made]);
    tell(made, node, lost);
    return made;
  });
}

/** By name; inside of a subgraph a link may come from its edge. Gives the names of what is lost. */
function moveInputs(graph, node, made) {
  return node.inputs.flatMap(({ name }, at) => {
    const link = node.getInputLink(at), slot = made.findInputSlot(name);
    if (!link) return [];
    if (slot < 0) return [name];
    const from = graph.getNodeById(link.origin_id);
    if (from) from.connect(link.origin_slot, made, slot, link.parentId);
    else graph.inputNode?.slots[link.origin_slot]?.connect(made.inputs[slot], made, link.parentId);
    return [];
  });
}

function moveOutputs(graph, node, made, outputs) {
  return node.outputs.flatMap(({ name }, slot) => linksFrom(node, slot).flatMap((link) => {
    const now = outputs[slot];
    if (now === undefined) return [name];
    const to = graph.getNodeById(link.target_id);
    if (to) made.connect(now, to, link.target_slot, link.parentId);
    else graph.outputNode?.slots[link.target_slot]?.connect(made.outputs[now], made, link.parentId);
    return name === "denoised_output" ? [name] : [];
  }));
}

function tell(made, node, lost) {
  if (!lost.length) return;
  const names = [...new Set(lost)].join(", ");
  app.extensionManager?.toast?.add({ severity: "warn", summary: made.title, life: 12000,
    detail: say(names === "denoised_output" ? "replacedDenoised" : "replacedLost", { names }) });
}
