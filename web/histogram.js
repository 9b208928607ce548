// The scores of Uncertainty Score Filter: bars, thresholds, and small pictures of what is kept and
// what is rejected: as the last run decided, and as the server says that the next one would when a
// widget has changed. A click on a picture picks it.
import { api } from "../../scripts/api.js";
import { addPanel, element, fileURL, svg, valuesOf, widgetOf } from "./panel.js";

const HEIGHT = 280;
const BINS = 24;
const WIDGETS = ["criterion", "z", "percent", "keep", "threshold", "allow_empty", "groups",
  "reference", "reference_mode", "picked"];

class Histogram {
  constructor(node) {
    this.node = node;
    this.chart = svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
    this.words = element("div", { class: "bayesdiff-caption", "aria-live": "polite" },
      "The scores appear here when the node runs.");
    this.sides = Object.fromEntries(["kept", "rejected"].map((name) =>
      [name, element("div", { class: `bayesdiff-thumbs bayesdiff-${name}`, role: "group",
        "aria-label": name })]));
    const root = element("div", { class: "bayesdiff-histogram" }, this.chart, this.words,
      ...Object.values(this.sides));
    addPanel(node, "histogram", root, {
      height: HEIGHT,
      show: (output) => this.show(output.bayesdiff?.[0]),
      look: () => this.look(),
    });
  }

  show(report) {
    if (!report?.scores) return;
    this.report = report;
    this.key = this.asked();
    this.thumbs = report.scores.map((score, index) => this.thumb(score, index));
    this.draw(report);
  }

  asked() {
    return JSON.stringify(valuesOf(this.node, WIDGETS));
  }

  thumb(score, index) {
    const file = this.report.thumbnails?.[index];
    const face = file ? element("img", { src: fileURL(file), alt: "", draggable: "false" })
      : element("span", {}, `${index}`);
    return element("button", {
      type: "button", title: `image ${index}, score ${short(score)}: click to pick`,
      onclick: () => this.pick(index),
    }, face);
  }

  picked() {
    const text = `${widgetOf(this.node, "picked")?.value ?? ""}`;
    return text.split(",").map((word) => word.trim()).filter(Boolean).map(Number);
  }

  pick(index) {
    const before = this.picked();
    const after = before.includes(index) ? before.filter((other) => other !== index)
      : [...before, index].sort((a, b) => a - b);
    const widget = widgetOf(this.node, "picked");
    widget.value = after.join(",");
    widget.callback?.(widget.value);
  }

  async look() {
    const key = this.asked();
    if (!this.report || key === this.key) return;
    this.key = key;
    const { scores } = this.report;
    let decided;
    try {
      const body = JSON.stringify({ scores, ...JSON.parse(key) });
      decided = await (await api.fetchApi("/bayesdiff/decide", { method: "POST", body })).json();
    } catch {
      decided = { error: "the server did not answer" };
    }
    if (key === this.key && scores === this.report.scores) this.draw(decided);
  }

  draw({ kept, groups, error }) {
    const picked = this.picked();
    this.thumbs.forEach((thumb, index) =>
      thumb.setAttribute("aria-pressed", picked.includes(index)));
    this.words.toggleAttribute("data-error", Boolean(error));
    if (error) {
      this.words.textContent = error;
      return;
    }
    const { scores } = this.report;
    const isKept = new Set(kept);
    this.drawChart(isKept, groups.map((group) => group.threshold));
    this.thumbs.forEach((thumb, index) => thumb.setAttribute("aria-label",
      `image ${index}, score ${short(scores[index])}, ${isKept.has(index) ? "kept" : "rejected"}`));
    const order = scores.map((_, index) => index).sort((a, b) => scores[a] - scores[b]);
    for (const [side, box] of Object.entries(this.sides)) {
      const here = order.filter((index) => isKept.has(index) === (side === "kept"));
      box.replaceChildren(element("span", {}, `${side} ${here.length}`),
        ...here.map((index) => this.thumbs[index]));
    }
    const now = groups.length === 1 ? `threshold ${short(groups[0].threshold)}`
      : `${groups.length} groups, each with its threshold`;
    const pickedWords = picked.length && widgetOf(this.node, "criterion")?.value !== "picked"
      ? `; ${picked.length} picked, which criterion picked would keep` : "";
    this.words.textContent =
      `scores ${short(Math.min(...scores))} to ${short(Math.max(...scores))}, ${now}${pickedWords}`;
    this.chart.setAttribute("aria-label", `histogram: ${this.words.textContent}`);
  }

  drawChart(kept, thresholds) {
    const { scores } = this.report;
    const [low, high] = ends(scores, thresholds);
    const across = (score) => (100 * (Math.min(Math.max(score, low), high) - low)) / (high - low);
    const bins = Array.from({ length: BINS }, () => ({ kept: 0, rejected: 0 }));
    scores.forEach((score, index) => {
      const bin = Math.min(Math.floor((across(score) / 100) * BINS), BINS - 1);
      bins[bin][kept.has(index) ? "kept" : "rejected"] += 1;
    });
    const most = Math.max(...bins.map((bin) => bin.kept + bin.rejected));
    const bar = (place, from, count, name) => svg("rect", {
      x: (place * 100) / BINS + 0.3, width: 100 / BINS - 0.6, class: `bayesdiff-${name}`,
      y: 39 - ((from + count) * 37) / most, height: (count * 37) / most,
    });
    this.chart.replaceChildren(
      ...bins.flatMap((bin, place) => [bar(place, 0, bin.kept, "kept"),
        bar(place, bin.kept, bin.rejected, "rejected")]),
      svg("line", { x1: 0, x2: 100, y1: 39, y2: 39, class: "bayesdiff-axis" }),
      ...thresholds.map((threshold) => svg("line", {
        x1: across(threshold), x2: across(threshold), y1: 0, y2: 40, class: "bayesdiff-threshold",
      })));
  }
}

/** Of the axis: scores and thresholds, but thresholds far off do not squeeze the scores. */
function ends(scores, thresholds) {
  const low = Math.min(...scores), high = Math.max(...scores);
  const room = high - low || Math.abs(high) || 1;
  const from = Math.max(Math.min(low, ...thresholds), low - room);
  const to = Math.min(Math.max(high, ...thresholds), high + room);
  const margin = 0.04 * (to - from) || 0.5 * room;
  return [from - margin, to + margin];
}

const short = (number) => Number(number.toPrecision(4)).toString();

export const addHistogram = (node) => new Histogram(node);
