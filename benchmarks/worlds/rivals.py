"""Evidence that was tried beside bayesdiff_core/evidence.py, and that no node has: it told less
(benchmarks/README.md). The frame and the shapes are the same."""

from collections.abc import Sequence

import torch

from bayesdiff_core import checks, evidence

PROBE = 0.05  # of the network's input, as large as rounding in bf16 allows it to be small


def acceleration_map(slopes: Sequence[torch.Tensor]) -> torch.Tensor:
    """(sum_t |d_t - d_{t-1}|)^2: how much the direction of the path turned at each pixel."""
    checks.at_least("number of steps", len(slopes), 2)
    return sum((now - before).abs() for before, now in zip(slopes, slopes[1:])).square()


def acceleration(slopes: Sequence[torch.Tensor]) -> torch.Tensor:
    """sum_t |d_t - d_{t-1}| / sum_t |d_t| with Euclidean norms over a picture: 0 on a straight
    path. Of the steps so far, so it is known early."""
    checks.at_least("number of steps", len(slopes), 2)
    turned = sum(_norm(now - before) for before, now in zip(slopes, slopes[1:]))
    return turned / sum(_norm(d) for d in slopes[1:]).clamp(min=evidence.LEAST)


def posterior_covariance(denoise: evidence.Denoise, x: torch.Tensor, denoised: torch.Tensor,
                         sigma: float, signs: torch.Tensor, flow: bool = False) -> torch.Tensor:
    """The diagonal of Cov(x0 | x) = (s^2 / a) dD/dx, by one probe of random signs z (Hutchinson):
    (s^2 / a) z (D(x + h z) - D(x)) / h. Its mean is the trace's; one call. Single pixels may be
    negative, so what sums it up goes first."""
    a = evidence.signal(sigma, flow)
    h = PROBE * (a**2 + sigma**2) ** 0.5
    return sigma**2 / a * signs * (denoise(x + h * signs, sigma) - denoised) / h


def semantic(features: torch.Tensor, floor: float = 1e-5) -> torch.Tensor:
    """Entropy of K drawings of a picture in a feature space (arXiv 2502.20946), as if Gaussian and
    independent: 1/2 sum_d log(Var_k phi_d + tau), tau = floor times the mean square of all
    features. features: K x B x D, of decoded E + deviation_k."""
    features = features.double()
    spread = features.var(0, unbiased=False)
    return 0.5 * (spread + floor * features.square().mean()).log().sum(1)


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double().flatten(1).norm(dim=1)
