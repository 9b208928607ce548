// "Repair the red parts": adds the blueprint, wired to a sampler, and a slider for before and after.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { button, linkInto, linksFrom, origin, valuesOf, widgetOf } from "./panel.js";
import { asOneStep } from "./replace.js";
import { say } from "./words.js";

const BLUEPRINT = "Uncertainty-guided repair";
const SAMPLERS = ["BayesDiff_KSampler", "BayesDiff_SamplerCustom"];
const HEATMAP = "BayesDiff_UncertaintyHeatmap", REPAIR = "BayesDiff_RepairWhereUnsure";
const [LATENT, TRAJECTORY] = [0, 2]; // outputs of a sampler
const SETTINGS = ["seed", "steps", "cfg", "sampler_name", "scheduler"];
// What decides on the mask of a map; the blueprint's node shows those that it has by the same name.
const MASKING = ["mask_threshold", "mask_by", "grow", "blur", "map", "step", "value_range", "method",
  "draws", "remove_low_pass", "painted_mask"];
const SCORE = "BayesDiff_UncertaintyScore";
const GAP = 60;

export const isSampler = ({ comfyClass }) => SAMPLERS.includes(comfyClass);

/** The sampler whose map a node shows. */
function samplerOf(node) {
  const sampler = isSampler(node) ? node : origin(node, "trajectory");
  return sampler && isSampler(sampler) ? sampler : null;
}

/** The sampler whose images a filter sorts, by their scores; they may come by way of a node. */
export function sortedSampler(filter) {
  const from = origin(filter, "trajectory") ?? origin(filter, "scores");
  return from && (from.comfyClass === SCORE || isSampler(from)) ? samplerOf(from) : null;
}

export const repairButton = (node) =>
  button(say("repairTitle"), say("repair"), () => repair(node));

/** The heat maps whose masks count for what a node shows: itself, and the one in its repair. */
export function heatmapsOf(node) {
  const added = samplerOf(node)?.graph?.getNodeById(samplerOf(node).properties.bayesdiff_repair);
  return [node, ...added?.subgraph?.nodes ?? []].filter(({ comfyClass }) => comfyClass === HEATMAP);
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
  const made = asOneStep(sampler.graph, () => added(sampler, blueprint, mapOf(node, sampler)));
  show(made);
  const missing = made.inputs.some(({ widget }, slot) => !widget && !made.isInputConnected(slot));
  tell(missing ? "warn" : "success", missing ? "repairMissing" : "repairAdded");
}

async function fetched() {
  const known = await (await api.fetchApi("/global_subgraphs")).json();
  const [id] = Object.entries(known).find(([, { name, info }]) =>
    name === BLUEPRINT && /BayesDiff/i.test(info?.node_pack ?? ""));
  const { data } = await (await api.fetchApi(`/global_subgraphs/${id}`)).json();
  return JSON.parse(data);
}

/** The heat map whose red parts are meant: the node itself, or the only one of its sampler. */
function mapOf(node, sampler) {
  const maps = node === sampler ? sampler.graph.nodes.filter((each) =>
    each.comfyClass === HEATMAP && samplerOf(each) === sampler) : [node];
  return maps.length === 1 ? maps[0] : null;
}

/** The newest front end renumbers what has the id of another node of any graph, and does not find it
 *  again where the blueprint shows its widgets. */
function renumber({ nodes: [outer], definitions: { subgraphs: [{ nodes, links, state }] } }, graph) {
  const first = (graph.rootGraph ?? graph).last_node_id + 2; // the blueprint's own id goes before
  const free = new Map(nodes.map(({ id }, place) => [String(id), first + place]));
  const renumbered = (id) => free.get(String(id)) ?? id; // the subgraph's two ends stay
  for (const each of nodes) each.id = renumbered(each.id);
  for (const link of links) {
    link.origin_id = renumbered(link.origin_id);
    link.target_id = renumbered(link.target_id);
  }
  state.lastNodeId = first + nodes.length;
  for (const shown of outer.properties.proxyWidgets) shown[0] = String(renumbered(shown[0]));
}

function added(sampler, blueprint, map) {
  const { graph } = sampler;
  const { right, top } = room(sampler);
  renumber(blueprint, graph);
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
  // A widget may be shown on the blueprint's node, or stand only where it is used.
  const take = (kind, from, names) => {
    const inside = made.subgraph.nodes.find(({ comfyClass }) => comfyClass === kind);
    for (const [name, value] of Object.entries(valuesOf(from, names))) {
      for (const widget of [widgetOf(made, name), widgetOf(inside, name)]) {
        if (widget && value !== undefined) widget.value = name === "seed" ? Number(value) + 1 : value;
      }
    }
  };
  take(REPAIR, sampler, SETTINGS);
  // A map's mask is not grown unless asked; a repair's is, by what was measured to repair most.
  const grown = map && widgetOf(map, "grow")?.value;
  if (map) take(HEATMAP, map, MASKING.filter((name) => name !== "grow" || grown));
  sampler.properties.bayesdiff_compare = compare(graph, made, decoder).id;
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
  const link = linkInto(from, name);
  const source = link && from.graph.getNodeById(link.origin_id);
  if (source) source.connect(link.origin_slot, to, to.findInputSlot(input));
}

/** What decodes the sampler's picture; else any node that has a VAE linked. */
function decoderOf(sampler) {
  const { graph } = sampler;
  const next = linksFrom(sampler, LATENT).map((link) => graph.getNodeById(link.target_id));
  return [...next, ...graph.nodes].find((node) => node && origin(node, "vae") && !node.subgraph);
}

/** The node that shows what a node's repair has made, beside the map's own slider for that. */
export function comparisonOf(node) {
  const sampler = samplerOf(node);
  return sampler?.graph?.getNodeById(sampler.properties.bayesdiff_compare);
}

/** Of what such a node told: the repaired pictures. */
export const repairedOf = (output) => output?.b_images ?? output?.images ?? [];

function compare(graph, made, decoder) {
  const { registered_node_types: known, vueNodesMode } = window.LiteGraph;
  // The stock slider is made for Nodes 2.0 only.
  const kind = vueNodesMode && decoder?.type === "VAEDecode" && known.ImageCompare
    ? "ImageCompare" : "PreviewImage";
  const shown = window.LiteGraph.createNode(kind);
  shown.pos = [made.pos[0] + made.size[0] + GAP, made.pos[1]];
  graph.add(shown);
  shown.setSize([340, 420]);
  const images = shown.inputs.filter(({ type }) => type === "IMAGE").map(({ name }) => name);
  if (kind === "ImageCompare") decoder.connect(0, shown, shown.findInputSlot(images[0]));
  made.connect(0, shown, shown.findInputSlot(images.at(-1)));
  return shown;
}

function show(node) {
  app.canvas.selectItems?.([node]);
  app.canvas.setDirty(true, true);
}
