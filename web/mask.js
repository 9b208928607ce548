// The mask of a map by hand: it opens in the front end's MaskEditor and comes back.
import { app } from "../../scripts/app.js";
import { fileURL, setWidget, widgetOf } from "./panel.js";
import { asOneStep } from "./replace.js";
import { say } from "./words.js";

const OPEN_EDITOR = "Comfy.MaskEditor.OpenMaskEditor";
const EDITOR = "[data-testid='mask-editor-root'], .mask-editor-dialog";
const WIDGET = "painted_mask";

/** mask: {file, key}, as the server told it; nodes: the heat maps that are to take what is painted. */
export async function editMask({ file, key }, nodes) {
  // To undo, all of it is one step: the clicks in the editor are none.
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  tracker?.beforeChange?.();
  try {
    const painted = await edited(file).catch(() => null);
    if (!painted) return;
    paint(nodes, key, painted);
  } finally {
    tracker?.afterChange?.();
  }
  app.extensionManager?.toast?.add({ severity: "success", summary: say("editMask"),
    detail: say("maskEdited"), life: 6000 });
}

/** Back to the map's own mask. */
export const dropPainted = ({ key }, nodes) => paint(nodes, key, null);

export const isPainted = ({ key }, nodes) =>
  nodes.some((node) => `${widgetOf(node, WIDGET)?.value ?? ""}`.includes(`${key}=`));

function paint(nodes, key, file) {
  asOneStep(nodes[0].graph, () => nodes.forEach((node) => {
    const others = `${widgetOf(node, WIDGET).value ?? ""}`.split(",").map((pair) => pair.trim())
      .filter((pair) => pair && !pair.startsWith(`${key}=`));
    setWidget(node, WIDGET, [...others, ...(file ? [`${key}=${file}`] : [])].join(","));
  }));
}

/** The editor wants a node with an image, and writes the name of what was painted into it: a Load
 * Image that is there for as long. Gives that name; nothing where it was closed without saving. */
async function edited(file) {
  const { graph } = app.canvas;
  const helper = window.LiteGraph.createNode("LoadImage");
  const name = `${file.subfolder}/${file.filename} [${file.type}]`;
  helper.title = say("maskHelper");
  graph.add(helper);
  try {
    widgetOf(helper, "image").value = name;
    helper.imgs = [await loaded(file)];
    app.canvas.selectItems([helper]);
    await app.extensionManager.command.execute(OPEN_EDITOR);
    await until(() => document.querySelector(EDITOR), 10);
    await until(() => !document.querySelector(EDITOR));
    const { value } = widgetOf(helper, "image");
    return value === name ? null : value;
  } finally {
    graph.remove(helper);
  }
}

async function loaded(file) {
  const image = new Image();
  image.src = fileURL(file);
  await image.decode();
  return image;
}

/** Looks when elements come and go; seconds: after which what did not come is an error. */
function until(holds, seconds) {
  return new Promise((done, failed) => {
    let late;
    const look = () => {
      if (!holds()) return;
      seen.disconnect();
      clearTimeout(late);
      done();
    };
    const seen = new MutationObserver(look);
    seen.observe(document.body, { childList: true, subtree: true });
    if (seconds) late = setTimeout(() => {
      seen.disconnect();
      failed(new Error("the MaskEditor did not open"));
    }, 1000 * seconds);
    look();
  });
}
