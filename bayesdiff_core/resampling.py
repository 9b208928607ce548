"""Other states x_t to sample on from: offsets from a trajectory's mean at one of its steps."""

import torch

from . import checks
from .checks import BayesDiffError
from .trajectory import Trajectory, mixed_seed

UNITS = ("noise level", "posterior")


def chosen_step(trajectory: Trajectory, step: int, fraction: float, last: int | None = None) -> int:
    """`step` if the trajectory keeps it; with -1 the kept one nearest to `fraction` of the steps,
    up to `last` where that is given."""
    if step != -1:
        trajectory.position(step)
        return step
    steps = len(trajectory.sigmas) - 1
    kept = [at for at in trajectory.steps.tolist() if at <= (steps if last is None else last)]
    return min(kept, key=lambda at: abs(at - fraction * steps))


def step_to_leave(trajectory: Trajectory, step: int, fraction: float) -> int:
    """The chosen step, if something is left to sample from there."""
    last = len(trajectory.sigmas) - 1
    if step == last:
        raise BayesDiffError(f"step {step} is the result of this trajectory, so nothing is left to"
                             f" sample: one of {trajectory.steps.tolist()[:-1]} was expected.")
    return chosen_step(trajectory, step, fraction, last - 1)


def offsets(trajectory: Trajectory, step: int, count: int, seed: int, strength: float, unit: str,
            independent: bool) -> torch.Tensor:
    """strength times draws of x_t - E(x_t), count x B x ..., in the sampler's space. posterior: as
    the trajectory's variance says. noise level: scaled to an rms of sigma_t."""
    checks.at_least("strength", strength, 0)
    checks.one_of("unit", unit, UNITS)
    drawn = trajectory.draws(step, count, seed, independent)
    if unit == "posterior" or not strength:
        return strength * drawn
    axes = tuple(range(2, drawn.ndim))
    rms = drawn.square().mean(axes, keepdim=True).sqrt()
    if not rms.all():
        raise BayesDiffError(f"there is no variance at step {step}, so there is nothing to scale to"
                             " the noise level: choose another step, or a posterior with a"
                             " temperature above 0.")
    return strength * trajectory.sigmas[step] / rms * drawn


def adjacent(noise: torch.Tensor, eta: torch.Tensor, seeds: list[int], count: int,
             seed: int) -> torch.Tensor:
    """The paper's adjacent initial positions, sqrt(1 - eta) x_T + sqrt(eta) z, count x B x ...;
    noise: x_T of variance 1; eta: 0 to 1, of any shape that spreads to it."""
    checks.at_least("number of draws", count, 1)
    z = []
    for image_seed in seeds:
        generator = torch.Generator().manual_seed(mixed_seed(image_seed, seed))
        z.append(torch.randn(count, *noise.shape[1:], generator=generator))
    return (1 - eta).sqrt() * noise + eta.sqrt() * torch.stack(z, dim=1)
