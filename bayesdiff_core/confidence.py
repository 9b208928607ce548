"""One score out of several: `confidence`, a fixed combination that was learned on worlds with exact
labels (benchmarks/bench_truth.py) and is reported on others.

    confidence = sum_p w_p z_p,  z_p the logarithm of part p, standardized within the batch

Higher means less sure, as for every score. A batch of one picture has nothing to be compared with
and gets 0.
"""

from collections.abc import Mapping, Sequence

import torch

from . import evidence
from .checks import BayesDiffError
from .learned import TINY, standardized_logs

# Parts are named by their map and by how it is summed up (`HOWS`). Two are not of a map:
PATH, CONTRAST = "acceleration, path", "contrast, picture"  # evidence.acceleration and .contrast
HOWS = {"mean": evidence.mean, "top": evidence.top_share, "patch": evidence.worst_patch,
        "spread": evidence.spread}
# Maps are over the picture's contrast; its own weight gives back about half of that, because a
# picture of little contrast is also harder to draw again.
FREE = {"late 20, top": 0.81, "late 40, mean": 0.58, PATH: 0.34, CONTRAST: 0.44}
PICTURE_ONLY = {"pull 1.2, mean": 1.03, "pull 2.0, patch": 0.64, "redrawn, mean": 0.92,
                CONTRAST: 1.09}
LIGHT = {"late 20, top": 0.52, "pull 1.2, mean": 1.34, "pull 2.0, patch": 0.68, CONTRAST: 1.0}
WITH_CALLS = {"late 20, top": 0.42, "pull 1.2, mean": 0.95, "pull 2.0, patch": 0.59,
              "redrawn, mean": 0.84, CONTRAST: 1.21}
WITH_POSTERIOR = {"late 20, top": 0.68, "late 40, mean": 0.42, PATH: 0.56, CONTRAST: 0.37,
                  "independent, top": 0.02}
SMALL = {"late 20, top": 0.57, "pull 1.2, mean": 1.72, CONTRAST: 0.95}
VARIANTS = {"confidence": WITH_CALLS, "confidence, 12 calls": LIGHT, "confidence, 6 calls": SMALL,
            "confidence, free": FREE, "confidence, picture only": PICTURE_ONLY,
            "confidence, posterior": WITH_POSTERIOR}
# The same parts as powers, learned on logarithms that were only centered: one picture has a value
# of its own, which a batch of other pictures does not change.
POWERS = {
    "confidence, powers": {"late 20, top": 0.48, "pull 1.2, mean": 1.38, "pull 2.0, patch": 1.09,
                           "redrawn, mean": 0.93, CONTRAST: 0.93},
    "confidence, free, powers": {"late 20, top": 0.92, "late 40, mean": 0.92, PATH: 0.32,
                                 CONTRAST: 0.55},
}
MAP = ("late 20", "renoised 1.2", "renoised 2.0", "redrawn")


def part(name: str, maps: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A part's values from relative maps (evidence.relative), B of them."""
    source, how = name.rsplit(", ", 1)
    if source not in maps:
        raise BayesDiffError(f"the part {name!r} needs the map {source!r}, and there are"
                             f" {sorted(maps)}: sample with what records it, or choose another"
                             " score.")
    return HOWS[how](maps[source])


def confidence(parts: Mapping[str, torch.Tensor], weights: Mapping[str, float]) -> torch.Tensor:
    """B values from the parts that `weights` names, of one batch."""
    _check(parts, weights)
    logs = standardized_logs(torch.stack([parts[name] for name in weights], 1))
    return logs @ torch.tensor(list(weights.values()), dtype=torch.float64)


def _check(parts: Mapping[str, torch.Tensor], weights: Mapping[str, float]) -> None:
    missing = [name for name in weights if name not in parts]
    if missing:
        raise BayesDiffError(f"confidence needs {missing[0]!r}, which is not among"
                             f" {sorted(parts)}.")


def powers(parts: Mapping[str, torch.Tensor], weights: Mapping[str, float]) -> torch.Tensor:
    """sum_p w_p log(part p), B values: pictures of one model, prompt and sampler compare, of
    whatever batch they are."""
    _check(parts, weights)
    return sum(weight * parts[name].double().clamp(min=TINY).log()
               for name, weight in weights.items())


def joint_map(maps: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where to look: the mean of several maps (B x C x (T) x H x W), each over its own mean in the
    picture so that none outweighs the others, smoothed; B x 1 x (T) x H x W, with mean 1 or so.
    It compares places of one picture; pictures are compared by `confidence`."""
    total = 0.0
    for one in maps:
        planes = one.double().mean(1, keepdim=True)
        mean = planes.flatten(1).mean(1).clamp(min=TINY)
        total = total + planes / mean.reshape(-1, *[1] * (planes.ndim - 1))
    return evidence.smooth(evidence.smooth(total / len(maps))).to(maps[0].dtype)
