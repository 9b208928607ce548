"""Deviations: K offsets from the picture, carried beside it by the sampler itself. The default.

The picture's path stays as it is. Each deviation delta is one more item of the sampler's batch, at
x + delta, so any sampler that is linear in (x, denoised) propagates it, multistep ones included;
all that it needs is an answer at every call:

    denoised(x + delta) - denoised(x) = Delta_D,  plus the posterior's own part

- At a probe level, Delta_D is measured with the network, a few deviations in one batched call.
- Between them it stays as measured, and noise that came in since (`fresh`) keeps a share of
  itself. True noise keeps the directions that the picture can move in and loses the others; the
  one share stands for both. Keeping nothing, as if the network removed all noise, loses most of
  the variance.

independent: every call adds gamma times random signs, as the paper means it. Signs, because a
sign's square is exactly 1. The noise that matters comes in two bands: early, which becomes a few
smooth modes and needs several probe levels, and late, which stays local and needs only the last
call. So there are `early` deviations, that gather noise up to the last probe level before the end,
and `late` ones, that gather it from there on and are measured once. Var is the sum of their mean
squares.

shared: each deviation is one draw of the last layer's weights, kept for the whole trajectory; all
are measured at every probe level.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

import torch
import torch.nn.functional as F

from . import checks
from .checks import BayesDiffError
from .iteration import Predict
from .posterior import Predictive
from .smoothing import smoothed

NOISE_MODELS = ("independent", "shared")
KEPT = {"independent": 0.6, "shared": 0.8}  # of fresh noise; weights make it smooth
PROBE_LEVELS = 4
PROBE_RATIOS = (0.25, 3.0)  # noise-to-signal ratios of the last and the first probe level
PROBE_RMS = 0.03  # smallest probe, in units of the network's input: bf16 rounding wins below


class Plan(NamedTuple):
    """How many deviations, and at which noise levels they are measured."""

    early: int
    late: int
    probe_levels: tuple[float, ...]  # falling; of the early deviations
    last: float  # where the late ones are measured: the sampler's last call, or 0 for never

    @property
    def evaluations(self) -> int:
        """Extra network evaluations an image."""
        return self.early * len(self.probe_levels) + self.late * (self.last > 0)

    def steps(self, sigmas: torch.Tensor) -> list[int]:
        """The steps at whose first call something is measured."""
        levels = {*self.probe_levels, *([self.last] if self.late else [])} - {0.0}
        return [step for step, sigma in enumerate(sigmas.tolist()) if sigma in levels]


def plan(sigmas: torch.Tensor, budget: int, flow: bool = False, probe_levels: int = 0,
         deviations: int = 0, steps: Collection[int] | None = None) -> Plan:
    """The best use found for `budget` extra evaluations an image (benchmarks/README.md): probe
    levels before more deviations, and a sixth or more for the late ones. A number of either that is
    given counts instead of the budget. steps: measures at these only; the first has nothing to
    measure yet."""
    levels, last = _levels(sigmas, budget, flow, probe_levels or min(PROBE_LEVELS, budget - 1),
                           steps)
    if deviations:
        return Plan(deviations if levels else 0, deviations, levels, last)
    late = max(1, budget // 6)
    if not levels:
        return Plan(0, budget, levels, last)
    early = max(1, (budget - late) // len(levels))
    return Plan(early, max(late, budget - early * len(levels)), levels, last)


def shared_plan(sigmas: torch.Tensor, budget: int, flow: bool = False, probe_levels: int = 0,
                deviations: int = 0, steps: Collection[int] | None = None) -> Plan:
    """All deviations measured at up to three probe levels and at the last call besides."""
    levels, last = _levels(sigmas, budget, flow, probe_levels or min(3, budget - 1), steps)
    levels = (*levels, last) if last else levels
    return Plan(deviations or max(1, budget // max(len(levels), 1)), 0, levels, last)


def _levels(sigmas: torch.Tensor, budget: int, flow: bool, count: int,
            steps: Collection[int] | None) -> tuple[tuple[float, ...], float]:
    """The probe levels between the first call and the last, and the last one's if it is probed."""
    checks.decreasing(sigmas)
    checks.at_least("budget of extra network evaluations", budget, 1)
    last = len(sigmas) - 2
    if steps is None:
        return levels_of(sigmas, count, flow), float(sigmas[last])
    return (tuple(float(sigmas[step]) for step in sorted(steps) if 0 < step < last),
            float(sigmas[last]) if last in steps else 0.0)


def levels_of(sigmas: torch.Tensor, count: int, flow: bool = False) -> tuple[float, ...]:
    """Levels of the schedule nearest to `count` noise-to-signal ratios, spaced evenly in their
    logarithm; between the first and the last call, so fewer where the schedule has no room."""
    inner = [float(s) for s in sigmas[1:-2]]
    if count < 1 or not inner:
        return ()
    low, high = (math.log(ratio) for ratio in PROBE_RATIOS)
    wanted = [low + (high - low) * (i + (count == 1) / 2) / max(count - 1, 1) for i in range(count)]

    def log_ratio(sigma: float) -> float:
        return math.log(sigma / max(1 - sigma, 1e-6) if flow else sigma)

    nearest = {min(inner, key=lambda s: abs(log_ratio(s) - ratio)) for ratio in wanted}
    return tuple(sorted(nearest, reverse=True))


class Deviations:
    """The answers a sampler's extra items get, call by call. One object serves one run."""

    def __init__(self, plan: Plan, noise_model: str, seeds: list[int], flow: bool = False,
                 weight_seed: int = 0):
        """seeds: one an image, for its noise; weight_seed: for the weights, which images share."""
        checks.one_of("noise_model", noise_model, NOISE_MODELS)
        if noise_model == "shared" and plan.late:
            raise BayesDiffError(f"shared weights take one kind of deviation, the plan has"
                                 f" {plan.late} late ones: use shared_plan.")
        checks.at_least("number of deviations", plan.early + plan.late, 1)
        self.plan, self.noise_model, self.flow = plan, noise_model, flow
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._ahead = list(plan.probe_levels)
        self._measured = False  # the late deviations, at the last call
        self._begun = False
        self._bits = None  # 1, 2, 4, ... on the device
        self._weight_seed, self._draws = weight_seed, None
        self._frozen = None  # Delta_D and Delta_eps of the early deviations, once measured

    @property
    def count(self) -> int:
        return self.plan.early + self.plan.late

    def posterior_part(self, predictive: Predictive) -> torch.Tensor:
        """What respond needs of a call's predictive: gamma, or what each draw of the weights adds.
        The features, many times as large, can go before other calls are made."""
        if self.noise_model == "shared":
            return self._from_weights(predictive)
        return predictive.variance().sqrt()

    def respond(self, sigma: float, x: torch.Tensor, deviations: torch.Tensor, d: torch.Tensor,
                part: torch.Tensor, predict: Predict,
                mask: torch.Tensor | float = 1.0) -> torch.Tensor:
        """d(x + deviation) - d(x) for each deviation, count x B x ..., as the posterior sees it.

        part: the posterior's, above. predict(x, sigma) -> d is called at probe levels only, with a
        multiple of x's batch. mask is 0 where an inpainting model pastes known pixels over x and
        over what it returns; `predict` does so already, and the predictive has it in its scale.
        """
        early, late = deviations.split([self.plan.early, self.plan.late])
        probing = bool(self._ahead) and sigma <= self._ahead[0] * (1 + 1e-6)
        if probing:
            self._ahead = [level for level in self._ahead if level < sigma * (1 - 1e-6)]
        at_end = not self._measured and sigma <= self.plan.last * (1 + 1e-6)
        self._measured |= at_end
        first, self._begun = not self._begun, True  # nothing has come in yet
        if probing and not first:
            early_d = self._measure(sigma, x, early, d, predict, keep=True)
        else:
            early_d = self._transport(sigma, early, self._frozen, mask)
        if at_end and not first:
            late_d = self._measure(sigma, x, late, d, predict)
        else:
            late_d = self._transport(sigma, late, None, mask)
        answer = torch.cat([early_d, late_d])
        if self.noise_model == "shared":
            return answer + part
        gathering = slice(0, len(early)) if self._ahead else slice(len(early), None)
        gathered = answer[gathering]
        gathered.add_(torch.where(self._signs(len(gathered), x), part, -part))
        return answer

    def _signal(self, sigma: float) -> float:
        """How much of x0 is in x: 1, or 1 - sigma in a flow."""
        return 1 - sigma if self.flow else 1.0

    def _measure(self, sigma, x, deviations, d, predict, keep=False) -> torch.Tensor:
        if not len(deviations):
            return deviations
        axes = tuple(range(2, deviations.ndim))
        rms = deviations.square().mean((0, *axes)).sqrt()  # B
        scale = math.hypot(self._signal(sigma), sigma)
        up = (PROBE_RMS * scale / rms.clamp(min=1e-30)).clamp(1.0, 1e6)
        up = torch.where(rms > 0, up, 0.0).reshape(-1, *[1] * (x.ndim - 1))
        moved = predict((x + up * deviations).flatten(0, 1), sigma)
        measured = (moved.unflatten(0, deviations.shape[:2]) - d) / up.clamp(min=1.0)
        measured = torch.where(up > 0, measured, 0.0)  # a zero posterior stays exactly 0
        if keep:
            denoised = deviations - sigma * measured
            self._frozen = denoised, (deviations - self._signal(sigma) * denoised) / sigma
        return measured

    def _transport(self, sigma, deviations, frozen, mask) -> torch.Tensor:
        """Delta_D as frozen, plus the kept share of what came in since."""
        signal = self._signal(sigma)
        # in a flow's coordinates the signal part of a deviation is 1 - sigma times its Delta_D
        share = mask**2 * (KEPT[self.noise_model] / max(signal, 1e-3))
        # (deviations - denoised - share (deviations - signal denoised - sigma eps)) / sigma
        moved = deviations * ((1 - share) / sigma)
        if frozen is None:
            return moved
        denoised, eps = frozen
        return moved - denoised * ((1 - share * signal) / sigma) + share * eps

    def _signs(self, count: int, x: torch.Tensor) -> torch.Tensor:
        """count x B x ..., true for plus; each image from its own generator: its batch mates do not
        matter. Drawn on the CPU, as the host draws its noise, and brought over eight to a byte."""
        shape = (count, *x.shape[1:])
        signs = torch.stack([torch.randint(0, 2, shape, generator=g, dtype=torch.uint8)
                             for g in self._generators], dim=1)
        bits = F.pad(signs.flatten(), (0, -signs.numel() % 8)).view(-1, 8)
        packed = (bits << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)
        if self._bits is None:
            self._bits = (2 ** torch.arange(8)).to(x.device, torch.uint8)
        unpacked = (packed.to(x.device)[:, None] & self._bits).flatten()[:signs.numel()]
        return unpacked.view(signs.shape) > 0

    def _from_weights(self, predictive: Predictive) -> torch.Tensor:
        if self._draws is None:
            self._draws = predictive.posterior.draws(
                self.count, predictive.outputs, torch.Generator().manual_seed(self._weight_seed)
            ).to(predictive.phi.device)
        return predictive.deviations(self._draws)

    def variance(self, deviations: torch.Tensor, smooth: bool = True) -> torch.Tensor:
        """Var(x_t) from deviations, count x B x ...: the sum over bands of mean squares."""
        bands = deviations.split([self.plan.early, self.plan.late])
        total = sum(band.square().mean(0) for band in bands if len(band))
        return smoothed(total) if smooth else total
