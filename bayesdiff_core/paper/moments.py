"""The moment iteration, corrected: total variance, good probes, transport through skipped steps.

For x' = a x + b d + c z with mu(x) = E[d | x] and gamma^2 = Var[d | x], the law of total variance
gives Var' = Var[a x + b mu(x)] + b^2 gamma^2 + c^2. With probes p_i = +-sqrt(Var) and
D_i = mu(E + p_i) - mu(E) that is mean_i (a p_i + b D_i)^2 + b^2 gamma^2 + c^2: a sum of squares,
never negative, and 0 where posterior and sampler add nothing.

A midpoint is a step of its own: the noise of the call before it, gamma of x_s | x (eq. u|x),
reaches x' through the second call. It is independent of x, so it has probes of its own.
"""

from collections.abc import Callable, Collection

import torch

from .. import checks
from ..iteration import Moments, Predict, PredictWithPosterior
from .rules import Rule, Step


def moment_iteration(predict: Predict, predict_with_posterior: PredictWithPosterior,
                     x: torch.Tensor, sigmas: torch.Tensor, rule: Callable[[float, float], Rule],
                     schedule: Collection[int], probes: int, generator: torch.Generator) -> Moments:
    """The plain sampler's path and the variance beside it, a diagonal Gaussian at every step.

    Probes are sent on the scheduled steps; between them a pixel contracts as it last did.
    """
    checks.decreasing(sigmas)
    checks.at_least("number of probes", probes, 1)
    checks.at_least("number of uncertain steps", len(schedule), 1)
    variance = torch.zeros_like(x)
    gain = torch.zeros_like(x)  # d(denoised)/dx of each pixel; 0 suits the high noise of the start

    def signed(deviation: torch.Tensor) -> torch.Tensor:
        signs = torch.randint(0, 2, (probes, *x.shape), generator=generator).to(x) * 2 - 1
        return signs * deviation

    levels = [float(s) for s in sigmas]
    for i, (sigma, sigma_next) in enumerate(zip(levels, levels[1:])):
        now, probing = rule(sigma, sigma_next), i in schedule
        step, to_mid, sigma_at = now.step, now.to_mid or Step(1.0, 0.0), now.sigma_mid or sigma
        d, predictive = predict_with_posterior(x, sigma)
        at, d_at, fresh = x, d, torch.zeros_like(x)  # fresh: Var(x_s | x)
        if now.to_mid:
            fresh = to_mid.b**2 * predictive.variance()
            at = to_mid.mean(x, d)
            d_at, predictive = predict_with_posterior(at, sigma_at)
        carried = added = 0.0
        if not probing:
            slope, slope_at = (1 - gain) / sigma, (1 - gain) / sigma_at
            carried = (step.a + step.b * slope_at * (to_mid.a + to_mid.b * slope)) ** 2 * variance
            added = (step.b * slope_at) ** 2 * fresh
        if probing and variance.any():
            p = p_at = signed(variance.sqrt())
            if now.to_mid:
                p_at = to_mid.mean(p, _differences(predict, x, d, p, sigma))
            moved = _differences(predict, at, d_at, p_at, sigma_at)
            carried = step.mean(p, moved).square().mean(0)
            tiny = torch.finfo(x.dtype).tiny
            slope_at = (p_at * moved).mean(0) / p_at.square().mean(0).clamp(min=tiny)
            gain = (1 - sigma_at * slope_at).clamp(0, 1)
        if probing and fresh.any():
            moved = _differences(predict, at, d_at, signed(fresh.sqrt()), sigma_at)
            added = (step.b * moved).square().mean(0)
        variance = carried + added + step.b**2 * predictive.variance() + step.c**2
        x = step.mean(x, d_at)
        if step.c:
            x = x + step.c * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    return Moments(x, x, variance)


def _differences(predict: Predict, x, d, deviations, sigma) -> torch.Tensor:
    """d(x + deviation) - d(x) for each deviation, in one batched call: count x B x ..."""
    moved = predict((x + deviations).flatten(0, 1), sigma)
    return moved.unflatten(0, deviations.shape[:2]) - d
