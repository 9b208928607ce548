// The steps of a sampler as ticks, those with extra calls marked, and what they cost: before the
// run as the server expects it, after it as it was. What would fail is said before it does. Where no
// step has extra calls only the cost is said, in the place of the picture until there is one.
import { api } from "../../scripts/api.js";
import { addPanel, element, origin, sentence, svg, valuesOf } from "./panel.js";
import { setIdle } from "./quiet.js";
import { tellCost } from "./viewer.js";
import { say, translated } from "./words.js";

const HEIGHT = 84;
const WIDGETS = ["mode", "skip_schedule", "skip_interval", "uncertain_steps", "probe_levels",
  "deviations", "mc_samples", "paper_rule", "noise_model", "keep_steps", "check"];
const STOCK = ["steps", "sampler_name", "scheduler", "denoise"];
const MOST_TICKS = 200;

/** The widgets that decide, a sampler's own and the stock ones: of KSampler's they are on it, of
 * Sampler Custom's on the nodes that give the sigmas and the sampler. */
function askedOf(node) {
  const asked = { ...valuesOf(node, WIDGETS), posterior: Boolean(origin(node, "posterior")) };
  for (const giver of [node, origin(node, "sigmas"), origin(node, "sampler")]) {
    for (const [name, value] of Object.entries(giver ? valuesOf(giver, STOCK) : {})) {
      if (value !== undefined) asked[name] ??= value;
    }
  }
  return asked;
}

/** What the server expects of a run by these widgets. */
async function costOf(asked, flow) {
  const known = Object.entries({ ...asked, flow }).filter(([, value]) => value !== undefined);
  try {
    const answer = await api.fetchApi(`/bayesdiff/cost?${new URLSearchParams(known)}`);
    return await answer.json();
  } catch {
    return { steps: 0, words: say("noServer") };
  }
}

class Strip {
  constructor(node) {
    this.node = node;
    this.ticks = svg("svg", {
      viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img",
    });
    this.words = element("div", { class: "bayesdiff-caption" });
    const root = element("div", { class: "bayesdiff-schedule" }, this.ticks, this.words);
    this.widget = addPanel(node, "schedule", root, {
      height: HEIGHT,
      grows: false,
      look: () => this.look(),
      show: (output) => this.ran(output.bayesdiff?.[0]?.schedule),
    });
    setIdle(node, this.widget, true); // until it is known
  }

  async look() {
    const asked = askedOf(this.node);
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    this.key = key;
    if (asked.steps === undefined) return this.draw({ steps: 0, words: say("costLater") });
    const told = await costOf(asked, this.node.properties.bayesdiff_flow ?? false);
    if (key === this.key) this.draw({ mode: asked.mode, ...told });
  }

  ran(schedule) {
    if (!schedule) return;
    this.node.properties.bayesdiff_flow = schedule.flow;
    const asked = askedOf(this.node);
    this.key = JSON.stringify(asked); // until a widget changes
    this.draw({ mode: asked.mode, ...schedule, done: true });
  }

  draw({
    steps, uncertain = [], calls, extra_calls: extra = 0, check_calls: after = 0, mode, error,
    words, done,
  }) {
    const marked = new Set(uncertain);
    const shown = Math.min(steps ?? 0, MOST_TICKS);
    this.ticks.replaceChildren(...Array.from({ length: shown }, (_, step) => {
      const x = ((step + 0.5) / shown) * 100;
      const on = marked.has(step);
      return svg("line", {
        x1: x, x2: x, y1: on ? 2 : 11, y2: 18, class: on ? "bayesdiff-on" : "",
      });
    }));
    // How often a sampler calls the network is not known of all; what we add is.
    const times = calls && ((calls + extra + after) / calls).toFixed(2).replace(/\.?0+$/, "");
    const cost = calls ? say(done ? "costWas" : "costIs", { times }) : "";
    const marks = marked.size || !calls ? say("costExtra", { extra, marked: marked.size }) : "";
    const check = after ? say("costCheck", { after }) : "";
    this.words.textContent = (error && translated(error)) ?? words
      ?? `${cost}${marks}${say("costSteps", { steps })}${check}`;
    this.words.toggleAttribute("data-error", Boolean(error));
    this.ticks.setAttribute("aria-label", `${mode}: ${this.words.textContent}`);
    this.words.title = error ?? say(done ? "costWasTitle" : "costIsTitle");
    const idle = !error && !marked.size;
    setIdle(this.node, this.widget, idle);
    tellCost(this.node, idle ? sentence(this.words.textContent) : "");
  }
}

/** For a node with a `step` of a trajectory: says when the sampler linked to it will not keep that
 * one; nothing where that is not known. */
export async function stepWarning(node) {
  const { step } = valuesOf(node, ["step"]), sampler = origin(node, "trajectory");
  if (!(step >= 0) || !sampler?.comfyClass?.startsWith("BayesDiff_")) return "";
  const asked = askedOf(sampler);
  if (asked.steps === undefined || asked.mode === undefined) return "";
  const { kept } = await costOf(asked, sampler.properties.bayesdiff_flow ?? false);
  return !kept || kept.includes(step) ? "" : say("notKept", { step, kept: kept.join(", ") });
}

export const addSchedule = (node) => new Strip(node);
