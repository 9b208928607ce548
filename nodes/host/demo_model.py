"""The demo model: a small class-conditional U-Net, as a real MODEL of the host.

A picture of 64 x 64 pixels is a latent of 48 channels on a 16 x 16 grid: sixteen times cheaper to
train and to run than pixels one by one, and nothing is lost. Of each color, 2 x 2 pixels become
their mean and three differences, and 2 x 2 of these the same again. The pixels themselves would
do, but their differences are small beside the mean: as channels of their own they are drawn as
carefully, which leaves no dot texture.
A class is a vector of the file; it enters as `pooled_output` and as the one token of the prompt.
"No class", for guidance, is zeros: what the stock ConditioningZeroOut makes of any class.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import comfy.latent_formats
import comfy.model_base
import comfy.model_management
import comfy.model_patcher
import comfy.ops
import comfy.sd
import comfy.supported_models_base
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open

from ...bayesdiff_core.checks import BayesDiffError

LEVELS = 2  # how often 2 x 2 are packed into one
PATCH = 2**LEVELS  # pixels of a latent position, along each axis
CHANNELS = 3 * PATCH**2
GROUPS = 4  # of channels that are normalized together
CLASS_WIDTH = 64
CLASS_KEY = "class_vectors"  # in the file, beside the network's own keys
ABOUT_KEY = "bayesdiff_demo"  # in its header


class PixelPatches(comfy.latent_formats.LatentFormat):
    latent_channels = CHANNELS
    spacial_downscale_ratio = PATCH  # the host's spelling

    def __init__(self):
        # The preview: a position's color is the mean of its pixels.
        self.latent_rgb_factors = [[float(channel == rgb * PATCH**2) for rgb in range(3)]
                                   for channel in range(CHANNELS)]


class FewGroups(comfy.ops.manual_cast):
    """The host normalizes 32 groups of channels, in a network this narrow two channels each: no
    magnitude would come through, and the network would paint a bright spot to tell one."""

    class GroupNorm(comfy.ops.manual_cast.GroupNorm):
        def __init__(self, num_groups, num_channels, **kwargs):
            super().__init__(GROUPS, num_channels, **kwargs)


class DemoConfig(comfy.supported_models_base.BASE):
    unet_extra_config = {}
    latent_format = PixelPatches
    custom_operations = FewGroups


class DemoNetwork(comfy.model_base.BaseModel):
    def encode_adm(self, **kwargs):
        pooled = kwargs.get("pooled_output")
        return torch.zeros(1, CLASS_WIDTH) if pooled is None else pooled


class PatchVAE(torch.nn.Module):
    """Pixels to patches and back: the mean of four, then left-right, top-bottom, diagonal."""

    # Rows are orthogonal and of length two: the way back is the transpose over four.
    SIGNS = torch.tensor([[1., 1., 1., 1.], [1., -1., 1., -1.], [1., 1., -1., -1.],
                          [1., -1., -1., 1.]])
    # Of what the second packing makes (columns) of each channel of the first (rows): on drawings
    # all are then about as wide as one another, the finest a little less.
    SCALE = torch.tensor([[1 / 16, 1 / 4, 1 / 4, 1 / 2], [1 / 2] * 4, [1 / 2] * 4, [1.] * 4])

    def encode(self, latent):
        for _ in range(LEVELS):
            patches = F.pixel_unshuffle(latent, 2).unflatten(1, (-1, 4))
            latent = torch.einsum("ij,bcjhw->bcihw", self.SIGNS.to(latent), patches).flatten(1, 2)
        return latent * self._scale(latent)

    def decode(self, latent):
        latent = latent / self._scale(latent)
        for _ in range(LEVELS):
            patches = latent.unflatten(1, (-1, 4))
            patches = torch.einsum("ji,bcjhw->bcihw", self.SIGNS.to(latent) / 4, patches)
            latent = F.pixel_shuffle(patches.flatten(1, 2), 2)
        return latent

    def _scale(self, latent):
        return self.SCALE.to(latent).flatten().repeat(3)[:, None, None]


def network(unet: dict) -> DemoNetwork:
    config = DemoConfig(unet)
    config.unet_config["dtype"] = torch.float32
    return DemoNetwork(config, comfy.model_base.ModelType.V_PREDICTION)


def model(path: Path) -> comfy.model_patcher.ModelPatcher:
    with _opened(path) as file:
        weights = {key: file.get_tensor(key).float() for key in file.keys() if key != CLASS_KEY}
        unet = _about(file)["unet"]
    return comfy.model_patcher.ModelPatcher(
        network(unet).load_model_weights(weights),
        load_device=comfy.model_management.get_torch_device(),
        offload_device=comfy.model_management.unet_offload_device())


def vae() -> comfy.sd.VAE:
    """The host's pixel-space VAE, which maps [0, 1] to [-1, 1], made to pack patches too."""
    packed = comfy.sd.VAE(sd={"pixel_space_vae": torch.tensor(1.0)})
    packed.first_stage_model = PatchVAE()
    packed.latent_channels = CHANNELS
    packed.downscale_ratio = packed.upscale_ratio = PATCH
    return packed


def class_names(path: Path) -> list[str]:
    """From the file's header: no tensor is read."""
    with _opened(path) as file:
        return list(_about(file)["classes"])


def conditioning(path: Path, name: str | None) -> list:
    """CONDITIONING of one class: its vector is both the pooled output and the only token."""
    with _opened(path) as file:
        names = list(_about(file)["classes"])
        vectors = file.get_tensor(CLASS_KEY).float()
    if name is None:
        vector = torch.zeros(CLASS_WIDTH)
    elif name in names:
        vector = vectors[names.index(name)]
    else:
        raise BayesDiffError(f"the demo model has no class {name!r}: choose one of"
                             f" {', '.join(names)}.")
    return [[vector[None, None], {"pooled_output": vector[None]}]]


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        what = f"cannot be read ({error})" if path.is_file() else "is not there"
        raise BayesDiffError(f"the demo model's file {path.name} {what}: it belongs in the folder"
                             f" {path.parent.name} of this pack. Install the pack again, or copy"
                             " the file from its repository.") from error


def _about(file: safe_open) -> dict:
    return json.loads((file.metadata() or {})[ABOUT_KEY])
