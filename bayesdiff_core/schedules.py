"""Which steps are uncertain: the paper's schedule t~ (section 3.3). Step 0 is the noisiest."""

import math
from collections.abc import Iterable

import torch

from . import checks
from .checks import BayesDiffError


def by_interval(steps: int, interval: int) -> tuple[int, ...]:
    """`interval` plain steps between two uncertain ones. In the paper's labels, which count down to
    0, 50 steps with interval 4 are 49, 44, ..., 4."""
    checks.at_least("steps", steps, 1)
    checks.at_least("skip interval", interval, 0)
    return tuple(range(0, steps, interval + 1))


def by_list(steps: int, chosen: Iterable[int]) -> tuple[int, ...]:
    schedule = tuple(sorted(set(chosen)))
    if not schedule:
        raise BayesDiffError("the list of uncertain steps is empty, at least one was expected.")
    if schedule[0] < 0 or schedule[-1] >= steps:
        raise BayesDiffError(f"uncertain steps {schedule} leave the range 0 to {steps - 1} of a"
                             f" sampler with {steps} steps.")
    return schedule


def by_log_sigma(sigmas: torch.Tensor, nodes: int) -> tuple[int, ...]:
    """The steps nearest to `nodes` levels spaced evenly in log sigma, fewer where two coincide."""
    checks.decreasing(sigmas)
    checks.at_least("number of nodes", nodes, 1)
    levels = [math.log(float(s)) for s in sigmas[:-1]]
    high, low = levels[0], levels[-1]
    wanted = [high + (low - high) * (i + 0.5) / nodes for i in range(nodes)]
    nearest = {min(range(len(levels)), key=lambda i: abs(levels[i] - w)) for w in wanted}
    return tuple(sorted(nearest))
