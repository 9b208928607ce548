// Shows the text that a node reports inside the node.
import { app } from "../../scripts/app.js";

const NODES = [
  "BayesDiff_ModelInfo",
  "BayesDiff_LLLAFit",
  "BayesDiff_LLLASave",
  "BayesDiff_LLLALoad",
  "BayesDiff_KSampler",
  "BayesDiff_SamplerCustom",
  "BayesDiff_BestOfN",
  "BayesDiff_ResampleFromTimestep",
  "BayesDiff_UncertaintyScore",
  "BayesDiff_UncertaintyScoreFilter",
  "BayesDiff_UncertaintySelfCheck",
];

app.registerExtension({
  name: "BayesDiff.Report",

  nodeCreated(node) {
    if (!NODES.includes(node.comfyClass)) return;
    const box = document.createElement("textarea");
    box.readOnly = true;
    box.placeholder = "The report appears here when the node has run.";
    box.style.cssText = "width: 100%; height: 100%; resize: none; font-size: 11px;";
    const widget = node.addDOMWidget("report", "bayesdiff_report", box, {
      serialize: false,
      getMinHeight: () => 150,
    });
    widget.serialize = false; // it is an output: neither a prompt nor a saved workflow holds it

    const onExecuted = node.onExecuted;
    node.onExecuted = function (output) {
      onExecuted?.apply(this, arguments);
      box.value = (output?.text ?? []).join("\n");
    };
  },
});
