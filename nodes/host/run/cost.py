"""What a run will cost, told before it from the widgets alone.

No model is loaded for it, so noise levels are those of Stable Diffusion, or of SD3 for flows; the
steps that get extra calls may lie a little off. Their number and the cost do not depend on it but
where a schedule has no room.
"""

import functools
from types import SimpleNamespace
from typing import NamedTuple

import comfy.model_sampling
import comfy.samplers

from ....bayesdiff_core import evidence
from ....bayesdiff_core.trajectory import kept_steps
from . import known_samplers, sampling
from .by_mode import SHARES, Options, refuse_without_posterior, taken
from .modes import paper


class Cost(NamedTuple):
    mode: str  # that the run takes
    steps: int
    uncertain: list[int]  # steps at which extra calls are made
    calls: int | None  # of the network, by the sampler; None where that is not known
    extra_calls: int
    kept: list[int]  # steps that the trajectory keeps, where memory does not leave out some
    check_calls: int = 0  # after the last step


class _Model(comfy.model_sampling.ModelSamplingDiscrete, comfy.model_sampling.EPS):
    pass


class _Flow(comfy.model_sampling.ModelSamplingDiscreteFlow, comfy.model_sampling.CONST):
    pass


def cost(options: Options, steps: int, sampler_name: str, scheduler: str, denoise: float = 1.0,
         flow: bool = False, with_posterior: bool = True) -> Cost:
    sampler = comfy.samplers.sampler_object(sampler_name)
    model = SimpleNamespace(get_model_object=lambda name: _model_sampling(flow), model_options={})
    sigmas = sampling.levels(model, steps, sampler_name, scheduler, denoise)
    count = max(len(sigmas) - 1, 0)
    mode = taken(options.mode, with_posterior or None, sampler).mode
    refuse_without_posterior(mode, with_posterior or None)
    uncertain, extra = (), 0
    if mode == "paper" and count:
        rule = paper.rule_of(sampler.sampler_function, flow, paper_rule=options.paper_rule)
        uncertain, extra = paper.chosen_schedule(rule, sigmas, options.schedule,
                                                 options.mc_samples)
    elif mode in SHARES and count > 1:  # at the only step there is nothing to measure yet
        plan = options.request(mode).plan(sigmas, flow)
        uncertain, extra = plan.steps(sigmas), plan.evaluations
    effort = evidence.effort(options.check, count)
    return Cost(mode, count, list(uncertain), known_samplers.calls_of(sampler, count), extra,
                kept_steps(count + 1, 1, 2**40, options.keep_steps) if count else [0],
                effort.calls if effort and count else 0)


@functools.cache
def _model_sampling(flow: bool):
    return _Flow() if flow else _Model()
