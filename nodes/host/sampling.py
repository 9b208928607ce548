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
from .tap import WRAPPER_KEY, FeatureTap


class Progress:
    """The host's preview callback, with calls counted that the sampler does not know of."""

    def __init__(self, callback: Callable | None):
        self._callback, self._last, self._done = callback, None, 0
        self.extra = 0  # calls to come beside the sampler's steps

    def __call__(self, step, denoised, x, total_steps) -> None:
        self._last = step, denoised, x, total_steps
        self._tell()

    def tick(self) -> None:
        """One extra call is done."""
        self._done += 1
        if self._last:
            self._tell()

    def _tell(self) -> None:
        if self._callback:
            step, denoised, x, total_steps = self._last
            self._callback(step + self._done, denoised, x, total_steps + self.extra)


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


def sample_guider(guider, watcher: Watcher, noise, sampler, sigmas: torch.Tensor,
                  latent: dict) -> tuple[dict, dict]:
    """What the SamplerCustomAdvanced node does, watched: output and denoised output."""
    ours = copy.copy(guider)
    # Wrappers are the patcher's; the guider's own model_options stay, a run works on a copy.
    ours.model_patcher = watched_model(guider.model_patcher, watcher)
    return SamplerCustomAdvanced.execute(noise, ours, sampler, sigmas, latent).args


def watched_model(model, watcher: Watcher):
    """A clone of the MODEL on which the watcher runs whatever sampler is used."""
    clone = watcher.tap.attach(model) if watcher.tap else model.clone()

    def sampler_sample(executor, guider, sigmas, extra_args, callback, *args, **kwargs):
        progress = Progress(callback)
        executor.original = _watched_sampler(executor.class_obj, watcher, progress).sample
        return executor(guider, sigmas, extra_args, progress, *args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, WRAPPER_KEY, sampler_sample)
    return clone


def _watched_sampler(sampler, watcher: Watcher, progress: Progress):
    if not isinstance(sampler, comfy.samplers.KSAMPLER):
        raise BayesDiffError(f"the sampler is a {type(sampler).__name__}, one that calls the model"
                             " as ComfyUI's own do (KSAMPLER) was expected: choose another.")
    function = sampler.sampler_function

    @functools.wraps(function)
    def sampler_function(model, x, sigmas, extra_args=None, callback=None, disable=None, **options):
        return watcher.run(SamplerRun(function, model, x, sigmas, extra_args, callback, disable,
                                      options, progress))

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
