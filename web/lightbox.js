// A picture as large as the window: what stands in a panel moves into a dialog and back.
import { button, element } from "./panel.js";
import { say } from "./words.js";

const MOST_ZOOM = 16;

/** root: the panel, body: what of it is enlarged; in it a stage. picture() -> the canvas to save. */
export class Lightbox {
  constructor(root, body, picture, name) {
    Object.assign(this, { root, body, picture, name });
    this.stage = body.querySelector(".bayesdiff-stage");
    this.words = element("span", { class: "bayesdiff-caption", "aria-live": "polite" });
    this.bar = element("div", { class: "bayesdiff-row bayesdiff-bar-top" }, this.words,
      button(say("copy"), say("copy"), () => this.copy()), button(say("save"), say("save"), () => this.save()),
      button(say("close"), "✕", () => this.dialog.close()));
    this.dialog = element("dialog", { class: "bayesdiff-lightbox", "data-capture-wheel": "true",
      onclose: () => this.closed() },
      this.bar);
    root.append(this.dialog);
    this.stage.addEventListener("wheel", (event) => this.zoomBy(event), { passive: false });
    this.stage.addEventListener("pointermove", (event) => this.drag(event));
  }

  get isOpen() {
    return this.dialog.open;
  }

  open() {
    if (this.isOpen) return;
    this.place = element("i");
    this.body.replaceWith(this.place); // to come back to
    this.dialog.append(this.body);
    this.show(1, 0, 0);
    this.words.textContent = "";
    this.dialog.showModal();
    this.body.querySelector("canvas, button")?.focus();
  }

  closed() {
    this.place.replaceWith(this.body);
    this.show(1, 0, 0);
  }

  show(zoom, x, y) {
    this.at = { zoom, x, y };
    this.stage.querySelector("canvas").style.transform = zoom === 1 ? ""
      : `translate(${x}px, ${y}px) scale(${zoom})`;
  }

  /** The spot under the pointer stays where it is. */
  zoomBy(event) {
    if (!this.isOpen) return;
    event.preventDefault();
    const { zoom, x, y } = this.at;
    const next = Math.min(Math.max(zoom * (event.deltaY < 0 ? 1.25 : 0.8), 1), MOST_ZOOM);
    const box = this.stage.getBoundingClientRect();
    const [fromX, fromY] = [event.clientX - box.left - box.width / 2 - x,
      event.clientY - box.top - box.height / 2 - y];
    const part = 1 - next / zoom;
    this.show(next, next === 1 ? 0 : x + fromX * part, next === 1 ? 0 : y + fromY * part);
  }

  drag({ buttons, movementX, movementY }) {
    const { zoom, x, y } = this.at ?? {};
    if (this.isOpen && zoom > 1 && buttons) this.show(zoom, x + movementX, y + movementY);
  }

  async save() {
    const url = URL.createObjectURL(await this.blob());
    element("a", { href: url, download: `${this.name()}.png` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  async copy() {
    try {
      await navigator.clipboard.write([new ClipboardItem({ "image/png": this.blob() })]);
      this.words.textContent = say("copied");
    } catch {
      this.words.textContent = say("notCopied");
    }
  }

  blob() {
    return new Promise((done) => { this.picture().toBlob(done, "image/png"); });
  }
}
