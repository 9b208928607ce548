// The scores of Uncertainty Score Filter: bars, the threshold as the widgets now have it, and small
// pictures of what is kept and what is rejected. A click on one picks it.
import { addPanel, element, fileURL, svg, valuesOf, widgetOf } from "./panel.js";

const HEIGHT = 280;
const BINS = 24;
const WIDGETS = ["criterion", "z", "percent", "keep", "threshold", "allow_empty", "picked"];

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
    this.key = null;
    this.thumbs = report.scores.map((score, index) => this.thumb(score, index));
    this.look();
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
    this.look();
  }

  /** Draws again when a widget has changed: what the next run would keep. */
  look() {
    if (!this.report) return;
    const values = valuesOf(this.node, WIDGETS);
    const key = JSON.stringify(values);
    if (key === this.key) return;
    this.key = key;
    const { scores, groups } = this.report;
    const decided = groups.map((group) => decide(group, scores, values, this.picked()));
    const kept = new Set(decided.flatMap((group) => group.kept));
    this.drawChart(kept, decided.map((group) => group.threshold));
    const picked = this.picked();
    this.thumbs.forEach((thumb, index) => {
      thumb.setAttribute("aria-pressed", picked.includes(index));
      thumb.setAttribute("aria-label", `image ${index}, score ${short(scores[index])},
        ${kept.has(index) ? "kept" : "rejected"}`);
    });
    const order = scores.map((_, index) => index).sort((a, b) => scores[a] - scores[b]);
    const onSide = (side) => order.filter((index) => kept.has(index) === (side === "kept"));
    for (const [side, box] of Object.entries(this.sides)) {
      const label = element("span", {}, `${side} ${onSide(side).length}`);
      box.replaceChildren(label, ...onSide(side).map((index) => this.thumbs[index]));
    }
    const now = decided.length === 1 ? `threshold ${short(decided[0].threshold)}`
      : `${decided.length} groups, each with its threshold`;
    const pickedWords = picked.length && values.criterion !== "picked"
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

/** As bayesdiff_core/filtering.py decides about a group, and by the same rules for ties. */
function decide(group, scores, values, picked) {
  const inOrder = group.members.toSorted((a, b) => scores[a] - scores[b]);
  const size = inOrder.length;
  const rising = inOrder.map((index) => scores[index]);
  const upTo = (limit) => rising.filter((score) => score <= limit + 1e-9 * Math.abs(limit)).length;
  const first = (count) => ({ count, threshold: rising[Math.max(count, 1) - 1] });
  const ways = {
    "mean + z sigma": () => {
      const mean = rising.reduce((sum, score) => sum + score, 0) / size;
      const spread = rising.reduce((sum, score) => sum + (score - mean) ** 2, 0) / size;
      const threshold = mean + values.z * Math.sqrt(spread);
      return { count: upTo(threshold), threshold };
    },
    "drop top percent": () => first(size - Math.floor((size * values.percent) / 100 + 0.5)),
    "keep n": () => first(Math.min(values.keep, size)),
    threshold: () => ({ count: upTo(values.threshold), threshold: values.threshold }),
    // The stored scores are the server's: its last threshold stands.
    reference: () => ({ count: upTo(group.threshold), threshold: group.threshold }),
    picked: () => {
      const chosen = inOrder.filter((index) => picked.includes(index));
      inOrder.sort((a, b) => picked.includes(b) - picked.includes(a) || scores[a] - scores[b]);
      const highest = chosen.length ? scores[chosen.at(-1)] : rising[0];
      return { count: chosen.length, threshold: highest };
    },
  };
  const { count, threshold } = ways[values.criterion]?.() ?? first(size);
  return { kept: inOrder.slice(0, count || (values.allow_empty ? 0 : 1)), threshold };
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
