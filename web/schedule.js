// The steps of a sampler as ticks, those with extra calls marked, and what they cost: before the
// run as the server expects it, after it as it was.
import { api } from "../../scripts/api.js";
import { addPanel, element, svg, valuesOf } from "./panel.js";

const HEIGHT = 66;
const WIDGETS = ["mode", "skip_schedule", "skip_interval", "uncertain_steps", "probe_levels",
  "deviations", "mc_samples", "paper_rule", "noise_model", "check"];
const STOCK = ["steps", "sampler_name", "scheduler", "denoise"];
const MOST_TICKS = 200;

class Strip {
  constructor(node) {
    this.node = node;
    this.ticks = svg("svg", {
      viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img",
    });
    this.words = element("div", { class: "bayesdiff-caption" });
    addPanel(node, "schedule", element("div", { class: "bayesdiff-schedule" }, this.ticks,
      this.words), {
      height: HEIGHT,
      grows: false,
      look: () => this.look(),
      show: (output) => this.ran(output.bayesdiff?.[0]?.schedule),
    });
  }

  /** The widgets that decide, our own and the stock ones: of KSampler's they are here, of Sampler
   * Custom's on the nodes that give the sigmas and the sampler. */
  asked() {
    const { node } = this;
    const asked = { ...valuesOf(node, WIDGETS), posterior: Boolean(origin(node, "posterior")) };
    for (const giver of [node, origin(node, "sigmas"), origin(node, "sampler")]) {
      for (const [name, value] of Object.entries(giver ? valuesOf(giver, STOCK) : {})) {
        if (value !== undefined) asked[name] ??= value;
      }
    }
    return asked;
  }

  async look() {
    const asked = this.asked();
    const key = JSON.stringify(asked);
    if (key === this.key) return;
    this.key = key;
    if (asked.steps === undefined) {
      return this.draw({ steps: 0, words: "the cost is known when it has run" });
    }
    const flow = this.node.properties.bayesdiff_flow ?? false;
    const known = Object.entries({ ...asked, flow }).filter(([, value]) => value !== undefined);
    try {
      const answer = await api.fetchApi(`/bayesdiff/cost?${new URLSearchParams(known)}`);
      const told = await answer.json();
      if (key === this.key) this.draw({ mode: asked.mode, ...told });
    } catch {
      if (key === this.key) this.draw({ steps: 0, words: "the server did not answer" });
    }
  }

  ran(schedule) {
    if (!schedule) return;
    this.node.properties.bayesdiff_flow = schedule.flow;
    const asked = this.asked();
    this.key = JSON.stringify(asked); // until a widget changes
    this.draw({ mode: asked.mode, ...schedule, done: true });
  }

  draw({
    steps, uncertain = [], calls, extra_calls: extra = 0, check_calls: after = 0, mode, error,
    words, done,
  }) {
    const marked = new Set(uncertain);
    const shown = Math.min(steps, MOST_TICKS);
    this.ticks.replaceChildren(...Array.from({ length: shown }, (_, step) => {
      const x = ((step + 0.5) / shown) * 100;
      const on = marked.has(step);
      return svg("line", {
        x1: x, x2: x, y1: on ? 2 : 11, y2: 18, class: on ? "bayesdiff-on" : "",
      });
    }));
    // How often a sampler calls the network is not known of all; what we add is.
    const times = calls && ((calls + extra + after) / calls).toFixed(2).replace(/\.?0+$/, "");
    const cost = calls ? `${done ? "it took" : "takes"} ${times} × KSampler: ` : "";
    const marks = marked.size || !calls ? `${extra} extra calls at ${marked.size} of ` : "";
    const check = after ? `, ${after} to check the picture` : "";
    this.words.textContent = error ?? words ?? `${cost}${marks}${steps} steps${check}`;
    this.words.toggleAttribute("data-error", Boolean(error));
    this.ticks.setAttribute("aria-label", `${mode}: ${this.words.textContent}`);
    this.words.title = done ? "What the run took."
      : "Before the first run the marks are those of Stable Diffusion's noise levels.";
  }
}

/** The node at the other end of an input's link. */
function origin(node, input) {
  const link = node.inputs?.find(({ name }) => name === input)?.link;
  const from = link == null ? null : node.graph?.getLink?.(link) ?? node.graph?.links?.[link];
  return from ? node.graph.getNodeById(from.origin_id) : null;
}

export const addSchedule = (node) => new Strip(node);
