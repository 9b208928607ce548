"""Kept states as LATENTs, for the host's own samplers to go on from, and the way back."""

from typing import NamedTuple

import comfy.samplers
import torch

from ....bayesdiff_core import checks
from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.trajectory import Trajectory, mixed_seed, parts_of
from ..network.parameterization import is_flow
from .recipes import Unlinked, family_of, recipe_of
from .sampling import Recipe
from .variations import GivenNoise, together

SEEDS = "bayesdiff_seeds"  # a key of such LATENTs: what the same draws need


class LatentState(NamedTuple):
    """A kept state, as the host takes it to sample on."""

    mean: dict
    variance: dict
    noise: GivenNoise  # of the mean what no LATENT can hold


def latent_state(trajectory: Trajectory, step: int) -> LatentState:
    """E(x_t) and Var(x_t) in the LATENT's scale, as the host's own samplers hand out latents with
    noise left in them: a flow's divided by 1 - sigma."""
    level = trajectory.sigmas[step]
    found = [_latent_state(part, step, level) for part in parts_of(trajectory)]
    noise = torch.cat([one.noise.generate_noise({}) for one in found])
    return LatentState(together([one.mean for one in found]),
                       together([one.variance for one in found]),
                       GivenNoise(noise, found[0].noise.seed))


def _latent_state(trajectory: Trajectory, step: int, level: torch.Tensor) -> LatentState:
    recipe, at = recipe_of(trajectory), trajectory.position(step)
    x, last = trajectory.mean[at], len(trajectory.sigmas) - 1
    signal = 1.0
    if step < last and _flows(recipe.guider):
        signal = 1.0 - level
        _check_signal(float(signal))
    samples, remainder = x / signal * trajectory.scale + trajectory.shift, torch.zeros_like(x)
    if not isinstance(recipe.guider, Unlinked):
        model = recipe.guider.model_patcher
        samples = model.model.process_latent_out(x / signal)
        if step < last:
            # Scaling rounds, and not every x is reached: what is left travels as noise.
            one = torch.ones_like(x)
            remainder = (x - entered(model, level, samples)) / entered(model, level, None, one)
    seed = mixed_seed(recipe.seed or 0, last - step)
    keys = {key: value for key, value in recipe.result.items() if key != "noise_mask"}
    keys[SEEDS] = (recipe.seed or 0, *trajectory.seeds.tolist())
    variance = trajectory.variance[at] * (trajectory.scale / signal).square()
    return LatentState({**keys, "samples": samples}, {**keys, "samples": variance},
                       GivenNoise(remainder, seed))


def entered(model, level: torch.Tensor, samples: torch.Tensor | None,
            noise: torch.Tensor | None = None) -> torch.Tensor:
    """x, as the host makes it of a LATENT's samples and noise before a sampler's first step."""
    sampling = model.get_model_object("model_sampling")
    full = comfy.samplers.Sampler().max_denoise(_Wrapped(model.model), level[None])
    latent = torch.zeros_like(noise) if samples is None else model.model.process_latent_in(samples)
    noise = torch.zeros_like(latent) if noise is None else noise
    return sampling.noise_scaling(level, noise, latent, full)


class _Wrapped(NamedTuple):
    inner_model: object


def from_latents(mean: dict, variance: dict, sigmas: torch.Tensor, recipe: Recipe) -> Trajectory:
    """A trajectory of one state, E(x) and Var(x) in the LATENT's scale at sigmas[0]."""
    samples, spread = mean["samples"].float().cpu(), variance["samples"].float().cpu()
    model = recipe.guider.model_patcher
    if samples.shape != spread.shape:
        raise BayesDiffError(f"mean has the shape {list(samples.shape)} and variance"
                             f" {list(spread.shape)}, the same was expected: link two outputs of"
                             " one node.")
    family = family_of(model)
    if samples.ndim < 3 or samples.shape[1] != family.channels or not samples.numel():
        raise BayesDiffError(f"mean has the shape {list(samples.shape)}, and the model given is a"
                             f" {family}: a latent of that model was expected.")
    checks.finite("mean", samples)
    checks.finite("variance", spread)
    if (spread < 0).any():
        raise BayesDiffError(f"variance has {int((spread < 0).sum())} negative values, the least is"
                             f" {float(spread.min()):.3g}; 0 or more was expected: link the output"
                             " `variance` of a BayesDiff node.")
    checks.decreasing(sigmas)
    sigmas = sigmas.float().cpu()
    if family.flow:
        _check_signal(1.0 - float(sigmas[0]))
    zero = torch.zeros_like(samples)
    slope = entered(model, sigmas[0], zero + 1) - entered(model, sigmas[0], zero)
    one, batch = torch.ones(1, *[1] * (zero.ndim - 1)), len(samples)
    seed, *seeds = mean.get(SEEDS) or [0]
    if len(seeds) != batch:  # made by another node, or batched
        seeds = [mixed_seed(0, index) for index in mean.get("batch_index") or range(batch)]
    result = {key: value for key, value in mean.items() if key != "noise_mask"}
    return Trajectory(sigmas, torch.tensor([0]), entered(model, sigmas[0], samples)[None],
                      (spread * slope.square())[None], zero[None],
                      zero.new_zeros(1, 0, *zero.shape),
                      0, torch.tensor(seeds), one, torch.zeros_like(one),
                      recipe._replace(seed=seed, latent_image=result, result=result))


def _flows(guider) -> bool:
    if isinstance(guider, Unlinked):
        return guider.family.flow
    return is_flow(guider.model_patcher.get_model_object("model_sampling"))


def _check_signal(signal: float) -> None:
    if signal <= 0:
        raise BayesDiffError("at sigma 1 the state of a flow is noise alone, which no LATENT can"
                             " hold, as the host multiplies it by 1 - sigma: choose a later step.")
