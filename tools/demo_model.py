"""The demo model: a small class-conditional U-Net that draws emoji, as a real MODEL of the host.

A picture of 32 x 32 pixels is a latent of 12 channels on a 16 x 16 grid, each position holding its
2 x 2 pixels: four times cheaper to train and to run than pixels one by one, and nothing is lost.
A class is a vector of the file; it enters as `pooled_output` and as the one token of the prompt.
"No class", for guidance, is zeros: what the stock ConditioningZeroOut makes of any class.
"""

import json
from pathlib import Path
from typing import NamedTuple

import comfy.latent_formats
import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models_base
import torch
import torch.nn.functional as F
from safetensors import safe_open

PATCH = 2  # pixels of a latent position, along each axis
CHANNELS = 3 * PATCH**2
CLASS_WIDTH = 64
CLASS_KEY = "class_vectors"  # in the file, beside the network's own keys
UNET = {
    "image_size": 16, "in_channels": CHANNELS, "out_channels": CHANNELS, "model_channels": 64,
    "channel_mult": [1, 2, 2], "num_res_blocks": [1, 1, 1], "conv_resample": False,
    "transformer_depth": [0, 0, 1], "transformer_depth_output": [0, 0, 0, 0, 1, 1],
    "transformer_depth_middle": 1, "use_spatial_transformer": True, "context_dim": CLASS_WIDTH,
    "num_heads": 4, "num_head_channels": -1,
    "num_classes": "sequential", "adm_in_channels": CLASS_WIDTH,
}


class PixelPatches(comfy.latent_formats.LatentFormat):
    latent_channels = CHANNELS
    spacial_downscale_ratio = PATCH  # the host's spelling

    def __init__(self):
        # The preview: a position's colour is the mean of its pixels.
        self.latent_rgb_factors = [[float(channel // PATCH**2 == rgb) / PATCH**2
                                    for rgb in range(3)] for channel in range(CHANNELS)]


class DemoConfig(comfy.supported_models_base.BASE):
    unet_extra_config = {}
    latent_format = PixelPatches


class DemoModel(comfy.model_base.BaseModel):
    def encode_adm(self, **kwargs):
        pooled = kwargs.get("pooled_output")
        return torch.zeros(1, CLASS_WIDTH) if pooled is None else pooled


class PatchVAE(torch.nn.Module):
    """Pixels to patches and back."""

    def encode(self, pixels):
        return F.pixel_unshuffle(pixels, PATCH)

    def decode(self, latent):
        return F.pixel_shuffle(latent, PATCH)


class Demo(NamedTuple):
    model: comfy.model_patcher.ModelPatcher
    vae: comfy.sd.VAE
    classes: dict[str, list]  # name -> CONDITIONING
    no_class: list


def base_model(unet: dict) -> DemoModel:
    config = DemoConfig(unet)
    config.unet_config["dtype"] = torch.float32
    return DemoModel(config, comfy.model_base.ModelType.V_PREDICTION)


def conditioning(vector: torch.Tensor) -> list:
    """CONDITIONING of one class: its vector is both the pooled output and the only token."""
    return [[vector[None, None], {"pooled_output": vector[None]}]]


def vae() -> comfy.sd.VAE:
    """The host's pixel-space VAE, which maps [0, 1] to [-1, 1], made to pack patches too."""
    packed = comfy.sd.VAE(sd={"pixel_space_vae": torch.tensor(1.0)})
    packed.first_stage_model = PatchVAE()
    packed.latent_channels = CHANNELS
    packed.downscale_ratio = packed.upscale_ratio = PATCH
    return packed


def load(path: Path) -> Demo:
    with safe_open(path, framework="pt") as file:
        weights = {key: file.get_tensor(key).float() for key in file.keys()}
        about = json.loads(file.metadata()["bayesdiff_demo"])
    vectors = weights.pop(CLASS_KEY)
    model = base_model(about["unet"]).load_model_weights(weights)
    patcher = comfy.model_patcher.ModelPatcher(
        model, load_device=comfy.model_management.get_torch_device(),
        offload_device=comfy.model_management.unet_offload_device())
    classes = {name: conditioning(v) for name, v in zip(about["classes"], vectors, strict=True)}
    return Demo(patcher, vae(), classes, conditioning(torch.zeros(CLASS_WIDTH)))
