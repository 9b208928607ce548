"""From a variance to what can be looked at: a map of deviations, its colors, and a mask.

A map is B x T x H x W, one number at each pixel of each frame; T is 1 for pictures.
"""

from typing import NamedTuple

import torch
from torch.nn import functional

from . import checks
from .checks import BayesDiffError
from .smoothing import window_means

# Published color maps, at evenly spaced places between low and high. Linear in between, they stay
# within 1.3 % of the originals.
_ANCHORS = {
    "turbo": "30123b 3c3183 434fbb 466be3 4686fa 3ba1fd 29bbec 1ad2d1 1ae4b6 31f299 56fb75 80ff54"
             " a3fd3c bff434 d8e436 edd03a faba39 fe9f2f fb8022 f26114 e4460b d23105 ba1f02 9d1001"
             " 7a0403",
    "viridis": "440154 471163 481f71 472d7b 443a83 404688 3b528b 355d8d 31688e 2c728e 287c8e 24868e"
               " 21908c 1f9a8a 20a486 28ae80 35b779 47c06f 5dc963 75d054 8fd744 abdc32 c7e020"
               " e3e418 fde725",
    "inferno": "000004 050418 110a30 210c4a 330a5e 450a69 57106d 68166e 781c6d 89226a 9a2865 ab2f5e"
               " bb3755 ca404a d84c3f e35932 ed6925 f47a17 f98d0a fca108 fcb519 f9ca32 f4de52"
               " f2f17b fcffa4",
    "gray": "000000 ffffff",
}
PUBLISHED = list(_ANCHORS)
# Clear where the model was sure, one warm color where it was not: the picture stays to be seen.
GLOW, GLOW_COLOR = "glow", (1.0, 0.2, 0.05)
CLEAR_BELOW = 0.6  # of the range: leaves most of what is right alone (bench demo)
COLOR_MAPS = [GLOW, *PUBLISHED]
ROUNDING = 1e-5  # relative differences below this come from float32, not from the model


def colored(values: torch.Tensor, color_map: str) -> torch.Tensor:
    """Numbers in 0..1 -> RGB in 0..1, in a new last dimension."""
    anchors = torch.tensor(list(bytes.fromhex(_ANCHORS[color_map])), device=values.device)
    anchors = anchors.reshape(-1, 3) / 255
    place = values.clamp(0, 1) * (len(anchors) - 1)
    below = place.long().clamp(max=len(anchors) - 2)
    return torch.lerp(anchors[below], anchors[below + 1], (place - below).unsqueeze(-1))


def layer(values: torch.Tensor, color_map: str) -> torch.Tensor:
    """Numbers in 0..1 -> RGB and how much it covers what is below, all in 0..1, in a new last
    dimension."""
    if color_map != GLOW:
        colors = colored(values, color_map)
        return torch.cat([colors, torch.ones_like(colors[..., :1])], dim=-1)
    part = ((values - CLEAR_BELOW) / (1 - CLEAR_BELOW)).clamp(0, 1)
    covers = part.square() * (3 - 2 * part)  # without an edge at either end
    color = torch.tensor(GLOW_COLOR, device=values.device).expand(*values.shape, 3)
    return torch.cat([color, covers.unsqueeze(-1)], dim=-1)


def deviation_map(variance: torch.Tensor) -> torch.Tensor:
    """B x C x (T) x H x W -> B x T x H x W: the root of the mean variance over the channels."""
    if variance.ndim not in (4, 5):
        raise BayesDiffError(f"the variance has the shape {list(variance.shape)}; batch, channels,"
                             " (frames,) height and width were expected. Use the latent of a"
                             " picture or a video.")
    checks.finite("variance", variance)
    if (variance < 0).any():
        raise BayesDiffError(f"the variance goes down to {variance.min():g}, nothing below 0 was"
                             " expected. Link the variance, not the samples.")
    deviation = variance.float().mean(1).sqrt()
    return deviation if deviation.ndim == 4 else deviation.unsqueeze(1)


def resized(deviation: torch.Tensor, frames: int, height: int, width: int) -> torch.Tensor:
    """Linear in space, and in time between the first frame and the last: video VAEs decode the
    first latent frame to the first frame."""
    batch, _, *size = deviation.shape
    deviation = functional.interpolate(deviation.flatten(2).unsqueeze(1),
                                       (frames, size[0] * size[1]), mode="bilinear",
                                       align_corners=True).reshape(batch, frames, *size)
    return functional.interpolate(deviation, (height, width), mode="bilinear")


class DrawVariance:
    """Empirical variance over pictures that arrive one by one (Welford), in memory for three."""

    def __init__(self):
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, picture: torch.Tensor) -> None:
        """Frames x H x W x channels."""
        self._count += 1
        apart = picture - self._mean
        self._mean = self._mean + apart / self._count
        self._squares = self._squares + apart * (picture - self._mean)

    def variance(self) -> torch.Tensor:
        checks.at_least("number of draws", self._count, 2)
        return self._squares / (self._count - 1)


class ColorRange(NamedTuple):
    """The deviations at the low and the high end of the colors, B or 1 values each."""

    low: torch.Tensor
    high: torch.Tensor

    def normalized(self, deviation: torch.Tensor) -> torch.Tensor:
        """B x ... -> 0..1. A map that is the same everywhere is at the low end."""
        low, high = (end.reshape(-1, *[1] * (deviation.ndim - 1)) for end in self)
        span = torch.where(high - low > ROUNDING * high, high - low, torch.inf)
        return ((deviation - low) / span).clamp(0, 1)


def color_range(deviation: torch.Tensor, percentile: float, shared: bool) -> ColorRange:
    """From the least deviation to a percentile, so that a few high ones do not hide the rest."""
    return ColorRange(percentiles(deviation, 0, shared),
                       percentiles(deviation, percentile, shared))


def percentiles(values: torch.Tensor, percentile: float, shared: bool) -> torch.Tensor:
    """One for each entry of the batch or, shared, one for all. As torch.quantile, which refuses
    more than 2^24 values."""
    if not 0 <= percentile <= 100:
        raise BayesDiffError(f"the percentile is {percentile:g}, 0 to 100 was expected.")
    values = values.reshape(1 if shared else len(values), -1)
    rank = percentile / 100 * (values.shape[1] - 1)
    below = int(rank)
    low = values.kthvalue(below + 1, dim=1).values
    if rank == below:
        return low
    return torch.lerp(low, values.kthvalue(below + 2, dim=1).values, rank - below)


def overlaid(image: torch.Tensor, layer: torch.Tensor, opacity: float = 1.0) -> torch.Tensor:
    """... x 3 under ... x 4."""
    return torch.lerp(image, layer[..., :3].to(image), opacity * layer[..., 3:].to(image))


def by_itself(layer: torch.Tensor) -> torch.Tensor:
    """On black: ... x 4 -> ... x 3."""
    return layer[..., :3] * layer[..., 3:]


def uncertainty_mask(deviation: torch.Tensor, threshold: torch.Tensor | float, grow: int = 0,
                     blur: float = 0) -> torch.Tensor:
    """B x T x H x W -> the same: 1 where the deviation is above the threshold (B, 1 or a number),
    grown by pixels (shrunk below 0), with edges softened by a Gaussian of `blur` pixels."""
    threshold = torch.as_tensor(threshold, device=deviation.device).reshape(-1, 1, 1, 1)
    return blurred(grown((deviation > threshold * (1 + ROUNDING)).float(), grow), blur)


def grown(mask: torch.Tensor, pixels: int) -> torch.Tensor:
    """A mask of 0 and 1 dilated by a square, or eroded below 0; what lies beyond the border does
    not count."""
    if pixels < 0:
        return 1 - grown(1 - mask, -pixels)
    for dim in (-2, -1):
        mask = (window_means(mask, pixels, dim) > 0).float()
    return mask


def blurred(mask: torch.Tensor, deviation: float) -> torch.Tensor:
    """By a Gaussian of that deviation in pixels; the border goes on beyond itself."""
    if not deviation > 0:
        return mask
    reach = max(round(3 * deviation), 1)
    kernel = torch.arange(-reach, reach + 1, device=mask.device) / deviation
    kernel = torch.exp(-kernel.square() / 2)
    kernel = kernel / kernel.sum()
    rows = mask.reshape(-1, 1, *mask.shape[-2:])
    for shape, padding in [((-1, 1), (0, 0, reach, reach)), ((1, -1), (reach, reach, 0, 0))]:
        rows = functional.conv2d(functional.pad(rows, padding, mode="replicate"),
                                 kernel.reshape(1, 1, *shape))
    return rows.clamp(0, 1).reshape(mask.shape)
