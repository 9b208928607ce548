// The text that a node reports, inside the node.
import { addPanel, element } from "./panel.js";
import { say, translated } from "./words.js";

export function addReport(node, { height = 150, grows = true, advanced = false } = {}) {
  const box = element("textarea", {
    readonly: "",
    "aria-label": say("report"),
    "data-capture-wheel": "true",
    placeholder: say("noReport"),
  });
  const show = (output) => { box.value = translated((output.text ?? []).join("\n")); };
  addPanel(node, "report", element("div", { class: "bayesdiff-report" }, box),
    { height, grows, advanced, show });
}
