"""What the demo claims, on 208 other pictures of each class: how many of the demo model's drawings
are wrong, whether doubt finds them, and how many a repair mends.

    python run.py bench demo [--pictures 208] [--choose] [--model FILE]

Pictures are drawn, scored and repaired by the pack's own nodes in the host, with the templates'
settings, and judged by the rule of their world (tools/demo_rule.py). --choose compares settings
on hands of yet other seeds, and writes nothing.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":
    from tools.in_process import enter_host
    enter_host()

import torch
import torch.nn.functional as F

import nodes  # the host's
from bayesdiff_core import selfcheck
from benchmarks import report
from benchmarks.bench_truth import DROPPED, auroc
from benchmarks.in_host import pack_module
from benchmarks.worlds.repair import wilson
from tools import demo_rule
from tools.demo_model import Demo, load
from tools.demo_worlds import SIZE, WORLDS
from tools.make_workflows import HEAT, MENDING, SAMPLING

FIRST_SEED, CHOOSING_SEED = 100_000, 200_000  # the demo and the templates show small seeds
AT_ONCE, REJECTED = 16, 4  # a batch of the demo, and what its filter takes out
CHOICES = [{"cfg": cfg, "steps": steps, "sampler_name": sampler} for cfg, steps, sampler in (
    (1.0, 20, "euler"), (1.5, 20, "euler"), (2.0, 20, "euler"), (3.0, 20, "euler"),
    (1.0, 30, "euler"), (1.0, 20, "heun"), (1.0, 20, "dpmpp_2m"), (1.0, 10, "euler_ancestral"),
    (1.0, 14, "euler_ancestral"), (1.0, 20, "euler_ancestral"))]


class Drawn(NamedTuple):
    """A batch, by BayesDiff KSampler, VAE Decode and Uncertainty Heatmap."""

    latent: dict
    pictures: torch.Tensor  # B x 3 x H x W in [-1, 1]
    scores: torch.Tensor
    mask: torch.Tensor  # B x H x W
    doubt: torch.Tensor  # B x H x W, the map under the colors
    calls: int


def _executed(kind: str, **given):
    """A node's outputs; what is not given is as in a new node."""
    module, name = kind.split(".")
    node = getattr(pack_module(f"nodes.{module}"), name)
    defaults = {one.id: one.default for one in node.define_schema().inputs
                if getattr(one, "default", None) is not None}
    return node.execute(**{**defaults, **given}).args


def drawn(demo: Demo, name: str, count: int, seed: int, **settings) -> Drawn:
    empty, = nodes.EmptyLatentImage().generate(SIZE, SIZE, count)
    latent, _, trajectory, scores, said, _ = _executed(
        "samplers.BayesDiffKSampler", model=demo.model, positive=demo.classes[name],
        negative=demo.no_class, latent_image=empty, **{**SAMPLING, "seed": seed, **settings})
    image = demo.vae.decode(latent["samples"])
    mask = _executed("heatmap.BayesDiffHeatmap", trajectory=trajectory, image=image, **HEAT)[2]
    doubt = pack_module("bayesdiff_core.scores").doubt_of(trajectory)[:, 0]
    doubt = F.interpolate(doubt[:, None], size=(SIZE, SIZE), mode="bilinear")
    said = json.loads(said)
    return Drawn(latent, _pictures(image), torch.tensor(scores), mask, doubt[:, 0],
                 said["calls"] + said["extra_calls"] + said["check_calls"])


def repaired(demo: Demo, name: str, latent: dict, mask: torch.Tensor, seed: int) -> torch.Tensor:
    mended = _executed("repair.BayesDiffRepair", model=demo.model, positive=demo.classes[name],
                       negative=demo.no_class, latent_image=latent, mask=mask,
                       **{**SAMPLING, **MENDING, "seed": seed})[0]
    return _pictures(demo.vae.decode(mended["samples"]))


def _pictures(image: torch.Tensor) -> torch.Tensor:
    return image.movedim(-1, 1) * 2 - 1


def row(demo: Demo, name: str, count: int, first_seed: int, repair: bool = True,
        **settings) -> dict:
    batches = [drawn(demo, name, min(AT_ONCE, count - at), first_seed + at, **settings)
               for at in range(0, count, AT_ONCE)]
    pictures, scores = (torch.cat([getattr(batch, part) for batch in batches])
                        for part in ("pictures", "scores"))
    judged = demo_rule.judged(name, pictures)
    wrong = judged.wrong
    kept = scores <= scores.sort().values[count - round(DROPPED * count) - 1]
    found = {"class": name, "pictures": count, "wrong": int(wrong.sum()),
             "wrong_share": wrong.double().mean().item(),
             "wrong_left_after_16": wrong[kept].double().mean().item(),
             "wrong_of_rejected": wrong[~kept].double().mean().item(),
             "wrong_of_4_rejected_of_16": _rejected(scores, wrong),
             "calls": batches[0].calls}
    if 0 < wrong.sum() < count:
        area = auroc(scores, wrong)
        low, high = selfcheck.interval(area, int((~wrong).sum()), int(wrong.sum()))
        maps = torch.cat([batch.doubt for batch in batches])[wrong]
        found |= {"auroc": area, "auroc_low": low, "auroc_high": high,
                  "locate_auroc": auroc(maps.flatten(), judged.where[wrong].flatten())}
    if repair and wrong.any():
        done, parts = [], wrong.split(AT_ONCE)
        for number, (batch, bad) in enumerate(zip(batches, parts)):
            if bad.any():
                latent = {"samples": batch.latent["samples"][bad]}
                done.append(repaired(demo, name, latent, batch.mask[bad], 7000 + number))
        right = (~demo_rule.judged(name, torch.cat(done)).wrong).double().mean().item()
        low, high = wilson(right, int(wrong.sum()))
        masked = torch.cat([batch.mask for batch in batches])[wrong].mean().item()
        found |= {"repaired_right_share": right, "repaired_low": low, "repaired_high": high,
                  "masked_share": masked}
    return {key: round(value, 4) if isinstance(value, float) else value
            for key, value in found.items()}


def _rejected(scores: torch.Tensor, wrong: torch.Tensor) -> float:
    """How many of the four that the demo's filter rejects of sixteen are wrong, on average; at
    random it would be four times the share of wrong ones."""
    whole = len(scores) // AT_ONCE * AT_ONCE
    worst = scores[:whole].view(-1, AT_ONCE).topk(REJECTED).indices
    return wrong[:whole].view(-1, AT_ONCE).gather(1, worst).sum(1).double().mean().item()


def main() -> None:
    options = _parse()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    demo = load(options.model)
    if options.choose:
        report.show([{**choice, **row(demo, "hand", options.pictures, CHOOSING_SEED, repair=False,
                                      **choice)} for choice in CHOICES])
        return
    rows = []
    for name in WORLDS:
        rows.append(row(demo, name, options.pictures, FIRST_SEED))
        print(rows[-1], flush=True)
    report.write("demo", rows, settings={**SAMPLING, **HEAT, **MENDING})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=208)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--model", type=Path,
                        default=Path(__file__).parent.parent / "models/bayesdiff_demo.safetensors")
    return parser.parse_args()


if __name__ == "__main__":
    main()
