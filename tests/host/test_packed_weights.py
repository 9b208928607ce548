"""Weights that stay packed and are unpacked by each layer when it is called, as ComfyUI-GGUF has
them: of `module.weight` only the shape is true. The ops here have that habit; they are none of its.
"""

from typing import NamedTuple

import comfy.ops
import comfy.sd
import folder_paths
import pytest
import torch
from safetensors.torch import load_file, save_file

import nodes as host_nodes
from tools import tiny_models

BLOCK = 32  # weights that share a scale


def packed(weight):
    """Rows of blocks: two bytes of scale, then a byte for each weight. Scales are powers of two, so
    that 16 bits hold the unpacked weights as they are."""
    blocks = weight.float().unflatten(1, (-1, BLOCK))
    scale = (blocks.abs().amax(-1, keepdim=True) / 127).log2().ceil().exp2().half()
    codes = (blocks / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return torch.cat([scale.view(torch.uint8), codes.view(torch.uint8)], dim=-1).flatten(1)


def unpacked(rows):
    blocks = rows.unflatten(1, (-1, 2 + BLOCK))
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    return (scale * blocks[..., 2:].contiguous().view(torch.int8)).flatten(1)


class Outline(NamedTuple):
    """All that can be asked of a weight."""

    shape: torch.Size


class PackedOps(comfy.ops.manual_cast):
    class Linear(comfy.ops.manual_cast.Linear):
        def __init__(self, in_features, out_features, bias=True, device=None, dtype=None):
            torch.nn.Module.__init__(self)
            self.in_features, self.out_features = in_features, out_features
            self.weight, self.bias = Outline(torch.Size([out_features, in_features])), None

        def _load_from_state_dict(self, state_dict, prefix, *args):
            self.rows = torch.nn.Parameter(packed(state_dict[f"{prefix}weight"]), False)
            if f"{prefix}bias" in state_dict:
                self.bias = torch.nn.Parameter(state_dict[f"{prefix}bias"], False)

        def forward(self, x):
            bias = None if self.bias is None else self.bias.to(x)
            return torch.nn.functional.linear(x, unpacked(self.rows).to(x), bias)


@pytest.fixture(scope="session")
def load_packed(tmp_path_factory):
    """The model with packed weights, and the same weights unpacked through the stock loader."""
    folder = tmp_path_factory.mktemp("packed")
    folder_paths.add_model_folder_path("diffusion_models", str(folder))

    def load(name):
        tensors = load_file(tiny_models.write(name, folder))
        model = comfy.sd.load_diffusion_model_state_dict(
            dict(tensors), model_options={"custom_operations": PackedOps})
        linear = {f"{path.removeprefix('diffusion_model.')}.weight"
                  for path, module in model.model.named_modules()
                  if isinstance(module, PackedOps.Linear)}
        assert linear
        save_file({key: unpacked(packed(tensor)).half() if key in linear else tensor
                   for key, tensor in tensors.items()}, folder / f"unpacked_{name}.safetensors")
        return model, host_nodes.UNETLoader().load_unet(f"unpacked_{name}.safetensors",
                                                        "default")[0]
    return load


def fitted(case, pack):
    settings = pack.fit.Settings("full", 2, "uniform", 0.2, 1)
    example = pack.fit.Example(case.random(*case.latent["samples"].shape, seed=4))
    return pack.fit.fit(case.model, [case.positive], [example], settings).llla


def sampled(case, pack, llla, options):
    """Picture and variance; the picture is the stock sampler's."""
    latent, variance, *_ = pack.samplers.BayesDiffKSampler.execute(
        case.model, *case.options(), case.denoise, llla, **options).args
    assert torch.equal(latent["samples"], case.stock()["samples"])
    return latent["samples"], variance["samples"]


@pytest.mark.parametrize("name", ["flux", "sd3"])
def test_fit_picture_and_variance_of_packed_weights_are_those_of_the_unpacked_ones(
        case, pack, ksampler, load_packed, name):
    case = case(name)
    before = case.stock()["samples"]
    case.model, unpacked_model = load_packed(name)
    _, layer = case.layer()
    assert not torch.is_tensor(layer.weight) and layer.rows.dtype == torch.uint8
    llla = fitted(case, pack)
    expected_norm = sum(tensor.double().square().sum().item()
                        for tensor in (unpacked(layer.rows), layer.bias))
    assert llla.about.weight_norm == pytest.approx(expected_norm, rel=1e-3)
    ways = [{**ksampler.options, "mode": mode} for mode in ("free", "light", "accurate")]
    found = [sampled(case, pack, llla, way) for way in ways]
    assert not layer._forward_hooks

    case.model = unpacked_model
    expected_llla = fitted(case, pack)
    assert torch.allclose(llla.ggn, expected_llla.ggn, rtol=1e-3,
                          atol=1e-3 * expected_llla.ggn.diagonal().mean())
    for way, (picture, variance) in zip(ways, found, strict=True):
        expected, of_expected = sampled(case, pack, expected_llla, way)
        assert torch.allclose(picture, expected, rtol=0, atol=1e-4 * expected.std())
        assert torch.allclose(variance, of_expected, rtol=1e-2, atol=1e-3 * of_expected.mean())
    assert not torch.allclose(picture, before, rtol=0, atol=1e-3 * picture.std())
