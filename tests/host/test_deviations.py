"""Deviations ride along the host's samplers: the picture stays, the variance is true."""

import comfy.samplers
import pytest
import torch
from comfy_extras import nodes_custom_sampler as stock_nodes

# The others round, or choose their steps, by the whole of their batch.
SAMPLERS = [name for name in comfy.samplers.SAMPLER_NAMES
            if name != "dpm_adaptive" and not name.startswith(("sa_solver", "uni_pc"))]


def riding(pack, case, llla, share=1.0, keep_steps=10, **options):
    batch = len(case.latent["samples"])
    seeds = [pack.core.trajectory.mixed_seed(0, i)
             for i in case.latent.get("batch_index") or range(batch)]
    predictor = pack.predictor.Predictor(case.model, llla)
    request = pack.deviations.Request(share, **options)
    return pack.sampling.Observer(
        lambda run: pack.deviations.observe(run, predictor, seeds, keep_steps, request),
        predictor.tap)


@pytest.mark.parametrize("cfg", [1.0, 4.0])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_picture_is_the_stock_samplers_and_a_certain_posterior_gives_zero(case, pack, posterior_of,
                                                                         name, sampler, cfg):
    case = case(name)
    case.cfg, case.sampler, case.steps = cfg, sampler, 4
    if name == "sd15":
        case.latent["samples"] = case.latent["samples"][..., :4, :5]
    case.latent["samples"] = case.latent["samples"].repeat_interleave(2, dim=0)
    stock = case.stock()["samples"]
    assert torch.isfinite(stock).all()
    for temperature in (0.0, 1.0):
        result, seen = case.run_with(riding(pack, case, posterior_of(case, temperature)))
        assert torch.equal(result["samples"], stock)
        variance = seen.trajectory.latent_variance()
        if temperature:
            assert variance.min() >= 0 and torch.isfinite(variance).all() and variance.max() > 0
        else:
            assert variance.count_nonzero() == 0


# Levels at which every call is a node, so that nothing is carried between them.
LEVELS = {"sd15": torch.tensor([3.0, 2.2, 1.5, 1.0, 0.6, 0.3, 0.0]),
          "sd3": torch.tensor([0.74, 0.65, 0.55, 0.45, 0.35, 0.22, 0.0])}


def custom(case, sampler, cfg=4.0):
    """Inputs of SamplerCustomAdvanced."""
    guider = stock_nodes.CFGGuider.execute(case.model, case.positive, case.negative, cfg)[0]
    return (guider, stock_nodes.RandomNoise.execute(7)[0], comfy.samplers.sampler_object(sampler),
            LEVELS[case.name], case.latent)


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm_2", "dpmpp_2m", "lms", "deis",
                                     "res_multistep", "euler_ancestral", "dpmpp_2m_sde", "er_sde",
                                     "lcm", "euler_cfg_pp", "dpmpp_2m_cfg_pp",
                                     "euler_ancestral_cfg_pp", "gradient_estimation"])
@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_deviations_end_where_the_stock_sampler_ends_with_changed_weights(
        case, pack, posterior_of, name, sampler):
    """Shared weights, measured at every call: each deviation is a run with changed last-layer
    weights."""
    case = case(name)
    case.latent["samples"] = case.latent["samples"][..., :4, :5]
    llla = posterior_of(case, 1e-7)  # small, as changed weights do not act linearly
    guider, *rest = custom(case, sampler)
    observer = riding(pack, case, llla, noise_model="shared", probe_levels=100, deviations=2,
                     weight_seed=3)
    ours, seen = pack.sampling.sample_guider(guider, observer, *rest)
    ours, ended = ours["samples"], seen.trajectory.deviations[-1] * seen.trajectory.scale

    record, layer = case.layer()
    draws = llla.posterior.draws(2, record.outputs, torch.Generator().manual_seed(3))
    for draw, found in zip(draws, ended):
        handle = layer.register_forward_hook(
            lambda module, inputs, output, draw=draw: output + change(record, inputs[0], draw))
        changed = stock_nodes.SamplerCustomAdvanced.execute(rest[0], guider, *rest[1:])[0]
        handle.remove()
        true = changed["samples"] - ours
        # dpm_2 calls the model between two levels too, where nothing is measured
        assert (found - true).norm() < (0.2 if sampler == "dpm_2" else 0.05) * true.norm()


def change(record, features, draw):
    """What weights that differ by `draw` add to the layer's output."""
    weight, bias = draw[:, :-1], draw[:, -1]
    if not record.shape.kernel:
        return torch.nn.functional.linear(features, weight, bias)
    weight = weight.unflatten(1, (record.shape.features, 3, 3))
    return torch.nn.functional.conv2d(features, weight, bias, padding=1)
