"""The sampler adapter: ComfyUI's own sampling, observed.

The host's sampling functions run unchanged on a clone of the model. What is added sits in wrappers
of that clone, so nothing is left when the run ends, however it ends.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import comfy.samplers
import torch
from comfy.patcher_extension import WrappersMP
from comfy_extras.nodes_custom_sampler import SamplerCustomAdvanced

import nodes as host_nodes

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.trajectory import Trajectory
from ....bayesdiff_core.transfer import on_cpu
from ..network.feature_tap import WRAPPER_KEY, FeatureTap
from ..network.parameterization import is_flow
from .interceptor import Answer, Question, StandIn, intercepted
from .known_samplers import check_names


class Progress:
    """The host's preview callback, with calls counted that the sampler does not know of."""

    def __init__(self, callback: Callable | None):
        self._callback, self._last, self._done = callback, None, 0
        self.extra = 0  # calls to come beside the sampler's steps ...
        self.after = 0  # ... and after them
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
            self._callback(step + self._done, denoised, x, total_steps + self.extra + self.after)


class Recipe(NamedTuple):
    """How a trajectory was sampled, so that it can be sampled on from one of its steps."""

    guider: comfy.samplers.CFGGuider  # on the user's own model, without anything of ours
    sampler: comfy.samplers.KSAMPLER
    seed: int
    noise: torch.Tensor  # B x ..., CPU
    latent_image: dict | None = None  # the LATENT that sampling began from ...
    result: dict | None = None  # ... and the one it ended with

    @property
    def patcher(self):
        return getattr(self.guider, "model_patcher", None)


class Forming(NamedTuple):
    """A kept step of a run that goes on, B x C x ..., all on the CPU."""

    step: int
    sigmas: torch.Tensor
    denoised: torch.Tensor
    variance: torch.Tensor
    tail: torch.Tensor
    scale: torch.Tensor
    latent_format: Any


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
    carried: dict  # what a run that is left and taken up again brings along (resume.py)
    levels: torch.Tensor  # sigmas, and ...
    start: torch.Tensor  # ... x, both on the CPU
    watch: Callable[[Forming], None] | None = None  # who looks on

    def go(self, **changes) -> torch.Tensor:
        now = self._replace(**changes)
        return now.function(now.model, now.x, now.sigmas, extra_args=now.extra_args,
                            callback=now.callback, disable=now.disable, **now.options)

    def intercepted(self, answer: Callable[[Question], Answer]) -> StandIn:
        return intercepted(self.model, self.extra_args, answer)

    @property
    def guider(self):
        return self.model.inner_model

    @property
    def host_model(self):
        return self.guider.inner_model

    @property
    def model_sampling(self):
        return self.host_model.model_sampling


class Observation(NamedTuple):
    """What a mode tells of a run, beside its picture."""

    trajectory: Trajectory
    calls: int  # of the network, by the sampler
    extra_calls: int = 0
    uncertain: tuple[int, ...] = ()  # steps at which extra calls are made
    notes: tuple[str, ...] = ()
    check_calls: int = 0  # after the last step


class Observer(NamedTuple):
    """observe(run) runs the sampler and gives its result, and what is to be told of it; tap reads
    the network's features meanwhile, where they are needed."""

    observe: Callable[[SamplerRun], tuple[torch.Tensor, Any]]
    tap: FeatureTap | None = None
    watch: Callable[[Forming], None] | None = None  # is shown each kept step as it comes


def sample(model, observer: Observer, seed: int, steps: int, cfg: float, sampler_name: str,
           scheduler: str, positive, negative, latent: dict, denoise: float = 1.0):
    """What the KSampler node does, observed: its LATENT, and what the observer told."""
    check_names(sampler_name, scheduler)
    told: list = []
    out, = host_nodes.common_ksampler(_observed(model, observer, told), seed, steps, cfg,
                                      sampler_name, scheduler, positive, negative, latent,
                                      denoise=denoise)
    return out, _last(told)


def levels(model, steps: int, sampler_name: str, scheduler: str, denoise: float) -> torch.Tensor:
    """The sigmas that the KSampler node would go through; none where denoise is 0."""
    check_names(sampler_name, scheduler)
    return comfy.samplers.KSampler(model, steps, torch.device("cpu"), sampler_name, scheduler,
                                   denoise, model.model_options).sigmas


def sample_guider(guider, observer: Observer, noise, sampler, sigmas: torch.Tensor, latent: dict):
    """What the SamplerCustomAdvanced node does, observed: its LATENT, and what was told."""
    told: list = []
    ours = copy.copy(guider)
    # Some guiders remember scales by noise level, and a check asks at levels of its own.
    vars(ours).update({name: value.copy() for name, value in vars(guider).items()
                       if isinstance(value, dict | list) and name != "model_options"})
    # Wrappers are the patcher's; the guider's own model_options stay, a run works on a copy.
    ours.model_patcher = _observed(guider.model_patcher, observer, told, guider.model_options)
    out = SamplerCustomAdvanced.execute(noise, ours, sampler, sigmas, latent).args[0]
    return out, _last(told)


def _last(told: list):
    if not told:
        raise BayesDiffError("nothing was sampled, as there are no noise levels: a denoise above 0"
                             " and at least one step were expected.")
    return told[-1]


def _observed(model, observer: Observer, told: list, model_options: dict | None = None):
    """A clone of the MODEL on which whatever sampler is used is observed. model_options: the
    guider's, where they are not the model's."""
    clone = observer.tap.attach(model) if observer.tap else model.clone()
    options = model.model_options if model_options is None else model_options

    def sampler_sample(executor, guider, sigmas, extra_args, callback, noise, *args, **kwargs):
        progress, sampler = Progress(callback), executor.class_obj
        recipe = Recipe(_bare(guider, model, options), sampler, extra_args.get("seed"),
                        noise)  # on the device still
        executor.original = _observed_sampler(sampler, observer, progress, recipe, told).sample
        return executor(guider, sigmas, extra_args, progress, noise, *args, **kwargs)

    clone.add_wrapper_with_key(WrappersMP.SAMPLER_SAMPLE, WRAPPER_KEY, sampler_sample)
    return clone


def with_latents(trajectory: Trajectory, latent_image: dict, result: dict) -> Trajectory:
    """With the LATENTs, which the run itself does not see, in its recipe."""
    recipe = trajectory.recipe._replace(latent_image=latent_image, result=result)
    return trajectory._replace(recipe=recipe)


def _bare(guider, model, model_options: dict):
    """The guider as the user gave it: what a run adds, the network among it, is left out."""
    bare = copy.copy(guider)
    for name in ("inner_model", "conds", "loaded_models"):
        vars(bare).pop(name, None)
    bare.model_patcher, bare.model_options = model, model_options
    return bare


def _observed_sampler(sampler, observer: Observer, progress: Progress, recipe: Recipe, told: list):
    if not isinstance(sampler, comfy.samplers.KSAMPLER):
        raise BayesDiffError(f"the sampler is a {type(sampler).__name__}, one that calls the model"
                             " as ComfyUI's own do (KSAMPLER) was expected: choose another.")
    function = sampler.sampler_function

    @functools.wraps(function)
    def sampler_function(model, x, sigmas, extra_args=None, callback=None, disable=None, **options):
        start, levels, noise = on_cpu(x, sigmas, recipe.noise)
        result, observation = observer.observe(SamplerRun(
            function, model, x, sigmas, extra_args, callback, disable, options, progress,
            recipe._replace(noise=noise.clone()), carried={}, levels=levels, start=start,
            watch=observer.watch))
        told.append(observation)
        return result

    observed = copy.copy(sampler)
    observed.sampler_function = sampler_function
    return observed


def samples_flow(trajectory: Trajectory) -> bool:
    return is_flow(trajectory.recipe.guider.model_patcher.get_model_object("model_sampling"))
