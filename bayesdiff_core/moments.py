"""The moment iteration, corrected: total variance, good probes, transport through skipped steps.

For x' = a x + b d + c z with mu(x) = E[d | x] and gamma^2 = Var[d | x], the law of total variance
gives Var' = Var[a x + b mu(x)] + b^2 gamma^2 + c^2. With probes p_i = +-sqrt(Var) and
D_i = mu(E + p_i) - mu(E) that is mean_i (a p_i + b D_i)^2 + b^2 gamma^2 + c^2: a sum of squares,
never negative, and 0 where the posterior is.
"""

from collections.abc import Callable, Collection

import torch

from . import checks
from .bayesdiff import Moments, Predict, PredictWithPosterior
from .rules import Rule


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

    levels = [float(s) for s in sigmas]
    for i, (sigma, sigma_next) in enumerate(zip(levels, levels[1:])):
        now = rule(sigma, sigma_next)
        step = now.step
        d, predictive = predict_with_posterior(x, sigma)
        at, d_at = x, d
        probing = i in schedule and bool(variance.max() > 0)
        if probing:
            signs = torch.randint(0, 2, (probes, *x.shape), generator=generator).to(x) * 2 - 1
            p = p_at = signs * variance.sqrt()
        if now.to_mid:
            if probing:
                p_at = now.to_mid.mean(p, _differences(predict, x, d, p, sigma))
            at = now.to_mid.mean(x, d)
            d_at, predictive_at = predict_with_posterior(at, now.sigma_mid)
        else:
            predictive_at = predictive
        sigma_at = now.sigma_mid or sigma
        if probing:
            differences = _differences(predict, at, d_at, p_at, sigma_at)
            moved = step.mean(p, differences)
            slope = (p * differences).mean(0) / variance.clamp(min=torch.finfo(x.dtype).tiny)
            gain = (1 - sigma_at * slope).clamp(0, 1)
            carried = moved.square().mean(0)
        else:
            carried = (step.a + step.b * (1 - gain) / sigma_at) ** 2 * variance
        variance = carried + step.b**2 * predictive_at.variance() + step.c**2
        x = step.mean(x, d_at)
        if step.c:
            x = x + step.c * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    return Moments(x, x, variance)


def _differences(predict: Predict, x, d, deviations, sigma) -> torch.Tensor:
    """d(x + deviation) - d(x) for each deviation, in one batched call: count x B x ..."""
    moved = predict((x + deviations).flatten(0, 1), sigma)
    return moved.unflatten(0, deviations.shape[:2]) - d
