"""Mode `paper`: Algorithm 1 and 2 of BayesDiff, with its own rules for DDIM and DPM-Solver-2.

eps_t is drawn from the posterior on uncertain steps, so this mode changes the picture.
"""

import functools
from collections.abc import Callable

import comfy.model_management
import torch

from ...bayesdiff_core import rules, schedules
from ...bayesdiff_core.bayesdiff import ImageNoise, Moments, bayesdiff
from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.rules import Rule
from ...bayesdiff_core.trajectory import Trajectory
from . import memory
from .predicting import Predictor
from .recording import Recording
from .sampling import SamplerRun, is_flow

RULES = {"sample_euler": rules.ddim, "sample_dpm_2": rules.dpm_solver_2}


class Paper:
    def __init__(self, predictor: Predictor, seeds: list[int], keep_steps: int, interval: int,
                 samples: int):
        self.predictor, self.tap = predictor, predictor.tap
        self._seeds, self._keep_steps = seeds, keep_steps
        self._interval, self._samples = interval, samples
        self.trajectory: Trajectory | None = None
        self.calls = self.extra_calls = 0
        self.notes: list[str] = []
        self.uncertain: list[int] = []  # steps with extra calls

    def run(self, run: SamplerRun) -> torch.Tensor:
        rule = rule_of(run.function, is_flow(run.model_sampling), run.options)
        batch = len(run.x)
        self.uncertain, run.progress.extra = chosen_schedule(rule, run.sigmas, self._interval,
                                                             self._samples)
        recording = Recording(run, self._seeds, self._keep_steps)

        def predict(x, sigma):
            parts = x.split(batch)
            found = []
            for part in parts:
                comfy.model_management.throw_exception_if_processing_interrupted()
                with memory.advice(memory.EXTRA_CALLS):
                    denoised = run.model(part, part.new_full([batch], sigma), **run.extra_args)
                found.append((part - denoised) / sigma)
                if len(parts) > 1:
                    run.progress.tick()
            self.calls += len(parts) == 1
            self.extra_calls += len(parts) if len(parts) > 1 else 0
            return torch.cat(found)

        def predict_with_posterior(x, sigma):
            self.calls += 1
            level = x.new_full([batch], sigma)
            call = self.predictor.call(run, x, level, run.extra_args)
            return (x - call.denoised) / sigma, call.predictive

        def on_step(step: int, d: torch.Tensor, state: Moments) -> None:
            sigma = run.sigmas[step]
            info = {"i": step, "x": state.sample, "denoised": state.sample - sigma * d,
                    "sigma": sigma, "sigma_hat": sigma}
            recording.see(info["denoised"])
            recording.add_entering(info, lambda: (state.mean, state.variance))
            run.callback(info)

        result = bayesdiff(predict, predict_with_posterior, run.x, run.sigmas, rule, self.uncertain,
                           self._samples, ImageNoise(self._seeds, run.x.shape[1:]),
                           on_step=on_step)
        self.notes = [*self.predictor.notes,
                      f"{100 * result.negative_share:.0f} % of the variances of the paper's"
                      " iteration turned negative and were set to 0"]
        self.trajectory = recording.finish(result.sample, result.variance)
        return result.sample


def rule_of(function: Callable, flow: bool, options: dict | None = None) -> Callable[..., Rule]:
    """The paper's rule for a sampler function of the host."""
    rule = RULES.get(function.__name__)
    if rule is None or options:
        raise BayesDiffError(f"the paper has no rule for the sampler {function.__name__}"
                             f" {options or ''}: choose ddim or euler (its DDIM), or dpm_2"
                             " (its DPM-Solver-2) without options, or another mode.")
    return functools.partial(rule, flow=flow) if rule is rules.dpm_solver_2 else rule


def chosen_schedule(rule: Callable[..., Rule], sigmas: torch.Tensor, interval: int,
                    samples: int) -> tuple[list[int], int]:
    """The uncertain steps, and the extra calls that they make: none at the first, where the
    picture is noise alone."""
    schedule = schedules.by_interval(len(sigmas) - 1, interval)
    extra = sum(2 if rule(*sigmas[i:i + 2].tolist()).to_mid else 1 for i in schedule[1:])
    return list(schedule), samples * extra
