"""Mode `paper`: Algorithm 1 and 2 of BayesDiff, with its own rules for every sampler that it names.

eps_t is drawn from the posterior on uncertain steps, so this mode changes the picture, which is
then a sample around E(x_0): the trajectory keeps both, E(x_0) as its last mean.
"""

import functools
from collections.abc import Callable

import comfy.model_management
import torch

from .....bayesdiff_core import checks
from .....bayesdiff_core.checks import BayesDiffError
from .....bayesdiff_core.iteration import ImageNoise, Moments
from .....bayesdiff_core.llla import Llla, noise_energy_of
from .....bayesdiff_core.paper import rules
from .....bayesdiff_core.paper.algorithm import bayesdiff
from .....bayesdiff_core.paper.rules import Rule
from .....bayesdiff_core.skip_schedule import Schedule, by_interval
from ... import memory
from ...network.parameterization import is_flow
from ..interceptor import Question
from ..predictor import Predictor
from ..recording import Recording
from ..sampling import Observation, SamplerRun

BY_SAMPLER = "by sampler"
# The paper's rule for a sampler function of the host, and those that the host has no sampler for.
SAMPLERS = {"sample_euler": rules.ddim, "sample_dpm_2": rules.dpm_solver_2,
            "sample_ddpm": rules.ddpm}
NAMED = {"ddpm": rules.ddpm, "analytic-dpm": rules.analytic_dpm,
         "reverse sde euler": rules.reverse_sde_euler}
PAPER_RULES = (BY_SAMPLER, *NAMED)
NOT_FOR_FLOWS = tuple(NAMED.values())


def observe(run: SamplerRun, predictor: Predictor, seeds: list[int], keep_steps: int,
            schedule: Schedule, samples: int,
            paper_rule: str = BY_SAMPLER) -> tuple[torch.Tensor, Observation]:
    rule = rule_of(run.function, is_flow(run.model_sampling), run.options, paper_rule,
                   predictor.llla)
    uncertain, run.progress.extra = chosen_schedule(rule, run.levels, schedule, samples)
    recording = Recording(run, seeds, keep_steps)
    batch, calls, extra_calls = len(run.x), 0, 0

    def question(x: torch.Tensor, sigma: float) -> Question:
        comfy.model_management.throw_exception_if_processing_interrupted()
        return Question(run.model, x, x.new_full([batch], sigma), run.extra_args)

    def predict(x, sigma):
        nonlocal calls
        calls += 1
        return (x - question(x, sigma).ask(x).denoised) / sigma

    def predict_with_posterior(x, sigma):
        nonlocal calls
        calls += 1
        call = predictor.call(run, question(x, sigma), x, sigma)
        return (x - call.answer.denoised) / sigma, call.predictive

    def predict_samples(x, sigma):
        """One stock-shaped call after the other."""
        nonlocal extra_calls
        found = []
        for part in x.split(batch):
            with memory.advice(memory.EXTRA_CALLS):
                found.append((part - question(part, sigma).ask(part).denoised) / sigma)
            extra_calls += 1
            run.progress.tick()
        return torch.cat(found)

    def on_step(step: int, d: torch.Tensor, state: Moments) -> None:
        sigma = run.sigmas[step]
        info = {"i": step, "x": state.sample, "denoised": state.sample - sigma * d,
                "sigma": sigma, "sigma_hat": sigma}
        recording.see(info["denoised"])
        recording.add_entering(info, lambda: (state.mean, state.variance))
        run.callback(info)

    result = bayesdiff(predict, predict_with_posterior, run.x, run.sigmas, rule, uncertain,
                       samples, ImageNoise(seeds, run.x.shape[1:]), on_step=on_step,
                       predict_samples=predict_samples)
    notes = [*predictor.notes, f"{100 * result.negative_share:.0f} % of the paper's variances came"
                               " out negative and were set to 0"]
    if paper_rule != BY_SAMPLER:
        notes.append(f"the paper's rule {paper_rule} replaced the sampler")
    if rule(*run.sigmas[:2].tolist()).step.c:
        notes.append("this rule adds noise at each step, and the variance includes it, as in the"
                     " paper")
    trajectory = recording.finish(result.sample, result.variance, mean=result.mean)
    return result.sample, Observation(trajectory, calls, extra_calls, uncertain, tuple(notes))


def rule_of(function: Callable, flow: bool, options: dict | None = None,
            paper_rule: str = BY_SAMPLER,
            llla: Llla | None = None) -> Callable[[float, float], Rule]:
    """The paper's rule for a sampler function of the host, or a named one in the sampler's place.
    llla: for Analytic-DPM's noise energies; to count calls it may be left out."""
    checks.one_of("paper_rule", paper_rule, PAPER_RULES)
    name = getattr(function, "__name__", type(function).__name__)
    if paper_rule == BY_SAMPLER:
        rule, name = SAMPLERS.get(name), name.removeprefix("sample_")
        if rule is None or options:
            using = f" with {', '.join(list(options)[:4])}" if options else ""
            raise BayesDiffError(f"the paper has no rule for the sampler {name}{using}: choose ddim"
                                 " or euler (its DDIM), dpm_2 (its DPM-Solver-2) or ddpm, all"
                                 " without options, a paper_rule, or another mode.")
    else:
        name, rule = paper_rule, NAMED[paper_rule]
    if flow and rule in NOT_FOR_FLOWS:
        raise BayesDiffError(f"the paper's rule {name} is not defined for flow models: choose ddim,"
                             " euler or dpm_2 with paper_rule 'by sampler', or another mode.")
    if rule is rules.dpm_solver_2:
        return functools.partial(rule, flow=flow)
    if rule is rules.analytic_dpm:
        energy = noise_energy_of(llla).at if llla else lambda sigma: 1.0
        return lambda sigma, sigma_next: rule(sigma, sigma_next, energy(sigma))
    return rule


def chosen_schedule(rule: Callable[[float, float], Rule], sigmas: torch.Tensor, schedule: Schedule,
                    samples: int) -> tuple[tuple[int, ...], int]:
    """The uncertain steps, by the paper's interval where none are asked for, and the extra calls
    that they make: none at step 0, where x is known."""
    levels = sigmas.tolist()
    checks.decreasing(sigmas)
    steps = schedule.steps(len(levels) - 1)
    if steps is None:
        steps = by_interval(len(levels) - 1, schedule.interval)
    # All of them, so that what a rule refuses is refused before anything runs.
    calls = [2 if rule(*pair).to_mid else 1 for pair in zip(levels, levels[1:])]
    return steps, samples * sum(calls[i] for i in steps if i > 0)
