"""The last affine layer of each model family, and how its tokens lie on the latent.

A family is one row of FAMILIES. Nothing here reads weights: they may be quantised or offloaded.
"""

import math
from typing import NamedTuple

import comfy.utils
import torch

from ....bayesdiff_core.checks import BayesDiffError
from ....bayesdiff_core.posterior import LastLayer

GRID = "grid"  # a convolution on the latent's own grid
PQC = "pqc"  # tokens; inside a token the patch's positions first, then its channels
CPQ = "cpq"  # tokens; channels first, then positions
FIRST = "first"  # the image's tokens, then those of reference images
LAST = "last"  # tokens of the prompt and of reference images, then the image's


class Family(NamedTuple):
    name: str
    classes: tuple[str, ...]  # of the diffusion_model, under comfy.ldm
    layer: str  # path of the last affine layer under the diffusion_model
    layout: str
    place: str = FIRST  # of the image's tokens among those that enter the layer
    sign: int = 1  # of the layer's output in the model's
    patch: tuple[str, ...] = ("patch_size",)  # where the network keeps it: at once, or by axis


FAMILIES = [
    Family("Stable Diffusion U-Net (SD1.x, SD2, SDXL, SVD)",
           ("modules.diffusionmodules.openaimodel.UNetModel",), "out.2", GRID),
    Family("Stable Diffusion 3",
           ("modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper",), "final_layer.linear",
           PQC),
    Family("Flux, Flux2", ("flux.model.Flux",), "final_layer.linear", CPQ),
    Family("Chroma", ("chroma.model.Chroma",), "final_layer.linear", CPQ),
    Family("Lumina2, Z-Image", ("lumina.model.NextDiT",), "final_layer.linear", PQC, LAST, -1),
    Family("Qwen-Image", ("qwen_image.model.QwenImageTransformer2DModel",), "proj_out", CPQ),
    Family("Wan",
           ("wan.model.WanModel", "wan.model.VaceWanModel", "wan.model.CameraWanModel",
            "wan.model.HumoWanModel", "wan.model.WanModel_S2V",
            "wan.model_animate.AnimateWanModel"), "head.head", PQC),
    Family("HunyuanVideo, HunyuanImage", ("hunyuan_video.model.HunyuanVideo",),
           "final_layer.linear", CPQ),
    Family("Cosmos, Anima",
           ("cosmos.model.GeneralDIT", "cosmos.predict2.MiniTrainDIT", "anima.model.Anima"),
           "final_layer.linear", PQC, patch=("patch_temporal", "patch_spatial", "patch_spatial")),
    Family("PixArt", ("pixart.pixartms.PixArtMS",), "final_layer.linear", PQC),
    Family("AuraFlow", ("aura.mmdit.MMDiT",), "final_linear", PQC),
    Family("LTXV", ("lightricks.model.LTXVModel",), "proj_out", CPQ,
           patch=("patchifier.patch_size",)),
    Family("HiDream", ("hidream.model.HiDreamImageTransformer2DModel",), "final_layer.linear", PQC,
           sign=-1),
    Family("Krea2", ("krea2.model.SingleStreamDiT",), "last.linear", CPQ, LAST,
           patch=("patch", "patch")),
    Family("Kandinsky5", ("kandinsky5.model.Kandinsky5",), "out_layer.out_layer", CPQ),
]
# A subclass that has its own version of one of these may order its tokens in another way.
LAYOUT_METHODS = {"forward", "_forward", "forward_orig", "forward_core_with_concat", "unpatchify",
                  "decoder_head", "_process_output"}


class LastAffine(NamedTuple):
    """The last affine layer of one loaded model."""

    family: str
    path: str  # under the model: "diffusion_model. ..."
    layout: str
    patch: tuple[int, ...]  # latent positions a token covers, along each axis
    sign: int
    shape: LastLayer
    outputs: int  # of the layer at one position: all channels of a patch
    place: str = FIRST
    padded_to: int = 1  # the run of the image's tokens is padded to a multiple of this

    def crop(self, tokens: torch.Tensor, latent_shape: tuple[int, ...]) -> torch.Tensor:
        """The image's tokens alone, B x N x C: those of prompts, reference images and padding are
        dropped. A convolution's map stays as it is."""
        if self.layout == GRID:
            return tokens
        count = math.prod(self._token_grid(latent_shape))
        tokens = tokens.flatten(1, -2)  # Cosmos Predict2 and Kandinsky5 keep the grid's axes
        if tokens.shape[1] < count and tokens.shape[:2].numel() % count == 0:
            tokens = tokens.reshape(-1, count, tokens.shape[-1])  # Cosmos 1: frames in the batch
        given = tokens.shape[1]
        run = math.ceil(count / self.padded_to) * self.padded_to
        cropped_before = given == count
        start = 0 if self.place == FIRST or cropped_before else given - run
        if given < count or start < 0:
            raise BayesDiffError(f"{self.path} received {given} tokens, a latent of shape"
                                 f" {tuple(latent_shape)} needs {count}: this {self.family} variant"
                                 " is not supported. Use trajectory variance instead.")
        return tokens[:, start:start + count]

    def to_grid(self, tokens: torch.Tensor, latent_shape: tuple[int, ...]) -> torch.Tensor:
        """Layer output, or any map with a multiple of the patch as width -> B x C (x T) x H x W."""
        if self.layout == GRID:
            return tokens
        tokens = self.crop(tokens, latent_shape).unflatten(1, self._token_grid(latent_shape))
        patch = self._patch_on(latent_shape)
        axes = len(patch)
        inner = (-1, *patch) if self.layout == CPQ else (*patch, -1)
        tokens = tokens.unflatten(-1, inner)  # B x grid x inner
        channel, first = (1 + axes, 2 + axes) if self.layout == CPQ else (1 + 2 * axes, 1 + axes)
        pairs = [axis for i in range(axes) for axis in (1 + i, first + i)]
        grid = tokens.permute(0, channel, *pairs).flatten(2, 3)
        for i in range(1, axes):
            grid = grid.flatten(2 + i, 3 + i)
        # Padding is cropped as the model does, and channels (PixArt's variance) that it drops.
        return grid[(slice(None), *(slice(size) for size in latent_shape[1:]))]

    def _token_grid(self, latent_shape: tuple[int, ...]) -> list[int]:
        return [math.ceil(size / p)
                for size, p in zip(latent_shape[2:], self._patch_on(latent_shape))]

    def _patch_on(self, latent_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The patch along the latent's own axes: an image network may get frames, and the other way
        round; time is not patched then."""
        axes = len(latent_shape) - 2
        return ((1,) * axes + self.patch)[-axes:]


def last_layer_of(model) -> LastAffine:
    """The last affine layer of a MODEL; BayesDiffError if its family has no row."""
    network = model.get_model_object("diffusion_model")
    network = getattr(network, "_orig_mod", network)  # inside what torch.compile made of it
    family = _family(type(network))
    if family is None:
        raise BayesDiffError(f"the model's network is {_full_name(type(network))}, which has no"
                             " known last affine layer, so a posterior over its weights is not"
                             f" available. Known are: {', '.join(f.name for f in FAMILIES)}."
                             " Use trajectory variance instead: it works with every model.")
    layer = comfy.utils.get_attr(network, family.layer)
    path = f"diffusion_model.{family.layer}"
    bias = layer.bias is not None
    if family.layout == GRID:
        return LastAffine(family.name, path, GRID, (), family.sign,
                          LastLayer(layer.in_channels, layer.kernel_size[0], bias),
                          layer.out_channels)
    return LastAffine(family.name, path, family.layout, _patch_size(network, family.patch),
                      family.sign, LastLayer(layer.in_features, bias=bias), layer.out_features,
                      family.place, getattr(network, "pad_tokens_multiple", None) or 1)


def _family(network: type) -> Family | None:
    for ancestor in network.__mro__:
        for family in FAMILIES:
            if _full_name(ancestor) in [f"comfy.ldm.{path}" for path in family.classes]:
                return family
        if LAYOUT_METHODS & vars(ancestor).keys():
            return None
    return None


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _patch_size(network, names: tuple[str, ...]) -> tuple[int, ...]:
    sizes = [comfy.utils.get_attr(network, name) for name in names]
    if len(sizes) > 1:
        return tuple(sizes)
    return (sizes[0],) * 2 if isinstance(sizes[0], int) else tuple(sizes[0])
