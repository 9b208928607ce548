"""Modes `light` and `accurate`: deviations ride along as further items of the sampler's batch.

The sampler moves images and deviations alike; the network runs on the images only, as the stock
sampler would call it, so their bits are the stock sampler's. A rider at x + deviation is told
denoised + what the deviation changes, which bayesdiff_core.deviations works out; at probe levels
by extra calls of the network, each of them in the shape of a stock call, so that masks, areas of
memory and every patch of the model see nothing unusual.
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import comfy.model_management
import torch
from comfy.k_diffusion import sampling as k_diffusion

from .....bayesdiff_core import checks
from .....bayesdiff_core.deviations import Deviations, Plan, plan, shared_plan
from .....bayesdiff_core.skip_schedule import Schedule
from ... import memory
from ...network.parameterization import is_flow
from ..interceptor import Answer, Question
from ..known_samplers import calls_at_sigmas
from ..predictor import Predictor
from ..recording import Recording
from ..sampling import Observation, SamplerRun


class Request(NamedTuple):
    """What of a run is to be measured, and how."""

    share: float  # extra calls as a share of the steps
    schedule: Schedule = Schedule()
    probe_levels: int = 0
    deviations: int = 0
    noise_model: str = "independent"
    weight_seed: int = 0

    def plan(self, sigmas: torch.Tensor, flow: bool) -> Plan:
        steps = len(sigmas) - 1
        make = plan if self.noise_model == "independent" else shared_plan
        return make(sigmas, max(1, int(self.share * steps)), flow, self.probe_levels,
                    self.deviations, self.schedule.steps(steps))


def observe(run: SamplerRun, predictor: Predictor, seeds: list[int], keep_steps: int,
            request: Request) -> tuple[torch.Tensor, Observation]:
    flow = is_flow(run.model_sampling)
    chosen = request.plan(run.levels, flow)
    run.progress.extra = chosen.evaluations

    def deviations() -> Deviations:
        return Deviations(chosen, request.noise_model, seeds, flow, request.weight_seed)

    riders = run.carried.setdefault("riders", Riders(len(run.x), predictor, deviations))
    recording = Recording(run, seeds, keep_steps, chosen.early + chosen.late, chosen.early)
    clock = Clock(run)

    def callback(info: dict) -> None:
        batch = len(run.x)
        ours = {**info, "x": info["x"][:batch], "denoised": info["denoised"][:batch],
                "variance": lambda: riders.state(info["denoised"])[1]}
        clock.stepped()
        recording.see(ours["denoised"])
        recording.add_entering(info, lambda: riders.state(info["x"]))
        run.callback(ours)

    count = 1 + chosen.early + chosen.late
    together = run.x.repeat(count, *[1] * (run.x.ndim - 1))
    together = run.go(
        model=run.intercepted(
            lambda question: riders.answer(run, question, clock.level(question.sigma))),
        x=together, callback=callback, options={**run.options, **_shared_noise(run, count)})
    trajectory = recording.finish(*riders.state(together))
    checks.finite("the variance that the network's features give", trajectory.variance)
    return together[:len(run.x)], Observation(trajectory, riders.calls, riders.extra_calls,
                                              tuple(chosen.steps(run.levels)),
                                              tuple(predictor.notes))


class Clock:
    """The noise level of a sampler's call, where that can be told without asking the device."""

    def __init__(self, run: SamplerRun):
        self._levels = run.levels.tolist() if calls_at_sigmas(run.recipe.sampler) else None
        self._steps = 0

    def stepped(self) -> None:
        self._steps += 1

    def level(self, sigma: torch.Tensor) -> float:
        return float(sigma[0]) if self._levels is None else self._levels[self._steps]


class Riders:
    """What the calls of one run are answered with. It holds no network, and goes on where it was
    when a run is left and taken up again."""

    def __init__(self, batch: int, predictor: Predictor, deviations: Callable[[], Deviations]):
        self._batch, self._predictor = batch, predictor
        # The second answers for the unconditional result, which cfg_pp samplers read besides. Its
        # seeds are the same: both branches' errors come from the same weights.
        self._deviations, self._unconditional = deviations(), deviations()
        self._mask: torch.Tensor | float = 1.0
        self.calls = self.extra_calls = 0

    def state(self, together: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Images, their variance, and the deviations: K x B x ..."""
        x, deviations = self._split(together)
        variance = self._deviations.variance(deviations)
        # It is smoothed, and must not leak to pixels that are pasted over.
        known = torch.as_tensor(self._mask, device=x.device) == 0
        return x, variance.masked_fill(known, 0.0), deviations

    def _split(self, together: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = together[:self._batch]
        return x, together[self._batch:].unflatten(0, (-1, self._batch)) - x

    def answer(self, run: SamplerRun, question: Question, level: float) -> Answer:
        x, deviations = self._split(question.x)
        self.calls += 1
        answer, parts = self._heard(run, question, x, level)
        probes: list[list[Answer]] = []  # the unconditional result's are the same, in this order

        def probe(at: torch.Tensor, _) -> torch.Tensor:
            probes.append(self._probed(run, question, at))
            return (at - torch.cat([each.denoised for each in probes[-1]])) / level

        def probe_unconditional(at: torch.Tensor, _) -> torch.Tensor:
            return (at - torch.cat([each.uncond for each in probes.pop(0)])) / level

        def widened(denoised, riding: Deviations, part, predict, mask=1.0) -> torch.Tensor:
            d = (x - denoised) / level
            moved = riding.respond(level, x, deviations, d, part, predict, mask)
            riders = torch.add(denoised + deviations, moved, alpha=-level)
            return torch.cat([denoised, riders.flatten(0, 1).to(denoised)])

        denoised = widened(answer.denoised, self._deviations, parts[0], probe, self._mask)
        if answer.uncond is None:
            return Answer(denoised)
        return Answer(denoised, widened(answer.uncond, self._unconditional, parts[1],
                                        probe_unconditional))

    def _heard(self, run: SamplerRun, question: Question, x: torch.Tensor,
               level: float) -> tuple[Answer, list[torch.Tensor]]:
        """The answer, and what the posterior adds to it and to its unconditional half. The features
        stay behind: beside a probe they would be the most that a run holds."""
        call = self._predictor.call(run, question, x, level)
        self._mask = call.mask
        both = (self._deviations, call.predictive), (self._unconditional, call.unconditional)
        return call.answer, [riding.posterior_part(one) for riding, one in both if one is not None]

    def _probed(self, run: SamplerRun, question: Question, at: torch.Tensor) -> list[Answer]:
        """At a multiple of the batch, one stock-shaped call after the other."""
        found = []
        for part in at.split(self._batch):
            comfy.model_management.throw_exception_if_processing_interrupted()
            with memory.advice(memory.EXTRA_CALLS):
                found.append(question.ask(part))
            self._predictor.tap.take()  # of these only the answer counts
            self.extra_calls += 1
            run.progress.tick()
        return found


def _shared_noise(run: SamplerRun, count: int) -> dict:
    """A noise_sampler option that gives an image and its riders the noise that the stock sampler
    would give to the image; nothing for samplers that take none."""
    if "noise_sampler" not in inspect.signature(run.function).parameters:
        return {}
    draw = run.options.get("noise_sampler") or _default_noise(run)
    return {"noise_sampler": lambda *levels: draw(*levels).repeat(count, *[1] * (run.x.ndim - 1))}


def _default_noise(run: SamplerRun) -> Callable:
    """What the function itself would make."""
    seed, name = run.extra_args.get("seed"), run.function.__name__
    if name.startswith("sample_dpmpp") and "_sde" in name:
        lowest = run.sigmas[run.sigmas > 0].min()
        return k_diffusion.BrownianTreeNoiseSampler(run.x, lowest, run.sigmas.max(), seed=seed,
                                                    cpu=not name.endswith("_gpu"))
    return k_diffusion.default_noise_sampler(run.x, seed=seed)
