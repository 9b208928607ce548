"""The truth that estimators are measured against: many trajectories and their empirical variance.

independent: the noise prediction gets fresh noise of variance gamma^2 at every call (the paper's).
shared: one draw of the last layer's weights for the whole trajectory (what a posterior means).
Stochastic samplers add noise of their own: fresh in every trajectory, as the paper counts it, or
the same in all, so that the variance is the posterior's alone.
"""

import hashlib
from collections.abc import Callable

import torch
from safetensors.torch import load_file, save_file

from bayesdiff_core.iteration import Noise
from bayesdiff_core.posterior import Predictive
from benchmarks.denoiser import Denoiser
from tools.places import cache_folder

NOISE_MODELS = ("independent", "shared")
AT_ONCE = 16  # trajectories an image


@torch.no_grad()
def trajectories(denoiser: Denoiser, x, sigmas, rule, noise_model: str, count: int,
                 seed: int = 5, same_noise: Callable[[], Noise] | None = None) -> torch.Tensor:
    """x_0 of `count` trajectories from the same start: count x B x C x H x W. same_noise makes the
    sampler's own noise, from its start."""
    generator = torch.Generator().manual_seed(seed)
    results, levels, batch = [], [float(s) for s in sigmas], len(x)
    for _ in range(0, count, AT_ONCE):
        draws = None
        if noise_model == "shared":
            outputs = denoiser.with_posterior(x[:1].repeat(batch, 1, 1, 1), levels[0])[1].outputs
            draws = denoiser.posterior.draws(AT_ONCE, outputs, generator)

        def predict(at, sigma, draws=draws):
            d, predictive = denoiser.with_posterior(at, sigma)
            if draws is None:
                noise = torch.randn(d.shape, generator=generator)
                return d + predictive.variance().sqrt() * noise
            return d + _own_draw(predictive, draws, batch)

        state = x.repeat(AT_ONCE, 1, 1, 1)
        own = same_noise() if same_noise else None
        for sigma, sigma_next in zip(levels, levels[1:]):
            now = rule(sigma, sigma_next)
            d = predict(state, sigma)
            if now.to_mid:
                d = predict(now.to_mid.mean(state, d), now.sigma_mid)
            state = now.step.mean(state, d)
            if now.step.c:
                drawn = own(x).repeat(AT_ONCE, 1, 1, 1) if own else \
                    torch.randn(state.shape, generator=generator)
                state = state + now.step.c * drawn
        results.append(state.unflatten(0, (AT_ONCE, batch)))
    return torch.cat(results)


def _own_draw(predictive: Predictive, draws, batch: int) -> torch.Tensor:
    """Trajectory k of every image moves by draw k."""
    parts = predictive.phi.split(batch)
    return torch.cat([predictive._replace(phi=phi).deviations(draw[None])[0]
                      for phi, draw in zip(parts, draws)])


def variance(key: str, denoiser: Denoiser, x, sigmas, rule, noise_model: str, count: int,
             same_noise: Callable[[], Noise] | None = None
             ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Var(x_0) from all trajectories and from each half of them. Kept in the cache under `key`,
    which must name everything that it depends on."""
    digest = hashlib.sha256(f"{key} {noise_model} {count}".encode()).hexdigest()[:16]
    kept = cache_folder() / "truth" / f"{digest}.safetensors"
    if not kept.exists():
        ends = trajectories(denoiser, x, sigmas, rule, noise_model, count, same_noise=same_noise)
        halves = ends.chunk(2)
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file({"all": ends.var(0), "first": halves[0].var(0), "second": halves[1].var(0)},
                  kept.with_suffix(".part"), metadata={"key": key})
        kept.with_suffix(".part").replace(kept)
    parts = load_file(kept)
    return parts["all"], parts["first"], parts["second"]
