"""Sampling on from a step of a trajectory, with the recipe that it was sampled with."""

import functools
from typing import NamedTuple

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.resampling import adjacent, offsets
from ....bayesdiff_core.trajectory import Trajectory, mixed_seed, parts_of
from ..masks import laid_on
from .interceptor import StandIn
from .recipes import Links, recipe_of
from .sampling import Observer, Recipe, SamplerRun, sample_guider


class Move(NamedTuple):
    """How far to go from a state, and how often."""

    count: int
    seed: int
    strength: float
    unit: str
    independent: bool


class Resampled(NamedTuple):
    latent: dict  # each image's variations beside each other
    rms: list[float]  # of each image's offsets in x
    calls: int


def resampled(trajectory: Trajectory, step: int, move: Move, links: Links,
              mask: torch.Tensor | None = None) -> Resampled:
    """Of a joined trajectory each part by its own recipe."""
    parts, found, at = parts_of(trajectory), [], 0
    for number, part in enumerate(parts):
        recipe, images = recipe_of(part), part.mean.shape[1]
        covered = None if mask is None else _spread(mask, trajectory.mean.shape[1],
                                                    slice(at, at + images), recipe)
        at += images
        if not move.strength and links.none and recipe.noise is not None:
            original = recipe.result["samples"].expand(move.count, *recipe.result["samples"].shape)
            found.append(Resampled(image_by_image(recipe.result, original), [0.0] * images, 0))
            continue
        drawn = drawn_offsets(part, recipe, step, move, covered)
        variations = Variations(part, links.into(recipe), step, covered, move.seed,
                                (number, len(parts)))
        samples = variations.sample(drawn)
        found.append(Resampled(image_by_image(recipe.result, samples), variations.rms(),
                               variations.calls))
    return Resampled(together([one.latent for one in found]),
                     [rms for one in found for rms in one.rms], sum(one.calls for one in found))


def _spread(mask: torch.Tensor, batch: int, images: slice, recipe: Recipe) -> torch.Tensor:
    """A MASK of a batch on those images of it that the recipe made, B x C x ...; what was masked
    when they were sampled stays so."""
    if not mask.numel():
        raise BayesDiffError(f"the mask is empty (its shape is {tuple(mask.shape)}), B x H x W was"
                             " expected: look at the node that makes it, or leave it open.")
    shape = recipe.result["samples"].shape
    of_batch = batch, *shape[1:]
    spread_out = comfy.utils.reshape_mask(laid_on(of_batch, mask.float().cpu()), of_batch)[images]
    known = recipe.latent_image.get("noise_mask")
    if known is None:
        return spread_out
    return spread_out * comfy.utils.reshape_mask(known.float().cpu(), shape)


class Variations:
    """Runs that enter the trajectory at `step`, each with offsets of its own; a watcher.

    seed: of the noise that ancestral and SDE samplers add. part: this trajectory's number among
    those that are sampled one after the other, and how many these are.
    """

    def __init__(self, trajectory: Trajectory, recipe: Recipe, step: int,
                 mask: torch.Tensor | None = None, seed: int = 0, part: tuple[int, int] = (0, 1)):
        self._recipe, self._mask, self._part = recipe, mask, part
        self.at_start = _at_start(recipe, step)
        self._mean = trajectory.mean[trajectory.position(step)]
        self._sigmas = trajectory.sigmas[step:]
        self._seed = seed
        self._offsets: torch.Tensor | None = None
        self._done = self.calls = 0
        self._squares: list[torch.Tensor] = []

    def sample(self, drawn: torch.Tensor) -> torch.Tensor:
        """drawn: offsets, count x B x ..., of x, or at the start of the noise; gives the LATENTs'
        samples in the same order."""
        self._offsets = drawn
        noise, latent = GivenNoise(self._recipe.noise, self._recipe.seed), self._known()
        found = []
        for _ in drawn:
            comfy.model_management.throw_exception_if_processing_interrupted()
            # A clone, as uni_pc writes into its sigmas.
            out, _ = sample_guider(self._recipe.guider, Observer(self.run), noise,
                                   self._recipe.sampler,
                                   self._sigmas.clone(), latent)
            found.append(self._pasted(out["samples"]))
        return torch.stack(found)

    def run(self, run: SamplerRun) -> torch.Tensor:
        steps, count = len(run.sigmas) - 1, len(self._offsets)
        part, parts = self._part
        run.progress.part = (part * count + self._done) * steps, parts * count * steps
        offset = self._offsets[self._done].to(run.x)
        if self.at_start:
            offset = offset * _noise_scale(run)
        seed = self._sampler_seed(steps)
        self._done += 1
        self._squares.append(offset.square().flatten(1).mean(1).cpu())

        def call(*args, **kwargs):
            self.calls += 1
            return run.model(*args, **kwargs)

        torch.manual_seed(seed)  # where s_churn draws from, as after the host's own noise
        return run.go(model=StandIn(run.model, call), x=self._mean.to(run.x) + offset,
                      extra_args={**run.extra_args, "seed": seed}), None

    def _sampler_seed(self, steps: int) -> int:
        """For noise that x_t does not know yet: the run's own seed begins with the noise that led
        there. At the start it does not, so what moves little stays near."""
        seed = self._recipe.seed or 0
        if self.at_start:
            return seed
        return functools.reduce(mixed_seed, (steps, self._seed, self._done), seed)

    def rms(self) -> list[float]:
        """Of each image's offsets in x."""
        return torch.stack(self._squares).mean(0).sqrt().tolist()

    def _known(self) -> dict:
        if self._mask is None:
            return self._recipe.latent_image
        # One channel: the host spreads it over all of them.
        return {**self._recipe.result, "noise_mask": self._mask[:, :1]}

    def _pasted(self, samples: torch.Tensor) -> torch.Tensor:
        """The host's inpainting gives known pixels back but for rounding."""
        original = self._recipe.result["samples"]
        samples = samples.to(original)
        return samples if self._mask is None else torch.where(self._mask.to(original.device) > 0,
                                                              samples, original)


class GivenNoise:
    """The host's NOISE, drawn already; None is none."""

    def __init__(self, noise: torch.Tensor | None, seed: int):
        self._noise, self.seed = noise, seed

    def generate_noise(self, latent: dict) -> torch.Tensor:
        return torch.zeros_like(latent["samples"]) if self._noise is None else self._noise


def _at_start(recipe: Recipe, step: int) -> bool:
    """Whether x is the noise that the run began with, and not a state given as a LATENT."""
    return step == 0 and recipe.noise is not None


def _noise_scale(run: SamplerRun) -> torch.Tensor:
    """How much of x is noise on entering the first step, as the host would scale it."""
    full = comfy.samplers.Sampler().max_denoise(run.guider, run.sigmas)
    one, zero = torch.ones_like(run.x), torch.zeros_like(run.x)
    return run.model_sampling.noise_scaling(run.sigmas[0], one, zero, full)


def drawn_offsets(trajectory: Trajectory, recipe: Recipe, step: int, move: Move,
                  mask: torch.Tensor | None) -> torch.Tensor:
    """For Variations at this step."""
    mask = torch.ones(1) if mask is None else mask
    if not _at_start(recipe, step):
        return mask * offsets(trajectory, step, move.count, move.seed, move.strength, move.unit,
                              move.independent)
    eta = min(move.strength, 1.0) * mask
    return adjacent(recipe.noise, eta, trajectory.seeds.tolist(), move.count,
                    move.seed) - recipe.noise


def image_by_image(result: dict, samples: torch.Tensor) -> dict:
    """A LATENT like `result` with its variations, count x B x ..., beside each other."""
    count, batch = samples.shape[:2]
    latent = {**result, "samples": samples.transpose(0, 1).flatten(0, 1)}
    if "batch_index" in latent:
        latent["batch_index"] = [index for index in latent["batch_index"] for _ in range(count)]
    mask = latent.get("noise_mask")
    if mask is not None and len(mask) == batch > 1:
        latent["noise_mask"] = mask.repeat_interleave(count, 0)
    return latent


def together(latents: list[dict]) -> dict:
    """One LATENT of several, which came from batches of their own: so without a batch_index."""
    if len(latents) == 1:
        return latents[0]
    first = {key: value for key, value in latents[0].items() if key != "batch_index"}
    return {**first, "samples": torch.cat([latent["samples"] for latent in latents])}
