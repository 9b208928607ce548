"""A bench net in the host's frame, d(x, sigma) = (x - denoised) / sigma, with a posterior."""

import torch

from bayesdiff_core.posterior import (
    FeatureStatistics,
    LastLayer,
    Posterior,
    Predictive,
    guided_features,
    posterior,
)
from benchmarks import images, nets


def last_layer(net) -> LastLayer:
    if isinstance(net, nets.UNet):
        return LastLayer(net.last.in_channels, kernel=3)
    return LastLayer(net.last.in_features)


class Denoiser:
    """Counts network evaluations, item by item, as one branch each."""

    def __init__(self, net, labels: torch.Tensor, cfg: float = 1.0,
                 posterior: Posterior | None = None):
        self.net, self.labels, self.cfg, self.posterior = net, labels, cfg, posterior
        self.evaluations = 0

    def features(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        """Guided features of x, whose batch repeats the labels."""
        labels = self.labels.repeat(len(x) // len(self.labels))
        levels = torch.full((len(x),), float(sigma))
        inputs = nets.inputs(self.net, x, levels)
        if self.cfg == 1:
            self.evaluations += len(x)
            return self.net.features(*inputs, labels)
        self.evaluations += 2 * len(x)
        doubled = [torch.cat([part, part]) for part in inputs]
        both = torch.cat([torch.full_like(labels, nets.NO_CLASS), labels])
        uncond, cond = self.net.features(*doubled, both).chunk(2)
        return guided_features(cond, uncond, self.cfg)

    def __call__(self, x: torch.Tensor, sigma: float) -> torch.Tensor:
        return nets.output(self.net, self.features(x, sigma))

    def with_posterior(self, x: torch.Tensor, sigma: float) -> tuple[torch.Tensor, Predictive]:
        phi = self.features(x, sigma)
        if isinstance(self.net, nets.UNet):
            predictive = Predictive(self.posterior, phi, self.net.channels)
        else:
            predictive = Predictive(self.posterior, phi, 4 * self.net.channels,
                                    to_grid=self.net.to_grid)
        return nets.output(self.net, phi), predictive

    @property
    def plain_evaluations(self) -> int:
        """What one call of the plain sampler costs."""
        return len(self.labels) * (1 if self.cfg == 1 else 2)


def fit(name: str, net, latents: int = 2048, seed: int = 7, leave_out: int | None = None,
        **numbers) -> Posterior:
    """A full posterior from noised training images, a fifth of them without a class; of all classes
    but `leave_out`."""
    x_all, y_all = images.load(nets.NETS[name][0], nets.SIZE)
    if leave_out is not None:
        x_all, y_all = x_all[y_all != leave_out], y_all[y_all != leave_out]
    generator = torch.Generator().manual_seed(seed)
    statistics = FeatureStatistics(last_layer(net))
    levels = nets.eps_sigmas()
    for start in range(0, latents, 64):
        x0, label = x_all[start:start + 64], y_all[start:start + 64].clone()
        label[torch.rand(len(x0), generator=generator) < 0.2] = nets.NO_CLASS
        noise = torch.randn(x0.shape, generator=generator)
        if net.kind == "eps":
            sigma = levels[torch.randint(1000, (len(x0),), generator=generator)]
            x, target = x0 + sigma[:, None, None, None] * noise, noise
        else:
            sigma = torch.rand(len(x0), generator=generator)
            x, target = torch.lerp(x0, noise, sigma[:, None, None, None]), noise - x0
        phi = net.features(*nets.inputs(net, x, sigma), label)
        statistics.add(phi, residual=target - nets.output(net, phi))
    return posterior(statistics, **numbers)


def sigmas(net, steps: int) -> torch.Tensor:
    """As the host's `normal` scheduler for eps nets and `simple` for flows: steps + 1 levels."""
    if net.kind == "flow":
        return torch.linspace(1, 0, steps + 1)
    levels = nets.eps_sigmas()
    return torch.cat([levels[torch.linspace(999, 0, steps).round().long()], torch.zeros(1)])
