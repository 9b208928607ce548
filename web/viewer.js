// The heat map over the picture, at the result and at the steps that led there.
import { addPanel, element, fileURL, widgetOf } from "./panel.js";

const HEIGHT = 280;
const FRAME_TIME = 350; // ms, when playing
const UNITS = {
  pixel: "standard deviation of a pixel (0 to 1)",
  latent: "standard deviation of a latent value",
  doubt: "doubt, beside the picture's contrast",
};

class Viewer {
  constructor(node) {
    this.node = node;
    this.images = [];
    this.at = { image: 0, frame: 0 };
    this.opacity = node.properties.bayesdiff_opacity ?? widgetOf(node, "opacity")?.value ?? 0.6;
    this.build();
    addPanel(node, "viewer", this.root, {
      height: HEIGHT,
      show: (output) => this.show(output.bayesdiff?.[0]),
      look: () => this.followWidget(),
    });
  }

  build() {
    const slider = (label, max, step, oninput) => element("input", {
      type: "range", min: 0, max, step, "aria-label": label, title: label, oninput,
    });
    const button = (label, words, onclick) =>
      element("button", { type: "button", "aria-label": label, title: label, onclick }, words);
    this.canvas = element("canvas", {
      tabindex: 0, role: "img", onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event), onpointerleave: () => this.caption(),
    });
    this.hint = element("div", { class: "bayesdiff-hint" },
      "The map appears here when the node runs.");
    this.stepSlider = slider("step", 0, 1, () => this.go({ frame: +this.stepSlider.value }));
    this.opacitySlider = slider("opacity of the colors", 1, 0.05, () => {
      this.setOpacity(+this.opacitySlider.value);
    });
    this.opacitySlider.value = this.opacity;
    this.playButton = button("play the steps", "▶", () => this.play());
    this.count = element("span", { class: "bayesdiff-count" });
    this.words = element("div", { class: "bayesdiff-caption", "aria-live": "polite" });
    this.low = element("span");
    this.high = element("span");
    this.bar = element("span", { class: "bayesdiff-bar" });
    this.controls = [
      element("div", { class: "bayesdiff-row" },
        button("previous image", "‹", () => this.go({ image: this.at.image - 1 })), this.count,
        button("next image", "›", () => this.go({ image: this.at.image + 1 })),
        this.playButton, this.stepSlider),
      element("div", { class: "bayesdiff-row" }, this.low, this.bar, this.high,
        this.opacitySlider),
    ];
    this.root = element("div", { class: "bayesdiff-viewer" },
      element("div", { class: "bayesdiff-stage" }, this.canvas, this.hint),
      this.words, ...this.controls);
    this.enable(false);
  }

  enable(on) {
    this.root.toggleAttribute("data-empty", !on);
    this.root.querySelectorAll("button, input").forEach((control) => { control.disabled = !on; });
  }

  show(told) {
    const viewer = told?.viewer ?? told;
    if (!viewer?.images?.length) return;
    this.stop();
    Object.assign(this, { images: viewer.images, unit: viewer.unit, leftOut: viewer.left_out });
    this.colors = viewer.colors;
    this.bar.style.background =
      `linear-gradient(to right, ${this.colors.map((rgb) => `rgb(${rgb})`).join()})`;
    this.enable(true);
    const image = Math.min(this.at.image, this.images.length - 1);
    this.at = { image, frame: this.frames(image).length - 1 };
    this.draw();
  }

  /** Of an image: its steps, and last the result as the node has made it. */
  frames(image) {
    const { steps, result } = this.images[image];
    const columns = (sheet) => (sheet?.frames ?? []).map((frame, column, all) =>
      ({ ...frame, column, columns: all.length, file: sheet.file }));
    const before = columns(steps);
    return result ? [...before.slice(0, -1), ...columns(result)] : before;
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
    const sheet = await loaded(fileURL(now.file)).catch(() => null);
    if (this.at.image !== image || this.at.frame !== frame) return; // another is wanted by now
    this.root.toggleAttribute("data-gone", !sheet);
    if (!sheet) {
      this.words.textContent = "The pictures of this run are gone: run the graph again.";
      return;
    }
    const width = sheet.width / now.columns, height = sheet.height / 2;
    Object.assign(this.canvas, { width, height });
    this.now = { ...now, width, height, codes: codes(sheet, now.column * width, width, height) };
    const context = this.canvas.getContext("2d");
    context.drawImage(sheet, now.column * width, 0, width, height, 0, 0, width, height);
    context.globalAlpha = now.blank ? 1 : this.opacity;
    context.drawImage(this.colored(), 0, 0);
    this.canvas.style.imageRendering = Math.max(width, height) < 200 ? "pixelated" : "auto";
    this.low.textContent = short(now.low);
    this.high.textContent = short(now.high);
    this.caption();
  }

  colored() {
    const { width, height, codes, top, low, high } = this.now;
    const layer = element("canvas", { width, height });
    const pixels = new ImageData(width, height);
    const last = this.colors.length - 1;
    const span = high - low > 1e-5 * high ? high - low : Infinity;
    codes.forEach((code, place) => {
      const part = Math.min(Math.max(((code / 65535) * top - low) / span, 0), 1);
      pixels.data.set([...this.colors[Math.round(part * last)], 255], 4 * place);
    });
    layer.getContext("2d").putImageData(pixels, 0, 0);
    return layer;
  }

  caption(extra = "") {
    if (!this.now) return;
    const { step, sigma } = this.now;
    const where = this.at.frame === +this.stepSlider.max ? "result"
      : `on entering step ${step}, sigma ${short(sigma)}`;
    const left = this.leftOut ? ` (${this.leftOut} more not shown)` : "";
    const map = UNITS[where === "result" ? this.unit : "latent"];
    this.words.textContent = extra || `${where}${left}: ${map}`;
    this.canvas.setAttribute("aria-label", `image ${this.at.image + 1}, ${where}, ${map},
      ${short(this.now.low)} to ${short(this.now.high)}`);
  }

  point(event) {
    if (!this.now) return;
    const box = this.canvas.getBoundingClientRect(); // zoomed with the graph
    const { width, height, codes, top } = this.now;
    const scale = Math.min(box.width / width, box.height / height);
    const x = Math.floor((event.clientX - box.left - (box.width - width * scale) / 2) / scale);
    const y = Math.floor((event.clientY - box.top - (box.height - height * scale) / 2) / scale);
    const inside = x >= 0 && y >= 0 && x < width && y < height;
    this.caption(inside ? `${short((codes[y * width + x] / 65535) * top)} at ${x}, ${y}` : "");
  }

  key(event) {
    const moves = {
      ArrowLeft: () => this.go({ frame: this.at.frame - 1 }),
      ArrowRight: () => this.go({ frame: this.at.frame + 1 }),
      ArrowUp: () => this.go({ image: this.at.image - 1 }),
      ArrowDown: () => this.go({ image: this.at.image + 1 }),
      " ": () => this.play(),
    };
    if (!moves[event.key]) return;
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
    if (this.images.length) this.draw();
  }

  followWidget() {
    const widget = widgetOf(this.node, "opacity");
    const value = widget?.value ?? this.node.properties.bayesdiff_opacity;
    if (typeof value === "number" && value !== this.opacity) this.setOpacity(value);
  }
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

/** Deviations of one column, in 65535ths of its greatest. */
function codes(sheet, left, width, height) {
  const canvas = element("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(sheet, left, height, width, height, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  return Array.from({ length: width * height }, (_, i) => 256 * data[4 * i] + data[4 * i + 1]);
}

const short = (number) => Number(number.toPrecision(3)).toString();

export const addViewer = (node) => new Viewer(node);
