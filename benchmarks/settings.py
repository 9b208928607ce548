"""The settings that accuracy is measured under; each names a truth in the cache."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch

from bayesdiff_core.iteration import ImageNoise
from bayesdiff_core.paper import rules
from benchmarks import brute_force, denoiser, nets

IMAGES = 16
TRAJECTORIES = 128
TUNED_ON = ("fashion", "emoji")  # estimators were chosen on these nets; cifar-flow only reports


class Setting(NamedTuple):
    net: str
    sampler: str
    steps: int
    cfg: float
    noise_model: str = "independent"


SETTINGS = [
    Setting("fashion", "ddim", 25, 1.0),
    Setting("fashion", "ddim", 25, 3.0),
    Setting("fashion", "ddim", 25, 1.0, "shared"),
    *(Setting(net, sampler, 25, cfg) for net in ("emoji", "cifar-flow")
      for sampler in ("ddim", "dpm_solver_2") for cfg in (1.0, 3.0)),
    Setting("emoji", "ddim", 25, 1.0, "shared"),
    Setting("cifar-flow", "ddim", 25, 1.0, "shared"),
]


class Scene(NamedTuple):
    """All that an estimator needs."""

    denoiser: denoiser.Denoiser
    x: torch.Tensor
    sigmas: torch.Tensor
    rule: object

    @property
    def plain_evaluations(self) -> int:
        """Network evaluations of the plain sampler."""
        levels = [float(s) for s in self.sigmas]
        calls = sum(2 if self.rule(a, b).to_mid else 1 for a, b in zip(levels, levels[1:]))
        return calls * self.denoiser.plain_evaluations


@functools.cache
def _net_and_posterior(name: str):
    net = nets.load(name)
    with torch.no_grad():
        return net, denoiser.fit(name, net)


def scene(setting: Setting, rule: Callable[..., rules.Rule] | None = None) -> Scene:
    """rule: another than those of the settings here."""
    net, posterior = _net_and_posterior(setting.net)
    sigmas = denoiser.sigmas(net, setting.steps)
    x = sigmas[0] * torch.randn(IMAGES, net.channels, nets.SIZE, nets.SIZE,
                                generator=torch.Generator().manual_seed(100))
    rule = rule or (rules.ddim if setting.sampler == "ddim" else
                    functools.partial(rules.dpm_solver_2, flow=net.kind == "flow"))
    labels = torch.arange(IMAGES) % nets.CLASSES
    return Scene(denoiser.Denoiser(net, labels, setting.cfg, posterior), x, sigmas, rule)


def same_noise(given: Scene) -> ImageNoise:
    """What a stochastic rule adds to each image, the same whenever it is made."""
    return ImageNoise([7000 + i for i in range(len(given.x))], given.x.shape[1:])


def truth(setting: Setting, given: Scene, alone: bool = False):
    """alone: with the same noise of a stochastic sampler in all trajectories."""
    key = f"{setting} {nets.weights(setting.net).name} {IMAGES} {'alone ' * alone}v1"
    return brute_force.variance(key, given.denoiser, given.x, given.sigmas, given.rule,
                                setting.noise_model, TRAJECTORIES,
                                functools.partial(same_noise, given) if alone else None)


if __name__ == "__main__":  # python -m benchmarks.settings NET: the truths of one net
    import sys
    import time
    torch.set_num_threads(1)
    for chosen in SETTINGS:
        if chosen.net in sys.argv[1:]:
            started = time.time()
            truth(chosen, scene(chosen))
            print(chosen, f"{time.time() - started:.0f} s", flush=True)
