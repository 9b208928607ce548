"""A run that can be left at a step and taken up again with the same bits, for any sampler.

What the sampler was told by its model is taped. To go on, the sampler function runs again from the
start with the tape in the model's place: its own arithmetic, its history and its noise come out as
before without a network call, and where the tape ends the network takes over.
"""

import functools
from typing import NamedTuple

import comfy.model_management
import torch

from ...bayesdiff_core.checks import BayesDiffError
from .ghosts import POST_CFG
from .recording import latent_scale
from .sampling import SamplerRun, StandIn, Watcher


class _Left(Exception):
    """Leaves the host's sampling, whose own clauses clean up."""


class Answer(NamedTuple):
    """To one call of the sampler; CPU tensors, with the ghosts where there are any."""

    denoised: torch.Tensor
    uncond: list[torch.Tensor]  # what cfg_pp samplers read besides: one or none


class Taped:
    """A watcher around another. sample(watcher, seed) -> LATENT samples one seed;
    score(variance, latent) -> tensor of one number tells how unsure it is."""

    def __init__(self, watcher: Watcher, seed: int, sample, score):
        self.tap, self.watcher, self.seed = watcher.tap, watcher, seed
        self._sample, self._score = sample, score
        self._answers: list[Answer] = []
        self._last_x: torch.Tensor | None = None  # what the last taped call was asked
        self._until: int | None = None
        self._part = (0, 0)
        self._calls = 0
        self.latent: dict | None = None  # once it is finished
        self.scores: list[float] = []  # at each stop, and at the end
        self.dropped_at: int | None = None

    @property
    def calls(self) -> int:
        """Network calls so far, extra ones included."""
        return self._calls + self.watcher.extra_calls

    def go(self, until: int | None, before: int, steps: int) -> None:
        """On to step `until`, or to the end. before, steps: this run's first step and the last one
        of all runs, for the progress bar."""
        comfy.model_management.throw_exception_if_processing_interrupted()
        if self.latent is not None:  # a sampler with steps of its own may be done before the stop
            return
        self._until, self._part = until, (before, steps)
        try:
            self.latent = self._sample(self, self.seed)
        except _Left:
            return
        self._forget()
        trajectory = self.watcher.trajectory
        self.scores.append(float(self._score(trajectory.latent_variance(),
                                             trajectory.latent_mean())))

    def drop(self, step: int) -> None:
        self.dropped_at = step
        self._forget()

    def _forget(self) -> None:
        """What it would need to go on."""
        self._answers, self._last_x = [], None

    def run(self, run: SamplerRun) -> torch.Tensor:
        known = len(run.extra_args["model_options"].get(POST_CFG, []))
        tape = list(self._answers)
        heard = 0
        run.progress.part = self._part

        @functools.wraps(run.function)
        def function(model, *args, **kwargs):
            return run.function(StandIn(model, functools.partial(call, model)), *args, **kwargs)

        def call(model, x, sigma, **kwargs):
            nonlocal heard
            heard += 1
            if heard <= len(tape):
                return self._again(tape[heard - 1], heard == len(tape), known, x, sigma, kwargs)
            self._calls += 1
            return self._first_time(model, known, x, sigma, kwargs)

        def callback(info: dict) -> None:
            if heard <= len(tape):
                return
            run.callback(info)
            if self._until and _reached(self._until, info, run.sigmas):
                scale, _ = latent_scale(run.host_model, run.x.shape)
                scale = scale.to(run.x)
                # without the format's shift, which no score heeds
                self.scores.append(float(self._score(info["variance"]() * scale.square(),
                                                     info["denoised"] * scale)))
                raise _Left

        return self.watcher.run(run._replace(function=function, callback=callback))

    def _first_time(self, model, known: int, x, sigma, kwargs: dict) -> torch.Tensor:
        uncond = []

        def listen(args: dict) -> torch.Tensor:
            uncond.append(_kept(args["uncond_denoised"]))
            return args["denoised"]

        options = kwargs["model_options"]
        functions = options.get(POST_CFG, [])
        if len(functions) > known:  # the sampler's own come last
            kwargs = {**kwargs, "model_options": {**options, POST_CFG: [*functions, listen]}}
        denoised = model(x, sigma, **kwargs)
        if self._until:
            self._answers.append(Answer(_kept(denoised), uncond))
            self._last_x = _kept(x)
        return denoised

    def _again(self, answer: Answer, last: bool, known: int, x, sigma, kwargs) -> torch.Tensor:
        if last and not torch.equal(self._last_x.to(x), x):
            raise BayesDiffError("the sampler does not repeat itself with the same seed, so a run"
                                 " cannot be left and taken up again: choose one of ComfyUI's own"
                                 " samplers.")
        denoised = answer.denoised.to(x.device, copy=True)
        options = kwargs["model_options"]
        for function in options.get(POST_CFG, [])[known:]:
            denoised = function({"denoised": denoised,
                                 "uncond_denoised": answer.uncond[0].to(x.device, copy=True),
                                 "input": x, "sigma": sigma, "model_options": options})
        return denoised


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _reached(until: int, info: dict, sigmas: torch.Tensor) -> bool:
    """Whether `until` steps are done, their last one but for what follows its first call. By noise
    level where the sampler tells it: dpm_fast and dpm_adaptive count in their own way."""
    sigma = info.get("sigma")
    if sigma is None:
        return info["i"] + 1 >= until
    return float(sigma) <= float(sigmas[until - 1]) * (1 + 1e-4)
