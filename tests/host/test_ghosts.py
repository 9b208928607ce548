"""Deviations ride along the host's samplers: the picture stays, the variance is true."""

from types import SimpleNamespace

import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes

SAMPLERS = [name for name in comfy.samplers.SAMPLER_NAMES if name != "dpm_adaptive"]


@pytest.fixture(scope="session")
def posterior_of(pack):
    """A posterior from the features of a few calls; temperature 0 makes it certain."""
    made = {}

    def fit(case, temperature=1.0):
        key = case.name, temperature
        if key not in made:
            record, layer = case.layer()
            statistics = pack.core.posterior.FeatureStatistics(record.shape)
            chunks = [chunk for call in case.observed()[1] for chunk in call.chunks]
            for chunk in chunks:
                statistics.add(chunk.features)
            about = SimpleNamespace(family=record.family, layer=record.path, shape=record.shape,
                                    outputs=record.outputs)
            fingerprint = pack.layer_probe.fingerprint(layer, record, chunks[0].features)
            posterior = pack.core.posterior.posterior(statistics, temperature=temperature)
            made[key] = SimpleNamespace(about=about, posterior=posterior, fingerprint=fingerprint)
        return made[key]

    return fit


def ghosts(pack, case, llla, share=1.0, keep_steps=10, **options):
    batch = len(case.latent["samples"])
    seeds = [pack.core.trajectory.mixed_seed(0, i)
             for i in case.latent.get("batch_index") or range(batch)]
    predictor = pack.predicting.Predictor(case.model, llla)
    return pack.ghosts.Ghosts(predictor, seeds, keep_steps, share=share, **options)


def run(pack, case, llla, **options):
    watcher = ghosts(pack, case, llla, **options)
    return case.watched(watcher), watcher


@pytest.mark.parametrize("cfg", [1.0, 4.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_picture_is_the_stock_samplers_and_a_certain_posterior_gives_zero(case, pack, posterior_of,
                                                                         name, sampler, cfg):
    case = case(name)
    case.cfg, case.sampler, case.steps = cfg, sampler, 4
    case.latent["samples"] = case.latent["samples"].repeat_interleave(2, dim=0)
    stock = case.stock()["samples"]
    assert torch.isfinite(stock).all()
    for temperature in (0.0, 1.0):
        result, watcher = run(pack, case, posterior_of(case, temperature))
        assert torch.equal(result["samples"], stock)
        variance = watcher.trajectory.latent_variance()
        if temperature:
            assert variance.min() >= 0 and torch.isfinite(variance).all() and variance.max() > 0
        else:
            assert variance.count_nonzero() == 0
