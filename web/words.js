// All words that our panels say, in one place. {name} stands for a value. Other languages are in
// locales/, with what nodes report besides: there a line's English stands for it.
import { app } from "../../scripts/app.js";

const WORDS = {
  report: "report",
  noReport: "The report appears here when the node runs.",
  noMap: "The picture and its map appear here when the node runs.",
  noScores: "The pictures and their scores appear here when the node runs.",
  noServer: "the server did not answer",
  gone: "The pictures of this run are gone: run the graph again.",

  // What a map tells, by what it was made of (nodes/pictures/viewer.py).
  change: "what still changed late",
  uncertainty: "where the model was unsure",
  pixel: "what would differ if drawn again",
  doubt: "what the model doubts",
  changeKey: "red = undecided, clear = settled",
  uncertaintyKey: "red = unsure, clear = sure",
  pixelKey: "red = unsure, clear = sure",
  doubtKey: "red = doubtful, clear = sure",
  result: "Result",
  atStep: "After {step} of {steps} steps",
  atStepDetails: "What the picture was going to be at noise level {sigma}.",
  moreImages: " ({count} more not shown)",
  value: "{value} at {x}, {y}: higher than in {percent} % of the picture",
  sure: "sure",
  unsure: "unsure",
  range: "From {low} to {high}.",
  steps: "step",
  opacity: "opacity of the colors",
  play: "play the steps",
  previous: "previous image",
  next: "next image",
  stage: "image {image}, {where}: {map}. Hold to see the bare picture, double-click to enlarge.",
  stageTitle: "Hold to see the bare picture. Double-click to enlarge.",

  costLater: "the cost is known when it has run",
  costIs: "takes {times} × KSampler: ",
  costWas: "it took {times} × KSampler: ",
  costExtra: "{extra} extra calls at {marked} of ",
  costSteps: "{steps} steps",
  costCheck: ", {after} to check the picture",
  costIsTitle: "Before the first run the marks are those of Stable Diffusion's noise levels.",
  costWasTitle: "What the run took.",
  notKept: "Step {step} will not be there: the sampler keeps {kept}. Choose one of these, or raise"
    + " keep_steps on the sampler.",

  card: "Image {image}, score {score}",
  cardHint: ": click to pick, hold to see it bare, double-click to enlarge",
  peek: "Hold to see the bare picture.",
  kept: "kept",
  rejected: "rejected",
  keptCount: "kept {count}, the surest first",
  rejectedCount: "rejected {count}",
  scoreRange: "Scores {low} (sure) to {high} (unsure), {threshold}",
  threshold: "threshold {value}",
  asPicked: "kept as picked",
  groupThresholds: "{count} groups, each with its threshold",
  waiting: "The run waits for your choice: {seconds} s",
  waitingToast: "The run waits: click the pictures to keep, then go on.",
  choose: "click what to keep; the surest come first",
  goOn: "Keep these {count}",
  byCriterion: "Keep by criterion",
  stopRun: "Stop the run",
  noSeeds: "Every seed appears here when the node runs.",
  seed: "Seed {seed}, score {score}: finished",
  droppedSeed: "Seed {seed}, score {score}: dropped after {step} steps",
  finishedCount: "finished {count}, the surest first",
  droppedCount: "dropped {count}, as they were then",
  seedCount: "{count} seeds, sorted by score (lower: surer)",

  replace: "Replace with {name}",
  replacedDenoised: "What was linked to denoised_output now gets the latent: the same, where sampling"
    + " goes to the end.",
  replacedLost: "No longer linked, as this node does not have it: {names}.",
  unfold: "Show advanced inputs",
  fold: "Hide advanced inputs",
  allOutputs: "Show all outputs",
  fewOutputs: "Hide outputs that are not used",
  repair: "Repair the red parts",
  repairTitle: "Adds a second pass that redraws only the red parts, linked to this sampler.",
  editMask: "Edit the mask",
  editMaskTitle: "Opens the mask of this picture in the MaskEditor. What you save there is repaired.",
  dropMask: "Undo",
  dropMaskTitle: "Back to the mask that the map gives.",
  maskHelper: "Mask, while it is edited",
  maskEdited: "The next run takes your mask for this picture.",
  repairAdded: "Added and linked to this sampler. Press Run.",
  repairMissing: "Added. Link what is still open on it, then press Run.",
  repairNoSampler: "Link the trajectory of a BayesDiff sampler first: the repair starts from it.",
  repairNoBlueprint: "The blueprint Uncertainty-guided repair was not found on the server.",

  split: "between the repaired picture and the one before",
  repaired: "repaired",
  before: "before",

  enlarge: "enlarge",
  close: "close",
  save: "Save",
  copy: "Copy",
  copied: "Copied.",
  notCopied: "This browser does not copy pictures.",
};

const LANGUAGES = ["zh"]; // beside English
const here = await translation().catch(() => ({}));
const LINES = Object.entries(here.reports ?? {}).map(([english, words]) => [pattern(english), words]);

async function translation() {
  const language = app.extensionManager?.setting?.get("Comfy.Locale");
  if (!LANGUAGES.includes(language)) return {};
  return (await fetch(new URL(`./locales/${language}.json`, import.meta.url))).json();
}

/** Of a line with values in it; each name is a group. */
function pattern(english) {
  const parts = english.split(/\{(\w+)\}/).map((part, place) =>
    (place % 2 ? `(?<${part}>.*?)` : part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")));
  return new RegExp(`^${parts.join("")}$`);
}

const filled = (words, values) => words.replace(/\{(\w+)\}/g, (_, name) => values[name]);

export const say = (key, values = {}) => filled(here.words?.[key] ?? WORDS[key], values);

/** What the server said, line by line; what has no translation stays as it is. */
export const translated = (text) => text.split("\n").map((line) => {
  for (const [english, words] of LINES) {
    const found = english.exec(line);
    if (found) return filled(words, found.groups ?? {});
  }
  return line;
}).join("\n");
