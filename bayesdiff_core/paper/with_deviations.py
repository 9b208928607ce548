"""Deviations under the paper's own rules, without a host: for benches and brute force."""

from collections.abc import Callable

import torch

from .. import checks
from ..checks import BayesDiffError
from ..deviations import Deviations
from ..iteration import Moments, Noise, Predict, PredictWithPosterior
from .rules import Rule


def sample_with_deviations(predict: Predict, predict_with_posterior: PredictWithPosterior,
                           x: torch.Tensor, sigmas: torch.Tensor,
                           rule: Callable[[float, float], Rule],
                           deviations: Deviations, noise: Noise | None = None) -> Moments:
    """A whole run under one of our own rules; the host's samplers call `respond` themselves.
    noise: what a stochastic rule adds, to the picture and its deviations alike, so that the
    variance is the posterior's alone."""
    checks.decreasing(sigmas)
    offsets = torch.zeros(deviations.count, *x.shape, dtype=x.dtype, device=x.device)

    def call(at, at_offsets, sigma):
        d, predictive = predict_with_posterior(at, sigma)
        return d, deviations.respond(sigma, at, at_offsets, d,
                                     deviations.posterior_part(predictive), predict)

    levels = [float(s) for s in sigmas]
    for sigma, sigma_next in zip(levels, levels[1:]):
        now = rule(sigma, sigma_next)
        if now.step.c and noise is None:
            raise BayesDiffError("this rule adds noise of its own, and none was given.")
        d, moved = call(x, offsets, sigma)
        if now.to_mid:
            d, moved = call(now.to_mid.mean(x, d), now.to_mid.mean(offsets, moved), now.sigma_mid)
        x, offsets = now.step.mean(x, d), now.step.mean(offsets, moved)
        if now.step.c:
            x = x + now.step.c * noise(x)
    return Moments(x, x, deviations.variance(offsets))
