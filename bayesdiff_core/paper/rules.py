"""Sampler rules: one step of each sampler as a linear map of the state and the predicted noise.

Everything is in the host's frame (see the package's notation). Where the paper writes a rule in
VP coordinates, dividing it by alpha_{t-1} gives the one here.
"""

import math
from typing import NamedTuple

import torch

from ..checks import BayesDiffError


class Step(NamedTuple):
    """x' = a x + b d + c z with z ~ N(0, I)."""

    a: float
    b: float
    c: float = 0.0

    def mean(self, x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        return self.a * x + self.b * d


class Rule(NamedTuple):
    """A whole step. With a midpoint, d is predicted there, in the state that `to_mid` leads to."""

    step: Step
    sigma_mid: float | None = None
    to_mid: Step | None = None
    # What the paper prints over what is right in the covariance term: appendix A.1 has alpha_{s_t}
    # for alpha_{t-1} with DPM-Solver-2, and eq. var-ite lacks a factor 2. Algorithm 1 and 2 use it
    # to be literal, nothing else does.
    printed_covariance: float = 1.0


def ddim(sigma: float, sigma_next: float) -> Rule:
    """DDIM (appendix A.1); the host's `euler` and `ddim`, and the Euler step of a flow."""
    return Rule(Step(1.0, sigma_next - sigma))


flow_euler = ddim


def dpm_solver_2(sigma: float, sigma_next: float, flow: bool = False) -> Rule:
    """2-order DPM-Solver (eq. dpm-solver, dpm2-2): midpoint in the half-log-SNR.

    With `flow` it is a midpoint rule on the velocity, which the paper does not have: as the solver,
    it predicts at the middle of the half-log-SNR, but moves by the velocity found there where the
    solver would move by the noise. The host's dpm_2 moves so too, from another middle.

    First order where the half-log-SNR is infinite: at sigma_next = 0, and at sigma = 1 of a flow.
    """
    if sigma_next == 0 or (flow and sigma >= 1):
        return ddim(sigma, sigma_next)
    if flow:
        odds = math.sqrt((1 / sigma - 1) * (1 / sigma_next - 1))  # alpha / sigma at the midpoint
        middle = 1 / (1 + odds)
        ratio = (1 - middle) / (1 - sigma_next)
    else:
        middle = math.sqrt(sigma * sigma_next)
        ratio = math.sqrt((1 + sigma_next**2) / (1 + middle**2))
    return Rule(Step(1.0, sigma_next - sigma), middle, Step(1.0, middle - sigma), ratio)


def ddpm(sigma: float, sigma_next: float) -> Rule:
    """DDPM (section 3.2): alpha'_t = (1 + sigma_next^2) / (1 + sigma^2), beta_t = 1 - alpha'_t. The
    noise has the variance beta_t, as in the paper; the host's ddpm takes the smaller one of
    q(x_{t-1} | x_t, x_0). The last step adds none."""
    variance = _beta(sigma, sigma_next) * (1 + sigma_next**2) if sigma_next > 0 else 0.0
    return Rule(Step(1.0, (sigma_next**2 - sigma**2) / sigma, math.sqrt(variance)))


def analytic_dpm(sigma: float, sigma_next: float, noise_energy: float) -> Rule:
    """Analytic-DPM (appendix A.1): DDPM's mean with the optimal variance.

    noise_energy = (1 - bar alpha_t) Gamma_t = E ||d||^2 / dimension, see NoiseEnergy.
    """
    if not 0 <= noise_energy <= 1.5:
        raise BayesDiffError(f"noise energy is {noise_energy}, the mean square of a noise"
                             " prediction, from 0 to about 1, was expected: fit the posterior"
                             " again.")
    if sigma_next == 0:
        return ddpm(sigma, sigma_next)
    bar, bar_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
    lambda2 = (1 - bar_next) / (1 - bar) * _beta(sigma, sigma_next)
    spread = math.sqrt((1 - bar) * bar_next / bar) - math.sqrt(1 - bar_next - lambda2)
    variance = lambda2 + spread**2 * (1 - min(noise_energy, 1.0))
    return Rule(Step(1.0, (sigma_next**2 - sigma**2) / sigma, math.sqrt(variance / bar_next)))


def reverse_sde_euler(sigma: float, sigma_next: float) -> Rule:
    """Euler on the reverse SDE (eq. disc). In this frame alpha_t = 1, so f = 0 and g^2 = sigma^2 -
    sigma_next^2. The last step adds no noise, or the picture would keep it."""
    rule = discretized_sde(f=0.0, g=math.sqrt(sigma**2 - sigma_next**2), sigma=sigma)
    return rule if sigma_next > 0 else rule._replace(step=rule.step._replace(c=0.0))


def discretized_sde(f: float, g: float, sigma: float) -> Rule:
    """eq. disc, for any drift f and diffusion g of one step, in the coordinates of these."""
    return Rule(Step(1.0 - f, -(g**2) / sigma, g), printed_covariance=0.5)


def _beta(sigma: float, sigma_next: float) -> float:
    return 1 - (1 + sigma_next**2) / (1 + sigma**2)
