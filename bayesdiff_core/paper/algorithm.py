"""The paper's Algorithm 1 (BayesDiff) and Algorithm 2 (BayesDiff-Skip), as printed.

Kept literal so that it can be compared with: the predictive variance stands for the whole of
Var(eps_t) although Var_x[eps(x)] is missing, skipped steps keep the variance, and the covariance of
eq. mc is a plain Monte Carlo mean. `moments` and `deviations` mend all three.

E(eps_t), of which the paper gives no line of its own, is what its equations use in its place:
uncertain steps take the mean of the network over x_{t,i}, as eq. mc does; at t = T all x_{T,i} are
x_T, so it is eps_theta(x_T, T), never the eps_T that is drawn; on a plain step eps_t is a constant,
eps_theta at the sampled x_t. At DPM-Solver-2's first step x_{s_T} is drawn (eq. u|x) on the sampled
path only, and the network's mean there is E(eps_{s_T}) by one draw.
"""

from collections.abc import Callable, Collection

import torch

from .. import checks
from ..iteration import Moments, Noise, Predict, PredictWithPosterior
from .rules import Rule


def bayesdiff(predict: Predict, predict_with_posterior: PredictWithPosterior, x: torch.Tensor,
              sigmas: torch.Tensor, rule: Callable[[float, float], Rule],
              schedule: Collection[int], samples: int, noise: Noise, sample_eps: bool = True,
              on_step: Callable[[int, torch.Tensor, Moments], None] = lambda *_: None,
              predict_samples: Predict | None = None) -> Moments:
    """Algorithm 2; Algorithm 1 where the schedule holds every step.

    sample_eps draws eps_t from the posterior predictive on uncertain steps, as the paper does, and
    changes the picture; without it the picture is the plain sampler's. on_step(i, d, state) is told
    the state on entering step i and the noise that is predicted there. predict_samples is asked for
    the x_{t,i} of eq. mc, S times the batch, where these calls differ from the path's.
    """
    checks.decreasing(sigmas)
    checks.at_least("Monte Carlo sample size S", samples, 1)
    checks.at_least("number of uncertain steps", len(schedule), 1)
    predict_samples = predict_samples or predict
    mean, variance, negative = x, torch.zeros_like(x), []

    def predicted(at: torch.Tensor, sigma: float, uncertain: bool):
        """eps_theta, eps_t along the sampled path (lines 4 to 7), and gamma^2."""
        if not uncertain:
            eps = predict(at, sigma)
            return eps, eps, torch.zeros_like(eps)
        eps, predictive = predict_with_posterior(at, sigma)
        gamma2 = predictive.variance()
        return eps, (eps + gamma2.sqrt() * noise(eps) if sample_eps else eps), gamma2

    levels = [float(s) for s in sigmas]
    for i, (sigma, sigma_next) in enumerate(zip(levels, levels[1:])):
        now, uncertain = rule(sigma, sigma_next), i in schedule
        step, sigma_eps = now.step, now.sigma_mid or sigma
        mean_d, d, gamma2 = predicted(x, sigma, uncertain)
        on_step(i, d, Moments(x, mean, variance))
        if now.to_mid:
            first_gamma2 = gamma2
            mean_d, d, gamma2 = predicted(now.to_mid.mean(x, d), sigma_eps, uncertain)
        covariance = 0.0
        if uncertain and i > 0:  # Cov(x_T, eps_T) = 0
            x_i = mean + variance.sqrt() * noise(x.expand(samples, *x.shape))
            at = x_i.flatten(0, 1)
            if now.to_mid:  # eq. u|x
                spread = abs(now.to_mid.b) * first_gamma2.sqrt().expand(x_i.shape).flatten(0, 1)
                at = now.to_mid.mean(at, predict_samples(at, sigma)) + spread * noise(at)
            d_i = predict_samples(at, sigma_eps).unflatten(0, x_i.shape[:2])
            mean_d = d_i.mean(0)
            covariance = ((x_i - mean) * d_i).mean(0)  # eq. mc, summed so that equal x_i give 0
        cross = 2 * step.a * step.b * now.printed_covariance * covariance
        variance = step.a**2 * variance + cross + step.b**2 * gamma2 + step.c**2
        negative.append((variance < 0).float().mean().item())
        variance = variance.clamp(min=0)
        mean = step.mean(mean, mean_d)
        x = step.mean(x, d) + (step.c * noise(x) if step.c else 0.0)
    return Moments(x, mean, variance, sum(negative) / len(negative))
