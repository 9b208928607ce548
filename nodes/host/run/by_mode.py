"""The modes by name: which one a run takes, and its observer."""

import functools
from typing import NamedTuple

import torch
from comfy.samplers import sampler_object

from ....bayesdiff_core import checks
from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.deviations import NOISE_MODELS
from ....bayesdiff_core.llla import Llla
from ....bayesdiff_core.scores import STILL, is_still
from ....bayesdiff_core.skip_schedule import Schedule
from ....bayesdiff_core.trajectory import mixed_seed
from .check import with_check
from .known_samplers import check_names, why_not
from .modes import free, paper
from .modes.deviations import Request
from .modes.deviations import observe as observe_deviations
from .predictor import Predictor, why_no_features
from .sampling import Observation, Observer, SamplerRun

SHARES = {"light": 0.2, "accurate": 0.5}  # extra calls as a share of the steps
PAPER_RULES = paper.PAPER_RULES
MODES = ("auto", "free", *SHARES, "paper")


class Options(NamedTuple):
    """As a sampler node's widgets have them."""

    mode: str = "auto"
    skip_schedule: str = "chosen"
    skip_interval: int = 4
    uncertain_steps: str = ""
    probe_levels: int = 0
    deviations: int = 0
    mc_samples: int = 10
    paper_rule: str = paper.BY_SAMPLER
    noise_model: str = NOISE_MODELS[0]
    uncertainty_seed: int = 0
    keep_steps: int = 10
    check: str = "auto"

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.skip_schedule, self.skip_interval, self.uncertain_steps)

    def request(self, mode: str) -> Request:
        return Request(SHARES[mode], self.schedule, self.probe_levels, self.deviations,
                       self.noise_model, mixed_seed(self.uncertainty_seed, -1))


class Taken(NamedTuple):
    mode: str
    why: str = ""  # in words, where it is not what was asked for


def taken(mode: str, posterior: Llla | None, sampler, guider=None) -> Taken:
    """The mode that a run takes. sampler: a SAMPLER, or its name; guider: where one is given."""
    checks.one_of("mode", mode, MODES)
    if isinstance(sampler, str):
        check_names(sampler)
    if mode == "auto" and posterior is None:
        return Taken("free", "no posterior is connected")
    if mode == "free" or mode == "paper":
        return Taken(mode)
    unsuited = why_not(sampler_object(sampler) if isinstance(sampler, str) else sampler)
    if unsuited is None and mode == "auto" and guider is not None and why_no_features(guider):
        return Taken("free", f"{why_no_features(guider)}: choose mode light to try it")
    if unsuited:
        return Taken("free", f"{unsuited}, so mode {'light' if mode == 'auto' else mode} cannot"
                             " follow it")
    return Taken("light", "a posterior is connected") if mode == "auto" else Taken(mode)


def refuse_without_posterior(mode: str, posterior) -> None:
    if mode not in ("auto", "free") and posterior is None:
        raise BayesDiffError(f"mode {mode} needs a posterior, and none is connected: connect LLLA"
                             " Fit or LLLA Load, or choose mode auto or free.")


def observer(mode: str, model, posterior: Llla | None, seeds: list[int],
             options: Options) -> Observer:
    """Of a mode other than auto, with the check that follows it."""
    watching = _watching(mode, model, posterior, seeds, options)
    checked = with_check(watching.observe, options.check, watching.tap)
    return watching._replace(observe=functools.partial(_told_if_still, checked))


def _told_if_still(observe, run: SamplerRun) -> tuple[torch.Tensor, Observation]:
    x, seen = observe(run)
    return x, seen._replace(notes=(*seen.notes, STILL)) if is_still(seen.trajectory) else seen


def _watching(mode: str, model, posterior: Llla | None, seeds: list[int],
              options: Options) -> Observer:
    common = {"seeds": seeds, "keep_steps": options.keep_steps}
    if mode == "free":
        return Observer(functools.partial(free.observe, **common))
    refuse_without_posterior(mode, posterior)
    predictor = Predictor(model, posterior)
    if mode == "paper":
        observe = functools.partial(paper.observe, schedule=options.schedule,
                                    samples=options.mc_samples,
                                    paper_rule=options.paper_rule)
    else:
        observe = functools.partial(observe_deviations, request=options.request(mode))
    return Observer(functools.partial(observe, predictor=predictor, **common), predictor.tap)
