"""Makes the pictures of the templates: what they give, as it came out.

    BAYESDIFF_HOST=<ComfyUI> python -m tools.make_thumbnails

Each template of the demo model runs as it is on a real server; its picture shows results in the
order of their scores, none chosen by hand.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools import progress, server, workflow
from tools.demo import SAMPLER, node, opened
from tools.make_workflows import EXAMPLES, PICTURE

SIDE, GAP = 720, 8  # pixels; the template browser shows squares
PAPER, INK = "#17181b", "#ffffff"
HEAT, FILTER = "Uncertainty Heatmap", "Uncertainty Score Filter"

Rows = list[list[Image.Image]]


class Run:
    """A template's prompt, with more of its outputs to look at."""

    def __init__(self, name: str, info: dict):
        self.prompt = workflow.api_prompt(workflow.read(EXAMPLES / f"{name}.json"), info)
        self._info, self._outputs, self._base = info, {}, None

    def output(self, title: str, name: str) -> list:
        number = workflow.numbered(self.prompt, title)
        names = self._info[self.prompt[number]["class_type"]]["output_name"]
        return [number, [each.lower() for each in names].index(name.lower())]

    def defaults(self, kind: str) -> dict:
        return {name: options.get("default", options.get("options", [None])[0])
                for name, (port, options) in workflow.ports(self._info[kind]).items()
                if port in workflow.WIDGETS}

    def show(self, key: str, images: list) -> None:
        self.prompt[key] = node(key, "PreviewImage", images=images)

    def decode(self, key: str, latent: list) -> None:
        vae = self.output("BayesDiff Demo Model", "vae")
        self.prompt[f"decode {key}"] = node(key, "VAEDecode", samples=latent, vae=vae)
        self.show(key, [f"decode {key}", 0])

    def told(self, title: str) -> None:
        self.prompt["told"] = node("told", "PreviewAny", source=self.output(title, "report"))

    def go(self, address: str, base: Path) -> None:
        self._outputs, self._base = progress.run_prompt(address, self.prompt).outputs, base

    def pictures(self, key: str) -> list[Image.Image]:
        return [opened(self._base, file) for file in self._outputs[key]["images"]]

    @property
    def report(self) -> dict:
        return json.loads(self._outputs["told"]["text"][0])

    def most_doubted(self, count: int) -> list[int]:
        scores = self.report["scores"]
        return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:count]


def see_what_went_wrong(run: Run, go) -> Image.Image:
    run.decode("drawn", run.output(SAMPLER, "latent"))
    run.show("glowing", run.output(HEAT, "overlay"))
    run.told(SAMPLER)
    go()
    drawn, glowing = run.pictures("drawn"), run.pictures("glowing")
    places = run.most_doubted(2)
    return sheet([[pictures[place] for place in places] for pictures in (drawn, glowing)])


def keep_the_good_ones(run: Run, go) -> Image.Image:
    run.decode("drawn", run.output(SAMPLER, "latent"))
    run.told(FILTER)
    go()
    drawn, told = run.pictures("drawn"), run.report
    for place in told["rejected"]:
        drawn[place] = Image.blend(drawn[place].convert("L").convert("RGB"),
                                   Image.new("RGB", drawn[place].size, PAPER), 0.5)
    order = run.most_doubted(16)[::-1]
    labels = [f"{told['scores'][place]:.3f}" for place in order]
    return sheet([[drawn[place] for place in order[at:at + 4]] for at in range(0, 16, 4)], labels)


def mend_the_red_parts(run: Run, go) -> Image.Image:
    run.decode("drawn", run.output(SAMPLER, "latent"))
    run.decode("mended", run.output("Repair Where Unsure", "latent"))
    run.show("glowing", run.output(HEAT, "overlay"))
    run.told(SAMPLER)
    go()
    steps = [run.pictures(key) for key in ("drawn", "glowing", "mended")]
    return sheet([[pictures[place] for pictures in steps] for place in run.most_doubted(3)])


def variations_from_a_step(run: Run, go) -> Image.Image:
    run.decode("drawn", run.output(SAMPLER, "latent"))
    run.decode("varied", run.output("Resample From Timestep", "latent"))
    go()
    varied = run.pictures("varied")
    nine = [*varied[:4], run.pictures("drawn")[0], *varied[4:8]]
    return sheet([nine[at:at + 3] for at in (0, 3, 6)], framed=4)


def check_any_picture(run: Run, go) -> Image.Image:
    run.show("glowing", run.output(HEAT, "overlay"))
    run.told(FILTER)
    go()
    glowing, order = run.pictures("glowing"), run.most_doubted(8)
    shown = [*order[-2:][::-1], *order[:2][::-1]]
    labels = [f"{run.report['scores'][place]:.3f}" for place in shown]
    return sheet([[glowing[place] for place in shown[at:at + 2]] for at in (0, 2)], labels)


def calibrate_your_checkpoint(run: Run, go) -> Image.Image:
    """What LLLA Fit shows, of the demo model: no other checkpoint can be had here."""
    run.prompt = {
        "model": node("model", "BayesDiff_DemoModel"),
        "positive": node("positive", "BayesDiff_DemoPrompt", name="hand"),
        "negative": node("negative", "BayesDiff_DemoPrompt", name="nothing"),
        "fit": node("fit", "BayesDiff_LLLAFit", **{
            **run.defaults("BayesDiff_LLLAFit"), "size": PICTURE, "model": ["model", 0],
            "positive": ["positive", 0], "negative": ["negative", 0]})}
    go()
    plot, = run.pictures("fit")
    whole = Image.new("RGB", (SIDE, SIDE), plot.getpixel((0, 0)))
    height = plot.height * SIDE // plot.width
    whole.paste(plot.resize((SIDE, height), Image.Resampling.LANCZOS), (0, (SIDE - height) // 2))
    return whole


THUMBNAILS = {
    "1 See what went wrong": see_what_went_wrong,
    "2 Keep the good ones": keep_the_good_ones,
    "3 Mend the red parts": mend_the_red_parts,
    "4 Variations from a step": variations_from_a_step,
    "5 Check any picture": check_any_picture,
    "6 Calibrate your checkpoint": calibrate_your_checkpoint,
}


def sheet(rows: Rows, labels: list[str] | None = None, framed: int | None = None) -> Image.Image:
    """A square of pictures, with a label in the corner of each, and one of them framed."""
    count = len(rows)
    cell = (SIDE - GAP * (count + 1)) // count
    whole = Image.new("RGB", (SIDE, SIDE), PAPER)
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(max(18, cell // 9))
    for number, picture in enumerate(picture for row in rows for picture in row):
        x, y = (GAP + at * (cell + GAP) for at in (number % count, number // count))
        whole.paste(picture.resize((cell, cell), Image.Resampling.LANCZOS), (x, y))
        if number == framed:
            draw.rectangle((x - 4, y - 4, x + cell + 3, y + cell + 3), outline=INK, width=4)
        if labels:
            left, top, right, bottom = draw.textbbox((0, 0), labels[number], font=font)
            draw.rectangle((x + cell - right - 10, y + cell - bottom - 10, x + cell, y + cell),
                           fill=PAPER)
            draw.text((x + cell - right - 5, y + cell - bottom - 6), labels[number], font=font,
                      fill=INK)
    return whole


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, server.running(
            Path(os.environ["BAYESDIFF_HOST"]), Path(sys.executable), Path(folder),
            log=Path(folder) / "log") as address:
        info = server.ask(address, "/object_info")
        for name, make in THUMBNAILS.items():
            run = Run(name, info)
            picture = make(run, lambda run=run: run.go(address, Path(folder)))
            picture.save(EXAMPLES / f"{name}.jpg", quality=82, optimize=True)
            print(f"{name}.jpg")


if __name__ == "__main__":
    main()
