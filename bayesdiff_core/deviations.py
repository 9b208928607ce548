"""Deviations: K offsets from the picture, carried beside it by the sampler itself. The default.

The picture's path stays as it is. Each deviation delta is one more item of the sampler's batch, at
x + delta, so any sampler that is linear in (x, denoised) propagates it, multistep ones included;
all that it needs is an answer at every call:

    denoised(x + delta) - denoised(x) = Delta_D,  plus the posterior's own part

- At a node, Delta_D is measured with the network, a few deviations in one batched call.
- Between nodes it stays as measured, and noise that came in since (`fresh`) keeps a share of
  itself. True noise keeps the directions that the picture can move in and loses the others; the
  one share stands for both. Keeping nothing, as if the network removed all noise, loses most of
  the variance.

independent: every call adds gamma times random signs, the paper's meaning. Signs, because a sign's
square is exactly 1. The noise that matters comes in two bands: early, which becomes a few smooth
modes and needs several nodes, and late, which stays local and needs only the last call. So there
are `early` deviations, that gather noise up to the last node before the end, and `late` ones, that
gather it from there on and are measured once. Var is the sum of their mean squares.

shared: each deviation is one draw of the last layer's weights, kept for the whole trajectory; all
are measured at every node.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from . import checks
from .bayesdiff import Moments, Predict, PredictWithPosterior
from .checks import BayesDiffError
from .posterior import Predictive
from .rules import Rule

MEANINGS = ("independent", "shared")
KEPT = {"independent": 0.6, "shared": 0.8}  # of fresh noise between nodes; weights make it smooth
NODES = 4
NODE_RATIOS = (0.25, 3.0)  # noise-to-signal ratios of the last and the first node
PROBE_RMS = 0.03  # smallest probe, in units of the network's input: bf16 rounding wins below
NEIGHBOUR = 0.2  # weight of a neighbouring pixel in the smoothed variance


class Plan(NamedTuple):
    """How many deviations, and at which noise levels they are measured."""

    early: int
    late: int
    nodes: tuple[float, ...]  # descending; the early deviations' nodes
    last: float  # the level of the sampler's last call, where the late ones are measured

    @property
    def evaluations(self) -> int:
        """Extra network evaluations an image."""
        return self.early * len(self.nodes) + self.late

    def steps(self, sigmas: torch.Tensor) -> list[int]:
        """The steps at whose first call something is measured."""
        levels = {*self.nodes, *([self.last] if self.late else [])}
        return [step for step, sigma in enumerate(sigmas.tolist()) if sigma in levels]


def plan(sigmas: torch.Tensor, budget: int, flow: bool = False, nodes: int = 0,
         deviations: int = 0) -> Plan:
    """The best use found for `budget` extra evaluations an image (benchmarks/README.md): nodes
    before more deviations, and a sixth or more for the late ones. A number of nodes or deviations
    that is given counts instead of the budget."""
    checks.decreasing(sigmas)
    checks.at_least("budget of extra network evaluations", budget, 1)
    levels = node_levels(sigmas, nodes or min(NODES, budget - 1), flow)
    last = float(sigmas[-2])
    if deviations:
        return Plan(deviations if levels else 0, deviations, levels, last)
    late = max(1, budget // 6)
    if not levels:
        return Plan(0, budget, levels, last)
    early = max(1, (budget - late) // len(levels))
    return Plan(early, max(late, budget - early * len(levels)), levels, last)


def shared_plan(sigmas: torch.Tensor, budget: int, flow: bool = False, nodes: int = 0,
                deviations: int = 0) -> Plan:
    """All deviations measured at up to three nodes and at the last call, which is one more."""
    checks.decreasing(sigmas)
    checks.at_least("budget of extra network evaluations", budget, 1)
    last = float(sigmas[-2])
    levels = (*node_levels(sigmas, nodes or min(3, budget - 1), flow), last)
    return Plan(deviations or max(1, budget // len(levels)), 0, levels, last)


def node_levels(sigmas: torch.Tensor, count: int, flow: bool = False) -> tuple[float, ...]:
    """Levels of the schedule nearest to `count` noise-to-signal ratios, spaced evenly in their
    logarithm; between the first and the last call, so fewer where the schedule has no room."""
    inner = [float(s) for s in sigmas[1:-2]]
    if count < 1 or not inner:
        return ()
    low, high = (math.log(ratio) for ratio in NODE_RATIOS)
    wanted = [low + (high - low) * (i + (count == 1) / 2) / max(count - 1, 1) for i in range(count)]

    def log_ratio(sigma: float) -> float:
        return math.log(sigma / max(1 - sigma, 1e-6) if flow else sigma)

    nearest = {min(inner, key=lambda s: abs(log_ratio(s) - ratio)) for ratio in wanted}
    return tuple(sorted(nearest, reverse=True))


class Deviations:
    """The answers a sampler's extra items get, call by call. One object serves one run."""

    def __init__(self, plan: Plan, meaning: str, seeds: list[int], flow: bool = False,
                 weight_seed: int = 0):
        """seeds: one an image, for its noise; weight_seed: for the weights, which images share."""
        if meaning not in MEANINGS:
            raise BayesDiffError(f"meaning is {meaning!r}, one of {MEANINGS} was expected.")
        if meaning == "shared" and plan.late:
            raise BayesDiffError(f"shared weights take one kind of deviation, the plan has"
                                 f" {plan.late} late ones: use shared_plan.")
        checks.at_least("number of deviations", plan.early + plan.late, 1)
        self.plan, self.meaning, self.flow = plan, meaning, flow
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._nodes = list(plan.nodes)
        self._measured = False  # the late deviations, at the last call
        self._weight_seed, self._draws = weight_seed, None
        self._frozen = (0.0, 0.0)  # Delta_D and Delta_eps of the early deviations at their node

    @property
    def count(self) -> int:
        return self.plan.early + self.plan.late

    def respond(self, sigma: float, x: torch.Tensor, deviations: torch.Tensor, d: torch.Tensor,
                predictive: Predictive, predict: Predict,
                mask: torch.Tensor | float = 1.0) -> torch.Tensor:
        """d(x + deviation) - d(x) for each deviation, count x B x ..., as the posterior sees it.

        predict(x, sigma) -> d is called at nodes only, with a multiple of x's batch. mask is 0
        where an inpainting model pastes known pixels over x and over what it returns; `predict`
        does so already, and `predictive` has it in its scale.
        """
        early, late = deviations.split([self.plan.early, self.plan.late])
        at_node = bool(self._nodes) and sigma <= self._nodes[0] * (1 + 1e-6)
        if at_node:
            self._nodes = [level for level in self._nodes if level < sigma * (1 - 1e-6)]
        at_end = not self._measured and sigma <= self.plan.last * (1 + 1e-6)
        self._measured |= at_end
        if at_node:
            early_d = self._measure(sigma, x, early, d, predict, keep=True)
        else:
            early_d = self._transport(sigma, early, *self._frozen, mask)
        if at_end:
            late_d = self._measure(sigma, x, late, d, predict)
        else:
            late_d = self._transport(sigma, late, 0.0, 0.0, mask)
        answer = torch.cat([early_d, late_d])
        if self.meaning == "shared":
            return answer + self._from_weights(predictive)
        gathering = slice(0, len(early)) if self._nodes else slice(len(early), None)
        answer[gathering] += self._signs(len(answer[gathering]), x) * predictive.variance().sqrt()
        return answer

    def _signal(self, sigma: float) -> float:
        """How much of x0 is in x: 1, or 1 - sigma in a flow."""
        return 1 - sigma if self.flow else 1.0

    def _measure(self, sigma, x, deviations, d, predict, keep=False) -> torch.Tensor:
        if not deviations.any():  # a zero posterior stays exactly 0
            return torch.zeros_like(deviations)
        axes = tuple(range(2, deviations.ndim))
        rms = deviations.square().mean((0, *axes)).sqrt()  # B
        scale = math.hypot(self._signal(sigma), sigma)
        up = (PROBE_RMS * scale / rms.clamp(min=1e-30)).clamp(1.0, 1e6)
        up = torch.where(rms > 0, up, 0.0).reshape(-1, *[1] * (x.ndim - 1))
        moved = predict((x + up * deviations).flatten(0, 1), sigma)
        measured = (moved.unflatten(0, deviations.shape[:2]) - d) / up.clamp(min=1.0)
        measured = torch.where(up > 0, measured, 0.0)
        if keep:
            denoised = deviations - sigma * measured
            self._frozen = denoised, (deviations - self._signal(sigma) * denoised) / sigma
        return measured

    def _transport(self, sigma, deviations, denoised, eps, mask) -> torch.Tensor:
        """Delta_D as frozen, plus the kept share of what came in since."""
        signal = self._signal(sigma)
        fresh = deviations - signal * denoised - sigma * eps
        # in a flow's coordinates the signal part of a deviation is 1 - sigma times its Delta_D
        kept = mask**2 * KEPT[self.meaning] * fresh / max(signal, 1e-3)
        return (deviations - denoised - kept) / sigma

    def _signs(self, count: int, x: torch.Tensor) -> torch.Tensor:
        """count x B x ..., each image from its own generator: its batch mates do not matter."""
        shape = (count, *x.shape[1:])
        signs = [torch.randint(0, 2, shape, generator=g) for g in self._generators]
        return (torch.stack(signs, dim=1) * 2 - 1).to(x)

    def _from_weights(self, predictive: Predictive) -> torch.Tensor:
        if self._draws is None:
            self._draws = predictive.posterior.draws(
                self.count, predictive.outputs, torch.Generator().manual_seed(self._weight_seed))
        return predictive.deviations(self._draws)

    def variance(self, deviations: torch.Tensor, smooth: bool = True) -> torch.Tensor:
        """Var(x_t) from deviations, count x B x ...: the sum over bands of mean squares."""
        bands = deviations.split([self.plan.early, self.plan.late])
        total = sum(band.square().mean(0) for band in bands if len(band))
        return smoothed(total) if smooth else total


def smoothed(variance: torch.Tensor) -> torch.Tensor:
    """A light 3 x 3 mean over the last two axes: few deviations leave pixel noise, which this
    trades for a little blur. Keeps 0 and a constant as they are."""
    kernel = variance.new_tensor([NEIGHBOUR, 1.0, NEIGHBOUR])
    kernel = (kernel[:, None] * kernel)[None, None]
    planes = variance.reshape(-1, 1, *variance.shape[-2:])
    weight = F.conv2d(torch.ones_like(planes[:1]), kernel, padding=1)
    return (F.conv2d(planes, kernel, padding=1) / weight).reshape(variance.shape)


def sample_with_deviations(predict: Predict, predict_with_posterior: PredictWithPosterior,
                           x: torch.Tensor, sigmas: torch.Tensor,
                           rule: Callable[[float, float], Rule],
                           deviations: Deviations) -> Moments:
    """A whole run under one of our own rules; the host's samplers call `respond` themselves."""
    checks.decreasing(sigmas)
    offsets = torch.zeros(deviations.count, *x.shape, dtype=x.dtype, device=x.device)

    def call(at, at_offsets, sigma):
        d, predictive = predict_with_posterior(at, sigma)
        return d, deviations.respond(sigma, at, at_offsets, d, predictive, predict)

    levels = [float(s) for s in sigmas]
    for sigma, sigma_next in zip(levels, levels[1:]):
        now = rule(sigma, sigma_next)
        if now.step.c:
            raise BayesDiffError("this rule adds noise of its own: run it in the host, which gives"
                                 " an item and its deviations the same noise.")
        d, moved = call(x, offsets, sigma)
        if now.to_mid:
            d, moved = call(now.to_mid.mean(x, d), now.to_mid.mean(offsets, moved), now.sigma_mid)
        x, offsets = now.step.mean(x, d), now.step.mean(offsets, moved)
    return Moments(x, x, deviations.variance(offsets))
