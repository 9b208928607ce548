"""Points of a 5 x 5 grid of narrow Gaussians: seconds to train on, good for understanding.

A point is a picture of two channels and one pixel, so that everything else takes it as one.
"""

import torch

from benchmarks.worlds.rule import LIMIT, Judged

SIDE = 5
WIDTH = 0.05  # of a mode; the modes lie in [-1, 1]
FAR = 4.0  # widths: 3 in 10,000 points of the world are farther


def modes() -> torch.Tensor:
    """25 x 2."""
    line = torch.linspace(-1, 1, SIDE)
    return torch.cartesian_prod(line, line)


def draw(n: int, generator: torch.Generator) -> torch.Tensor:
    """n points as they should be, n x 2 x 1 x 1."""
    center = modes()[torch.randint(SIDE**2, (n,), generator=generator)]
    return (center + WIDTH * torch.randn(n, 2, generator=generator))[..., None, None]


def spoilt(n: int, generator: torch.Generator) -> torch.Tensor:
    """n points half way between two neighbors."""
    first = modes().reshape(SIDE, SIDE, 2)
    between = torch.cat([(first[1:] + first[:-1]).flatten(0, 1),
                         (first[:, 1:] + first[:, :-1]).flatten(0, 1)]) / 2
    return between[torch.randint(len(between), (n,), generator=generator)][..., None, None]


def nearest(points: torch.Tensor) -> Judged:
    """The nearest mode; errors are scaled to be over the rule's limit where a point is too FAR."""
    flat = points.flatten(1)
    found = modes()[torch.cdist(flat, modes()).argmin(1)]
    error = (flat - found).norm(dim=1) * LIMIT / (FAR * WIDTH)
    return Judged(found[..., None, None], error[:, None, None], error.square(), error)
