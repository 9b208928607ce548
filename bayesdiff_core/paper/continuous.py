"""The continuous-time expression of appendix A.2, as a diagnostic. No shown number uses it.

It does not hold. It takes eps_s and x_t, eps_s and eps_t as uncorrelated for s != t although both
are functions of the same path, so the double integrals over Cov(x_s, eps_t) and Cov(eps_s, eps_t)
vanish, and then keeps their diagonals s = t, a set of measure zero, as single integrals. What is
left depends on the unit of time. It also starts from Var(x_T) = 1, the spread over all pictures,
while the discrete iteration starts from 0, the one picture being drawn. The terms are here so that
one can look at their sizes next to a measured variance.
"""

from typing import NamedTuple

import torch

from ..checks import BayesDiffError


class ContinuousTerms(NamedTuple):
    """The terms of the appendix's last equation for Var(x_i) - Var(x_j), in its order."""

    drift: torch.Tensor  # 2 int f(t) int f(s) Var(x_s) ds dt
    drift_twice: torch.Tensor  # 2 int f(t) int f(s) Var(x_s) (int f(u) du) ds dt
    covariance: torch.Tensor  # - 2 int f g^2 / sigma Cov(x_s, eps_s) ds
    prediction: torch.Tensor  # int g^4 / sigma^2 Var(eps_s) ds
    diffusion: torch.Tensor  # int g^2 dt


def continuous_terms(times, f, g, sigma, variance, covariance, gamma2) -> ContinuousTerms:
    """All arguments sampled at ascending `times` (n); variance, covariance, gamma2 are n x ..."""
    n = len(times)
    for name, values in [("f", f), ("g", g), ("sigma", sigma), ("variance", variance),
                         ("covariance", covariance), ("gamma2", gamma2)]:
        if len(values) != n:
            raise BayesDiffError(f"{name} has {len(values)} samples for {n} times.")
    wide = (n, *[1] * (variance.ndim - 1))
    f_, g_, sigma_ = f.reshape(wide), g.reshape(wide), sigma.reshape(wide)
    integral_f = _running(times, f).reshape(wide)  # F(t), so that int_s^t f = F(t) - F(s)
    inner = _running(times, f_ * variance)
    inner_weighted = _running(times, f_ * variance * integral_f)
    return ContinuousTerms(
        drift=2 * _running(times, f_ * inner)[-1],
        drift_twice=2 * _running(times, f_ * (integral_f * inner - inner_weighted))[-1],
        covariance=-2 * _running(times, f_ * g_**2 / sigma_ * covariance)[-1],
        prediction=_running(times, g_**4 / sigma_**2 * gamma2)[-1],
        diffusion=_running(times, g_**2)[-1],
    )


def _running(times: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The integral up to each time, by trapezoids."""
    width = times.diff().reshape(-1, *[1] * (values.ndim - 1))
    areas = (values[1:] + values[:-1]) / 2 * width
    return torch.cat([torch.zeros_like(values[:1]), areas.cumsum(0)])
