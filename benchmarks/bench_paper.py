"""Every sampler of the paper: each estimator against brute force. Writes results/paper.json.

A tiny net on drawn shapes, trained when the cache has none: about seven minutes in all on one core.
"""

import torch

from bayesdiff_core.noise_energy import NoiseEnergy
from bayesdiff_core.paper import rules
from benchmarks import images, nets, settings
from benchmarks.bench_accuracy import SEEDS, agreement, figures, moments, papers, with_deviations
from benchmarks.report import write
from benchmarks.settings import Setting

NET, STEPS = "shapes", 25
ESTIMATORS = {
    "Algorithm 1, S=10": papers(10, 0),
    "Algorithm 2, S=10, skip 4": papers(10, 4),
    "moments, 2 probes, every step": moments(2, 0),
    "moments, 2 probes, skip 4": moments(2, 4),
}
DEVIATIONS = {"deviations, half": with_deviations(0.5), "deviations, double": with_deviations(2.0)}


def main() -> None:
    torch.set_num_threads(1)
    net = nets.load(NET)
    with torch.no_grad():
        energy = noise_energy(net)
    samplers = {
        "DDIM": rules.ddim, "DPM-Solver-2": rules.dpm_solver_2, "DDPM": rules.ddpm,
        "Analytic-DPM": lambda s, n: rules.analytic_dpm(s, n, energy.at(s)),
        "reverse SDE": rules.reverse_sde_euler,
    }
    rows = []
    for name, rule in samplers.items():
        setting = Setting(NET, name, STEPS, 1.0)
        scene = settings.scene(setting, rule)
        noisy = any(rule(*pair).step.c for pair in zip(scene.sigmas.tolist(),
                                                       scene.sigmas.tolist()[1:-1]))
        jobs = [(False, ESTIMATORS if noisy else ESTIMATORS | DEVIATIONS)]
        jobs += [(True, DEVIATIONS)] if noisy else []
        for alone, estimators in jobs:
            truth, first, second = settings.truth(setting, scene, alone)
            halves = agreement(first, second)
            for estimator, estimate in estimators.items():
                rows.append({"sampler": name, "truth_of": "posterior alone" if alone else "all",
                             "truth_variance": round(truth.mean().item(), 6),
                             "estimator": estimator, **figures(scene, estimate, truth, halves)})
                print(*rows[-1].values(), flush=True)
    write("paper", rows, net=NET, steps=STEPS, images=settings.IMAGES,
          trajectories=settings.TRAJECTORIES, seeds=SEEDS)


def noise_energy(net, latents: int = 2048) -> NoiseEnergy:
    """As LLLA Fit collects it, from noised training images."""
    x_all, label = images.load(nets.NETS[NET][0], nets.SIZE)
    generator, energy = torch.Generator().manual_seed(8), NoiseEnergy()
    levels = nets.eps_sigmas()
    for start in range(0, latents, 64):
        x0 = x_all[start:start + 64]
        sigma = levels[torch.randint(1000, (64,), generator=generator)]
        noise = torch.randn(x0.shape, generator=generator)
        x_in, t = nets.inputs(net, x0 + sigma[:, None, None, None] * noise, sigma)
        energy.add(sigma, nets.output(net, net.features(x_in, t, label[start:start + 64])))
    return energy


if __name__ == "__main__":
    main()
