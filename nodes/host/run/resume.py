"""A run that can be left at a step and taken up again with the same bits, for any sampler.

What the sampler was told by its model is kept. To go on, the sampler function runs again from the
start with these answers in the model's place: its own arithmetic, its history and its noise come
out as before without a network call, and where the answers end the network takes over.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import comfy.model_management
import torch

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.trajectory import Trajectory
from .. import rescore
from ..rescore import Seen
from .interceptor import Answer, Question, StandIn, intercepted
from .recording import latent_scale
from .sampling import Observation, Observer, SamplerRun


class _Left(Exception):
    """Leaves the host's sampling, whose own clauses clean up."""


class At(NamedTuple):
    """Where a run is, at a stop."""

    run: SamplerRun
    x: torch.Tensor  # what the model was asked last ...
    sigma: float
    denoised: torch.Tensor  # ... and what it said
    variance: Callable[[], torch.Tensor]  # of the estimate, by the run's mode
    ask: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # x, sigma -> denoised, one call more

    def scaled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Variance and estimate in the LATENT's scale, without its shift, which no score heeds."""
        scale = latent_scale(self.run.host_model, self.run.x.shape)[0].to(self.run.x)
        return self.variance() * scale.square(), self.denoised * scale

    def ahead(self) -> Seen:
        """The picture that the run is heading for."""
        levels = self.run.sigmas
        left = torch.cat([levels.new_tensor([self.sigma]), levels[levels < self.sigma]])
        return rescore.looked_ahead(self.ask, self.x, left, self.denoised, self.run.model_sampling,
                                    len(levels) - 1)


class Score(NamedTuple):
    """How unsure a run is, each a tensor of one number."""

    part_way: Callable[[At], torch.Tensor]
    final: Callable[[Trajectory], torch.Tensor]


class Resumable:
    """One seed's run. sample(observer, seed) -> LATENT, Observation samples it."""

    def __init__(self, observer: Observer, seed: int, sample, score: Score):
        self.seed = seed
        self._observer, self._sample, self._score = observer, sample, score
        self._answers: list[Answer] = []  # CPU tensors
        self._last_x: torch.Tensor | None = None  # what the last of them was asked
        self._carried: dict = {}
        self._until: int | None = None
        self._part = (0, 0)
        self.calls = 0  # of the network so far, extra ones included ...
        self.ahead_calls = 0  # ... and those of them that only looked ahead
        self.latent: dict | None = None  # once it is finished ...
        self.observation: Observation | None = None  # ... and what there is to tell of it
        self.scores: list[float] = []  # at each stop, and at the end
        self.dropped_at: int | None = None
        self.looks: torch.Tensor | None = None  # what it was going to be, in the sampler's space

    def go(self, until: int | None, before: int, steps: int) -> None:
        """On to step `until`, or to the end. before, steps: this run's first step and the last one
        of all runs, for the progress bar."""
        comfy.model_management.throw_exception_if_processing_interrupted()
        if self.latent is not None:  # a sampler with steps of its own may be done before the stop
            return
        self._until, self._part = until, (before, steps)
        try:
            self.latent, self.observation = self._sample(
                Observer(self._observe, self._observer.tap), self.seed)
        except _Left:
            return
        self._forget()
        self.looks = self.observation.trajectory.denoised[-1]
        self.scores.append(float(self._score.final(self.observation.trajectory)))

    def drop(self, step: int) -> None:
        self.dropped_at = step
        self._forget()

    def state(self) -> dict[str, torch.Tensor]:
        """What it needs to go on elsewhere, in mode free: a posterior's riders do not travel."""
        if self._carried:
            raise BayesDiffError("a run with a posterior can only continue where it was paused:"
                                 " rank by a score of mode free.")
        columns = {name: [getattr(answer, name) for answer in self._answers]
                   for name in Answer._fields}
        return {"x": self._last_x, **{name: torch.stack(column) for name, column in columns.items()
                                      if column[0] is not None}}

    def take_up(self, state: dict[str, torch.Tensor]) -> None:
        """Goes on from another run's state. That seed, sampler and levels are the same is checked
        on the way; that prompt and cfg are is for the caller."""
        self._last_x = state["x"]
        told = [state[name] for name in Answer._fields if name in state]
        self._answers = [Answer(*parts) for parts in zip(*told)]

    def _forget(self) -> None:
        """What it would need to go on."""
        self._answers, self._last_x, self._carried = [], None, {}

    def _observe(self, run: SamplerRun) -> tuple[torch.Tensor, Observation]:
        known, asked, sigma = list(self._answers), 0, None
        run.progress.part = self._part

        def counted(*args, **kwargs):
            self.calls += 1
            return run.model(*args, **kwargs)

        def answer(question: Question) -> Answer:
            nonlocal asked, sigma
            asked, sigma = asked + 1, float(question.sigma[0])
            if asked <= len(known):
                if asked == len(known):
                    self._check_repeated(question.x)
                return question.known(_moved(known[asked - 1], question.x.device))
            told = question.ask(question.x)
            if self._until:
                self._answers.append(_moved(told, "cpu"))
                self._last_x = question.x.detach().to("cpu", copy=True)
            return told

        @functools.wraps(run.function)
        def function(model, *args, **kwargs):
            return run.function(intercepted(model, run.extra_args, answer), *args, **kwargs)

        def ask_more(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            self.ahead_calls += 1
            return counted(x, sigma, **run.extra_args)

        def callback(info: dict) -> None:
            if asked <= len(known):
                return
            run.callback(info)
            if self._until and _reached(self._until, info, run.sigmas):
                self.looks = info["denoised"].detach().to("cpu", torch.float32, copy=True)
                # What was asked and said, not what the callback tells: some tell it late.
                x, said = (part[:len(run.x)].to(run.x)
                           for part in (self._last_x, self._answers[-1].denoised))
                at = At(run, x, sigma, said, info["variance"], ask_more)
                self.scores.append(float(self._score.part_way(at)))
                raise _Left

        return self._observer.observe(run._replace(
            model=StandIn(run.model, counted), function=function, callback=callback,
            carried=self._carried))

    def _check_repeated(self, x: torch.Tensor) -> None:
        if not torch.equal(self._last_x.to(x), x):
            raise BayesDiffError("the sampler does not repeat itself with the same seed, so a run"
                                 " cannot be paused and continued: choose one of ComfyUI's own"
                                 " samplers.")


def _moved(answer: Answer, device) -> Answer:
    return Answer(*(part if part is None else part.detach().to(device, copy=True)
                    for part in answer))


def _reached(until: int, info: dict, sigmas: torch.Tensor) -> bool:
    """Whether `until` steps are done, their last one but for what follows its first call. By noise
    level where the sampler tells it: dpm_fast and dpm_adaptive count in their own way."""
    sigma = info.get("sigma")
    if sigma is None:
        return info["i"] + 1 >= until
    return float(sigma) <= float(sigmas[until - 1]) * (1 + 1e-4)
