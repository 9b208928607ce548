"""Where the model was unsure, as colors over the picture and as a mask."""

import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import comfy.model_management
import comfy.utils
import numpy as np
import torch
import torch.nn.functional as F
from comfy_api.latest import io
from PIL import Image, ImageDraw, ImageFont

from ..bayesdiff_core import heatmap as maps
from ..bayesdiff_core.checks import BayesDiffError
from ..bayesdiff_core.scores import DOUBT, doubt_of
from ..bayesdiff_core.smoothing import without_low_pass
from ..bayesdiff_core.trajectory import mixed_seed
from .files import painted_file
from .metadata import reported
from .pictures import viewer
from .sockets import TRAJECTORY, check_choices, latent_of, trajectory_of

VARIANCE = "variance"


class BayesDiffHeatmap(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="BayesDiff_UncertaintyHeatmap",
            display_name="Uncertainty Heatmap",
            category="bayesdiff",
            description="Shows where the picture is most likely wrong, as colors over it and as a"
                        " mask.",
            inputs=[
                io.Latent.Input("variance", optional=True, tooltip=(
                    "Variance of the latent. Link this or a trajectory; if both are linked, the"
                    " trajectory is used.")),
                TRAJECTORY.Input("trajectory", optional=True, tooltip=(
                    "The run to show, from a BayesDiff sampler or Trajectory Load.")),
                io.Latent.Input("samples", optional=True, tooltip=(
                    "The sampled latent. With a variance it is needed to decode the picture; a"
                    " trajectory has its own.")),
                io.Vae.Input("vae", optional=True, tooltip=(
                    "Decodes the picture if no image is linked, and the draws of method pixel.")),
                io.Image.Input("image", optional=True, tooltip=(
                    "The picture to put the colors on, one per latent, any size. If not linked, the"
                    " VAE decodes it.")),
                io.Combo.Input("color_map", options=maps.COLOR_MAPS, default=maps.GLOW, tooltip=(
                    "glow: clear where the model is sure, red where it is unsure. The others color"
                    " every pixel, from lowest to highest.")),
                io.Float.Input("opacity", default=0.8, min=0.0, max=1.0, step=0.05, tooltip=(
                    "How strongly the colors cover the picture, 0 (not at all) to 1 (fully).")),
                io.Float.Input("mask_threshold", default=95.0, min=0.0, max=100.0, step=0.001,
                               tooltip=(
                    "Everything above it is masked. Percentile, 0 to 100: 95 masks the highest 5 %"
                    " of the picture. Value: as on the color bar.")),
                io.Combo.Input("mask_by", options=["percentile", "value"], default="percentile",
                               advanced=True, tooltip=(
                    "What mask_threshold is: a percentile of the map, or a value as on the color"
                    " bar.")),
                io.Int.Input("grow", default=0, min=-512, max=512, advanced=True, tooltip=(
                    "Grows the mask by this many pixels, -512 to 512. Below 0 it shrinks.")),
                io.Float.Input("blur", default=0.0, min=0.0, max=128.0, step=0.5,
                               advanced=True, tooltip=(
                    "Softens the edges of the mask, 0 to 128 pixels (standard deviation).")),
                io.Combo.Input("method", options=["fast", "pixel"], default="fast",
                               advanced=True, tooltip=(
                    "fast: enlarges the map of the latent, no decoding. pixel: decodes several"
                    " draws and compares their pixels; one VAE decode per draw.")),
                io.Int.Input("draws", default=8, min=2, max=256, advanced=True, tooltip=(
                    "Method pixel: draws to decode, 2 to 256. Higher is more precise and slower.")),
                io.Boolean.Input("remove_low_pass", default=False, advanced=True, tooltip=(
                    "Method pixel: ignores shifts of color or brightness as a whole.")),
                io.Int.Input("seed", default=0, min=0, max=2**64 - 1, control_after_generate=False,
                             advanced=True,
                             tooltip="Method pixel: seed of the draws, 0 to 2^64 - 1."),
                io.Int.Input("step", default=-1, min=-1, max=10000, advanced=True, tooltip=(
                    "Which step of the trajectory to show, one that it keeps. -1 is the result, 0"
                    " the start.")),
                io.Combo.Input("value_range", options=["per image", "shared"], default="per image",
                               advanced=True, tooltip=(
                    "per image: each image has its own color range and mask percentile. shared: one"
                    " for the whole batch, so that images compare.")),
                io.Float.Input("clip_percentile", default=99.0, min=50.0, max=100.0, step=0.1,
                               advanced=True, tooltip=(
                    "Everything above this percentile, 50 to 100, gets the last color. Does not"
                    " change the mask.")),
                io.Boolean.Input("color_bar", default=True, advanced=True, tooltip=(
                    "Adds a strip with the colors and their values to the heatmap.")),
                io.Combo.Input("map", options=[DOUBT, VARIANCE], default=DOUBT, optional=True,
                               advanced=True, tooltip=(
                    "What to show of a trajectory. doubt: the same measure as the score. variance:"
                    " that of the latent. Earlier steps and method pixel always show the"
                    " variance.")),
                io.String.Input("painted_mask", default="", optional=True, advanced=True, tooltip=(
                    "Masks you painted with Edit the mask, as KEY=FILE. Leave empty to use the"
                    " map's own mask.")),
            ],
            outputs=[
                io.Image.Output(display_name="overlay", tooltip=(
                    "The picture with the colors on it, at its own size.")),
                io.Image.Output(display_name="heatmap", tooltip=(
                    "The colors alone, with the color bar if it is on.")),
                io.Mask.Output(display_name="mask", tooltip=(
                    "1 where the map is above the threshold, at the size of the image. For Repair"
                    " Where Unsure, inpainting and detailers.")),
            ],
            is_output_node=True,
            search_aliases=["heatmap", "overlay", "unsure", "confidence", "artifacts", "hands",
                            "broken", "mistakes", "quality", "doubt", "detailer mask",
                            "inpaint mask", "uncertainty mask", "variance map", "uncertainty"],
        )

    @classmethod
    def execute(cls, method, color_map, opacity, value_range, clip_percentile, step, draws,
                remove_low_pass, seed, mask_by, mask_threshold, grow, blur, color_bar,
                variance=None, trajectory=None, samples=None, vae=None,
                image=None, map=DOUBT, painted_mask="") -> io.NodeOutput:
        check_choices(cls, method=method, color_map=color_map, mask_by=mask_by,
                      value_range=value_range, map=map)
        trajectory = trajectory_of(trajectory)
        source = source_of(variance, trajectory, samples, step)
        of_doubt = trajectory is not None and step == -1 and method == "fast" and map == DOUBT
        deviation = maps.deviation_map(doubt_of(trajectory) if of_doubt else source.variance)
        if method == "pixel":
            deviation = pixel_deviation(source, vae, draws, seed, remove_low_pass)
        if image is None and vae is not None and source.result is not None:
            image = decoded(vae, source.result)
        if image is not None:
            image = image[..., :3].float()
        deviation = at_image_size(deviation, image, vae)

        shared = value_range == "shared"
        ends = maps.color_range(deviation, clip_percentile, shared)
        layer = maps.layer(ends.normalized(deviation), color_map).flatten(0, 1)
        colors = maps.by_itself(layer)
        overlay = colors if image is None else maps.overlaid(image, layer, opacity)
        if mask_by == "percentile":
            mask_threshold = maps.percentiles(deviation, mask_threshold, shared)
        mask = maps.uncertainty_mask(deviation, mask_threshold, grow, blur).flatten(0, 1)
        keys = keys_of(source, len(mask))
        mask, painted = with_painted(mask, keys, painted_mask)
        heatmap = with_color_bars(colors, ends, color_map) if color_bar else colors
        kind = "pixel" if method == "pixel" else DOUBT if of_doubt else \
            "uncertainty" if trajectory is None else viewer.kind_of(trajectory)
        shown = viewer.shown(viewer.of_heatmap, image, deviation, trajectory, color_map, kind,
                             clip_percentile, shared, viewer.Masks(mask, keys, painted))
        report = {"map": kind, "masked": mask.flatten(1).mean(1).tolist(),
                  "colors": [list(pair) for pair in zip(*(end.tolist() for end in ends))]}
        return io.NodeOutput(overlay, heatmap, mask, ui={"bayesdiff": [shown], **reported(report)})


class Source(NamedTuple):
    """What a map is made of, in the LATENT's scale, B x C x (T) x H x W."""

    variance: torch.Tensor
    mean: torch.Tensor | None  # what the variance is around
    result: torch.Tensor | None  # what the overlay shows
    draws: Callable[[int, int], torch.Tensor]  # count, seed -> offsets, count x B x C x ...


def source_of(variance, trajectory, samples, step: int) -> Source:
    if trajectory is not None:
        return Source(trajectory.latent_variance(step), trajectory.latent_mean(step),
                      trajectory.latent_picture(),
                      lambda count, seed: trajectory.draws(step, count, seed) * trajectory.scale)
    if variance is None:
        raise BayesDiffError("neither a variance nor a trajectory is linked, one of them was"
                             " expected: link an output of a BayesDiff sampler.")
    if step != -1:
        raise BayesDiffError(f"step is {step}, but a variance belongs to the result only, which is"
                             " step -1: set that, or link a trajectory.")
    variance = latent_of(variance)
    mean = None if samples is None else latent_of(samples)
    if mean is not None and mean.shape != variance.shape:
        raise BayesDiffError(f"the samples have the shape {list(mean.shape)} and the variance"
                             f" {list(variance.shape)}, the same was expected: link two outputs of"
                             " one sampler.")
    return Source(variance, mean, mean,
                  lambda count, seed: independent_draws(variance, count, seed))


def keys_of(source: Source, count: int) -> list[str]:
    """A name for each picture, or frame of a video, by which a painted mask knows it again."""
    latents = source.variance if source.result is None else source.result
    names = [hashlib.blake2b(one.contiguous().float().cpu().numpy().tobytes(),
                             digest_size=6).hexdigest() for one in latents]
    each = count // len(names)
    return [name if each == 1 else f"{name}.{frame}" for name in names for frame in range(each)]


def with_painted(mask: torch.Tensor, keys: list[str],
                 text: str) -> tuple[torch.Tensor, list[bool]]:
    """Masks with those in place of them that were painted by hand, and of which it is so."""
    files = painted_file.by_picture(text)
    rows = list(mask)
    for row, key in enumerate(keys):
        if key in files:
            painted = painted_file.read(files[key]).to(mask)
            rows[row] = F.interpolate(painted[None, None], mask.shape[-2:], mode="bilinear",
                                      antialias=True)[0, 0]
    return torch.stack(rows), [key in files for key in keys]


def independent_draws(variance: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Noise of that variance at each pixel; each image has its own generator."""
    drawn = []
    for index, image in enumerate(variance.cpu()):
        generator = torch.Generator().manual_seed(mixed_seed(seed, index))
        drawn.append(image.sqrt() * torch.randn(count, *image.shape, generator=generator))
    return torch.stack(drawn, dim=1)


def pixel_deviation(source: Source, vae, count: int, seed: int,
                    remove_low_pass: bool) -> torch.Tensor:
    """B x T x H x W: how far the decoded draws are from each other at each pixel."""
    if vae is None or source.mean is None:
        missing = "VAE" if vae is None else "samples"
        raise BayesDiffError(f"method is pixel, which decodes draws, but no {missing} input is"
                             " linked: link it, or set the method to fast.")
    over, progress = maps.DrawVariance(), comfy.utils.ProgressBar(count)
    for offset in source.draws(count, seed):
        comfy.model_management.throw_exception_if_processing_interrupted()
        picture = decoded(vae, source.mean + offset.to(source.mean.device))
        over.add(without_low_pass(picture) if remove_low_pass else picture)
        progress.update(1)
    deviation = maps.deviation_map(over.variance().movedim(-1, 1))
    return deviation.reshape(len(source.mean), -1, *deviation.shape[-2:])


def decoded(vae, latent: torch.Tensor) -> torch.Tensor:
    """Frames x H x W x 3, the frames of a batch of videos one after the other."""
    frames = vae.decode(latent)
    return frames.reshape(-1, *frames.shape[-3:])[..., :3].float()


def at_image_size(deviation: torch.Tensor, image: torch.Tensor | None, vae) -> torch.Tensor:
    batch, frames, height, width = deviation.shape
    if image is None:
        factor = 8 if vae is None else vae.spacial_compression_decode()
        return maps.resized(deviation, frames, height * factor, width * factor)
    each, left_over = divmod(len(image), batch)
    if left_over or (each != 1 if frames == 1 else each < frames):
        of = f"of {frames} frames or more" if frames > 1 else "of 1 picture"
        raise BayesDiffError(f"the image input holds {len(image)} pictures, but the variance is a"
                             f" batch of {batch} {of}: link what was decoded from the same latent.")
    return maps.resized(deviation.to(image.device), each, *image.shape[1:3])


def with_color_bars(heatmap: torch.Tensor, ends: maps.ColorRange,
                     color_map: str) -> torch.Tensor:
    """Frames x H x W x 3, made wider by a strip with the colors and their numbers."""
    height = heatmap.shape[1]
    text = min(max(height // 26, 10), 48)  # pixels
    font = ImageFont.load_default(text)
    count = min(max(height // (3 * text), 2), 6)
    labels = [numbers(low, high, count) for low, high in zip(*(end.tolist() for end in ends))]
    widest = max(font.getlength(label) for image in labels for label in image)
    inset, left, right = min(text, height // 4), text // 2, 2 * text
    width = -(-(right + text + math.ceil(widest)) // 8) * 8  # video encoders want such sizes

    bar = maps.by_itself(maps.layer(torch.linspace(1, 0, height - 2 * inset), color_map))
    strips = []
    for image in labels:
        strip = Image.new("RGB", (width, height), "#202020")
        draw = ImageDraw.Draw(strip)
        for place, label in zip(np.linspace(height - inset - 1, inset, count), image):
            draw.line([(right, place), (right + text // 4, place)], "white")
            draw.text((right + text // 2, place), label, "white", font, anchor="lm")
        strip = torch.from_numpy(np.array(strip)).float() / 255
        strip[inset:height - inset, left:right] = bar.unsqueeze(1)
        strips.append(strip)
    strips = torch.stack(strips).repeat_interleave(len(heatmap) // len(strips), 0)
    return torch.cat([heatmap, strips.to(heatmap)], dim=2)


def numbers(low: float, high: float, count: int) -> list[str]:
    """Evenly spaced from low to high, with as many digits as tell them apart; one if flat."""
    apart = (high - low) / (count - 1)
    if apart <= maps.ROUNDING * high:
        return [f"{low:.3g}"]
    decimals = max(1 - math.floor(math.log10(apart)), 0)
    form = f".{decimals}f" if decimals <= 5 else ".2e"
    return [f"{low + place * apart:{form}}" for place in range(count)]
