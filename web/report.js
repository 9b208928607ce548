// The text that a node reports, inside the node.
import { addPanel, element } from "./panel.js";

export function addReport(node, { height = 150, grows = true } = {}) {
  const box = element("textarea", {
    readonly: "",
    "aria-label": "report",
    placeholder: "The report appears here when the node runs.",
  });
  const show = (output) => { box.value = (output.text ?? []).join("\n"); };
  addPanel(node, "report", element("div", { class: "bayesdiff-report" }, box),
    { height, grows, show });
}
