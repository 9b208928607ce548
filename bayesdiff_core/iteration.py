"""What every iteration over a sampler's steps shares: how the network is asked, what comes out, and
noise that belongs to an image."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from .posterior import Predictive

# (x, sigma) -> d, and (x, sigma) -> d with its posterior predictive
Predict = Callable[[torch.Tensor, float], torch.Tensor]
Noise = Callable[[torch.Tensor], torch.Tensor]  # standard normal, as its argument in all else
PredictWithPosterior = Callable[[torch.Tensor, float], tuple[torch.Tensor, Predictive]]


class Moments(NamedTuple):
    """The picture, and E(x_0) and Var(x_0). negative_share: entries of Var(x_t) that the iteration
    made negative and that were set to 0, over all steps, plain ones too."""

    sample: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    negative_share: float = 0.0


class ImageNoise:
    """Standard normal noise from a generator for each image, on the CPU as the host draws its own:
    an image's noise does not depend on its batch mates or on the device."""

    def __init__(self, seeds: list[int], item_shape: torch.Size):
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._item_shape = item_shape

    def __call__(self, like: torch.Tensor) -> torch.Tensor:
        count = like.numel() // (len(self._generators) * self._item_shape.numel())
        shape = (count, *self._item_shape)
        drawn = [torch.randn(shape, generator=g) for g in self._generators]
        return torch.stack(drawn, dim=1).reshape(like.shape).to(like)
