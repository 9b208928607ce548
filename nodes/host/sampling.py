"""The sampler adapter: ComfyUI's own sampling, with every model call shown to an observer.

The host's sampling functions run unchanged on a clone of the model. What is added sits in two
wrappers of that clone: the feature tap, and one that puts itself between sampler and model.
"""

import copy
import functools
from collections.abc import Callable
from typing import NamedTuple

import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from comfy_extras.nodes_custom_sampler import SamplerCustomAdvanced

import nodes as host_nodes

from ...bayesdiff_core.checks import BayesDiffError
from .last_layers import last_layer_of
from .tap import WRAPPER_KEY, Chunk, FeatureTap


class ModelCall(NamedTuple):
    """One call of the model by the sampler. The tensors are the sampler's own: read only."""

    x: torch.Tensor
    sigma: torch.Tensor  # B
    denoised: torch.Tensor
    chunks: tuple[Chunk, ...]


Observer = Callable[[ModelCall], None]


def sample(model, observer: Observer, seed: int, steps: int, cfg: float, sampler_name: str,
           scheduler: str, positive, negative, latent: dict, denoise: float = 1.0) -> dict:
    """What the KSampler node does, observed."""
    return host_nodes.common_ksampler(observed_model(model, observer), seed, steps, cfg,
                                      sampler_name, scheduler, positive, negative, latent,
                                      denoise=denoise)[0]


def sample_guider(guider, observer: Observer, noise, sampler, sigmas: torch.Tensor,
                  latent: dict) -> tuple[dict, dict]:
    """What the SamplerCustomAdvanced node does, observed: output and denoised output."""
    ours = copy.copy(guider)
    # Wrappers are the patcher's; the guider's own model_options stay, a run works on a copy.
    ours.model_patcher = observed_model(guider.model_patcher, observer)
    return SamplerCustomAdvanced.execute(noise, ours, sampler, sigmas, latent).args


def observed_model(model, observer: Observer):
    """A clone of the MODEL that shows the observer each call of whatever sampler runs on it."""
    tap = FeatureTap(last_layer_of(model))
    clone = tap.attach(model)

    def sampler_sample(executor, *args, **kwargs):
        executor.original = _observed_sampler(executor.class_obj, tap, observer).sample
        return executor(*args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, WRAPPER_KEY, sampler_sample)
    return clone


def slope(model_sampling, sigma: torch.Tensor) -> torch.Tensor:
    """d(denoised) / d(network output), B values: asked of the host, as model_type may be stale."""
    zero = torch.zeros(len(sigma), 1, device=sigma.device)
    rise = (model_sampling.calculate_denoised(sigma, zero + 1, zero)
            - model_sampling.calculate_denoised(sigma, zero, zero))
    return rise[:, 0]


def _observed_sampler(sampler, tap: FeatureTap, observer: Observer):
    if not isinstance(sampler, comfy.samplers.KSAMPLER):
        raise BayesDiffError(f"the sampler is a {type(sampler).__name__}, one that calls the model"
                             " as ComfyUI's own do (KSAMPLER) was expected: choose another.")
    function = sampler.sampler_function

    @functools.wraps(function)
    def sampler_function(model, *args, **kwargs):
        return function(_ObservedModel(model, tap, observer), *args, **kwargs)

    observed = copy.copy(sampler)
    observed.sampler_function = sampler_function
    return observed


class _ObservedModel:
    """Stands in for the model a sampler calls; all else about it is the model's own."""

    def __init__(self, model, tap: FeatureTap, observer: Observer):
        self._model, self._tap, self._observer = model, tap, observer

    def __call__(self, x, sigma, *args, **kwargs):
        self._tap.take()
        denoised = self._model(x, sigma, *args, **kwargs)
        self._observer(ModelCall(x, sigma, denoised, self._tap.take()))
        return denoised

    def __getattr__(self, name):
        return getattr(self._model, name)
