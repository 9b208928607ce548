"""Weights of 8 bits, as large models are shared: what the same numbers give in 16 bits."""

import folder_paths
import pytest
import torch
from safetensors.torch import load_file, save_file

import nodes as host_nodes
from tools import tiny_models

FP8 = torch.float8_e4m3fn
SCALE = 2.0 ** -6  # a power of two, so that 16 bits hold the scaled weights as they are


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Loads a tiny model with these weights by the stock loader."""
    folder = tmp_path_factory.mktemp("fp8")
    folder_paths.add_model_folder_path("diffusion_models", str(folder))

    def load(name, changed, kind="default"):
        source = tiny_models.write(name, folder)
        save_file(changed(load_file(source)), folder / f"fp8_{name}.safetensors")
        return host_nodes.UNETLoader().load_unet(f"fp8_{name}.safetensors", kind)[0]
    return load


def rounded(tensors):
    """By FP8's levels, in 16 bits."""
    return {key: tensor.to(FP8).half() for key, tensor in tensors.items()}


def scaled(tensors):
    """A scaled checkpoint, its last layer too."""
    found = {"scaled_fp8": torch.zeros(0, dtype=FP8)}
    for key, tensor in tensors.items():
        if tensor.ndim == 2:
            found[key] = (tensor / SCALE).to(FP8)
            found[key.replace(".weight", ".scale_weight")] = torch.tensor(SCALE)
        else:
            found[key] = tensor
    return found


def scaled_back(tensors):
    return {key: ((tensor / SCALE).to(FP8).float() * SCALE).half() if tensor.ndim == 2 else tensor
            for key, tensor in tensors.items()}


WAYS = {"cast by the loader": (rounded, "fp8_e4m3fn", rounded),
        "scaled": (scaled, "default", scaled_back)}


@pytest.mark.parametrize("name, way", [("flux", "cast by the loader"), ("flux", "scaled"),
                                       ("sd3", "cast by the loader"), ("sd3", "scaled"),
                                       ("sd15", "cast by the loader")])
@pytest.mark.parametrize("mode", ["free", "light"])
def test_picture_and_variance_are_those_of_the_same_weights_in_16_bits(
        case, pack, posterior_of, weights, name, way, mode):
    few, kind, same = WAYS[way]
    tried = case(name)
    llla = posterior_of(tried)

    def sampled(model):
        tried.model = model
        latent, variance, *_ = pack.samplers.BayesDiffKSampler.execute(
            model, *tried.options(), tried.denoise, llla, mode=mode, probe_levels=0,
            skip_interval=0,
            deviations=0, noise_model="independent", uncertainty_seed=5, keep_steps=2).args
        assert torch.equal(latent["samples"], tried.stock()["samples"])
        return latent["samples"], variance["samples"]

    (picture, variance), (expected, of_expected) = (
        sampled(weights(name, few, kind)), sampled(weights(name, same)))
    near, nearer = 1e-2 * expected.std(), 1e-4 * expected.std()
    assert torch.allclose(picture, expected, rtol=0, atol=nearer)
    assert torch.allclose(variance, of_expected, rtol=1e-3, atol=1e-3 * of_expected.mean())
    assert not torch.allclose(expected, sampled(case(name).model)[0], rtol=0, atol=near)
