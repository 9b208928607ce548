"""Drawings of a bench net with everything that scores are made of. Kept in the cache."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from safetensors.torch import load_file, save_file

from bayesdiff_core import skip_schedule
from bayesdiff_core.deviations import Deviations, plan, shared_plan
from bayesdiff_core.iteration import ImageNoise
from bayesdiff_core.paper import rules
from bayesdiff_core.paper.algorithm import bayesdiff
from bayesdiff_core.posterior import Posterior
from bayesdiff_core.trajectory import TrajectoryVariance
from benchmarks import denoiser, nets
from tools.places import cache_folder

CALLS = 50
RATIOS = (0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0)  # noise to signal, of the re-noising probe
SHARE = 0.5  # extra calls of the node's mode accurate
AT_ONCE = 100
RULES = {"ddim": lambda flow: rules.ddim,
         "dpm_solver_2": lambda flow: functools.partial(rules.dpm_solver_2, flow=flow)}


class Once:
    """A posterior that works out gamma^2 of one call's features once for all who ask."""

    def __init__(self, posterior: Posterior):
        self._posterior, self._phi, self._variance = posterior, None, None

    def __getattr__(self, name: str):
        return getattr(self._posterior, name)

    def predictive_variance(self, phi: torch.Tensor, every: int = 1) -> torch.Tensor:
        if phi is not self._phi:
            self._phi, self._variance = phi, self._posterior.predictive_variance(phi, every)
        return self._variance


class Rider(NamedTuple):
    """Deviations that ride along, of a posterior."""

    deviations: Deviations
    posterior: Posterior


class Ride(NamedTuple):
    picture: torch.Tensor  # B x C x H x W
    variances: list[torch.Tensor]  # of each rider
    tail: torch.Tensor  # trajectory variance
    gammas: list[torch.Tensor]  # B: gamma^2 summed over pixels and calls, of each posterior
    states: list[torch.Tensor]  # on entering each step
    offsets: list[torch.Tensor]  # of the first rider, on entering each step


class Scene(NamedTuple):
    """A net with its posterior and a sampler of 50 calls."""

    name: str
    net: torch.nn.Module
    posterior: Posterior
    sampler: str

    @property
    def flow(self) -> bool:
        return self.net.kind == "flow"

    @property
    def sigmas(self) -> torch.Tensor:
        return denoiser.sigmas(self.net, CALLS if self.sampler == "ddim" else CALLS // 2)

    @property
    def rule(self) -> Callable:
        return RULES[self.sampler](self.flow)

    def start(self, seeds: Sequence[int]) -> torch.Tensor:
        """Noise of a seed each."""
        shape = (self.net.channels, nets.SIZE, nets.SIZE)
        noise = [torch.randn(shape, generator=torch.Generator().manual_seed(seed))
                 for seed in seeds]
        return self.sigmas[0] * torch.stack(noise)

    def rider(self, seeds: Sequence[int], noise_model: str = "independent",
              posterior: Posterior | None = None) -> Rider:
        make = plan if noise_model == "independent" else shared_plan
        riding = Deviations(make(self.sigmas, int(SHARE * CALLS), self.flow), noise_model,
                            list(seeds),
                            self.flow)
        return Rider(riding, posterior or self.posterior)

    def denoiser(self, labels: torch.Tensor) -> denoiser.Denoiser:
        return denoiser.Denoiser(self.net, labels, 1.0, self.posterior)


@functools.cache
def scene(name: str, sampler: str) -> Scene:
    net = nets.load(name)
    with torch.no_grad():
        return Scene(name, net, Once(denoiser.fit(name, net)), sampler)


def ride(given: Scene, labels: torch.Tensor, x: torch.Tensor, riders: Sequence[Rider],
         posteriors: Sequence[Posterior] = (), first: int = 0) -> Ride:
    """A plain run from step `first` with any number of riders; gamma^2 of `posteriors`."""
    den = given.denoiser(labels)
    levels = given.sigmas.tolist()
    moving = [x.new_zeros(rider.deviations.count, *x.shape) for rider in riders]
    gammas = [0.0] * len(posteriors)
    tail, states, offsets = TrajectoryVariance(len(levels) - 1), [], []

    def call(at, at_moving, sigma):
        d, predictive = den.with_posterior(at, sigma)
        for index, one in enumerate(posteriors):
            spread = predictive._replace(posterior=one).variance()
            gammas[index] += spread.flatten(1).sum(1, dtype=torch.float64)
        found = [rider.deviations.posterior_part(predictive._replace(posterior=rider.posterior))
                 for rider in riders]
        return d, [rider.deviations.respond(sigma, at, part, d, own, den)
                   for rider, part, own in zip(riders, at_moving, found)]

    for sigma, sigma_next in list(zip(levels, levels[1:]))[first:]:
        states.append(x)
        offsets.append(moving[0] if moving else None)
        now = given.rule(sigma, sigma_next)
        d, moved = call(x, moving, sigma)
        if now.to_mid:
            middle = [now.to_mid.mean(part, by) for part, by in zip(moving, moved)]
            d, moved = call(now.to_mid.mean(x, d), middle, now.sigma_mid)
            tail.add(now.to_mid.mean(x, d) - now.sigma_mid * d)
        else:
            tail.add(x - sigma * d)
        x = now.step.mean(x, d)
        moving = [now.step.mean(part, by) for part, by in zip(moving, moved)]
    variances = [rider.deviations.variance(part) for rider, part in zip(riders, moving)]
    return Ride(x, variances, tail.over(), gammas, states, offsets)


def renoised(given: Scene, labels: torch.Tensor, picture: torch.Tensor,
             seeds: Sequence[int]) -> torch.Tensor:
    """How far the net draws a picture from itself when noise is put on it again: mean squared
    distance, geometric mean over noise levels, B values. Seven more calls."""
    den, logs = given.denoiser(labels), 0.0
    noise = ImageNoise([seed + 10**6 for seed in seeds], picture.shape[1:])
    for ratio in RATIOS:
        sigma = ratio / (1 + ratio) if given.flow else ratio
        kept = 1 - sigma if given.flow else 1.0
        x = kept * picture + sigma * noise(picture)
        denoised = x - sigma * den(x, sigma)
        logs = logs + (denoised - picture).square().flatten(1).mean(1).log()
    return (logs / len(RATIOS)).exp()


def papers(given: Scene, labels: torch.Tensor, x: torch.Tensor, seeds: Sequence[int],
           interval: int = 4, samples: int = 10) -> tuple[torch.Tensor, int]:
    """Var(x_0) by the paper's algorithm, and the evaluations that an image took. The picture is
    left alone, so that every score is of the same one."""
    den = given.denoiser(labels)
    schedule = skip_schedule.by_interval(len(given.sigmas) - 1, interval)
    found = bayesdiff(den, den.with_posterior, x, given.sigmas, given.rule, schedule, samples,
                      ImageNoise(list(seeds), x.shape[1:]), sample_eps=False)
    return found.variance, den.evaluations // len(x)


@torch.no_grad()
def drawings(name: str, sampler: str, count: int, first_seed: int, papers_of: int) -> dict:
    """`count` pictures in turn of all classes, with maps and sums by name; the paper's of the first
    `papers_of` of them."""
    kept = cache_folder() / "drawings" / \
        f"{nets.weights(name).stem}-{sampler}-{count}-{first_seed}-{papers_of}.safetensors"
    if not kept.exists():
        given, parts, started = scene(name, sampler), [], time.time()
        for begin in range(0, count, AT_ONCE):
            seeds = range(first_seed + begin, first_seed + min(begin + AT_ONCE, count))
            labels = torch.tensor([seed % nets.CLASSES for seed in seeds])
            x = given.start(seeds)
            done = ride(given, labels, x, [given.rider(seeds), given.rider(seeds, "shared")],
                        [given.posterior])
            part = {"picture": done.picture, "labels": labels, "variance": done.variances[0],
                    "shared": done.variances[1], "tail": done.tail, "gamma": done.gammas[0],
                    "renoised": renoised(given, labels, done.picture, seeds)}
            if begin < papers_of:
                part["paper"] = papers(given, labels, x, seeds)[0].flatten(1).sum(1)
            parts.append(part)
            print(f"{name} {sampler} {begin + len(labels)}/{count}: {time.time() - started:.0f} s",
                  flush=True)
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file({key: torch.cat([part[key] for part in parts if key in part])
                   for key in parts[0]}, kept.with_suffix(".part"))
        kept.with_suffix(".part").replace(kept)
    return load_file(kept)
