"""How large a network's noise predictions are at each noise level: what Analytic-DPM needs."""

import math

import torch

from . import checks
from .checks import BayesDiffError


class NoiseEnergy:
    """E ||d||^2 / dimension by noise level, collected during the fit: Gamma_t for Analytic-DPM."""

    def __init__(self, bins: int = 32, sigma_min: float = 0.01, sigma_max: float = 100.0):
        self.edges = torch.linspace(math.log(sigma_min), math.log(sigma_max), bins + 1)[1:-1]
        self.sums = torch.zeros(bins, dtype=torch.float64)
        self.counts = torch.zeros(bins, dtype=torch.float64)

    def add(self, sigma: torch.Tensor, d: torch.Tensor) -> None:
        """sigma: B noise levels; d: B x ... noise predictions."""
        checks.finite("noise prediction", d)
        bins = torch.bucketize(sigma.log().cpu(), self.edges)
        self.sums.index_add_(0, bins, d.double().square().flatten(1).mean(1).cpu())
        self.counts.index_add_(0, bins, torch.ones(len(bins), dtype=torch.float64))

    def at(self, sigma: float) -> float:
        """The mean in sigma's bin, or in the nearest one that was seen."""
        seen = self.counts.nonzero().flatten()
        if not len(seen):
            raise BayesDiffError("no noise energy was collected: fit the posterior first.")
        wanted = torch.bucketize(torch.tensor(math.log(sigma)), self.edges)
        nearest = seen[(seen - wanted).abs().argmin()]
        return (self.sums[nearest] / self.counts[nearest]).item()
