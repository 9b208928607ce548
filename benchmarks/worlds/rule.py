"""When a picture is wrong: a spot of it is ink where no drawing of its world has ink, or none where
every such drawing has some."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

SPOT = 3  # pixels a side
LIMIT = 0.28  # of the contrast, mean over a spot: 2 or 3 of its 9 pixels are of the other tone


class Judged(NamedTuple):
    nearest: torch.Tensor  # B x C x H x W, the nearest drawing of the world
    error: torch.Tensor  # B x H x W, |picture - nearest| over the contrast
    distance: torch.Tensor  # B, sum of squared errors: in fully wrong pixels
    worst: torch.Tensor  # B, the largest mean error of a spot

    @property
    def wrong(self) -> torch.Tensor:
        """Which pictures are, B booleans."""
        return self.worst > LIMIT

    @property
    def where(self) -> torch.Tensor:
        """The pixels that are wrong, B x H x W booleans: centers of spots over the limit."""
        return spots(self.error) > LIMIT


def spots(error: torch.Tensor) -> torch.Tensor:
    """Mean over SPOT x SPOT around each pixel; beyond the border nothing is wrong."""
    return F.avg_pool2d(error[:, None], SPOT, 1, SPOT // 2)[:, 0]


def judged(pictures: torch.Tensor, nearest: torch.Tensor, contrast: torch.Tensor) -> Judged:
    """contrast: B values, ink less background of the nearest drawing."""
    error = (pictures - nearest).abs().mean(1) / contrast[:, None, None]
    return Judged(nearest, error, error.square().flatten(1).sum(1), spots(error).flatten(1).amax(1))
