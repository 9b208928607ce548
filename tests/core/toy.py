"""Small noise predictors with a known truth."""

import math

import torch
import torch.nn.functional as F

from bayesdiff_core.posterior import FeatureStatistics, LastLayer, Predictive, posterior


class ToyNet:
    """A random two-layer convolutional net on B x C x 6 x 6 with a fitted posterior; float64."""

    def __init__(self, channels=2, temperature=1.0, structure="full", seed=0):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.channels, self.layer = channels, LastLayer(5, kernel=3)
        self.first, self.shift = random(5, channels, 3, 3) / 4, random(5)
        self.last, self.bias = random(channels, 5, 3, 3) / 6, random(channels) / 4
        statistics = FeatureStatistics(self.layer)
        statistics.add(self.features(random(24, channels, 6, 6), 1.0))
        self.posterior = posterior(statistics, structure, temperature=temperature)
        self.evaluations = 0

    def features(self, x, sigma):
        shift = self.shift[:, None, None] + math.log(sigma) / 4
        return F.silu(F.conv2d(x / math.sqrt(1 + sigma**2), self.first, padding=1) + shift)

    def predict(self, x, sigma):
        self.evaluations += len(x)
        return F.conv2d(self.features(x, sigma), self.last, self.bias, padding=1)

    def with_posterior(self, x, sigma):
        predictive = Predictive(self.posterior, self.features(x, sigma), self.channels)
        return self.predict(x, sigma), predictive

    def noise(self, batch=2, seed=1, sigma=10.0):
        generator = torch.Generator().manual_seed(seed)
        return sigma * torch.randn(batch, self.channels, 6, 6, generator=generator,
                                   dtype=torch.float64)


class ConstantPredictive:
    """The same predictive variance for every pixel."""

    def __init__(self, like, gamma2):
        self.like, self.gamma2 = like, gamma2

    def variance(self):
        return torch.full_like(self.like, self.gamma2)


class GaussianData:
    """The exact noise predictor of independent Gaussian pixels, whose variances differ."""

    def __init__(self, gamma2=1e-3):
        self.data_variance = torch.linspace(0.01, 1.0, 16, dtype=torch.float64).reshape(1, 1, 4, 4)
        self.gamma2 = gamma2

    def predict(self, x, sigma):
        return x * sigma / (self.data_variance + sigma**2)

    def with_posterior(self, x, sigma):
        return self.predict(x, sigma), ConstantPredictive(x, self.gamma2)

    def variance(self, sigmas, rule):
        """Var(x_0) when d gets independent noise of variance gamma2 at each call; exact."""
        carried = torch.zeros_like(self.data_variance)
        levels = [float(s) for s in sigmas]
        for sigma, sigma_next in zip(levels, levels[1:]):
            now = rule(sigma, sigma_next)
            if now.to_mid:
                slope = now.sigma_mid / (self.data_variance + now.sigma_mid**2)
                first = sigma / (self.data_variance + sigma**2)
                gain = now.step.a + now.step.b * slope * (now.to_mid.a + now.to_mid.b * first)
                # noise of the call at the midpoint's start arrives through the second call
                added = now.step.b**2 * (1 + (slope * now.to_mid.b) ** 2) * self.gamma2
            else:
                gain = now.step.a + now.step.b * sigma / (self.data_variance + sigma**2)
                added = now.step.b**2 * self.gamma2
            carried = gain**2 * carried + added + now.step.c**2
        return carried


def levels(steps, high=10.0, low=0.05):
    """Noise levels spaced evenly in log sigma, then 0."""
    return torch.cat([torch.logspace(math.log10(high), math.log10(low), steps,
                                     dtype=torch.float64), torch.zeros(1)])
