// "Repair the red parts": adds the blueprint, wired to a sampler, and a slider for before and after.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { element, origin, valuesOf, widgetOf } from "./panel.js";
import { asOneStep } from "./replace.js";
import { say } from "./words.js";

const BLUEPRINT = "Uncertainty-guided repair";
const SAMPLERS = ["BayesDiff_KSampler", "BayesDiff_SamplerCustom"];
const [LATENT, TRAJECTORY] = [0, 2]; // outputs of a sampler
const SETTINGS = ["seed", "steps", "cfg", "sampler_name", "scheduler"];
const GAP = 60;

/** The sampler whose map a node shows, and the node that knows its model and prompts. */
function samplerOf(node) {
  const sampler = SAMPLERS.includes(node.comfyClass) ? node : origin(node, "trajectory");
  return SAMPLERS.includes(sampler?.comfyClass) ? sampler : null;
}

export function repairButton(node) {
  return element("button", { type: "button", class: "bayesdiff-repair", title: say("repairTitle"),
    onclick: () => repair(node) }, say("repair"));
}

async function repair(node) {
  const sampler = samplerOf(node);
  const tell = (severity, key) => app.extensionManager?.toast?.add({ severity, summary: say("repair"),
    detail: say(key), life: 10000 });
  if (!sampler) return tell("warn", "repairNoSampler");
  const before = sampler.graph.getNodeById(sampler.properties.bayesdiff_repair);
  if (before?.subgraph) return show(before); // once is enough
  const blueprint = await fetched().catch(() => null);
  if (!blueprint) return tell("error", "repairNoBlueprint");
  const made = asOneStep(sampler.graph, () => added(sampler, blueprint));
  show(made);
  const missing = made.inputs.some(({ link, widget }) => link == null && !widget);
  tell(missing ? "warn" : "success", missing ? "repairMissing" : "repairAdded");
}

async function fetched() {
  const known = await (await api.fetchApi("/global_subgraphs")).json();
  const [id] = Object.entries(known).find(([, { name, info }]) =>
    name === BLUEPRINT && /BayesDiff/i.test(info?.node_pack ?? ""));
  const { data } = await (await api.fetchApi(`/global_subgraphs/${id}`)).json();
  return JSON.parse(data);
}

function added(sampler, blueprint) {
  const { graph } = sampler;
  const { right, top } = room(sampler);
  const made = [...app.canvas._deserializeItems({ nodes: blueprint.nodes,
    subgraphs: blueprint.definitions.subgraphs }, { position: [right + GAP, top] }).nodes.values()][0];
  sampler.properties.bayesdiff_repair = made.id;
  const prompts = origin(sampler, "guider") ?? sampler;
  for (const name of ["model", "positive", "negative"]) relink(prompts, name, made, name);
  if (!origin(prompts, "positive")) relink(prompts, "conditioning", made, "positive");
  sampler.connect(LATENT, made, made.findInputSlot("latent"));
  sampler.connect(TRAJECTORY, made, made.findInputSlot("trajectory"));
  const decoder = decoderOf(sampler);
  if (decoder) relink(decoder, "vae", made, "vae");
  for (const [name, value] of Object.entries(valuesOf(sampler, SETTINGS))) {
    const widget = widgetOf(made, name);
    if (widget && value !== undefined) widget.value = name === "seed" ? Number(value) + 1 : value;
  }
  compare(graph, made, decoder);
  return made;
}

/** To the right of what stands beside and behind the sampler. */
function room({ graph, pos, size }) {
  const near = graph.nodes.filter((node) =>
    node.pos[1] < pos[1] + size[1] && node.pos[1] + node.size[1] > pos[1]);
  return { right: Math.max(...near.map((node) => node.pos[0] + node.size[0])), top: pos[1] };
}

/** Gives an input what another node's input has. */
function relink(from, name, to, input) {
  const { graph } = from;
  const id = from.inputs?.find((each) => each.name === name)?.link;
  const link = id == null ? null : graph.getLink?.(id) ?? graph.links?.[id];
  const source = link && graph.getNodeById(link.origin_id);
  if (source) source.connect(link.origin_slot, to, to.findInputSlot(input));
}

/** What decodes the sampler's picture; else any node that has a VAE linked. */
function decoderOf(sampler) {
  const { graph } = sampler;
  const next = (sampler.outputs[LATENT].links ?? []).map((id) =>
    graph.getNodeById((graph.getLink?.(id) ?? graph.links?.[id])?.target_id));
  return [...next, ...graph.nodes].find((node) => node && origin(node, "vae") && !node.subgraph);
}

function compare(graph, made, decoder) {
  const kind = decoder?.type === "VAEDecode" && window.LiteGraph.registered_node_types.ImageCompare
    ? "ImageCompare" : "PreviewImage";
  const shown = window.LiteGraph.createNode(kind);
  shown.pos = [made.pos[0] + made.size[0] + GAP, made.pos[1]];
  graph.add(shown);
  shown.setSize([340, 420]);
  const images = shown.inputs.filter(({ type }) => type === "IMAGE").map(({ name }) => name);
  if (kind === "ImageCompare") decoder.connect(0, shown, shown.findInputSlot(images[0]));
  made.connect(0, shown, shown.findInputSlot(images.at(-1)));
}

function show(node) {
  app.canvas.selectItems?.([node]);
  app.canvas.setDirty(true, true);
}
