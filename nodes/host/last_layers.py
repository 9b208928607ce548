"""The last affine layer of each model family, and how its tokens lie on the latent.

A family is one row of FAMILIES. Nothing here reads weights: they may be quantised or offloaded.
"""

import math
from typing import NamedTuple

import comfy.utils
import torch

from ...bayesdiff_core.checks import BayesDiffError
from ...bayesdiff_core.posterior import LastLayer

GRID = "grid"  # a convolution on the latent's own grid
PQC = "pqc"  # tokens; inside a token the patch's positions first, then its channels
CPQ = "cpq"  # tokens; channels first, then positions


class Family(NamedTuple):
    name: str
    classes: tuple[str, ...]  # of the diffusion_model
    layer: str  # path of the last affine layer under the diffusion_model
    layout: str
    sign: int = 1  # of the layer's output in the model's


FAMILIES = [
    Family("Stable Diffusion U-Net (SD1.x, SD2, SDXL)",
           ("comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel",), "out.2", GRID),
    Family("Stable Diffusion 3",
           ("comfy.ldm.modules.diffusionmodules.mmdit.MMDiT",
            "comfy.ldm.modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper"),
           "final_layer.linear", PQC),
    Family("Flux", ("comfy.ldm.flux.model.Flux",), "final_layer.linear", CPQ),
    Family("Wan", ("comfy.ldm.wan.model.WanModel",), "head.head", PQC),
]
# A subclass that has its own version of one of these may order its tokens in another way.
LAYOUT_METHODS = {"forward", "_forward", "forward_orig", "forward_core_with_concat", "unpatchify"}


class LastAffine(NamedTuple):
    """The last affine layer of one loaded model."""

    family: str
    path: str  # under the model: "diffusion_model. ..."
    layout: str
    patch: tuple[int, ...]  # latent positions a token covers, along each axis
    sign: int
    shape: LastLayer

    def crop(self, tokens: torch.Tensor, latent_shape: tuple[int, ...]) -> torch.Tensor:
        """Drops tokens that are not of the image: reference images come after it."""
        if self.layout == GRID:
            return tokens
        count = math.prod(self._token_grid(latent_shape))
        if tokens.shape[1] < count:
            raise BayesDiffError(f"{self.path} received {tokens.shape[1]} tokens, a latent of shape"
                                 f" {tuple(latent_shape)} needs {count}: this {self.family} variant"
                                 " is not supported. Use trajectory variance instead.")
        return tokens[:, :count]

    def to_grid(self, tokens: torch.Tensor, latent_shape: tuple[int, ...]) -> torch.Tensor:
        """Layer output, or any map with a multiple of the patch as width -> B x C (x T) x H x W."""
        if self.layout == GRID:
            return tokens
        tokens = self.crop(tokens, latent_shape).unflatten(1, self._token_grid(latent_shape))
        axes = len(self.patch)
        inner = (-1, *self.patch) if self.layout == CPQ else (*self.patch, -1)
        tokens = tokens.unflatten(-1, inner)  # B x grid x inner
        channel, first = (1 + axes, 2 + axes) if self.layout == CPQ else (1 + 2 * axes, 1 + axes)
        pairs = [axis for i in range(axes) for axis in (1 + i, first + i)]
        grid = tokens.permute(0, channel, *pairs).flatten(2, 3)
        for i in range(1, axes):
            grid = grid.flatten(2 + i, 3 + i)
        return grid[(..., *(slice(size) for size in latent_shape[2:]))]  # the model pads, we crop

    def _token_grid(self, latent_shape: tuple[int, ...]) -> list[int]:
        return [math.ceil(size / p) for size, p in zip(latent_shape[2:], self.patch)]


def last_layer_of(model) -> LastAffine:
    """The last affine layer of a MODEL; BayesDiffError if its family has no row."""
    network = model.get_model_object("diffusion_model")
    family = _family(type(network))
    if family is None:
        raise BayesDiffError(f"the model's network is {_full_name(type(network))}, which has no"
                             " known last affine layer, so a posterior over its weights is not"
                             f" available. Known are: {', '.join(f.name for f in FAMILIES)}."
                             " Use trajectory variance instead: it works with every model.")
    layer = comfy.utils.get_attr(network, family.layer)
    patch = () if family.layout == GRID else _patch_size(network)
    return LastAffine(family.name, f"diffusion_model.{family.layer}", family.layout, patch,
                      family.sign, _shape(layer, family.layout))


def _family(network: type) -> Family | None:
    for ancestor in network.__mro__:
        for family in FAMILIES:
            if _full_name(ancestor) in family.classes:
                return family
        if LAYOUT_METHODS & vars(ancestor).keys():
            return None
    return None


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _patch_size(network) -> tuple[int, ...]:
    size = network.patch_size
    return (size, size) if isinstance(size, int) else tuple(size)


def _shape(layer, layout: str) -> LastLayer:
    bias = layer.bias is not None
    if layout == GRID:
        return LastLayer(layer.in_channels, layer.kernel_size[0], bias)
    return LastLayer(layer.in_features, bias=bias)
