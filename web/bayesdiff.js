// Which node shows what.
import { app } from "../../scripts/app.js";
import { addFilterGallery, addSeedGallery, lookForWaiting } from "./gallery.js";
import { lookAround, restore, watch } from "./panel.js";
import { foldItems, keepQuiet } from "./quiet.js";
import { replaceItems } from "./replace.js";
import { addReport } from "./report.js";
import { addSchedule } from "./schedule.js";
import { addViewer } from "./viewer.js";

const report = (node) => addReport(node);
const shortReport = (node) => addReport(node, { height: 70, grows: false });
const foldedReport = (node) => addReport(node, { height: 90, grows: false, advanced: true });
const sampler = [addSchedule, addViewer, foldedReport];

const PANELS = {
  BayesDiff_ModelInfo: [report],
  BayesDiff_LLLAFit: [report],
  BayesDiff_LLLASave: [report],
  BayesDiff_LLLALoad: [report],
  BayesDiff_KSampler: sampler,
  BayesDiff_SamplerCustom: sampler,
  BayesDiff_BestOfN: [addSeedGallery, shortReport],
  BayesDiff_ResampleFromTimestep: [report],
  BayesDiff_TrajectoryAtStep: [report],
  BayesDiff_TrajectorySave: [report],
  BayesDiff_TrajectoryLoad: [report],
  BayesDiff_UncertaintyHeatmap: [addViewer],
  BayesDiff_UncertaintyScore: [report],
  BayesDiff_ScoreAnImage: [report],
  BayesDiff_UncertaintyScoreFilter: [addFilterGallery, shortReport],
  BayesDiff_UncertaintySelfCheck: [report],
};

app.registerExtension({
  name: "comfyuibayesdiff.panels",

  nodeCreated(node) {
    const panels = PANELS[node.comfyClass];
    if (!panels) return;
    panels.forEach((add) => add(node));
    watch(node, keepQuiet(node));
  },

  getNodeMenuItems: (node) => [...replaceItems(node), ...foldItems(node)],

  afterConfigureGraph() {
    lookAround();
    lookForWaiting();
  },

  onNodeOutputsUpdated: restore,
});
