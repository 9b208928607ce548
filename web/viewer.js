// The map over the picture, at the result and at the steps in which it formed.
import { api } from "../../scripts/api.js";
import { addPanel, button, element, fileURL, keyOf, nodeAt, nodeOf, origin, sentence, short, widgetOf }
  from "./panel.js";
import { Lightbox } from "./lightbox.js";
import { dropPainted, editMask, isPainted } from "./mask.js";
import { comparisonOf, heatmapsOf, isSampler, repairButton, repairedOf } from "./repair.js";
import { stepWarning } from "./schedule.js";
import { say, translated } from "./words.js";

const HEIGHT = 330;
const FRAME_TIME = 350; // ms, when playing

class Viewer {
  constructor(node) {
    this.node = node;
    this.images = [];
    this.repaired = [];
    this.at = { image: 0, frame: 0 };
    this.opacity = node.properties.bayesdiff_opacity ?? widgetOf(node, "opacity")?.value ?? 0.8;
    this.build();
    viewers.set(node, this);
    addPanel(node, "viewer", this.root, {
      height: HEIGHT,
      show: (output) => this.show(output.bayesdiff?.[0]),
      look: () => this.look(),
      restored: (outputs) => {
        const comparison = comparisonOf(node);
        if (comparison) this.compare(repairedOf(outputs[keyOf(comparison)]));
      },
    });
  }

  /** Beside the picture, what its repair has made of it: a slider between both. */
  compare(files) {
    if (!this.images.length) return;
    this.repaired = files;
    this.split.value = 0.5;
    this.draw();
  }

  look() {
    this.followWidget();
    this.warn();
    this.offerMask();
  }

  /** That of the image shown: a heat map's own, a sampler's by the repair that was added to it. */
  mask() {
    const shown = [this, ...heatmapsOf(this.node).map((node) => viewers.get(node))];
    return shown.map((viewer) => viewer?.images[this.at.image]?.mask).find(Boolean);
  }

  offerMask() {
    const mask = this.mask();
    this.editButton.hidden = !mask;
    this.dropButton.hidden = !mask || !isPainted(mask, heatmapsOf(this.node));
  }

  /** Before a run, of what would fail. */
  async warn() {
    const key = JSON.stringify([widgetOf(this.node, "step")?.value,
      origin(this.node, "trajectory")?.widgets?.map(({ value }) => value)]);
    if (key === this.warnedOf) return;
    this.warnedOf = key;
    const words = await stepWarning(this.node);
    if (key === this.warnedOf) this.warning.textContent = words;
  }

  build() {
    const slider = (label, max, step, oninput) => element("input", {
      type: "range", min: 0, max, step, "aria-label": label, title: label, oninput,
    });
    const peek = (on) => () => { this.peeking = on; this.paint(); };
    this.canvas = element("canvas", {
      tabindex: 0, role: "img", title: say("stageTitle"),
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event),
      onpointerleave: () => { peek(false)(); this.caption(); },
      onpointerdown: ({ button }) => button === 0 && peek(true)(),
      onpointerup: peek(false), onpointercancel: peek(false),
      ondblclick: () => this.now && this.lightbox.open(),
    });
    this.cost = element("div");
    this.hint = element("div", { class: "bayesdiff-hint" }, say("noMap"), this.cost);
    this.notes = element("div", { class: "bayesdiff-notes" });
    this.stepSlider = slider(say("steps"), 0, 1, () => this.go({ frame: +this.stepSlider.value }));
    this.opacitySlider = slider(say("opacity"), 1, 0.05, () => {
      this.setOpacity(+this.opacitySlider.value);
    });
    this.opacitySlider.value = this.opacity;
    this.playButton = button(say("play"), "▶", () => this.play());
    this.count = element("span", { class: "bayesdiff-count" });
    this.words = element("div", { class: "bayesdiff-caption", "aria-live": "polite" });
    this.bar = element("span", { class: "bayesdiff-bar" });
    this.warning = element("div", { class: "bayesdiff-error", role: "alert" });
    this.split = slider(say("split"), 1, 0.01, () => this.paint());
    this.splitRow = element("div", { class: "bayesdiff-row", hidden: "" },
      element("span", {}, say("repaired")), this.split, element("span", {}, say("before")));
    const onMask = (key, act) => {
      const made = button(say(`${key}Title`), say(key), () => act(this.mask(), heatmapsOf(this.node)));
      made.hidden = true;
      return made;
    };
    this.enlargeButton = button(say("enlarge"), "⤢", () => this.lightbox.open());
    this.enlargeButton.className = "bayesdiff-enlarge";
    this.editButton = onMask("editMask", editMask);
    this.dropButton = onMask("dropMask", dropPainted);
    const body = element("div", { class: "bayesdiff-body" }, this.warning,
      element("div", { class: "bayesdiff-stage" }, this.canvas, this.hint),
      this.words, this.notes,
      element("div", { class: "bayesdiff-row" },
        button(say("previous"), "‹", () => this.go({ image: this.at.image - 1 })), this.count,
        button(say("next"), "›", () => this.go({ image: this.at.image + 1 })),
        this.playButton, this.stepSlider,
        this.enlargeButton),
      element("div", { class: "bayesdiff-row" }, element("span", {}, say("sure")), this.bar,
        element("span", {}, say("unsure")),
        element("span", { class: "bayesdiff-opacity", title: say("opacity") }, "◐"), this.opacitySlider),
      this.splitRow,
      element("div", { class: "bayesdiff-row bayesdiff-repair" }, repairButton(this.node),
        this.editButton, this.dropButton));
    this.root = element("div", { class: "bayesdiff-viewer" }, body);
    this.lightbox = new Lightbox(this.root, body, () => this.canvas,
      () => `bayesdiff_${this.at.image + 1}`);
    this.enable(false);
  }

  enable(on) {
    this.root.toggleAttribute("data-empty", !on);
    this.root.querySelectorAll(".bayesdiff-body :is(button, input)")
      .forEach((control) => { control.disabled = !on; });
  }

  show(told) {
    const viewer = told?.viewer ?? told;
    if (!viewer?.images?.length) return;
    this.stop();
    this.notes.textContent = translated((told.notes ?? []).join("\n"));
    this.take(viewer, viewer.images);
    this.at.frame = this.frames(this.at.image).length - 1;
    this.draw();
  }

  take({ map, steps_map: stepsMap, left_out: leftOut, colors, steps }, images) {
    // Pictures of another run have no repaired ones yet. Those of the same are told again, and late.
    const others = JSON.stringify(images) !== JSON.stringify(this.images);
    if (others && isSampler(this.node)) comparing(this.node).forEach((viewer) => { viewer.repaired = []; });
    Object.assign(this, { images, map, stepsMap, leftOut, colors, total: steps });
    this.bar.style.setProperty("--colors", colors.map(([r, g, b, a]) =>
      `rgb(${r} ${g} ${b} / ${a / 255})`).join());
    this.enable(true);
    this.at.image = Math.min(this.at.image, images.length - 1);
  }

  /** A step of the run that goes on: the picture forms, and can be gone back in already. */
  forms(told) {
    const { file, frames } = told.sheet;
    const before = told.step > (this.images[0]?.forming?.at(-1).step ?? Infinity) ? this.images : [];
    const atEnd = !before.length || this.at.frame === this.frames(this.at.image).length - 1;
    this.take(told, frames.map((frame, column) => ({ forming: [...before[column]?.forming ?? [],
      { ...frame, column, columns: frames.length, file }] })));
    this.root.toggleAttribute("data-stale", false);
    if (atEnd) this.at.frame = this.frames(this.at.image).length - 1;
    this.draw();
  }

  frames(image) {
    return framesOf(this.images[image]);
  }

  go({ image = this.at.image, frame = this.at.frame }) {
    if (!this.images.length) return;
    const wrapped = (image + this.images.length) % this.images.length;
    const last = this.frames(wrapped).length - 1;
    this.at = { image: wrapped, frame: Math.min(Math.max(frame, 0), last) };
    return this.draw();
  }

  async draw() {
    const { image, frame } = this.at;
    const frames = this.frames(image);
    const now = frames[frame];
    this.stepSlider.max = frames.length - 1;
    this.stepSlider.value = frame;
    this.stepSlider.disabled = this.playButton.disabled = frames.length < 2;
    this.count.textContent = `${image + 1}/${this.images.length}`;
    const file = frame === frames.length - 1 && this.repaired[image];
    const [sheet, after] = await Promise.all([now.file, file].map((each) =>
      each && loaded(fileURL(each)).catch(() => null)));
    if (this.at.image !== image || this.at.frame !== frame) return; // another is wanted by now
    this.root.toggleAttribute("data-gone", !sheet);
    if (!sheet) {
      this.words.textContent = say("gone");
      return;
    }
    this.splitRow.hidden = !after;
    this.now = { ...now, after, ...read(sheet, now) };
    const { width, height } = this.now;
    this.layer = colored(this.now, this.colors);
    Object.assign(this.canvas, { width, height });
    this.canvas.style.imageRendering = rendering(width, height);
    this.offerMask();
    this.bar.title = say("range", { low: short(now.low), high: short(now.high) });
    this.paint();
    this.caption();
  }

  /** The picture, and unless it is peeked at bare the map over it. */
  paint() {
    if (!this.now) return;
    const { sheet, left, width, height, blank, after } = this.now;
    const context = this.canvas.getContext("2d");
    context.globalAlpha = 1;
    context.drawImage(sheet, left, 0, width, height, 0, 0, width, height);
    if (this.peeking) return;
    context.globalAlpha = blank ? 1 : this.opacity;
    context.drawImage(this.layer, 0, 0);
    if (after) this.paintRepaired(context);
  }

  /** Left of the slider. */
  paintRepaired(context) {
    const { after, width, height } = this.now;
    const edge = Math.round(this.split.value * width);
    context.globalAlpha = 1;
    context.save();
    context.beginPath();
    context.rect(0, 0, edge, height);
    context.clip();
    context.drawImage(after, 0, 0, width, height);
    context.restore();
    context.fillStyle = "#fff";
    context.fillRect(edge, 0, Math.max(width / 256, 0.5), height);
  }

  caption(extra = "") {
    if (!this.now) return;
    const { step, sigma } = this.now;
    const { steps, forming } = this.images[this.at.image];
    const atEnd = this.at.frame === +this.stepSlider.max && !forming;
    const all = this.total ?? steps?.frames.at(-1).step; // the result is kept always
    const where = atEnd ? say("result") : say("atStep", { step, steps: all });
    const left = this.leftOut ? say("moreImages", { count: this.leftOut }) : "";
    const glows = this.colors[0][3] === 0; // else every pixel has a color, and the bar tells
    const kind = atEnd ? this.map : this.stepsMap;
    const map = say(kind) + (glows ? ` (${say(`${kind}Key`)})` : "");
    this.words.textContent = extra || `${where}${left}: ${map}`;
    this.words.title = atEnd ? sentence(map) : say("atStepDetails", { sigma: short(sigma) });
    this.canvas.setAttribute("aria-label", say("stage", { image: this.at.image + 1, where, map }));
  }

  point(event) {
    if (!this.now) return;
    const box = this.canvas.getBoundingClientRect(); // zoomed with the graph
    const { width, height, codes, top } = this.now;
    const scale = Math.min(box.width / width, box.height / height);
    const x = Math.floor((event.clientX - box.left - (box.width - width * scale) / 2) / scale);
    const y = Math.floor((event.clientY - box.top - (box.height - height * scale) / 2) / scale);
    const inside = x >= 0 && y >= 0 && x < width && y < height;
    this.caption(inside ? this.told(x, y, codes[y * width + x]) : "");
  }

  told(x, y, code) {
    const { codes, top } = this.now;
    const below = codes.reduce((count, other) => count + (other < code), 0);
    return say("value", { value: short((code / 65535) * top), x, y,
      percent: Math.floor((100 * below) / codes.length) });
  }

  key(event) {
    const moves = {
      ArrowLeft: () => this.go({ frame: this.at.frame - 1 }),
      ArrowRight: () => this.go({ frame: this.at.frame + 1 }),
      ArrowUp: () => this.go({ image: this.at.image - 1 }),
      ArrowDown: () => this.go({ image: this.at.image + 1 }),
      Enter: () => this.now && this.lightbox.open(),
      " ": () => this.play(),
    };
    if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    moves[event.key]();
  }

  play() {
    if (this.timer) return this.stop();
    const last = this.frames(this.at.image).length - 1;
    if (this.at.frame === last) this.go({ frame: 0 });
    this.playButton.textContent = "❚❚";
    this.timer = setInterval(() => {
      if (!this.root.isConnected || this.at.frame >= last) return this.stop();
      this.go({ frame: this.at.frame + 1 });
    }, FRAME_TIME);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.textContent = "▶";
  }

  /** What is seen here is what the node gives at its next run, where it has such a widget. */
  setOpacity(value) {
    this.opacity = value;
    const widget = widgetOf(this.node, "opacity");
    if (widget) widget.value = value;
    else this.node.properties.bayesdiff_opacity = value;
    this.opacitySlider.value = value;
    this.paint();
  }

  followWidget() {
    const widget = widgetOf(this.node, "opacity");
    const value = widget?.value ?? this.node.properties.bayesdiff_opacity;
    if (typeof value === "number" && value !== this.opacity) this.setOpacity(value);
  }
}

/** Small pictures as their pixels are; a preview of a latent would be a mosaic. */
export function rendering(width, height) {
  const side = Math.max(width, height);
  return side >= 48 && side < 200 ? "pixelated" : "auto";
}

const sheets = new Map(); // the last few, by address

function loaded(url) {
  if (!sheets.has(url)) {
    const image = new Image();
    image.src = url;
    sheets.set(url, image.decode().then(() => image));
    if (sheets.size > 100) sheets.delete(sheets.keys().next().value);
  }
  return sheets.get(url);
}

/** Of an image: its steps, and last the result as the node has made it. */
function framesOf({ steps, result, forming }) {
  if (forming) return forming;
  const columns = (sheet) => (sheet?.frames ?? []).map((frame, column, all) =>
    ({ ...frame, column, columns: all.length, file: sheet.file }));
  const before = columns(steps);
  return result ? [...before.slice(0, -1), ...columns(result)] : before;
}

/** Where a frame is in its sheet, and its map. */
function read(sheet, { column, columns }) {
  const width = sheet.width / columns, height = sheet.height / 2, left = column * width;
  return { sheet, left, width, height, codes: codes(sheet, left, width, height) };
}

function colored({ width, height, codes, top, low, high }, colors) {
  const layer = element("canvas", { width, height });
  const pixels = new ImageData(width, height);
  const last = colors.length - 1;
  const span = high - low > 1e-5 * high ? high - low : Infinity;
  codes.forEach((code, place) => {
    const part = Math.min(Math.max(((code / 65535) * top - low) / span, 0), 1);
    pixels.data.set(colors[Math.round(part * last)], 4 * place);
  });
  layer.getContext("2d").putImageData(pixels, 0, 0);
  return layer;
}

/** The maps of results alone, by one measure, as they stand side by side; null where one is gone. */
export function mapsOf(images, colors) {
  const frames = images.map((image) => framesOf(image).at(-1));
  const low = Math.min(...frames.map((frame) => frame.low));
  const high = Math.max(...frames.map((frame) => frame.high));
  return frames.map(async (frame) => {
    const sheet = await loaded(fileURL(frame.file)).catch(() => null);
    return sheet && colored({ ...frame, ...read(sheet, frame), low, high }, colors);
  });
}

/** What the viewer of a node shows: its images and how their maps look. */
export const shownBy = (node) => viewers.get(node);

/** Deviations of one column, in 65535ths of its greatest. */
function codes(sheet, left, width, height) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(sheet, left, height, width, height, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  return Uint16Array.from({ length: width * height }, (_, i) => 256 * data[4 * i] + data[4 * i + 1]);
}

const viewers = new WeakMap(); // by node

api.addEventListener("bayesdiff.forms", ({ detail }) => viewers.get(nodeOf(detail))?.forms(detail));

/** The viewers of what one repair is about. */
function comparing(node, made = comparisonOf(node)) {
  return (made?.graph?.nodes ?? []).filter((each) => viewers.has(each) && comparisonOf(each) === made)
    .map((each) => viewers.get(each));
}

api.addEventListener("executed", ({ detail }) => {
  const made = nodeAt(detail.display_node ?? detail.node);
  if (!made) return; // of another workflow
  comparing(made, made).forEach((viewer) => viewer.compare(repairedOf(detail.output)));
});

/** What a run of the node will cost, where there is no picture yet. */
export function tellCost(node, words) {
  const viewer = viewers.get(node);
  if (viewer) viewer.cost.textContent = words;
}

export const addViewer = (node) => new Viewer(node);
