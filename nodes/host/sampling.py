"""The sampler adapter: ComfyUI's own sampling, with a watcher between sampler and model.

The host's sampling functions run unchanged on a clone of the model. What is added sits in wrappers
of that clone, so nothing is left when the run ends, however it ends.
"""

import copy
import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol

import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from comfy_extras.nodes_custom_sampler import SamplerCustomAdvanced

import nodes as host_nodes

from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.trajectory import Trajectory
from .tap import WRAPPER_KEY, FeatureTap


class Progress:
    """The host's preview callback, with calls counted that the sampler does not know of."""

    def __init__(self, callback: Callable | None):
        self._callback, self._last, self._done = callback, None, 0
        self.extra = 0  # calls to come beside the sampler's steps
        self.part: tuple[int, int] | None = None  # steps before this run and in all, of many runs

    def __call__(self, step, denoised, x, total_steps) -> None:
        self._last = step, denoised, x, total_steps
        self._tell()

    def tick(self) -> None:
        """One extra call is done."""
        self._done += 1
        if self._last:
            self._tell()

    def _tell(self) -> None:
        if not self._callback:
            return
        step, denoised, x, total_steps = self._last
        if self.part:
            before, steps = self.part
            self._callback(min(before + step, steps - 1), denoised, x, steps)
        else:
            self._callback(step + self._done, denoised, x, total_steps + self.extra)


class Recipe(NamedTuple):
    """How a trajectory was sampled, so that it can be sampled on from one of its steps."""

    guider: comfy.samplers.CFGGuider  # on the user's own model, without anything of ours
    sampler: comfy.samplers.KSAMPLER
    seed: int
    noise: torch.Tensor  # B x ..., CPU
    latent_image: dict | None = None  # the LATENT that sampling began from ...
    result: dict | None = None  # ... and the one it ended with


class SamplerRun(NamedTuple):
    """One run of a sampler function, as the host calls it."""

    function: Callable
    model: Callable  # (x, sigma, **extra_args) -> denoised
    x: torch.Tensor
    sigmas: torch.Tensor
    extra_args: dict
    callback: Callable[[dict], None]
    disable: bool
    options: dict
    progress: Progress
    recipe: Recipe

    def go(self, **changes) -> torch.Tensor:
        now = self._replace(**changes)
        return now.function(now.model, now.x, now.sigmas, extra_args=now.extra_args,
                            callback=now.callback, disable=now.disable, **now.options)

    @property
    def guider(self):
        return self.model.inner_model

    @property
    def host_model(self):
        return self.guider.inner_model

    @property
    def model_sampling(self):
        return self.host_model.model_sampling


class Watcher(Protocol):
    tap: FeatureTap | None  # features are read by it, where there is one

    def run(self, run: SamplerRun) -> torch.Tensor: ...


class StandIn:
    """Stands in for the model a sampler calls; all else about it is the model's own."""

    def __init__(self, model, call: Callable):
        self._model, self._call = model, call

    def __call__(self, x, sigma, **kwargs):
        return self._call(x, sigma, **kwargs)

    def __getattr__(self, name):
        return getattr(self._model, name)


def sample(model, watcher: Watcher, seed: int, steps: int, cfg: float, sampler_name: str,
           scheduler: str, positive, negative, latent: dict, denoise: float = 1.0) -> dict:
    """What the KSampler node does, watched."""
    return host_nodes.common_ksampler(watched_model(model, watcher), seed, steps, cfg,
                                      sampler_name, scheduler, positive, negative, latent,
                                      denoise=denoise)[0]


def levels(model, steps: int, sampler_name: str, scheduler: str, denoise: float) -> torch.Tensor:
    """The sigmas that the KSampler node would go through; none where denoise is 0."""
    return comfy.samplers.KSampler(model, steps, torch.device("cpu"), sampler_name, scheduler,
                                   denoise, model.model_options).sigmas


def sample_guider(guider, watcher: Watcher, noise, sampler, sigmas: torch.Tensor,
                  latent: dict) -> tuple[dict, dict]:
    """What the SamplerCustomAdvanced node does, watched: output and denoised output."""
    ours = copy.copy(guider)
    # Wrappers are the patcher's; the guider's own model_options stay, a run works on a copy.
    ours.model_patcher = watched_model(guider.model_patcher, watcher, guider.model_options)
    return SamplerCustomAdvanced.execute(noise, ours, sampler, sigmas, latent).args


def watched_model(model, watcher: Watcher, model_options: dict | None = None):
    """A clone of the MODEL on which the watcher runs whatever sampler is used. model_options: the
    guider's, where they are not the model's."""
    clone = watcher.tap.attach(model) if watcher.tap else model.clone()
    options = model.model_options if model_options is None else model_options

    def sampler_sample(executor, guider, sigmas, extra_args, callback, noise, *args, **kwargs):
        progress, sampler = Progress(callback), executor.class_obj
        recipe = Recipe(_bare(guider, model, options), sampler, extra_args.get("seed"),
                        noise.cpu())
        executor.original = _watched_sampler(sampler, watcher, progress, recipe).sample
        return executor(guider, sigmas, extra_args, progress, noise, *args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, WRAPPER_KEY, sampler_sample)
    return clone


def with_latents(trajectory: Trajectory | None, latent_image: dict, result: dict) -> Trajectory:
    """With the LATENTs, which the run itself does not see, in its recipe."""
    if trajectory is None:
        raise BayesDiffError("nothing was sampled, as there are no noise levels: a denoise above 0"
                             " and at least one step were expected.")
    recipe = trajectory.recipe._replace(latent_image=latent_image, result=result)
    return trajectory._replace(recipe=recipe)


def _bare(guider, model, model_options: dict):
    """The guider as the user gave it: what a run adds, the network among it, is left out."""
    bare = copy.copy(guider)
    for name in ("inner_model", "conds", "loaded_models"):
        vars(bare).pop(name, None)
    bare.model_patcher, bare.model_options = model, model_options
    return bare


def _watched_sampler(sampler, watcher: Watcher, progress: Progress, recipe: Recipe):
    if not isinstance(sampler, comfy.samplers.KSAMPLER):
        raise BayesDiffError(f"the sampler is a {type(sampler).__name__}, one that calls the model"
                             " as ComfyUI's own do (KSAMPLER) was expected: choose another.")
    function = sampler.sampler_function

    @functools.wraps(function)
    def sampler_function(model, x, sigmas, extra_args=None, callback=None, disable=None, **options):
        return watcher.run(SamplerRun(function, model, x, sigmas, extra_args, callback, disable,
                                      options, progress, recipe))

    watched = copy.copy(sampler)
    watched.sampler_function = sampler_function
    return watched


def slope(model_sampling, sigma: torch.Tensor) -> torch.Tensor:
    """d(denoised) / d(network output), B values: asked of the host, as model_type may be stale."""
    zero = torch.zeros(len(sigma), 1, device=sigma.device)
    rise = (model_sampling.calculate_denoised(sigma, zero + 1, zero)
            - model_sampling.calculate_denoised(sigma, zero, zero))
    return rise[:, 0]


def is_flow(model_sampling) -> bool:
    """Whether x holds 1 - sigma of the image, rather than all of it."""
    half, zero = torch.tensor([0.5]), torch.zeros(1, 1)
    return bool(model_sampling.noise_scaling(half, zero, zero + 1) < 0.75)


def samples_flow(trajectory: Trajectory) -> bool:
    return is_flow(trajectory.recipe.guider.model_patcher.get_model_object("model_sampling"))
