"""The core's rules walk the paths of the host's own samplers."""

import pytest
import torch
from comfy.k_diffusion import sampling

from bayesdiff_core.paper import rules

FALLING = torch.tensor([10.0, 4.0, 1.5, 0.6, 0.2, 0.05, 0.0], dtype=torch.float64)
FLOW = torch.linspace(1, 0, 7, dtype=torch.float64)


def predict(x, sigma):
    """Any smooth noise prediction that mixes neighbors will do."""
    return torch.tanh(x / (1 + sigma)) + 0.3 * x.roll(1, dims=-1) / (1 + sigma)


def path(rule, x, sigmas):
    for sigma, sigma_next in zip(sigmas.tolist(), sigmas.tolist()[1:]):
        now = rule(sigma, sigma_next)
        d = predict(x, sigma)
        if now.to_mid:
            d = predict(now.to_mid.mean(x, d), now.sigma_mid)
        x = now.step.mean(x, d)
    return x


@pytest.mark.parametrize("rule, sampler, sigmas, options", [
    (rules.ddim, sampling.sample_euler, FALLING, {}),
    (rules.dpm_solver_2, sampling.sample_dpm_2, FALLING, {}),
    (rules.ddpm, sampling.sample_ddpm, FALLING, {"noise_sampler": lambda *_: 0.0}),
    (rules.flow_euler, sampling.sample_euler, FLOW, {}),
])
def test_mean_path_equals_the_hosts_sampler(rule, sampler, sigmas, options):
    def model(x, sigma, **_):
        return x - float(sigma[0]) * predict(x, float(sigma[0]))

    x = sigmas[0] * torch.randn(2, 3, 8, 8, dtype=torch.float64,
                                generator=torch.Generator().manual_seed(0))
    theirs = sampler(model, x, sigmas, disable=True, **options)
    assert torch.allclose(path(rule, x, sigmas), theirs, rtol=1e-6, atol=1e-9)
