"""Sampling on from a step of a trajectory, with the recipe that it was sampled with."""

import copy

import comfy.model_management
import comfy.samplers
import comfy.utils
import torch

from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.resampling import adjacent, offsets
from ...bayesdiff_core.trajectory import Trajectory
from .sampling import Recipe, SamplerRun, StandIn, is_flow, sample_guider


def recipe_of(trajectory: Trajectory) -> Recipe:
    if trajectory.recipe is None:
        raise BayesDiffError("this trajectory does not say how it was sampled, so it cannot be"
                             " sampled on: one from BayesDiff KSampler, BayesDiff Sampler Custom or"
                             " BayesDiff Best of N was expected.")
    return trajectory.recipe


def changed(recipe: Recipe, model=None, positive=None, negative=None) -> Recipe:
    """With another MODEL or other prompts, where they are given."""
    guider = copy.copy(recipe.guider)
    guider.original_conds = dict(guider.original_conds)
    if model is not None:
        _check_model(guider.model_patcher, model)
        guider.model_patcher, guider.model_options = model, model.model_options
    prompts = {"positive": positive, "negative": negative}
    guider.inner_set_conds({name: prompt for name, prompt in prompts.items() if prompt is not None})
    return recipe._replace(guider=guider)


def _check_model(old, new) -> None:
    if _family(new) != _family(old):
        raise BayesDiffError(f"the trajectory was sampled by a {_named(old)}, and the model given"
                             f" is a {_named(new)}: one of the same family was expected. Leave"
                             " `model` open to use the trajectory's own.")


def _family(model) -> tuple:
    network = model.get_model_object("diffusion_model")
    latent_format = model.get_model_object("latent_format")
    return (type(network), type(latent_format), latent_format.latent_channels,
            is_flow(model.get_model_object("model_sampling")))


def _named(model) -> str:
    network, latent_format, channels, flow = _family(model)
    return (f"{network.__name__} ({channels} latent channels as in {latent_format.__name__},"
            f" {'flow' if flow else 'no flow'})")


def spread(mask: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """A MASK on the latent, B x C x ...; what was masked when it was sampled stays so."""
    if not mask.numel():
        raise BayesDiffError(f"the mask is empty (its shape is {tuple(mask.shape)}), B x H x W was"
                             " expected: look at the node that makes it, or leave it open.")
    shape = recipe.result["samples"].shape
    spread_out = comfy.utils.reshape_mask(mask.float().cpu(), shape)
    known = recipe.latent_image.get("noise_mask")
    if known is None:
        return spread_out
    return spread_out * comfy.utils.reshape_mask(known.float().cpu(), shape)


class Variations:
    """Runs that enter the trajectory at `step`, each with offsets of its own; a watcher."""

    tap = None

    def __init__(self, trajectory: Trajectory, recipe: Recipe, step: int,
                 mask: torch.Tensor | None = None):
        self._recipe, self._mask, self.at_start = recipe, mask, step == 0
        self._mean = trajectory.mean[trajectory.position(step)]
        self._sigmas = trajectory.sigmas[step:]
        self._offsets: torch.Tensor | None = None
        self._done = self.calls = 0
        self._squares: list[torch.Tensor] = []

    def sample(self, drawn: torch.Tensor) -> torch.Tensor:
        """drawn: offsets, count x B x ..., of x, or at the start of the noise; gives the LATENTs'
        samples in the same order."""
        self._offsets = drawn
        noise, latent = GivenNoise(self._recipe), self._known()
        found = []
        for _ in drawn:
            comfy.model_management.throw_exception_if_processing_interrupted()
            # A clone, as uni_pc writes into its sigmas.
            out, _ = sample_guider(self._recipe.guider, self, noise, self._recipe.sampler,
                                   self._sigmas.clone(), latent)
            found.append(self._pasted(out["samples"]))
        return torch.stack(found)

    def run(self, run: SamplerRun) -> torch.Tensor:
        steps = len(run.sigmas) - 1
        run.progress.part = self._done * steps, len(self._offsets) * steps
        offset = self._offsets[self._done].to(run.x)
        if self.at_start:
            offset = offset * _noise_scale(run)
        self._done += 1
        self._squares.append(offset.square().flatten(1).mean(1).cpu())

        def call(x, sigma, **kwargs):
            self.calls += 1
            return run.model(x, sigma, **kwargs)

        return run.go(model=StandIn(run.model, call), x=self._mean.to(run.x) + offset)

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
    """The host's NOISE, drawn already."""

    def __init__(self, recipe: Recipe):
        self._noise, self.seed = recipe.noise, recipe.seed

    def generate_noise(self, latent: dict) -> torch.Tensor:
        return self._noise


def _noise_scale(run: SamplerRun) -> torch.Tensor:
    """How much of x is noise on entering the first step, as the host would scale it."""
    full = comfy.samplers.Sampler().max_denoise(run.guider, run.sigmas)
    one, zero = torch.ones_like(run.x), torch.zeros_like(run.x)
    return run.model_sampling.noise_scaling(run.sigmas[0], one, zero, full)


def drawn_offsets(trajectory: Trajectory, recipe: Recipe, step: int, count: int, seed: int,
                  strength: float, unit: str, independent: bool,
                  mask: torch.Tensor | None) -> torch.Tensor:
    """For Variations at this step."""
    mask = torch.ones(1) if mask is None else mask
    if step:
        return mask * offsets(trajectory, step, count, seed, strength, unit, independent)
    eta = min(strength, 1.0) * mask
    return adjacent(recipe.noise, eta, trajectory.seeds.tolist(), count, seed) - recipe.noise


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
