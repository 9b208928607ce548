"""The demo: a real ComfyUI with this pack, driven over HTTP as the browser would drive it.

It queues example_workflows/first_look.json, and shows and keeps what comes out.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from tools import progress, server, workflow
from tools.places import REPOSITORY

WORKFLOW = REPOSITORY / "example_workflows" / "first_look.json"
PICTURES = REPOSITORY / "docs" / "images"
SAMPLER, FILTER, BEST = "BayesDiff KSampler", "Uncertainty Score Filter", "BayesDiff Best of N"
SAVED = {"overlay": "Save overlays", "kept": "Save kept", "rejected": "Save rejected",
         "best": "Save best", "variation": "Save variations"}
STEPS = 5
EACH = 8  # pictures of a class in the grid
CELL, MARGIN = 96, 6


def main() -> int:
    options = _parse()
    host, started = Path(os.environ["BAYESDIFF_HOST"]), time.monotonic()
    output = options.output.resolve()
    with tempfile.TemporaryDirectory(prefix="bayesdiff-demo-") as folder:
        base = Path(folder)
        say(1, f"starting {host.name} with the pack (10 to 30 s)")
        with server.running(host, Path(sys.executable), base, log=base / "server.log") as address:
            graph, object_info = workflow.read(WORKFLOW), server.ask(address, "/object_info")
            prompt = workflow.api_prompt(graph, object_info)
            say(2, "the plain KSampler first, for comparison")
            plain = plain_seconds(address, prompt)
            say(3, f"running {WORKFLOW.relative_to(REPOSITORY)}")
            reports = {title: add_report(prompt, title, object_info)
                       for title in (SAMPLER, FILTER, BEST)}
            finished = run(address, prompt, graph)
            if options.readme:
                say(3, "one row of pictures for each class")
                classes = workflow.ports(object_info["BayesDiff_DemoPrompt"])["name"][1]["options"]
                grid = run(address, grid_prompt(prompt, classes[:-1]), graph).outputs
        say(4, f"writing pictures to {output}")
        said = {title: json.loads(finished.outputs[number]["text"][0])
                for title, number in reports.items()}
        output.mkdir(parents=True, exist_ok=True)
        files = {name: kept_files(finished.outputs[workflow.numbered(prompt, title)], base, output,
                                  name) for name, title in SAVED.items()}
        sheets = contact_sheets(files, said[FILTER], output)
        if options.readme:
            rows = [[_opened(base, file) for file in grid[row]["images"]] for row in sorted(grid)]
            for sheet in sheets.values():
                small(Image.open(sheet), PICTURES / sheet.name)
            small(sheet_of(rows), PICTURES / "grid.png")
    say(5, f"done in {time.monotonic() - started:.0f} s; the server is stopped")
    print(summary(said, plain, finished.seconds[workflow.numbered(prompt, SAMPLER)], files, sheets))
    return 0


def say(step: int, text: str) -> None:
    print(f"[{step}/{STEPS}] {text}", flush=True)


def run(address: str, prompt: dict, graph: dict) -> progress.Finished:
    """Shows what runs. The graph goes along, so that every saved picture carries it."""
    titles = {number: node["_meta"]["title"] for number, node in prompt.items()}
    told = set()

    def tell(node: str, share: float) -> None:
        """One line that changes; where the output is kept, one line a title."""
        title = titles[node]
        if sys.stdout.isatty():
            print(f"\r      {title:<32} {100 * share:3.0f} %", end="", flush=True)
        elif title not in told:
            print(f"      {title}", flush=True)
        told.add(title)

    finished = progress.run_prompt(address, prompt, {"extra_pnginfo": {"workflow": graph}}, tell)
    if sys.stdout.isatty():
        print("\r" + 50 * " " + "\r", end="", flush=True)
    return finished


def add_report(prompt: dict, title: str, object_info: dict) -> str:
    """Adds a node that shows the JSON report of the node with that title."""
    source = workflow.numbered(prompt, title)
    slot = object_info[prompt[source]["class_type"]]["output_name"].index("report")
    prompt[f"report {source}"] = _node("Reports", "PreviewAny", source=[source, slot])
    return f"report {source}"


def plain_seconds(address: str, prompt: dict) -> float:
    """What the stock KSampler takes for the same pictures; run once before, to be warm."""
    inputs = plain_inputs(prompt)

    def seconds(**changed) -> float:
        stock = {**sources(prompt, inputs),
                 "stock": _node("KSampler", "KSampler", **{**inputs, **changed}),
                 "end": _node("Save", "SaveLatent", samples=["stock", 0], filename_prefix="plain")}
        return progress.run_prompt(address, stock).seconds["stock"]

    seconds(steps=2)
    return seconds()


def grid_prompt(prompt: dict, classes: list[str]) -> dict:
    """EACH pictures of every class, by the workflow's own model and settings."""
    settings = plain_inputs(prompt)
    made = {**sources(prompt, settings),
            "empty": _node("Empty latent", "EmptyLatentImage", width=32, height=32,
                           batch_size=EACH)}
    for row, name in enumerate(classes):
        draws = {**settings, "positive": [f"name{row}", 0], "latent_image": ["empty", 0]}
        made |= {f"name{row}": _node(name, "BayesDiff_DemoPrompt", name=name),
                 f"draw{row}": _node(name, "KSampler", **draws),
                 f"decode{row}": _node(name, "VAEDecode", samples=[f"draw{row}", 0],
                                       vae=[settings["model"][0], 1]),
                 f"row{row}": _node(name, "PreviewImage", images=[f"decode{row}", 0])}
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


def _node(title: str, kind: str, **inputs) -> dict:
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": title}}


# Pictures

def _opened(base: Path, file: dict) -> Image.Image:
    folder = base / ("temp" if file["type"] == "temp" else "output") / file["subfolder"]
    return Image.open(folder / file["filename"]).convert("RGB")


def kept_files(shown: dict, base: Path, output: Path, name: str) -> list[Path]:
    """The node's pictures under plain names, in place of an earlier run's."""
    for old in output.glob(f"{name}_[0-9][0-9].png"):
        old.unlink()
    paths = []
    for number, file in enumerate(shown["images"]):
        source = base / "output" / file["subfolder"] / file["filename"]
        paths.append(output / f"{name}_{number:02}.png")
        paths[-1].write_bytes(source.read_bytes())  # with the workflow and the scores in it
    return paths


def contact_sheets(files: dict, parted: dict, output: Path) -> dict[str, Path]:
    pictures = {name: [Image.open(path).convert("RGB") for path in paths]
                for name, paths in files.items()}
    samples = dict(zip(parted["kept"], pictures["kept"]))
    samples |= zip(parted["rejected"], pictures["rejected"])
    overlays = pictures["overlay"]
    order = sorted(samples, key=lambda place: parted["scores"][place])
    labels = [f"{parted['scores'][place]:.3g}" for place in order]
    made = {
        "overlay": sheet_of([[samples[place] for place in order[:8]],
                             [overlays[place] for place in order[:8]],
                             [samples[place] for place in order[8:]],
                             [overlays[place] for place in order[8:]]],
                            [labels[:8], None, labels[8:], None]),
        "kept_rejected": sheet_of([_row(samples, order, parted["kept"]),
                                   _row(samples, order, parted["rejected"])],
                                  [f"kept, {len(parted['kept'])}, surest first",
                                   f"rejected, {len(parted['rejected'])}"]),
        "variations": sheet_of([[*pictures["best"], *pictures["variation"]]],
                               [["best", *[""] * len(pictures["variation"])]]),
    }
    paths = {name: output / f"{name}.png" for name in made}
    for name, picture in made.items():
        picture.save(paths[name])
    return paths


def _row(samples: dict, order: list[int], chosen: list[int]) -> list[Image.Image]:
    return [samples[place] for place in order if place in chosen]


def sheet_of(rows: list[list[Image.Image]], labels: list | None = None) -> Image.Image:
    """Pictures in rows on white. Labels of a row: a line of text, or one a picture, above them."""
    labels = labels or [None] * len(rows)
    line = 16
    heights = [CELL + MARGIN + (line if label else 0) for label in labels]
    width = MARGIN + max(map(len, rows)) * (CELL + MARGIN)
    sheet = Image.new("RGB", (width, MARGIN + sum(heights)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    y = MARGIN
    for row, label, height in zip(rows, labels, heights):
        words = [label] if isinstance(label, str) else label or []
        for place, word in enumerate(words):
            draw.text((MARGIN + place * (CELL + MARGIN), y - 2), word, fill="black", font=font)
        for place, picture in enumerate(row):
            sheet.paste(picture.resize((CELL, CELL), Image.Resampling.NEAREST),
                        (MARGIN + place * (CELL + MARGIN), y + height - CELL - MARGIN))
        y += height
    return sheet


def small(picture: Image.Image, path: Path) -> None:
    """256 colors are enough for a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(path, optimize=True)


# Words

def summary(said: dict, plain: float, ours: float, files: dict, sheets: dict) -> str:
    parted, sampled, best = said[FILTER], said[SAMPLER], said[BEST]
    lines = ["", "image   score    (doubt: the higher, the more of it is likely to be wrong)"]
    for place, score in enumerate(parted["scores"]):
        lines.append(f"{place:5} {score:7.4g}    "
                     + ("kept" if place in parted["kept"] else "rejected"))
    calls, extra, check = (sampled[name] for name in ("calls", "extra_calls", "check_calls"))
    lines += [
        "",
        f"cost    plain KSampler: {calls} calls, {plain:.1f} s. BayesDiff KSampler, mode"
        f" {sampled['mode']}: {calls} calls, {extra} extra ones, {check} to check, {ours:.1f} s",
        f"        ({(calls + extra + check) / calls:.2f} times the calls, {ours / plain:.2f} times"
        " the time), for identical pictures",
        f"best    seed {best['seeds'][0]} of {len(best['runs'])}, in {best['calls']} calls:"
        f" {best['calls_saved']} saved against finishing all",
        "",
        *(f"{name.replace('_', ' '):<15} {path}" for name, path in sheets.items()),
        f"{'single pictures':<15} {files['best'][0].parent}"
        f" ({sum(map(len, files.values()))} PNGs, each with the workflow in it)",
        "",
        "The same graph in the browser: python run.py serve, open the address it prints, then drag",
        f"{WORKFLOW.relative_to(REPOSITORY)} or any of these PNGs into the window.",
    ]
    return "\n".join(lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=REPOSITORY / "output")
    parser.add_argument("--readme", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except server.ServerFailed as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
