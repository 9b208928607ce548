"""`doubt`: one score out of several, the same one that the default map shows.

    doubt = exp(1/2 sum_p w_p log(part p) / sum_p w_p)

Parts are squares (maps of a run, summed up), so doubt is in the unit of an amplitude: how much the
picture still moved, or the model would change it, beside its own contrast. Weights are powers,
learned on worlds with exact labels and reported on others (benchmarks/bench_truth.py). A picture
has the same doubt in any batch; compare pictures of one model, prompt and sampler.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from . import evidence
from .checks import BayesDiffError
from .learned import TINY

NAME = "doubt"
# Parts are named by their map and by how it is summed up (`HOWS`); one is not of a map:
CONTRAST = "contrast, picture"  # evidence.contrast
HOWS = {"mean": evidence.mean, "top": evidence.top_share, "patch": evidence.worst_patch,
        "spread": evidence.spread}
LATE, TAIL = "late 20", "late 40"  # of every run
# Maps are over the picture's contrast; its own weight gives back about half of that, because a
# picture of little contrast is also harder to draw again.
FREE = {"late 20, top": 1.34, "late 40, mean": 2.08, CONTRAST: 1.65}
QUICK = {"late 20, top": 1.1, "pull 1.2, mean": 4.9, CONTRAST: 2.86}
FULL = {"late 20, top": 0.98, "pull 1.2, mean": 2.89, "pull 2.0, patch": 1.85,
        "redrawn, mean": 1.36, CONTRAST: 3.24}
# Of a picture alone, without the run that drew it:
PICTURE_QUICK = {"pull 1.2, mean": 5.25, CONTRAST: 2.28}
PICTURE_FULL = {"pull 1.2, mean": 3.12, "pull 2.0, patch": 1.88, "redrawn, mean": 1.5,
                CONTRAST: 2.8}
VARIANTS = {"run, full check": FULL, "run, quick check": QUICK, "run, no check": FREE,
            "picture, full check": PICTURE_FULL, "picture, quick check": PICTURE_QUICK}
MAP = (LATE, "renoised 1.2", "renoised 2.0", "redrawn")  # those of them that there are


class Doubt(NamedTuple):
    values: torch.Tensor  # B in float64
    parts: dict[str, torch.Tensor]  # B values each
    variant: str  # of VARIANTS


def doubt(maps: Mapping[str, torch.Tensor], picture: torch.Tensor) -> Doubt:
    """By the most telling variant that the maps of a run allow. maps: B x C x ... squares by name,
    in the picture's unit."""
    maps = {name: with_height(one) for name, one in maps.items()}
    picture = with_height(picture)
    relative = {name: evidence.relative(one, picture) for name, one in maps.items()}
    for variant, weights in VARIANTS.items():
        if all(source(name) in maps for name in weights if name != CONTRAST):
            parts = {name: evidence.contrast(picture) if name == CONTRAST
                     else part(name, relative) for name in weights}
            return Doubt(combined(parts, weights), parts, variant)
    raise BayesDiffError(f"doubt needs maps of a run or of a check, and there are {sorted(maps)}.")


def with_height(latent: torch.Tensor) -> torch.Tensor:
    """Of sound, B x C x length, which has none, one row; all else as it is."""
    return latent.unsqueeze(2) if latent.ndim == 3 else latent


def source(part_name: str) -> str:
    """The map that a part is of."""
    return part_name.rsplit(", ", 1)[0]


def part(name: str, maps: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A part's values from relative maps (evidence.relative), B of them."""
    return HOWS[name.rsplit(", ", 1)[1]](maps[source(name)])


def combined(parts: Mapping[str, torch.Tensor], weights: Mapping[str, float]) -> torch.Tensor:
    """B values from the parts that `weights` names."""
    logs = sum(weight * parts[name].double().clamp(min=TINY).log()
               for name, weight in weights.items())
    return (logs / (2 * sum(weights.values()))).exp()


def doubt_map(maps: Mapping[str, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Where the doubt is: the joint map of those that there are, with the mean square of the
    picture's own score, so that map and score say the same. B x 1 x (T) x H x W."""
    joint = joint_map([maps[name] for name in MAP if name in maps])
    mean = joint.flatten(1).mean(1, dtype=torch.float64).clamp(min=TINY)
    return joint * (values.square() / mean).to(joint).reshape(-1, *[1] * (joint.ndim - 1))


def joint_map(maps: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where to look: the mean of several maps (B x C x (T) x H x W), each over its own mean in the
    picture so that none outweighs the others, smoothed; B x 1 x (T) x H x W, with mean 1 or so.
    It compares places of one picture."""
    total = 0.0
    for one in maps:
        planes = one.double().mean(1, keepdim=True)
        mean = planes.flatten(1).mean(1).clamp(min=TINY)
        total = total + planes / mean.reshape(-1, *[1] * (planes.ndim - 1))
    return evidence.smooth(evidence.smooth(total / len(maps))).to(maps[0].dtype)
