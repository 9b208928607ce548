"""What the tap reads is what enters the last layer, and maps to the model's output."""

import pytest
import torch

MODELS = ["sd15", "sd15_v", "sd3", "flux", "flux2", "wan", "hunyuan_video"]


def denoised_from(case, call, features):
    """The model's result, computed anew from features with the layer's own weights."""
    record, layer = case.layer()
    output = layer(features)
    grid = record.sign * record.to_grid(output, call.x.shape)
    sampling = case.model.get_model_object("model_sampling")
    return sampling.calculate_denoised(call.sigma, grid, call.x)


@pytest.mark.parametrize("name", MODELS)
def test_layer_applied_to_the_features_gives_the_models_output(case, name):
    case = case(name)
    case.cfg = 1.0
    for call in case.observed()[1]:
        (chunk,) = call.chunks
        assert chunk.branch == 0 and chunk.latent_shape == call.x.shape
        torch.testing.assert_close(denoised_from(case, call, chunk.features), call.denoised,
                                   rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("other_length", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_layer_applied_to_guided_features_gives_the_guided_output(case, pack, name, other_length):
    case = case(name)
    if other_length:
        case.negative = case.prompt(2, tokens=9)
    case.latent["samples"] = case.latent["samples"].repeat_interleave(2, dim=0)
    for call in case.observed()[1]:
        features = pack.feature_tap.guided(call.chunks, case.cfg, call.x.shape)
        torch.testing.assert_close(denoised_from(case, call, features), call.denoised,
                                   rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_shape_record_fits_the_features_and_the_module(case, name):
    case = case(name)
    record, layer = case.layer()
    features = case.observed()[1][0].chunks[0].features
    channels = features.shape[1 if record.shape.kernel else -1]
    assert record.shape.features == channels
    assert record.shape.inputs == layer.weight[0].numel() + (layer.bias is not None)


def test_reference_image_tokens_are_left_out(case, pack):
    case = case("flux")
    case.positive[0][1]["reference_latents"] = [case.random(1, 16, 6, 6, seed=9)]
    stock, (ours, calls) = case.stock(), case.observed()
    assert torch.equal(stock["samples"], ours["samples"])
    for call in calls:
        features = pack.feature_tap.guided(call.chunks, case.cfg, call.x.shape)
        assert features.shape[1] == 5 * 4
        torch.testing.assert_close(denoised_from(case, call, features), call.denoised,
                                   rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_slope_is_the_derivative_of_denoised_by_network_output(case, pack, name):
    sampling = case(name).model.get_model_object("model_sampling")
    sigma = torch.tensor([0.3, 0.9])
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    output = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    denoised = sampling.calculate_denoised(sigma, output, x)
    (derivative,) = torch.autograd.grad(denoised.sum(), output)
    torch.testing.assert_close(pack.parameterization.slope(sampling, sigma).double(),
                               derivative[:, 0, 0, 0], rtol=1e-5, atol=1e-6)


def test_prompts_that_ran_on_two_devices_are_combined_where_the_latent_is(pack):
    """As with the host's MultiGPU CFG Split; `meta` is a device that every machine has."""
    chunk = pack.feature_tap.Chunk
    shape = (1, 4, 2, 2)
    cond = chunk(1, torch.ones(shape, device="meta", dtype=torch.float16), shape)
    uncond = chunk(0, torch.ones(shape), shape)
    combined = pack.feature_tap.guided((cond, uncond), 4.0, shape, torch.device("meta"))
    assert combined.device.type == "meta" and combined.shape == shape
