"""A posterior fitted in parts: each worker runs its share of the latents, the sums are added up."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from fleet import FleetError, pack
from fleet.plan import Change, Graph, Widget, title
from fleet.staged import upstream

FIT, SAVE = "BayesDiff_LLLAFit", "BayesDiff_LLLASave"
FILE = "llla/{}.safetensors"  # in a server's output folder, by the name of the part
SAVER = "fleet save"
NAME = f"{SAVER}.filename_prefix"
POSTERIOR = "posterior.safetensors"
GIVEN = ("latents", "images")  # inputs of LLLA Fit, in place of the model's own samples
LATENTS_AN_OWN_SAMPLE = 8  # as in nodes/host/fit.py, which needs a host


def graph(prompt: dict) -> Graph:
    """What the workflow's LLLA Fit needs, and a node that saves what it finds."""
    found = [number for number, node in prompt.items() if node["class_type"] == FIT]
    if len(found) != 1:
        raise FleetError(f"the workflow has {len(found)} LLLA Fit nodes, 1 was expected"
                         + (f": {', '.join(title(prompt, n) for n in found)}" if found else ""))
    if isinstance(prompt[found[0]]["inputs"].get("posterior"), list):
        raise FleetError("LLLA Fit continues from another posterior, which parts cannot: unlink it,"
                         " and merge afterwards")
    needed = upstream(prompt, found[0])
    made = {number: node for number, node in json.loads(json.dumps(prompt)).items()
            if number in needed}
    made[SAVER] = {"class_type": SAVE, "inputs": {
        "posterior": [found[0], 0], "filename_prefix": "", "folder": "output",
        "overwrite": True}}
    return Graph(made, None, {}, found[0], Widget(found[0], "part"))


def most_parts(made: Graph, given: bool | None = None) -> int | float:
    """With something to do for each; own samples are noised several times by who drew them."""
    inputs = made.prompt[made.sampler]["inputs"]
    latents = inputs["num_latents"]
    if not isinstance(latents, int):  # it is linked
        return math.inf
    if given is None:
        given = any(isinstance(inputs.get(name), list) for name in GIVEN)
    return latents if given else math.ceil(latents / LATENTS_AN_OWN_SAMPLE)


def usual_parts(made: Graph, workers: int) -> int:
    """One for each worker; an empty latent that is linked stands for own samples too."""
    return min(workers, most_parts(made, given=False))


def jobs(made: Graph, parts: int) -> Iterator[list[Change]]:
    if parts > most_parts(made):
        raise FleetError(f"{parts} parts leave some without a latent, at most {most_parts(made)}"
                         " were expected: ask for fewer with --parts, or set num_latents higher")
    for part in range(parts):
        yield [Change(made.sampler, "parts", parts), Change(made.sampler, "part", part)]


def merged(files: list[Path], target: Path) -> list[str]:
    """One LLLA file of all parts; what it holds, in words."""
    core, file = pack.module("bayesdiff_core.llla"), pack.module("nodes.files.llla_file")
    try:
        return _merged(core, file, files, target)
    except pack.module("bayesdiff_core.checks").BayesDiffError as error:
        raise FleetError(str(error)) from error


def _merged(core, file, files: list[Path], target: Path) -> list[str]:
    first = file.read(files[0])
    # Diagonal on the way: the eigenvectors of the full matrix are computed once, at the end.
    total = core.with_settings(first, structure="diagonal")
    for path in files[1:]:
        total = core.merge(total, file.read(path, structure="diagonal"))
    total = core.with_settings(total, structure=first.structure)
    file.write(total, target)
    return core.describe(total)
