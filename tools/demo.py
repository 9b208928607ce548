"""The demo: a real ComfyUI with this pack, driven over HTTP as the browser would drive it.

It queues a template with sixteen pictures of the demo model, has the doubtful ones drawn again
where they glow, and lets Best of N choose among sixteen more seeds. Then it counts by the rule of
the drawings' world (tools/demo_rule.py) how much of that was true, and makes a page of it.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from tools import demo_page, demo_rule, progress, server, workflow
from tools.demo_worlds import WORLDS
from tools.make_workflows import EXAMPLES, HEAT, LARGE, MENDING, NOTHING, PICTURE, SAMPLING
from tools.places import REPOSITORY

TEMPLATE = EXAMPLES / "2 Keep the good ones.json"
PICTURES = REPOSITORY / "docs" / "images"
SAMPLER, FILTER = "BayesDiff KSampler", "Uncertainty Score Filter"
BEST = "BayesDiff Best of N"
SEEDS, FINISHED = 16, 4  # of Best of N
STEPS = 5
EACH = 12  # pictures of a class in the grid
CELL, MARGIN = 112, 6


class Story(NamedTuple):
    """What came out, by the places of the pictures in the batch."""

    name: str  # of the class
    pictures: list[Image.Image]
    glowing: list[Image.Image]  # each in its own range: where it is doubtful
    compared: list[Image.Image]  # all in one range: which is doubtful
    scores: list[float]
    wrong: list[bool]
    kept: list[int]
    rejected: list[int]
    mended: dict[int, Image.Image]  # of the rejected
    mended_wrong: dict[int, bool]
    best: list[Image.Image]  # of other seeds
    best_wrong: list[bool]
    sampled: dict  # the sampler's report
    chosen: dict  # Best of N's
    plain_seconds: float
    our_seconds: float

    @property
    def order(self) -> list[int]:
        """The least doubted first."""
        return sorted(range(len(self.scores)), key=self.scores.__getitem__)

    @property
    def found(self) -> list[int]:
        """The rejected that are wrong."""
        return [place for place in self.rejected if self.wrong[place]]


def main() -> int:
    options = _parse()
    host, started = Path(os.environ["BAYESDIFF_HOST"]), time.monotonic()
    output = options.output.resolve()
    with tempfile.TemporaryDirectory(prefix="bayesdiff-demo-") as folder:
        base = Path(folder)
        say(1, f"starting {host.name} with the pack (10 to 30 s)")
        with server.running(host, Path(sys.executable), base, log=base / "server.log") as address:
            info = server.ask(address, "/object_info")
            graph = template(options.name, options.seed)
            prompt = workflow.api_prompt(graph, info)
            say(2, "the plain KSampler first, for comparison")
            plain = plain_seconds(address, prompt)
            say(3, f"template {TEMPLATE.stem!r}, then a repair and the best of {SEEDS} more seeds")
            extended(prompt, info)
            finished = run(address, prompt, graph)
            if options.readme:
                grid = run(address, grid_prompt(prompt), graph).outputs
        say(4, f"counting by the rule: a {options.name} has {WORLDS[options.name].rule}")
        sampler = finished.seconds[workflow.numbered(prompt, SAMPLER)]
        story = told(options.name, finished, base, plain, sampler)
        output.mkdir(parents=True, exist_ok=True)
        files = sheets(story, output)
        if options.readme:
            for file in files.values():
                small(Image.open(file), PICTURES / file.name)
            rows = [[opened(base, file) for file in grid[name]["images"]] for name in WORLDS]
            small(sheet_of(rows, cell=72), PICTURES / "grid.png")
        singles = keep_singles(finished.outputs, base, output)
    words = summary(story)
    page = demo_page.write(output / "demo.html", story, words)
    say(5, f"done in {time.monotonic() - started:.0f} s; the server is stopped")
    print(words)
    print(f"\npage      {page}\npictures  {output} ({singles} PNGs of the pictures, each with its"
          f" workflow inside; sheets: {', '.join(file.name for file in files.values())})")
    print("\nThe same in the browser: python run.py serve, open the address that it prints, then"
          f"\nTemplates, ComfyUI-BayesDiff, {TEMPLATE.stem!r}; or drag one of the PNGs into the"
          " window.")
    return 0


def say(step: int, text: str) -> None:
    print(f"[{step}/{STEPS}] {text}", flush=True)


# The prompt

def template(name: str, seed: int) -> dict:
    """The workflow, for this class and seed: what the pictures carry."""
    graph = workflow.read(TEMPLATE)
    for node in graph["nodes"]:
        if node["type"] == "BayesDiff_DemoPrompt" and node["widgets_values"][0] != NOTHING:
            node["widgets_values"][0] = name
        if node["type"] == "BayesDiff_KSampler":
            node["widgets_values"][0] = seed
    return graph


def extended(prompt: dict, info: dict) -> None:
    """The template's prompt with what the story has beside it."""
    sampler, filter_ = (workflow.numbered(prompt, title) for title in (SAMPLER, FILTER))
    settings = plain_inputs(prompt)
    vae = [settings["model"][0], 1]

    def output(node: str, name: str) -> list:
        return [node, info[prompt[node]["class_type"]]["output_name"].index(name)]

    def add(name: str, kind: str, **inputs) -> list:
        widgets = {port: options["default"] for port, (_, options)
                   in workflow.ports(info[kind]).items() if "default" in options}
        prompt[name] = node(name, kind, **{**widgets, **inputs})
        return [name, 0]

    images = prompt[filter_]["inputs"]["images"]
    large = add("large", "ImageScale", image=images, crop="disabled", **LARGE)
    grow = HEAT["grow"] * LARGE["width"] // PICTURE
    heat = {"trajectory": output(sampler, "trajectory"), "image": large, "grow": grow}
    add("heat", "BayesDiff_UncertaintyHeatmap", **heat)  # its masks: the worst of each picture
    add("compared", "BayesDiff_UncertaintyHeatmap", **heat, value_range="shared")
    prompt[filter_]["inputs"]["masks"] = ["heat", 2]
    add("mended", "BayesDiff_RepairWhereUnsure", **{
        **settings, **MENDING, "seed": settings["seed"] + 1,
        "latent_image": output(filter_, "rejected_latents"),
        "mask": output(filter_, "rejected_masks")})
    one = add("one", "EmptyLatentImage", width=PICTURE, height=PICTURE, batch_size=1)
    add(BEST, "BayesDiff_BestOfN", **{
        **settings, "latent_image": one, "seed": settings["seed"] + 1000, "n": SEEDS,
        "keep": FINISHED})
    for name, source in (("mended", ["mended", 0]), ("best", [BEST, 0])):
        decoded = add(f"{name} decoded", "VAEDecode", samples=source, vae=vae)
        add(f"save {name}", "SaveImage", images=decoded, filename_prefix=name)
    add("save drawn", "SaveImage", images=images, filename_prefix="drawn")
    add("save glowing", "SaveImage", images=["heat", 0], filename_prefix="glowing")
    add("save compared", "SaveImage", images=["compared", 0], filename_prefix="compared")
    for number in (sampler, filter_, BEST):
        prompt[f"report {prompt[number]['_meta']['title']}"] = node(
            "Reports", "PreviewAny", source=output(number, "report"))


def plain_seconds(address: str, prompt: dict) -> float:
    """What the stock KSampler takes for the same pictures; run once before, to be warm."""
    inputs = plain_inputs(prompt)

    def seconds(**changed) -> float:
        stock = {**sources(prompt, inputs),
                 "stock": node("KSampler", "KSampler", **{**inputs, **changed}),
                 "end": node("Save", "SaveLatent", samples=["stock", 0], filename_prefix="plain")}
        return progress.run_prompt(address, stock).seconds["stock"]

    seconds(steps=2)
    return seconds()


def grid_prompt(prompt: dict) -> dict:
    """EACH pictures of every class, by the workflow's own model and settings."""
    settings = plain_inputs(prompt)
    made = {**sources(prompt, settings),
            "empty": node("Empty latent", "EmptyLatentImage", width=PICTURE, height=PICTURE,
                           batch_size=EACH)}
    for name in WORLDS:
        draws = {**settings, "positive": [f"prompt {name}", 0], "latent_image": ["empty", 0],
                 "seed": 50}
        made |= {f"prompt {name}": node(name, "BayesDiff_DemoPrompt", name=name),
                 f"draw {name}": node(name, "KSampler", **draws),
                 f"decode {name}": node(name, "VAEDecode", samples=[f"draw {name}", 0],
                                         vae=[settings["model"][0], 1]),
                 name: node(name, "PreviewImage", images=[f"decode {name}", 0])}
    return made


def plain_inputs(prompt: dict) -> dict:
    """What the stock KSampler takes, as our sampler has it."""
    inputs = prompt[workflow.numbered(prompt, SAMPLER)]["inputs"]
    return {name: inputs[name] for name in (
        "model", "positive", "negative", "latent_image", "seed", "steps", "cfg", "sampler_name",
        "scheduler", "denoise")}


def sources(prompt: dict, inputs: dict) -> dict:
    """The nodes that these inputs are linked to."""
    return {link[0]: prompt[link[0]] for link in inputs.values() if isinstance(link, list)}


def node(title: str, kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": title}}


def run(address: str, prompt: dict, graph: dict) -> progress.Finished:
    """Shows what runs. The graph goes along, so that every saved picture carries it."""
    titles = {number: node["_meta"]["title"] for number, node in prompt.items()}
    told = set()

    def tell(node: str, share: float) -> None:
        """One line that changes; where the output is kept, one line a title."""
        title = titles[node]
        if sys.stdout.isatty():
            print(f"\r      {title:<32} {100 * share:3.0f} %", end="", flush=True)
        elif title not in told and title.startswith(("BayesDiff", "Uncertainty", "mended")):
            print(f"      {title}", flush=True)
        told.add(title)

    finished = progress.run_prompt(address, prompt, {"extra_pnginfo": {"workflow": graph}}, tell)
    if sys.stdout.isatty():
        print("\r" + 50 * " " + "\r", end="", flush=True)
    return finished


# What came out

def told(name: str, finished: progress.Finished, base: Path, plain: float, ours: float) -> Story:
    def pictures(node: str) -> list[Image.Image]:
        return [opened(base, file) for file in finished.outputs[node]["images"]]

    def report(title: str) -> dict:
        return json.loads(finished.outputs[f"report {title}"]["text"][0])

    parted = report(FILTER)
    drawn, best = pictures("save drawn"), pictures("save best")
    mended = dict(zip(parted["rejected"], pictures("save mended")))
    wrong = wrong_ones(name, [*drawn, *mended.values(), *best])
    cut = len(drawn) + len(mended)
    return Story(name, drawn, pictures("save glowing"), pictures("save compared"),
                 parted["scores"], wrong[:len(drawn)], parted["kept"], parted["rejected"], mended,
                 dict(zip(mended, wrong[len(drawn):cut])), best, wrong[cut:], report(SAMPLER),
                 report(BEST), plain, ours)


def wrong_ones(name: str, pictures: list[Image.Image]) -> list[bool]:
    pixels = np.stack([np.asarray(picture) for picture in pictures])
    return demo_rule.judged(name, torch.from_numpy(pixels).movedim(-1, 1) / 127.5 - 1) \
        .wrong.tolist()


def opened(base: Path, file: dict) -> Image.Image:
    folder = base / ("temp" if file["type"] == "temp" else "output") / file["subfolder"]
    return Image.open(folder / file["filename"]).convert("RGB")


def keep_singles(outputs: dict, base: Path, output: Path) -> int:
    """The saved pictures under plain names, in place of an earlier run's, with the workflow and
    the scores in them."""
    count = 0
    for name in ("drawn", "glowing", "compared", "mended", "best"):
        for old in output.glob(f"{name}_[0-9][0-9].png"):
            old.unlink()
        for number, file in enumerate(outputs[f"save {name}"]["images"]):
            source = base / "output" / file["subfolder"] / file["filename"]
            (output / f"{name}_{number:02}.png").write_bytes(source.read_bytes())
            count += 1
    return count


def sheets(story: Story, output: Path) -> dict[str, Path]:
    half = len(story.order) // 2
    first, second = story.order[:half], story.order[half:]

    def labels(places: list[int]) -> list[str]:
        return [f"{story.scores[place]:.3f}" + (" wrong" if story.wrong[place] else "")
                for place in places]

    shown = story.found or story.rejected
    made = {
        "story": sheet_of([[story.pictures[place] for place in shown],
                           [story.glowing[place] for place in shown],
                           [story.mended[place] for place in shown]],
                          ["drawn", "what the model doubts", "the glowing part drawn again"],
                          cell=144),
        "sorted": sheet_of([[story.pictures[place] for place in first],
                            [story.compared[place] for place in first],
                            [story.pictures[place] for place in second],
                            [story.compared[place] for place in second]],
                           [labels(first), None, labels(second), None]),
        "best": sheet_of([story.best]),
    }
    paths = {name: output / f"{name}.png" for name in made}
    for name, picture in made.items():
        picture.save(paths[name])
    return paths


def sheet_of(rows: list[list[Image.Image]], labels: list | None = None,
             cell: int = CELL) -> Image.Image:
    """Pictures in rows on white. Labels of a row: a line of text, or one a picture, above them."""
    labels = labels or [None] * len(rows)
    line = 18
    heights = [cell + MARGIN + (line if label else 0) for label in labels]
    width = MARGIN + max(map(len, rows)) * (cell + MARGIN)
    sheet = Image.new("RGB", (width, MARGIN + sum(heights)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    y = MARGIN
    for row, label, height in zip(rows, labels, heights):
        words = [label] if isinstance(label, str) else label or []
        for place, word in enumerate(words):
            draw.text((MARGIN + place * (cell + MARGIN), y - 2), word, font=font,
                      fill="#c22" if "wrong" in word else "black")
        for place, picture in enumerate(row):
            sheet.paste(picture.resize((cell, cell), Image.Resampling.LANCZOS),
                        (MARGIN + place * (cell + MARGIN), y + height - cell - MARGIN))
        y += height
    return sheet


def small(picture: Image.Image, path: Path) -> None:
    """256 colors are enough for a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(path, optimize=True)


# Words

def summary(story: Story) -> str:
    count, wrong, rejected = len(story.scores), sum(story.wrong), len(story.rejected)
    lines = ["", "image   doubt   filter     by the rule"]
    for place in story.order:
        lines.append(f"{place + 1:5} {story.scores[place]:7.3f}   "
                     + ("rejected" if place in story.rejected else "kept    ")
                     + ("   wrong" if story.wrong[place] else "   right"))
    calls, extra, check = (story.sampled[name] for name in ("calls", "extra_calls", "check_calls"))
    mended = sum(not story.mended_wrong[place] for place in story.found)
    everything = story.chosen["calls"] + story.chosen["calls_saved"]
    lines += [
        "",
        f"drawn   {count} pictures, {wrong} of them wrong: a {story.name} has"
        f" {WORLDS[story.name].rule}",
        f"filter  rejected {rejected}, of which {len(story.found)} are wrong; at random it would be"
        f" {wrong * rejected / count:.1f}. Kept {count - rejected}, of which"
        f" {wrong - len(story.found)} are wrong",
        f"repair  of the {len(story.found)} wrong ones that were rejected {mended} are right"
        " afterwards",
        f"best    {len(story.best)} of {SEEDS} other seeds finished, of which"
        f" {sum(story.best_wrong)} are wrong, in {story.chosen['calls']} network calls:"
        f" {story.chosen['calls_saved'] / everything:.0%} saved",
        f"cost    plain KSampler: {calls} calls, {story.plain_seconds:.1f} s. BayesDiff KSampler:"
        f" {calls + extra + check} calls, {story.our_seconds:.1f} s, for identical pictures",
    ]
    return "\n".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=REPOSITORY / "output")
    parser.add_argument("--name", choices=list(WORLDS), default="hand")
    parser.add_argument("--seed", type=int, default=SAMPLING["seed"])
    parser.add_argument("--readme", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except server.ServerFailed as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
