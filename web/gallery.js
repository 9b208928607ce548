// Pictures sorted by score, the scores on them, what is kept before what is not.
import { api } from "../../scripts/api.js";
import { app } from "../../scripts/app.js";
import { addPanel, button, element, fileURL, nodeOf, setWidget, short, svg, valuesOf, widgetOf }
  from "./panel.js";
import { Lightbox } from "./lightbox.js";
import { sortedSampler } from "./repair.js";
import { mapsOf, rendering, shownBy } from "./viewer.js";
import { say, translated } from "./words.js";

const HEIGHT = 320;
const BINS = 24;
const LEAST_SIDE = 76, MOST_SIDE = 256, LINE = 24; // pixels, of a card and of the words above
// As many digits on each card: 0.200 beside 0.198.
const figure = (score) => (score >= 0.001 && score < 100 ? score.toPrecision(3) : short(score));
const FILTER = "BayesDiff_UncertaintyScoreFilter";
const PICKED = "picked";
const WIDGETS = ["criterion", "z", "percent", "keep", "threshold", "allow_empty", "groups",
  "reference", "reference_mode", "picked", "when_empty"];

/** Cards in two groups, and a large view of one of them. */
class Gallery {
  constructor(node, ...above) {
    this.node = node;
    this.cards = [];
    this.opacity = 0.8; // of maps
    this.sides = [element("div", { class: "bayesdiff-cards" }),
      element("div", { class: "bayesdiff-cards bayesdiff-rejected" })];
    this.list = element("div", { class: "bayesdiff-list", "data-capture-wheel": "true" },
      ...this.sides);
    new ResizeObserver(() => this.fit()).observe(this.list);
    this.words = element("div", { class: "bayesdiff-caption", "aria-live": "polite" },
      say("noScores"));
    const peek = (on) => () => { this.peeking = on; this.paint(); };
    this.canvas = element("canvas", { tabindex: 0, role: "img", title: say("peek"),
      onkeydown: (event) => this.key(event), onpointerdown: peek(true), onpointerup: peek(false),
      onpointerleave: peek(false) });
    this.title = element("div", { class: "bayesdiff-caption" });
    this.large = element("div", { class: "bayesdiff-body bayesdiff-large" },
      element("div", { class: "bayesdiff-stage" }, this.canvas),
      element("div", { class: "bayesdiff-row" },
        button(say("previous"), "‹", () => this.enlarge(this.shown - 1)),
        button(say("next"), "›", () => this.enlarge(this.shown + 1)), this.title));
    this.root = element("div", { class: "bayesdiff-gallery", "data-empty": "" }, ...above, this.words, this.list,
      this.large);
    this.lightbox = new Lightbox(this.root, this.large, () => this.canvas,
      () => `bayesdiff_${this.order[this.shown] + 1}`);
  }

  /** pictures: {file, score, title, map}, that a promise; order: their places, as they are to be
   * shown. */
  fill(pictures, order) {
    Object.assign(this, { pictures, order });
    this.root.toggleAttribute("data-empty", false);
    this.cards = pictures.map((picture, index) => element("button", {
      type: "button", class: "bayesdiff-card", title: `${picture.title}${picture.hint ?? ""}`,
      onclick: (event) => this.clicked(index, event.detail),
    },
    picture.file ? element("img", { src: fileURL(picture.file), alt: "", draggable: "false" })
      : element("span", {}, `${index + 1}`),
    element("span", { class: "bayesdiff-score" }, figure(picture.score))));
    pictures.forEach(async ({ file, map }, index) => {
      const card = this.cards[index], layer = file && await map;
      if (!layer) return;
      pictures[index].layer = layer;
      layer.className = "bayesdiff-map";
      layer.style.opacity = this.opacity;
      card.firstChild.after(layer);
    });
  }

  /** Pictures as large as they all fit. */
  fit() {
    const { offsetWidth: width, offsetHeight: height } = this.list;
    const counts = this.sides.map((side) => side.querySelectorAll(".bayesdiff-card").length)
      .filter(Boolean);
    const most = Math.max(Math.floor(width / LEAST_SIDE), 1);
    let columns = Math.min(Math.ceil(width / MOST_SIDE), most);
    const taken = () => counts.reduce((sum, count) =>
      sum + LINE + Math.ceil(count / columns) * (width / columns), 0);
    while (columns < most && taken() > height) columns += 1;
    this.list.style.setProperty("--columns", columns);
  }

  /** groups: two of {words, members}, or null. */
  place(groups) {
    groups.forEach((group, side) => {
      const here = new Set(group?.members);
      this.sides[side].replaceChildren(...(group ? [element("span", {}, group.words)] : []),
        ...this.order.filter((index) => here.has(index)).map((index) => this.cards[index]));
    });
    this.fit();
  }

  /** A double click comes after two single ones, which are to leave no trace. */
  clicked(index, count) {
    if (count > 1) this.undo?.();
    if (count > 1) this.enlarge(this.order.indexOf(index));
    else this.pick?.(index);
  }

  async enlarge(at) {
    this.shown = (at + this.order.length) % this.order.length;
    const index = this.order[this.shown], { file, title } = this.pictures[index];
    if (!file) return;
    const image = new Image();
    image.src = fileURL(file);
    await image.decode();
    Object.assign(this.canvas, { width: image.width, height: image.height });
    this.canvas.style.imageRendering = rendering(image.width, image.height);
    this.canvas.setAttribute("aria-label", title);
    this.title.textContent = this.cards[index].ariaLabel ?? title;
    this.image = image;
    this.paint();
    this.lightbox.open();
  }

  /** The picture, and unless it is peeked at bare its map over it. */
  paint() {
    if (!this.image) return;
    const { width, height } = this.canvas, context = this.canvas.getContext("2d");
    const { layer } = this.pictures[this.order[this.shown]];
    context.globalAlpha = 1;
    context.drawImage(this.image, 0, 0);
    if (!layer || this.peeking) return;
    context.globalAlpha = this.opacity;
    context.drawImage(layer, 0, 0, width, height);
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.enlarge(this.shown + by);
  }
}

/** Of Uncertainty Score Filter: bars, thresholds, what is kept and what is rejected: as the last
 * run decided, and as the server says that the next one would when a widget has changed. A click
 * picks. A run may wait for that. */
class FilterGallery extends Gallery {
  constructor(node) {
    const chart = svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
    const bar = element("div", { class: "bayesdiff-row bayesdiff-waiting", role: "status" });
    super(node, chart, bar);
    Object.assign(this, { chart, bar });
    this.panel = addPanel(node, "gallery", this.root, {
      height: HEIGHT,
      show: (output) => this.show(output.bayesdiff?.[0]),
      look: () => this.look(),
    });
    filters.add(this);
  }

  show(report) {
    if (!report?.scores) return;
    this.report = report;
    this.decidedOn = this.asked();
    const { scores, thumbnails } = report;
    // The map of each, where the scores are of a sampler's own images.
    const { images, colors, opacity } = shownBy(sortedSampler(this.node)) ?? {};
    const maps = images?.length === scores.length ? mapsOf(images, colors) : [];
    this.opacity = opacity;
    this.fill(scores.map((score, index) => ({ score, file: thumbnails?.[index],
      map: maps[index], hint: say("cardHint"),
      title: say("card", { image: index + 1, score: short(score, 4) }) })),
    scores.map((_, index) => index).sort((a, b) => scores[a] - scores[b]));
    this.draw(report);
  }

  asked() {
    return JSON.stringify(valuesOf(this.node, WIDGETS));
  }

  /** As the widget has them, the first is 1; while a run waits, as they were clicked. */
  picked() {
    if (this.waiting) return this.waiting.picked;
    const text = `${widgetOf(this.node, "picked")?.value ?? ""}`;
    return text.split(",").map((word) => word.trim()).filter(Boolean).map((word) => word - 1);
  }

  pick(index) {
    const { criterion, picked } = valuesOf(this.node, ["criterion", "picked"]);
    this.undo = () => this.set(criterion, picked, this.waiting?.before);
    if (this.waiting) this.waiting.before = this.waiting.picked;
    const before = this.waiting || criterion === PICKED ? this.picked() : [];
    const after = before.includes(index) ? before.filter((other) => other !== index)
      : [...before, index].sort((a, b) => a - b);
    if (this.waiting) this.set(criterion, picked, after);
    else this.set(PICKED, after.map((place) => place + 1).join(","));
  }

  set(criterion, picked, waitingFor) {
    if (this.waiting) {
      this.waiting.picked = waitingFor;
      return this.drawWaiting();
    }
    setWidget(this.node, "picked", picked);
    setWidget(this.node, "criterion", criterion);
  }

  async look() {
    const key = this.asked();
    if (!this.report || this.waiting || key === this.decidedOn) return;
    this.decidedOn = key;
    const { scores } = this.report;
    const decided = await post("/bayesdiff/decide", { scores, ...JSON.parse(key) });
    if (key === this.decidedOn && scores === this.report.scores) this.draw(decided);
  }

  draw({ kept, groups, error }) {
    const picked = this.picked();
    this.cards.forEach((card, index) => card.setAttribute("aria-pressed", picked.includes(index)));
    this.words.toggleAttribute("data-error", Boolean(error));
    if (error) {
      this.words.textContent = translated(error);
      return;
    }
    const { scores } = this.report;
    const isPicked = !this.waiting && JSON.parse(this.decidedOn).criterion === PICKED;
    const isKept = new Set(kept);
    const rejected = scores.map((_, index) => index).filter((index) => !isKept.has(index));
    this.drawChart(isKept, isPicked ? [] : groups.map((group) => group.threshold));
    this.cards.forEach((card, index) => card.setAttribute("aria-label",
      `${this.pictures[index].title}, ${say(isKept.has(index) ? "kept" : "rejected")}`));
    // While they are being chosen, pictures stay where they are.
    this.place(this.waiting ? [{ words: say("choose"), members: this.order }, null]
      : [{ words: say("keptCount", { count: kept.length }), members: kept },
        { words: say("rejectedCount", { count: rejected.length }), members: rejected }]);
    this.words.textContent = say("scoreRange", { low: short(Math.min(...scores)),
      high: short(Math.max(...scores)), threshold: isPicked ? say("asPicked") : groups.length === 1
        ? say("threshold", { value: short(groups[0].threshold) })
        : say("groupThresholds", { count: groups.length }) });
    this.chart.setAttribute("aria-label", this.words.textContent);
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

  /** The run waits: what it would keep is picked at first. */
  wait({ token, report, seconds }) {
    this.waiting = { token, picked: report.kept };
    this.root.toggleAttribute("data-waiting", true);
    this.show(report);
    this.left = element("span", { class: "bayesdiff-caption" });
    this.goOn = element("button", { type: "button",
      onclick: () => this.answer(this.waiting.picked) });
    this.bar.replaceChildren(this.left, this.goOn,
      button(say("byCriterion"), say("byCriterion"), () => this.answer(null)),
      button(say("stopRun"), say("stopRun"), () => api.interrupt()));
    const end = Date.now() + 1000 * seconds;
    const tell = () => {
      this.left.textContent = say("waiting", {
        seconds: Math.max(Math.round((end - Date.now()) / 1000), 0) });
    };
    tell();
    this.clock = setInterval(tell, 1000);
    this.drawWaiting();
    post("/bayesdiff/seen", { token });
  }

  drawWaiting() {
    const { picked } = this.waiting;
    this.goOn.textContent = say("goOn", { count: picked.length });
    this.draw({ kept: picked, groups: this.report.groups });
  }

  answer(picked) {
    post("/bayesdiff/choose", { token: this.waiting.token, picked });
  }

  goesOn(token) {
    if (this.waiting?.token !== token) return;
    clearInterval(this.clock);
    this.waiting = null;
    this.bar.replaceChildren();
    this.root.toggleAttribute("data-waiting", false);
  }
}

const filters = new Set();

async function post(path, body) {
  try {
    const answer = await api.fetchApi(path, { method: "POST", body: JSON.stringify(body) });
    return await answer.json();
  } catch {
    return { error: say("noServer") };
  }
}

function waits(question) {
  const node = nodeOf(question);
  const gallery = [...filters].find((each) => each.node === node);
  if (!gallery || gallery.waiting?.token === question.token) return;
  gallery.wait(question);
  app.extensionManager?.toast?.add({ severity: "info", summary: node.title,
    detail: say("waitingToast"), life: 8000 });
}
api.addEventListener("bayesdiff.waits", ({ detail }) => waits(detail));
api.addEventListener("bayesdiff.goes_on", ({ detail }) =>
  filters.forEach((gallery) => gallery.goesOn(detail.token)));

/** A page that is opened while a run waits shows it too. */
export async function lookForWaiting() {
  const asking = (app.rootGraph ?? app.graph).nodes.some((node) =>
    node.comfyClass === FILTER && widgetOf(node, "wait_for_choice")?.value);
  if (!asking) return;
  const answer = await api.fetchApi("/bayesdiff/waiting");
  (await answer.json()).waiting?.forEach(waits);
}

/** Of Best of N: every seed, the dropped ones gray, as they were when they were dropped. */
class SeedGallery extends Gallery {
  constructor(node) {
    super(node);
    this.words.textContent = say("noSeeds");
    addPanel(node, "gallery", this.root, {
      height: HEIGHT,
      show: (output) => this.show(output.bayesdiff?.[0] ?? {}),
    });
  }

  show({ runs, colors }) {
    if (!runs?.length) return;
    const finished = runs.map((_, index) => index).filter((index) => runs[index].dropped_at == null);
    const dropped = runs.map((_, index) => index).filter((index) => runs[index].dropped_at != null);
    const late = (index) => runs[index].dropped_at ?? Infinity; // scores of one step compare
    const maps = mapsOf(finished.flatMap((index) => runs[index].map ?? []), colors);
    this.fill(runs.map((run) => ({ file: run.file, score: run.score, map: run.map && maps.shift(),
      title: say(run.dropped_at == null ? "seed" : "droppedSeed",
        { seed: run.seed, score: short(run.score, 4), step: run.dropped_at }) })),
    [...finished, ...dropped].sort((a, b) => late(b) - late(a)
      || (runs[a].score ?? Infinity) - (runs[b].score ?? Infinity)));
    this.cards.forEach((card, index) => card.setAttribute("aria-label", this.pictures[index].title));
    this.place([{ words: say("finishedCount", { count: finished.length }), members: finished },
      { words: say("droppedCount", { count: dropped.length }), members: dropped }]);
    this.words.textContent = say("seedCount", { count: runs.length });
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

export const addFilterGallery = (node) => new FilterGallery(node);
export const addSeedGallery = (node) => new SeedGallery(node);
