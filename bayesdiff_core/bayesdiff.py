"""The paper's Algorithm 1 (BayesDiff) and Algorithm 2 (BayesDiff-Skip), as printed.

Kept literal so that it can be compared with: the predictive variance stands for the whole of
Var(eps_t) although Var_x[eps(x)] is missing, skipped steps keep the variance, and the covariance of
eq. mc is a plain Monte Carlo mean. `moments` and `deviations` mend all three.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

import torch

from . import checks
from .posterior import Predictive
from .rules import Rule

# (x, sigma) -> d, and (x, sigma) -> d with its posterior predictive
Predict = Callable[[torch.Tensor, float], torch.Tensor]
Noise = Callable[[torch.Tensor], torch.Tensor]  # standard normal, as its argument in all else
PredictWithPosterior = Callable[[torch.Tensor, float], tuple[torch.Tensor, Predictive]]


class Moments(NamedTuple):
    """The picture, and E(x_0) and Var(x_0). negative_share: entries of Var(x_t) that the iteration
    made negative and that were set to 0, over all uncertain steps."""

    sample: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    negative_share: float = 0.0


class ImageNoise:
    """Standard normal noise from a generator for each image, on the CPU as the host draws its own:
    an image's noise does not depend on its batch mates or on the device."""

    def __init__(self, seeds: list[int], item_shape: torch.Size):
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._item_shape = item_shape

    def __call__(self, like: torch.Tensor) -> torch.Tensor:
        count = like.numel() // (len(self._generators) * self._item_shape.numel())
        shape = (count, *self._item_shape)
        drawn = [torch.randn(shape, generator=g) for g in self._generators]
        return torch.stack(drawn, dim=1).reshape(like.shape).to(like)


def bayesdiff(predict: Predict, predict_with_posterior: PredictWithPosterior, x: torch.Tensor,
              sigmas: torch.Tensor, rule: Callable[[float, float], Rule],
              schedule: Collection[int], samples: int, noise: Noise, sample_eps: bool = True,
              on_step: Callable[[int, torch.Tensor, Moments], None] = lambda *_: None) -> Moments:
    """Algorithm 2; Algorithm 1 where the schedule holds every step.

    sample_eps draws eps_t from the posterior predictive on uncertain steps, as the paper does, and
    changes the picture; without it the picture is the plain sampler's. on_step(i, d, state) is told
    the state on entering step i and the noise that is predicted there.
    """
    checks.decreasing(sigmas)
    checks.at_least("Monte Carlo sample size S", samples, 1)
    checks.at_least("number of uncertain steps", len(schedule), 1)
    mean, variance, negative = x, torch.zeros_like(x), []

    def predicted(at: torch.Tensor, sigma: float, uncertain: bool):
        """eps_t along the sampled path (lines 4 to 7), and gamma^2."""
        if not uncertain:
            return predict(at, sigma), None
        d, predictive = predict_with_posterior(at, sigma)
        gamma2 = predictive.variance()
        return (d + gamma2.sqrt() * noise(d) if sample_eps else d), gamma2

    levels = [float(s) for s in sigmas]
    for i, (sigma, sigma_next) in enumerate(zip(levels, levels[1:])):
        now, uncertain = rule(sigma, sigma_next), i in schedule
        step, sigma_eps = now.step, now.sigma_mid or sigma
        d, gamma2 = predicted(x, sigma, uncertain)
        on_step(i, d, Moments(x, mean, variance))
        if now.to_mid:
            first_gamma2 = gamma2
            d, gamma2 = predicted(now.to_mid.mean(x, d), sigma_eps, uncertain)
        covariance, mean_d = 0.0, d
        if uncertain and i > 0:  # Cov(x_T, eps_T) = 0
            x_i = mean + variance.sqrt() * noise(x.expand(samples, *x.shape))
            at = x_i.flatten(0, 1)
            if now.to_mid:  # eq. u|x
                spread = abs(now.to_mid.b) * first_gamma2.sqrt().expand(x_i.shape).flatten(0, 1)
                at = now.to_mid.mean(at, predict(at, sigma)) + spread * noise(at)
            d_i = predict(at, sigma_eps).unflatten(0, x_i.shape[:2])
            mean_d = d_i.mean(0)
            covariance = ((x_i - mean) * d_i).mean(0)  # eq. mc, summed so that equal x_i give 0
        added = gamma2 if uncertain else 0.0
        cross = 2 * step.a * step.b * now.printed_covariance * covariance
        variance = step.a**2 * variance + cross + step.b**2 * added + step.c**2
        negative.append((variance < 0).float().mean().item())
        variance = variance.clamp(min=0)
        mean = step.mean(mean, mean_d)
        x = step.mean(x, d) + (step.c * noise(x) if step.c else 0.0)
    return Moments(x, mean, variance, sum(negative) / len(negative))
