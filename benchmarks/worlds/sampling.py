"""The host's samplers in its frame, x and sigma -> denoised, with everything that scores need.

Riders (deviations of a posterior) go along as more items of the batch, as they do in the host: a
batch is (1 + K) x B x C x H x W, its first the pictures, and noise is the same for all of an item.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from bayesdiff_core.deviations import Deviations, plan, shared_plan
from bayesdiff_core.posterior import Posterior
from benchmarks.worlds import nets

CALLS = 50
SAMPLERS = ("euler", "dpm_2", "euler_ancestral")
SHARE = 0.5  # extra calls of the node's mode accurate
Denoise = Callable[[torch.Tensor, float], torch.Tensor]


def ancestral(sigma: float, to: float, flow: bool) -> tuple[float, float, float]:
    """The host's euler_ancestral, eta = 1: down to which level, what is kept, and new noise."""
    if flow:
        down = to * (to / sigma)
        kept = (1 - to) / (1 - down)
        return down, kept, max(to**2 - down**2 * kept**2, 0.0) ** 0.5
    up = min(to, (to**2 * (sigma**2 - to**2) / sigma**2) ** 0.5)
    return (to**2 - up**2) ** 0.5, 1.0, up


def step(sampler: str, denoise: Denoise, x: torch.Tensor, sigma: float, to: float,
         denoised: torch.Tensor, flow: bool, noise: Callable[[], torch.Tensor]) -> torch.Tensor:
    """x at the next level, from what the network said of x."""
    if sampler == "euler_ancestral" and to:
        down, kept, fresh = ancestral(sigma, to, flow)
        return kept * torch.lerp(denoised, x, down / sigma) + fresh * noise()
    if sampler == "dpm_2" and to:
        middle = (sigma * to) ** 0.5
        x_middle = torch.lerp(denoised, x, middle / sigma)
        slope = (x_middle - denoise(x_middle, middle)) / middle
        return x + (to - sigma) * slope
    return torch.lerp(denoised, x, to / sigma)


class Noise:
    """Of a seed each, so that a picture does not depend on its batch mates."""

    def __init__(self, seeds: Sequence[int], shape: Sequence[int]):
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._shape = tuple(shape)

    def __call__(self) -> torch.Tensor:
        return torch.stack([torch.randn(self._shape, generator=g) for g in self._generators])


class Scene(NamedTuple):
    """A net with its posterior and a sampler of 50 calls."""

    name: str
    net: torch.nn.Module
    posterior: Posterior
    sampler: str

    @property
    def sigmas(self) -> torch.Tensor:
        return nets.sigmas(self.net, CALLS // 2 if self.sampler == "dpm_2" else CALLS)

    @property
    def flow(self) -> bool:
        return self.net.flow

    def denoise(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Any leading axes."""
        flat = x.reshape(-1, *x.shape[-3:])
        d = nets.output(self.net, flat, torch.full((len(flat),), float(sigma)))
        return x - sigma * d.reshape(x.shape)

    def rider(self, seeds: Sequence[int], meaning: str) -> Deviations:
        make = plan if meaning == "independent" else shared_plan
        return Deviations(make(self.sigmas, int(SHARE * CALLS), self.flow), meaning, list(seeds),
                          self.flow)


@functools.lru_cache(2)
def scene(name: str, sampler: str, checkpoint: int | None = None) -> Scene:
    net = nets.load(name, checkpoint)
    return Scene(name, net, nets.fit(name, net), sampler)


def run(given: Scene, x: torch.Tensor, noise: Callable[[], torch.Tensor],
        see: Callable[[int, torch.Tensor, torch.Tensor], None] = lambda *_: None,
        riders: Sequence[Deviations] = (), first: int = 0, sampler: str | None = None):
    """From step `first` to the end: the pictures and each rider's deviations. see(step, x,
    denoised) is told of every step what a host's callback is told."""
    counts = [rider.count for rider in riders]
    batch = torch.cat([x[None], x.expand(sum(counts), *x.shape)]) if counts else x[None]

    def denoise(items: torch.Tensor, sigma: float) -> torch.Tensor:
        at = items[0]
        if not riders:
            return given.denoise(items, sigma)
        phi = nets.features(given.net, at, torch.full((len(at),), sigma))
        d = given.net.to_grid(given.net.last(phi))
        predictive = nets.predictive(given.net, given.posterior, phi)

        def predict(moved: torch.Tensor, level: float) -> torch.Tensor:
            return nets.output(given.net, moved, torch.full((len(moved),), float(level)))

        moved = [rider.respond(sigma, at, part - at, d, rider.posterior_part(predictive), predict)
                 for rider, part in zip(riders, items[1:].split(counts))]
        return items - sigma * torch.cat([d[None], *(d + one for one in moved)])

    levels = given.sigmas.tolist()
    for number, (sigma, to) in list(enumerate(zip(levels, levels[1:])))[first:]:
        denoised = denoise(batch, sigma)
        see(number, batch[0], denoised[0])
        batch = step(sampler or given.sampler, denoise, batch, sigma, to, denoised, given.flow,
                     noise)
    return batch[0], [part - batch[0] for part in batch[1:].split(counts)] if counts else []
