"""What a sampled trajectory leaves behind: a record, and the free variance of its tail."""

from typing import NamedTuple

import torch

from . import checks
from .checks import BayesDiffError

DEFAULT_LIMIT = 512 * 2**20  # bytes


class Trajectory(NamedTuple):
    """E(x_t), Var(x_t) and the deviations at kept steps; CPU tensors that nothing writes to.

    A NamedTuple of tensors, so that the host's cache sees its size. Kept step i is the state on
    entering step i, at sigmas[i]; step len(sigmas) - 1 is the result.
    """

    sigmas: torch.Tensor  # steps + 1
    steps: torch.Tensor  # kept, ascending
    mean: torch.Tensor  # kept x B x ...
    variance: torch.Tensor  # kept x B x ...
    deviations: torch.Tensor  # kept x K x B x ..., K may be 0
    seeds: torch.Tensor  # B: the noise seed of each image

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self)

    def position(self, step: int) -> int:
        """Where `step` is kept."""
        kept = self.steps.tolist()
        if step not in kept:
            raise BayesDiffError(f"step {step} is not in this trajectory, which keeps {kept}:"
                                 " choose one of these, or sample again and keep more steps.")
        return kept.index(step)


class TrajectoryRecorder:
    """Builds a Trajectory under a size limit: where all steps do not fit, they are kept evenly, the
    first and the last always."""

    def __init__(self, sigmas: torch.Tensor, shape: torch.Size, deviations: int, seeds: list[int],
                 limit: int = DEFAULT_LIMIT):
        if len(seeds) != shape[0]:
            raise BayesDiffError(f"{len(seeds)} seeds for a batch of {shape[0]} images: one a seed"
                                 " each was expected.")
        self.sigmas = sigmas.detach().to("cpu", torch.float32).clone()
        self.seeds = torch.tensor(seeds, dtype=torch.int64)
        self.kept = kept_steps(len(sigmas), 4 * shape.numel() * (2 + deviations), limit)
        self._rows = []

    def add(self, step: int, mean: torch.Tensor, variance: torch.Tensor,
            deviations: torch.Tensor) -> None:
        if step in self.kept:
            self._rows.append([part.detach().to("cpu", torch.float32, copy=True)
                               for part in (mean, variance, deviations)])

    def trajectory(self) -> Trajectory:
        if len(self._rows) != len(self.kept):
            raise BayesDiffError(f"{len(self._rows)} of {len(self.kept)} steps were recorded: the"
                                 " sampler stopped early.")
        means, variances, deviations = (torch.stack(part) for part in zip(*self._rows))
        return Trajectory(self.sigmas, torch.tensor(self.kept), means, variances, deviations,
                          self.seeds)


def kept_steps(states: int, bytes_each: int, limit: int) -> list[int]:
    """Indices of the states to keep: all, or as many as fit, spread evenly over first and last."""
    fitting = min(states, limit // bytes_each)
    if fitting < 2:
        raise BayesDiffError(f"one step of this trajectory takes {bytes_each / 2**20:.0f} MiB and"
                             f" the limit is {limit / 2**20:.0f} MiB: keep fewer deviations, use a"
                             " smaller batch, or raise the limit.")
    return sorted({round(i * (states - 1) / (fitting - 1)) for i in range(fitting)})


class TrajectoryVariance:
    """Variance of the denoised estimate over the last steps (arXiv 2406.09358): no posterior, no
    extra calls, any sampler. Streaming, by Welford's update."""

    def __init__(self, steps: int, last: int):
        checks.at_least("number of last steps", last, 2)
        if last > steps:
            raise BayesDiffError(f"the last {last} steps were asked for, the sampler takes"
                                 f" {steps}: ask for fewer.")
        self._first, self._count, self._mean, self._sum = steps - last, 0, 0.0, 0.0

    def add(self, step: int, denoised: torch.Tensor) -> None:
        if step < self._first:
            return
        self._count += 1
        off = denoised - self._mean
        self._mean = self._mean + off / self._count
        self._sum = self._sum + off * (denoised - self._mean)

    def variance(self) -> torch.Tensor:
        """Population variance over the steps seen."""
        checks.at_least("number of steps seen", self._count, 2)
        return self._sum / self._count
